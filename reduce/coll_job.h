/*
 * A job: ranks that reduce together, and the operations they ask for.
 *
 * This is the state machine behind the trigger files. It knows no files, no clock and no memory: requests,
 * time and the end of an operation are handed in, and it hands out "carry this out" and "this one is
 * answered" through struct coll_host. So a test drives it in virtual time, and the daemon from its loop.
 *
 * One operation:
 *
 *              all members asked                     no running range overlaps
 *     GATHER ──────────┬───────────────────▶ READY ─────────────────────▶ RUNNING
 *       │              ▼  its turn comes  ▲    │                             │ coll_op_finish
 *       │            AGREE ───────────────┘    │                             ▼
 *       │ timeout, mismatch,  │ timeout, lost  │ lost, kernel
 *       │ lost, canceled      │                │
 *       └──────────────▶ FAILED ◀──────────────┴─────────────────────── answered, freed
 *                          │ every member that has yet to come has had the same error
 *                          ▼
 *                        freed
 *
 * GATHER waits for ranks, until its deadline. AGREE, which few operations need (coll_turn.c), waits for the
 * owner's word on the order across tags, as long. READY waits for an earlier operation on the same bytes,
 * which is RUNNING and ends by itself; if that has run out of time, this one has waited for the same nodes,
 * and its own time counts from when it was complete. RUNNING waits for coll_op_finish. FAILED waits for
 * nothing: it is the answer kept for ranks that are late, so that everybody's numbers stay aligned. Where the
 * kernel limits how long a write may wait, that ends what has not begun to run, too (coll_time.c).
 *
 * Invariants (coll_job_check):
 *  1. A rank's next number is above every operation it has asked for, and at most one above the tag's `top`.
 *  2. A tag's `top` is the highest number anybody has asked for; no number above `done_top` is READY, RUNNING
 *     or succeeded. Operations stand in their tag's list in the order of their numbers.
 *  3. Every member asks once for an operation that is READY or RUNNING, with the same fingerprint, or is
 *     excused from it because it joined at a later number.
 *  4. Ranges of RUNNING operations do not overlap on any rank; READY ones count the older ones in their way.
 *  5. A request is answered exactly once, and an operation has one result for all.
 *  6. Operations that AGREE hold what READY ones hold, and run nothing yet.
 *  7. Only GATHER and FAILED operations hold interrupted requests: one that comes again finds the failure of
 *     its own number.
 *
 * Threads: the loop thread only.
 */
#ifndef COLL_JOB_H
#define COLL_JOB_H

#include "reduce/coll_stats.h"
#include "utils/ut_list.h"

#include <sys/types.h>

#define COLL_NAME_BYTES 65u
#define COLL_STATUS_LINES 16u
#define COLL_TAGS_MAX 256u

enum coll_rank_state {
    COLL_ABSENT,  /* nobody has joined as this rank */
    COLL_JOINED,  /* joined; no process has promised to take part, so only the timeout counts */
    COLL_PRESENT, /* a process holds a trigger open read-write */
    COLL_LOST,    /* that process has ended without closing */
    COLL_DROPPED, /* taken out by drop=; operations do not need it */
};

enum coll_op_state { COLL_GATHER, COLL_AGREE, COLL_READY, COLL_RUNNING, COLL_FAILED };

struct coll_job;
struct coll_operation;

/* Why an operation, or a request, ended as it did. */
struct coll_why {
    int result;        /* 0 or -errno */
    bool undefined;    /* data had begun to move: the buffers hold neither input nor result */
    char missing[64];  /* ranks that did not come, "1,3"; empty when that was not it */
    struct ut_err err; /* the sentence */
};

/* One rank's request for one operation. */
struct coll_ask {
    struct coll_operation *op;
    struct coll_rank *rank;
    struct coll_cmd cmd;
    pid_t pid; /* the thread that asked */
    uint64_t t_arrive;
    uint64_t t_parked; /* set by the host: since when the kernel waits for the answer; 0: it does not */
    bool withdrawn;    /* its wait was interrupted; it may come again until withdrawn_until */
    uint64_t withdrawn_until;
    bool crosses; /* its rank had others under way, in a job of several tags (coll_turn.c) */
    void *waiter; /* the host's: whom to answer; NULL when nobody waits any more */
    struct coll_ask *next_free;
};

