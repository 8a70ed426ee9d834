/*
 * Link speeds as numbers. A speed is kept in MT/s a lane (2500, 5000, 8000, ...) and a width in lanes; 0 is
 * "unknown" in both, never "stopped". Pure arithmetic, any thread.
 */
#ifndef UT_PCI_SPEED_H
#define UT_PCI_SPEED_H

#include <stdbool.h>
#include <stdint.h>

struct ut_pci_rate {
    uint32_t mts;   /* MT/s a lane; 0 unknown */
    uint32_t width; /* lanes; 0 unknown */
};

#define UT_PCI_TLP_OVERHEAD_BYTES 24 /* framing, sequence, header with a 64-bit address, LCRC */

/* The speed of a 4-bit code of the link registers (1 is 2.5 GT/s); 0 for codes nobody has defined. */
uint32_t ut_pci_speed_of_code(unsigned code);

/* Reads what sysfs says: "8.0 GT/s PCIe", "8 GT/s", "Unknown". 0 for anything that is no PCIe speed. */
uint32_t ut_pci_speed_of_text(const char *text);

/* The width when PCIe has it (1 2 4 8 12 16 32), else 0: sysfs and registers say 0, 63 or 255 for unknown. */
uint32_t ut_pci_width_of(uint64_t lanes);

/* The generation of a speed, 1 for 2.5 GT/s; 0 for unknown. And back. */
unsigned ut_pci_gen_of_speed(uint32_t mts);
uint32_t ut_pci_speed_of_gen(unsigned gen);

/* The share of the raw bits that carry data: 0.8 for 8b/10b, 128/130, 236/256 in flits. */
double ut_pci_encoding(uint32_t mts);

/* 10^9 bytes a second and direction after the encoding; 0 when speed or width is unknown. */
double ut_pci_gbytes(struct ut_pci_rate rate);

/* The share that is left for data when every packet carries payload_bytes. */
double ut_pci_payload_share(unsigned payload_bytes);

/* True when both speed and width are known. */
static inline bool ut_pci_rate_known(struct ut_pci_rate rate)
{
    return rate.mts && rate.width;
}

#define UT_PCI_RATE_CHARS 32

/* Writes "8 GT/s x16", "? x4" or "unknown". */
void ut_pci_rate_show(struct ut_pci_rate rate, char out[UT_PCI_RATE_CHARS]);

#endif
