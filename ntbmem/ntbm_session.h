/*
 * One connection of two nodes, from the agreement on two epochs to the loss of either: all that messages
 * (ntbm_mail.h) and slots (ntbm_slot.h) need to know of it. Owned by the peer (ntbm_peer.h).
 */
#ifndef NTBM_SESSION_H
#define NTBM_SESSION_H

#include "ntbmem/ntbm_landing.h"
#include "ntbmem/ntbm_link.h"

struct ntbm_session {
    struct ntbm_link *link;
    struct ntbm_geometry geo;
    uint8_t *in;         /* the peer's area in our memory: he writes, we read */
    uint64_t out;        /* where our area begins in his memory: we put, he reads */
    uint32_t epoch;      /* ours; tags what we publish */
    uint32_t peer_epoch; /* his; tags what we believe. 0: none yet */
};

/* A word of the peer's area. Acquire: what was put before it is seen after it; pairs with ntbm_link_put. */
static inline uint32_t ntbm_session_word(const struct ntbm_session *session, uint32_t offset)
{
    return __atomic_load_n((const uint32_t *)(session->in + offset), __ATOMIC_ACQUIRE);
}

/* How far a word of the peer's is ahead of `from`, in sequences, -32768 to 32767: 0 when it carries a foreign
 * tag, for then it says nothing about this session. */
static inline int ntbm_session_ahead(const struct ntbm_session *session, uint32_t word, uint16_t from)
{
    return word >> 16 == ntbm_tag(session->peer_epoch) ? (int16_t)((uint16_t)word - from) : 0;
}

/* Publishes a word of ours, alone. */
static inline void ntbm_session_publish(const struct ntbm_session *session, uint32_t offset, uint16_t seq)
{
    ntbm_link_put(session->link, &(struct ntbm_put){.word_offset = session->out + offset,
                                                    .word = ntbm_word(session->epoch, seq)});
}

#endif