/* A line of a rank's `status`. */
struct coll_status {
    uint64_t seq; /* 0: refused before it got a number */
    struct coll_cmd cmd;
    bool parsed; /* cmd holds something */
    struct coll_why why;
    uint64_t time_ns;
};

struct coll_rank {
    struct coll_job *job;
    unsigned number;
    enum coll_rank_state state;
    unsigned node;        /* where it joined */
    pid_t pid;            /* who joined or took part last */
    unsigned promises;    /* descriptors that hold the promise to take part */
    unsigned asking;      /* requests not answered yet */
    uint64_t last_seq;    /* last operation completed, 0: none */
    uint32_t incarnation; /* of the join, so that a dropped rank's old news is told from a new join */
    uint32_t dropped;     /* the incarnation that was dropped last, whoever has joined since; 0: none */
    int lost_rc; /* LOST: -ECONNRESET (its process), -EHOSTDOWN (its node) or -ENOLINK (the link to it) */
    struct coll_late late;
    uint64_t status_count;      /* lines ever written */
    struct coll_status *status; /* [COLL_STATUS_LINES], ring; NULL before somebody joined */
    void *host;                 /* the host's own */
};

/* A sequence of operations: all ranks count it on their own. */
struct coll_tag {
    struct ut_list link; /* in job->tags */
    struct coll_job *job;
    char name[COLL_TAG_BYTES];
    uint64_t top;         /* highest number asked for, 0: none */
    uint64_t done_top;    /* highest number that got past GATHER without failing */
    struct ut_list ops;   /* struct coll_operation.link, by number */
    uint64_t rank_next[]; /* [world] the number each rank's next request gets */
};

struct coll_operation {
    struct ut_list link;   /* in tag->ops */
    struct ut_list active; /* in job->active while READY or RUNNING, oldest first */
    struct ut_list turn;   /* in job->turns from when its turn was told until it is READY */
    struct coll_job *job;
    struct coll_tag *tag;
    uint64_t seq;
    enum coll_op_state state;
    unsigned member_count; /* fixed when it starts */
    unsigned requests;     /* that `ask` holds */
    unsigned asked;        /* of them, those that are not withdrawn */
    unsigned excused;      /* members whose next number is above this one without having asked */
    unsigned blockers;     /* older active operations on the same bytes */
    unsigned last_rank;
    uint64_t span_begin, span_end; /* bytes that any rank gives to it, while active */
    uint64_t t_first, t_last, t_start;
    struct coll_cmd cmd; /* what the first who asks has asked for; all who ask agree with it */
    struct coll_why why;
    struct coll_phases phases; /* set by the host, before coll_op_finish */
    bool heard;                /* its failure was heard from another node, which tells all */
    bool moved;                /* set by the host, before coll_op_finish: data has begun to move */
    uint64_t t_moved;    /* set by the host, while RUNNING between nodes: when anything last did for it */
    uint64_t vain_since; /* one that was in its way has run out of time, both waiting since then; 0: none */
    void *host;          /* the host's own, while RUNNING */
    struct coll_ask *ask[]; /* [world], by rank number; NULL: has not asked */
};

/* What the machine calls. Only run may call back into it, and only coll_op_finish. */
struct coll_host {
    void *ctx;
    /* All members have asked: carry the operation out, then call coll_op_finish, from here or later. */
    void (*run)(void *ctx, struct coll_operation *op);
    /* The request is over: tell whoever waits. `ask` and `why` are valid during the call. */
    void (*answer)(void *ctx, struct coll_ask *ask, const struct coll_why *why, uint64_t now);
    /* Something an operator wants to know. severity: "info", "warn" or "error". */
    void (*event)(void *ctx, const struct coll_job *job, const char *severity, const char *text);
    /* Call coll_job_tick no later than `when`. */
    void (*wake)(void *ctx, uint64_t when);
    /* What other nodes must hear (coll_remote.h); NULL where there are none. */
    void (*asked)(void *ctx, const struct coll_ask *ask);
    void (*withdrew)(void *ctx, const struct coll_ask *ask, bool dying);
    void (*failed)(void *ctx, const struct coll_operation *op);
    void (*changed)(void *ctx, struct coll_job *job);
    void (*turn)(void *ctx, const struct coll_operation *op);
    /* Another node has failed an operation that is RUNNING here, or is lost: end it with coll_op_finish, at
     * once where it goes over the ring, else when it would go there. */
    void (*abort)(void *ctx, struct coll_operation *op, const struct coll_why *why);
    /* The machine that the node is, or was when it was last there; NULL when that is not known. */
    const char *(*machine)(void *ctx, unsigned node);
    /* True while the node's hardware is not to be trusted; NULL: nobody watches it. */
    bool (*suspect)(void *ctx, unsigned node);
};

