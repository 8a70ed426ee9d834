/*
 * The job machine under everything that can happen to it, in virtual time: sim_job [--seed N] [--steps N].
 *
 * Ranks join, leave, promise, ask from several threads at once, are interrupted, come again or do not, die
 * and come back, are dropped; operations end in any order, some within run(). After each step the machine
 * checks its own invariants, and a model beside it, made from what the interface promises alone, says:
 *
 *  - each request is answered exactly once, and all requests for one number with one result;
 *  - which number each request gets: requests use consecutive numbers, interrupted ones none, unless they
 * come again or the rank has asked for more since;
 *  - a success was carried out, once, by requests that agree, with no other operation on the same bytes;
 *  - nobody waits past its deadline, nor past the time in which an interrupted request may come again;
 *  - a rank that joins or comes back starts behind all that has succeeded;
 *  - in the end everything is answered.
 *
 * The seed is printed; the same seed gives the same run.
 */
#include "reduce/coll_job.h"
#include "utils/ut_clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 5u
#define TAGS 3u
#define LANES 8u /* requests that a rank has open at once */
#define RESULTS 4096u
#define RUNNING_MAX (TAGS * LANES * RANKS)
#define TIMEOUT_NS (3 * UT_NS_PER_S)
#define AGAIN_NS (2 * UT_NS_PER_S)
#define EPISODE_STEPS 2000u

#define must(condition) ((condition) ? (void)0 : broken(__LINE__, #condition))

enum lane_state { IDLE, WAITING, INTERRUPTED };

/* One thread of a rank, or one entry of its queue. */
struct lane {
    enum lane_state state;
    bool queued;   /* nobody waits in it, so nothing interrupts it */
    bool orphaned; /* its rank was dropped while the operation ran */
    unsigned rank, tag;
    struct coll_cmd cmd;
    struct coll_ask *ask;
    uint64_t seq, t_asked, t_interrupted;
};

/* What became of one number. */
struct result {
    uint64_t seq;
    int code;
    bool started, finished;
};

struct rank {
    struct coll_rank *coll; /* NULL: has not joined */
    bool lost, dropped;
    unsigned promises;
    uint64_t next[TAGS]; /* the number that its next request gets */
    struct lane lanes[LANES];
};

static struct {
    uint64_t seed, random, step, now, wake;
    unsigned world;
    struct coll_job *job;
    struct rank ranks[RANKS];
    struct result results[TAGS][RESULTS];
    uint64_t done_top[TAGS];
    struct coll_operation *running[RUNNING_MAX];
    unsigned running_count;
    struct lane *asking;         /* inside coll_rank_ask for it */
    const struct rank *dropping; /* inside coll_job_drop: its requests get ESTALE, others' are not touched */
    uint64_t answers, successes, failures, resumed;
} sim;

static void broken(int line, const char *condition)
{
    printf("seed %" PRIu64 ", step %" PRIu64 ", line %d: not so: %s\n", sim.seed, sim.step, line, condition);
    fflush(stdout);
    abort();
}

/* xorshift64*: the same on every machine. */
static uint64_t dice(uint64_t sides)
{
    sim.random ^= sim.random >> 12;
    sim.random ^= sim.random << 25;
    sim.random ^= sim.random >> 27;
    return (sim.random * 0x2545f4914f6cdd1dull >> 16) % sides;
}

static const char *const tag_names[TAGS] = {"", "a", "second"};

static unsigned tag_number(const char *name)
{
    unsigned tag = 0;
    while (strcmp(tag_names[tag], name) != 0)
        tag++;
    return tag;
}

/* ---- the model of numbers ---- */

static struct lane *lane_of_number(struct rank *rank, unsigned tag, uint64_t seq)
{
    for (unsigned i = 0; i < LANES; i++) {
        struct lane *lane = &rank->lanes[i];
        if (lane->state != IDLE && !lane->orphaned && lane->tag == tag && lane->seq == seq)
            return lane;
    }
    return NULL;
}

/* The interrupted lane that a command resumes, or takes the number of. */
static struct lane *find_resumed(struct rank *rank, unsigned tag, const struct coll_cmd *cmd)
{
    struct lane *found = NULL;
    for (unsigned i = 0; i < LANES; i++) {
        struct lane *lane = &rank->lanes[i];
        if (lane->state == INTERRUPTED && lane->tag == tag && coll_cmd_same(&lane->cmd, cmd) &&
            (!found || lane->seq < found->seq))
            found = lane;
    }
    if (found)
        return found;
    found = lane_of_number(rank, tag, rank->next[tag] - 1);
    return found && found->state == INTERRUPTED ? found : NULL;
}

