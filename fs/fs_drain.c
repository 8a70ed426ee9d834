#include "fs/fs_drain.h"

#include "fs/fs_fabric.h"
#include "fs/fs_job.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_BYTES 4096 /* of what it prints, so much is kept */
#define VARIABLES 8

/* What one node's command is to be told. */
struct order {
    bool wanted;
    char reason[256];
    char device[32];
};

struct fs_drain {
    struct fs *fs;
    struct red_pool *pool; /* one worker, which only waits for commands */
    struct red_work work;
    struct fs_post post;
    bool running;
    unsigned node; /* it runs for */
    int stop_fd;   /* an eventfd: the daemon ends, do not wait */
    /* filled in before the work is submitted, then the worker's until it is posted */
    struct ut_text variable[VARIABLES];
    char outcome[256];
    bool failed;
    struct order order[FS_NODE_MAX];
};

/* ---- on the worker ---- */

/* A file that takes OUTPUT_BYTES and no more, however much the command prints. */
static int make_output(void)
{
    int fd = memfd_create("drain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && (ftruncate(fd, OUTPUT_BYTES) || fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK))) {
        close(fd);
        return -1;
    }
    return fd;
}

/* The daemon's environment with our variables. */
static char **make_environment(const struct fs_drain *drain)
{
    size_t count = 0, used = 0;
    while (environ[count])
        count++;
    char **all = calloc(count + VARIABLES + 1, sizeof(*all));
    for (unsigned i = 0; all && i < VARIABLES; i++)
        all[used++] = drain->variable[i].bytes;
    for (size_t i = 0; all && i < count; i++) {
        if (strncmp(environ[i], "FABRICFS_", 9) != 0)
            all[used++] = environ[i];
    }
    return all;
}

static int prepare_files(posix_spawn_file_actions_t *files, int output_fd)
{
    int rc = posix_spawn_file_actions_addopen(files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!rc)
        rc = posix_spawn_file_actions_adddup2(files, output_fd, STDOUT_FILENO);
    if (!rc)
        rc = posix_spawn_file_actions_adddup2(files, output_fd, STDERR_FILENO);
    return rc ? rc : posix_spawn_file_actions_addclosefrom_np(files, STDERR_FILENO + 1);
}

/* A session of its own, so that all it starts can be killed together; signals as a shell expects them. */
static int prepare_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int rc = posix_spawnattr_setsigmask(attributes, &none);
    if (!rc)
        rc = posix_spawnattr_setsigdefault(attributes, &all);
    return rc ? rc
              : posix_spawnattr_setflags(attributes,
                                         POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
}

