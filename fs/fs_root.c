#include "fs/fs_root.h"

#include "fs/fs_fabric.h"
#include "fs/fs_memory.h"
#include "fs/fs_numa.h"
#include "fs/fs_text.h"
#include "utils/ut_clock.h"

#include <errno.h>
#include <unistd.h>

static void show_readme(void *of, struct ut_text *out)
{
    (void)of;
    ut_text_addf(out, "%s", fs_readme);
}

static void show_version(void *of, struct ut_text *out)
{
    (void)of;
    ut_text_addf(out, "fabricfs " FS_VERSION "\n");
}

static void show_config(void *of, struct ut_text *out)
{
    const struct fs *fs = of;
    ut_text_addf(out, "; in force: ");
    fs_numa_show(fs, out);
    fs_options_render(fs->settings, out);
}

static unsigned count_jobs(const struct fs *fs)
{
    unsigned count = 0;
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        count++;
    }
    return count;
}

static void show_stats(void *of, struct ut_text *out)
{
    struct fs *fs = of;
    ut_text_addf(out, "fabric %s\n", fs->settings->fabric);
    ut_text_stat(out, "node", (unsigned)fs->settings->node);
    ut_text_stat(out, "pid", (unsigned)getpid());
    ut_text_stat(out, "uptime_s", (ut_clock_ns() - fs->started_ns) / UT_NS_PER_S);
    ut_text_addf(out, "buffer_mode %s\n", fs->passthrough ? "passthrough" : "coherent");
    ut_text_addf(out, "buffer_mode_why %s\n", fs->buffer_why);
    ut_text_addf(out, "libfuse %s\n", fuse_pkgversion());
    ut_text_addf(out, "kernel %s\n", fs->table->name);
    fs_awake_show(&fs->awake, out);
    ut_text_stat(out, "workers", red_pool_threads(fs->workers));
    ut_text_addf(out, "numa_node %d\n", fs->numa_node);
    ut_text_stat(out, "request_limit_s", fs->wait_limit_ns / UT_NS_PER_S);
    ut_text_stat(out, "requests", fs->requests);
    ut_text_stat(out, "requests_parked", fs->parked);
    ut_text_stat(out, "jobs", count_jobs(fs));
    ut_text_stat(out, "memory_limit_bytes", fs->settings->memory_bytes);
    ut_text_stat(out, "memory_used_bytes", fs_memory_used_bytes(fs));
    ut_text_stat(out, "events_bytes", fs->events.total);
}

static void show_topology(void *of, struct ut_text *out)
{
    const struct fs *fs = of;
    char host[64] = "";
    if (fs->fabric) {
        fs_fabric_show_topology(fs->fabric, out);
        fs_numa_show(fs, out);
        return;
    }
    gethostname(host, sizeof(host) - 1);
    ut_text_addf(out, "node %d host=%s pid=%d this node, local memory\n", fs->settings->node, host,
                 (int)getpid());
    ut_text_addf(out, "ring %d (one node: operations are carried out in its memory, nothing travels)\n",
                 fs->settings->node);
    fs_numa_show(fs, out);
}

static const struct fs_text readme_text = {.render = show_readme};
static const struct fs_text version_text = {.render = show_version};
static const struct fs_text config_text = {.render = show_config};
static const struct fs_text stats_text = {.render = show_stats};
static const struct fs_text metrics_text = {.render = fs_metrics_render};
static const struct fs_text health_text = {.render = fs_health_render};
static const struct fs_text topology_text = {.render = show_topology};

static const struct fs_kind root_kind = {.mode = S_IFDIR | 0755, .still = true};

int fs_root_init(struct fs *fs)
{
    static const struct {
        const char *name;
        const struct fs_text *text;
    } files[] = {
        {"README", &readme_text},     {"version", &version_text}, {"config", &config_text},
        {"stats", &stats_text},       {"metrics", &metrics_text}, {"health", &health_text},
        {"topology", &topology_text},
    };
    fs->root = fs_node_create_root(fs, &root_kind, &fs->root_owner);
    if (!fs->root)
        return -ENOMEM;
    for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        if (!fs_text_create(fs->root, files[i].name, files[i].text, 0444, &fs->root_owner, fs))
            return -ENOMEM;
    }
    return fs_node_create(fs->root, "events", &fs_events_kind, &fs->root_owner, NULL) ? 0 : -ENOMEM;
}