static bool later_are_interrupted(struct rank *rank, const struct lane *lane)
{
    for (uint64_t seq = lane->seq + 1; seq < rank->next[lane->tag]; seq++) {
        const struct lane *later = lane_of_number(rank, lane->tag, seq);
        if (!later || later->state != INTERRUPTED)
            return false;
    }
    return true;
}

/* The interrupted request is over: its number is free again, or used up. */
static void give_up(struct rank *rank, struct lane *lane)
{
    if (rank->next[lane->tag] == lane->seq + 1)
        rank->next[lane->tag] = lane->seq;
    lane->state = IDLE;
}

static bool give_up_one(struct rank *rank)
{
    for (unsigned i = 0; i < LANES; i++) {
        struct lane *lane = &rank->lanes[i];
        if (lane->state != INTERRUPTED || lane->t_interrupted + AGAIN_NS > sim.now)
            continue;
        bool is_last = rank->next[lane->tag] == lane->seq + 1;
        if (!is_last && later_are_interrupted(rank, lane))
            continue;
        give_up(rank, lane);
        return true;
    }
    return false;
}

static void give_up_late_ones(void)
{
    for (unsigned r = 0; r < sim.world; r++) {
        while (give_up_one(&sim.ranks[r])) {
        }
    }
}

/* Somebody else waits in the operation of that number. */
static bool others_wait(unsigned tag, uint64_t seq)
{
    for (unsigned r = 0; r < sim.world; r++) {
        const struct lane *lane = lane_of_number(&sim.ranks[r], tag, seq);
        if (lane && lane->state == WAITING)
            return true;
    }
    return false;
}

/* The rank starts to count anew. */
static void take_start_numbers(struct rank *rank)
{
    unsigned number = (unsigned)(rank - sim.ranks);
    for (unsigned tag = 0; tag < TAGS; tag++)
        rank->next[tag] = 1;
    UT_LIST_EACH(&sim.job->tags, struct coll_tag, link, coll_tag)
    {
        unsigned tag = tag_number(coll_tag->name);
        rank->next[tag] = coll_tag->rank_next[number];
        must(rank->next[tag] > sim.done_top[tag] && rank->next[tag] <= coll_tag->top + 1);
    }
}

static void forget_interrupted(struct rank *rank)
{
    for (unsigned i = 0; i < LANES; i++) {
        if (rank->lanes[i].state == INTERRUPTED)
            rank->lanes[i].state = IDLE;
    }
}

/* ---- the host ---- */

static struct result *result_of(unsigned tag, uint64_t seq)
{
    struct result *result = &sim.results[tag][seq % RESULTS];
    if (result->seq != seq) {
        must(result->seq < seq);
        *result = (struct result){.seq = seq, .code = 1};
    }
    return result;
}

static void finish(unsigned idx)
{
    struct coll_operation *op = sim.running[idx];
    unsigned tag = tag_number(op->tag->name);
    struct result *result = result_of(tag, op->seq);
    int code = dice(10) ? 0 : -EFAULT;
    sim.running[idx] = sim.running[--sim.running_count];
    must(result->started && !result->finished);
    result->finished = true;
    result->code = code;
    if (!code && op->seq > sim.done_top[tag])
        sim.done_top[tag] = op->seq;
    coll_op_finish(op, code, "memory was taken away", sim.now);
}

static bool overlap(const struct coll_ask *a, const struct coll_ask *b)
{
    return a->cmd.offset < b->cmd.offset + coll_cmd_bytes(&b->cmd) &&
           b->cmd.offset < a->cmd.offset + coll_cmd_bytes(&a->cmd);
}

static void check_disjoint(const struct coll_operation *op)
{
    for (unsigned i = 0; i < sim.running_count; i++) {
        const struct coll_operation *other = sim.running[i];
        for (unsigned r = 0; r < sim.world; r++) {
            if (op->ask[r] && other->ask[r])
                must(!overlap(op->ask[r], other->ask[r]));
        }
    }
}

