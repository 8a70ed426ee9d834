/*
 * A whole fabric in one process and in virtual time: nodes with daemons' insides but for the files, jobs
 * whose ranks are spread over them, and everything that can go wrong: links that lose, delay and reorder,
 * cuts, crashes, restarts, stopped daemons, killed ranks, interrupted and dropped ones.
 *
 *     sim_fabric [--nodes N] [--seconds S] [--seed X] [--gentle] [--fair] [--blame] [--overlap] [--trace]
 *
 * --gentle: links are slow and put things out of order, but nothing is lost and nobody dies, so nothing may
 * fail. --fair: no faults, narrow links, two jobs that never rest and one that is stuck: both get their
 * share.
 * --blame: one fault after the other, of a link and of a node; while it lasts every rank hears of it soon,
 * and of nothing else. --overlap: the operations of a rank's two tags share the same memory, so that they
 * must not run at once, and all nodes must run them in one order.
 *
 * Checked at every answer:
 *  1. A success is the result that the design promises, of exactly the ranks that took part, bit by bit, and
 *     nothing beside the range has changed. All who succeed have had the same partners.
 *  2. After a failure the buffer is as it was, unless it is said to be undefined.
 *  3. Where one node says success and another failure (ring.h, the last word), the failure is a loss: of a
 *     node, a link, or time. Its node had done its part as well, so that its buffers hold the result, or
 * (small ones) are as they were. Whoever failed before that has kept all others from success.
 *
 * At every step: the job machines' own invariants on every node; nobody waits longer than he should. In the
 * end, when all faults are gone:
 *  4. All ranks are back, and their operations succeed.
 *  5. At rest nothing is left over: no operation, no slot, no word kept.
 */
#include "ntbmem/ntbm_emu.h"
#include "ntbmem/ntbm_node.h"
#include "reduce/coll_exec.h"
#include "reduce/coll_net.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_link.h"
#include "tests/unit/oracle.h"

#define JOBS 3u
#define WORLD_MAX 16u
#define TAGS 2u
#define AREA_BYTES (16u << 10) /* of each tag in a rank's buffer */
#define HISTORY 64u
#define TIMEOUT_S 3u
#define PATIENCE_NS (25 * S) /* no request takes longer, whatever happens */
#define BLAME_NS (1500 * MS) /* nor this, when one thing has happened */
#define STUCK_JOB 2u         /* --fair: its rank 0 never asks */

/* What a rank has asked for at a number, and what lay in its range then. */
struct asked {
    uint64_t id, seq;
    struct coll_cmd cmd;
    uint8_t *input;
    int failure; /* -errno that it was answered with; 0: success, or nothing yet */
};

enum lane_state { IDLE, WAITING, INTERRUPTED };

/* A rank's thread that works in one tag. */
struct lane {
    enum lane_state state;
    struct client *client;
    unsigned tag;
    struct coll_ask *ask;
    struct coll_cmd cmd;
    uint64_t t_asked, t_interrupted;
    uint8_t before[AREA_BYTES]; /* its area when it asked */
};

/* A rank: a process beside the daemon of its home. */
struct client {
    unsigned job, number, home;
    struct coll_rank *rank; /* NULL: has not joined */
    bool promised;
    uint8_t buffer[TAGS * AREA_BYTES];
    struct lane lanes[TAGS];
    struct asked history[TAGS][HISTORY];
};

/* An operation that a node carries out. */
struct run {
    struct ut_list link; /* in cell->preparing */
    struct coll_net_run ring;
    struct cell *cell;
    struct coll_operation *op;
    uint32_t members; /* bits by rank */
    uint64_t due_ns;  /* until then it is made ready */
    int rc;
    bool on_ring;
};

struct end {
    struct cell *cell;
    unsigned number;
    struct ntbm_peer *peer;
    struct sim_link link;
    struct ntbm_emu emu;
    bool is_down;
    char reason[160];
    int loss;
};

/* One node. */
struct cell {
    unsigned idx;
    bool is_running, is_dying;
    uint64_t stopped_until_ns, boot_id, wake_ns;
    uint8_t *landing;
    struct ntbm_node node;
    struct coll_net net;
    struct coll_job *jobs[JOBS];
    struct ut_list preparing;
    struct end *ends; /* [node_count] */
};

/* How an operation ended, for those who succeeded. */
struct outcome {
    uint64_t seq;
    uint32_t members;
    uint64_t ids[WORLD_MAX];
};

static struct {
    uint64_t landing_bytes, next_id;
    bool gentle, fair, blame, overlap;
    bool calm, sure;    /* calm: no more faults; sure: nothing may fail any more */
    int blamed;         /* --blame: the only error there may be now; 0: any */
    uint64_t blamed_ns; /* since when */
    unsigned world[JOBS];
    struct client clients[JOBS][WORLD_MAX];
    struct outcome outcomes[JOBS][TAGS][HISTORY];
    struct cell *cells;
    struct coll_host host;
    uint64_t answers, good[JOBS], failed, undefined, splits, crashes, downs, rejoined;
    uint64_t failures[200]; /* by errno */
} sim;

static uint64_t sim_now(void)
{
    return virt.now_ns;
}

static const char *const job_names[JOBS] = {"first", "second", "third"};
static const char *const tag_names[TAGS] = {"", "bucket"};

static unsigned job_number(const struct coll_job *job)
{
    unsigned j = 0;
    while (strcmp(job->name, job_names[j]) != 0)
        j++;
    return j;
}

/* ---- what operations are, and what they give ---- */

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t state = a * 0x9e3779b97f4a7c15ull ^ b * 0xbf58476d1ce4e5b9ull ^ c;
    return ntbm_random(&state);
}

/* What combines nothing may have an op that does not fit its type. */
static enum coll_op choose_op(uint64_t dice, const struct coll_cmd *cmd)
{
    enum coll_op op = (enum coll_op)(dice % COLL_OP_COUNT);
    return coll_op_fits(op, cmd->dtype) || !coll_kind_reduces(cmd->kind) ? op : COLL_SUM;
}