struct coll_job {
    char name[COLL_NAME_BYTES];
    const struct coll_host *host;
    struct coll_config config;
    uint64_t memory_limit;
    uint64_t wait_limit_ns;   /* upper bound on every timeout (the kernel's request timeout); 0: none */
    unsigned node;            /* this node's number */
    uint32_t joins;           /* ever, on this node: a source of incarnations */
    struct coll_why conflict; /* what nodes disagree about; while result is not 0 every request is refused */
    unsigned taken_twice;     /* the rank that conflict EEXIST is about */
    struct coll_why cut;      /* a link between other nodes is down: what one of them has said */
    uint64_t cut_until;       /* so long, and while the same ranks take part, that is believed */
    bool hearing;             /* what happens now was heard from another node: it is not told again */
    bool quiet;               /* failures are not told any more: this node leaves */
    uint64_t epoch;           /* changes with every change of who takes part */
    unsigned joined;          /* ranks with a directory */
    unsigned lost, dropped;   /* ranks in that state */
    unsigned participants;    /* promises of all ranks */
    unsigned tag_count;
    unsigned failed_count;   /* FAILED operations kept, in all tags */
    unsigned withdrawn;      /* interrupted requests that may come again */
    unsigned agreeing;       /* AGREE operations, in all tags */
    struct coll_rank *ranks; /* [config.world]; NULL before the first joins */
    struct ut_list tags;
    struct ut_list active;
    struct ut_list turns;            /* struct coll_operation.turn, as the owner gives them */
    struct coll_operation *free_ops; /* linked through host */
    struct coll_ask *free_asks;
    uint64_t idle_since; /* when the last participant went; linger counts from here */
    bool advancing;
    uint64_t failed_seq; /* the last operation that failed, 0: none, and why */
    struct coll_why failed_why;
    struct coll_stats stats;
};

/* Makes a job. 0 or -ENOMEM. */
int coll_job_create(const char *name, const struct coll_host *host, uint64_t memory_limit, uint64_t now,
                    struct coll_job **out);

/* Ends everything that waits with `result` and frees the job. No operation may be RUNNING. */
void coll_job_destroy(struct coll_job *job, int result, uint64_t now);

/* A write to `config`: coll_config_write, frozen while ranks are in the job. */
int coll_job_configure(struct coll_job *job, const char *text, size_t len, uint64_t now, struct ut_err *err);

/* Ranks that operations need now. */
unsigned coll_job_member_count(const struct coll_job *job);

/* A write to `members`: "drop=lost", "drop=suspect" (ranks on suspect nodes) or "drop=R". 0; -EINVAL; -ENOENT
 * when there is no such rank to drop. */
int coll_job_drop(struct coll_job *job, const char *text, size_t len, uint64_t now, struct ut_err *err);

/* True while requests wait or run, so that the job cannot be removed. */
bool coll_job_is_busy(const struct coll_job *job);

/* True when nobody has taken part for the job's linger time. */
bool coll_job_is_over(const struct coll_job *job, uint64_t now);

/* Ends what has run out of time, and says through host.wake when to come again. The host removes a job that
 * coll_job_is_over. */
void coll_job_tick(struct coll_job *job, uint64_t now);

/* Ends everything that waits with `result` and the sentence; RUNNING operations go on. */
void coll_job_fail_all(struct coll_job *job, int result, const char *text, uint64_t now);

