#include "ntbmem/ntbm_peer.h"

#include "ntbmem/ntbm_copy.h"
#include "ntbmem/ntbm_pattern.h"
#include "ntbmem/ntbm_random.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MOVE(to) (1u << (to))

static const struct {
    const char *name;
    unsigned moves; /* allowed */
} states[NTBM_PEER_STATES] = {
    [NTBM_ABSENT] = {"absent", MOVE(NTBM_GREETING)},
    [NTBM_GREETING] = {"greeting", MOVE(NTBM_UP) | MOVE(NTBM_DOWN)},
    [NTBM_UP] = {"up", MOVE(NTBM_SUSPECT) | MOVE(NTBM_DOWN)},
    [NTBM_SUSPECT] = {"suspect", MOVE(NTBM_UP) | MOVE(NTBM_DOWN)},
    [NTBM_DOWN] = {"down", MOVE(NTBM_ABSENT)},
};

const char *ntbm_peer_state_name(enum ntbm_peer_state state)
{
    return states[state].name;
}

bool ntbm_peer_is_open(const struct ntbm_peer *peer)
{
    return peer->state == NTBM_UP || peer->state == NTBM_SUSPECT;
}

static bool is_attached(const struct ntbm_peer *peer)
{
    return peer->state != NTBM_ABSENT;
}

static void check_invariants(const struct ntbm_peer *peer)
{
    bool verified = peer->verified_in && peer->verified_out;
    assert(!ntbm_peer_is_open(peer) || (peer->link_up && verified));
    assert(is_attached(peer) || (!peer->session.link->bytes && !atomic_load(&peer->slots.borrowed)));
    assert(!peer->link_up || peer->session.peer_epoch);
    assert(peer->session.epoch);
}

static void move(struct ntbm_peer *peer, enum ntbm_peer_state to)
{
    assert(states[peer->state].moves & MOVE(to));
    peer->state = to;
    peer->since_ns = peer->now_ns;
    check_invariants(peer);
}

static uint64_t beat_ns(const struct ntbm_peer *peer)
{
    return peer->self->limit_ns / 10;
}

/* Where the sentence stands, else the one that has not been so for longest. */
static struct ntbm_told *find_told(struct ntbm_peer *peer, const char *text)
{
    struct ntbm_told *oldest = &peer->told[0];
    for (unsigned i = 0; i < NTBM_TOLD; i++) {
        struct ntbm_told *told = &peer->told[i];
        if (told->so_ns && !strcmp(told->text, text))
            return told;
        if (told->so_ns < oldest->so_ns)
            oldest = told;
    }
    return oldest;
}

/* Several daemons that were set up wrongly may write into one area: of each we tell once while it goes on,
 * and not again whenever it is its turn. */
static bool is_news(struct ntbm_peer *peer, const char *text)
{
    struct ntbm_told *told = find_told(peer, text);
    bool is_new = !told->so_ns || peer->now_ns - told->so_ns > 10 * peer->self->limit_ns;
    if (is_new)
        snprintf(told->text, sizeof(told->text), "%s", text);
    if (!strcmp(told->text, text))
        told->so_ns = peer->now_ns;
    return is_new;
}

/* Tells an operator what is news; it is the reason, too, while the peer is not up. */
static void tell(struct ntbm_peer *peer, const char *text)
{
    if (!ntbm_peer_is_open(peer) && text != peer->reason)
        snprintf(peer->reason, sizeof(peer->reason), "%s", text);
    if (is_news(peer, text))
        peer->ops->on_event(peer->ctx, peer, text);
}

/* ---- hello, outward ---- */

static void say_hello(struct ntbm_peer *peer)
{
    const struct ntbm_session *session = &peer->session;
    struct ntbm_hello hello = {
        .ident = peer->self->ident,
        .epoch = session->epoch,
        .peer_epoch = session->peer_epoch,
        .beat = ++peer->beat,
        .echo = peer->verified_in ? ntbm_pattern_proof(session) : 0,
        .slots_seen = peer->slots.seen,
        .flags = (peer->leaving ? NTBM_HELLO_LEAVING : 0) |
                 (peer->now_ns < peer->barred_ns ? NTBM_HELLO_RIVALS : 0),
    };
    hello.sum = ntbm_sum(&hello, offsetof(struct ntbm_hello, sum));
    ntbm_link_put(session->link, &(struct ntbm_put){.offset = session->out + NTBM_HELLO_OFFSET,
                                                    .bytes = &hello,
                                                    .len = sizeof(hello),
                                                    .word_offset = session->out + NTBM_WORDS_OFFSET,
                                                    .word = hello.beat});
    peer->figures.beats_sent++;
    peer->beat_due_ns = peer->now_ns + beat_ns(peer);
}

