/*
 * The session: set up, served by the loop, torn down.
 *
 * The end comes by a signal, or by the kernel when somebody has unmounted, or aborted the connection, which
 * is a failure. What waits is answered (ESHUTDOWN), what runs ends first, the mount is detached even if files
 * on it are open, and the daemon goes.
 */
#include "fs/fs_serve.h"

#include "fs/fs.h"
#include "fs/fs_backing.h"
#include "fs/fs_exec.h"
#include "fs/fs_fabric.h"
#include "fs/fs_holders.h"
#include "fs/fs_job.h"
#include "fs/fs_memory.h"
#include "fs/fs_mount.h"
#include "fs/fs_numa.h"
#include "fs/fs_peers.h"
#include "fs/fs_root.h"
#include "fs/fs_trigger.h"
#include "fs/fs_watch.h"
#include "ntbmem/ntbm_guard.h"
#include "utils/ut_clock.h"
#include "utils/ut_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* More requests than can be queued at one time. */
#define QUEUED_MAX (1u << 14)

/* ---- the kernel's limit on waiting ---- */

static uint64_t read_sysctl_s(const char *path)
{
    char text[32];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
    return strtoull(text, NULL, 10);
}

/* Longest wait that is safe, nanoseconds; 0: any. A request that is older aborts the whole mount, so answers
 * come well before. */
static uint64_t find_wait_limit(void)
{
    uint64_t asked = read_sysctl_s("/proc/sys/fs/fuse/default_request_timeout");
    uint64_t most = read_sysctl_s("/proc/sys/fs/fuse/max_request_timeout");
    if (most && (!asked || asked > most))
        asked = most;
    return asked * UT_NS_PER_S * 3 / 4;
}

/* ---- how buffers reach clients ---- */

static void decide_buffers(struct fs *fs)
{
    fs->passthrough = FS_HAS_PASSTHROUGH && fs->settings->buffer != FS_BUFFER_COHERENT;
    const char *why =
        fs->passthrough ? "buffers are the clients' own pages" : "asked for by the buffer option";
    if (!FS_HAS_PASSTHROUGH)
        why = "libfuse is older than 3.17";
    snprintf(fs->buffer_why, sizeof(fs->buffer_why), "%s", why);
}

/* The kernel has offered passthrough; whether this process may use it shows only when it tries. */
static void probe_passthrough(struct fs *fs)
{
    int fuse_fd = fuse_session_fd(fs->session);
    int fd = fs->passthrough ? memfd_create("probe", MFD_CLOEXEC) : -1;
    if (fd < 0)
        return;
    int id = fs_backing_open(fuse_fd, fd);
    if (id > 0) {
        fs_backing_close(fuse_fd, id);
    } else {
        fs->passthrough = false;
        snprintf(fs->buffer_why, sizeof(fs->buffer_why), "passthrough: %s",
                 id == -EPERM ? "needs CAP_SYS_ADMIN" : strerror(-id));
    }
    close(fd);
}

/* ---- events of the loop ---- */

static void on_mounted(struct fs *fs)
{
    probe_passthrough(fs);
    char text[192];
    snprintf(text, sizeof(text), "mounted, buffers %s (%s)", fs->passthrough ? "passthrough" : "coherent",
             fs->buffer_why);
    fs_events_add(fs, "info", "node", text);
    if (fs->settings->buffer == FS_BUFFER_PASSTHROUGH && !fs->passthrough)
        fs_events_add(fs, "error", "node", "passthrough was asked for and cannot be had");
    fs->ready(fs->ready_ctx);
    fs->ready = NULL;
}

/* One request. False when there is none. */
static bool serve(struct fs *fs)
{
    int rc;
    do {
        rc = fuse_session_receive_buf(fs->session, &fs->request);
    } while (rc == -EINTR);
    if (rc == -EAGAIN)
        return false;
    if (rc <= 0) {
        fs->unmounted = true;
        fs_loop_remove(&fs->loop, &fs->fuse);
        fs_loop_stop(&fs->loop);
        return false;
    }
    fs->requests++;
    fuse_session_process_buf(fs->session, &fs->request);
    if (fs->mounted && fs->ready)
        on_mounted(fs);
    return true;
}

static void on_request(struct fs_source *source)
{
    serve(UT_CONTAINER(source, struct fs, fuse));
}

/* Serves all requests that are queued now. Clients that ask on and on are not waited for: so many cannot have
 * been there. */
static void serve_queued(struct fs *fs)
{
    for (unsigned i = 0; i < QUEUED_MAX && !fs->unmounted && serve(fs); i++) {
    }
}

