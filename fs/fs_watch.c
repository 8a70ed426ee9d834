#include "fs/fs_watch.h"

#include "fs/fs_drain.h"
#include "fs/fs_fabric.h"
#include "utils/ut_clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_PATIENCE_NS (2 * UT_NS_PER_S)

/* What the sessions with one node tell of the link to it. */
struct session {
    struct ut_pci_bucket lost;
    bool suspect;
    uint64_t suspect_ns; /* since when */
    uint64_t trouble_ns; /* when it was last as bad as that */
};

struct fs_watch {
    struct fs *fs;
    const char *sysfs;     /* NULL: this machine's */
    struct red_pool *pool; /* one worker */
    struct red_work work;
    struct fs_post post;
    bool out;            /* a look is */
    atomic_bool parted;  /* set by whichever comes first, the end of the look that is out or that of us all */
    uint64_t out_ns;     /* since when */
    uint64_t due_ns;     /* the next one */
    uint64_t settled_ns; /* when the last one was judged; 0: none was */
    struct ut_pci_limits limits;
    struct fs_drain *drain;
    char session_why[96]; /* the one reason there is for a suspect session */
    struct session session[FS_NODE_MAX];
    struct fs_watched *of_node[FS_NODE_MAX]; /* NULL: none */
    unsigned count;
    struct fs_watched list[]; /* [count] */
};

/* ---- on the worker ---- */

/* A device that has gone may be back with new files. The old watch stays until a new one can be had: it
 * knows what was there. */
static void look_for(const struct fs_watch *all, struct fs_watched *watched)
{
    struct ut_pci_watch *fresh;
    if (ut_pci_watch_open(all->sysfs, watched->addr, &fresh))
        return;
    ut_pci_watch_close(watched->watch);
    watched->watch = fresh;
}

static void look_at(const struct fs_watch *all, struct fs_watched *watched)
{
    struct ut_pci_health health;
    if (!watched->watch || watched->fresh.gone)
        look_for(all, watched);
    if (watched->watch && ut_pci_watch_look(watched->watch, &health) == 0)
        ut_pci_report_of(watched->watch, &health, &watched->fresh);
}

static void look(struct red_work *work, unsigned idx)
{
    struct fs_watch *all = UT_CONTAINER(work, struct fs_watch, work);
    (void)idx;
    for (unsigned i = 0; i < all->count; i++)
        look_at(all, &all->list[i]);
}

static void finish(struct red_work *work)
{
    struct fs_watch *all = UT_CONTAINER(work, struct fs_watch, work);
    if (!atomic_exchange(&all->parted, true))
        fs_loop_post(&all->fs->loop, &all->post);
}

/* ---- judging ---- */

static void say(void *ctx, const char *severity, const char *text)
{
    const struct fs_watched *watched = ctx;
    char object[32];
    snprintf(object, sizeof(object), "nodes/%u", watched->blamed);
    fs_events_add(watched->all->fs, severity, object, text);
}

static void measure_data(struct fs_watched *watched, uint64_t past_ns)
{
    const struct fs *fs = watched->all->fs;
    uint64_t bytes = 0;
    for (unsigned i = 0; fs->fabric && i < (unsigned)fs->settings->nodes; i++) {
        if (watched->all->of_node[i] == watched && i != (unsigned)fs->settings->node)
            bytes += atomic_load(&fs->fabric->peers[i].memory.link.put_bytes);
    }
    uint64_t more = bytes > watched->put_bytes ? bytes - watched->put_bytes : 0;
    watched->data_gbytes = past_ns ? (double)more / (double)past_ns : 0;
    watched->put_bytes = bytes;
}

static void drain(const struct fs_watched *watched)
{
    char addr[UT_PCI_ADDR_CHARS];
    ut_pci_addr_show(watched->addr, addr);
    fs_drain_node(watched->all->drain, watched->blamed, watched->trend.why, addr);
}

