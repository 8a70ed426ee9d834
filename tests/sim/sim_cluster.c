/*
 * A whole cluster in one process and in virtual time: every node greets every other, all exchange messages
 * and slots, and everything that can go wrong does. What must hold is checked at every step; after the last
 * fault all must be up again, with every credit back.
 *
 *     sim_cluster [--nodes N] [--seconds S] [--seed X] [--gentle] [--trace]
 *
 * --gentle: puts are late and overtake each other, but nothing is lost and nobody dies, so no session may
 * end.
 *
 * Safety, checked at every delivery:
 *  1. A message is delivered in the session it was sent in, in order, once, whole.
 *  2. So is the filling of a slot, except that slots overtake each other.
 *  3. on_up and on_down alternate, and nothing is delivered outside.
 * Liveness, checked at the end:
 *  4. All pairs come up within ten limits of the last fault.
 *  5. All slots of all pairs can be taken: no credit was lost.
 *  6. From then on nobody reads across a link.
 */
#include "ntbmem/ntbm_emu.h"
#include "ntbmem/ntbm_node.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_link.h"

#define HELD_MAX 4

/* What both kinds of payload begin with. */
struct stamp {
    uint32_t from_epoch, to_epoch, counter, bytes;
};

/* One node's view of one other. */
struct end {
    struct cell *owner;
    struct ntbm_peer *peer;
    struct sim_link link;
    struct ntbm_emu emu;
    bool is_open;
    uint32_t messages_out, messages_in, slots_out;
    uint32_t last_filling[NTBM_SLOTS_MAX]; /* counter + 1 of what came in that slot last */
    struct ntbm_slot_out taken[HELD_MAX];
    struct ntbm_slot_in held[HELD_MAX];
    uint32_t taken_count, held_count;
};

/* One simulated machine. */
struct cell {
    uint32_t idx;
    bool is_running;
    uint64_t stopped_until_ns; /* as by SIGSTOP */
    uint64_t boot_id;
    uint8_t *landing;
    struct ntbm_node node;
    struct end *ends; /* [node_count] */
};

static struct {
    uint64_t landing_bytes;
    bool gentle;
    bool calm;   /* no more faults, no load */
    bool ending; /* all stop */
    struct cell *cells;
    uint64_t sessions, downs, messages, fillings, crashes, events;
} sim;

/* ---- payloads ---- */

static void fill_body(uint8_t *body, const struct stamp *stamp)
{
    for (uint32_t i = 0; i < stamp->bytes; i++)
        body[i] = (uint8_t)(stamp->counter * 31 + stamp->from_epoch + i);
}

static void check_body(const uint8_t *body, const struct stamp *stamp)
{
    for (uint32_t i = 0; i < stamp->bytes; i++)
        CHECK(body[i] == (uint8_t)(stamp->counter * 31 + stamp->from_epoch + i), "byte %u of %u", i,
              stamp->bytes);
}

static struct stamp new_stamp(const struct end *end, uint32_t counter, uint32_t bytes)
{
    const struct ntbm_session *session = &end->peer->session;
    return (struct stamp){session->epoch, session->peer_epoch, counter, bytes};
}

static void check_stamp(const struct end *end, const struct stamp *stamp)
{
    const struct ntbm_session *session = &end->peer->session;
    CHECK(end->is_open, "delivered outside a session");
    CHECK(stamp->from_epoch == session->peer_epoch, "from epoch %u in %u", stamp->from_epoch,
          session->peer_epoch);
    CHECK(stamp->to_epoch == session->epoch, "for epoch %u in %u", stamp->to_epoch, session->epoch);
}

/* ---- what the peers tell ---- */

static void on_up(void *ctx, struct ntbm_peer *peer)
{
    struct end *end = ctx;
    (void)peer;
    CHECK(!end->is_open, "up twice");
    end->is_open = true;
    end->messages_out = end->messages_in = end->slots_out = 0;
    memset(end->last_filling, 0, sizeof(end->last_filling));
    sim.sessions++;
    trace("node %u: node %u is up", end->owner->idx, peer->node);
}

static void on_down(void *ctx, struct ntbm_peer *peer, const char *reason)
{
    struct end *end = ctx;
    (void)peer;
    CHECK(end->is_open, "down twice");
    CHECK(*reason, "down without a reason");
    CHECK(!sim.gentle || sim.ending, "nothing was lost: %s", reason);
    end->is_open = false;
    sim.downs++;
    trace("node %u: node %u is down: %s", end->owner->idx, peer->node, reason);
}