static void on_signal(struct fs_source *source)
{
    struct fs *fs = UT_CONTAINER(source, struct fs, signals);
    struct signalfd_siginfo info;
    if (read(source->fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        fs_loop_stop(&fs->loop);
}

static void on_tick(void *ctx, uint64_t now)
{
    struct fs *fs = ctx;
    fs_jobs_tick(fs, now);
    fs_exec_tick(fs, now);
    fs_loop_wake_at(&fs->loop, fs_awake_tick(&fs->awake, now));
    fs_watch_tick(fs->watch, now);
    fs_events_tick(fs, now);
}

static uint64_t on_poll(void *ctx)
{
    struct fs *fs = ctx;
    uint64_t sleep_ns = fs_fabric_poll(fs->fabric);
    fs_jobs_settle(fs);
    fs_exec_submit(fs);
    return sleep_ns;
}

static void on_settle(void *ctx)
{
    struct fs *fs = ctx;
    if (fs_exec_waits_for_writes(fs)) {
        serve_queued(fs);
        fs_exec_writes_are_read(fs);
    }
    fs_trigger_settle_interrupted(fs);
    fs_exec_submit(fs);
}

/* ---- setting up ---- */

static int watch_signals(struct fs *fs)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &set, NULL))
        return -errno;
    fs->signals =
        (struct fs_source){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .ready = on_signal};
    return fs->signals.fd < 0 ? -errno : fs_loop_add(&fs->loop, &fs->signals);
}

/* Says itself, on stderr, what could be chosen. */
static int find_kernels(struct fs *fs)
{
    fs->table = red_table_find(fs->settings->kernel);
    if (fs->table)
        return 0;
    fprintf(stderr, "fabricfs: kernel = %s cannot be had on this machine, which runs", fs->settings->kernel);
    for (const struct red_table *const *table = red_tables(); *table; table++)
        fprintf(stderr, " %s", (*table)->name);
    fprintf(stderr, "\n");
    return -EIO;
}

/* Says itself, on stderr, which NUMA node cannot be had. */
static int place(struct fs *fs)
{
    struct ut_err err = {0};
    if (fs_numa_place(fs, &err) == 0)
        return 0;
    fprintf(stderr, "fabricfs: %s\n", err.text);
    return -EIO;
}

static int set_up_work(struct fs *fs)
{
    const struct fs_settings *settings = fs->settings;
    int rc = fs_loop_init(&fs->loop); /* first: tearing down closes what it has opened */
    if (!rc)
        rc = find_kernels(fs);
    if (!rc)
        rc = ntbm_guard_init();
    if (rc)
        return rc;
    fs->loop.tick = on_tick;
    fs->loop.settle = on_settle;
    fs->loop.ctx = fs;
    fs->ram_bytes = ut_memory_bytes();
    rc = watch_signals(fs); /* before there are threads, so that none of them takes a signal */
    if (!rc)
        rc = place(fs);
    if (!rc)
        rc = red_pool_create((unsigned)settings->workers, fs->numa_node, &fs->workers);
    return rc ? rc : red_pool_create(1, fs->numa_node, &fs->resizer);
}

/* Says itself, on stderr, why it cannot join. */
static int join_fabric(struct fs *fs)
{
    struct ut_err err = {0};
    if (fs_fabric_create(fs, &fs->fabric, &err) || fs_watch_create(fs, &fs->watch, &err)) {
        fprintf(stderr, "fabricfs: %s\n", err.text);
        return -EIO;
    }
    if (fs->fabric)
        fs->loop.poll = on_poll;
    return 0;
}

static int set_up_tree(struct fs *fs)
{
    int rc = fs_events_init(&fs->events);
    if (!rc)
        rc = join_fabric(fs);
    if (!rc)
        rc = fs_root_init(fs);
    if (!rc)
        rc = fs_jobs_init(fs);
    return rc ? rc : fs_peers_init(fs);
}

/* libfuse says itself, on stderr, why it cannot mount. */
static int mount_session(struct fs *fs)
{
    struct ut_text options = {0};
    fs_mount_options(fs->settings, &options);
    char name[] = "fabricfs", flag[] = "-o", *argv[] = {name, flag, options.bytes, NULL};
    struct fuse_args args = FUSE_ARGS_INIT(3, argv);
    fs->session = ut_text_failed(&options) ? NULL : fuse_session_new(&args, &fs_ops, sizeof(fs_ops), fs);
    fuse_opt_free_args(&args);
    ut_text_fini(&options);
    if (!fs->session || fuse_session_mount(fs->session, fs->settings->mountpoint))
        return -EIO;
    if (fs_mount_find(fs->settings->mountpoint, &fs->mount_id))
        fs->mount_id = 0;
    fs->fuse = (struct fs_source){.fd = fuse_session_fd(fs->session), .ready = on_request};
    if (fcntl(fs->fuse.fd, F_SETFL, fcntl(fs->fuse.fd, F_GETFL) | O_NONBLOCK) < 0)
        return -errno;
    return fs_loop_add(&fs->loop, &fs->fuse);
}

