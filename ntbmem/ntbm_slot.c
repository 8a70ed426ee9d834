#include "ntbmem/ntbm_slot.h"

#include "ntbmem/ntbm_copy.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

static uint32_t word_offset(uint32_t slot_idx)
{
    return NTBM_WORDS_OFFSET + (uint32_t)offsetof(struct ntbm_words, slot) + 4 * slot_idx;
}

static uint32_t ack_offset(uint32_t slot_idx)
{
    return NTBM_WORDS_OFFSET + (uint32_t)offsetof(struct ntbm_words, slot_ack) + 4 * slot_idx;
}

void ntbm_slots_begin(struct ntbm_slots *slots, const struct ntbm_session *session)
{
    assert(!atomic_load(&slots->borrowed));
    for (uint32_t i = 0; i < NTBM_SLOTS_MAX; i++) {
        atomic_store(&slots->tx[i].state, NTBM_TX_FREE);
        atomic_store(&slots->rx[i].state, NTBM_RX_EMPTY);
        slots->tx[i].seq = slots->rx[i].seq = 0;
    }
    atomic_store(&slots->sent, 0);
    slots->seen = 0;
    slots->session = *session;
}

/* Is the slot free to be filled? 1, 0, or -EPROTO. */
static int tx_is_free(struct ntbm_slots *slots, uint32_t idx, struct ut_err *err)
{
    struct ntbm_slot_tx *tx = &slots->tx[idx];
    uint8_t state = atomic_load_explicit(&tx->state, memory_order_acquire); /* pairs with ntbm_slot_send */
    if (state != NTBM_TX_SENT)
        return state == NTBM_TX_FREE;
    uint32_t word = ntbm_session_word(&slots->session, ack_offset(idx));
    if (ntbm_session_ahead(&slots->session, word, (uint16_t)tx->seq) > 0)
        return ut_err_set(err, -EPROTO, "it freed slot %u %u times, it was sent %u times", idx, word & 0xffff,
                          tx->seq & 0xffff);
    return word == ntbm_word(slots->session.peer_epoch, (uint16_t)tx->seq);
}

int ntbm_slots_take(struct ntbm_slots *slots, struct ntbm_slot_out *out, struct ut_err *err)
{
    const struct ntbm_session *session = &slots->session;
    for (uint32_t i = 0; i < session->geo.slot_count; i++) {
        int rc = tx_is_free(slots, i, err);
        if (rc < 0)
            return rc;
        if (!rc)
            continue;
        atomic_store_explicit(&slots->tx[i].state, NTBM_TX_TAKEN, memory_order_relaxed);
        atomic_fetch_add_explicit(&slots->borrowed, 1, memory_order_relaxed);
        uint64_t data_offset = session->out + ntbm_slot_offset(&session->geo, i) + NTBM_LINE;
        *out = (struct ntbm_slot_out){.slots = slots,
                                      .idx = i,
                                      .max_bytes = session->geo.slot_bytes,
                                      .data = ntbm_link_stage(session->link, data_offset)};
        return 0;
    }
    return -EAGAIN;
}

/* The last thing done with a borrowed slot: the link may be detached as soon as it is counted. */
static void give_back(struct ntbm_slots *slots)
{
    atomic_fetch_sub_explicit(&slots->borrowed, 1, memory_order_release); /* pairs with ntbm_peer_poll */
}

void ntbm_slot_send(const struct ntbm_slot_out *out, uint32_t bytes, const void *user)
{
    assert(bytes <= out->max_bytes);
    struct ntbm_slots *slots = out->slots;
    const struct ntbm_session *session = &slots->session;
    struct ntbm_slot_tx *tx = &slots->tx[out->idx];
    struct ntbm_slot_header header = {.bytes = bytes};
    memcpy(header.user, user, sizeof(header.user));
    header.sum = ntbm_sum(&header, offsetof(struct ntbm_slot_header, sum));
    tx->seq++;
    /* Counted before it can be noticed, so that the peer never seems to have noticed too many. */
    atomic_fetch_add_explicit(&slots->sent, 1, memory_order_relaxed);
    ntbm_link_put(session->link,
                  &(struct ntbm_put){.offset = session->out + ntbm_slot_offset(&session->geo, out->idx),
                                     .bytes = &header,
                                     .len = sizeof(header),
                                     .staged_len = (bytes + NTBM_LINE - 1) & ~(NTBM_LINE - 1),
                                     .word_offset = session->out + word_offset(out->idx),
                                     .word = ntbm_word(session->epoch, (uint16_t)tx->seq)});
    atomic_store_explicit(&tx->state, NTBM_TX_SENT, memory_order_release); /* pairs with tx_is_free */
    give_back(slots);
}

