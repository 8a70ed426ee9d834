/*
 * A BAR of a PCI function as memory that nodes share: found by its address, and judged before anybody maps
 * it. Mapping what is no memory, or has no address, or belongs to a driver, can stop a machine; so each
 * reason not to is looked for, and said with what to do about it.
 *
 * Threads: any; the calls read and write sysfs and configuration space, and may take as long as those do.
 */
#ifndef NTBM_BAR_H
#define NTBM_BAR_H

#include "utils/pci_addr.h"
#include "utils/ut_err.h"

#include <stdbool.h>
#include <stdint.h>

#define NTBM_PCI_DIR "/sys/bus/pci"

struct ntbm_bar {
    struct ut_pci_addr addr;
    unsigned number; /* 0 .. 5 */
    uint64_t bytes;
    uint64_t align_bytes; /* that the device wants parts of it to keep, at least a page */
    bool prefetchable;    /* may be mapped write-combining */
    bool decodes;         /* the function answers to its addresses already */
};

/* Takes "BDF/BAR" apart, as 0000:05:00.0/2. 0 or -EINVAL. Looks at the text only. */
int ntbm_bar_parse(const char *name, struct ut_pci_addr *addr, unsigned *number);

/* Looks at the BAR of that name in the tree at pci_dir (NTBM_PCI_DIR, or a recording). 0, or -errno with a
 * sentence: -ENODEV no such function, or it does not answer; -EBUSY a driver has it; -EADDRNOTAVAIL no
 * address is assigned; -EINVAL not memory, or the base is no multiple of the size. */
int ntbm_bar_find(const char *pci_dir, const char *name, struct ntbm_bar *out, struct ut_err *err);

/* Turns memory decoding on where it is not. 0 or -errno with a sentence. */
int ntbm_bar_enable(const char *pci_dir, const struct ntbm_bar *bar, struct ut_err *err);

#endif
