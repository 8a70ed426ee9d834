/*
 * A bad or slow link, made of a good one: limits bandwidth, adds latency, and does what real links do to
 * those who trust them. It stands between a peer and its real link and keeps the contract of ntbm_link.h, no
 * more.
 *
 * The bytes of a staged put are in the peer's memory as soon as they are written; what takes time, gets lost
 * or overtakes is the word, and until the word is there nobody may look at the bytes. Small puts are kept
 * whole. So an emulated link costs no second copy of the data.
 *
 * Threads: as ntbm_link.h; one mutex guards the queue.
 */
#ifndef NTBM_EMU_H
#define NTBM_EMU_H

#include "ntbmem/ntbm_link.h"

#include <pthread.h>

struct ntbm_emu_attr {
    uint64_t bandwidth; /* bytes a second; 0: unlimited */
    uint64_t latency_ns;
};

/* Faults, for tests. All zero: none. May be changed between polls. */
struct ntbm_emu_faults {
    bool lost;              /* the link is down: puts vanish, reads give all ones, as if the cable were out */
    bool stuck;             /* the peer stands still: puts wait until it does no more */
    bool all_ones;          /* reads give all ones, puts work */
    uint32_t drop_permille; /* so many puts vanish */
    uint32_t flip_permille; /* so many puts of data arrive with one bit changed */
    uint32_t garble_permille; /* so do so many hellos, messages and headers of slots */
    uint64_t reorder_ns;      /* each put is late by a random time up to this, so that puts overtake */
};

struct ntbm_emu_entry;

struct ntbm_emu {
    struct ntbm_link link; /* first */
    struct ntbm_link *inner;
    struct ntbm_emu_attr attr;
    struct ntbm_emu_faults faults;
    uint64_t (*now)(void *ctx); /* the clock, nanoseconds */
    void *ctx;
    uint64_t random;      /* state of the fault generator: the same seed does the same */
    pthread_mutex_t lock; /* guards all below; held over no call but the inner put */
    uint64_t busy_until_ns;
    struct ntbm_emu_entry *queue;
    uint32_t queue_len, queue_cap;
    uint64_t next_order;
};

/* Wraps inner, which must outlive the wrapper. seed is for the faults. */
void ntbm_emu_init(struct ntbm_emu *emu, struct ntbm_link *inner, const struct ntbm_emu_attr *attr,
                   uint64_t (*now)(void *ctx), void *ctx, uint64_t seed);
void ntbm_emu_fini(struct ntbm_emu *emu);

/* Faults as words, separated by blanks or newlines: "none", or some of "lost stuck ones drop=N flip=N
 * garble=N reorder=N". What is not named is off. 0, or -EINVAL with a sentence. */
int ntbm_emu_faults_parse(const char *text, size_t len, struct ntbm_emu_faults *out, struct ut_err *err);

/* The same words, at most 128 bytes with the NUL. */
void ntbm_emu_faults_show(const struct ntbm_emu_faults *faults, char *out, size_t len);

/* When the next queued put is due (nanoseconds), UINT64_MAX when none is. */
uint64_t ntbm_emu_due_ns(struct ntbm_emu *emu);

#endif
