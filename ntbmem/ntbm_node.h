/*
 * This node among the others: its landing memory with the header page, and its peers. The one thing of the
 * lower half of many nodes that a layer above has to make and to poll.
 *
 * What lies below, from the top:
 *
 *     ntbm_node.h      this node and all its peers
 *     ntbm_peer.h      one peer: is it there, is it sound, is it alive; a session while it is
 *     ntbm_mail.h      control messages of a session: any size, in order, each once
 *     ntbm_slot.h      bulk data of a session: slots that workers fill and drain in place, with credits
 *     ntbm_pattern.h   the proof that a window leads where it should
 *     ntbm_session.h   what these four share
 *     ntbm_landing.h   the bytes that nodes write into each other's memory
 *     ntbm_link.h      put bytes, then publish one word: all that a fabric must be able to do
 *     ntbm_emu.h       a link that is slow or bad on purpose
 *     ntbm_mem.h       memory that two daemons share, of several kinds; ntbm_uri.h names it
 *
 * A layer above opens its landing memory (ntbm_mem_open), makes the node (ntbm_node_init), adds a peer for
 * each other node with a link to its memory (ntbm_mem_link_init, ntbm_node_add), and polls. Then it is told
 * who comes and goes, sends messages, and moves data: take a slot, let a worker write it, send; next, let a
 * worker read it, done.
 *
 * Threads: the progress thread only, except ntbm_slot_send, _cancel and _done (ntbm_slot.h).
 */
#ifndef NTBM_NODE_H
#define NTBM_NODE_H

#include "ntbmem/ntbm_peer.h"

struct ntbm_node_attr {
    const char *fabric;  /* name, 1 .. 31 bytes */
    uint32_t node;       /* < node_count */
    uint32_t node_count; /* >= 2 */
    uint8_t *landing;    /* page-aligned, zero or used before; lent until fini */
    uint64_t landing_bytes;
    uint64_t limit_ns; /* heartbeat limit; 0: NTBM_LIMIT_NS */
    uint8_t boot_id[16];
    uint64_t incarnation; /* random, not 0 */
    uint32_t pid;
    const char *host; /* cut to 31 bytes */
};

struct ntbm_node {
    struct ntbm_self self;
    uint64_t landing_bytes;
    uint64_t beat_due_ns;
    uint32_t beat;
    struct ntbm_peer **peers; /* [node_count]; own entry and those not added are NULL */
};

/* Fills boot_id, incarnation, pid and host from this machine. host_buf needs 32 bytes and must live as long.
 */
int ntbm_node_identify(struct ntbm_node_attr *attr, char host_buf[32]);

/* Cuts and prepares the landing memory and writes its header. 0, -EINVAL with a sentence, -ENOMEM. */
int ntbm_node_init(struct ntbm_node *node, const struct ntbm_node_attr *attr, struct ut_err *err);

/* Adds the peer with that number, reached through link. The node owns the peer. 0, -EINVAL, -EEXIST, -ENOMEM.
 */
int ntbm_node_add(struct ntbm_node *node, uint32_t peer_node, struct ntbm_link *link,
                  const struct ntbm_peer_ops *ops, void *ctx, struct ntbm_peer **out);

/* Polls all peers (ntbm_peer.h) and keeps the header fresh. True when anything arrived or left. */
bool ntbm_node_poll(struct ntbm_node *node, uint64_t now_ns);

/* Landing memory was lost and is whole again, full of zeros: ends all sessions for that reason, in words, and
 * writes what peers look for. */
void ntbm_node_renew(struct ntbm_node *node, const char *reason);

/* Leaves: ends all sessions, tells the peers, and clears the header, so that nobody greets us any more. */
void ntbm_node_fini(struct ntbm_node *node);

#endif
