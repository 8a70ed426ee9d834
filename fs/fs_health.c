/*
 * `health`: "ok", or one finding a line: severity, object, fact, next step.
 */
#include "fs/fs_fabric.h"
#include "fs/fs_memory.h"
#include "fs/fs_root.h"
#include "fs/fs_watch.h"
#include "utils/ut_clock.h"
#include "utils/ut_num.h"

#include <errno.h>
#include <inttypes.h>

static void check_buffers(const struct fs *fs, struct ut_text *out)
{
    if (!fs->passthrough && fs->settings->buffer == FS_BUFFER_AUTO)
        ut_text_addf(
            out,
            "warn buffers kept coherent by invalidation, not shared (%s); mapped buffers are slower and "
            "cannot be pinned; next: run as root on Linux 6.9 or newer with libfuse 3.17 or newer\n",
            fs->buffer_why);
}

static void check_requests(const struct fs *fs, struct ut_text *out)
{
    if (fs->wait_limit_ns)
        ut_text_addf(
            out,
            "warn requests the kernel ends the mount when one waits too long, so operations time out "
            "after %" PRIu64 " s at the latest; next: set fs.fuse.max_request_timeout and "
            "fs.fuse.default_request_timeout to 0, or to more than the jobs' timeout\n",
            fs->wait_limit_ns / UT_NS_PER_S);
}

static void check_memory(struct fs *fs, struct ut_text *out)
{
    uint64_t used = fs_memory_used_bytes(fs), limit = fs->settings->memory_bytes;
    if (used > limit / 10 * 9)
        ut_text_addf(out,
                     "warn memory %" PRIu64 " of %" PRIu64
                     " bytes are used by buffers; next: remove jobs that are "
                     "over, or raise memory\n",
                     used, limit);
}

static void check_limit(const struct fs *fs, struct ut_text *out)
{
    char limit[24], ram[24];
    if (fs->settings->memory_bytes <= fs->ram_bytes)
        return;
    ut_num_show_bytes(fs->settings->memory_bytes, limit);
    ut_num_show_bytes(fs->ram_bytes, ram);
    ut_text_addf(out,
                 "warn memory the limit of %s is above the %s that this machine, or container, has: buffers "
                 "that fill it are the end of this daemon; next: set memory to half of that\n",
                 limit, ram);
}

static void check_peers(const struct fs *fs, struct ut_text *out)
{
    for (unsigned i = 0; fs->fabric && i < (unsigned)fs->settings->nodes; i++) {
        const struct ntbm_peer *peer = fs->fabric->peers[i].peer;
        if (peer && !ntbm_peer_is_open(peer))
            ut_text_addf(out,
                         "warn nodes/%u is %s: %s; next: start its daemon, or compare landing and window of "
                         "both configurations\n",
                         i, ntbm_peer_state_name(peer->state), peer->reason);
    }
}

static void show_lost(const struct coll_rank *rank, struct ut_text *out)
{
    const char *job = rank->job->name;
    ut_text_addf(out, "error jobs/%s rank %u is lost: ", job, rank->number);
    if (rank->lost_rc == -ECONNRESET)
        ut_text_addf(out, "its process %d ended; next: start it again", (int)rank->pid);
    else
        ut_text_addf(out, "node %u is out of reach; next: bring it back", rank->node);
    ut_text_addf(out, ", or write drop=%u to jobs/%s/members\n", rank->number, job);
}

static void check_job(const struct coll_job *job, struct ut_text *out)
{
    if (job->conflict.result)
        ut_text_addf(
            out,
            "error jobs/%s %s; next: make it with the same config, by the same user, and each rank on "
            "one node\n",
            job->name, job->conflict.err.text);
    for (unsigned r = 0; job->ranks && r < job->config.world; r++) {
        if (job->ranks[r].state == COLL_LOST)
            show_lost(&job->ranks[r], out);
    }
}

void fs_health_render(void *of, struct ut_text *out)
{
    struct fs *fs = of;
    check_buffers(fs, out);
    check_requests(fs, out);
    check_memory(fs, out);
    check_limit(fs, out);
    check_peers(fs, out);
    fs_watch_show_health(fs, out);
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        check_job(job->coll, out);
    }
    if (!out->len)
        ut_text_addf(out, "ok\n");
}