static void on_look(struct fs_post *post)
{
    struct fs_watch *all = UT_CONTAINER(post, struct fs_watch, post);
    uint64_t now = ut_clock_ns(), past = all->settled_ns ? now - all->settled_ns : 0;
    all->out = false;
    all->settled_ns = now;
    for (unsigned i = 0; i < all->count; i++) {
        struct fs_watched *watched = &all->list[i];
        watched->now = watched->fresh;
        measure_data(watched, past);
        if (ut_pci_trend_look(&watched->trend, &watched->now, now))
            drain(watched);
    }
}

/* ---- sessions ---- */

static void session_event(const struct fs_watch *all, unsigned node, const char *severity, const char *text)
{
    char object[32];
    snprintf(object, sizeof(object), "nodes/%u", node);
    fs_events_add(all->fs, severity, object, text);
}

void fs_watch_lost(struct fs_watch *all, unsigned node, uint64_t now)
{
    struct session *session = all ? &all->session[node] : NULL;
    char text[128];
    if (!session || !ut_pci_pour(&session->lost, 1, all->limits.drops, UT_PCI_DROPS_WINDOW_NS, now))
        return;
    session->trouble_ns = now;
    if (session->suspect)
        return;
    session->suspect = true;
    session->suspect_ns = now;
    snprintf(text, sizeof(text), "suspect: %s", all->session_why);
    session_event(all, node, "error", text);
    fs_drain_node(all->drain, node, all->session_why, "");
    fs_loop_wake_at(&all->fs->loop, now + all->limits.well_ns);
}

static void settle_sessions(struct fs_watch *all, uint64_t now)
{
    for (unsigned i = 0; i < (unsigned)all->fs->settings->nodes; i++) {
        struct session *session = &all->session[i];
        if (!session->suspect)
            continue;
        if (now - session->trouble_ns < all->limits.well_ns) {
            fs_loop_wake_at(&all->fs->loop, session->trouble_ns + all->limits.well_ns);
            continue;
        }
        session->suspect = false;
        session_event(all, i, "info", "well again: its sessions have lasted for a while");
    }
}

const char *fs_watch_session_why(const struct fs_watch *all, unsigned node, uint64_t *since_ns)
{
    if (!all || !all->session[node].suspect)
        return NULL;
    *since_ns = all->session[node].suspect_ns;
    return all->session_why;
}

/* ---- beginning a look ---- */

static void begin_look(struct fs_watch *all, uint64_t now)
{
    all->due_ns = now + (uint64_t)all->fs->settings->sample_ms * UT_NS_PER_MS;
    if (all->out)
        return;
    all->out = true;
    all->out_ns = now;
    atomic_store(&all->parted, false);
    all->work = (struct red_work){.block = look, .finish = finish, .block_count = 1};
    red_pool_submit(all->pool, &all->work);
}

void fs_watch_tick(struct fs_watch *all, uint64_t now)
{
    if (!all)
        return;
    settle_sessions(all, now);
    if (!all->count)
        return;
    if (now >= all->due_ns)
        begin_look(all, now);
    fs_loop_wake_at(&all->fs->loop, all->due_ns);
}

/* ---- asking ---- */

const struct fs_watched *fs_watch_of(const struct fs_watch *all, unsigned node)
{
    return all && node < FS_NODE_MAX ? all->of_node[node] : NULL;
}

const struct fs_watched *fs_watch_at(const struct fs_watch *all, unsigned idx)
{
    return all && idx < all->count ? &all->list[idx] : NULL;
}

uint64_t fs_watch_late_ns(const struct fs_watch *all, uint64_t now)
{
    uint64_t allowed = 5 * UT_NS_PER_S;
    return all && all->out && now - all->out_ns > allowed ? now - all->out_ns - allowed : 0;
}

bool fs_watch_is_suspect(void *ctx, unsigned node)
{
    const struct fs *fs = ctx;
    const struct fs_watched *watched;
    if (fs->watch && fs->watch->session[node].suspect)
        return true;
    for (unsigned i = 0; (watched = fs_watch_at(fs->watch, i)); i++) {
        if (watched->blamed == node && watched->trend.suspect)
            return true;
    }
    return false;
}

