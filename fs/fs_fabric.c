#include "fs/fs_fabric.h"

#include "fs/fs_job.h"
#include "ntbmem/ntbm_guard.h"
#include "fs/fs_numa.h"
#include "fs/fs_watch.h"
#include "utils/ut_clock.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOT_NS (100 * UT_NS_PER_US) /* so long after the last event the loop does not sleep at all */
#define BUSY_SLEEP_NS (50 * UT_NS_PER_US)
#define IDLE_SLEEP_NS (8 * UT_NS_PER_MS)
#define REST_SLEEP_NS (100 * UT_NS_PER_MS)
#define AREA_BYTES (UINT64_C(2) << 20)     /* of each sender in landing memory that we make, up to 8 nodes */
#define LANDING_BYTES (UINT64_C(64) << 20) /* of all senders together, of many nodes */

/* ---- what the peers tell ---- */

static void peer_event(struct fs_peer *peer, const char *severity, const char *text)
{
    char object[32];
    snprintf(object, sizeof(object), "nodes/%u", peer->number);
    fs_events_add(peer->fabric->fs, severity, object, text);
}

/* A session may end in the middle of a step that uses it; what follows from that waits until the step is
 * over. */
static void settle_down(struct fs_fabric *fabric)
{
    for (unsigned i = 0; fabric->downs && i < (unsigned)fabric->fs->settings->nodes; i++) {
        struct fs_peer *peer = &fabric->peers[i];
        if (!peer->is_down)
            continue;
        peer->is_down = false;
        fabric->downs--;
        coll_net_peer_down(&fabric->net, i, peer->down_loss, peer->down_reason);
    }
}

/* Whether it was the link: this is known at once when another node hears the peer, or the peer hears us; else
 * when the same daemon is back after a silence. */
static void judge_loss(struct fs_peer *peer, const struct ntbm_peer *ntbm)
{
    bool was_silent = ntbm->now_ns - ntbm->heard_ns > ntbm->self->limit_ns;
    if (ntbm->loss == -ENOLINK)
        fs_watch_lost(peer->fabric->fs->watch, peer->number, ntbm->now_ns);
    peer->incarnation = ntbm->loss != -ENOLINK && was_silent ? ntbm->heard.ident.incarnation : 0;
}

static void on_up(void *ctx, struct ntbm_peer *ntbm)
{
    struct fs_peer *peer = ctx;
    char text[160];
    settle_down(peer->fabric);
    if (peer->incarnation == ntbm->heard.ident.incarnation)
        fs_watch_lost(peer->fabric->fs->watch, peer->number, ntbm->now_ns);
    peer->incarnation = 0;
    snprintf(text, sizeof(text), "up: host %s, pid %u", ntbm->partner.host, ntbm->partner.pid);
    peer_event(peer, "info", text);
    coll_net_peer_up(&peer->fabric->net, peer->number);
}

static void on_down(void *ctx, struct ntbm_peer *ntbm, const char *reason)
{
    struct fs_peer *peer = ctx;
    char text[400];
    snprintf(text, sizeof(text), "%s: host %s, pid %u: %.300s", ntbm->loss == -ENOLINK ? "link down" : "down",
             ntbm->partner.host, ntbm->partner.pid, reason);
    peer_event(peer, "warn", text);
    judge_loss(peer, ntbm);
    snprintf(peer->down_reason, sizeof(peer->down_reason), "%s", reason);
    peer->down_loss = ntbm->loss;
    peer->fabric->downs += !peer->is_down;
    peer->is_down = true;
}

static void on_message(void *ctx, struct ntbm_peer *ntbm, const uint8_t *bytes, uint32_t len)
{
    struct fs_peer *peer = ctx;
    (void)ntbm;
    settle_down(peer->fabric);
    coll_net_message(&peer->fabric->net, peer->number, bytes, len);
}

static void on_event(void *ctx, struct ntbm_peer *ntbm, const char *text)
{
    (void)ntbm;
    peer_event(ctx, "warn", text);
}

