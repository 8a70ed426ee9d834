/*
 * The address of a PCI function: domain, bus, device, function. Domains may be wider than 16 bits (Linux
 * numbers the ones behind Intel VMD and Hyper-V from 0x10000).
 */
#ifndef UT_PCI_ADDR_H
#define UT_PCI_ADDR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UT_PCI_ADDR_CHARS 24 /* "ffffffff:ff:1f.7" and the NUL, with room */

struct ut_pci_addr {
    uint32_t domain;
    uint8_t bus, dev, fn;
};

/* Reads "[DOMAIN:]BB:DD.F" (hex) at the start of text. The number of characters it took, 0 when there is no
 * address; *out is untouched then. The domain has 4 to 8 digits and is 0 when left out. */
size_t ut_pci_addr_scan(const char *text, struct ut_pci_addr *out);

/* Like ut_pci_addr_scan, for a whole word. 0 or -EINVAL. */
int ut_pci_addr_parse(const char *word, struct ut_pci_addr *out);

/* Writes "0000:03:00.0". */
void ut_pci_addr_show(struct ut_pci_addr addr, char out[UT_PCI_ADDR_CHARS]);

/* The order of lspci: domain, bus, device, function. Below, equal to or above 0 as strcmp has it. */
int ut_pci_addr_cmp(struct ut_pci_addr a, struct ut_pci_addr b);

/* True when both are functions of one device. */
bool ut_pci_addr_same_dev(struct ut_pci_addr a, struct ut_pci_addr b);

#endif