static void host_run(void *ctx, struct coll_operation *op)
{
    struct coll_ask *members[RANKS];
    struct result *result = result_of(tag_number(op->tag->name), op->seq);
    (void)ctx;
    must(!result->started && result->code == 1);
    result->started = true;
    must(op->member_count >= 1 && op->member_count <= sim.world);
    coll_op_members(op, members);
    bool root_takes_part = false;
    for (unsigned i = 0; i < op->member_count; i++) {
        const struct lane *lane = members[i]->waiter;
        must(lane->state == WAITING && (!lane->ask || lane->ask == members[i]));
        must(coll_cmd_agree(&members[i]->cmd, &members[0]->cmd) &&
             coll_cmd_same(&lane->cmd, &members[i]->cmd));
        root_takes_part |= lane->rank == op->cmd.root;
    }
    must(op->cmd.kind != COLL_BROADCAST || root_takes_part);
    check_disjoint(op);
    must(sim.running_count < RUNNING_MAX);
    sim.running[sim.running_count++] = op;
    if (!dice(3))
        finish(sim.running_count - 1);
}

static void host_answer(void *ctx, struct coll_ask *ask, const struct coll_why *why, uint64_t now)
{
    struct lane *lane = ask->waiter;
    struct result *result = result_of(lane->tag, ask->op->seq);
    (void)ctx;
    must(now == sim.now && lane->state == WAITING);
    must(sim.asking == lane || lane->ask == ask);
    must(lane->seq == ask->op->seq && lane->rank == ask->rank->number);
    must(why->result <= 0 && (why->result == 0) == (why->err.text[0] == '\0'));
    sim.answers++;
    lane->state = IDLE;
    if (sim.dropping == &sim.ranks[lane->rank]) {
        must(why->result == -ESTALE);
        return;
    }
    must(result->code == 1 || result->code == why->result);
    must(result->started == result->finished && (result->finished || why->result));
    result->code = why->result;
    sim.successes += !why->result;
    sim.failures += why->result != 0;
}

static void host_event(void *ctx, const struct coll_job *job, const char *severity, const char *text)
{
    (void)ctx;
    must(job == sim.job && severity[0] && text[0]);
}

static void host_wake(void *ctx, uint64_t when)
{
    (void)ctx;
    if (when < sim.wake)
        sim.wake = when;
}

static const struct coll_host host = {
    .run = host_run, .answer = host_answer, .event = host_event, .wake = host_wake};

/* Nothing is known of ranks and numbers. */
static void forget_world(void)
{
    memset(sim.ranks, 0, sizeof(sim.ranks));
    memset(sim.results, 0, sizeof(sim.results));
    memset(sim.done_top, 0, sizeof(sim.done_top));
}

/* ---- what happens ---- */

/* The command that all ranks ask for at a number, each from a range of its own choice; rarely another. */
static struct coll_cmd choose_command(unsigned tag, uint64_t seq)
{
    uint64_t mix = (seq * 0x9e3779b97f4a7c15ull ^ tag) >> 20;
    struct coll_cmd cmd = {.kind = (enum coll_kind)(mix % COLL_KIND_COUNT), .offset = dice(6) * 64};
    cmd.count = cmd.kind == COLL_BARRIER ? 0 : mix / 8 % 32 + 1;
    if (cmd.kind == COLL_BARRIER)
        cmd.offset = 0;
    if (cmd.kind == COLL_BROADCAST)
        cmd.root = (unsigned)(mix / 1024 % sim.world);
    if (!dice(60))
        cmd.kind = COLL_ALLGATHER;
    snprintf(cmd.tag, sizeof(cmd.tag), "%s", tag_names[tag]);
    return cmd;
}

static struct lane *idle_lane(struct rank *rank)
{
    for (unsigned i = 0; i < LANES; i++) {
        if (rank->lanes[i].state == IDLE)
            return &rank->lanes[i];
    }
    return NULL;
}

/* Refused: because a rank is lost or this one was dropped, and for no other reason. */
static void check_refusal(const struct rank *rank, int rc, const struct coll_why *why)
{
    unsigned lost = 0;
    for (unsigned r = 0; r < sim.world; r++)
        lost += sim.ranks[r].lost;
    must(why->result == rc && why->err.text[0]);
    must(rank->dropped ? rc == -ESTALE : rc == -ECONNRESET && lost);
}

