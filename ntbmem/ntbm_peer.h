/*
 * One peer: is it there, is it who we think, does the link really carry data both ways, and is it alive.
 *
 *              its memory is there            both patterns read
 *     ABSENT ----------------------> GREETING ------------------> UP <------ a beat came -------+
 *        ^                              |                         |  `--- half the limit ----> SUSPECT
 *        |                              | no answer, pattern      | left, restarted, nonsense,   |
 *        |                              | wrong, refused          | puts get lost                | the limit
 *        |   all borrowed slots back    v                         v                              v
 *        +---------------------------- DOWN <---------------------+------------------------------+
 *
 * ABSENT waits for the next beat, DOWN for one beat, so that the link drains, and for slots that workers
 * still hold; GREETING for the peer; UP and SUSPECT for anything.
 *
 * Hello. Every beat (a tenth of the limit) this node puts a hello into the peer's memory: who it is, its
 * epoch, which epoch of the peer it has accepted, and what it has read of the peer's pattern. A hello states
 * all there is, so any of them may get lost. The heartbeat is the hello.
 *
 * Epoch. Each side numbers its sessions; a session is a pair of epochs both have accepted ("link up").
 * Whoever ends a session takes a new epoch, and the other sees that in the next hello. So both drop the same
 * session, and nothing of the old one is believed in the new one (tags, ntbm_landing.h).
 *
 * Pattern. Before a session carries anything ("verified") each side writes lines that depend on both epochs
 * and on their place all over its slots in the peer's memory, once (ntbm_pattern.h). The peer looks for them
 * in its own memory and proves in its hello that it has read them: a window that is too short, wraps around
 * or leads elsewhere is found before it does harm.
 *
 * Silence. Half the limit without a beat makes a peer suspect, the limit ends the session. Messages or slots
 * that the peer does not notice for the limit, although its beats arrive, end it too: puts get lost. Time in
 * which this node was not looking, because it was stopped or its processor busy, is not held against a peer,
 * up to another limit.
 *
 * Node or link. What ends a session is either the node (it stopped, restarted, is silent everywhere) or only
 * the link to it (it lives, but one of us does not hear the other). Silence alone looks the same; so whoever
 * hears from a third node that a suspect beats there vouches for it (ntbm_peer_vouch).
 *
 * Invariants, checked after each move:
 *  1. UP and SUSPECT imply link_up and both halves of verified.
 *  2. on_up and on_down alternate, and a session is open between them.
 *  3. In ABSENT the link is not attached, and nothing is borrowed.
 *  4. Between attach and detach there is at most one session. What was put for an earlier one has arrived by
 *     then or never will (ntbm_link.h), so no late line of a pattern falls into data.
 *
 * Threads: the progress thread only; no function blocks longer than opening the peer's memory takes. Time is
 * handed in (nanoseconds, above 0, never going back), so that tests run in virtual time.
 */
#ifndef NTBM_PEER_H
#define NTBM_PEER_H

#include "ntbmem/ntbm_mail.h"
#include "ntbmem/ntbm_session.h"
#include "ntbmem/ntbm_slot.h"

#define NTBM_LIMIT_NS 1000000000ull /* the default heartbeat limit */

enum ntbm_peer_state { NTBM_ABSENT, NTBM_GREETING, NTBM_UP, NTBM_SUSPECT, NTBM_DOWN, NTBM_PEER_STATES };

struct ntbm_peer;

/* What the layer above is told. All are called from ntbm_peer_poll or ntbm_peer_close, on the same thread.
 * They may send, take, next and close, but neither poll nor fini. */
struct ntbm_peer_ops {
    void (*on_up)(void *ctx, struct ntbm_peer *peer);
    /* The session is over, and peer->loss says of what; messages not yet delivered, in either direction, are
     * dropped. */
    void (*on_down)(void *ctx, struct ntbm_peer *peer, const char *reason);
    /* One message; bytes are valid during the call. What it says is for the layer above to check. */
    void (*on_message)(void *ctx, struct ntbm_peer *peer, const uint8_t *bytes, uint32_t len);
    /* Something an operator should know, in words, told once as long as it goes on: a refusal, two daemons
     * with one number. Whoever writes into our memory, it is called at most NTBM_TOLD times in ten limits. */
    void (*on_event)(void *ctx, struct ntbm_peer *peer, const char *text);
};