/* The heartbeat, and once more all that counts up, in case a put was lost or overtaken. */
static void beat(struct ntbm_peer *peer)
{
    say_hello(peer);
    if (!ntbm_peer_is_open(peer))
        return;
    ntbm_mail_refresh(&peer->mail, &peer->session);
    ntbm_slots_refresh(&peer->slots);
}

/* ---- sessions ---- */

/* Nothing of the session so far is believed or sent any more; the pair of epochs is to be found anew. */
static void take_new_epoch(struct ntbm_peer *peer)
{
    if (++peer->session.epoch == 0)
        peer->session.epoch = 1;
    peer->session.peer_epoch = 0;
    peer->link_up = peer->verified_in = peer->verified_out = false;
    peer->unseen_ns = 0;
    peer->figures.dropped += ntbm_mail_reset(&peer->mail);
}

static void close_now(struct ntbm_peer *peer, int loss, const char *reason)
{
    bool was_open = ntbm_peer_is_open(peer);
    peer->closing = false;
    peer->loss = loss;
    take_new_epoch(peer);
    move(peer, NTBM_DOWN);
    snprintf(peer->reason, sizeof(peer->reason), "%s", reason);
    if (!atomic_load_explicit(&peer->session.link->broken, memory_order_relaxed))
        say_hello(peer); /* so that the peer drops the session, too, without waiting for the limit */
    if (was_open)
        peer->ops->on_down(peer->ctx, peer, peer->reason);
}

void ntbm_peer_close(struct ntbm_peer *peer, const char *reason)
{
    if (!ntbm_peer_is_open(peer))
        return;
    if (!peer->in_callback) {
        close_now(peer, -ENOLINK, reason);
    } else if (!peer->closing) {
        peer->closing = true;
        snprintf(peer->closing_reason, sizeof(peer->closing_reason), "%s", reason);
    }
}

__attribute__((format(printf, 3, 4))) static void closef(struct ntbm_peer *peer, int loss, const char *fmt,
                                                         ...)
{
    char reason[sizeof(peer->reason)];
    va_list args;
    va_start(args, fmt);
    vsnprintf(reason, sizeof(reason), fmt, args);
    va_end(args);
    close_now(peer, loss, reason);
}

/* Accepts an epoch of the peer's: from now on its words count. It has not written any yet under this epoch,
 * for it waits for our hello that accepts it; so what is there is old and can go. */
static void accept_epoch(struct ntbm_peer *peer, uint32_t epoch)
{
    struct ntbm_session *session = &peer->session;
    session->peer_epoch = epoch;
    uint32_t from = NTBM_WORDS_OFFSET + (uint32_t)offsetof(struct ntbm_words, cell_ack);
    ntbm_clear_shared(session->in + from, ntbm_slot_offset(&session->geo, 0) - from);
    peer->figures.dropped += ntbm_mail_reset(&peer->mail);
    ntbm_slots_begin(&peer->slots, session);
    peer->since_ns = peer->now_ns;
    peer->beat_due_ns = peer->now_ns;
}

/* ---- hello, inward ---- */

/* A hello is older than the last one when its beat is; incarnations cannot be compared. Nothing stays under
 * way for the limit: after that an older beat shows that the last one was not true. */
static bool is_stale(const struct ntbm_peer *peer, const struct ntbm_hello *hello)
{
    const struct ntbm_hello *last = &peer->heard;
    if (peer->now_ns - peer->heard_ns > peer->self->limit_ns)
        return false;
    if (hello->ident.incarnation == peer->rival)
        return (int32_t)(hello->beat - peer->rival_beat) <= 0;
    return hello->ident.incarnation == last->ident.incarnation && (int32_t)(hello->beat - last->beat) <= 0;
}

/* A process that ended says nothing new. So when an incarnation speaks, another, and then the first again,
 * with a later beat, both are alive. */