/* The command that all ranks ask for at a number, each in a range of its own choice. */
static struct coll_cmd choose_command(const struct client *client, unsigned tag, uint64_t seq)
{
    uint64_t dice =
        mix(client->job + 1, tag, sim.blame ? 0 : seq); /* a number that moves would be a mismatch */
    struct coll_cmd cmd = {.kind = (enum coll_kind)(dice % 8 < 5 ? dice % 8 : COLL_ALLREDUCE),
                           .dtype = (enum coll_dtype)(dice / 8 % COLL_DTYPE_COUNT)};
    uint64_t bytes = dice / 128 % 3 ? dice / 512 % 4096 : dice / 512 % AREA_BYTES;
    if (sim.fair) {
        cmd.kind = COLL_ALLREDUCE;
        bytes = AREA_BYTES;
    }
    if (sim.overlap && oracle_is_real(cmd.dtype))
        cmd.dtype = COLL_I32; /* results are inputs again: they must stay exact */
    cmd.op = choose_op(dice >> 32, &cmd);
    cmd.count = cmd.kind == COLL_BARRIER ? 0 : bytes / coll_dtype_bytes(cmd.dtype);
    cmd.root = cmd.kind == COLL_BROADCAST ? (unsigned)(dice >> 40) % sim.world[client->job] : 0;
    uint64_t room = AREA_BYTES - coll_cmd_bytes(&cmd);
    unsigned area = sim.overlap ? pick(TAGS) : tag;
    cmd.offset = cmd.kind == COLL_BARRIER ? 0 : area * AREA_BYTES + pick((uint32_t)room / 8 + 1) * 8;
    snprintf(cmd.tag, sizeof(cmd.tag), "%s", tag_names[tag]);
    return cmd;
}

/* Numbers whose sums, products and means are exact in every type, so that no order matters. */
static void fill_input(struct client *client, const struct coll_cmd *cmd)
{
    static const int values[] = {-2, -1, 1, 2};
    for (uint64_t i = 0; i < cmd->count; i++) {
        int value = values[pick(4)];
        union oracle_num num = {.real = value};
        if (!oracle_is_real(cmd->dtype))
            num.bits = oracle_cut(cmd->dtype, (uint64_t)(int64_t)value);
        oracle_store(cmd->dtype, client->buffer + cmd->offset, i, num);
    }
}

static struct asked *find_asked(struct client *client, unsigned tag, uint64_t seq)
{
    struct asked *asked = &client->history[tag][seq % HISTORY];
    return asked->seq == seq && asked->id ? asked : NULL;
}

/* Writes what rank `number` of the members holds in its range afterwards. */
static void expect(unsigned job, unsigned tag, uint64_t seq, uint32_t members, unsigned number, uint8_t *out)
{
    const void *src[WORLD_MAX], *part[WORLD_MAX];
    unsigned n = 0, me = 0, root = 0;
    const struct coll_cmd *cmd = &find_asked(&sim.clients[job][number], tag, seq)->cmd;
    size_t bytes = coll_dtype_bytes(cmd->dtype);
    for (unsigned r = 0; r < sim.world[job]; r++) {
        if (!(members >> r & 1))
            continue;
        const struct asked *asked = find_asked(&sim.clients[job][r], tag, seq);
        CHECK(asked, "rank %u takes part in %" PRIu64 " and has never asked for it", r, seq);
        CHECK(coll_cmd_agree(&asked->cmd, cmd), "rank %u has asked for something else", r);
        me = r == number ? n : me;
        root = r == cmd->root ? n : root;
        src[n++] = asked->input;
    }
    unsigned divisor = cmd->op == COLL_AVG ? n : 1;
    uint64_t begin = coll_part_begin(cmd->count, n, me), end = coll_part_begin(cmd->count, n, me + 1);
    memcpy(out, src[me], cmd->count * bytes);
    if (cmd->kind == COLL_ALLREDUCE)
        oracle_reduce(cmd->dtype, cmd->op, src, n, cmd->count, divisor, out);
    for (unsigned i = 0; i < n; i++)
        part[i] = (const uint8_t *)src[i] + begin * bytes;
    if (cmd->kind == COLL_REDUCE_SCATTER)
        oracle_reduce(cmd->dtype, cmd->op, part, n, end - begin, divisor, out + begin * bytes);
    for (unsigned i = 0; i < n && cmd->kind == COLL_ALLGATHER; i++) {
        uint64_t at = coll_part_begin(cmd->count, n, i), stop = coll_part_begin(cmd->count, n, i + 1);
        memcpy(out + at * bytes, (const uint8_t *)src[i] + at * bytes, (stop - at) * bytes);
    }
    if (cmd->kind == COLL_BROADCAST)
        memcpy(out, src[root], cmd->count * bytes);
}

/* All who succeed together have had the same partners. */
static void check_outcome(const struct lane *lane, uint64_t seq, uint32_t members)
{
    struct client *client = lane->client;
    struct outcome *outcome = &sim.outcomes[client->job][lane->tag][seq % HISTORY];
    uint64_t mine = find_asked(client, lane->tag, seq)->id;
    if (outcome->seq == seq && outcome->ids[client->number] == mine) {
        CHECK(outcome->members == members, "members %x here, %x elsewhere, of operation %" PRIu64, members,
              outcome->members, seq);
        return;
    }
    *outcome = (struct outcome){.seq = seq, .members = members};
    for (unsigned r = 0; r < sim.world[client->job]; r++) {
        if (members >> r & 1)
            outcome->ids[r] = find_asked(&sim.clients[client->job][r], lane->tag, seq)->id;
    }
}

/* The failure of one may stand beside the success of another. */
static bool is_loss(int rc)
{
    return rc == -EHOSTDOWN || rc == -ENOLINK || rc == -ETIMEDOUT;
}

