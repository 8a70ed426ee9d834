/*
 * Garbage from another daemon, above sessions: control messages and chunks. The input is a program: each step
 * is a message made of its bytes, raw or sound but for some fields, a slot with such a header, a request of
 * this node's rank, or time that passes. Whatever comes, nobody crashes, the job's invariants hold, and in
 * the end every request is answered and every slot given back.
 */
#include "reduce/coll_net.h"
#include "reduce/coll_wire.h"
#include "tests/fuzz/fuzz.h"
#include "tests/sim/sim_pair.h"

#include <errno.h>

#define LANDING_BYTES 65536u
#define WORLD 3u

struct program {
    const uint8_t *at, *end;
    struct sim_pair pair;
    struct coll_net net;
    struct coll_job *job;
    struct coll_rank *rank;
    struct coll_net_run run;
    bool is_running; /* run is in use */
    unsigned waiting, ups, downs;
    uint64_t buffer[4096];
};

static struct program program;

static uint64_t take_bytes(unsigned count)
{
    uint64_t value = 0;
    while (count-- && program.at < program.end)
        value = value << 8 | *program.at++;
    return value;
}

static uint64_t now(void)
{
    return program.pair.now_ns;
}

/* ---- the host ---- */

static void over(struct coll_net_run *run, int result, const char *text)
{
    program.is_running = false;
    coll_op_finish(run->op, result, text, now());
}

static void on_run(void *ctx, struct coll_operation *op)
{
    (void)ctx;
    if (program.is_running || !coll_net_concerns(op)) {
        coll_op_finish(op, -EBUSY, "one at a time", now());
        return;
    }
    memset(&program.run, 0, sizeof(program.run));
    program.run.op = op;
    program.run.over = over;
    for (unsigned r = 0, member = 0; r < WORLD; r++) {
        if (op->ask[r])
            program.run.base[member++] = op->ask[r]->rank == program.rank ? program.buffer : NULL;
    }
    program.is_running = true;
    int rc = coll_net_start(&program.net, &program.run, red_table_find("portable"));
    if (rc) {
        program.is_running = false;
        coll_op_finish(op, rc, "not started", now());
    }
}

static void on_answer(void *ctx, struct coll_ask *ask, const struct coll_why *why, uint64_t when)
{
    (void)ctx, (void)ask, (void)when;
    fuzz_must(program.waiting--);
    fuzz_must(why->result <= 0 && why->result > -512); /* what the kernel takes for an answer */
}

static void on_event(void *ctx, const struct coll_job *job, const char *severity, const char *text)
{
    (void)ctx, (void)job, (void)severity;
    for (; *text; text++)
        fuzz_must((unsigned char)*text >= ' ' && *text != 0x7f);
}

static void on_wake(void *ctx, uint64_t when)
{
    (void)ctx, (void)when;
}

static void on_asked(void *ctx, const struct coll_ask *ask)
{
    coll_net_asked(ctx, ask);
}

static void on_withdrew(void *ctx, const struct coll_ask *ask, bool dying)
{
    coll_net_withdrew(ctx, ask, dying);
}

static void on_failed(void *ctx, const struct coll_operation *op)
{
    coll_net_failed(ctx, op);
}

static void on_changed(void *ctx, struct coll_job *job)
{
    coll_net_changed(ctx, job);
}

static void on_abort(void *ctx, struct coll_operation *op, const struct coll_why *why)
{
    coll_net_abort(ctx, op, why);
}

static void on_turn(void *ctx, const struct coll_operation *op)
{
    coll_net_turn(ctx, op);
}

static const struct coll_host host = {.ctx = &program.net,
                                      .run = on_run,
                                      .answer = on_answer,
                                      .event = on_event,
                                      .wake = on_wake,
                                      .asked = on_asked,
                                      .withdrew = on_withdrew,
                                      .failed = on_failed,
                                      .changed = on_changed,
                                      .turn = on_turn,
                                      .abort = on_abort};

/* ---- what the other daemon says ---- */

static void put_rest(struct coll_out *out)
{
    for (uint64_t len = take_bytes(1); len; len--)
        coll_put(out, take_bytes(1), 1);
}

/* A number that is mostly near those in use. */
static uint64_t near(void)
{
    uint64_t kind = take_bytes(1);
    return kind < 240 ? kind % 8 : kind < 250 ? UINT64_MAX - kind % 4 : take_bytes(8);
}