static void on_message(void *ctx, struct ntbm_peer *peer, const uint8_t *bytes, uint32_t len)
{
    struct end *end = ctx;
    struct stamp stamp;
    (void)peer;
    CHECK(len >= sizeof(stamp), "a message of %u bytes", len);
    memcpy(&stamp, bytes, sizeof(stamp));
    check_stamp(end, &stamp);
    CHECK(stamp.counter == end->messages_in, "message %u where %u is due", stamp.counter, end->messages_in);
    CHECK(stamp.bytes == len - sizeof(stamp), "%u bytes of %u", len, stamp.bytes);
    check_body(bytes + sizeof(stamp), &stamp);
    end->messages_in++;
    sim.messages++;
}

static void on_event(void *ctx, struct ntbm_peer *peer, const char *text)
{
    const struct end *end = ctx;
    sim.events++;
    trace("node %u about node %u: %s", end->owner->idx, peer->node, text);
}

static const struct ntbm_peer_ops peer_ops = {
    .on_up = on_up, .on_down = on_down, .on_message = on_message, .on_event = on_event};

/* ---- load ---- */

static void send_message(struct end *end)
{
    uint8_t bytes[NTBM_MSG_BYTES];
    uint32_t body = chance(20) ? pick(NTBM_MSG_BYTES - sizeof(struct stamp)) : pick(150);
    struct stamp stamp = new_stamp(end, end->messages_out, body);
    memcpy(bytes, &stamp, sizeof(stamp));
    fill_body(bytes + sizeof(stamp), &stamp);
    if (ntbm_peer_send(end->peer, bytes, (uint32_t)sizeof(stamp) + body) == 0)
        end->messages_out++;
}

static void take_slot(struct end *end)
{
    if (end->taken_count < HELD_MAX && ntbm_peer_take(end->peer, &end->taken[end->taken_count]) == 0)
        end->taken_count++;
}

/* Sends a slot that was taken, or gives it back; the session may be over since. */
static void finish_slot(struct end *end)
{
    uint8_t user[NTBM_USER_BYTES] = {0};
    if (!end->taken_count)
        return;
    struct ntbm_slot_out out = end->taken[--end->taken_count];
    if (chance(5)) {
        ntbm_slot_cancel(&out);
        return;
    }
    if (!end->is_open) { /* a worker that knows nothing of it: must never be delivered */
        ntbm_slot_send(&out, 0, user);
        return;
    }
    struct stamp stamp = new_stamp(end, end->slots_out++, pick(out.max_bytes + 1));
    memcpy(user, &stamp, sizeof(stamp));
    fill_body(out.data, &stamp);
    ntbm_slot_send(&out, stamp.bytes, user);
}

static void hold_slot(struct end *end)
{
    struct ntbm_slot_in in;
    struct stamp stamp;
    if (end->held_count == HELD_MAX || ntbm_peer_next(end->peer, &in))
        return;
    memcpy(&stamp, in.user, sizeof(stamp));
    check_stamp(end, &stamp);
    CHECK(stamp.bytes == in.bytes, "%u bytes of %u", in.bytes, stamp.bytes);
    CHECK(stamp.counter + 1 > end->last_filling[in.idx], "filling %u of slot %u again", stamp.counter,
          in.idx);
    check_body(in.data, &stamp);
    end->last_filling[in.idx] = stamp.counter + 1;
    end->held[end->held_count++] = in;
    sim.fillings++;
}

static void release_slot(struct end *end)
{
    if (end->held_count)
        ntbm_slot_done(&end->held[--end->held_count]);
}

static void give_all_back(struct end *end)
{
    while (end->taken_count)
        ntbm_slot_cancel(&end->taken[--end->taken_count]);
    while (end->held_count)
        release_slot(end);
}

static void do_load(struct end *end)
{
    switch (pick(12)) {
    case 0:
        send_message(end);
        break;
    case 1:
    case 2:
        take_slot(end);
        break;
    case 3:
    case 4:
        finish_slot(end);
        break;
    case 5:
    case 6:
        hold_slot(end);
        break;
    case 7:
    case 8:
        release_slot(end);
        break;
    default:
        break;
    }
}

/* ---- machines ---- */

static void start(struct cell *cell)
{
    struct ntbm_node_attr attr = {.fabric = "sim",
                                  .node = cell->idx,
                                  .node_count = virt.node_count,
                                  .landing = cell->landing,
                                  .landing_bytes = sim.landing_bytes,
                                  .incarnation = ntbm_random(&virt.random) | 1,
                                  .pid = pick(30000),
                                  .host = "simulated"};
    struct ut_err err;
    memcpy(attr.boot_id, &cell->boot_id, sizeof(cell->boot_id));
    CHECK(ntbm_node_init(&cell->node, &attr, &err) == 0, "%s", err.text);
    for (uint32_t i = 0; i < virt.node_count; i++) {
        struct end *end = &cell->ends[i];
        if (i == cell->idx)
            continue;
        struct ntbm_emu_attr slow = {.latency_ns = pick(3) * pick(2000000)};
        sim_link_init(&end->link, sim.cells[i].landing, sim.landing_bytes);
        ntbm_emu_init(&end->emu, &end->link.link, &slow, sim_clock, NULL, ntbm_random(&virt.random));
        CHECK(ntbm_node_add(&cell->node, i, &end->emu.link, &peer_ops, end, &end->peer) == 0, "add");
        end->owner = cell;
        end->is_open = false;
        end->taken_count = end->held_count = 0;
    }
    cell->is_running = true;
    trace("node %u starts", cell->idx);
}