const char *fs_fabric_machine(const struct fs_fabric *fabric, unsigned node)
{
    if (node == (unsigned)fabric->fs->settings->node)
        return fabric->host;
    const struct ntbm_peer *peer =
        node < (unsigned)fabric->fs->settings->nodes ? fabric->peers[node].peer : NULL;
    return peer && peer->partner.magic ? peer->partner.host : NULL;
}

static const struct ntbm_peer_ops peer_ops = {
    .on_up = on_up, .on_down = on_down, .on_message = on_message, .on_event = on_event};

/* ---- the order of the ring ---- */

static const char *switch_of(const struct fs_settings *settings, unsigned node)
{
    return settings->node_list[node].switch_name;
}

/* Nodes of one switch stand together, in the order in which the switches first appear: so between switches
 * the ring crosses once for each switch, the least there is. The same on every node. */
static void find_order(struct fs_fabric *fabric)
{
    const struct fs_settings *settings = fabric->fs->settings;
    unsigned n = (unsigned)settings->nodes, placed = 0, switches = 0;
    bool done[FS_NODE_MAX] = {false};
    for (unsigned first = 0; first < n; first++) {
        if (done[first])
            continue;
        switches++;
        for (unsigned i = first; i < n; i++) {
            bool same = !done[i] && strcmp(switch_of(settings, i), switch_of(settings, first)) == 0;
            if (!same)
                continue;
            done[i] = true;
            fabric->order[placed++] = i;
        }
    }
    if (switches > 1)
        snprintf(fabric->order_why, sizeof(fabric->order_why),
                 "nodes of one switch are neighbours; the ring crosses between the %u switches %u times",
                 switches, switches);
    else
        snprintf(fabric->order_why, sizeof(fabric->order_why),
                 "by number; all nodes are on one switch, or none is named");
}

/* ---- opening ---- */

/* What the settings name, or shared memory of this machine: then the nodes are emulated. */
static int find_uri(const struct fs_settings *settings, const char *text, unsigned node, struct ntbm_uri *out,
                    struct ut_err *err)
{
    char emulated[160];
    snprintf(emulated, sizeof(emulated), "shm:fabricfs.%s.%u", settings->fabric, node);
    return ntbm_uri_parse(*text ? text : emulated, out, err);
}

static int open_landing(struct fs_fabric *fabric, struct ut_err *err)
{
    const struct fs_settings *settings = fabric->fs->settings;
    unsigned n = (unsigned)settings->nodes, me = (unsigned)settings->node;
    struct ntbm_uri uri;
    uint64_t area = n <= 8 ? AREA_BYTES : AREA_BYTES / 4;
    if ((n - 1) * area > LANDING_BYTES)
        area = LANDING_BYTES / (n - 1) & ~(UINT64_C(4096) - 1);
    int rc = find_uri(settings, settings->node_list[me].landing, me, &uri, err);
    if (!rc)
        rc = ntbm_mem_open(&uri, NTBM_LANDING, NTBM_HEADER_BYTES + (n - 1) * area, &fabric->landing, err);
    if (rc)
        return rc;
    fs_numa_prefer(fabric->fs, fabric->landing.base, fabric->landing.bytes);
    struct ntbm_node_attr attr = {.fabric = settings->fabric,
                                  .node = me,
                                  .node_count = n,
                                  .landing = fabric->landing.base,
                                  .landing_bytes = fabric->landing.bytes,
                                  .limit_ns = (uint64_t)settings->heartbeat_ms * UT_NS_PER_MS};
    rc = ntbm_node_identify(&attr, fabric->host);
    if (rc)
        return ut_err_set(err, rc, "this machine cannot be identified: %s", strerror(-rc));
    ntbm_guard_cover(fabric->landing.base, fabric->landing.bytes);
    struct ut_err why = {""};
    rc = ntbm_node_init(&fabric->node, &attr, &why);
    return rc ? ut_err_set(err, rc, "%s:%.60s: %s", uri.kind->name, uri.name, why.text) : 0;
}

static uint64_t clock_now(void *ctx)
{
    (void)ctx;
    return ut_clock_ns();
}