/* ---- beginning and ending ---- */

bool fs_watch_device_of(const struct fs_node_settings *node, struct ut_pci_addr *out)
{
    const char *memory = *node->window ? node->window : node->landing;
    if (*node->device)
        return ut_pci_addr_parse(node->device, out) == 0;
    return strncmp(memory, "pci:", 4) == 0 && ut_pci_addr_scan(memory + 4, out);
}

static struct fs_watched *find_or_add(struct fs_watch *all, struct ut_pci_addr addr)
{
    for (unsigned i = 0; i < all->count; i++) {
        if (ut_pci_addr_cmp(all->list[i].addr, addr) == 0)
            return &all->list[i];
    }
    struct fs_watched *watched = &all->list[all->count++];
    unsigned self = (unsigned)all->fs->settings->node;
    *watched = (struct fs_watched){.all = all, .addr = addr, .blamed = self};
    ut_pci_trend_init(&watched->trend, &all->limits, say, watched);
    return watched;
}

static void add(struct fs_watch *all, unsigned node, struct ut_pci_addr addr)
{
    unsigned self = (unsigned)all->fs->settings->node;
    struct fs_watched *watched = find_or_add(all, addr);
    all->of_node[node] = watched;
    if (node != self)
        watched->blamed = watched->peers++ ? self : node;
}

static void find_devices(struct fs_watch *all)
{
    const struct fs_settings *settings = all->fs->settings;
    struct ut_pci_addr addr;
    for (unsigned i = 0; settings->sample_ms && i < (unsigned)settings->nodes; i++) {
        if (fs_watch_device_of(&settings->node_list[i], &addr))
            add(all, i, addr);
    }
}

int fs_watch_create(struct fs *fs, struct fs_watch **out, struct ut_err *err)
{
    const struct fs_settings *settings = fs->settings;
    size_t bytes = sizeof(struct fs_watch) + (size_t)settings->nodes * sizeof(struct fs_watched);
    struct fs_watch *all = calloc(1, bytes);
    *out = NULL;
    if (!all)
        return ut_err_set(err, -ENOMEM, "no memory");
    all->fs = fs;
    all->post.run = on_look;
    all->sysfs = strcmp(settings->sysfs, "/sys") == 0 ? NULL : settings->sysfs;
    all->limits = (struct ut_pci_limits){.errors = (unsigned)settings->error_limit,
                                         .drops = (unsigned)settings->drop_limit,
                                         .well_ns = (uint64_t)settings->well_s * UT_NS_PER_S};
    snprintf(all->session_why, sizeof(all->session_why),
             "its link flaps: sessions were lost more than %d times in a minute, though its daemon lives",
             settings->drop_limit);
    find_devices(all);
    int rc = all->count ? red_pool_create(1, -1, &all->pool) : 0;
    if (!rc)
        rc = fs_drain_create(fs, &all->drain);
    if (rc) {
        fs_watch_destroy(all);
        return ut_err_set(err, rc, "devices cannot be watched: %s", strerror(-rc));
    }
    fs_watch_tick(all, ut_clock_ns());
    *out = all;
    return 0;
}

/* A device may hold a look up for as long as it likes. Then the worker stays, and posts nothing when it
 * returns. */
static bool end_looks(struct fs_watch *all)
{
    if (!red_pool_destroy_within(all->pool, LOOK_PATIENCE_NS)) {
        if (!atomic_exchange(&all->parted, true))
            return false;
        red_pool_destroy(all->pool); /* it has returned after all */
    }
    fs_loop_drain(&all->fs->loop);
    return true;
}

bool fs_watch_destroy(struct fs_watch *all)
{
    if (!all)
        return true;
    bool ended = !all->pool || end_looks(all);
    fs_drain_destroy(all->drain);
    if (!ended) {
        fs_events_add(all->fs, "warn", "watch",
                      "a device holds up the last look at it, whose thread is left behind");
        return false;
    }
    for (unsigned i = 0; i < all->count; i++)
        ut_pci_watch_close(all->list[i].watch);
    free(all);
    return true;
}