static bool travels_in_messages(const struct coll_cmd *cmd)
{
    return cmd->kind == COLL_ALLREDUCE && cmd->count * coll_dtype_acc_bytes(cmd->dtype) <= RING_PART_BYTES;
}

/* The rank's area is as it was when it asked, but for the range, which holds the result. Where tags share
 * their memory, only the range is ours to look at. */
static void check_result(struct lane *lane, const struct coll_ask *ask)
{
    static uint8_t wanted[AREA_BYTES];
    struct client *client = lane->client;
    const struct run *run = ask->op->host;
    uint64_t seq = ask->op->seq, bytes = coll_cmd_bytes(&lane->cmd);
    const uint8_t *area = client->buffer + lane->tag * AREA_BYTES, *found = client->buffer + lane->cmd.offset;
    expect(client->job, lane->tag, seq, run->members, client->number, wanted);
    if (!sim.overlap) {
        memcpy(lane->before + lane->cmd.offset % AREA_BYTES, wanted, bytes);
        memcpy(wanted, lane->before, AREA_BYTES);
        found = area;
        bytes = AREA_BYTES;
    }
    for (unsigned i = 0; i < bytes; i++)
        CHECK(wanted[i] == found[i],
              "job %u rank %u of %x, operation %" PRIu64 " tag \"%s\" %s %s %s, byte %u", client->job,
              client->number, run->members, seq, lane->cmd.tag, coll_kind_name(lane->cmd.kind),
              coll_dtype_name(lane->cmd.dtype), coll_op_name(lane->cmd.op), i);
}

static void check_blame(const struct client *client, const struct coll_why *why)
{
    CHECK(!sim.blamed || why->result == -sim.blamed, "%s at job %u rank %u on node %u: %s",
          ut_err_name(why->result), client->job, client->number, client->home, why->err.text);
}

static void check_success(struct lane *lane, const struct coll_ask *ask)
{
    const struct run *run = ask->op->host;
    unsigned job = lane->client->job;
    check_outcome(lane, ask->op->seq, run->members);
    check_result(lane, ask);
    for (unsigned r = 0; r < sim.world[job]; r++) {
        const struct asked *asked =
            run->members >> r & 1 ? find_asked(&sim.clients[job][r], lane->tag, ask->op->seq) : NULL;
        CHECK(!asked || !asked->failure || is_loss(asked->failure), "success, and %s at rank %u",
              ut_err_name(asked->failure), r);
    }
}

/* The operation had started here. If it has succeeded elsewhere, this is the one difference there may be. */
static void check_failure(struct lane *lane, const struct coll_ask *ask, const struct coll_why *why)
{
    const struct client *client = lane->client;
    uint64_t seq = ask->op->seq;
    const struct outcome *outcome = &sim.outcomes[client->job][lane->tag][seq % HISTORY];
    struct asked *asked = find_asked(&sim.clients[client->job][client->number], lane->tag, seq);
    asked->failure = why->result;
    if (outcome->seq != seq || outcome->ids[client->number] != asked->id)
        return;
    sim.splits++;
    CHECK(is_loss(why->result), "%s, and success elsewhere: %s", ut_err_name(why->result), why->err.text);
    if (!travels_in_messages(&lane->cmd))
        check_result(lane, ask);
}

/* ---- the host of a job machine ---- */

static void host_answer(void *ctx, struct coll_ask *ask, const struct coll_why *why, uint64_t now)
{
    struct lane *lane = ask->waiter;
    const struct client *client = lane->client;
    (void)ctx, (void)now;
    CHECK(lane->state == WAITING, "answered twice");
    lane->state = IDLE;
    lane->ask = NULL;
    if (sim.cells[client->home].is_dying)
        return;
    sim.answers++;
    trace("node %u: job %u rank %u operation %" PRIu64 " tag \"%s\": %s %s", client->home, client->job,
          client->number, ask->op->seq, lane->cmd.tag, ut_err_name(why->result), why->err.text);
    if (!why->result) {
        sim.good[client->job]++;
        check_success(lane, ask);
        return;
    }
    CHECK(!sim.sure, "an operation fails although nothing is wrong: %s: %s", ut_err_name(why->result),
          why->err.text);
    CHECK(why->err.text[0], "a failure without a sentence");
    check_blame(client, why);
    sim.failed++;
    sim.failures[-why->result < 200 ? -why->result : 0]++;
    sim.undefined += why->undefined;
    if (ask->op->state == COLL_RUNNING)
        check_failure(lane, ask, why);
    if (!why->undefined && !sim.overlap)
        CHECK(memcmp(lane->before, client->buffer + lane->tag * AREA_BYTES, AREA_BYTES) == 0,
              "job %u rank %u operation %" PRIu64 ": the buffer has changed in a failure (%s)", client->job,
              client->number, ask->op->seq, why->err.text);
}

static void finish(struct run *run, int result, const char *text)
{
    run->op->moved = run->ring.ring.moved;
    ut_list_remove(&run->link);
    coll_op_finish(run->op, result, text, virt.now_ns);
    free(run);
}

static void over(struct coll_net_run *ring, int result, const char *text)
{
    finish(ring->op->host, result, text);
}

/* Members' ranges: of this node's ranks, NULL for others, or (local alone) without gaps. */
static void place_bases(struct run *run, bool local_only)
{
    unsigned n = 0;
    unsigned job = job_number(run->op->job);
    for (unsigned r = 0; r < sim.world[job]; r++) {
        const struct coll_ask *ask = run->op->ask[r];
        struct client *client = &sim.clients[job][r];
        if (!ask || (local_only && client->home != run->cell->idx))
            continue;
        run->ring.base[n++] = client->home == run->cell->idx ? client->buffer + ask->cmd.offset : NULL;
    }
}