static void watch_for_rivals(struct ntbm_peer *peer, const struct ntbm_hello *hello)
{
    const struct ntbm_ident *now = &hello->ident, *last = &peer->heard.ident;
    if (!last->magic || now->incarnation == last->incarnation)
        return;
    bool is_back = now->incarnation == peer->rival;
    peer->rival = last->incarnation;
    peer->rival_beat = peer->heard.beat;
    if (!is_back)
        return;
    bool in_order = now->incarnation < last->incarnation; /* so that the sentence is the same every time */
    const struct ntbm_ident *a = in_order ? now : last, *b = in_order ? last : now;
    char text[200];
    snprintf(text, sizeof(text),
             "two daemons claim to be node %" PRIu32 ": process %" PRIu32 " on %.31s and process %" PRIu32
             " on %.31s",
             peer->node, a->pid, a->host, b->pid, b->host);
    peer->barred_ns = peer->now_ns + 10 * peer->self->limit_ns;
    if (peer->state != NTBM_ABSENT && peer->state != NTBM_DOWN)
        close_now(peer, -EHOSTDOWN, text);
    else if (peer->state == NTBM_DOWN)
        say_hello(peer); /* so that the one to whom our window leads hears why */
    tell(peer, text);
}

/* The name goes into sentences that people read. */
static void clean_host(char host[32])
{
    host[31] = '\0';
    for (char *at = host; *at; at++)
        if (*at <= ' ' || *at > '~')
            *at = '?';
}

/* Takes over a new hello from our memory. True when there was one that is sound, meant for us, and news. */
static bool hear(struct ntbm_peer *peer)
{
    struct ntbm_hello hello;
    struct ut_err err;
    uint32_t word = ntbm_session_word(&peer->session, NTBM_WORDS_OFFSET);
    if (word == peer->heard_word)
        return false;
    ntbm_copy_from_shared(&hello, peer->session.in + NTBM_HELLO_OFFSET, sizeof(hello));
    if (hello.sum != ntbm_sum(&hello, offsetof(struct ntbm_hello, sum))) {
        peer->figures.hellos_bad++; /* being rewritten: the word will change again; or garbage */
        return false;
    }
    peer->heard_word = word;
    clean_host(hello.ident.host);
    if (ntbm_ident_check(&peer->self->ident, &hello.ident, peer->node, &err)) {
        peer->figures.hellos_bad++;
        tell(peer, err.text);
        return false;
    }
    if (!hello.epoch || is_stale(peer, &hello))
        return false;
    watch_for_rivals(peer, &hello);
    peer->heard = hello;
    peer->heard_ns = peer->now_ns;
    peer->late_ns = 0;
    peer->figures.beats_heard++;
    return true;
}

/* Why a peer that was up speaks with a new epoch. late_ns: how long we had not looked. */
static void close_for_new_epoch(struct ntbm_peer *peer, const struct ntbm_ident *before, uint64_t late_ns)
{
    const struct ntbm_ident *now = &peer->heard.ident;
    if (memcmp(now->boot_id, before->boot_id, sizeof(now->boot_id)))
        closef(peer, -EHOSTDOWN, "node %" PRIu32 " (%.31s) was rebooted", peer->node, now->host);
    else if (now->incarnation != before->incarnation)
        closef(peer, -EHOSTDOWN,
               "the daemon of node %" PRIu32 " on %.31s was restarted: process %" PRIu32 ", before %" PRIu32,
               peer->node, now->host, now->pid, before->pid);
    else if (late_ns > peer->self->limit_ns / 2)
        closef(peer, -EHOSTDOWN,
               "node %" PRIu32 " (%.31s) ended the session, since this daemon stood still for %" PRIu64 " ms",
               peer->node, now->host, late_ns / 1000000);
    else
        closef(peer, -ENOLINK, "node %" PRIu32 " (%.31s) lives and has ended the session", peer->node,
               now->host);
}

