/*
 * libpci, contained. The library ends the process on errors; here its error handler jumps back to the call
 * that led to it, which then fails like any other, and nothing it allocated is lost.
 *
 * Three things come from it: configuration space of this machine, the BARs of a function, and the names of
 * pci.ids.
 *
 * Threads: one handle, one thread at a time. Handles are independent of each other.
 */
#ifndef UT_PCI_LIBPCI_H
#define UT_PCI_LIBPCI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "utils/pci_addr.h"

struct ut_pci_lib;

/* Opens libpci for this machine. 0, -ENOMEM, or -EIO when it finds no way to the machine's PCI: names still
 * work then, with the handle that is returned all the same. */
int ut_pci_lib_open(struct ut_pci_lib **out);

/* The same for the tree at dir ("/sys/bus/pci", or a recording of it), which the caller keeps until close. */
int ut_pci_lib_open_at(const char *dir, struct ut_pci_lib **out);

/* Opens libpci for names only: no access to the machine. 0 or -ENOMEM. */
int ut_pci_lib_open_names(struct ut_pci_lib **out);

/* Closes; NULL is fine. */
void ut_pci_lib_close(struct ut_pci_lib *lib);

/* Reads configuration space from byte 0 on, as far as the kernel lets us. The count (at most size), or -EIO.
 */
ssize_t ut_pci_lib_config(struct ut_pci_lib *lib, struct ut_pci_addr addr, uint8_t *cfg, size_t size);

/* A function as memory to map: its BARs, and who has it. */
struct ut_pci_bars {
    uint16_t vendor;  /* 0xffff: it does not answer */
    uint16_t command; /* the register */
    char driver[32];  /* empty: none */
    struct {
        uint64_t start; /* 0: no address is assigned */
        uint64_t bytes;
        uint64_t flags; /* of the kernel's resource: UT_PCI_RES_* */
        uint32_t reg;   /* the BAR as the function has it */
    } bar[6];
};

#define UT_PCI_RES_IO 0x100u
#define UT_PCI_RES_MEM 0x200u
#define UT_PCI_RES_PREFETCH 0x2000u
#define UT_PCI_RES_64 0x100000u
#define UT_PCI_RES_UNSET 0x20000000u

/* Reads the BARs of one function. 0; -ENODEV when there is none at that address; -EIO. */
int ut_pci_lib_bars(struct ut_pci_lib *lib, struct ut_pci_addr addr, struct ut_pci_bars *out);

/* Sets bits of the command register. 0, or -EIO when the kernel refuses. */
int ut_pci_lib_command(struct ut_pci_lib *lib, struct ut_pci_addr addr, uint16_t bits);

/* Writes the name of a vendor and device into out (always NUL-terminated), "" when pci.ids has none. */
void ut_pci_lib_name(struct ut_pci_lib *lib, uint16_t vendor, uint16_t device, char *out, size_t size);

/* What libpci said when it last failed; "" when it never did. */
const char *ut_pci_lib_error(const struct ut_pci_lib *lib);

#endif
