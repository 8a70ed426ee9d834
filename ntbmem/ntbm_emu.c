#include "ntbmem/ntbm_emu.h"

#include "ntbmem/ntbm_guard.h"
#include "ntbmem/ntbm_random.h"
#include "utils/ut_list.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ntbm_emu_entry {
    struct ntbm_put put; /* bytes is not used: they are in copy */
    uint64_t due_ns, order;
    uint8_t copy[NTBM_PUT_COPY];
};

static struct ntbm_emu *emu_of(struct ntbm_link *link)
{
    return UT_CONTAINER(link, struct ntbm_emu, link);
}

static bool happens(struct ntbm_emu *emu, uint32_t permille)
{
    return permille && ntbm_random(&emu->random) % 1000 < permille;
}

/* The link is busy with one put after the other; then each travels for the latency, and maybe longer. */
static uint64_t due_of(struct ntbm_emu *emu, const struct ntbm_put *put)
{
    uint64_t now_ns = emu->now(emu->ctx), len = (uint64_t)put->len + put->staged_len + 4;
    if (emu->busy_until_ns < now_ns)
        emu->busy_until_ns = now_ns;
    if (emu->attr.bandwidth)
        emu->busy_until_ns += len * 1000000000ull / emu->attr.bandwidth;
    uint64_t late_ns = emu->faults.reorder_ns ? ntbm_random(&emu->random) % emu->faults.reorder_ns : 0;
    return emu->busy_until_ns + emu->attr.latency_ns + late_ns;
}

/* No memory for the queue is one more way to lose a put. Lock held. */
static void enqueue(struct ntbm_emu *emu, const struct ntbm_put *put, uint64_t due_ns)
{
    if (emu->queue_len == emu->queue_cap) {
        uint32_t cap = emu->queue_cap ? 2 * emu->queue_cap : 64;
        struct ntbm_emu_entry *queue = realloc(emu->queue, cap * sizeof(*queue));
        if (!queue)
            return;
        emu->queue = queue;
        emu->queue_cap = cap;
    }
    struct ntbm_emu_entry *entry = &emu->queue[emu->queue_len++];
    entry->put = *put;
    entry->due_ns = due_ns;
    entry->order = emu->next_order++;
    if (put->len)
        memcpy(entry->copy, put->bytes, put->len);
}

struct flip {
    uint8_t *at, mask;
};

static struct flip choose_bit(struct ntbm_emu *emu, uint8_t *bytes, uint32_t len)
{
    uint64_t bit = ntbm_random(&emu->random) % (len * 8ull);
    return (struct flip){.at = bytes + bit / 8, .mask = (uint8_t)(1u << bit % 8)};
}

static void flip_bit(void *arg)
{
    const struct flip *flip = arg;
    *flip->at ^= flip->mask;
}

/* Damages the put; `copy` is for its bytes, which are not ours. Staged ones are in the peer's memory, which
 * may be gone: the put finds that out. */
static void damage(struct ntbm_emu *emu, struct ntbm_put *put, uint8_t copy[NTBM_PUT_COPY])
{
    struct flip flip;
    if (put->staged_len && happens(emu, emu->faults.flip_permille)) {
        flip = choose_bit(emu, ntbm_link_stage(emu->inner, put->offset + put->len), put->staged_len);
        ntbm_guard_run(flip_bit, &flip);
    }
    if (!put->len || !happens(emu, emu->faults.garble_permille))
        return;
    memcpy(copy, put->bytes, put->len);
    flip = choose_bit(emu, copy, put->len);
    flip_bit(&flip);
    put->bytes = copy;
}

