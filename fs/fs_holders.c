#include "fs/fs_holders.h"

#include "fs/fs.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOLDERS_MAX 16u

/* True when the link names something at or below the mount point. */
static bool points_into(const char *link, const char *mountpoint)
{
    char target[PATH_MAX];
    ssize_t len = readlink(link, target, sizeof(target) - 1);
    size_t prefix = strlen(mountpoint);
    if (len < 0)
        return false;
    target[len] = '\0';
    return strncmp(target, mountpoint, prefix) == 0 && (!target[prefix] || target[prefix] == '/');
}

/* Whether a link in that directory of /proc/PID does: of open files ("fd"), or of mapped ones ("map_files").
 */
static bool has_link(const char *pid, const char *links, const char *mountpoint)
{
    char path[300];
    snprintf(path, sizeof(path), "/proc/%s/%s", pid, links);
    DIR *dir = opendir(path);
    bool found = false;
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        char link[600];
        snprintf(link, sizeof(link), "%s/%s", path, entry->d_name);
        found = points_into(link, mountpoint);
    }
    if (dir)
        closedir(dir);
    return found;
}

static bool holds(const char *pid, const char *mountpoint)
{
    char cwd[300];
    snprintf(cwd, sizeof(cwd), "/proc/%s/cwd", pid);
    return points_into(cwd, mountpoint) || has_link(pid, "fd", mountpoint) ||
           has_link(pid, "map_files", mountpoint);
}

void fs_holders_log(struct fs *fs)
{
    struct ut_text text = {0};
    unsigned count = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && count < HOLDERS_MAX && (entry = readdir(proc));) {
        if (atoi(entry->d_name) > 0 && holds(entry->d_name, fs->settings->mountpoint))
            ut_text_addf(&text, "%s%s", count++ ? " " : "still held by pid ", entry->d_name);
    }
    if (proc)
        closedir(proc);
    if (count && !ut_text_failed(&text))
        fs_events_add(fs, "warn", "node", text.bytes);
    ut_text_fini(&text);
}
