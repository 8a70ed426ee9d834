/*
 * What a link over shared memory carries, between two processes, before any collective uses it:
 *
 *     bench_link [MiB to stream]
 *
 * The round trip of a control message and of an 8-byte slot (median and 99th percentile), and the stream of
 * full slots from one node into buffers of the other, beside what memcpy of the same buffers takes in one
 * process. Both processes spin: two processors should be free.
 */
#include "ntbmem/ntbm_guard.h"
#include "ntbmem/ntbm_node.h"
#include "utils/ut_clock.h"
#include "utils/ut_hist.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 20000u
#define BUFFER_BYTES (64ull << 20)

#define MUST(cond) ((cond) ? (void)0 : give_up(#cond, __LINE__))

struct side {
    uint32_t idx;
    struct ntbm_mem landing;
    struct ntbm_mem_link link;
    struct ntbm_node node;
    struct ntbm_peer *peer;
    unsigned messages, taken; /* delivered; and received by this program */
    uint8_t *buffer;
};

static pid_t parent;

__attribute__((noreturn)) static void give_up(const char *cond, int line)
{
    fprintf(stderr, "bench_link.c:%d: not true: %s\n", line, cond);
    exit(1);
}

static void on_up(void *ctx, struct ntbm_peer *peer)
{
    (void)ctx, (void)peer;
}

static void on_down(void *ctx, struct ntbm_peer *peer, const char *reason)
{
    (void)ctx, (void)peer, (void)reason;
}

static void on_message(void *ctx, struct ntbm_peer *peer, const uint8_t *bytes, uint32_t len)
{
    (void)peer, (void)bytes, (void)len;
    ((struct side *)ctx)->messages++;
}

static void on_event(void *ctx, struct ntbm_peer *peer, const char *text)
{
    (void)ctx, (void)peer;
    fprintf(stderr, "%s\n", text);
}

static const struct ntbm_peer_ops ops = {
    .on_up = on_up, .on_down = on_down, .on_message = on_message, .on_event = on_event};

static struct ntbm_uri uri_of(uint32_t idx)
{
    char text[64];
    struct ntbm_uri uri;
    snprintf(text, sizeof(text), "shm:fabricfs-bench-%d-%u", parent, idx);
    MUST(ntbm_uri_parse(text, &uri, NULL) == 0);
    return uri;
}

static void poll_side(struct side *side)
{
    ntbm_node_poll(&side->node, ut_clock_ns());
}

static void start(struct side *side)
{
    char host[32];
    struct ntbm_node_attr attr = {.fabric = "bench", .node = side->idx, .node_count = 2};
    struct ntbm_uri own = uri_of(side->idx), other = uri_of(1 - side->idx);
    MUST(ntbm_guard_init() == 0);
    MUST(ntbm_mem_open(&own, NTBM_LANDING, ntbm_landing_default_bytes(2), &side->landing, NULL) == 0);
    MUST(ntbm_node_identify(&attr, host) == 0);
    attr.landing = side->landing.base;
    attr.landing_bytes = side->landing.bytes;
    MUST(ntbm_node_init(&side->node, &attr, NULL) == 0);
    ntbm_mem_link_init(&side->link, &other);
    MUST(ntbm_node_add(&side->node, 1 - side->idx, &side->link.link, &ops, side, &side->peer) == 0);
    side->buffer = malloc(BUFFER_BYTES);
    MUST(side->buffer);
    memset(side->buffer, (int)side->idx, BUFFER_BYTES);
    while (!ntbm_peer_is_open(side->peer))
        poll_side(side);
}

static void stop(struct side *side)
{
    ntbm_node_fini(&side->node);
    ntbm_mem_remove(&side->landing);
    free(side->buffer);
}

/* ---- the three movements ---- */

static void send_message(struct side *side)
{
    MUST(ntbm_peer_send(side->peer, "ping", 4) == 0);
    poll_side(side);
}

static void receive_message(struct side *side)
{
    while (side->messages == side->taken)
        poll_side(side);
    side->taken++;
}

static void send_slot(struct side *side, const void *bytes, uint32_t len)
{
    struct ntbm_slot_out out;
    int rc;
    while ((rc = ntbm_peer_take(side->peer, &out)) == -EAGAIN)
        poll_side(side);
    MUST(rc == 0);
    memcpy(out.data, bytes, len);
    ntbm_slot_send(&out, len, (uint8_t[NTBM_USER_BYTES]){0});
}

static void receive_slot(struct side *side, void *bytes)
{
    struct ntbm_slot_in in;
    int rc;
    while ((rc = ntbm_peer_next(side->peer, &in)) == -EAGAIN)
        poll_side(side);
    MUST(rc == 0);
    memcpy(bytes, in.data, in.bytes);
    ntbm_slot_done(&in);
}

/* ---- both sides of each measurement ---- */

static void round_trips(struct side *side, const char *name, bool by_message)
{
    struct ut_hist hist = {0};
    uint64_t word = 0;
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t begin_ns = ut_clock_ns();
        for (uint32_t turn = 0; turn < 2; turn++) {
            bool sends = turn == side->idx;
            if (by_message)
                (sends ? send_message : receive_message)(side);
            else if (sends)
                send_slot(side, &word, sizeof(word));
            else
                receive_slot(side, &word);
        }
        ut_hist_add(&hist, ut_clock_ns() - begin_ns);
    }
    if (side->idx == 0)
        printf("%-28s p50 %8.2f us   p99 %8.2f us\n", name, (double)ut_hist_permille(&hist, 500) / 1e3,
               (double)ut_hist_permille(&hist, 990) / 1e3);
}

static double gb_per_s(uint64_t bytes, uint64_t begin_ns)
{
    return (double)bytes / (double)(ut_clock_ns() - begin_ns);
}

static void stream(struct side *side, uint64_t bytes)
{
    uint32_t len = side->peer->session.geo.slot_bytes;
    uint64_t begin_ns = ut_clock_ns(), at = 0;
    for (uint64_t left = bytes; left >= len; left -= len) {
        at = at + 2 * (uint64_t)len > BUFFER_BYTES ? 0 : at + len;
        if (side->idx == 0)
            send_slot(side, side->buffer + at, len);
        else
            receive_slot(side, side->buffer + at);
    }
    if (side->idx == 1)
        send_message(side); /* all is there */
    else
        receive_message(side);
    if (side->idx == 0)
        printf("%-28s %8.2f GB/s in slots of %u bytes\n", "stream", gb_per_s(bytes, begin_ns), len);
}

static void copy_in_one_process(const struct side *side, uint64_t bytes)
{
    const uint64_t half = BUFFER_BYTES / 2;
    uint64_t begin_ns = ut_clock_ns();
    for (uint64_t left = bytes; left >= half; left -= half)
        memcpy(side->buffer, side->buffer + half, half);
    printf("%-28s %8.2f GB/s\n", "memcpy, one process", gb_per_s(bytes, begin_ns));
}

static void run(uint32_t idx, uint64_t bytes)
{
    static struct side side;
    side.idx = idx;
    start(&side);
    round_trips(&side, "control message, both ways", true);
    round_trips(&side, "8-byte slot, both ways", false);
    stream(&side, bytes);
    if (idx == 0)
        copy_in_one_process(&side, bytes);
    fflush(stdout);
    stop(&side);
}

int main(int argc, char **argv)
{
    uint64_t mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 1024;
    int status;
    parent = getpid();
    pid_t pid = fork();
    MUST(pid >= 0);
    run(pid ? 0 : 1, mib << 20);
    if (!pid)
        _exit(0);
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    return 0;
}