static void carry_out_here(struct run *run)
{
    const struct coll_cmd *cmd = &run->op->cmd;
    struct coll_exec exec = {.kind = cmd->kind,
                             .dtype = cmd->dtype,
                             .op = cmd->op,
                             .count = cmd->count,
                             .member_count = run->op->member_count,
                             .base = run->ring.base,
                             .table = red_table_find("auto")};
    place_bases(run, true);
    for (unsigned r = 0; r < cmd->root; r++)
        exec.root_idx += run->members >> r & 1;
    for (unsigned i = 0; i < coll_exec_block_count(&exec, 0); i++)
        CHECK(coll_exec_block(&exec, 0, i) == 0, "a block");
    finish(run, 0, "");
}

static void start_run(struct run *run)
{
    ut_list_remove(&run->link);
    if (run->rc) {
        finish(run, run->rc, "another node said so while it was made ready");
        return;
    }
    if (!coll_net_concerns(run->op)) {
        carry_out_here(run);
        return;
    }
    run->ring.op = run->op;
    run->ring.over = over;
    run->on_ring = true;
    place_bases(run, false);
    int rc = coll_net_start(&run->cell->net, &run->ring, red_table_find("auto"));
    if (rc)
        finish(run, rc, "a node is not connected");
}

/* What this node's ranks bring: the number is final now. */
static void note_asked(const struct cell *cell, const struct coll_operation *op)
{
    for (unsigned r = 0; r < op->job->config.world; r++) {
        const struct lane *lane = op->ask[r] ? op->ask[r]->waiter : NULL;
        if (!lane || lane->client->home != cell->idx)
            continue;
        struct asked *asked = &lane->client->history[lane->tag][op->seq % HISTORY];
        size_t bytes = coll_cmd_bytes(&lane->cmd);
        free(asked->input);
        *asked =
            (struct asked){.id = ++sim.next_id, .seq = op->seq, .cmd = lane->cmd, .input = malloc(bytes + 1)};
        memcpy(asked->input, lane->client->buffer + lane->cmd.offset, bytes);
    }
}

static void host_run(void *ctx, struct coll_operation *op)
{
    struct run *run = calloc(1, sizeof(*run));
    *run = (struct run){.cell = ctx, .op = op, .due_ns = chance(4) ? virt.now_ns + pick(200) * MS : 0};
    ut_list_init(&run->link);
    op->host = run;
    note_asked(run->cell, op);
    for (unsigned r = 0; r < op->job->config.world; r++)
        run->members |= (op->ask[r] ? 1u : 0u) << r;
    if (run->due_ns)
        ut_list_append(&run->cell->preparing, &run->link);
    else
        start_run(run);
}

static void host_abort(void *ctx, struct coll_operation *op, const struct coll_why *why)
{
    struct run *run = op->host;
    struct cell *cell = ctx;
    if (run->on_ring)
        coll_net_abort(&cell->net, op, why);
    else if (!run->rc)
        run->rc = why->result;
}

static void host_event(void *ctx, const struct coll_job *job, const char *severity, const char *text)
{
    const struct cell *cell = ctx;
    trace("node %u: job %s: %s: %s", cell->idx, job->name, severity, text);
}

static void host_wake(void *ctx, uint64_t when)
{
    struct cell *cell = ctx;
    if (when < cell->wake_ns)
        cell->wake_ns = when;
}

static void host_asked(void *ctx, const struct coll_ask *ask)
{
    coll_net_asked(&((struct cell *)ctx)->net, ask);
}

static void host_withdrew(void *ctx, const struct coll_ask *ask, bool dying)
{
    coll_net_withdrew(&((struct cell *)ctx)->net, ask, dying);
}

static void host_failed(void *ctx, const struct coll_operation *op)
{
    coll_net_failed(&((struct cell *)ctx)->net, op);
}

static void host_changed(void *ctx, struct coll_job *job)
{
    coll_net_changed(&((struct cell *)ctx)->net, job);
}

static void host_turn(void *ctx, const struct coll_operation *op)
{
    coll_net_turn(&((struct cell *)ctx)->net, op);
}

static const struct coll_host host_template = {.run = host_run,
                                               .answer = host_answer,
                                               .event = host_event,
                                               .wake = host_wake,
                                               .asked = host_asked,
                                               .withdrew = host_withdrew,
                                               .failed = host_failed,
                                               .changed = host_changed,
                                               .turn = host_turn,
                                               .abort = host_abort};

/* ---- what the peers tell: as in the daemon ---- */

static void settle_down(struct cell *cell)
{
    for (unsigned i = 0; i < virt.node_count; i++) {
        if (i == cell->idx || !cell->ends[i].is_down)
            continue;
        cell->ends[i].is_down = false;
        coll_net_peer_down(&cell->net, i, cell->ends[i].loss, cell->ends[i].reason);
    }
}

static void on_up(void *ctx, struct ntbm_peer *peer)
{
    struct end *end = ctx;
    (void)peer;
    settle_down(end->cell);
    coll_net_peer_up(&end->cell->net, end->number);
}

static void on_down(void *ctx, struct ntbm_peer *peer, const char *reason)
{
    struct end *end = ctx;
    trace("node %u: node %u is down: %s", end->cell->idx, end->number, reason);
    CHECK(!sim.gentle || end->cell->is_dying, "nothing was lost: %s", reason);
    snprintf(end->reason, sizeof(end->reason), "%s", reason);
    end->loss = peer->loss;
    end->is_down = true;
    sim.downs++;
}

static void on_message(void *ctx, struct ntbm_peer *peer, const uint8_t *bytes, uint32_t len)
{
    struct end *end = ctx;
    (void)peer;
    settle_down(end->cell);
    coll_net_message(&end->cell->net, end->number, bytes, len);
}

static void on_event(void *ctx, struct ntbm_peer *peer, const char *text)
{
    (void)ctx, (void)peer, (void)text;
}

static const struct ntbm_peer_ops peer_ops = {
    .on_up = on_up, .on_down = on_down, .on_message = on_message, .on_event = on_event};

/* ---- nodes ---- */

static struct coll_host hosts[RING_NODES_MAX];

