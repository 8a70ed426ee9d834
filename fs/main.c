/*
 * fabricfs: start and end of the daemon.
 *
 * Two processes take part in a start. The daemon mounts and serves. The other one, which never touches the
 * mount before the daemon says that it is there, looks whether it answers, since a process that asked itself
 * could wait for itself for ever. In the background the other one is who was started: it ends when the mount
 * answers, or with the daemon's failure. In the foreground it is a child, made only when a service manager
 * wants to know.
 */
#include "fs/fs_mount.h"
#include "fs/fs_notify.h"
#include "fs/fs_serve.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_USAGE 2
#define ANSWER_MS 30000

static struct fs_settings settings;

/* The daemon's side of the start. */
struct start {
    int ready_fd; /* a byte says that the mount is there, end of file that it never will be; -1 when unused */
    bool background;
};

static int fail(int status, const char *sentence)
{
    fprintf(stderr, "fabricfs: %s\n", sentence);
    return status;
}

static int print(void (*render)(struct ut_text *out))
{
    struct ut_text text = {0};
    render(&text);
    bool lost =
        ut_text_failed(&text) || fwrite(text.bytes, 1, text.len, stdout) != text.len || fflush(stdout);
    ut_text_fini(&text);
    return lost ? fail(1, "standard output cannot be written") : 0;
}

static void render_version(struct ut_text *out)
{
    ut_text_addf(out, "fabricfs " FS_VERSION "\n");
}

/* From here on nobody reads what the daemon writes to its terminal. */
static void leave_terminal(void)
{
    int null = open("/dev/null", O_RDWR);
    if (null < 0)
        return;
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    if (null > STDERR_FILENO)
        close(null);
}

static void on_ready(void *ctx)
{
    struct start *start = ctx;
    if (start->background)
        leave_terminal();
    if (start->ready_fd < 0)
        return;
    ssize_t sent = write(start->ready_fd, "", 1);
    (void)sent; /* when whoever started us has gone, the mount serves all the same */
    close(start->ready_fd);
    start->ready_fd = -1;
}

/* How a start went, for whoever waits for it. */
enum outcome { MOUNT_ANSWERS, MOUNT_SILENT, DAEMON_ENDED };

/* Waits for the daemon's word, then looks. */
static enum outcome wait_for_mount(int ready_fd)
{
    char byte;
    ssize_t got;
    while ((got = read(ready_fd, &byte, 1)) < 0 && errno == EINTR)
        ;
    close(ready_fd);
    if (got != 1)
        return DAEMON_ENDED;
    return fs_mount_probe(settings.mountpoint, ANSWER_MS) ? MOUNT_SILENT : MOUNT_ANSWERS;
}

static void tell_manager(pid_t daemon)
{
    char state[64];
    snprintf(state, sizeof(state), "READY=1\nMAINPID=%d", (int)daemon);
    fs_notify(daemon, state);
}

/* Each rank's buffer and each client process takes a descriptor: as many as the system lets us have. */
static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static int serve(struct start *start)
{
    raise_descriptors();
    signal(SIGPIPE, SIG_IGN);
    if (chdir("/") < 0)
        return fail(1, "the root directory cannot be entered");
    int status = fs_serve(&settings, on_ready, start);
    fs_notify(getpid(), "STOPPING=1");
    return status;
}

/* The daemon ended before its mount was there; unless a signal ended it, it has said why. */
static int status_of(pid_t daemon)
{
    int status;
    if (waitpid(daemon, &status, 0) != daemon || !WIFEXITED(status))
        return fail(1, "the daemon was killed before the mount answered");
    return WEXITSTATUS(status) ? WEXITSTATUS(status)
                               : fail(1, "the daemon was stopped before the mount answered");
}

static int run_in_background(void)
{
    int ready[2];
    if (pipe2(ready, O_CLOEXEC) < 0)
        return fail(1, strerror(errno));
    pid_t daemon = fork();
    if (daemon < 0)
        return fail(1, strerror(errno));
    if (daemon == 0) {
        close(ready[0]);
        setsid();
        return serve(&(struct start){.ready_fd = ready[1], .background = true});
    }
    close(ready[1]);
    enum outcome outcome = wait_for_mount(ready[0]);
    if (outcome == DAEMON_ENDED)
        return status_of(daemon);
    if (outcome == MOUNT_SILENT) {
        kill(daemon, SIGTERM);
        return fail(1, "the mount does not answer");
    }
    tell_manager(daemon);
    return 0;
}

/* Forks twice, so that the daemon has no child to collect later. */
static int start_teller(int ready[2])
{
    pid_t daemon = getpid(), child = fork();
    if (child < 0)
        return -errno;
    if (child > 0)
        return waitpid(child, NULL, 0) == child ? 0 : -errno;
    close(ready[1]);
    if (fork() == 0 && wait_for_mount(ready[0]) == MOUNT_ANSWERS)
        tell_manager(daemon);
    _exit(0);
}

static int run_in_foreground(void)
{
    int ready[2] = {-1, -1};
    if (fs_notify_wanted()) {
        if (pipe2(ready, O_CLOEXEC) < 0 || start_teller(ready) < 0)
            return fail(1, strerror(errno));
        close(ready[0]);
    }
    return serve(&(struct start){.ready_fd = ready[1]});
}

/* Whoever starts us may have closed the standard descriptors. A pipe or the mount's own must not get their
 * numbers, which are turned to /dev/null later. */
static int fill_standard_descriptors(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    return fd < 0 ? -errno : close(fd);
}

int main(int argc, char **argv)
{
    struct ut_err err;
    signal(SIGCHLD, SIG_DFL); /* where it is ignored, nobody can wait for a child */
    if (fs_options_parse(argc, argv, &settings, &err))
        return fail(EXIT_USAGE, err.text);
    if (settings.help || settings.version)
        return print(settings.help ? fs_options_help : render_version);
    if (fill_standard_descriptors() < 0)
        return fail(1, "/dev/null cannot be opened");
    if (fs_mount_prepare(&settings, &err))
        return fail(1, err.text);
    return settings.foreground ? run_in_foreground() : run_in_background();
}