static int add_peer(struct fs_fabric *fabric, unsigned number, struct ut_err *err)
{
    const struct fs_node_settings *node = &fabric->fs->settings->node_list[number];
    struct fs_peer *peer = &fabric->peers[number];
    struct ntbm_uri uri;
    const char *named = *node->window ? node->window : node->landing;
    int rc = find_uri(fabric->fs->settings, named, number, &uri, err);
    if (rc)
        return rc;
    peer->fabric = fabric;
    peer->number = number;
    ntbm_mem_link_init(&peer->memory, &uri);
    struct ntbm_link *link = &peer->memory.link;
    if (node->bandwidth_bytes || node->latency_ns || fabric->fs->settings->faults) {
        struct ntbm_emu_attr attr = {.bandwidth = node->bandwidth_bytes,
                                     .latency_ns = (uint64_t)node->latency_ns};
        ntbm_emu_init(&peer->emu, link, &attr, clock_now, NULL, number);
        peer->emulated = true;
        link = &peer->emu.link;
    }
    rc = ntbm_node_add(&fabric->node, number, link, &peer_ops, peer, &peer->peer);
    return rc ? ut_err_set(err, rc, "node %u: %s", number, strerror(-rc)) : 0;
}

static int set_up(struct fs_fabric *fabric, struct ut_err *err)
{
    const struct fs_settings *settings = fabric->fs->settings;
    unsigned n = (unsigned)settings->nodes, me = (unsigned)settings->node;
    find_order(fabric);
    int rc = open_landing(fabric, err);
    if (rc)
        return rc;
    rc = coll_net_init(&fabric->net, me, fabric->node.peers, n, fabric->order, ut_clock_ns);
    if (rc)
        return ut_err_set(err, rc, "no memory");
    for (unsigned i = 0; !rc && i < n; i++) {
        if (i != me)
            rc = add_peer(fabric, i, err);
    }
    return rc;
}

int fs_fabric_create(struct fs *fs, struct fs_fabric **out, struct ut_err *err)
{
    unsigned n = (unsigned)fs->settings->nodes;
    *out = NULL;
    if (n < 2)
        return 0;
    struct fs_fabric *fabric = calloc(1, sizeof(*fabric) + n * sizeof(fabric->peers[0]));
    if (!fabric)
        return ut_err_set(err, -ENOMEM, "no memory");
    fabric->fs = fs;
    fabric->landing.fd = -1;
    int rc = set_up(fabric, err);
    if (rc) {
        fs_fabric_destroy(fabric);
        return rc;
    }
    *out = fabric;
    return 0;
}

void fs_fabric_destroy(struct fs_fabric *fabric)
{
    if (!fabric)
        return;
    if (fabric->net.peers)
        coll_net_fini(&fabric->net);
    if (fabric->node.peers)
        ntbm_node_fini(&fabric->node);
    for (unsigned i = 0; i < (unsigned)fabric->fs->settings->nodes; i++) {
        if (fabric->peers[i].emulated)
            ntbm_emu_fini(&fabric->peers[i].emu);
    }
    ntbm_guard_cover(NULL, 0);
    ntbm_mem_remove(&fabric->landing);
    free(fabric);
}

/* ---- running ---- */

void fs_fabric_touch(struct fs_fabric *fabric)
{
    if (fabric)
        fabric->active_ns = ut_clock_ns();
}

/* Only beats have to be kept: no session begins or ends, and nobody here waits for what others say. */
static bool may_rest(const struct fs_fabric *fabric)
{
    for (unsigned i = 0; i < (unsigned)fabric->fs->settings->nodes; i++) {
        const struct ntbm_peer *peer = fabric->peers[i].peer;
        if (peer && (peer->state == NTBM_GREETING || peer->state == NTBM_DOWN))
            return false;
    }
    if (coll_witness_is_busy(&fabric->net))
        return false;
    UT_LIST_EACH(&fabric->fs->jobs, struct fs_job, link, job)
    {
        if (coll_job_is_busy(job->coll))
            return false;
    }
    return true;
}

static uint64_t longest_sleep(const struct fs_fabric *fabric)
{
    uint64_t beat = fabric->node.self.limit_ns / 10;
    uint64_t longest = coll_net_is_busy(&fabric->net) ? BUSY_SLEEP_NS
                       : may_rest(fabric)             ? REST_SLEEP_NS
                                                      : IDLE_SLEEP_NS;
    return longest < beat ? longest : beat;
}

