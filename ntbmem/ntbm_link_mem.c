/*
 * A link over mapped memory. The peer's machine may take the memory away at any time (its file shortened, its
 * BAR gone), so every access runs under a guard, and the link is broken from then on.
 */
#include "ntbmem/ntbm_copy.h"
#include "ntbmem/ntbm_fence.h"
#include "ntbmem/ntbm_guard.h"
#include "ntbmem/ntbm_landing.h"
#include "ntbmem/ntbm_link.h"
#include "utils/ut_clock.h"
#include "utils/ut_list.h"

#define MEASURE_STEP_BYTES (64u << 10) /* more than the buffers on the way hold */
#define MEASURE_NS (2 * UT_NS_PER_MS)

static struct ntbm_mem_link *self_of(struct ntbm_link *link)
{
    return UT_CONTAINER(link, struct ntbm_mem_link, link);
}

static int attach(struct ntbm_link *link, struct ut_err *err)
{
    struct ntbm_mem_link *self = self_of(link);
    int rc = ntbm_mem_open(&self->uri, NTBM_WINDOW, 0, &self->mem, err);
    if (!rc)
        link->bytes = self->mem.bytes;
    return rc;
}

static void detach(struct ntbm_link *link)
{
    ntbm_mem_close(&self_of(link)->mem);
}

static void *stage(struct ntbm_link *link, uint64_t offset)
{
    return self_of(link)->mem.base + offset;
}

struct access {
    const struct ntbm_mem_link *self;
    const struct ntbm_put *put;
    uint64_t offset;
    void *out;
    uint32_t len;
};

static void do_put(void *arg)
{
    const struct access *access = arg;
    const struct ntbm_put *put = access->put;
    uint8_t *base = access->self->mem.base;
    ntbm_copy_to_shared(base + put->offset, put->bytes, put->len);
    if (put->word_offset == NTBM_NO_WORD)
        return;
    ntbm_fence_before_word();
    __atomic_store_n((uint32_t *)(base + put->word_offset), put->word, __ATOMIC_RELEASE);
    if (access->self->mem.mapping == NTBM_COMBINED)
        ntbm_fence_push_word();
}

/* No sound header holds a word of all ones. A dead device answers so, each load after a long wait, so the
 * first is the last. */
static void do_read(void *arg)
{
    const struct access *access = arg;
    const uint8_t *from = access->self->mem.base + access->offset;
    uint8_t *to = access->out;
    for (uint32_t at = 0; at < access->len; at += 8) {
        uint64_t word;
        ntbm_copy_from_shared(&word, from + at, 8);
        if (word == UINT64_MAX) {
            memset(to, 0xff, access->len);
            return;
        }
        memcpy(to + at, &word, 8);
    }
}

/* Goes over the range, step by step, until the time is up. The quickest step counts, since in others this
 * thread may have waited for the processor: `len` becomes its bytes, `offset` the nanoseconds it took. */
static void do_measure(void *arg)
{
    struct access *access = arg;
    uint8_t *base = access->self->mem.base + access->offset;
    uint32_t step = access->len < MEASURE_STEP_BYTES ? access->len : MEASURE_STEP_BYTES, at = 0;
    uint64_t begin = ut_clock_ns(), now = begin, best = UINT64_MAX;
    while (now - begin < MEASURE_NS) {
        uint64_t since = now;
        ntbm_clear_shared(base + at, step);
        ntbm_fence_before_word();
        now = ut_clock_ns();
        best = now - since < best ? now - since : best;
        at = access->len - at >= 2 * step ? at + step : 0;
    }
    access->len = step;
    access->offset = best;
}

static int run(struct ntbm_link *link, void (*fn)(void *arg), struct access *access)
{
    int rc = ntbm_guard_run(fn, access);
    if (rc)
        atomic_store_explicit(&link->broken, true, memory_order_relaxed);
    return rc;
}

static void put(struct ntbm_link *link, const struct ntbm_put *what)
{
    run(link, do_put, &(struct access){.self = self_of(link), .put = what});
}

static int read_peer(struct ntbm_link *link, uint64_t offset, void *out, uint32_t len)
{
    return run(link, do_read,
               &(struct access){.self = self_of(link), .offset = offset, .out = out, .len = len});
}

static uint64_t measure(struct ntbm_link *link, uint64_t offset, uint32_t len)
{
    struct access access = {.self = self_of(link), .offset = offset, .len = len};
    if (run(link, do_measure, &access) || !access.offset)
        return 0;
    return (uint64_t)access.len * UT_NS_PER_S / access.offset;
}

static const struct ntbm_link_ops ops = {.name = "memory",
                                         .attach = attach,
                                         .detach = detach,
                                         .stage = stage,
                                         .put = put,
                                         .read = read_peer,
                                         .measure = measure};

void ntbm_mem_link_init(struct ntbm_mem_link *self, const struct ntbm_uri *uri)
{
    *self = (struct ntbm_mem_link){.link = {.ops = &ops}, .uri = *uri, .mem = {.fd = -1}};
}
