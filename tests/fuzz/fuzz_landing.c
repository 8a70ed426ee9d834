/*
 * Garbage in the landing memory of a running pair of nodes. The input is a program: each step lets time pass,
 * moves messages and slots, or writes into either node's memory, at random or aimed: a word with the right
 * tag, a hello with the right sum. Whatever was written, nobody crashes, nothing is delivered that is too
 * long, and once the writing ends the pair comes up again by itself.
 */
#include "tests/fuzz/fuzz.h"
#include "tests/sim/sim_pair.h"

#define LANDING_BYTES 16384u
#define HELD_MAX 3

struct program {
    const uint8_t *at, *end;
    struct sim_pair pair;
    struct ntbm_slot_in held[2][HELD_MAX];
    unsigned held_count[2];
};

static uint32_t take_bytes(struct program *program, unsigned count)
{
    uint32_t value = 0;
    while (count-- && program->at < program->end)
        value = value << 8 | *program->at++;
    return value;
}

static void write_raw(struct program *program, struct sim_side *side)
{
    uint32_t offset = take_bytes(program, 2) % LANDING_BYTES, len = take_bytes(program, 1);
    for (; len && offset < LANDING_BYTES; len--)
        side->landing[offset++] = (uint8_t)take_bytes(program, 1);
}

/* A word anywhere in the area, as the peer might have published it: or nearly. */
static void write_word(struct program *program, struct sim_side *side)
{
    const struct ntbm_session *session = &side->peer->session;
    uint32_t offset = take_bytes(program, 2) % session->geo.area_bytes & ~3u;
    uint32_t word = ntbm_word(session->peer_epoch, (uint16_t)take_bytes(program, 2));
    memcpy(session->in + offset, &word, sizeof(word));
}

/* A cell with the sequence that is due and with whatever else. */
static void write_cell(struct program *program, struct sim_side *side)
{
    const struct ntbm_session *session = &side->peer->session;
    uint16_t seq = side->peer->mail.received;
    struct ntbm_cell cell = {.word = ntbm_word(session->peer_epoch, seq),
                             .bytes = (uint16_t)take_bytes(program, 1),
                             .flags = (uint16_t)take_bytes(program, 1)};
    if (cell.bytes <= NTBM_CELL_BYTES)
        cell.sum = ntbm_cell_sum(&cell);
    memcpy(session->in + ntbm_cell_offset(seq & (session->geo.cell_count - 1)), &cell, sizeof(cell));
}

/* The peer's hello with some bytes changed and the sum put right. */
static void write_hello(struct program *program, struct sim_side *side)
{
    struct ntbm_hello hello;
    uint8_t *in = side->peer->session.in;
    memcpy(&hello, in, sizeof(hello));
    uint32_t offset = take_bytes(program, 1) % sizeof(hello), len = take_bytes(program, 1) % 9;
    for (; len && offset < sizeof(hello); len--)
        ((uint8_t *)&hello)[offset++] ^= (uint8_t)take_bytes(program, 1);
    hello.beat++;
    hello.sum = ntbm_sum(&hello, offsetof(struct ntbm_hello, sum));
    memcpy(in, &hello, sizeof(hello));
    memcpy(in + NTBM_WORDS_OFFSET, &hello.beat, sizeof(hello.beat));
}

static void send(struct program *program, struct sim_side *side)
{
    uint8_t bytes[NTBM_MSG_BYTES] = {0};
    struct ntbm_slot_out out;
    ntbm_peer_send(side->peer, bytes, take_bytes(program, 2) % (sizeof(bytes) + 2));
    if (ntbm_peer_take(side->peer, &out) == 0)
        ntbm_slot_send(&out, take_bytes(program, 2) % (out.max_bytes + 1), bytes);
}

static void receive(struct program *program, unsigned idx)
{
    struct sim_side *side = &program->pair.side[idx];
    struct ntbm_slot_in *in = &program->held[idx][program->held_count[idx]];
    if (program->held_count[idx] == HELD_MAX || ntbm_peer_next(side->peer, in))
        return;
    fuzz_must(in->bytes <= side->peer->session.geo.slot_bytes);
    program->held_count[idx]++;
}

static void release(struct program *program, unsigned idx)
{
    if (program->held_count[idx])
        ntbm_slot_done(&program->held[idx][--program->held_count[idx]]);
}

static void step(struct program *program)
{
    uint32_t what = take_bytes(program, 1);
    unsigned idx = what & 1;
    struct sim_side *side = &program->pair.side[idx];
    switch (what >> 1 & 7) {
    case 0:
        write_raw(program, side);
        break;
    case 1:
        write_word(program, side);
        break;
    case 2:
        write_cell(program, side);
        break;
    case 3:
        write_hello(program, side);
        break;
    case 4:
        send(program, side);
        break;
    case 5:
        receive(program, idx);
        break;
    case 6:
        release(program, idx);
        break;
    default:
        sim_pair_run(&program->pair, 1 + take_bytes(program, 1));
    }
}

/* Two daemons that seem to claim one number are kept out for ten limits, by one side after the other. */
static void must_come_up(struct program *program)
{
    for (unsigned idx = 0; idx < 2; idx++)
        while (program->held_count[idx])
            release(program, idx);
    sim_pair_run(&program->pair, 1500); /* what was lost or is nonsense has ended its session by then */
    for (unsigned tries = 0; !sim_pair_is_up(&program->pair); tries++) {
        fuzz_must(tries < 5000);
        sim_pair_run(&program->pair, 5);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct program program;
    program = (struct program){.at = data, .end = data + (size < 600 ? size : 600)};
    sim_pair_init(&program.pair, LANDING_BYTES);
    sim_pair_restart(&program.pair, 0, 1000);
    sim_pair_restart(&program.pair, 1, 2000);
    sim_pair_run(&program.pair, 100);
    fuzz_must(sim_pair_is_up(&program.pair));
    while (program.at < program.end)
        step(&program);
    must_come_up(&program);
    sim_pair_fini(&program.pair);
    return 0;
}
