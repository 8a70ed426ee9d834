/*
 * What the parts of the job machine share: coll_job.c (who takes part), coll_tag.c (numbers), coll_op.c (from
 * complete to answered), coll_turn.c (the order across tags), coll_ask.c (requests), coll_time.c (what runs
 * out) and coll_check.c (invariants).
 *
 * Whoever fails or finishes an operation may free others of its tag, so a walk over a tag's operations that
 * does so looks anew each time instead of going on.
 */
#ifndef COLL_INTERNAL_H
#define COLL_INTERNAL_H

#include "reduce/coll_job.h"

#include <errno.h>

#define COLL_WITHDRAWN_NS (2 * 1000000000ull) /* how long an interrupted request may come again (design) */
#define COLL_CUT_NS (100 * 1000000ull)        /* how long a word about a link of other nodes is believed */
#define COLL_FAILED_MAX 1024u                 /* failed operations a job keeps for ranks that are late */

/* True when the rank joined on this node, so that its requests have somebody to answer. */
static inline bool coll_rank_is_local(const struct coll_rank *rank)
{
    return rank->node == rank->job->node;
}

/* True when the rank's requests count in operations to come. */
static inline bool coll_rank_is_member(const struct coll_rank *rank)
{
    return rank->state != COLL_DROPPED;
}

/* True when the rank has a directory and goes on counting numbers. */
static inline bool coll_rank_is_counting(const struct coll_rank *rank)
{
    return rank->state == COLL_JOINED || rank->state == COLL_PRESENT;
}

/* True when no other node can have it: one whose node is down may go on from another. */
static inline bool coll_rank_is_held(const struct coll_rank *rank)
{
    return coll_rank_is_counting(rank) || (rank->state == COLL_LOST && rank->lost_rc == -ECONNRESET);
}

/* ---- coll_tag.c ---- */

/* The tag of that name, made when new. NULL, and *rc: -EEXIST (another one has the same ring_id), -ENOSPC
 * (too many), -ENOMEM. */
struct coll_tag *coll_tag_get(struct coll_job *job, const char *name, int *rc);

/* The number a rank starts at that joins, or comes back, now. */
uint64_t coll_tag_join_number(const struct coll_tag *tag);

/* The operation of that number, NULL when it is over or not begun. */
struct coll_operation *coll_tag_find(const struct coll_tag *tag, uint64_t seq);

/* Frees the operations at the front that nobody has to come to any more: whoever joins starts behind them.
 * Keeps the failures of a job within COLL_FAILED_MAX, at the cost of this tag's oldest. */
void coll_tag_forget_passed(struct coll_tag *tag);

/* Frees all tags with what is in them. No operation may be READY or RUNNING. */
void coll_tags_free(struct coll_job *job);

/* ---- coll_op.c ---- */

/* A new operation, the last of its tag, and so with the number after its top. NULL: no memory. */
struct coll_operation *coll_op_create(struct coll_tag *tag, uint64_t now);

/* Takes it off all lists and keeps its memory for the next; its requests must be gone. */
void coll_op_free(struct coll_operation *op);

/* Frees what is kept for reuse. */
void coll_pool_free(struct coll_job *job);

/* Starts the operation when all members have asked. */
void coll_op_check_complete(struct coll_operation *op, uint64_t now);

/* Whether a rank of this node has asked for it. */
bool coll_op_has_local(const struct coll_operation *op);

/* Forgets the operation: all who have asked for it are on other nodes, who do it without us. */
void coll_op_pass_by(struct coll_operation *op);

/* It is complete and has its turn: it starts when nothing older is in its way. */
void coll_op_make_ready(struct coll_operation *op);

/* Makes ready what has its turn, and starts what can start. */
void coll_job_advance(struct coll_job *job, uint64_t now);

/* Ends an operation that has not started: who has asked is answered, who comes later gets the same. */
void coll_op_fail(struct coll_operation *op, const struct coll_why *why, uint64_t now);

/* Fails every operation that has not started. */
void coll_job_fail_pending(struct coll_job *job, const struct coll_why *why, uint64_t now);

/* Who takes part has changed: counts the excused anew, starts what has become complete, forgets what nobody
 * has to come to any more. */
void coll_job_recount(struct coll_job *job, uint64_t now);