static void fini_ends(struct cell *cell)
{
    for (uint32_t i = 0; i < virt.node_count; i++)
        if (i != cell->idx)
            ntbm_emu_fini(&cell->ends[i].emu);
    cell->is_running = false;
}

static void stop_cleanly(struct cell *cell)
{
    trace("node %u stops", cell->idx);
    for (uint32_t i = 0; i < virt.node_count; i++)
        if (i != cell->idx)
            give_all_back(&cell->ends[i]);
    ntbm_node_fini(&cell->node);
    fini_ends(cell);
}

/* The process is gone between two instructions: only its landing memory is left. */
static void crash(struct cell *cell)
{
    trace("node %u crashes", cell->idx);
    for (uint32_t i = 0; i < virt.node_count; i++) {
        if (i == cell->idx)
            continue;
        ntbm_mail_reset(&cell->ends[i].peer->mail); /* the memory, not the effect */
        free(cell->ends[i].peer);
    }
    free(cell->node.peers);
    fini_ends(cell);
    sim.crashes++;
}

/* Memory comes up from a reboot as zeros or as whatever it likes. */
static void reboot(struct cell *cell)
{
    crash(cell);
    cell->boot_id++;
    uint8_t *at = cell->landing, *end = at + sim.landing_bytes;
    if (chance(2))
        memset(at, 0, sim.landing_bytes);
    else
        for (; at < end; at += 8)
            memcpy(at, &(uint64_t){ntbm_random(&virt.random)}, 8);
}

/* ---- faults ---- */

static void disturb_machine(struct cell *cell)
{
    switch (pick(4)) {
    case 0:
        stop_cleanly(cell);
        break;
    case 1:
        crash(cell);
        break;
    case 2:
        reboot(cell);
        break;
    default:
        cell->stopped_until_ns = virt.now_ns + pick(3000) * MS;
        trace("node %u stands still", cell->idx);
    }
}

static void disturb_link(struct end *end)
{
    struct ntbm_emu_faults *faults = &end->emu.faults;
    *faults = (struct ntbm_emu_faults){0};
    switch (sim.gentle ? 4 + pick(4) : pick(8)) {
    case 0:
        faults->lost = true;
        break;
    case 1:
        faults->stuck = true;
        break;
    case 2:
        faults->all_ones = true;
        break;
    case 3:
        faults->drop_permille = 1 + pick(100);
        break;
    case 4:
        faults->reorder_ns = 1 + pick(20000000);
        break;
    default:
        break;
    }
}

/* A partition: all links between the two halves. */
static void disturb_many(void)
{
    uint32_t cut = pick(virt.node_count);
    bool lost = chance(2);
    trace(lost ? "the fabric is cut at node %u" : "the fabric is whole again at node %u", cut);
    for (uint32_t i = 0; i < virt.node_count; i++)
        for (uint32_t k = 0; sim.cells[i].is_running && k < virt.node_count; k++)
            if (i != k && (i < cut) != (k < cut))
                sim.cells[i].ends[k].emu.faults = (struct ntbm_emu_faults){.lost = lost};
}

static void disturb(void)
{
    struct cell *cell = &sim.cells[pick(virt.node_count)];
    uint32_t other = pick(virt.node_count);
    if (!cell->is_running) {
        if (chance(10))
            start(cell);
        return;
    }
    if (!sim.gentle && chance(200))
        disturb_machine(cell);
    if (chance(60) && other != cell->idx)
        disturb_link(&cell->ends[other]);
    if (!sim.gentle && chance(4000))
        disturb_many();
}

static void heal(void)
{
    trace("all faults end");
    sim.calm = true;
    for (uint32_t i = 0; i < virt.node_count; i++) {
        struct cell *cell = &sim.cells[i];
        if (!cell->is_running)
            start(cell);
        cell->stopped_until_ns = 0;
        for (uint32_t k = 0; k < virt.node_count; k++) {
            if (k == i)
                continue;
            cell->ends[k].emu.faults = (struct ntbm_emu_faults){0};
            give_all_back(&cell->ends[k]);
        }
    }
}

/* ---- time ---- */