static void make_job(struct cell *cell, unsigned j)
{
    char text[96];
    CHECK(coll_job_create(job_names[j], &hosts[cell->idx], 1 << 30, virt.now_ns, &cell->jobs[j]) == 0, "job");
    cell->jobs[j]->node = cell->idx;
    int len = snprintf(text, sizeof(text), "world=%u\ntimeout=%u\nlinger=never\nverify=%s\nwire=%s\n",
                       sim.world[j], TIMEOUT_S, j == 1 ? "crc32c" : "none", j == 1 ? "bf16" : "f32");
    CHECK(coll_job_configure(cell->jobs[j], text, (size_t)len, virt.now_ns, NULL) == 0, "config");
    CHECK(coll_net_add(&cell->net, cell->jobs[j], 1000, NULL) == 0, "add");
}

static void start(struct cell *cell)
{
    struct ntbm_node_attr attr = {.fabric = "sim",
                                  .node = cell->idx,
                                  .node_count = virt.node_count,
                                  .landing = cell->landing,
                                  .landing_bytes = sim.landing_bytes,
                                  .incarnation = ntbm_random(&virt.random) | 1,
                                  .host = "simulated"};
    struct ut_err err;
    unsigned order[RING_NODES_MAX];
    memcpy(attr.boot_id, &cell->boot_id, sizeof(cell->boot_id));
    CHECK(ntbm_node_init(&cell->node, &attr, &err) == 0, "%s", err.text);
    for (unsigned i = 0; i < virt.node_count; i++) {
        struct end *end = &cell->ends[i];
        order[i] = (i * 7 + 3) % virt.node_count; /* some order; the same on all */
        if (virt.node_count % 7 == 0)
            order[i] = i;
        if (i == cell->idx)
            continue;
        struct ntbm_emu_attr slow = {.latency_ns = sim.fair ? 20000 : pick(3) * pick(2000000),
                                     .bandwidth = sim.fair ? 20000000 : 0};
        *end = (struct end){.cell = cell, .number = i};
        sim_link_init(&end->link, sim.cells[i].landing, sim.landing_bytes);
        ntbm_emu_init(&end->emu, &end->link.link, &slow, sim_clock, NULL, ntbm_random(&virt.random));
        CHECK(ntbm_node_add(&cell->node, i, &end->emu.link, &peer_ops, end, &end->peer) == 0, "add");
    }
    CHECK(coll_net_init(&cell->net, cell->idx, cell->node.peers, virt.node_count, order, sim_now) == 0,
          "net");
    ut_list_init(&cell->preparing);
    cell->wake_ns = UINT64_MAX;
    cell->is_running = true;
    for (unsigned j = 0; j < JOBS; j++)
        make_job(cell, j);
    trace("node %u starts", cell->idx);
}

/* The operations that run here end, and nobody hears of it. */
static void end_jobs(struct cell *cell)
{
    struct coll_why why = {.result = -ESHUTDOWN};
    for (unsigned j = 0; j < JOBS; j++)
        cell->jobs[j]->hearing = cell->jobs[j]->quiet = true;
    for (unsigned j = 0; j < JOBS; j++) {
        coll_job_fail_all(cell->jobs[j], -ESHUTDOWN, "the daemon stops", virt.now_ns);
        UT_LIST_EACH(&cell->jobs[j]->active, struct coll_operation, active, op)
        {
            struct run *run = op->host;
            if (run->on_ring)
                host_abort(cell, op, &why);
            else
                finish(run, -ESHUTDOWN, "the daemon stops");
        }
        coll_job_destroy(cell->jobs[j], -ESHUTDOWN, virt.now_ns);
    }
    for (unsigned j = 0; j < JOBS; j++) {
        for (unsigned r = 0; r < sim.world[j]; r++) {
            struct client *client = &sim.clients[j][r];
            if (client->home != cell->idx)
                continue;
            client->rank = NULL;
            client->promised = false;
            for (unsigned t = 0; t < TAGS; t++)
                client->lanes[t].state = IDLE;
        }
    }
}

static void stop(struct cell *cell, bool crashes)
{
    trace("node %u %s", cell->idx, crashes ? "crashes" : "stops");
    cell->is_dying = true;
    end_jobs(cell);
    coll_net_fini(&cell->net);
    for (unsigned i = 0; crashes && i < virt.node_count; i++) {
        if (i == cell->idx)
            continue;
        ntbm_mail_reset(&cell->ends[i].peer->mail); /* the memory, not the effect */
        free(cell->ends[i].peer);
    }
    if (crashes)
        free(cell->node.peers);
    else
        ntbm_node_fini(&cell->node);
    for (unsigned i = 0; i < virt.node_count; i++)
        if (i != cell->idx)
            ntbm_emu_fini(&cell->ends[i].emu);
    cell->is_running = cell->is_dying = false;
    sim.crashes += crashes;
}

/* ---- ranks ---- */

static void join(struct client *client)
{
    struct coll_job *job = sim.cells[client->home].jobs[client->job];
    int rc = coll_rank_join(job, client->number, client->home, (pid_t)(100 + client->number), virt.now_ns,
                            &client->rank);
    CHECK(rc == 0 || rc == -EEXIST || rc == -EBUSY, "join: %d", rc);
    sim.rejoined += rc == 0;
    client->promised = false;
}

static void promise(struct client *client)
{
    if (coll_rank_promise(client->rank, (pid_t)(100 + pick(900)), virt.now_ns) == 0)
        client->promised = true;
}

static uint64_t next_number(const struct client *client, unsigned tag)
{
    UT_LIST_EACH(&client->rank->job->tags, struct coll_tag, link, it)
    {
        if (strcmp(it->name, tag_names[tag]) == 0)
            return it->rank_next[client->number];
    }
    return 1;
}

