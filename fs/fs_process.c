#include "fs/fs_process.h"

#include "fs/fs_rank.h"
#include "utils/ut_clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PF_EXITING 0x4ul /* include/linux/sched.h; in field 9 of /proc/PID/stat */
#define SIGKILL_BIT (1ull << (9 - 1))

struct fs_process {
    struct ut_list link; /* in fs->processes */
    struct fs *fs;
    struct fs_source source; /* the pidfd */
    pid_t pid;
    struct ut_list promises;
};

/* Reads a small file of /proc/PID. 0; -ESRCH when there is no such process any more; another -errno when that
 * could not be found out. */
static int read_proc(pid_t pid, const char *name, char *out, size_t len)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? -ESRCH : -errno;
    ssize_t got = read(fd, out, len - 1);
    int rc = got > 0 ? 0 : got < 0 ? -errno : -ESRCH;
    close(fd);
    if (!rc)
        out[got] = '\0';
    return rc;
}

/* The value behind "name:" in /proc/PID/status. */
static unsigned long long status_field(const char *status, const char *name, int base)
{
    const char *at = strstr(status, name);
    return at ? strtoull(at + strlen(name), NULL, base) : 0;
}

pid_t fs_process_of(pid_t tid)
{
    char status[4096];
    int rc = read_proc(tid, "status", status, sizeof(status));
    return rc ? rc : (pid_t)status_field(status, "\nTgid:", 10);
}

bool fs_process_is_dying(pid_t tid)
{
    char status[4096];
    int rc = tid ? read_proc(tid, "status", status, sizeof(status)) : -EPERM; /* 0: we cannot see it */
    if (rc)
        return rc == -ESRCH;
    return (status_field(status, "\nSigPnd:", 16) | status_field(status, "\nShdPnd:", 16)) & SIGKILL_BIT;
}

/* True when the thread has begun to exit. Where it closes a descriptor then, that is done for it. */
static bool is_exiting(pid_t tid)
{
    char stat[1024];
    unsigned long flags = PF_EXITING;
    int rc = read_proc(tid, "stat", stat, sizeof(stat));
    if (rc)
        return rc == -ESRCH;
    const char *after_name = strrchr(stat, ')');
    if (!after_name || sscanf(after_name, ") %*c %*d %*d %*d %*d %*d %lu", &flags) != 1)
        return true;
    return flags & PF_EXITING;
}

static void process_free(struct fs_process *process)
{
    fs_loop_remove(&process->fs->loop, &process->source);
    close(process->source.fd);
    ut_list_remove(&process->link);
    free(process);
}

static void promise_unlink(struct fs_promise *promise)
{
    ut_list_remove(&promise->in_process);
    ut_list_remove(&promise->in_rank);
    if (promise->holder)
        *promise->holder = NULL;
    free(promise);
}

/* Takes the promises of the process for one rank: those whose descriptor it closed before, or those it broke
 * by ending. How many. */
static unsigned take_promises(struct fs_process *process, const struct fs_rank *rank, bool closed)
{
    unsigned count = 0;
    UT_LIST_EACH(&process->promises, struct fs_promise, in_process, promise)
    {
        if (promise->rank != rank || promise->closed != closed)
            continue;
        promise_unlink(promise);
        count++;
    }
    return count;
}

/* The end of a process may be seen before the release of what it closed just before. */
static void on_end(struct fs_source *source)
{
    struct fs_process *process = UT_CONTAINER(source, struct fs_process, source);
    while (!ut_list_empty(&process->promises)) {
        struct fs_rank *rank = UT_CONTAINER(process->promises.next, struct fs_promise, in_process)->rank;
        uint64_t now = ut_clock_ns();
        for (unsigned kept = take_promises(process, rank, true); kept; kept--)
            coll_rank_release(rank->coll, now);
        unsigned broken = take_promises(process, rank, false);
        if (broken)
            fs_rank_lost(rank, process->pid, broken, now);
    }
    process_free(process);
}

static struct fs_process *process_find(struct fs *fs, pid_t pid)
{
    UT_LIST_EACH(&fs->processes, struct fs_process, link, process)
    {
        if (process->pid == pid)
            return process;
    }
    return NULL;
}

static int process_create(struct fs *fs, pid_t pid, struct fs_process **out)
{
    struct fs_process *process = calloc(1, sizeof(*process));
    if (!process)
        return -ENOMEM;
    *process = (struct fs_process){.fs = fs, .pid = pid, .source = {.ready = on_end}};
    ut_list_init(&process->promises);
    process->source.fd = (int)syscall(SYS_pidfd_open, pid, 0);
    int rc = process->source.fd < 0 ? -errno : fs_loop_add(&fs->loop, &process->source);
    if (rc) {
        if (process->source.fd >= 0)
            close(process->source.fd);
        free(process);
        return rc;
    }
    ut_list_append(&fs->processes, &process->link);
    *out = process;
    return 0;
}

/* Deaths that have happened but not been seen yet come before what the rank does next. */
static void settle_ended(struct fs *fs)
{
    UT_LIST_EACH(&fs->processes, struct fs_process, link, process)
    {
        struct pollfd ended = {.fd = process->source.fd, .events = POLLIN};
        if (poll(&ended, 1, 0) == 1)
            on_end(&process->source);
    }
}

int fs_promise_make(struct fs_rank *rank, pid_t tid, struct fs_promise **holder, uint64_t now)
{
    struct fs *fs = rank->fs;
    settle_ended(fs);
    pid_t pid = fs_process_of(tid);
    struct fs_process *process = pid > 0 ? process_find(fs, pid) : NULL;
    struct fs_promise *promise = malloc(sizeof(*promise));
    int rc = !promise ? -ENOMEM : pid < 0 ? pid : process ? 0 : process_create(fs, pid, &process);
    if (!rc)
        rc = coll_rank_promise(rank->coll, pid, now);
    if (rc) {
        free(promise);
        if (process && ut_list_empty(&process->promises))
            process_free(process);
        return rc;
    }
    *promise = (struct fs_promise){.process = process, .rank = rank, .holder = holder};
    ut_list_append(&process->promises, &promise->in_process);
    ut_list_append(&rank->promises, &promise->in_rank);
    *holder = promise;
    return 0;
}

void fs_promise_void(struct fs_promise *promise)
{
    struct fs_process *process = promise->process;
    promise_unlink(promise);
    if (ut_list_empty(&process->promises))
        process_free(process);
}

void fs_promise_flush(struct fs_promise *promise, pid_t tid)
{
    pid_t pid = promise->process->pid;
    if (fs_process_of(tid) == pid)
        promise->closed = !is_exiting(tid); /* the first thread may have ended long before the others */
}

void fs_promise_close(struct fs_promise *promise, uint64_t now)
{
    struct fs_rank *rank = promise->rank;
    if (!promise->closed && is_exiting(promise->process->pid)) {
        *promise->holder = NULL;
        promise->holder = NULL;
        return;
    }
    fs_promise_void(promise);
    coll_rank_release(rank->coll, now);
}
