/*
 * What a job hears from other nodes. Every node runs the same machine (coll_job.h) over all ranks: of its own
 * ranks it knows first, of the others by what their nodes tell: who is in, who asks for which number, what
 * has failed. So missing, mismatching and late ranks are found and named on every node alike, and an
 * operation starts on each node when that node knows that all have asked.
 *
 * Nodes may come to different ends for a moment (one runs out of time while another hears of the last rank).
 * A failure always wins: it is told to all, and a node that has started waits for data that never come and
 * then hears why (coll_host.abort). A success needs all nodes.
 *
 * A link may be down between two nodes that all others reach. What waited then fails at its ends, who tell
 * the others; and so does what a third node asks for later. That one refuses by itself for a moment what its
 * ranks ask for next, so that those who try again and again flood nobody.
 *
 * Numbers. A node's `floor` in a tag is the number before the one at which a rank joins there. When two nodes
 * meet over a job the lower goes on behind the higher's floor; requests that wait there, and that no third
 * node knows, move with it.
 *
 * Everything here was written by another machine. Numbers of ranks and nodes are checked; what makes no sense
 * is ignored, and answered with a failure where somebody may wait for an answer.
 *
 * Threads: the loop thread only.
 */
#ifndef COLL_REMOTE_H
#define COLL_REMOTE_H

#include "reduce/coll_job.h"

/* A rank as its node describes it. */
struct coll_remote {
    unsigned number;
    enum coll_rank_state state; /* JOINED, PRESENT or LOST */
    uint32_t incarnation;
    pid_t pid;
    uint64_t last_seq;
};

/* All ranks that `node` has in the job now; those it no longer lists have left. A rank that is also here, or
 * on a third node, is a conflict (EEXIST) until one of them has left. */
void coll_remote_ranks(struct coll_job *job, unsigned node, const struct coll_remote *ranks, unsigned count,
                       uint64_t now);

/* `node` has dropped this incarnation of the rank. True when that was news. Where a fabric was cut and each
 * half has dropped the other, the last rank of the node with the lower number stays. */
bool coll_remote_drop(struct coll_job *job, unsigned node, unsigned number, uint32_t incarnation,
                      uint64_t now);

/* Another node is at that number in the tag. is_unknown: no other node has heard of requests of ours yet. */
void coll_remote_floor(struct coll_job *job, const char *tag, uint64_t floor, bool is_unknown, uint64_t now);

/* The node's floor in a tag. */
uint64_t coll_tag_floor(const struct coll_tag *tag);

/* A request as its node tells it. */
struct coll_remote_ask {
    unsigned number; /* of the rank */
    uint64_t seq;
    pid_t pid;
    bool crosses; /* coll_turn.c */
    struct coll_cmd cmd;
};

/* A rank of `node` asks. 0; -ENOMEM; -ESTALE when that number is over here: the node is to be told that it
 * failed, and as far as that is still known how: *why. */
int coll_remote_ask(struct coll_job *job, unsigned node, const struct coll_remote_ask *asked, uint64_t now,
                    struct coll_why *why);

/* `node` says that it is that operation's turn. Only its owner may, whose own request has come before. */
void coll_job_hear_turn(struct coll_job *job, unsigned node, const char *tag, uint64_t seq, uint64_t now);

/* It was interrupted, and comes again within two seconds or not at all. */
void coll_remote_withdraw(struct coll_job *job, unsigned node, unsigned number, const char *tag, uint64_t seq,
                          bool dying, uint64_t now);

/* An operation has failed on `node`, and so here, unless it goes on without that node. */
void coll_remote_fail(struct coll_job *job, unsigned node, const struct coll_cmd *cmd, uint64_t seq,
                      const struct coll_why *why, uint64_t now);

/* The node is out of reach: -EHOSTDOWN, or -ENOLINK when it is alive behind a dead link. */
void coll_remote_node_lost(struct coll_job *job, unsigned node, int rc, const char *reason, uint64_t now);

/* A number that is the same on two nodes if and only if, but for chance, they mean the same members in the
 * same incarnations: what was sent for an operation of that number before they joined is not taken for it. */
uint32_t coll_op_members_sum(const struct coll_operation *op);

#endif
