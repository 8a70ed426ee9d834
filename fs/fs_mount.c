#include "fs/fs_mount.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FS_TYPE "fuse.fabricfs"
#define LOOK_MS 3000
#define DEAD_MOUNTS_MAX 16 /* dead mounts on top of each other that one start takes away */

/* ---- looking ---- */

/* In the process that may get stuck: its exit status is the errno of looking. The daemon must be asked: what
 * the kernel remembers of a mount outlives it. */
static _Noreturn void look(const char *path)
{
    struct statx st;
    if (statx(AT_FDCWD, path, AT_STATX_FORCE_SYNC, STATX_TYPE, &st) < 0)
        _exit(errno);
    _exit(S_ISDIR(st.stx_mode) ? 0 : ENOTDIR);
}

int fs_mount_probe(const char *path, int timeout_ms)
{
    int status;
    pid_t child = fork();
    if (child < 0)
        return -errno;
    if (child == 0)
        look(path);
    int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
    if (pidfd < 0)
        return -errno;
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    int got;
    while ((got = poll(&ended, 1, timeout_ms)) < 0 && errno == EINTR)
        ;
    close(pidfd);
    if (got <= 0) {
        kill(child, SIGKILL); /* it may not die before the daemon answers; then init will collect it */
        waitpid(child, &status, WNOHANG);
        return -ETIMEDOUT;
    }
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return -EIO;
    return -WEXITSTATUS(status);
}

/* What the mount table says about a path; all zero when the mount it lies on is not there, because this
 * process sees only a part of that mount (chroot): then the path is not where one begins. */
struct mounted {
    bool is_root;  /* the path is where the mount begins */
    char type[64]; /* of the file system */
};

/* Undoes the mount table's escapes (\040 for a blank) in place. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] && from[3]) {
            *to++ = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
            from += 3;
        } else {
            *to++ = *from;
        }
    }
    *to = '\0';
}

/* Takes one line of mountinfo: true when it is that of the mount with this id. */
static bool take_mount_line(char *line, int mount_id, const char *path, struct mounted *out)
{
    char *at = NULL, *dash = strstr(line, " - ");
    if (atoi(line) != mount_id || !dash)
        return false;
    for (int field = 0; field < 5 && line; field++)
        at = strsep(&line, " ");
    if (!at)
        return false;
    unescape(at);
    out->is_root = strcmp(at, path) == 0;
    return sscanf(dash + 3, "%63s", out->type) == 1;
}

static int read_mount_table(int mount_id, const char *path, struct mounted *out)
{
    char *line = NULL;
    size_t cap = 0;
    FILE *table = fopen("/proc/self/mountinfo", "re");
    if (!table)
        return -errno;
    while (getline(&line, &cap, table) > 0 && !take_mount_line(line, mount_id, path, out))
        ;
    free(line);
    fclose(table);
    return 0;
}

/* The mount that an O_PATH descriptor lies on. */
static int read_mount_id(int fd, int *out)
{
    char path[64], line[128];
    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "re");
    if (!file)
        return -errno;
    int rc = -ENOENT;
    while (rc && fgets(line, sizeof(line), file))
        rc = sscanf(line, "mnt_id: %d", out) == 1 ? 0 : -ENOENT;
    fclose(file);
    return rc;
}

int fs_mount_find(const char *path, int *out_id)
{
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int rc = read_mount_id(fd, out_id);
    close(fd);
    return rc;
}

/* Resolves path and finds the mount it lies on, without asking the file system there: opening with O_PATH
 * sends no request to the root of a mount. */
static int locate(const char *path, char resolved[PATH_MAX], struct mounted *out)
{
    char link[64];
    int mount_id;
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, resolved, PATH_MAX - 1);
    int rc = len < 0 ? -errno : read_mount_id(fd, &mount_id);
    close(fd);
    if (rc)
        return rc;
    resolved[len] = '\0';
    return read_mount_table(mount_id, resolved, out);
}