/* This node, as all its peers need it; owned by ntbm_node.h. */
struct ntbm_self {
    struct ntbm_ident ident;
    uint8_t *landing; /* our landing memory, from the header page on */
    uint64_t limit_ns;
    uint64_t random; /* state of the generator of epochs */
};

struct ntbm_peer_figures {
    uint64_t sessions; /* how often it came up */
    uint64_t beats_sent, beats_heard;
    uint64_t hellos_bad; /* torn or garbage */
    uint64_t dropped;    /* messages lost with a session */
};

/* Things that on_event said lately. */
#define NTBM_TOLD 4u

struct ntbm_told {
    char text[256];
    uint64_t so_ns; /* when it was last so; 0: no text */
};

struct ntbm_peer {
    struct ntbm_self *self;
    uint32_t node;
    const struct ntbm_peer_ops *ops;
    void *ctx;
    enum ntbm_peer_state state;
    uint64_t now_ns;      /* of the last poll */
    uint64_t late_ns;     /* of the time since heard_ns, how long this node did not look */
    uint64_t since_ns;    /* when this state began, or GREETING last got on */
    uint64_t beat_due_ns; /* when our next hello is due */
    bool link_up;         /* each side has accepted the other's epoch */
    bool verified_in;     /* we have read its pattern */
    bool verified_out;    /* it has read ours */
    bool in_callback;     /* closing waits until it returns */
    bool closing;
    bool leaving; /* our daemon stops: each hello says so */
    char closing_reason[160];
    char reason[256]; /* why it is not up; empty while it is */
    int loss;         /* what the last session ended of: -EHOSTDOWN, the node; -ENOLINK, only the link */
    bool vouched;     /* SUSPECT: another node hears it */
    struct ntbm_told told[NTBM_TOLD];
    struct ntbm_ident partner; /* of the session, or of the last one; magic 0: it was never up */

    struct ntbm_hello heard; /* its last hello that was sound; magic 0: none yet */
    uint64_t heard_ns;       /* when that came */
    uint32_t heard_word;     /* its word: any other one means news */
    uint32_t header_beat;    /* of its header page, when greeting began */
    uint64_t unseen_ns;      /* since when slots of ours wait to be noticed; 0: none do */
    uint64_t rival;          /* an incarnation that held the number before; 0: none */
    uint32_t rival_beat;     /* its last */
    uint64_t barred_ns;      /* no greeting before this time: two daemons claim the number */

    uint32_t beat; /* of our last hello */
    struct ntbm_session session;
    struct ntbm_mail mail;
    struct ntbm_slots slots;
    struct ntbm_peer_figures figures;
};

/* Prepares a peer in ABSENT; opens nothing. self, link and ops must outlive it. */
void ntbm_peer_init(struct ntbm_peer *peer, struct ntbm_self *self, uint32_t node, struct ntbm_link *link,
                    const struct ntbm_peer_ops *ops, void *ctx);

/* Ends the session, if any, tells the peer that we leave, and frees. Nothing may be borrowed. */
void ntbm_peer_fini(struct ntbm_peer *peer);

/* Does all that is due: beats, state, messages, acknowledgements. True when anything arrived or left, so that
 * a busy caller looks again soon. Call at least once a beat, and at once after sending. */
bool ntbm_peer_poll(struct ntbm_peer *peer, uint64_t now_ns);

/* Queues a control message. 0, -ENOTCONN when not up, or as ntbm_mail_send. It leaves at the next poll. */
int ntbm_peer_send(struct ntbm_peer *peer, const void *bytes, uint32_t len);

/* Borrows a slot to fill or one that has arrived (ntbm_slot.h). 0, -EAGAIN, or -ENOTCONN when not up; what is
 * nonsense closes the session (on_down is called from here then). */
int ntbm_peer_take(struct ntbm_peer *peer, struct ntbm_slot_out *out);
int ntbm_peer_next(struct ntbm_peer *peer, struct ntbm_slot_in *in);

/* Ends the session for a reason of the layer above; a new one is greeted for by itself. */
void ntbm_peer_close(struct ntbm_peer *peer, const char *reason);

/* Another node has heard the peer since it became suspect: if its silence lasts, the link is to blame. */
void ntbm_peer_vouch(struct ntbm_peer *peer);

/* True while a session is open: UP or SUSPECT. */
bool ntbm_peer_is_open(const struct ntbm_peer *peer);

/* "absent", "greeting", ... */
const char *ntbm_peer_state_name(enum ntbm_peer_state state);

#endif