static void put(struct ntbm_link *link, const struct ntbm_put *asked)
{
    struct ntbm_emu *emu = emu_of(link);
    struct ntbm_put what = *asked;
    uint8_t copy[NTBM_PUT_COPY];
    pthread_mutex_lock(&emu->lock);
    damage(emu, &what, copy);
    if (!emu->faults.lost && !happens(emu, emu->faults.drop_permille)) {
        uint64_t due_ns = due_of(emu, &what);
        if (!emu->queue_len && !emu->faults.stuck && due_ns <= emu->now(emu->ctx))
            ntbm_link_put(emu->inner, &what);
        else
            enqueue(emu, &what, due_ns);
    }
    pthread_mutex_unlock(&emu->lock);
}

/* The queued put that arrives next, or NULL. */
static struct ntbm_emu_entry *earliest(struct ntbm_emu *emu)
{
    struct ntbm_emu_entry *best = NULL;
    for (uint32_t i = 0; i < emu->queue_len; i++) {
        struct ntbm_emu_entry *it = &emu->queue[i];
        if (!best || it->due_ns < best->due_ns || (it->due_ns == best->due_ns && it->order < best->order))
            best = it;
    }
    return best;
}

static void poll_emu(struct ntbm_link *link, uint64_t now_ns)
{
    struct ntbm_emu *emu = emu_of(link);
    struct ntbm_emu_entry *entry;
    pthread_mutex_lock(&emu->lock);
    if (emu->faults.lost)
        emu->queue_len = 0;
    while (!emu->faults.stuck && (entry = earliest(emu)) && entry->due_ns <= now_ns) {
        entry->put.bytes = entry->copy;
        ntbm_link_put(emu->inner, &entry->put);
        *entry = emu->queue[--emu->queue_len];
    }
    pthread_mutex_unlock(&emu->lock);
    if (atomic_load_explicit(&emu->inner->broken, memory_order_relaxed))
        atomic_store_explicit(&link->broken, true, memory_order_relaxed);
}

uint64_t ntbm_emu_due_ns(struct ntbm_emu *emu)
{
    pthread_mutex_lock(&emu->lock);
    const struct ntbm_emu_entry *entry = earliest(emu);
    uint64_t due_ns = entry ? entry->due_ns : UINT64_MAX;
    pthread_mutex_unlock(&emu->lock);
    return due_ns;
}

static int attach(struct ntbm_link *link, struct ut_err *err)
{
    struct ntbm_emu *emu = emu_of(link);
    int rc = ntbm_link_attach(emu->inner, err);
    if (!rc)
        link->bytes = emu->inner->bytes;
    return rc;
}

static void detach(struct ntbm_link *link)
{
    struct ntbm_emu *emu = emu_of(link);
    pthread_mutex_lock(&emu->lock);
    emu->queue_len = 0;
    pthread_mutex_unlock(&emu->lock);
    ntbm_link_detach(emu->inner);
}

static void *stage(struct ntbm_link *link, uint64_t offset)
{
    return ntbm_link_stage(emu_of(link)->inner, offset);
}

static int read_peer(struct ntbm_link *link, uint64_t offset, void *out, uint32_t len)
{
    struct ntbm_emu *emu = emu_of(link);
    if (!emu->faults.lost && !emu->faults.all_ones)
        return ntbm_link_read(emu->inner, offset, out, len);
    memset(out, 0xff, len);
    return 0;
}

static const struct ntbm_link_ops ops = {.name = "emulated",
                                         .attach = attach,
                                         .detach = detach,
                                         .stage = stage,
                                         .put = put,
                                         .read = read_peer,
                                         .poll = poll_emu};

void ntbm_emu_init(struct ntbm_emu *emu, struct ntbm_link *inner, const struct ntbm_emu_attr *attr,
                   uint64_t (*now)(void *ctx), void *ctx, uint64_t seed)
{
    *emu = (struct ntbm_emu){
        .link = {.ops = &ops}, .inner = inner, .attr = *attr, .now = now, .ctx = ctx, .random = seed};
    pthread_mutex_init(&emu->lock, NULL);
}

void ntbm_emu_fini(struct ntbm_emu *emu)
{
    free(emu->queue);
    pthread_mutex_destroy(&emu->lock);
}
