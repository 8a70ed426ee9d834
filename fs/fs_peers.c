#include "fs/fs_peers.h"

#include "fs/fs_fabric.h"
#include "fs/fs_text.h"
#include "fs/fs_watch.h"
#include "fs/fs_window.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- link and stats ---- */

static void show_link(void *of, struct ut_text *out)
{
    const struct fs_window *window = of;
    if (window->peer)
        fs_fabric_show_link(window->peer, out);
    else if (window->fs->fabric)
        fs_fabric_show_landing(window->fs->fabric, out);
    else
        ut_text_addf(out, "state self\nmemory emulated, this machine's RAM\n");
    fs_window_show(window, out);
    fs_watch_show_link(window->fs, window->node, out);
}

static void show_stats(void *of, struct ut_text *out)
{
    const struct fs_window *window = of;
    struct fs_extent extent;
    if (window->peer) {
        fs_fabric_show_stats(window->peer, out);
        return;
    }
    fs_window_find(window, &extent);
    ut_text_stat(out, "landing_bytes", extent.bytes);
    ut_text_stat(out, "remote_reads", 0);
}

static int take_faults(void *of, const char *text, size_t len, struct ut_err *err)
{
    const struct fs_window *window = of;
    return fs_fabric_break_link(window->peer, text, len, err);
}

static const struct fs_text link_text = {.render = show_link};
static const struct fs_text breakable_link_text = {.render = show_link, .take = take_faults};
static const struct fs_text stats_text = {.render = show_stats};

/* ---- making them ---- */

static int make_alone(struct ntbm_buf *out)
{
    struct ntbm_pool_attr attr = {.quota_bytes = FS_WINDOW_ALONE_BYTES};
    struct ntbm_pool *pool;
    int rc = ntbm_pool_create(&attr, &pool);
    if (rc)
        return rc;
    rc = ntbm_buf_create(pool, out);
    ntbm_pool_put(pool);
    return rc ? rc : ntbm_buf_resize(out, FS_WINDOW_ALONE_BYTES);
}

static const struct fs_kind directory_kind = {.mode = S_IFDIR | 0755, .still = true};

static int make_node(struct fs *fs, struct fs_node *nodes, unsigned number)
{
    const struct fs_owner *owner = &fs->root_owner;
    char name[16];
    snprintf(name, sizeof(name), "%u", number);
    struct fs_node *dir = fs_node_create(nodes, name, &directory_kind, owner, NULL);
    struct fs_window *window = dir ? calloc(1, sizeof(*window)) : NULL;
    if (!window)
        return -ENOMEM;
    window->fs = fs;
    window->node = number;
    window->alone.fd = -1;
    if (number != (unsigned)fs->settings->node)
        window->peer = &fs->fabric->peers[number];
    int rc = fs->fabric ? 0 : make_alone(&window->alone);
    if (rc || !fs_node_create(dir, "window", &fs_window_kind, owner, window)) {
        free(window);
        return rc ? rc : -ENOMEM;
    }
    bool breakable = window->peer && fs->settings->faults;
    const struct fs_text *link = breakable ? &breakable_link_text : &link_text;
    return fs_text_create(dir, "link", link, breakable ? 0644 : 0444, owner, window) &&
                   fs_text_create(dir, "stats", &stats_text, 0444, owner, window)
               ? 0
               : -ENOMEM;
}

int fs_peers_init(struct fs *fs)
{
    struct fs_node *nodes = fs_node_create(fs->root, "nodes", &directory_kind, &fs->root_owner, NULL);
    int rc = nodes ? 0 : -ENOMEM;
    for (unsigned i = 0; !rc && i < (unsigned)fs->settings->nodes; i++)
        rc = make_node(fs, nodes, i);
    return rc;
}