/* ---- taking dead mounts away ---- */

/* fusermount3 unmounts for users who may not, and only what is theirs. */
static int detach_by_helper(const char *path)
{
    extern char **environ;
    const char *const argv[] = {"fusermount3", "-q", "-u", "-z", "--", path, NULL};
    pid_t child;
    int status, rc = posix_spawnp(&child, argv[0], NULL, NULL, (char *const *)argv, environ);
    if (rc)
        return -rc;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status))
        return -EPERM;
    return 0;
}

static int detach(const char *path)
{
    if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
        return 0;
    return errno == EPERM ? detach_by_helper(path) : -errno;
}

static bool means_dead(int seen)
{
    return seen == -ENOTCONN || seen == -ECONNABORTED;
}

bool fs_mount_take_away(const char *path, int id)
{
    int there;
    return fs_mount_find(path, &there) == 0 && there == id && means_dead(fs_mount_probe(path, LOOK_MS)) &&
           detach(path) == 0;
}

static int take_dead_away(const char *path, const struct mounted *mounted, struct ut_err *err)
{
    if (!mounted->is_root || strcmp(mounted->type, FS_TYPE) != 0)
        return ut_err_set(err, -EBUSY, "%s: a dead mount of type %s is in the way", path,
                          *mounted->type ? mounted->type : "unknown");
    int rc = detach(path);
    return rc ? ut_err_set(err, rc, "%s: its dead mount cannot be taken away: %s", path, strerror(-rc)) : 0;
}

/* One look at the place. 0: fit; 1: a dead mount was taken away, look again. */
static int prepare_once(const char *path, char resolved[PATH_MAX], struct ut_err *err)
{
    struct mounted mounted = {0};
    int seen = fs_mount_probe(path, LOOK_MS);
    if (seen == -ETIMEDOUT)
        return ut_err_set(err, seen, "%s: does not answer; a daemon that hangs or is stopped may own it",
                          path);
    bool dead = means_dead(seen);
    if (seen && !dead)
        return ut_err_set(err, seen, "%s: %s", path, strerror(-seen));
    int rc = locate(path, resolved, &mounted);
    if (rc)
        return ut_err_set(err, rc, "%s: the mount table cannot be read: %s", path, strerror(-rc));
    if (dead) {
        rc = take_dead_away(resolved, &mounted, err);
        return rc ? rc : 1;
    }
    if (mounted.is_root && strcmp(mounted.type, FS_TYPE) == 0)
        return ut_err_set(err, -EBUSY, "%s: is mounted already, and alive", path);
    return 0;
}

int fs_mount_prepare(struct fs_settings *settings, struct ut_err *err)
{
    char resolved[PATH_MAX];
    int rc = 1;
    for (int looks = 0; rc == 1; looks++) {
        if (looks == DEAD_MOUNTS_MAX)
            return ut_err_set(err, -EBUSY, "%s: too many dead mounts on top of each other",
                              settings->mountpoint);
        rc = prepare_once(settings->mountpoint, resolved, err);
    }
    if (!rc)
        strcpy(settings->mountpoint, resolved);
    return rc;
}

/* ---- options ---- */

/* A comma in a value would end it. */
static void add_escaped(struct ut_text *out, const char *text)
{
    for (; *text; text++) {
        if (*text == ',' || *text == '\\')
            ut_text_add(out, "\\", 1);
        ut_text_add(out, text, 1);
    }
}

void fs_mount_options(const struct fs_settings *settings, struct ut_text *out)
{
    ut_text_addf(out, "subtype=fabricfs,nosuid,nodev,noexec,default_permissions,fsname=");
    add_escaped(out, settings->source);
    if (geteuid() == 0 && !strstr(settings->mount_options, "allow_"))
        ut_text_addf(out, ",allow_other");
    if (*settings->mount_options)
        ut_text_addf(out, ",%s", settings->mount_options);
}