/* 0 or an errno. */
static int spawn(const struct fs_drain *drain, int output_fd, pid_t *out)
{
    char shell[] = "/bin/sh", flag[] = "-c";
    char *argv[] = {shell, flag, (char *)drain->fs->settings->drain, NULL};
    char **environment = make_environment(drain);
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    if (!environment)
        return ENOMEM;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    int rc = prepare_files(&files, output_fd);
    if (!rc)
        rc = prepare_attributes(&attributes);
    if (!rc)
        rc = posix_spawn(out, shell, &files, &attributes, argv, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    free(environment);
    return rc;
}

/* Waits for its end. True when it is over, false when its time is, or the daemon stops. */
static bool wait_end(const struct fs_drain *drain, pid_t pid)
{
    int fd = pidfd_open(pid, 0);
    struct pollfd poll_for[] = {{.fd = fd, .events = POLLIN}, {.fd = drain->stop_fd, .events = POLLIN}};
    int rc;
    do {
        rc = poll(poll_for, 2, drain->fs->settings->drain_timeout * 1000);
    } while (rc < 0 && errno == EINTR);
    if (fd >= 0)
        close(fd);
    return rc > 0 && poll_for[0].revents;
}

static bool is_stopping(const struct fs_drain *drain)
{
    struct pollfd stop = {.fd = drain->stop_fd, .events = POLLIN};
    return poll(&stop, 1, 0) == 1;
}

/* The first line of what it printed, printable. */
static void read_output(int fd, char out[128])
{
    ssize_t got = pread(fd, out, 127, 0);
    out[got > 0 ? got : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    for (char *at = out; *at; at++)
        *at = *at < ' ' || *at > '~' ? '?' : *at;
}

static void describe_end(struct fs_drain *drain, int status, int output_fd)
{
    char said[128];
    read_output(output_fd, said);
    drain->failed = !WIFEXITED(status) || WEXITSTATUS(status);
    snprintf(drain->outcome, sizeof(drain->outcome), "%s %d%s%s",
             WIFEXITED(status) ? "ended with status" : "was ended by signal",
             WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), *said ? ": " : "", said);
}

static void collect(struct fs_drain *drain, pid_t pid, int output_fd)
{
    int status;
    bool over = wait_end(drain, pid);
    if (!over && is_stopping(drain)) {
        snprintf(drain->outcome, sizeof(drain->outcome), "goes on while the daemon stops");
        return;
    }
    if (!over)
        kill(-pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (over) {
        describe_end(drain, status, output_fd);
        return;
    }
    drain->failed = true;
    snprintf(drain->outcome, sizeof(drain->outcome), "was killed after %d s",
             drain->fs->settings->drain_timeout);
}

static void run(struct red_work *work, unsigned idx)
{
    struct fs_drain *drain = UT_CONTAINER(work, struct fs_drain, work);
    pid_t pid = 0;
    int fd = make_output(), rc = fd < 0 ? errno : spawn(drain, fd, &pid);
    (void)idx;
    if (rc) {
        drain->failed = true;
        snprintf(drain->outcome, sizeof(drain->outcome), "cannot be started: %s", strerror(rc));
    } else {
        collect(drain, pid, fd);
    }
    if (fd >= 0)
        close(fd);
}

static void finish(struct red_work *work)
{
    struct fs_drain *drain = UT_CONTAINER(work, struct fs_drain, work);
    fs_loop_post(&drain->fs->loop, &drain->post);
}

/* ---- on the loop thread ---- */

static bool has_ranks_on(const struct coll_job *job, unsigned node)
{
    for (unsigned r = 0; job->ranks && r < job->config.world; r++) {
        enum coll_rank_state state = job->ranks[r].state;
        if (job->ranks[r].node == node && state != COLL_ABSENT && state != COLL_DROPPED)
            return true;
    }
    return false;
}

static void add_jobs(const struct fs *fs, unsigned node, struct ut_text *out)
{
    const char *before = "";
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        if (!has_ranks_on(job->coll, node))
            continue;
        ut_text_addf(out, "%s%s", before, job->coll->name);
        before = " ";
    }
}

/* By the name it gave itself, "" when it was never heard of. Another machine has written that, and a shell
 * will read it: nothing but what host names are made of is passed on. */
static void add_host(const struct fs *fs, unsigned node, struct ut_text *out)
{
    char host[64] = "";
    if (node == (unsigned)fs->settings->node)
        gethostname(host, sizeof(host) - 1);
    else if (fs->fabric)
        snprintf(host, sizeof(host), "%s", fs->fabric->peers[node].peer->heard.ident.host);
    for (char *at = host; *at; at++)
        *at = isalnum((unsigned char)*at) || strchr(".-_", *at) ? *at : '_';
    ut_text_addf(out, "%s", host);
}

/* False without memory. */
static bool fill_variables(struct fs_drain *drain, unsigned node)
{
    const struct fs *fs = drain->fs;
    const struct order *order = &drain->order[node];
    struct ut_text *v = drain->variable;
    for (unsigned i = 0; i < VARIABLES; i++)
        ut_text_fini(&v[i]);
    ut_text_addf(&v[0], "FABRICFS_NODE=%u", node);
    ut_text_addf(&v[1], "FABRICFS_HOST=");
    add_host(fs, node, &v[1]);
    ut_text_addf(&v[2], "FABRICFS_REASON=%s", order->reason);
    ut_text_addf(&v[3], "FABRICFS_JOBS=");
    add_jobs(fs, node, &v[3]);
    ut_text_addf(&v[4], "FABRICFS_DEVICE=%s", order->device);
    ut_text_addf(&v[5], "FABRICFS_FABRIC=%s", fs->settings->fabric);
    ut_text_addf(&v[6], "FABRICFS_SEEN_BY_NODE=%d", fs->settings->node);
    ut_text_addf(&v[7], "FABRICFS_SEEN_BY_HOST=");
    add_host(fs, (unsigned)fs->settings->node, &v[7]);
    bool good = true;
    for (unsigned i = 0; i < VARIABLES; i++)
        good = good && !ut_text_failed(&v[i]);
    return good;
}

static void tell(const struct fs_drain *drain, unsigned node, const char *severity, const char *what)
{
    char object[32], text[320];
    snprintf(object, sizeof(object), "nodes/%u", node);
    snprintf(text, sizeof(text), "drain command %s", what);
    fs_events_add(drain->fs, severity, object, text);
}

static void begin_next(struct fs_drain *drain)
{
    unsigned node = 0;
    while (node < FS_NODE_MAX && !drain->order[node].wanted)
        node++;
    if (drain->running || node == FS_NODE_MAX)
        return;
    drain->order[node].wanted = false;
    if (!fill_variables(drain, node)) {
        tell(drain, node, "error", "not started: no memory");
        return;
    }
    drain->running = true;
    drain->node = node;
    tell(drain, node, "info", "started");
    drain->work = (struct red_work){.block = run, .finish = finish, .block_count = 1};
    red_pool_submit(drain->pool, &drain->work);
}

static void on_end(struct fs_post *post)
{
    struct fs_drain *drain = UT_CONTAINER(post, struct fs_drain, post);
    drain->running = false;
    tell(drain, drain->node, drain->failed ? "error" : "info", drain->outcome);
    begin_next(drain);
}

void fs_drain_node(struct fs_drain *drain, unsigned node, const char *reason, const char *device)
{
    if (!drain)
        return;
    struct order *order = &drain->order[node];
    order->wanted = true;
    snprintf(order->reason, sizeof(order->reason), "%s", reason);
    snprintf(order->device, sizeof(order->device), "%s", device);
    begin_next(drain);
}

int fs_drain_create(struct fs *fs, struct fs_drain **out)
{
    *out = NULL;
    if (!*fs->settings->drain)
        return 0;
    struct fs_drain *drain = calloc(1, sizeof(*drain));
    if (!drain)
        return -ENOMEM;
    drain->fs = fs;
    drain->post.run = on_end;
    drain->stop_fd = eventfd(0, EFD_CLOEXEC);
    int rc = drain->stop_fd < 0 ? -errno : red_pool_create(1, -1, &drain->pool);
    if (rc) {
        fs_drain_destroy(drain);
        return rc;
    }
    *out = drain;
    return 0;
}

void fs_drain_destroy(struct fs_drain *drain)
{
    if (!drain)
        return;
    if (drain->stop_fd >= 0)
        eventfd_write(drain->stop_fd, 1);
    if (drain->pool) {
        red_pool_destroy(drain->pool);
        memset(drain->order, 0, sizeof(drain->order)); /* nothing more is begun by its end */
        fs_loop_drain(&drain->fs->loop);
    }
    if (drain->stop_fd >= 0)
        close(drain->stop_fd);
    for (unsigned i = 0; i < VARIABLES; i++)
        ut_text_fini(&drain->variable[i]);
    free(drain);
}