/* Asks for cmd in the lane; the model says which number that gets. */
static void ask(struct rank *rank, struct lane *lane, const struct coll_cmd *cmd)
{
    struct coll_why why = {0};
    struct coll_ask *out = NULL;
    unsigned tag = tag_number(cmd->tag);
    struct lane *resumed = find_resumed(rank, tag, cmd);
    struct lane before = resumed ? *resumed : (struct lane){.seq = rank->next[tag], .t_asked = sim.now};
    if (resumed)
        resumed->state = IDLE;
    *lane = (struct lane){.state = WAITING,
                          .queued = lane->queued,
                          .rank = (unsigned)(rank - sim.ranks),
                          .tag = tag,
                          .cmd = *cmd,
                          .seq = before.seq,
                          .t_asked = before.t_asked};
    sim.asking = lane;
    int rc = coll_rank_ask(rank->coll, cmd, (pid_t)(100 + lane->rank), lane, sim.now, &out, &why);
    sim.asking = NULL;
    if (rc) {
        must(!out && lane->state == WAITING && !resumed);
        lane->state = IDLE;
        check_refusal(rank, rc, &why);
        coll_rank_note(rank->coll, cmd, &why);
        return;
    }
    must((out == NULL) == (lane->state == IDLE));
    must(!rank->dropped && (!rank->lost || !out));
    lane->ask = out;
    sim.resumed += resumed != NULL;
    if (!resumed)
        rank->next[tag]++;
}

static void step_ask(struct rank *rank)
{
    struct lane *lane = idle_lane(rank);
    if (!lane)
        return;
    unsigned tag = dice(8) ? 0 : (unsigned)dice(TAGS);
    uint64_t seq = rank->next[tag];
    const struct lane *last = lane_of_number(rank, tag, seq - 1);
    if (last && last->state == INTERRUPTED)
        seq--;
    struct coll_cmd cmd = choose_command(tag, seq);
    lane->queued = !dice(3);
    ask(rank, lane, &cmd);
}

/* An interrupted system call is made again. */
static void step_resume(struct rank *rank)
{
    struct lane *lane = &rank->lanes[dice(LANES)];
    struct coll_cmd cmd = lane->cmd;
    if (lane->state != INTERRUPTED || rank->lost)
        return;
    struct lane *idle = idle_lane(rank);
    if (!idle)
        return;
    idle->queued = false;
    ask(rank, idle, &cmd);
}

static void interrupt(struct rank *rank, struct lane *lane, bool dying)
{
    enum coll_op_state state = lane->ask->op->state;
    lane->state = IDLE; /* while it looks whether others wait */
    bool others = others_wait(lane->tag, lane->seq);
    lane->state = WAITING;
    bool withdrawn = coll_ask_interrupt(lane->ask, dying, sim.now);
    must(withdrawn == (state == COLL_GATHER));
    if (!withdrawn)
        return;
    lane->state = INTERRUPTED;
    lane->t_interrupted = sim.now;
    bool is_last = rank->next[lane->tag] == lane->seq + 1;
    if (!dying || rank->promises || !(is_last || others))
        return;
    if (is_last || !later_are_interrupted(rank, lane))
        give_up(rank, lane);
}

static void step_interrupt(struct rank *rank)
{
    struct lane *lane = &rank->lanes[dice(LANES)];
    if (lane->state == WAITING && !lane->queued)
        interrupt(rank, lane, false);
}

static void step_freeze(struct rank *rank)
{
    for (unsigned i = 0; i < LANES; i++) {
        if (rank->lanes[i].state == WAITING && !rank->lanes[i].queued)
            interrupt(rank, &rank->lanes[i], false);
    }
}

static unsigned count_waiting(const struct rank *rank)
{
    unsigned count = 0;
    for (unsigned i = 0; i < LANES; i++)
        count += rank->lanes[i].state == WAITING;
    return count;
}

static void step_join(struct rank *rank)
{
    unsigned number = (unsigned)(rank - sim.ranks);
    struct coll_rank *coll = NULL;
    int rc = coll_rank_join(sim.job, number, 0, (pid_t)(100 + number), sim.now, &coll);
    must(rc == (rank->coll && !rank->dropped ? -EEXIST : count_waiting(rank) ? -EBUSY : 0));
    if (rc)
        return;
    rank->coll = coll;
    rank->dropped = false;
    take_start_numbers(rank);
}

static void step_leave(struct rank *rank)
{
    if (rank->dropped)
        return; /* it has left already */
    int rc = coll_rank_leave(rank->coll, sim.now);
    must(rc == (count_waiting(rank) ? -EBUSY : 0));
    if (rc)
        return;
    forget_interrupted(rank);
    rank->coll = NULL;
    rank->lost = false;
    rank->promises = 0;
}