/* Joins as rank `number` from node `node`. 0; -EAGAIN (world not set), -EINVAL (not below world), -EEXIST,
 * -EBUSY (an operation from before it was dropped still runs), -ENOMEM. */
int coll_rank_join(struct coll_job *job, unsigned number, unsigned node, pid_t pid, uint64_t now,
                   struct coll_rank **out);

/* Leaves. 0, or -EBUSY while a request of this rank is not answered. */
int coll_rank_leave(struct coll_rank *rank, uint64_t now);

/* A process opened a trigger read-write: it promises to take part. A lost rank is back, at the job's next
 * number. 0, or -ESTALE when the rank left or was dropped. Leaving and dropping end all promises of a rank:
 * the host forgets its own then. */
int coll_rank_promise(struct coll_rank *rank, pid_t pid, uint64_t now);

/* It closed that descriptor while alive: the promise ends, nothing else. */
void coll_rank_release(struct coll_rank *rank, uint64_t now);

/* The process `pid`, which held `promises` of them, has ended: the rank is lost and all that needs it
 * fails. */
void coll_rank_lost(struct coll_rank *rank, pid_t pid, unsigned promises, uint64_t now);

/*
 * A rank asks for an operation. 0: it is accepted and answered later, or has been already, by host.answer.
 * Otherwise it is refused at once, and *why says it: -ESTALE (dropped); -ECONNRESET, -EHOSTDOWN or -ENOLINK
 * (a rank is lost, its node, or the link to it); -EPROTO or -EEXIST (nodes disagree about the job, or its tag
 * is taken for another); -ENOSPC (too many tags at once); -ENOMEM. It has no number then, but for an -ESTALE:
 * that of a number whose failure is no longer kept. *out is the request, NULL when it was answered.
 */
int coll_rank_ask(struct coll_rank *rank, const struct coll_cmd *cmd, pid_t pid, void *waiter, uint64_t now,
                  struct coll_ask **out, struct coll_why *why);

/* The wait for this request was interrupted. True: it is withdrawn, the caller answers EINTR, and asking for
 * the same again resumes it. False: data moves already, it will be answered. dying: the process will not
 * come again. */
bool coll_ask_interrupt(struct coll_ask *ask, bool dying, uint64_t now);

/* True when an operation of the rank, waiting or running, reaches beyond the first `from` bytes of its
 * buffer. */
bool coll_rank_is_using(const struct coll_rank *rank, uint64_t from);

/* Writes a line into the rank's status for a request that never became one (cmd may be NULL). */
void coll_rank_note(struct coll_rank *rank, const struct coll_cmd *cmd, const struct coll_why *why);

/* The host has carried the operation out: result 0 or -errno, with a sentence when it failed. */
void coll_op_finish(struct coll_operation *op, int result, const char *text, uint64_t now);

/* The members of an operation in rank order: fills up to op->member_count requests. */
void coll_op_members(const struct coll_operation *op, struct coll_ask **out);

/* True when the rank takes part from a node that the host holds suspect. */
bool coll_rank_is_suspect(const struct coll_rank *rank);

/* The word for a state, as `members` shows it. */
const char *coll_rank_state_name(enum coll_rank_state state);

/* Text of `members`, `status`, `stats` and `trace`. */
void coll_job_show_members(const struct coll_job *job, struct ut_text *out);
void coll_job_show_stats(const struct coll_job *job, struct ut_text *out);
void coll_job_show_trace(const struct coll_job *job, struct ut_text *out);
uint64_t coll_job_trace_bytes(const struct coll_job *job); /* length of the former without rendering it */
void coll_rank_show_status(const struct coll_rank *rank, struct ut_text *out);

/* One result line as `read` of a trigger gives it: "seq=12 op=sum dtype=f32 count=1024 result=ok
 * time_us=83\n". Returns its length, below len. */
size_t coll_show_result(const struct coll_cmd *cmd, uint64_t seq, const struct coll_why *why,
                        uint64_t time_ns, char *out, size_t len);

/* Aborts when an invariant above does not hold. Tests run it after each step. */
void coll_job_check(const struct coll_job *job);

#endif
