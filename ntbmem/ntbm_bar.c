#include "ntbmem/ntbm_bar.h"

#include "utils/pci_libpci.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pci/header.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PAGE_BYTES UINT64_C(4096)
#define PLX 0x10b5
/* PLX bridges translate by masks of large units; windows off their grid fail for transfers beyond it. */
#define PLX_ALIGN_BYTES (UINT64_C(1) << 20)

int ntbm_bar_parse(const char *name, struct ut_pci_addr *addr, unsigned *number)
{
    size_t len = ut_pci_addr_scan(name, addr);
    const char *rest = name + len;
    if (!len || rest[0] != '/' || rest[1] < '0' || rest[1] > '5' || rest[2])
        return -EINVAL;
    *number = (unsigned)(rest[1] - '0');
    return 0;
}

/* ---- what stands in the way ---- */

static int check_function(const char *where, const struct ut_pci_bars *bars, struct ut_err *err)
{
    if (bars->vendor == 0xffff)
        return ut_err_set(err, -ENODEV,
                          "%s does not answer: it reads all ones; its link is down or it is gone, see "
                          "fabricctl doctor",
                          where);
    if (bars->driver[0])
        return ut_err_set(err, -EBUSY,
                          "%s belongs to the driver %s: write the address to "
                          "/sys/bus/pci/drivers/%s/unbind first",
                          where, bars->driver, bars->driver);
    return 0;
}

/* The function implements something there that has got no address, as far as its register tells: one of
 * 32 bits that is not prefetchable looks like none. */
static bool is_unassigned(const struct ut_pci_bars *bars, unsigned bar)
{
    return bars->bar[bar].flags || bars->bar[bar].reg;
}

static int check_memory(const char *where, const struct ut_pci_bars *bars, unsigned bar, struct ut_err *err)
{
    uint64_t start = bars->bar[bar].start, bytes = bars->bar[bar].bytes, flags = bars->bar[bar].flags;
    if (bar && bars->bar[bar - 1].flags & UT_PCI_RES_64)
        return ut_err_set(err, -EINVAL, "%s: BAR %u is the upper half of BAR %u: name that one", where, bar,
                          bar - 1);
    if (flags & UT_PCI_RES_IO)
        return ut_err_set(err, -EINVAL, "%s: BAR %u is I/O ports, not memory: name another", where, bar);
    if (start && bytes && !(flags & UT_PCI_RES_UNSET)) {
        if (!(flags & UT_PCI_RES_MEM))
            return ut_err_set(err, -EINVAL, "%s: BAR %u is not memory: name another", where, bar);
        if (start & (bytes - 1))
            return ut_err_set(err, -EINVAL,
                              "%s: BAR %u lies at %#" PRIx64 ", which is no multiple of its size %#" PRIx64
                              ": boot with pci=realloc",
                              where, bar, start, bytes);
        return 0;
    }
    if (!is_unassigned(bars, bar))
        return ut_err_set(err, -EADDRNOTAVAIL, "%s: BAR %u does not exist, or has no address: see lspci -v",
                          where, bar);
    return ut_err_set(err, -EADDRNOTAVAIL,
                      "%s: BAR %u has no address: the kernel found no room; switch on Above 4G Decoding in "
                      "firmware, or boot with pci=realloc",
                      where, bar);
}

/* ---- finding and enabling ---- */

static uint64_t device_align(const struct ut_pci_bars *bars, uint64_t bytes)
{
    if (bars->vendor != PLX || bytes <= PAGE_BYTES)
        return PAGE_BYTES;
    return bytes < PLX_ALIGN_BYTES ? bytes : PLX_ALIGN_BYTES;
}

static int read_bars(const char *pci_dir, struct ut_pci_addr addr, const char *where, struct ut_pci_bars *out,
                     struct ut_err *err)
{
    struct ut_pci_lib *lib = NULL;
    int rc = ut_pci_lib_open_at(pci_dir, &lib);
    if (!rc)
        rc = ut_pci_lib_bars(lib, addr, out);
    if (rc == -ENODEV)
        ut_err_set(err, rc, "there is no PCI device %s: see fabricctl topo for those there are", where);
    else if (rc)
        ut_err_set(err, rc, "%s cannot be looked at: %s", where, lib ? ut_pci_lib_error(lib) : strerror(-rc));
    ut_pci_lib_close(lib);
    return rc;
}

int ntbm_bar_find(const char *pci_dir, const char *name, struct ntbm_bar *out, struct ut_err *err)
{
    struct ut_pci_bars bars;
    struct ut_pci_addr addr;
    unsigned number;
    char where[UT_PCI_ADDR_CHARS];
    int rc = ntbm_bar_parse(name, &addr, &number);
    if (rc)
        return ut_err_set(err, rc, "pci:%s is no address and BAR", name);
    ut_pci_addr_show(addr, where);
    rc = read_bars(pci_dir, addr, where, &bars, err);
    if (!rc)
        rc = check_function(where, &bars, err);
    if (!rc)
        rc = check_memory(where, &bars, number, err);
    if (rc)
        return rc;
    uint64_t bytes = bars.bar[number].bytes;
    *out = (struct ntbm_bar){.addr = addr,
                             .number = number,
                             .bytes = bytes,
                             .align_bytes = device_align(&bars, bytes),
                             .prefetchable = bars.bar[number].flags & UT_PCI_RES_PREFETCH,
                             .decodes = bars.command & PCI_COMMAND_MEMORY};
    return 0;
}

/* Asks the kernel, which then counts us among the device's users. */
static int write_enable(const char *pci_dir, const char *where)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/devices/%s/enable", pci_dir, where);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int rc = write(fd, "1", 1) == 1 ? 0 : -errno;
    close(fd);
    return rc;
}

static bool decodes_now(struct ut_pci_lib *lib, struct ut_pci_addr addr)
{
    struct ut_pci_bars bars;
    return ut_pci_lib_bars(lib, addr, &bars) == 0 && bars.command & PCI_COMMAND_MEMORY;
}

int ntbm_bar_enable(const char *pci_dir, const struct ntbm_bar *bar, struct ut_err *err)
{
    char where[UT_PCI_ADDR_CHARS];
    struct ut_pci_lib *lib = NULL;
    if (bar->decodes)
        return 0;
    ut_pci_addr_show(bar->addr, where);
    int rc = write_enable(pci_dir, where);
    if (!rc)
        rc = ut_pci_lib_open_at(pci_dir, &lib);
    /* A device that was reset behind the kernel's back is enabled as far as it knows. */
    if (!rc && !decodes_now(lib, bar->addr))
        rc = ut_pci_lib_command(lib, bar->addr, PCI_COMMAND_MEMORY);
    ut_pci_lib_close(lib);
    if (rc)
        ut_err_set(err, rc, "%s: memory decoding cannot be enabled: %s", where, strerror(-rc));
    return rc;
}