static void step_machine(struct cell *cell)
{
    if (!cell->is_running || virt.now_ns < cell->stopped_until_ns)
        return;
    ntbm_node_poll(&cell->node, virt.now_ns);
    for (uint32_t i = 0; i < virt.node_count; i++) {
        struct end *end = &cell->ends[i];
        if (i == cell->idx || !end->is_open)
            continue;
        for (int n = 0; n < 3 && !sim.calm; n++)
            do_load(end);
        if (sim.calm) {
            hold_slot(end);
            release_slot(end);
        }
    }
}

static void step(void)
{
    virt.now_ns += 500000 + pick(4000000);
    if (!sim.calm)
        disturb();
    for (uint32_t i = 0; i < virt.node_count; i++)
        if (!chance(3))
            step_machine(&sim.cells[i]);
}

/* In one session, not one of them still in the last. */
static bool are_up(uint32_t i, uint32_t k)
{
    const struct end *one = &sim.cells[i].ends[k], *other = &sim.cells[k].ends[i];
    return one->is_open && other->is_open && one->peer->session.epoch == other->peer->session.peer_epoch &&
           other->peer->session.epoch == one->peer->session.peer_epoch;
}

static bool all_are_up(void)
{
    for (uint32_t i = 0; i < virt.node_count; i++)
        for (uint32_t k = 0; k < i; k++)
            if (!are_up(i, k))
                return false;
    return true;
}

static uint64_t remote_reads(void)
{
    uint64_t reads = 0;
    for (uint32_t i = 0; i < virt.node_count; i++)
        for (uint32_t k = 0; k < virt.node_count; k++)
            reads += i == k ? 0 : atomic_load(&sim.cells[i].ends[k].link.link.reads);
    return reads;
}

static void check_end(struct end *end)
{
    struct ntbm_slot_out out[NTBM_SLOTS_MAX];
    uint32_t count = end->peer->session.geo.slot_count;
    for (uint32_t i = 0; i < count; i++)
        CHECK(ntbm_peer_take(end->peer, &out[i]) == 0, "node %u has %u of %u slots of node %u",
              end->owner->idx, i, count, end->peer->node);
    for (uint32_t i = 0; i < count; i++)
        ntbm_slot_cancel(&out[i]);
}

static void check_all_well(void)
{
    /* A session that has already lost a put is ended within the limit, and only then comes up for good. */
    uint64_t deadline_ns = virt.now_ns + 10 * NTBM_LIMIT_NS, settled_ns = virt.now_ns + 2 * NTBM_LIMIT_NS;
    while (!all_are_up() || virt.now_ns < settled_ns) {
        CHECK(virt.now_ns < deadline_ns, "all are up within ten limits of the last fault");
        step();
    }
    uint64_t reads = remote_reads(), until_ns = virt.now_ns + 2 * NTBM_LIMIT_NS;
    while (virt.now_ns < until_ns)
        step();
    CHECK(all_are_up(), "and stay up");
    CHECK(remote_reads() == reads, "nobody reads across a link: %" PRIu64, remote_reads() - reads);
    for (uint32_t i = 0; i < virt.node_count; i++)
        for (uint32_t k = 0; k < virt.node_count; k++)
            if (i != k)
                check_end(&sim.cells[i].ends[k]);
}

/* ---- the program ---- */

static void init(void)
{
    sim.landing_bytes = ntbm_landing_min_bytes(virt.node_count);
    if (sim.landing_bytes < 65536)
        sim.landing_bytes = 65536;
    sim.cells = calloc(virt.node_count, sizeof(*sim.cells));
    for (uint32_t i = 0; i < virt.node_count; i++) {
        sim.cells[i].idx = i;
        sim.cells[i].ends = calloc(virt.node_count, sizeof(struct end));
        sim.cells[i].landing = aligned_alloc(4096, (sim.landing_bytes + 4095) & ~4095ull);
        memset(sim.cells[i].landing, 0, sim.landing_bytes);
    }
}

static void fini(void)
{
    sim.ending = true;
    for (uint32_t i = 0; i < virt.node_count; i++)
        stop_cleanly(&sim.cells[i]);
    for (uint32_t i = 0; i < virt.node_count; i++) {
        free(sim.cells[i].ends);
        free(sim.cells[i].landing);
    }
    free(sim.cells);
}

int main(int argc, char **argv)
{
    static const struct sim_flag flags[] = {{"--gentle", &sim.gentle}};
    virt.program = "sim_cluster";
    virt.flags = flags;
    virt.flag_count = 1;
    virt.node_max = 1000;
    virt.node_count = 6;
    virt.seconds = 60;
    sim_options(argc, argv);
    init();
    while (virt.now_ns < S + virt.seconds * S)
        step();
    heal();
    check_all_well();
    fini();
    printf("%" PRIu64 " sessions, %" PRIu64 " ended; %" PRIu64 " messages, %" PRIu64 " slots; %" PRIu64
           " crashes, %" PRIu64 " events\n",
           sim.sessions, sim.downs, sim.messages, sim.fillings, sim.crashes, sim.events);
    return 0;
}
