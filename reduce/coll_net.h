/*
 * Jobs across nodes: tells the other nodes what happens to this node's ranks (coll_host's asked, withdrew,
 * failed, changed), brings what they tell into the job machines (coll_remote.h), and has operations carried
 * out over the ring (ring.h).
 *
 * A node that comes up, or joins a job, is told everything once; after that only news. A JOB message states
 * all there is, so the last one heard is kept for jobs that do not exist here yet.
 *
 * Threads: the loop thread only.
 */
#ifndef COLL_NET_H
#define COLL_NET_H

#include "reduce/coll_remote.h"
#include "reduce/coll_witness.h"
#include "reduce/ring.h"

/* Jobs that a node may have where there are others: each of them keeps what it was told of so many. */
#define COLL_NET_JOBS_MAX 1024u

/* A job that this node has. */
struct coll_net_job {
    struct ut_list link;
    struct coll_job *job;
    uint64_t id; /* ring_id of its name */
    uid_t uid;
    bool changed;             /* since what the others have told was last looked at */
    bool told;                /* the others have heard of ranks of ours: they must hear when those leave */
    struct ring_nodes untold; /* nodes that are to be told when there is room */
    /* By node. Two nodes with ranks in the job meet: each says so, each answers what it has heard
     * (`has`), and with the answer both take the higher numbers; from then on news go there (`knows`). */
    struct ring_nodes has, knows;
};

struct coll_net {
    struct ring ring;
    unsigned node, node_count;
    struct ntbm_peer **peers;       /* by node number */
    unsigned order[RING_NODES_MAX]; /* nodes in ring order */
    struct ut_list jobs;            /* struct coll_net_job.link */
    struct ut_list heard;           /* the last JOB of each node and name, coll_net.c */
    uint64_t (*now)(void);
    uint64_t looked_ns;                          /* when operations were last looked at for progress */
    uint64_t forgot_ns;                          /* when words for those that are over were last let go */
    struct coll_witness witness[RING_NODES_MAX]; /* by node number */
};

/* order: all nodes in ring order. 0 or -ENOMEM. peers must outlive it. */
int coll_net_init(struct coll_net *net, unsigned node, struct ntbm_peer **peers, unsigned node_count,
                  const unsigned *order, uint64_t (*now)(void));
void coll_net_fini(struct coll_net *net);

/* A job is made or removed here. 0; -ENOSPC when there are COLL_NET_JOBS_MAX; -EEXIST when another job here
 * has the same id; -ENOMEM. */
int coll_net_add(struct coll_net *net, struct coll_job *job, uid_t uid, struct ut_err *err);
void coll_net_remove(struct coll_net *net, struct coll_job *job);

/* The job's owner has changed. */
void coll_net_set_owner(struct coll_net *net, struct coll_job *job, uid_t uid);

/* coll_host's functions of the same names, with the net as their ctx's own. */
void coll_net_asked(struct coll_net *net, const struct coll_ask *ask);
void coll_net_withdrew(struct coll_net *net, const struct coll_ask *ask, bool dying);
void coll_net_failed(struct coll_net *net, const struct coll_operation *op);
void coll_net_turn(struct coll_net *net, const struct coll_operation *op);
void coll_net_changed(struct coll_net *net, struct coll_job *job);
void coll_net_abort(struct coll_net *net, struct coll_operation *op, const struct coll_why *why);

/* True when ranks of other nodes take part in the operation. */
bool coll_net_concerns(const struct coll_operation *op);

/* What an operation over the ring needs: filled in by the caller, and calls back when it is over. */
struct coll_net_run {
    struct ring_op ring;
    struct coll_net *net;
    struct coll_operation *op;
    void (*over)(struct coll_net_run *run, int result, const char *text);
    uint64_t steps_left, words; /* when it was last looked at: what is left, what others have said */
    unsigned member_pos[COLL_WORLD_MAX];
    unsigned nodes[RING_NODES_MAX];
    void *base[COLL_WORLD_MAX]; /* [member]: the range of a rank of this node; NULL for others */
};

/* Carries the operation out. run->op, over and base are set. 0: `over` will be called, or has been; else
 * -errno, and it will not: -EHOSTDOWN or -ENOLINK when a node of it is out of reach. */
int coll_net_start(struct coll_net *net, struct coll_net_run *run, const struct red_table *table);

/* Tells what has changed in jobs, and moves data; true when some moved. Call after polling the peers. */
bool coll_net_poll(struct coll_net *net);

/* True while operations are under way over the ring. */
bool coll_net_is_busy(const struct coll_net *net);

/* Sends a message to a node, if it is there. One that does not fit ends the session: a new one tells
 * everything again. */
void coll_net_send(struct coll_net *net, unsigned node, const struct coll_out *out);

/* From ntbm_peer_ops: a node is there, gone (loss: -EHOSTDOWN, it is down, or -ENOLINK, only the link to it
 * is), says something. */
void coll_net_peer_up(struct coll_net *net, unsigned node);
void coll_net_peer_down(struct coll_net *net, unsigned node, int loss, const char *reason);
void coll_net_message(struct coll_net *net, unsigned node, const uint8_t *bytes, uint32_t len);

#endif
