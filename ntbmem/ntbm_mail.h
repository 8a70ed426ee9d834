/*
 * Control messages between two nodes: any size up to NTBM_MSG_BYTES, in order, each once, while the session
 * lasts; what was not delivered when it ends is dropped, and the owner of the session says so.
 *
 * A message is cut into cells of one line. Cells form a ring in the receiver's memory; the sender fills one
 * only after the receiver's acknowledgement has made room (his count of consumed cells, written into the
 * sender's memory). A cell is never sent twice: a late copy could overwrite the next lap. So a lost cell is
 * noticed by its age (ntbm_mail_waiting_since), and the session ends.
 *
 * Threads: the progress thread only.
 */
#ifndef NTBM_MAIL_H
#define NTBM_MAIL_H

#include "ntbmem/ntbm_session.h"
#include "utils/ut_list.h"

#define NTBM_MSG_BYTES 4096u
/* Waiting for cells, of one peer. What all requests of the deepest queues come to, and their failures: they
 * may have to be told at once. */
#define NTBM_OUTBOX_BYTES (8u << 20)

struct ntbm_mail {
    struct ut_list outbox; /* messages not yet wholly in cells */
    uint32_t outbox_bytes;
    uint16_t sent, acked; /* cells, since the session's start */
    uint64_t waiting_ns;  /* since when the oldest cell waits to be acknowledged; 0: none does */
    uint16_t received;    /* cells consumed */
    uint32_t part_bytes;  /* of a message whose end is still to come */
    uint64_t messages_sent, messages_received;
    uint8_t part[NTBM_MSG_BYTES];
};

/* Empties it. */
void ntbm_mail_init(struct ntbm_mail *mail);

/* Starts over for a new session and drops what was queued. Returns how many messages that were. */
uint32_t ntbm_mail_reset(struct ntbm_mail *mail);

/* Queues a copy of a message. 0, -EMSGSIZE (empty or over NTBM_MSG_BYTES), -EAGAIN (NTBM_OUTBOX_BYTES are
 * queued; try when some have gone), -ENOMEM. */
int ntbm_mail_send(struct ntbm_mail *mail, const void *bytes, uint32_t len);

/* Takes acknowledgements in and moves queued messages into free cells. How many cells it filled, or -EPROTO
 * with a sentence when the peer acknowledges what was never sent. */
int ntbm_mail_push(struct ntbm_mail *mail, const struct ntbm_session *session, uint64_t now_ns,
                   struct ut_err *err);

/* Consumes arrived cells, calls deliver for each whole message (bytes are valid during the call) and then
 * acknowledges: a ring's worth at most, so that a peer cannot keep us by writing on. deliver returns false to
 * stop: the session has been closed. How many cells were consumed, or -EPROTO with a sentence when a cell is
 * nonsense. */
int ntbm_mail_pull(struct ntbm_mail *mail, const struct ntbm_session *session,
                   bool (*deliver)(void *ctx, const uint8_t *bytes, uint32_t len), void *ctx,
                   struct ut_err *err);

/* Publishes the acknowledgement again, in case it was lost or overtaken by an older one. */
void ntbm_mail_refresh(const struct ntbm_mail *mail, const struct ntbm_session *session);

#endif
