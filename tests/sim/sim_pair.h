/*
 * Two nodes in one process and in virtual time, joined by emulated links, with a record of what they were
 * told: for unit tests of peers and for the fuzz target.
 */
#ifndef SIM_PAIR_H
#define SIM_PAIR_H

#include "ntbmem/ntbm_emu.h"
#include "ntbmem/ntbm_node.h"
#include "tests/sim/sim_link.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define SIM_MS 1000000ull

struct sim_pair;

struct sim_side {
    struct sim_pair *pair;
    uint8_t *landing;
    struct ntbm_node node;
    struct ntbm_peer *peer;
    struct sim_link link;
    struct ntbm_emu emu;
    unsigned ups, downs, messages, events;
    bool close_on_up, close_on_message;
    bool other_looks; /* the other side polls while this one's session goes down */
    char reason[256]; /* of the last down */
    char event[256];  /* the last */
    uint8_t message[NTBM_MSG_BYTES];
    uint32_t message_len; /* of the last */
};

struct sim_pair {
    uint64_t now_ns, landing_bytes;
    struct sim_side side[2];
};

static uint64_t sim_pair_clock(void *ctx)
{
    return ((struct sim_pair *)ctx)->now_ns;
}

static void sim_pair_on_up(void *ctx, struct ntbm_peer *peer)
{
    struct sim_side *side = ctx;
    side->ups++;
    if (side->close_on_up)
        ntbm_peer_close(peer, "not wanted");
}

static void sim_pair_on_down(void *ctx, struct ntbm_peer *peer, const char *reason)
{
    struct sim_side *side = ctx, *other = &side->pair->side[side == &side->pair->side[0]];
    (void)peer;
    side->downs++;
    snprintf(side->reason, sizeof(side->reason), "%s", reason);
    if (side->other_looks)
        ntbm_node_poll(&other->node, ++side->pair->now_ns);
}

static void sim_pair_on_message(void *ctx, struct ntbm_peer *peer, const uint8_t *bytes, uint32_t len)
{
    struct sim_side *side = ctx;
    side->messages++;
    memcpy(side->message, bytes, len);
    side->message_len = len;
    if (side->close_on_message)
        ntbm_peer_close(peer, "not understood");
}

static void sim_pair_on_event(void *ctx, struct ntbm_peer *peer, const char *text)
{
    struct sim_side *side = ctx;
    (void)peer;
    side->events++;
    snprintf(side->event, sizeof(side->event), "%s", text);
}

static const struct ntbm_peer_ops sim_pair_ops = {.on_up = sim_pair_on_up,
                                                  .on_down = sim_pair_on_down,
                                                  .on_message = sim_pair_on_message,
                                                  .on_event = sim_pair_on_event};

/* How side idx introduces itself; tests change it before sim_pair_start. */
static inline struct ntbm_node_attr sim_pair_attr(struct sim_pair *pair, uint32_t idx, uint64_t incarnation)
{
    return (struct ntbm_node_attr){.fabric = "pair",
                                   .node = idx,
                                   .node_count = 2,
                                   .landing = pair->side[idx].landing,
                                   .landing_bytes = pair->landing_bytes,
                                   .incarnation = incarnation,
                                   .pid = 100 + idx,
                                   .host = idx ? "one" : "zero"};
}

/* Starts the daemon of side idx, whose peer is node peer_node as far as it knows. */
static inline void sim_pair_start(struct sim_pair *pair, uint32_t idx, const struct ntbm_node_attr *attr,
                                  uint32_t peer_node)
{
    struct sim_side *side = &pair->side[idx], *other = &pair->side[1 - idx];
    struct ut_err err;
    int rc = ntbm_node_init(&side->node, attr, &err);
    assert(rc == 0);
    sim_link_init(&side->link, other->landing, pair->landing_bytes);
    ntbm_emu_init(&side->emu, &side->link.link, &(struct ntbm_emu_attr){0}, sim_pair_clock, pair, idx + 1);
    rc = ntbm_node_add(&side->node, peer_node, &side->emu.link, &sim_pair_ops, side, &side->peer);
    assert(rc == 0);
}

static inline void sim_pair_restart(struct sim_pair *pair, uint32_t idx, uint64_t incarnation)
{
    struct ntbm_node_attr attr = sim_pair_attr(pair, idx, incarnation);
    sim_pair_start(pair, idx, &attr, 1 - idx);
}

/* Memory for both; no daemon runs yet. */
static inline void sim_pair_init(struct sim_pair *pair, uint64_t landing_bytes)
{
    *pair = (struct sim_pair){.now_ns = 1000 * SIM_MS, .landing_bytes = landing_bytes};
    for (int i = 0; i < 2; i++) {
        pair->side[i].pair = pair;
        pair->side[i].landing = aligned_alloc(4096, landing_bytes);
        memset(pair->side[i].landing, 0, landing_bytes);
    }
}

static inline void sim_pair_stop(struct sim_pair *pair, uint32_t idx)
{
    ntbm_node_fini(&pair->side[idx].node);
    ntbm_emu_fini(&pair->side[idx].emu);
    pair->side[idx].peer = NULL;
}

/* The process is gone at once, its memory stays. */
static inline void sim_pair_kill(struct sim_pair *pair, uint32_t idx)
{
    struct sim_side *side = &pair->side[idx];
    ntbm_mail_reset(&side->peer->mail);
    free(side->peer);
    free(side->node.peers);
    ntbm_emu_fini(&side->emu);
    side->peer = NULL;
}

static inline void sim_pair_fini(struct sim_pair *pair)
{
    for (uint32_t i = 0; i < 2; i++)
        if (pair->side[i].peer)
            sim_pair_stop(pair, i);
    for (uint32_t i = 0; i < 2; i++)
        free(pair->side[i].landing);
}

/* Lets time pass in steps of 5 ms; both running sides poll in each. */
static inline void sim_pair_run(struct sim_pair *pair, uint64_t ms)
{
    for (uint64_t until_ns = pair->now_ns + ms * SIM_MS; pair->now_ns < until_ns;) {
        pair->now_ns += 5 * SIM_MS;
        for (int i = 0; i < 2; i++)
            if (pair->side[i].peer)
                ntbm_node_poll(&pair->side[i].node, pair->now_ns);
    }
}

/* Both are up, with the same session. */
static inline bool sim_pair_is_up(const struct sim_pair *pair)
{
    const struct ntbm_peer *a = pair->side[0].peer, *b = pair->side[1].peer;
    return ntbm_peer_is_open(a) && ntbm_peer_is_open(b) && a->session.epoch == b->session.peer_epoch &&
           b->session.epoch == a->session.peer_epoch;
}

#endif