/* Somebody has shortened our landing memory: all that peers wrote is lost, so all links begin anew. */
static void restore_landing(struct fs_fabric *fabric, uint64_t now)
{
    static const char gone[] = "our landing memory was taken away: somebody has shortened it";
    unsigned me = (unsigned)fabric->fs->settings->node;
    struct ut_err err;
    char object[32];
    snprintf(object, sizeof(object), "nodes/%u", me);
    if (!fabric->restore_ns)
        fs_events_add(fabric->fs, "error", object, gone);
    bool due = now >= fabric->restore_ns;
    int rc = due ? ntbm_mem_restore(&fabric->landing, &err) : -EAGAIN;
    if (due && rc)
        fs_events_add(fabric->fs, "error", object, err.text);
    if (due)
        fabric->restore_ns = now + UT_NS_PER_S;
    ntbm_node_renew(&fabric->node, gone);
    settle_down(fabric);
    if (rc)
        return;
    fabric->restore_ns = 0;
    ntbm_guard_cover(fabric->landing.base, fabric->landing.bytes);
    fs_events_add(fabric->fs, "info", object, "our landing memory is whole again");
}

/* What is cut off may be a part that nobody looks at before a peer has mapped it, which it refuses to do. */
static bool is_landing_gone(struct fs_fabric *fabric, uint64_t now)
{
    bool whole = true;
    if (now >= fabric->look_ns) {
        fabric->look_ns = now + fabric->node.self.limit_ns / 10;
        whole = ntbm_mem_is_whole(&fabric->landing);
    }
    return !whole || ntbm_guard_is_gone();
}

uint64_t fs_fabric_poll(struct fs_fabric *fabric)
{
    uint64_t now = ut_clock_ns();
    if (is_landing_gone(fabric, now))
        restore_landing(fabric, now);
    bool moved = ntbm_node_poll(&fabric->node, now);
    settle_down(fabric);
    moved = coll_net_poll(&fabric->net) || moved;
    settle_down(fabric);
    if (moved)
        fabric->active_ns = now;
    uint64_t idle = now - fabric->active_ns;
    if (idle < HOT_NS) {
        if (!moved)
            sched_yield(); /* what we wait for may be for another process on this core to do */
        return 0;
    }
    uint64_t longest = longest_sleep(fabric);
    return idle / 4 < longest ? idle / 4 : longest;
}

uint64_t fs_fabric_slowest(const struct fs_fabric *fabric)
{
    uint64_t slowest = 0;
    for (unsigned i = 0; i < (unsigned)fabric->fs->settings->nodes; i++) {
        uint64_t bandwidth = fabric->peers[i].emulated ? fabric->peers[i].emu.attr.bandwidth : 0;
        if (bandwidth && (!slowest || bandwidth < slowest))
            slowest = bandwidth;
    }
    return slowest;
}

int fs_fabric_break_link(struct fs_peer *peer, const char *text, size_t len, struct ut_err *err)
{
    return ntbm_emu_faults_parse(text, len, &peer->emu.faults, err);
}

/* ---- in words ---- */

/* How stores reach the peer, and how fast they were when the link came up first. */
static void show_mapping(const struct fs_peer *peer, struct ut_text *out)
{
    const struct ntbm_link *link = &peer->memory.link;
    if (link->bytes)
        ut_text_addf(out, "mapping %s\nwindow_bytes %llu\n", ntbm_mapping_name(peer->memory.mem.mapping),
                     (unsigned long long)link->bytes);
    if (link->write_bytes_s)
        ut_text_addf(out, "write_bytes_s %llu\n", (unsigned long long)link->write_bytes_s);
}

