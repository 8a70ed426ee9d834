/*
 * Bulk data between two nodes: a few slots in each one's landing memory for the other. Each slot goes its own
 * way round, so that data nobody wants yet hold up no other slot:
 *
 *   sender     FREE --take--> TAKEN --send--> SENT --acknowledged--> FREE
 *   receiver   EMPTY --its word arrives--> FULL --next--> HELD --done--> EMPTY
 *
 * A slot's sequence counts how often it was filled in this session. Its word says so to the receiver, after
 * the bytes; the receiver's word in the sender's memory says the same back when the slot is free again: that
 * word is the credit.
 *
 * A taken or held slot is *borrowed*: its memory stays mapped until it is given back, whatever becomes of the
 * session meanwhile. The peer does not start a new session before all are back.
 *
 * Threads: take, next and the rest from the progress thread; send, cancel and done from any, and the bytes
 * between may be worked on by any. The data of a taken slot are the peer's memory and may go away: touch them
 * under a guard (ntbm_guard.h), and call send outside of it.
 */
#ifndef NTBM_SLOT_H
#define NTBM_SLOT_H

#include "ntbmem/ntbm_session.h"

enum { NTBM_TX_FREE, NTBM_TX_TAKEN, NTBM_TX_SENT };
enum { NTBM_RX_EMPTY, NTBM_RX_FULL, NTBM_RX_HELD };

/* state is stored with release by whoever ends a step, and loaded with acquire by the progress thread, which
 * then owns the rest. */
struct ntbm_slot_tx {
    _Atomic uint8_t state; /* NTBM_TX_* */
    uint32_t seq;          /* how often it was sent in this session */
};

struct ntbm_slot_rx {
    _Atomic uint8_t state; /* NTBM_RX_* */
    uint32_t seq;          /* how often it was filled in this session; all but a held filling were freed */
};

struct ntbm_slots {
    struct ntbm_session session; /* as it began; a worker reads it even after it has ended */
    struct ntbm_slot_tx tx[NTBM_SLOTS_MAX];
    struct ntbm_slot_rx rx[NTBM_SLOTS_MAX];
    _Atomic uint32_t borrowed; /* taken or held by somebody */
    _Atomic uint32_t sent;     /* in this session */
    uint32_t seen;             /* slots of the peer's noticed in this session */
};

/* A slot of the peer's, to be filled. */
struct ntbm_slot_out {
    struct ntbm_slots *slots;
    uint32_t idx;
    uint32_t max_bytes;
    void *data; /* where to write: the peer's memory itself, maybe write-combining, never to be read */
};

/* A slot of ours that the peer has filled. */
struct ntbm_slot_in {
    struct ntbm_slots *slots;
    uint32_t idx;
    uint32_t bytes;                /* <= slot_bytes, checked */
    uint8_t user[NTBM_USER_BYTES]; /* a copy; what it says is for the layer above to check */
    const void *data; /* the peer may still scribble here: check what you took, not what is there */
};

/* Starts over for a session. Nothing may be borrowed. */
void ntbm_slots_begin(struct ntbm_slots *slots, const struct ntbm_session *session);

/* Borrows a free slot of the peer's. 0, -EAGAIN when all are in use, -EPROTO with a sentence when the peer
 * frees what was never sent. */
int ntbm_slots_take(struct ntbm_slots *slots, struct ntbm_slot_out *out, struct ut_err *err);

/* Sends bytes (0 .. max_bytes) of the slot, with the layer's own NTBM_USER_BYTES, and gives it back. To be
 * called by the thread that wrote the data. */
void ntbm_slot_send(const struct ntbm_slot_out *out, uint32_t bytes, const void *user);

/* Gives the slot back unsent. */
void ntbm_slot_cancel(const struct ntbm_slot_out *out);

/* Notices slots that have arrived. How many, or -EPROTO with a sentence when a word or header is nonsense. */
int ntbm_slots_look(struct ntbm_slots *slots, struct ut_err *err);

/* Borrows a slot that has arrived, in no particular order. 0, -EAGAIN when there is none, or -EPROTO with a
 * sentence when its header is nonsense. */
int ntbm_slots_next(struct ntbm_slots *slots, struct ntbm_slot_in *in, struct ut_err *err);

/* Gives the slot back: the peer may fill it again. */
void ntbm_slot_done(const struct ntbm_slot_in *in);

/* Publishes all credits again, in case some were lost or overtaken by older ones. */
void ntbm_slots_refresh(const struct ntbm_slots *slots);

#endif