/* The machine still waits for a request that was interrupted to come again. */
static bool is_expected_again(const struct client *client, unsigned tag)
{
    UT_LIST_EACH(&client->rank->job->tags, struct coll_tag, link, it)
    {
        UT_LIST_EACH(&it->ops, struct coll_operation, link, op)
        {
            const struct coll_ask *ask = op->ask[client->number];
            if (strcmp(it->name, tag_names[tag]) == 0 && ask && ask->withdrawn)
                return true;
        }
    }
    return false;
}

static void ask(struct client *client, unsigned tag)
{
    struct lane *lane = &client->lanes[tag];
    struct coll_why why = {0};
    bool again = lane->state == INTERRUPTED;
    uint64_t seq = next_number(client, tag) - (again && lane->ask);
    struct coll_ask *out;
    lane->client = client;
    lane->tag = tag;
    if (!again && is_expected_again(client, tag))
        return;
    if (!again) {
        lane->cmd = choose_command(client, tag, seq);
        if (!sim.overlap || client->lanes[1 - tag].state == IDLE)
            fill_input(client, &lane->cmd);
        lane->t_asked = virt.now_ns;
    }
    memcpy(lane->before, client->buffer + tag * AREA_BYTES, AREA_BYTES);
    lane->state = WAITING;
    int rc =
        coll_rank_ask(client->rank, &lane->cmd, (pid_t)(100 + client->number), lane, virt.now_ns, &out, &why);
    if (rc) {
        CHECK(lane->state == WAITING && why.err.text[0], "refused, and answered");
        check_blame(client, &why);
        sim.failures[-rc]++;
        CHECK(!sim.sure, "refused: %s", why.err.text);
        lane->state = IDLE;
        return;
    }
    lane->ask = lane->state == WAITING ? out : NULL;
}

static void interrupt(struct lane *lane)
{
    if (!coll_ask_interrupt(lane->ask, chance(8), virt.now_ns))
        return;
    lane->state = INTERRUPTED;
    lane->t_interrupted = virt.now_ns;
}

/* The process is killed: its threads are interrupted, then it ends. */
static void kill_process(struct client *client)
{
    for (unsigned t = 0; t < TAGS; t++) {
        struct lane *lane = &client->lanes[t];
        if (lane->state == WAITING && coll_ask_interrupt(lane->ask, true, virt.now_ns))
            lane->state = IDLE;
        else if (lane->state == INTERRUPTED)
            lane->state = IDLE;
    }
    unsigned promises = client->rank->promises;
    if (promises)
        coll_rank_lost(client->rank, client->rank->pid, promises, virt.now_ns);
    client->promised = false;
}

static void drop_lost(struct cell *cell, unsigned j)
{
    static const char text[] = "drop=lost\n";
    struct coll_job *job = cell->jobs[j];
    if (job->lost && job->joined)
        coll_job_drop(job, text, sizeof(text) - 1, virt.now_ns, NULL);
}

static bool is_idle(const struct client *client)
{
    for (unsigned t = 0; t < TAGS; t++) {
        if (client->lanes[t].state == WAITING)
            return false;
    }
    return true;
}

static void leave(struct client *client)
{
    if (client->rank->state != COLL_DROPPED && is_idle(client) &&
        coll_rank_leave(client->rank, virt.now_ns) == 0) {
        client->rank = NULL;
        client->lanes[0].state = client->lanes[1].state = IDLE;
    }
}

/* An interrupted request that has not come again is over. */
static void expire(struct client *client)
{
    for (unsigned t = 0; t < TAGS; t++) {
        struct lane *lane = &client->lanes[t];
        if (lane->state == INTERRUPTED && virt.now_ns >= lane->t_interrupted + 2 * S)
            lane->state = IDLE;
    }
}

static void disturb_client(struct client *client)
{
    struct lane *lane = &client->lanes[pick(TAGS)];
    unsigned what = pick(2000);
    if (what < 20 && lane->state == WAITING)
        interrupt(lane);
    else if (what < 22)
        kill_process(client);
    else if (what < 23)
        leave(client);
    else if (what < 25)
        drop_lost(&sim.cells[client->home], client->job);
}

static void step_client(struct client *client)
{
    struct lane *lane = &client->lanes[pick(TAGS)];
    bool is_out = !client->rank || client->rank->state == COLL_DROPPED || client->rank->state == COLL_ABSENT;
    expire(client);
    if (is_out) {
        if (is_idle(client) && chance(10))
            join(client);
    } else if (client->rank->state == COLL_LOST || !client->promised) {
        if (chance(sim.calm ? 2 : 20))
            promise(client);
    } else if (lane->state != WAITING && chance(3)) {
        if (!(sim.fair && client->job == STUCK_JOB && client->number == 0))
            ask(client, (unsigned)(lane - client->lanes));
    }
    if (!sim.calm && !sim.gentle && !sim.fair && client->rank)
        disturb_client(client);
}

/* ---- faults ---- */

static void disturb_link(struct end *end)
{
    struct ntbm_emu_faults *faults = &end->emu.faults;
    *faults = (struct ntbm_emu_faults){0};
    switch (sim.gentle ? 3 + pick(4) : pick(8)) {
    case 0:
        faults->lost = true;
        break;
    case 1:
        faults->stuck = true;
        break;
    case 2:
        faults->drop_permille = 1 + pick(20);
        break;
    case 3:
        faults->reorder_ns = 1 + pick(20000000);
        break;
    default:
        break;
    }
}

static void cut_fabric(void)
{
    unsigned cut = pick(virt.node_count);
    bool lost = chance(2);
    trace(lost ? "the fabric is cut at node %u" : "the fabric is whole again at node %u", cut);
    for (unsigned i = 0; i < virt.node_count; i++)
        for (unsigned k = 0; sim.cells[i].is_running && k < virt.node_count; k++)
            if (i != k && (i < cut) != (k < cut))
                sim.cells[i].ends[k].emu.faults = (struct ntbm_emu_faults){.lost = lost};
}