void fs_fabric_show_link(const struct fs_peer *peer, struct ut_text *out)
{
    const struct ntbm_peer *ntbm = peer->peer;
    char uri[256], faults[128];
    ntbm_uri_show(&peer->memory.uri, uri, sizeof(uri));
    ntbm_emu_faults_show(&peer->emu.faults, faults, sizeof(faults));
    ut_text_addf(out, "state %s\n", ntbm_peer_state_name(ntbm->state));
    if (ntbm->reason[0])
        ut_text_addf(out, "why %s\n", ntbm->reason);
    ut_text_addf(out, "link_up %s\nverified %s\n", ntbm->link_up ? "yes" : "no",
                 ntbm->verified_in && ntbm->verified_out ? "yes" : "no");
    ut_text_addf(out, "window %s\n", uri);
    ut_text_addf(out, "memory %s\n", peer->memory.uri.kind->what);
    show_mapping(peer, out);
    if (peer->fabric->fs->settings->faults)
        ut_text_addf(out, "faults %s\n", faults);
    if (peer->emulated)
        ut_text_addf(out, "emulated_bandwidth_bytes_s %llu\nemulated_latency_ns %llu\n",
                     (unsigned long long)peer->emu.attr.bandwidth,
                     (unsigned long long)peer->emu.attr.latency_ns);
    if (ntbm->heard.ident.magic)
        ut_text_addf(out, "host %s\npid %u\n", ntbm->heard.ident.host, ntbm->heard.ident.pid);
}

void fs_fabric_show_landing(const struct fs_fabric *fabric, struct ut_text *out)
{
    char uri[256];
    ntbm_uri_show(&fabric->landing.uri, uri, sizeof(uri));
    ut_text_addf(out, "state self\nlanding %s\nmemory %s\nmapping %s\n", uri, fabric->landing.uri.kind->what,
                 ntbm_mapping_name(fabric->landing.mapping));
}

void fs_fabric_show_stats(const struct fs_peer *peer, struct ut_text *out)
{
    const struct ntbm_peer *ntbm = peer->peer;
    const struct ntbm_link *link = &peer->memory.link;
    ut_text_stat(out, "sessions", ntbm->figures.sessions);
    ut_text_stat(out, "beats_sent", ntbm->figures.beats_sent);
    ut_text_stat(out, "beats_heard", ntbm->figures.beats_heard);
    ut_text_stat(out, "hellos_bad", ntbm->figures.hellos_bad);
    ut_text_stat(out, "messages_dropped", ntbm->figures.dropped);
    ut_text_stat(out, "messages_sent", ntbm->mail.messages_sent);
    ut_text_stat(out, "messages_received", ntbm->mail.messages_received);
    ut_text_stat(out, "slot_bytes", ntbm->self->ident.geometry.slot_bytes);
    ut_text_stat(out, "slot_count", ntbm->self->ident.geometry.slot_count);
    ut_text_stat(out, "puts", atomic_load(&link->puts));
    ut_text_stat(out, "put_bytes", atomic_load(&link->put_bytes));
    ut_text_stat(out, "remote_reads", atomic_load(&link->reads));
}

void fs_fabric_show_topology(const struct fs_fabric *fabric, struct ut_text *out)
{
    const struct fs_settings *settings = fabric->fs->settings;
    unsigned n = (unsigned)settings->nodes;
    for (unsigned i = 0; i < n; i++) {
        if (i == (unsigned)settings->node) {
            ut_text_addf(out, "node %u host=%s switch=%s this node, local memory", i, fabric->host,
                         *switch_of(settings, i) ? switch_of(settings, i) : "-");
            fs_watch_show_topology(fabric->fs, i, out);
            ut_text_addf(out, "\n");
            continue;
        }
        const struct fs_peer *peer = &fabric->peers[i];
        char uri[256];
        ntbm_uri_show(&peer->memory.uri, uri, sizeof(uri));
        ut_text_addf(out, "node %u host=%s switch=%s %s by %s bandwidth=%llu", i,
                     peer->peer->heard.ident.magic ? peer->peer->heard.ident.host : "-",
                     *switch_of(settings, i) ? switch_of(settings, i) : "-",
                     ntbm_peer_state_name(peer->peer->state), uri,
                     (unsigned long long)settings->node_list[i].bandwidth_bytes);
        fs_watch_show_topology(fabric->fs, i, out);
        ut_text_addf(out, "\n");
    }
    ut_text_addf(out, "ring");
    for (unsigned i = 0; i < n; i++)
        ut_text_addf(out, " %u", fabric->order[i]);
    ut_text_addf(out, " (%s)\n", fabric->order_why);
}
