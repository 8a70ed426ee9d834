#include "ntbmem/ntbm_mail.h"

#include "ntbmem/ntbm_copy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct message {
    struct ut_list in_outbox;
    uint32_t len, in_cells; /* bytes; how many of them are in cells already */
    uint8_t bytes[];
};

#define CELL_ACK_OFFSET (NTBM_WORDS_OFFSET + (uint32_t)offsetof(struct ntbm_words, cell_ack))

void ntbm_mail_init(struct ntbm_mail *mail)
{
    *mail = (struct ntbm_mail){0};
    ut_list_init(&mail->outbox);
}

static void drop(struct ntbm_mail *mail, struct message *message)
{
    ut_list_remove(&message->in_outbox);
    mail->outbox_bytes -= message->len;
    free(message);
}

uint32_t ntbm_mail_reset(struct ntbm_mail *mail)
{
    uint32_t count = 0;
    UT_LIST_EACH(&mail->outbox, struct message, in_outbox, message)
    {
        drop(mail, message);
        count++;
    }
    mail->sent = mail->acked = mail->received = 0;
    mail->waiting_ns = 0;
    mail->part_bytes = 0;
    return count;
}

int ntbm_mail_send(struct ntbm_mail *mail, const void *bytes, uint32_t len)
{
    if (!len || len > NTBM_MSG_BYTES)
        return -EMSGSIZE;
    if (mail->outbox_bytes + len > NTBM_OUTBOX_BYTES)
        return -EAGAIN;
    struct message *message = malloc(sizeof(*message) + len);
    if (!message)
        return -ENOMEM;
    message->len = len;
    message->in_cells = 0;
    memcpy(message->bytes, bytes, len);
    ut_list_init(&message->in_outbox);
    ut_list_append(&mail->outbox, &message->in_outbox);
    mail->outbox_bytes += len;
    return 0;
}

static uint16_t in_flight(const struct ntbm_mail *mail)
{
    return (uint16_t)(mail->sent - mail->acked);
}

static int take_ack(struct ntbm_mail *mail, const struct ntbm_session *session, uint64_t now_ns,
                    struct ut_err *err)
{
    uint32_t word = ntbm_session_word(session, CELL_ACK_OFFSET);
    int ahead = ntbm_session_ahead(session, word, mail->acked);
    if (ahead > in_flight(mail))
        return ut_err_set(err, -EPROTO, "it acknowledged %d cells of messages, %u are under way", ahead,
                          in_flight(mail));
    if (ahead <= 0) /* nothing new, or an older one that was overtaken */
        return 0;
    mail->acked = (uint16_t)(mail->acked + ahead);
    mail->waiting_ns = in_flight(mail) ? now_ns : 0;
    return 0;
}

static void put_cell(struct ntbm_mail *mail, const struct ntbm_session *session, struct message *message)
{
    uint32_t left = message->len - message->in_cells;
    struct ntbm_cell cell = {.bytes = (uint16_t)(left < NTBM_CELL_BYTES ? left : NTBM_CELL_BYTES),
                             .flags = left <= NTBM_CELL_BYTES ? NTBM_CELL_LAST : 0};
    memcpy(cell.payload, message->bytes + message->in_cells, cell.bytes);
    cell.sum = ntbm_cell_sum(&cell);
    uint64_t at = session->out + ntbm_cell_offset(mail->sent & (session->geo.cell_count - 1));
    ntbm_link_put(session->link, &(struct ntbm_put){.offset = at,
                                                    .bytes = &cell,
                                                    .len = sizeof(cell),
                                                    .word_offset = at + offsetof(struct ntbm_cell, word),
                                                    .word = ntbm_word(session->epoch, mail->sent)});
    mail->sent++;
    message->in_cells += cell.bytes;
}

int ntbm_mail_push(struct ntbm_mail *mail, const struct ntbm_session *session, uint64_t now_ns,
                   struct ut_err *err)
{
    int count = 0, rc = take_ack(mail, session, now_ns, err);
    if (rc)
        return rc;
    while (!ut_list_empty(&mail->outbox) && in_flight(mail) < session->geo.cell_count) {
        struct message *first = UT_CONTAINER(mail->outbox.next, struct message, in_outbox);
        if (!in_flight(mail))
            mail->waiting_ns = now_ns;
        put_cell(mail, session, first);
        count++;
        if (first->in_cells == first->len) {
            drop(mail, first);
            mail->messages_sent++;
        }
    }
    return count;
}