static void step_promise(struct rank *rank)
{
    int rc = coll_rank_promise(rank->coll, (pid_t)(100 + dice(9)), sim.now);
    must(rc == (rank->dropped ? -ESTALE : 0));
    if (rc)
        return;
    rank->promises++;
    if (!rank->lost)
        return;
    rank->lost = false;
    take_start_numbers(rank);
}

static void step_close(struct rank *rank)
{
    if (!rank->promises)
        return;
    rank->promises--;
    coll_rank_release(rank->coll, sim.now);
}

/* The process is killed: its threads are interrupted, then it ends. */
static void step_die(struct rank *rank)
{
    for (unsigned i = 0; i < LANES; i++) {
        if (rank->lanes[i].state == WAITING && !rank->lanes[i].queued)
            interrupt(rank, &rank->lanes[i], true);
    }
    if (!rank->promises || rank->dropped)
        return;
    unsigned held = 1 + (unsigned)dice(rank->promises);
    bool is_news = !rank->lost;
    rank->promises -= held;
    rank->lost = true;
    if (is_news)
        forget_interrupted(rank);
    coll_rank_lost(rank->coll, (pid_t)(100 + dice(9)), held, sim.now);
    for (unsigned i = 0; is_news && i < LANES; i++)
        must(rank->lanes[i].state == IDLE || result_of(rank->lanes[i].tag, rank->lanes[i].seq)->started);
}

static void step_drop(struct rank *rank)
{
    char text[32];
    struct ut_err err = {{0}};
    unsigned members = 0;
    if (!rank->coll || rank->dropped)
        return;
    for (unsigned r = 0; r < sim.world; r++)
        members += !sim.ranks[r].dropped;
    int len = snprintf(text, sizeof(text), "drop=%u\n", (unsigned)(rank - sim.ranks));
    sim.dropping = rank;
    int rc = coll_job_drop(sim.job, text, (size_t)len, sim.now, &err);
    sim.dropping = NULL;
    must(rc == (members == 1 ? -EINVAL : 0));
    if (rc)
        return;
    forget_interrupted(rank);
    for (unsigned i = 0; i < LANES; i++)
        rank->lanes[i].orphaned = rank->lanes[i].state == WAITING;
    rank->dropped = true;
    rank->lost = false;
    rank->promises = 0;
}

static void step_look(void)
{
    struct ut_text text = {0};
    coll_job_show_trace(sim.job, &text);
    must(text.len == coll_job_trace_bytes(sim.job));
    coll_job_show_members(sim.job, &text);
    coll_job_show_stats(sim.job, &text);
    for (unsigned r = 0; r < sim.world; r++) {
        if (sim.ranks[r].coll)
            coll_rank_show_status(sim.ranks[r].coll, &text);
    }
    must(!ut_text_failed(&text));
    ut_text_fini(&text);
}

/* The configuration is frozen while ranks are in the job; then a new world counts from the beginning. */
static void step_configure(void)
{
    char text[32];
    unsigned world = 1 + (unsigned)dice(RANKS);
    bool frozen = sim.running_count > 0;
    for (unsigned r = 0; r < sim.world; r++)
        frozen |= sim.ranks[r].coll && !sim.ranks[r].dropped;
    int len = snprintf(text, sizeof(text), "world = %u\n", world);
    int rc = coll_job_configure(sim.job, text, (size_t)len, sim.now, NULL);
    must(rc == (frozen && world != sim.world ? -EBUSY : 0));
    if (rc || world == sim.world)
        return;
    sim.world = world;
    forget_world();
}

/* ---- time ---- */

static void pass_time_until(uint64_t then)
{
    while (sim.wake <= then) {
        sim.now = sim.wake > sim.now ? sim.wake : sim.now;
        sim.wake = UINT64_MAX;
        coll_job_tick(sim.job, sim.now);
        give_up_late_ones();
        must(sim.wake > sim.now);
    }
    sim.now = then;
}

static void step_time(void)
{
    static const uint64_t most_ns[] = {
        1,           UT_NS_PER_US, UT_NS_PER_MS,  UT_NS_PER_MS, 100 * UT_NS_PER_MS, 100 * UT_NS_PER_MS,
        UT_NS_PER_S, AGAIN_NS,     2 * TIMEOUT_NS};
    pass_time_until(sim.now + dice(most_ns[dice(sizeof(most_ns) / sizeof(most_ns[0]))]));
}

/* ---- after each step ---- */