/* Slots that are sent but never noticed got lost on the way. */
static void check_unseen(struct ntbm_peer *peer, uint32_t seen_before)
{
    uint32_t sent = atomic_load_explicit(&peer->slots.sent, memory_order_relaxed),
             seen = peer->heard.slots_seen;
    if ((int32_t)(sent - seen) < 0)
        closef(peer, -ENOLINK, "node %" PRIu32 " writes nonsense: it has seen %" PRIu32 " slots of %" PRIu32,
               peer->node, seen, sent);
    else if (seen == sent)
        peer->unseen_ns = 0;
    else if (!peer->unseen_ns || seen != seen_before)
        peer->unseen_ns = peer->now_ns;
}

/* A new hello while the session is open; `before` is the one before it. */
static void hear_open(struct ntbm_peer *peer, const struct ntbm_hello *before, uint64_t late_ns)
{
    const struct ntbm_hello *hello = &peer->heard;
    if (hello->flags & NTBM_HELLO_LEAVING)
        closef(peer, -EHOSTDOWN, "the daemon of node %" PRIu32 " on %.31s stops", peer->node,
               hello->ident.host);
    else if (hello->epoch != peer->session.peer_epoch)
        close_for_new_epoch(peer, &before->ident, late_ns);
    else if (hello->peer_epoch != peer->session.epoch)
        closef(peer, -ENOLINK,
               "node %" PRIu32 " writes nonsense: it accepted epoch %" PRIu32 ", ours is %" PRIu32,
               peer->node, hello->peer_epoch, peer->session.epoch);
    else
        check_unseen(peer, before->slots_seen);
    if (peer->state == NTBM_SUSPECT)
        move(peer, NTBM_UP);
    peer->vouched = false;
}

static void listen(struct ntbm_peer *peer)
{
    struct ntbm_hello before = peer->heard;
    uint64_t late_ns = peer->late_ns;
    if (hear(peer) && ntbm_peer_is_open(peer))
        hear_open(peer, &before, late_ns);
}

/* ---- one step of each state ---- */

static uint64_t area_end(const struct ntbm_peer *peer)
{
    return peer->session.out + peer->session.geo.area_bytes;
}

/* At least so much of the peer's memory must lie inside the window. */
static int check_window(const struct ntbm_peer *peer, uint64_t least, struct ut_err *err)
{
    if (peer->session.link->bytes >= least)
        return 0;
    return ut_err_set(err, -EPROTO,
                      "the window to node %" PRIu32 " is %" PRIu64 " bytes long, %" PRIu64 " are needed",
                      peer->node, peer->session.link->bytes, area_end(peer));
}

/* Looks at the header page, by the one remote read of a greeting that succeeds. Our area must lie inside the
 * window, too, whatever the header promises; but where the nodes disagree about areas, that is what to say.
 */
static int check_header(struct ntbm_peer *peer, struct ut_err *err)
{
    struct ntbm_header header;
    int rc = check_window(peer, sizeof(header), err);
    if (rc)
        return rc;
    rc = ntbm_link_read(peer->session.link, 0, &header, sizeof(header));
    if (rc)
        return ut_err_set(err, rc, "the memory of node %" PRIu32 " cannot be read", peer->node);
    peer->header_beat = header.beat;
    rc = ntbm_ident_check(&peer->self->ident, &header.ident, peer->node, err);
    return rc ? rc : check_window(peer, area_end(peer), err);
}

static void step_absent(struct ntbm_peer *peer)
{
    struct ut_err err = {""};
    if (peer->now_ns < peer->beat_due_ns || peer->now_ns < peer->barred_ns)
        return;
    peer->beat_due_ns = peer->now_ns + beat_ns(peer);
    int rc = ntbm_link_attach(peer->session.link, &err);
    if (!rc) {
        rc = check_header(peer, &err);
        if (rc)
            ntbm_link_detach(peer->session.link);
    }
    if (!rc) {
        snprintf(peer->reason, sizeof(peer->reason), "the daemon of node %" PRIu32 " does not answer yet",
                 peer->node);
        move(peer, NTBM_GREETING);
        say_hello(peer);
    } else if (rc == -ENOENT || rc == -ENXIO) { /* not started yet: nothing to tell anybody */
        snprintf(peer->reason, sizeof(peer->reason), "%s", err.text);
    } else {
        tell(peer, err.text);
    }
}

static void come_up(struct ntbm_peer *peer)
{
    peer->reason[0] = '\0';
    memset(peer->told, 0, sizeof(peer->told));
    peer->figures.sessions++;
    peer->partner = peer->heard.ident;
    move(peer, NTBM_UP);
    beat(peer);
    peer->in_callback = true;
    peer->ops->on_up(peer->ctx, peer);
    peer->in_callback = false;
}