/* True when the next cell has arrived; -EPROTO when there is one that the peer cannot have meant. */
static int cell_is_there(const struct ntbm_mail *mail, const struct ntbm_session *session, uint32_t offset,
                         struct ut_err *err)
{
    uint32_t word = ntbm_session_word(session, offset);
    if (word == ntbm_word(session->peer_epoch, mail->received))
        return 1;
    int ahead = ntbm_session_ahead(session, word, mail->received);
    if (ahead == 0 || ahead == -(int)session->geo.cell_count) /* foreign, or the lap before */
        return 0;
    return ut_err_set(err, -EPROTO, "cell %u of its messages came where %u was due", word & 0xffff,
                      mail->received);
}

/* Adds a cell, already copied out of the peer's reach, to the message that is being put together. */
static int add_cell(struct ntbm_mail *mail, const struct ntbm_cell *cell, struct ut_err *err)
{
    bool is_last = cell->flags & NTBM_CELL_LAST;
    if (cell->flags & ~NTBM_CELL_LAST)
        return ut_err_set(err, -EPROTO, "a cell of its messages has unknown flags %#x", cell->flags);
    if (!cell->bytes || cell->bytes > NTBM_CELL_BYTES || (!is_last && cell->bytes < NTBM_CELL_BYTES))
        return ut_err_set(err, -EPROTO, "a cell of its messages claims %u bytes", cell->bytes);
    if (cell->sum != ntbm_cell_sum(cell))
        return ut_err_set(err, -EPROTO, "cell %u of its messages arrived damaged", mail->received);
    if (mail->part_bytes + cell->bytes > NTBM_MSG_BYTES)
        return ut_err_set(err, -EPROTO, "one of its messages is longer than %u bytes", NTBM_MSG_BYTES);
    memcpy(mail->part + mail->part_bytes, cell->payload, cell->bytes);
    mail->part_bytes += cell->bytes;
    return 0;
}

/* Consumes the cell at offset. 0, -ECANCELED when the session was closed meanwhile, -EPROTO. */
static int take_cell(struct ntbm_mail *mail, const struct ntbm_session *session, uint32_t offset,
                     bool (*deliver)(void *ctx, const uint8_t *bytes, uint32_t len), void *ctx,
                     struct ut_err *err)
{
    struct ntbm_cell cell;
    ntbm_copy_from_shared(&cell, session->in + offset, sizeof(cell));
    int rc = add_cell(mail, &cell, err);
    if (rc)
        return rc;
    mail->received++;
    if (!(cell.flags & NTBM_CELL_LAST))
        return 0;
    uint32_t len = mail->part_bytes;
    mail->part_bytes = 0;
    mail->messages_received++;
    return deliver(ctx, mail->part, len) ? 0 : -ECANCELED;
}

int ntbm_mail_pull(struct ntbm_mail *mail, const struct ntbm_session *session,
                   bool (*deliver)(void *ctx, const uint8_t *bytes, uint32_t len), void *ctx,
                   struct ut_err *err)
{
    int count = 0;
    while (count < (int)session->geo.cell_count) { /* a sound peer has no more under way */
        uint32_t offset = ntbm_cell_offset(mail->received & (session->geo.cell_count - 1));
        int rc = cell_is_there(mail, session, offset, err);
        if (rc < 0)
            return rc;
        if (!rc)
            break;
        rc = take_cell(mail, session, offset, deliver, ctx, err);
        if (rc == -ECANCELED)
            return count;
        if (rc)
            return rc;
        count++;
    }
    if (count)
        ntbm_mail_refresh(mail, session);
    return count;
}

void ntbm_mail_refresh(const struct ntbm_mail *mail, const struct ntbm_session *session)
{
    ntbm_session_publish(session, CELL_ACK_OFFSET, mail->received);
}