static const char *choose_tag(void)
{
    uint64_t kind = take_bytes(1);
    return kind % 4 ? "" : kind < 128 ? "t" : "t\", \"";
}

static void put_cmd(struct coll_out *out)
{
    coll_put(out, take_bytes(1) % (COLL_KIND_COUNT + 1), 1);
    coll_put(out, take_bytes(1) % (COLL_DTYPE_COUNT + 1), 1);
    coll_put(out, take_bytes(1) % (COLL_OP_COUNT + 1), 1);
    coll_put(out, take_bytes(1) % 4 ? 2000 : near(), 8);
    coll_put(out, near(), 2);
    coll_put_text(out, choose_tag());
}

static void put_job_begin(struct coll_out *out, unsigned news, bool more)
{
    struct ut_text text = {0};
    coll_config_render(&program.job->config, &text);
    coll_put(out, COLL_WIRE_JOB, 1);
    coll_put_text(out, "j");
    coll_put(out, news, 1);
    coll_put(out, 1, 1); /* it begins here */
    coll_put(out, more, 1);
    coll_put(out, 0, 4);
    coll_put(out, text.len, 2);
    coll_put_bytes(out, text.bytes, (uint32_t)text.len);
    ut_text_fini(&text);
}

static void put_rank(struct coll_out *out, uint64_t number, unsigned state, uint64_t last_seq)
{
    coll_put(out, number, 2);
    coll_put(out, state, 1);
    coll_put(out, 7, 4);
    coll_put(out, 99, 4);
    coll_put(out, last_seq, 8);
}

/* All is well: the other node has ranks 1 and 2, and knows ours. */
static void meet(void)
{
    struct coll_out out = {.len = 0};
    put_job_begin(&out, 2, false);
    coll_put(&out, 0, 2);
    coll_put(&out, 0, 2);
    coll_put(&out, WORLD - 1, 2);
    for (unsigned r = 1; r < WORLD; r++)
        put_rank(&out, r, COLL_JOINED, 0);
    coll_net_message(&program.net, 1, out.bytes, out.len);
    fuzz_must(program.job->ranks[WORLD - 1].state == COLL_JOINED);
}

/* The end of a JOB that has begun, or nothing that follows. */
static void put_job_end(struct coll_out *out)
{
    coll_put(out, COLL_WIRE_JOB, 1);
    coll_put_text(out, "j");
    coll_put(out, 2, 1);
    coll_put(out, 0, 1);
    coll_put(out, take_bytes(1) % 2, 1);
    put_rest(out);
}

static void put_job(struct coll_out *out)
{
    put_job_begin(out, (unsigned)take_bytes(1) % 4, take_bytes(1) % 4 == 0);
    coll_put(out, 1, 2);
    coll_put_text(out, "");
    coll_put(out, near(), 8);
    uint64_t dropped = take_bytes(1) % 8 ? 0 : 1, ranks = take_bytes(1) % 4;
    coll_put(out, dropped, 2);
    for (; dropped; dropped--)
        coll_put(out, take_bytes(2), 2), coll_put(out, program.rank->incarnation, 4);
    coll_put(out, ranks, 2);
    for (uint64_t r = 1; r <= ranks; r++)
        put_rank(out, take_bytes(1) % 8 ? r : near(), (unsigned)take_bytes(1) % 6, near());
    put_rest(out);
}

static void put_about_op(struct coll_out *out, uint8_t type)
{
    coll_put(out, type, 1);
    coll_put(out, ring_id("j"), 8);
    coll_put(out, near(), 8);
    if (type != COLL_WIRE_FAIL)
        coll_put(out, take_bytes(1) % 8 ? 1 + take_bytes(1) % 2 : near(), 2);
    if (type == COLL_WIRE_ASK) {
        coll_put(out, 99, 4);
        coll_put(out, take_bytes(1) % 2, 1); /* crosses */
    }
    if (type == COLL_WIRE_WITHDRAW) {
        coll_put(out, take_bytes(1), 1);
        coll_put_text(out, "");
        return;
    }
    put_cmd(out);
    if (type == COLL_WIRE_FAIL) {
        coll_put(out, take_bytes(1) * 3, 4);
        put_rest(out);
    }
}