/* What is wrong with a link that is up but does not carry. Both sides say so, each what it knows first hand,
 * at half the limit: the one who gives up first takes the occasion from the other. */
static void complain(struct ntbm_peer *peer)
{
    const struct ntbm_ident *who = &peer->heard.ident;
    char text[256];
    uint32_t missing = 0;
    if (ntbm_pattern_is_there(&peer->session, &missing))
        snprintf(text, sizeof(text),
                 "what we write does not arrive whole at node %" PRIu32 " (process %" PRIu32
                 " on %.31s): is our window set up wrongly?",
                 peer->node, who->pid, who->host);
    else
        snprintf(
            text, sizeof(text),
            "what node %" PRIu32 " (process %" PRIu32 " on %.31s) writes does not arrive at byte %" PRIu64
            " of our landing memory: is its window too short, or set up wrongly?",
            peer->node, who->pid, who->host, (uint64_t)(peer->session.in - peer->self->landing) + missing);
    tell(peer, text);
}

/* Why nothing has come since the greeting began: the owner's beat in the header page tells whether he lives.
 */
static void close_unanswered(struct ntbm_peer *peer)
{
    struct ntbm_header header;
    bool lives = ntbm_link_read(peer->session.link, 0, &header, sizeof(header)) == 0 &&
                 header.ident.magic == NTBM_MAGIC && header.beat != peer->header_beat;
    char text[256];
    if (!lives) {
        closef(peer, -EHOSTDOWN, "the memory of node %" PRIu32 " is there, but no daemon answers",
               peer->node);
        return;
    }
    clean_host(header.ident.host);
    snprintf(text, sizeof(text),
             "the daemon of node %" PRIu32 " runs (process %" PRIu32
             " on %.31s), but nothing of it arrives here: either its window leads elsewhere, or it refuses "
             "this node",
             peer->node, header.ident.pid, header.ident.host);
    tell(peer, text);
    closef(peer, -ENOLINK, "%s", text);
}

/* It has refused us: says so, and that is all that can be done here. */
static void tell_refusal(struct ntbm_peer *peer)
{
    char text[200];
    snprintf(text, sizeof(text),
             "node %" PRIu32 " (process %" PRIu32
             " on %.31s) refuses this node: another daemon claims to be node %" PRIu32 ", too",
             peer->node, peer->heard.ident.pid, peer->heard.ident.host, peer->self->ident.node);
    tell(peer, text);
}

static void check_greeting_limits(struct ntbm_peer *peer)
{
    uint64_t waited_ns = peer->now_ns - peer->since_ns;
    if (peer->link_up && waited_ns > peer->self->limit_ns / 2)
        complain(peer);
    if (waited_ns <= peer->self->limit_ns)
        return;
    if (peer->link_up || peer->heard.flags & NTBM_HELLO_RIVALS)
        closef(peer, -ENOLINK, "%s", peer->reason);
    else
        close_unanswered(peer);
}

/* The slots are ours to write only now: until the peer had accepted our epoch, it could still be using what
 * an earlier daemon of ours had put there. */
static void measure(struct ntbm_peer *peer)
{
    const struct ntbm_geometry *geo = &peer->session.geo;
    ntbm_link_measure(peer->session.link, peer->session.out + ntbm_slot_offset(geo, 0),
                      geo->slot_count * (NTBM_LINE + geo->slot_bytes));
}

/* Each step waits for what the peer's last hello says; as that stays there, nothing is missed. */
static void step_greeting(struct ntbm_peer *peer)
{
    const struct ntbm_hello *hello = &peer->heard;
    uint32_t missing;
    if (hello->flags & NTBM_HELLO_RIVALS) {
        tell_refusal(peer);
        check_greeting_limits(peer);
        return;
    }
    if (hello->epoch != peer->session.peer_epoch && peer->link_up) {
        closef(peer, -ENOLINK, "node %" PRIu32 " began anew while it greeted", peer->node); /* invariant 4 */
        return;
    }
    if (hello->epoch != peer->session.peer_epoch && !(hello->flags & NTBM_HELLO_LEAVING))
        accept_epoch(peer, hello->epoch);
    bool is_agreed = peer->session.peer_epoch && hello->peer_epoch == peer->session.epoch;
    if (is_agreed && !peer->link_up) {
        peer->link_up = true;
        peer->since_ns = peer->now_ns;
        measure(peer);
        ntbm_pattern_put(&peer->session);
    }
    if (peer->link_up && !peer->verified_in && ntbm_pattern_is_there(&peer->session, &missing)) {
        peer->verified_in = true;
        say_hello(peer);
    }
    if (is_agreed && hello->echo == ntbm_pattern_expected_proof(&peer->session))
        peer->verified_out = true;
    if (peer->verified_in && peer->verified_out)
        come_up(peer);
    else
        check_greeting_limits(peer);
}