/* How many operations older than this one, and still active, work on its bytes. */
unsigned coll_op_count_blockers(const struct coll_operation *op);

/* ---- coll_turn.c ---- */

/* Whether a complete operation has to wait for its turn. */
bool coll_op_needs_turn(const struct coll_operation *op);

/* Gives the turns that are ours to give, and makes ready what has come to the front. */
void coll_job_take_turns(struct coll_job *job);

/* A request that crosses has come again, for an operation begun before: who sent it may wait for a turn. */
void coll_op_repeat_turn(const struct coll_operation *op);

/* Whether the owner has not said in time when the operation starts; and the end of it then. */
bool coll_op_is_turn_late(const struct coll_operation *op, uint64_t now);
void coll_op_fail_turn(struct coll_operation *op, uint64_t now);

/* ---- coll_ask.c ---- */

/* A request for the operation, held by it. NULL: no memory. */
struct coll_ask *coll_ask_create(struct coll_operation *op, struct coll_rank *rank);

/* Takes the request out of its operation and keeps its memory for the next. */
void coll_ask_free(struct coll_ask *ask);

/* The request counts from now on: it is compared with the others, and starts the operation when it was the
 * last. Returns the request, or NULL when it has been answered already. */
struct coll_ask *coll_ask_arrive(struct coll_ask *ask, uint64_t now);

/* Why the job's requests are refused while a rank is lost: the one who is furthest out of reach. Returns
 * why->result. */
int coll_job_refuse_lost(const struct coll_job *job, struct coll_why *why);

/* Answers the request and frees it. */
void coll_ask_answer(struct coll_ask *ask, const struct coll_why *why, uint64_t now);

/* True when all that the rank has asked for in the tag after this request, and there is some, is withdrawn
 * too. If none of it comes again, all these numbers are free; if some does, this one is used up. So this
 * request's number waits for that. */
bool coll_ask_hangs_on_later(const struct coll_ask *ask);

/* The interrupted request will not come again. Alone it is as if never made; where others wait, or the rank
 * has asked for more since, its number cannot be given to anything else, so the operation fails. */
void coll_ask_give_up(struct coll_ask *ask, bool dying, uint64_t now);

/* Frees the rank's interrupted requests. */
void coll_rank_forget_withdrawn(struct coll_rank *rank);

/* Takes the rank's requests out of all operations that have not started, answering them with why. Those that
 * cannot start without it fail with the same. */
void coll_rank_take_back(struct coll_rank *rank, const struct coll_why *why, uint64_t now);

/* ---- coll_time.c ---- */

/* When the operation has waited for long enough since then: for the job's timeout, or less where the kernel
 * wants that. It counts from when the write came that waits, in whatever state the operation is. */
uint64_t coll_op_end_of_wait(const struct coll_operation *op, uint64_t since);

/* The end of the clock of an operation that gathers, waits for its turn, or for its memory: there only the
 * kernel's counts. */
uint64_t coll_op_deadline(const struct coll_operation *op);

/* Ends what has run out of time in one tag; lowers *next to the earliest deadline left. */
void coll_tag_tick(struct coll_tag *tag, uint64_t now, uint64_t *next);

/* ---- coll_job.c ---- */

/* Tells the other nodes that the job has changed, unless that was heard from one. */
void coll_job_tell(struct coll_job *job);

/* True when a process on another node has promised to take part. */
bool coll_job_has_remote_participant(const struct coll_job *job);

/* Takes one rank out; see coll_job_drop, which drops several under one epoch. */
void coll_rank_drop(struct coll_rank *rank, uint64_t now);

/* Makes the table of ranks for the job's world. 0 or -ENOMEM. */
int coll_job_make_ranks(struct coll_job *job);

/* "host NAME, " of a rank, to stand before its pid in a sentence; "" where that is not known. */
#define COLL_HOST_BYTES 48u
const char *coll_rank_host(const struct coll_rank *rank, char host[COLL_HOST_BYTES]);

/* An event about a rank: what it did or what became of it, with where it is and how far it had come. */
void coll_rank_say(const struct coll_rank *rank, const char *severity, const char *what);

/* The rank counts from the job's next number on, in every tag. */
void coll_rank_start_counting(struct coll_rank *rank);

/* Something happened in the job: the time it lingers without participants starts again. */
void coll_job_touch(struct coll_job *job, uint64_t now);

#endif
