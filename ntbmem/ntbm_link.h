/*
 * One direction to one peer: how this node's stores get into that peer's landing memory. The contract is the
 * narrow one that shared memory, a PCI window and a message network can all keep:
 *
 *  1. A put carries bytes and at most one 32-bit word; whoever sees the word sees the bytes.
 *  2. Two puts may arrive in either order, and a put may be lost without a trace. Nothing is acknowledged;
 *     delivered is what the peer acknowledges by a put of its own.
 *  3. Bytes go in whole lines of 64 to line-aligned offsets, in rising order, so that write-combining buffers
 *     leave the processor full. A word may lie inside the lines: the bytes then carry 0 there.
 *  4. Reading is for the greeting only and is counted: on a real link each read costs a round trip.
 *
 * A link is a table of operations over a transport; ntbm_emu.h wraps one in another to make it slow or bad.
 *
 * Threads: put and stage from any, several at once, for ranges that do not overlap; the thread that filled a
 * staged range puts it (its own stores are what its fence orders). The rest from the progress thread.
 */
#ifndef NTBM_LINK_H
#define NTBM_LINK_H

#include "ntbmem/ntbm_mem.h"
#include "utils/ut_err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ntbm_link;

#define NTBM_NO_WORD UINT64_MAX /* as word_offset: the put carries none */
#define NTBM_PUT_COPY 256u

struct ntbm_put {
    uint64_t offset;      /* in the peer's landing memory */
    const void *bytes;    /* go there; free again when put returns */
    uint32_t len;         /* of bytes, whole lines, at most NTBM_PUT_COPY; may be 0 */
    uint32_t staged_len;  /* behind them, whole lines, already written to ntbm_link_stage(offset + len) */
    uint64_t word_offset; /* multiple of 4, or NTBM_NO_WORD */
    uint32_t word;
};

struct ntbm_link_ops {
    const char *name;
    /* Connects to the peer's memory and stores its length in link->bytes. 0 or -errno with a sentence. */
    int (*attach)(struct ntbm_link *link, struct ut_err *err);
    /* Undoes attach; no put, stage or read is under way or follows. No earlier put arrives after it: a
     * transport that holds puts back drops them. (Real links have had a beat to drain, see ntbm_peer.h.) */
    void (*detach)(struct ntbm_link *link);
    /* Where to compose the bytes for that offset, up to a later put of them. Never NULL while attached. */
    void *(*stage)(struct ntbm_link *link, uint64_t offset);
    /* Does not fail and does not wait; trouble shows as link->broken or as silence. */
    void (*put)(struct ntbm_link *link, const struct ntbm_put *put);
    /* Copies out of the peer's memory; offset and len are multiples of 8. 0 or -errno. All of it is all ones
     * when a word of it is: the link is dead. */
    int (*read)(struct ntbm_link *link, uint64_t offset, void *out, uint32_t len);
    /* Stores zeros to the peer's memory, whole lines, for a moment, and returns the bytes a second; 0 when
     * they did not arrive anywhere. NULL when that would tell nothing. */
    uint64_t (*measure)(struct ntbm_link *link, uint64_t offset, uint32_t len);
    /* Lets time pass for an emulated link. NULL when it has no work of its own. */
    void (*poll)(struct ntbm_link *link, uint64_t now_ns);
};

struct ntbm_link {
    const struct ntbm_link_ops *ops;
    uint64_t bytes;                   /* of the peer's landing memory; 0 while not attached */
    atomic_bool broken;               /* the memory is gone (SIGBUS); cleared by attach */
    _Atomic uint64_t puts, put_bytes; /* figures since init */
    _Atomic uint64_t reads;           /* remote ones: none in steady state */
    uint64_t write_bytes_s;           /* as measured when it was attached first; 0: not yet */
};

/* The operations, as ntbm_link_ops describes them. */
int ntbm_link_attach(struct ntbm_link *link, struct ut_err *err);
void ntbm_link_detach(struct ntbm_link *link);
void *ntbm_link_stage(struct ntbm_link *link, uint64_t offset);
void ntbm_link_put(struct ntbm_link *link, const struct ntbm_put *put);
int ntbm_link_read(struct ntbm_link *link, uint64_t offset, void *out, uint32_t len);
void ntbm_link_poll(struct ntbm_link *link, uint64_t now_ns);

/* Finds out once how fast stores are, over `len` bytes (whole lines) at offset that nobody uses yet. Takes at
 * most about 2 ms. */
void ntbm_link_measure(struct ntbm_link *link, uint64_t offset, uint32_t len);

/* A link over mapped memory of any kind (ntbm_mem.h). */
struct ntbm_mem_link {
    struct ntbm_link link; /* first: the operations get it back from here */
    struct ntbm_uri uri;
    struct ntbm_mem mem;
};

/* Names the memory; attach opens it, so that a peer may come into being later. */
void ntbm_mem_link_init(struct ntbm_mem_link *self, const struct ntbm_uri *uri);

#endif