static bool deliver(void *ctx, const uint8_t *bytes, uint32_t len)
{
    struct ntbm_peer *peer = ctx;
    peer->in_callback = true;
    peer->ops->on_message(peer->ctx, peer, bytes, len);
    peer->in_callback = false;
    return !peer->closing;
}

/* Whether the peer has gone on beating for the limit without noticing: a silent one has had no occasion. */
static bool is_unnoticed(uint64_t since_ns, const struct ntbm_peer *peer)
{
    return since_ns && peer->heard_ns > since_ns + peer->self->limit_ns;
}

/* How long nothing has come although we looked. A daemon that gets no time cannot tell; but one that never
 * gets enough must judge some day. */
static uint64_t silence_ns(const struct ntbm_peer *peer)
{
    uint64_t silent_ns = peer->now_ns - peer->heard_ns, limit_ns = peer->self->limit_ns;
    return silent_ns - (peer->late_ns < limit_ns ? peer->late_ns : limit_ns);
}

static void close_silent(struct ntbm_peer *peer)
{
    uint64_t ms = (peer->now_ns - peer->heard_ns) / 1000000;
    if (peer->vouched)
        closef(peer, -ENOLINK,
               "nothing has come from node %" PRIu32 " (%.31s) for %" PRIu64
               " ms, though another node hears it",
               peer->node, peer->heard.ident.host, ms);
    else
        closef(peer, -EHOSTDOWN, "node %" PRIu32 " (%.31s) has been silent for %" PRIu64 " ms", peer->node,
               peer->heard.ident.host, ms);
}

/* All that can end an open session without a word from the peer. */
static void check_limits(struct ntbm_peer *peer)
{
    uint64_t limit_ns = peer->self->limit_ns, silent_ns = silence_ns(peer);
    if (peer->closing)
        closef(peer, -ENOLINK, "%s", peer->closing_reason);
    else if (atomic_load_explicit(&peer->session.link->broken, memory_order_relaxed))
        closef(peer, -ENOLINK, "the memory of node %" PRIu32 " is gone", peer->node);
    else if (silent_ns > limit_ns)
        close_silent(peer);
    else if (is_unnoticed(peer->mail.waiting_ns, peer) || is_unnoticed(peer->unseen_ns, peer))
        closef(peer, -ENOLINK, "what we write gets lost on the way to node %" PRIu32 ", although it is alive",
               peer->node);
    else if (peer->state == NTBM_UP && silent_ns > limit_ns / 2)
        move(peer, NTBM_SUSPECT);
}

void ntbm_peer_vouch(struct ntbm_peer *peer)
{
    peer->vouched = peer->state == NTBM_SUSPECT;
}

/* Moves messages and slots. True when any went either way. */
static bool step_open(struct ntbm_peer *peer)
{
    struct ut_err err;
    if (peer->closing) { /* by on_up */
        check_limits(peer);
        return true;
    }
    int pulled = ntbm_mail_pull(&peer->mail, &peer->session, deliver, peer, &err), pushed = 0, seen = 0;
    if (pulled >= 0)
        pushed = ntbm_mail_push(&peer->mail, &peer->session, peer->now_ns, &err);
    if (pulled >= 0 && pushed >= 0)
        seen = ntbm_slots_look(&peer->slots, &err);
    if (pulled < 0 || pushed < 0 || seen < 0)
        closef(peer, -ENOLINK, "node %" PRIu32 " writes nonsense: %s", peer->node, err.text);
    else
        check_limits(peer);
    return pulled > 0 || pushed > 0 || seen > 0;
}