static void disturb(void)
{
    struct cell *cell = &sim.cells[pick(virt.node_count)];
    unsigned other = pick(virt.node_count);
    if (!cell->is_running) {
        if (chance(30))
            start(cell);
        return;
    }
    if (chance(400) && other != cell->idx)
        disturb_link(&cell->ends[other]);
    if (sim.gentle)
        return;
    if (chance(2000)) {
        stop(cell, chance(2));
        cell->boot_id += chance(2);
    } else if (chance(2000)) {
        cell->stopped_until_ns = virt.now_ns + pick(3000) * MS;
        trace("node %u stands still", cell->idx);
    } else if (chance(8000)) {
        cut_fabric();
    }
}

static void heal(void)
{
    trace("all faults end");
    sim.calm = true;
    for (unsigned i = 0; i < virt.node_count; i++) {
        struct cell *cell = &sim.cells[i];
        if (!cell->is_running)
            start(cell);
        cell->stopped_until_ns = 0;
        for (unsigned k = 0; k < virt.node_count; k++)
            cell->ends[k].emu.faults = (struct ntbm_emu_faults){0};
    }
}

/* ---- time ---- */

static void check_cell(const struct cell *cell)
{
    for (unsigned j = 0; j < JOBS; j++)
        coll_job_check(cell->jobs[j]);
    for (unsigned i = 0; i < virt.node_count; i++)
        CHECK(i == cell->idx || cell->ends[i].peer->slots.borrowed <= 2 * NTBM_SLOTS_MAX, "borrowed %u",
              cell->ends[i].peer->slots.borrowed);
}

static void check_patience(const struct client *client)
{
    uint64_t patience_ns = sim.blamed ? BLAME_NS : PATIENCE_NS,
             stood_ns = sim.cells[client->home].stopped_until_ns, fault_ns = sim.blamed ? sim.blamed_ns : 0;
    for (unsigned t = 0; t < TAGS; t++)
        CHECK(client->lanes[t].state != WAITING || virt.now_ns < client->lanes[t].t_asked + patience_ns ||
                  virt.now_ns < stood_ns + patience_ns || virt.now_ns < fault_ns + patience_ns,
              "job %u rank %u on node %u waits for ever in tag %u: operation %" PRIu64 ", state %d",
              client->job, client->number, client->home, t, client->lanes[t].ask->op->seq,
              (int)client->lanes[t].ask->op->state);
}

static void prepare_on(struct cell *cell)
{
    UT_LIST_EACH(&cell->preparing, struct run, link, run)
    {
        if (run->due_ns > virt.now_ns)
            continue;
        start_run(run);
        return; /* the list may have changed */
    }
}

static void step_machine(struct cell *cell, bool with_clients)
{
    if (!cell->is_running || virt.now_ns < cell->stopped_until_ns)
        return;
    ntbm_node_poll(&cell->node, virt.now_ns);
    settle_down(cell);
    coll_net_poll(&cell->net);
    settle_down(cell);
    prepare_on(cell);
    for (unsigned j = 0; j < JOBS && cell->wake_ns <= virt.now_ns; j++) {
        cell->wake_ns = j ? cell->wake_ns : 0;
        coll_job_tick(cell->jobs[j], virt.now_ns);
    }
    for (unsigned j = 0; j < JOBS; j++) {
        for (unsigned r = 0; with_clients && r < sim.world[j]; r++) {
            struct client *client = &sim.clients[j][r];
            if (client->home != cell->idx)
                continue;
            step_client(client);
            check_patience(client);
        }
    }
    check_cell(cell);
}

static void step(bool with_clients)
{
    uint32_t pace_ns =
        virt.node_count > 64 ? 20000000 : 2000000; /* hundreds of nodes take as long as they must */
    virt.now_ns += sim.fair ? 20000 + pick(80000) : 200000 + pick(pace_ns);
    if (!sim.calm && !sim.fair)
        disturb();
    for (unsigned i = 0; i < virt.node_count; i++)
        if (!chance(4))
            step_machine(&sim.cells[i], with_clients);
}

static void run_for(uint64_t ns, bool with_clients)
{
    uint64_t end_ns = virt.now_ns + ns;
    while (virt.now_ns < end_ns)
        step(with_clients);
}

/* ---- the end ---- */

static bool is_at_rest(void)
{
    for (unsigned j = 0; j < JOBS; j++)
        for (unsigned r = 0; r < sim.world[j]; r++)
            if (!is_idle(&sim.clients[j][r]))
                return false;
    return true;
}

static void check_nothing_left(const struct cell *cell)
{
    CHECK(ut_list_empty(&cell->net.ring.ops) && ut_list_empty(&cell->preparing), "an operation goes on");
    CHECK(!cell->net.ring.held_count, "node %u holds %u slots", cell->idx, cell->net.ring.held_count);
    CHECK(ut_list_empty(&cell->net.ring.early), "node %u keeps words", cell->idx);
    for (unsigned i = 0; i < virt.node_count; i++) {
        struct ntbm_slot_out out[NTBM_SLOTS_MAX];
        struct ntbm_peer *peer = cell->ends[i].peer;
        if (i == cell->idx)
            continue;
        CHECK(!peer->slots.borrowed, "node %u has %u slots of node %u", cell->idx, peer->slots.borrowed, i);
        for (unsigned s = 0; s < peer->session.geo.slot_count; s++)
            CHECK(ntbm_peer_take(peer, &out[s]) == 0, "node %u misses slots of node %u", cell->idx, i);
        for (unsigned s = 0; s < peer->session.geo.slot_count; s++)
            ntbm_slot_cancel(&out[s]);
    }
}

static void check_all_well(void)
{
    uint64_t before[JOBS];
    run_for(20 * S, true); /* sessions come up, ranks come back, old numbers pass */
    sim.sure = true;
    memcpy(before, sim.good, sizeof(before));
    run_for(5 * S, true);
    for (unsigned j = 0; j < JOBS; j++)
        CHECK(sim.good[j] >= before[j] + 5 * sim.world[j], "job %u: %" PRIu64 " successes", j,
              sim.good[j] - before[j]);
    sim.sure = false; /* ranks stop asking, so some are left alone */
    run_for(6 * S, false);
    CHECK(is_at_rest(), "somebody still waits");
    for (unsigned i = 0; i < virt.node_count; i++)
        check_nothing_left(&sim.cells[i]);
}

