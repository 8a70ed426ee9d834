/*
 * What the kernel says about the machine beside PCI: files of /sys and /proc, live or recorded. Each is read
 * when a check asks; one that is missing is unknown, never a default.
 */
#ifndef CTL_HOST_H
#define CTL_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "utils/ctl_opts.h"

struct ctl_host {
    int sys_fd, proc_fd; /* -1: not recorded */
    bool live;
};

/* Opens what the options name: nothing for --dump. Never fails; what cannot be opened is not recorded. */
void ctl_host_open(const struct ctl_opts *opts, struct ctl_host *host);

/* Closes what was opened. */
void ctl_host_close(struct ctl_host *host);

/* Reads a text file of /sys or /proc. The length, or -errno (-ENOENT where that tree is not recorded). */
int ctl_host_sys(const struct ctl_host *host, const char *path, char *buf, size_t size);
int ctl_host_proc(const struct ctl_host *host, const char *path, char *buf, size_t size);

/* Reads one number. True when there is one. */
bool ctl_host_sys_number(const struct ctl_host *host, const char *path, int64_t *out);
bool ctl_host_proc_number(const struct ctl_host *host, const char *path, int64_t *out);

/* The value of a word of the kernel command line ("iommu" for "iommu=pt"), or of a flag without "=" (then
 * ""). False when the word is not there or the command line is unknown; value may be NULL. */
bool ctl_host_cmdline(const struct ctl_host *host, const char *name, char *value, size_t size);

/* True when the module is loaded or built in and has a directory. */
bool ctl_host_module(const struct ctl_host *host, const char *name);

#endif
