/*
 * Memory that is a BAR of a PCI function: the window of a non-transparent bridge, or memory on a card, mapped
 * through the resource files of sysfs.
 *
 * A window is only written, so it is mapped write-combining where the BAR is prefetchable: stores then leave
 * the processor as whole lines. Landing memory is mostly read, by loads whose order matters, and reads of
 * write-combining memory have none: so it is mapped uncached.
 */
#include "ntbmem/ntbm_bar.h"
#include "ntbmem/ntbm_mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *name_fault(const char *name)
{
    struct ut_pci_addr addr;
    unsigned number;
    return ntbm_bar_parse(name, &addr, &number)
               ? "PCI memory is named by address and BAR, as 0000:05:00.0/2; BARs are 0 to 5"
               : NULL;
}

static int open_resource(const struct ntbm_bar *bar, const char *suffix, char *path, size_t path_bytes)
{
    char where[UT_PCI_ADDR_CHARS];
    ut_pci_addr_show(bar->addr, where);
    snprintf(path, path_bytes, NTBM_PCI_DIR "/devices/%s/resource%u%s", where, bar->number, suffix);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int open_bar(const char *name, enum ntbm_role role, const struct ntbm_bar *bar,
                    struct ntbm_opened *out, struct ut_err *err)
{
    char path[128];
    uint64_t file_bytes;
    struct ntbm_opened opened = {.fd = -ENOENT, .align_bytes = bar->align_bytes, .mapping = NTBM_COMBINED};
    if (role == NTBM_WINDOW && bar->prefetchable)
        opened.fd = open_resource(bar, "_wc", path, sizeof(path));
    if (opened.fd == -ENOENT) {
        opened.mapping = NTBM_UNCACHED;
        opened.fd = open_resource(bar, "", path, sizeof(path));
    }
    if (opened.fd < 0)
        return ut_err_set(err, opened.fd, "pci:%s: %s: %s", name, path, strerror(-opened.fd));
    int rc = ntbm_mem_claim(opened.fd, role, S_IFREG, path, &file_bytes, err);
    opened.bytes = bar->bytes;
    if (rc)
        close(opened.fd);
    else
        *out = opened;
    return rc;
}

static int open_pci(const char *name, enum ntbm_role role, uint64_t want_bytes, struct ntbm_opened *out,
                    struct ut_err *err)
{
    struct ntbm_bar bar;
    (void)want_bytes; /* a BAR is as long as it is */
    int rc = ntbm_bar_find(NTBM_PCI_DIR, name, &bar, err);
    if (!rc)
        rc = ntbm_bar_enable(NTBM_PCI_DIR, &bar, err);
    return rc ? rc : open_bar(name, role, &bar, out, err);
}

static const char *mmap_fault(int error)
{
    if (error == EPERM)
        return "the kernel is locked down (/sys/kernel/security/lockdown), as Secure Boot makes it: boot "
               "without";
    if (error == EINVAL)
        return "something else has its addresses (/proc/iomem), a driver or a mapping of another type: end "
               "it";
    return NULL;
}

const struct ntbm_kind ntbm_kind_pci = {
    .name = "pci",
    .what = "BAR of a PCI device",
    .name_fault = name_fault,
    .open = open_pci,
    .mmap_fault = mmap_fault,
};
