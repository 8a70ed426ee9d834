/*
 * Node or link: when a node goes silent, the others are asked whether they hear it.
 *
 * Who suspects a node asks all (SEEK). Who is asked answers at that node's *next* beat (HEARS), or never: so
 * a beat from before the question proves nothing, and nobody needs to compare clocks. An answer makes the
 * loss, if it comes, that of the link (ntbm_peer_vouch). On a fabric of two nodes there is nobody to ask.
 *
 * Threads: the loop thread only.
 */
#ifndef COLL_WITNESS_H
#define COLL_WITNESS_H

#include "reduce/coll_wire.h"
#include "reduce/ring_nodes.h"

struct coll_net;

/* About one node. */
struct coll_witness {
    bool asked;               /* we suspect it, and have asked */
    struct ring_nodes askers; /* who has asked us */
    bool is_new;    /* since the last poll: what has come by the next one may be older than the question */
    uint64_t beats; /* that we had heard then */
};

/* Asks and answers what is due. */
void coll_witness_poll(struct coll_net *net);

/* A node has said COLL_WIRE_SEEK or COLL_WIRE_HEARS; `in` stands behind the type. */
void coll_witness_hear(struct coll_net *net, unsigned node, enum coll_wire_type type, struct coll_in *in);

/* The session with the node has ended. */
void coll_witness_forget(struct coll_net *net, unsigned node);

/* True while a node is suspected, here or by one who has asked us, so that the caller polls soon. */
bool coll_witness_is_busy(const struct coll_net *net);

#endif