static void cut_link(unsigned from, unsigned to)
{
    sim.cells[from].ends[to].emu.faults.lost = true;
}

/* While the fault lasts, and then until all is well again. */
static void suffer(const char *what, int error)
{
    uint64_t before = sim.failures[error], good[JOBS];
    trace("now: %s", what);
    sim.blamed = error;
    sim.blamed_ns = virt.now_ns;
    run_for(4 * S, true);
    CHECK(sim.failures[error] > before, "nobody suffers from %s", what);
    sim.blamed = 0;
    heal();
    run_for(8 * S, true);
    memcpy(good, sim.good, sizeof(good));
    sim.sure = true;
    run_for(S, true);
    sim.sure = false;
    for (unsigned j = 0; j < JOBS; j++)
        CHECK(sim.good[j] > good[j], "job %u does not work after %s", j, what);
}

static void check_blames(void)
{
    unsigned last = virt.node_count - 1;
    cut_link(0, 1), cut_link(1, 0);
    suffer("a link that is cut", ENOLINK);
    cut_link(0, last);
    suffer("a link that is cut one way", ENOLINK);
    stop(&sim.cells[1], true);
    suffer("a node that crashes", EHOSTDOWN);
    sim.cells[last].stopped_until_ns = virt.now_ns + 3 * S;
    suffer("a node that stands still", EHOSTDOWN);
    stop(&sim.cells[0], false);
    suffer("a daemon that stops", EHOSTDOWN);
}

static void check_fair(void)
{
    uint64_t a = sim.good[0] / sim.world[0], b = sim.good[1] / sim.world[1];
    CHECK(a > 20 && b > 20, "%" PRIu64 " and %" PRIu64 " operations", a, b);
    CHECK(a <= 2 * b && b <= 2 * a, "%" PRIu64 " and %" PRIu64 " operations", a, b);
    printf("fair: %" PRIu64 " and %" PRIu64 " operations\n", a, b);
}

/* ---- the program ---- */

static void place_clients(void)
{
    for (unsigned j = 0; j < JOBS; j++) {
        sim.world[j] = 2 + pick(virt.node_count + 2 < WORLD_MAX ? virt.node_count + 2 : WORLD_MAX - 2);
        bool even = sim.fair || sim.blame; /* a rank on each node */
        if (even)
            sim.world[j] = virt.node_count < WORLD_MAX ? virt.node_count : WORLD_MAX;
        for (unsigned r = 0; r < sim.world[j]; r++)
            sim.clients[j][r] = (struct client){
                .job = j, .number = r, .home = even ? r % virt.node_count : pick(virt.node_count)};
    }
}

static void init(void)
{
    sim.landing_bytes = ntbm_landing_min_bytes(virt.node_count) + (virt.node_count - 1) * (pick(4) << 12);
    sim.landing_bytes = (sim.landing_bytes + 4095) & ~4095ull;
    sim.cells = calloc(virt.node_count, sizeof(*sim.cells));
    place_clients();
    for (unsigned i = 0; i < virt.node_count; i++) {
        hosts[i] = host_template;
        hosts[i].ctx = &sim.cells[i];
        sim.cells[i].idx = i;
        sim.cells[i].ends = calloc(virt.node_count, sizeof(struct end));
        sim.cells[i].landing = aligned_alloc(4096, sim.landing_bytes);
        memset(sim.cells[i].landing, 0, sim.landing_bytes);
    }
    for (unsigned i = 0; i < virt.node_count; i++)
        start(&sim.cells[i]);
}

static void fini(void)
{
    sim.gentle = false;
    for (unsigned i = 0; i < virt.node_count; i++)
        stop(&sim.cells[i], false);
    for (unsigned i = 0; i < virt.node_count; i++) {
        free(sim.cells[i].ends);
        free(sim.cells[i].landing);
    }
    free(sim.cells);
    for (unsigned j = 0; j < JOBS; j++)
        for (unsigned r = 0; r < sim.world[j]; r++)
            for (unsigned i = 0; i < TAGS * HISTORY; i++)
                free(sim.clients[j][r].history[i / HISTORY][i % HISTORY].input);
}

int main(int argc, char **argv)
{
    static const struct sim_flag flags[] = {{"--gentle", &sim.gentle},
                                            {"--fair", &sim.fair},
                                            {"--blame", &sim.blame},
                                            {"--overlap", &sim.overlap}};
    virt.program = "sim_fabric";
    virt.flags = flags;
    virt.flag_count = 4;
    virt.node_max = RING_NODES_MAX;
    virt.node_count = 4;
    virt.seconds = 60;
    sim_options(argc, argv);
    sim.calm = sim.blame;
    init();
    if (sim.gentle || sim.fair || sim.blame) {
        run_for(10 * S, true);
        sim.sure = sim.gentle;
        memset(sim.good, 0, sizeof(sim.good));
    }
    run_for(virt.seconds * S, true);
    if (sim.fair) {
        check_fair();
    } else if (sim.blame) {
        check_blames();
    } else {
        heal();
        check_all_well();
    }
    fini();
    printf("%" PRIu64 " answers, %" PRIu64 " failures, %" PRIu64 " of them undefined, %" PRIu64
           " beside a success; %" PRIu64 " crashes, %" PRIu64 " sessions ended, %" PRIu64 " joins\n",
           sim.answers, sim.failed, sim.undefined, sim.splits, sim.crashes, sim.downs, sim.rejoined);
    for (int e = 0; e < 200; e++)
        if (sim.failures[e])
            printf("  %s %" PRIu64 "\n", ut_err_name(-e), sim.failures[e]);
    return 0;
}
