#include "utils/ctl_host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "utils/pci_file.h"

static int open_dir(const char *path)
{
    return path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
}

void ctl_host_open(const struct ctl_opts *opts, struct ctl_host *host)
{
    host->live = !opts->dump && !opts->sysfs;
    host->sys_fd = open_dir(host->live ? "/sys" : opts->sysfs);
    host->proc_fd = open_dir(host->live ? "/proc" : opts->proc);
}

void ctl_host_close(struct ctl_host *host)
{
    if (host->sys_fd >= 0)
        close(host->sys_fd);
    if (host->proc_fd >= 0)
        close(host->proc_fd);
    host->sys_fd = host->proc_fd = -1;
}

static int read_text(int fd, const char *path, char *buf, size_t size)
{
    ssize_t len = fd < 0 ? -ENOENT : ut_pci_file_text(fd, path, buf, size);
    if (len < 0) {
        buf[0] = '\0';
        return (int)len;
    }
    for (char *p = buf; *p; p++)
        if ((*p < ' ' && *p != '\n') || *p > '~')
            *p = '?';
    return (int)len;
}

int ctl_host_sys(const struct ctl_host *host, const char *path, char *buf, size_t size)
{
    return read_text(host->sys_fd, path, buf, size);
}

int ctl_host_proc(const struct ctl_host *host, const char *path, char *buf, size_t size)
{
    return read_text(host->proc_fd, path, buf, size);
}

bool ctl_host_sys_number(const struct ctl_host *host, const char *path, int64_t *out)
{
    return host->sys_fd >= 0 && !ut_pci_file_number(host->sys_fd, path, out);
}

bool ctl_host_proc_number(const struct ctl_host *host, const char *path, int64_t *out)
{
    return host->proc_fd >= 0 && !ut_pci_file_number(host->proc_fd, path, out);
}

bool ctl_host_cmdline(const struct ctl_host *host, const char *name, char *value, size_t size)
{
    char line[4096], *rest = line, *word;
    size_t len = strlen(name);
    bool found = false;
    if (ctl_host_proc(host, "cmdline", line, sizeof line) < 0)
        return false;
    while ((word = strsep(&rest, " "))) {
        if (strncmp(word, name, len) || (word[len] && word[len] != '='))
            continue;
        found = true;
        if (value)
            snprintf(value, size, "%s", word[len] ? word + len + 1 : "");
    }
    return found;
}

bool ctl_host_module(const struct ctl_host *host, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "module/%s", name);
    int fd = host->sys_fd < 0 ? -1 : ut_pci_file_dir(host->sys_fd, path);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}