/* The header of the operation that runs, or nearly. */
static struct ring_header choose_id(void)
{
    struct ring_header id = {.job = ring_id("j"), .seq = near(), .tag = ring_id("")};
    if (program.is_running && take_bytes(1) % 8)
        id = program.run.ring.id;
    if (take_bytes(1) % 8 == 0)
        id.members ^= 1;
    return id;
}

static void put_word(struct coll_out *out, uint8_t type)
{
    struct ring_header id = choose_id();
    coll_put(out, type, 1);
    coll_put(out, id.job, 8);
    coll_put(out, id.seq, 8);
    coll_put(out, id.tag, 8);
    coll_put(out, id.members, 4);
    if (type == COLL_WIRE_PART)
        put_rest(out);
}

static void put_turn(struct coll_out *out)
{
    coll_put(out, COLL_WIRE_TURN, 1);
    coll_put(out, ring_id("j"), 8);
    coll_put(out, near(), 8);
    coll_put_text(out, take_bytes(1) % 2 ? "" : "t");
}

static void put_witness(struct coll_out *out, uint8_t type)
{
    coll_put(out, type, 1);
    coll_put(out, near(), 2);
}

static void hear_message(void)
{
    struct coll_out out = {.len = 0};
    uint8_t type = (uint8_t)(take_bytes(1) % (COLL_WIRE_HEARS + 2));
    if (!type || type > COLL_WIRE_HEARS)
        put_rest(&out);
    else if (type == COLL_WIRE_TURN)
        put_turn(&out);
    else if (type == COLL_WIRE_SEEK || type == COLL_WIRE_HEARS)
        put_witness(&out, type);
    else if (type == COLL_WIRE_JOB && take_bytes(1) % 4 == 0)
        put_job_end(&out);
    else if (type == COLL_WIRE_JOB)
        put_job(&out);
    else if (type < COLL_WIRE_READY)
        put_about_op(&out, type);
    else
        put_word(&out, type);
    if (take_bytes(1) % 8 == 0)
        out.len = out.len ? (uint32_t)take_bytes(2) % out.len : 0;
    uint8_t *copy = malloc(out.len + 1); /* so that a sanitizer sees a read past its end */
    fuzz_must(copy);
    memcpy(copy, out.bytes, out.len);
    uint8_t *exact = out.len ? copy : copy + 1;
    coll_net_message(&program.net, 1, exact, out.len);
    free(copy);
}

/* ---- this node ---- */

/* The other node's ranks ask for the same. */
static void follow(const struct coll_ask *ask)
{
    uint64_t seq = ask->op->seq;
    struct coll_cmd cmd = ask->cmd;
    for (unsigned r = 1; r < WORLD; r++) {
        struct coll_out out = {.len = 0};
        coll_put(&out, COLL_WIRE_ASK, 1);
        coll_put(&out, ring_id("j"), 8);
        coll_put(&out, seq, 8);
        coll_put(&out, r, 2);
        coll_put(&out, 99, 4);
        coll_put(&out, ask->crosses, 1);
        coll_put(&out, cmd.kind, 1);
        coll_put(&out, cmd.dtype, 1);
        coll_put(&out, cmd.op, 1);
        coll_put(&out, cmd.count, 8);
        coll_put(&out, cmd.root, 2);
        coll_put_text(&out, cmd.tag);
        coll_net_message(&program.net, 1, out.bytes, out.len);
    }
}

static void ask(void)
{
    struct coll_cmd cmd = {.kind = (enum coll_kind)(take_bytes(1) % COLL_KIND_COUNT),
                           .dtype = (enum coll_dtype)(take_bytes(1) % COLL_DTYPE_COUNT),
                           .count = 20};
    if (take_bytes(1) % 4 == 0)
        strcpy(cmd.tag, "t");
    struct coll_why why = {0};
    struct coll_ask *out;
    program.waiting++;
    cmd.count += take_bytes(1) % 2 ? 2000 : 0;
    if (coll_rank_ask(program.rank, &cmd, 1, NULL, now(), &out, &why))
        program.waiting--;
    else if (out && take_bytes(1) % 4)
        follow(out);
}