/* ---- tearing down ---- */

/* Ends what waits, and serves until what runs has ended: in coherent mode it needs requests answered. Nothing
 * new begins, since the loop is stopping. */
static void finish_jobs(struct fs *fs)
{
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        job->coll->quiet = true; /* other nodes hear that this one leaves */
        coll_job_fail_all(job->coll, -ESHUTDOWN, "the daemon is stopping", ut_clock_ns());
    }
    fs_memory_stop(fs);
    while (fs->running)
        fs_loop_turn(&fs->loop);
}

/* True when nobody has unmounted, but the connection was aborted: what is left of the mount is taken away. */
static bool unmount(struct fs *fs)
{
    if (!fs->unmounted && fs->mounted)
        fs_holders_log(fs);
    fuse_session_unmount(fs->session);
    if (!fs->unmounted || !fs->mount_id || !fs_mount_take_away(fs->settings->mountpoint, fs->mount_id))
        return false;
    fs_events_add(fs, "error", "node",
                  "the connection was aborted, by hand or by the kernel's request timeout");
    return true;
}

static void free_tree(struct fs *fs)
{
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        fs_job_remove(job, -ESHUTDOWN, ut_clock_ns());
    }
    if (fs->root)
        fs_node_destroy(fs->root);
    UT_LIST_EACH(&fs->gone_nodes, struct fs_node, sibling, node)
    {
        fs_node_destroy(node);
    }
}

/* False when a thread had to be left behind. */
static bool tear_down(struct fs *fs)
{
    bool whole = fs_watch_destroy(fs->watch);
    fs->watch = NULL;
    free_tree(fs);
    fs_fabric_destroy(fs->fabric);
    if (fs->resizer)
        red_pool_destroy(fs->resizer);
    if (fs->workers) {
        red_pool_destroy(fs->workers); /* after what is queued: memory that is given back */
        fs_loop_drain(&fs->loop);
    }
    fs_memory_fini(fs);
    if (fs->session)
        fuse_session_destroy(fs->session);
    fs_exec_fini(fs);
    fs_trigger_fini(fs);
    fs_awake_fini(&fs->awake);
    fs_events_fini(&fs->events);
    fs_log_fini(&fs->log);
    fs_loop_fini(&fs->loop);
    if (fs->signals.fd > 0)
        close(fs->signals.fd);
    free(fs->request.mem);
    free(fs);
    return whole;
}

int fs_serve(const struct fs_settings *settings, void (*ready)(void *ctx), void *ctx)
{
    struct fs *fs = calloc(1, sizeof(*fs));
    if (!fs)
        return 1;
    fs->settings = settings;
    fs->ready = ready;
    fs->ready_ctx = ctx;
    fs->root_owner = (struct fs_owner){.uid = getuid(), .gid = getgid(), .mode = 0777};
    fs->wait_limit_ns = find_wait_limit();
    fs->started_ns = ut_clock_ns();
    fs_log_init(&fs->log, settings->foreground);
    ut_list_init(&fs->jobs);
    ut_list_init(&fs->users);
    ut_list_init(&fs->pools);
    ut_list_init(&fs->disposals);
    ut_list_init(&fs->disposal_answers);
    ut_list_init(&fs->processes);
    ut_list_init(&fs->interrupted);
    ut_list_init(&fs->queued_waits);
    ut_list_init(&fs->gone_nodes);
    ut_list_init(&fs->works);
    ut_list_init(&fs->unread_runs);
    ut_list_init(&fs->giving_runs);
    decide_buffers(fs);
    fs_awake_init(&fs->awake, settings->awake == FS_AWAKE_AUTO);
    int rc = set_up_work(fs);
    if (!rc)
        rc = set_up_tree(fs);
    if (!rc)
        rc = mount_session(fs);
    if (!rc) {
        fs_loop_run(&fs->loop);
        finish_jobs(fs);
    }
    bool aborted = fs->session && unmount(fs);
    bool whole = tear_down(fs);
    if (rc && rc != -EIO)
        fprintf(stderr, "fabricfs: cannot start: %s\n", strerror(-rc));
    int status = rc || aborted ? 1 : 0;
    if (!whole)
        _exit(status);
    return status;
}