/* Others wait for an interrupted request only while it may come again. */
static void check_patience(const struct lane *lane)
{
    must(!lane || lane->state != INTERRUPTED || sim.now < lane->t_interrupted + AGAIN_NS);
}

static void check_lane(const struct lane *lane)
{
    if (lane->state != WAITING)
        return;
    const struct coll_operation *op = lane->ask->op;
    must(lane->ask->waiter == lane && op->seq == lane->seq && op->ask[lane->rank] == lane->ask);
    if (op->state != COLL_GATHER) {
        must(op->state == COLL_READY || op->state == COLL_RUNNING);
        return;
    }
    must(sim.now < lane->t_asked + TIMEOUT_NS);
    for (unsigned r = 0; r < sim.world; r++)
        check_patience(lane_of_number(&sim.ranks[r], lane->tag, lane->seq));
}

static void check(void)
{
    unsigned busy = sim.running_count;
    coll_job_check(sim.job);
    for (unsigned r = 0; r < sim.world; r++) {
        busy += count_waiting(&sim.ranks[r]);
        for (unsigned i = 0; i < LANES; i++)
            check_lane(&sim.ranks[r].lanes[i]);
    }
    must(coll_job_is_busy(sim.job) == (busy > 0));
}

static void step_rank(struct rank *rank)
{
    unsigned what = (unsigned)dice(1000);
    if (!rank->coll || (rank->dropped && what < 300) || what < 3)
        step_join(rank);
    else if (rank->lost && what < 200)
        step_promise(rank);
    else if (what < 600)
        step_ask(rank);
    else if (what < 750)
        step_resume(rank);
    else if (what < 900)
        step_interrupt(rank);
    else if (what < 920)
        step_freeze(rank);
    else if (what < 930)
        step_leave(rank);
    else if (what < 970)
        step_promise(rank);
    else if (what < 985)
        step_close(rank);
    else if (what < 993)
        step_die(rank);
    else if (what < 996)
        step_drop(rank);
}

static void step(void)
{
    unsigned what = (unsigned)dice(100);
    sim.step++;
    if (what < 20 && sim.running_count)
        finish((unsigned)dice(sim.running_count));
    else if (what < 25)
        step_time();
    else if (what == 25 && !dice(20))
        step_look();
    else if (what == 26)
        step_configure();
    else
        step_rank(&sim.ranks[dice(sim.world)]);
    pass_time_until(sim.now); /* what was due while it waited for nobody */
    check();
}

/* ---- a job's life ---- */

static void begin(void)
{
    char text[64];
    sim.world = 1 + (unsigned)dice(RANKS);
    sim.wake = UINT64_MAX;
    forget_world();
    must(coll_job_create("sim", &host, 1 << 30, sim.now, &sim.job) == 0);
    int len = snprintf(text, sizeof(text), "world=%u\ntimeout=3\nlinger=never\n", sim.world);
    must(coll_job_configure(sim.job, text, (size_t)len, sim.now, NULL) == 0);
    for (unsigned r = 0; r < sim.world; r++) {
        if (dice(4))
            step_join(&sim.ranks[r]);
    }
}

/* Nothing new comes: what waits must end by itself, or with the job. */
static void end(void)
{
    while (sim.running_count)
        finish((unsigned)dice(sim.running_count));
    if (dice(2)) {
        pass_time_until(sim.now + TIMEOUT_NS + AGAIN_NS);
        must(!coll_job_is_busy(sim.job));
        check();
    }
    coll_job_destroy(sim.job, -ESHUTDOWN, sim.now);
    for (unsigned r = 0; r < sim.world; r++)
        must(!count_waiting(&sim.ranks[r]));
}

int main(int argc, char **argv)
{
    uint64_t steps = 100000;
    sim.seed = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t value = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--seed") == 0)
            sim.seed = value;
        else if (strcmp(argv[i], "--steps") == 0)
            steps = value;
    }
    printf("seed %" PRIu64 "\n", sim.seed);
    fflush(stdout);
    sim.random = sim.seed * 0x9e3779b97f4a7c15ull + 1;
    sim.now = UT_NS_PER_S;
    for (uint64_t last = 0; sim.step < steps; last = sim.step) {
        begin();
        while (sim.step < last + EPISODE_STEPS)
            step();
        end();
    }
    printf("%" PRIu64 " steps, %" PRIu64 " answers (%" PRIu64 " good, %" PRIu64 " failed), %" PRIu64
           " resumed\n",
           sim.step, sim.answers, sim.successes, sim.failures, sim.resumed);
    return 0;
}