void ntbm_slot_cancel(const struct ntbm_slot_out *out)
{
    atomic_store_explicit(&out->slots->tx[out->idx].state, NTBM_TX_FREE, memory_order_release);
    give_back(out->slots);
}

int ntbm_slots_look(struct ntbm_slots *slots, struct ut_err *err)
{
    int count = 0;
    const struct ntbm_session *session = &slots->session;
    for (uint32_t i = 0; i < session->geo.slot_count; i++) {
        struct ntbm_slot_rx *rx = &slots->rx[i];
        if (atomic_load_explicit(&rx->state, memory_order_acquire) != NTBM_RX_EMPTY) /* ntbm_slot_done */
            continue;
        uint32_t word = ntbm_session_word(session, word_offset(i));
        int ahead = ntbm_session_ahead(session, word, (uint16_t)rx->seq);
        if (!ahead)
            continue;
        if (ahead != 1)
            return ut_err_set(err, -EPROTO, "slot %u came with sequence %u where %u was due", i,
                              word & 0xffff, (rx->seq + 1) & 0xffff);
        rx->seq++;
        atomic_store_explicit(&rx->state, NTBM_RX_FULL, memory_order_relaxed);
        slots->seen++;
        count++;
    }
    return count;
}

int ntbm_slots_next(struct ntbm_slots *slots, struct ntbm_slot_in *in, struct ut_err *err)
{
    const struct ntbm_session *session = &slots->session;
    for (uint32_t i = 0; i < session->geo.slot_count; i++) {
        if (atomic_load_explicit(&slots->rx[i].state, memory_order_relaxed) != NTBM_RX_FULL)
            continue;
        struct ntbm_slot_header header; /* the peer may rewrite his while we look */
        const uint8_t *slot = session->in + ntbm_slot_offset(&session->geo, i);
        ntbm_copy_from_shared(&header, slot, sizeof(header));
        if (header.sum != ntbm_sum(&header, offsetof(struct ntbm_slot_header, sum)))
            return ut_err_set(err, -EPROTO, "the header of slot %u arrived damaged", i);
        if (header.bytes > session->geo.slot_bytes)
            return ut_err_set(err, -EPROTO, "slot %u claims %u bytes, it holds %u", i, header.bytes,
                              session->geo.slot_bytes);
        atomic_store_explicit(&slots->rx[i].state, NTBM_RX_HELD, memory_order_relaxed);
        atomic_fetch_add_explicit(&slots->borrowed, 1, memory_order_relaxed);
        *in =
            (struct ntbm_slot_in){.slots = slots, .idx = i, .bytes = header.bytes, .data = slot + NTBM_LINE};
        memcpy(in->user, header.user, sizeof(in->user));
        return 0;
    }
    return -EAGAIN;
}

void ntbm_slot_done(const struct ntbm_slot_in *in)
{
    struct ntbm_slots *slots = in->slots;
    struct ntbm_slot_rx *rx = &slots->rx[in->idx];
    uint16_t seq = (uint16_t)rx->seq;
    atomic_store_explicit(&rx->state, NTBM_RX_EMPTY, memory_order_release); /* pairs with ntbm_slots_look */
    ntbm_session_publish(&slots->session, ack_offset(in->idx), seq);
    give_back(slots);
}

void ntbm_slots_refresh(const struct ntbm_slots *slots)
{
    for (uint32_t i = 0; i < slots->session.geo.slot_count; i++) {
        const struct ntbm_slot_rx *rx = &slots->rx[i];
        uint8_t state = atomic_load_explicit(&rx->state, memory_order_acquire);
        if (rx->seq && state == NTBM_RX_EMPTY)
            ntbm_session_publish(&slots->session, ack_offset(i), (uint16_t)rx->seq);
    }
}