/* How long such a chunk is, if there is one. */
static uint32_t bytes_of(const struct ring_header *id)
{
    const struct ring_op *op = &program.run.ring;
    uint64_t begin;
    uint32_t count;
    if (!program.is_running || op->parts || id->segment >= op->plan.segment_count ||
        id->chunk >= ring_chunks(&op->plan, id->segment))
        return 64;
    ring_chunk(&op->plan, id->segment, id->chunk, &begin, &count);
    return count * (uint32_t)coll_dtype_bytes(op->dtype);
}

/* A chunk for the operation that runs, or nearly. */
static void send_chunk(void)
{
    struct ntbm_slot_out out;
    uint8_t user[NTBM_USER_BYTES] = {0};
    if (!program.is_running)
        ask();
    struct ring_header id = choose_id();
    if (ntbm_peer_take(program.pair.side[1].peer, &out))
        return;
    id.segment = (uint16_t)(take_bytes(1) % 4 ? take_bytes(1) % 2 : near());
    id.chunk = (uint32_t)(take_bytes(1) % 4 ? 0 : near());
    id.journey = (uint8_t)(take_bytes(1) % 4);
    memcpy(user, &id, sizeof(id));
    uint32_t bytes = take_bytes(1) % 4 ? bytes_of(&id) : (uint32_t)take_bytes(2);
    ntbm_slot_send(&out, bytes % (out.max_bytes + 1), user);
}

static void pass_time(unsigned ms)
{
    struct sim_side *side = &program.pair.side[0];
    for (uint64_t until_ns = now() + ms * SIM_MS; now() < until_ns;) {
        sim_pair_run(&program.pair, 1); /* one step: 5 ms */
        if (program.downs != side->downs)
            coll_net_peer_down(&program.net, 1, side->peer->loss, side->reason);
        if (program.ups != side->ups)
            coll_net_peer_up(&program.net, 1);
        program.downs = side->downs;
        program.ups = side->ups;
        coll_net_poll(&program.net);
        coll_job_tick(program.job, now());
    }
}

/* Names of tags stand in `trace`, in lines of results and in events. */
static void check_tags(void)
{
    UT_LIST_EACH(&program.job->tags, struct coll_tag, link, tag)
    {
        fuzz_must(!strpbrk(tag->name, "\" "));
    }
}

static void step(void)
{
    uint64_t what = take_bytes(1) % 8;
    if (what < 4)
        hear_message();
    else if (what == 4)
        send_chunk(), pass_time(2);
    else if (what == 5)
        ask();
    else if (what == 6)
        pass_time(1);
    else
        pass_time((unsigned)take_bytes(1));
    coll_job_check(program.job);
    check_tags();
}

static void set_up(void)
{
    static const unsigned order[] = {0, 1};
    static const char config[] = "world=3\ntimeout=1\nlinger=never\n";
    sim_pair_init(&program.pair, LANDING_BYTES);
    sim_pair_restart(&program.pair, 0, 1000);
    sim_pair_restart(&program.pair, 1, 2000);
    fuzz_must(coll_net_init(&program.net, 0, program.pair.side[0].node.peers, 2, order, now) == 0);
    fuzz_must(coll_job_create("j", &host, 1 << 20, now(), &program.job) == 0);
    fuzz_must(coll_job_configure(program.job, config, sizeof(config) - 1, now(), NULL) == 0);
    fuzz_must(coll_net_add(&program.net, program.job, 0, NULL) == 0);
    fuzz_must(coll_rank_join(program.job, 0, 0, 1, now(), &program.rank) == 0);
    pass_time(200);
    fuzz_must(sim_pair_is_up(&program.pair));
    meet();
}

static bool is_busy(void)
{
    return program.waiting || program.is_running || program.net.ring.held_count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memset(&program, 0, sizeof(program));
    program.at = data;
    program.end = data + (size < 600 ? size : 600);
    set_up();
    while (program.at < program.end)
        step();
    pass_time(5000); /* the timeouts of operations and of their data, and what was withdrawn */
    fuzz_must(!is_busy());
    fuzz_must(!program.pair.side[0].peer->slots.borrowed);
    program.job->quiet = program.job->hearing = true;
    coll_net_remove(&program.net, program.job);
    coll_job_destroy(program.job, -ESHUTDOWN, now());
    coll_net_fini(&program.net);
    sim_pair_fini(&program.pair);
    return 0;
}