static void step_down(struct ntbm_peer *peer)
{
    if (peer->now_ns - peer->since_ns < beat_ns(peer))
        return;
    if (atomic_load_explicit(&peer->slots.borrowed, memory_order_acquire)) /* pairs with give_back */
        return;
    ntbm_link_detach(peer->session.link);
    peer->beat_due_ns = peer->now_ns;
    move(peer, NTBM_ABSENT);
}

/* A caller comes at least once a beat; what is more, the processor gave to others. */
static void count_lateness(struct ntbm_peer *peer, uint64_t now_ns)
{
    uint64_t gap_ns = peer->now_ns ? now_ns - peer->now_ns : 0;
    if (gap_ns > beat_ns(peer))
        peer->late_ns += gap_ns - beat_ns(peer);
}

bool ntbm_peer_poll(struct ntbm_peer *peer, uint64_t now_ns)
{
    bool moved = false;
    count_lateness(peer, now_ns);
    peer->now_ns = now_ns;
    ntbm_link_poll(peer->session.link, now_ns);
    /* Before any limit is checked: we may have been stopped ourselves, while the peer was not. */
    listen(peer);
    if (peer->state == NTBM_ABSENT)
        step_absent(peer);
    if (peer->state == NTBM_GREETING)
        step_greeting(peer);
    if (ntbm_peer_is_open(peer))
        moved = step_open(peer);
    if (peer->state == NTBM_DOWN)
        step_down(peer);
    if (is_attached(peer) && now_ns >= peer->beat_due_ns)
        beat(peer);
    return moved;
}

/* ---- the rest ---- */

void ntbm_peer_init(struct ntbm_peer *peer, struct ntbm_self *self, uint32_t node, struct ntbm_link *link,
                    const struct ntbm_peer_ops *ops, void *ctx)
{
    const struct ntbm_geometry *geo = &self->ident.geometry;
    *peer = (struct ntbm_peer){.self = self, .node = node, .ops = ops, .ctx = ctx, .loss = -EHOSTDOWN};
    peer->session = (struct ntbm_session){
        .link = link,
        .geo = *geo,
        .in = self->landing + ntbm_area_offset(geo, self->ident.node, node),
        .out = ntbm_area_offset(geo, node, self->ident.node),
        .epoch = (uint32_t)ntbm_random(&self->random) | 1,
    };
    ntbm_mail_init(&peer->mail);
    snprintf(peer->reason, sizeof(peer->reason), "not looked at yet");
}

void ntbm_peer_fini(struct ntbm_peer *peer)
{
    peer->leaving = true; /* from the first hello on: the peer may look at any time */
    ntbm_peer_close(peer, "this daemon stops");
    assert(!atomic_load(&peer->slots.borrowed));
    if (is_attached(peer)) {
        say_hello(peer);
        ntbm_link_detach(peer->session.link);
    }
    ntbm_mail_reset(&peer->mail);
}

int ntbm_peer_send(struct ntbm_peer *peer, const void *bytes, uint32_t len)
{
    return ntbm_peer_is_open(peer) && !peer->closing ? ntbm_mail_send(&peer->mail, bytes, len) : -ENOTCONN;
}

/* Takes a refusal of the slots' as the end of the session. */
static int slot_result(struct ntbm_peer *peer, int rc, const struct ut_err *err)
{
    char reason[sizeof(peer->closing_reason)];
    if (rc != -EPROTO)
        return rc;
    snprintf(reason, sizeof(reason), "node %" PRIu32 " writes nonsense: %.120s", peer->node, err->text);
    ntbm_peer_close(peer, reason);
    return -ENOTCONN;
}

int ntbm_peer_take(struct ntbm_peer *peer, struct ntbm_slot_out *out)
{
    struct ut_err err;
    if (!ntbm_peer_is_open(peer) || peer->closing)
        return -ENOTCONN;
    return slot_result(peer, ntbm_slots_take(&peer->slots, out, &err), &err);
}

int ntbm_peer_next(struct ntbm_peer *peer, struct ntbm_slot_in *in)
{
    struct ut_err err;
    if (!ntbm_peer_is_open(peer) || peer->closing)
        return -ENOTCONN;
    return slot_result(peer, ntbm_slots_next(&peer->slots, in, &err), &err);
}
