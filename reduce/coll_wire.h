/*
 * Control messages between the daemons of two nodes, as bytes: little-endian, fixed width, type first. They
 * travel through ntbm_mail.h, which keeps their order.
 *
 *   JOB       this node's part in a job: configuration, owner, ranks, numbers, who is dropped; states all
 *   ASK       a rank asks for an operation
 *   WITHDRAW  its wait was interrupted
 *   FAIL      an operation has failed
 *   READY     this node has started an operation (ring.h)
 *   DONE      it has done its part of it
 *   PART      its partial sum of a small one
 *   TURN      an operation's place in the order across tags (coll_turn.c)
 *   SEEK      a node has gone silent here: does anybody hear it? (coll_witness.h)
 *   HEARS     yes
 *
 * Reading never goes beyond the message: a cursor that runs out remembers it, and gives zeros.
 *
 * Threads: any; a cursor belongs to its owner.
 */
#ifndef COLL_WIRE_H
#define COLL_WIRE_H

#include "ntbmem/ntbm_mail.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum coll_wire_type {
    COLL_WIRE_JOB = 1,
    COLL_WIRE_ASK,
    COLL_WIRE_WITHDRAW,
    COLL_WIRE_FAIL,
    COLL_WIRE_READY,
    COLL_WIRE_DONE,
    COLL_WIRE_PART,
    COLL_WIRE_TURN,
    COLL_WIRE_SEEK,
    COLL_WIRE_HEARS
};

struct coll_out {
    uint8_t bytes[NTBM_MSG_BYTES];
    uint32_t len;
    bool full; /* something did not fit */
};

struct coll_in {
    const uint8_t *at, *end;
    bool short_; /* something was read beyond the end */
};

/* Appends the low `size` bytes of value. */
void coll_put(struct coll_out *out, uint64_t value, unsigned size);

/* Appends a text of at most 255 bytes with its length. */
void coll_put_text(struct coll_out *out, const char *text);

/* Appends len bytes as they are. */
void coll_put_bytes(struct coll_out *out, const void *bytes, uint32_t len);

/* Reads what coll_put appended; 0 beyond the end, which in->short_ remembers. */
uint64_t coll_get(struct coll_in *in, unsigned size);

/* Reads a text into out, cut to size with its NUL. Bytes that are no printable ASCII become '?'. */
void coll_get_text(struct coll_in *in, char *out, size_t size);

#endif
