/*
 * What a function and a link have to tell about errors: the kernel's counters, and the sticky bits of the
 * registers. A sticky bit is history: it says that something happened since it was last cleared, not that it
 * happens now.
 *
 * Pure functions of a model, any thread.
 */
#ifndef UT_PCI_ERRORS_H
#define UT_PCI_ERRORS_H

#include "utils/pci_model.h"

/* The counters of both ends of a link together, since it is often the partner that counts. */
struct ut_pci_link_errors {
    bool present[UT_PCI_AER_KINDS]; /* some end has this kind of counter */
    uint64_t total[UT_PCI_AER_KINDS];
};

/* Sums the counters of the port and of all functions at the other end. */
void ut_pci_link_errors(const struct ut_pci_model *model, int link, struct ut_pci_link_errors *out);

/* A counter file's worth: the stated total, or the sum of its lines where that is more. */
uint64_t ut_pci_counter_total(const struct ut_pci_counters *counters);

/* How serious a function's sticky AER bits are. */
enum ut_pci_severity {
    UT_PCI_QUIET,       /* no bit is set */
    UT_PCI_HARMLESS,    /* only masked, correctable, or unsupported requests, as any bus scan leaves them */
    UT_PCI_UNCORRECTED, /* an unmasked uncorrectable error, not fatal */
    UT_PCI_FATAL,       /* an unmasked fatal one */
};

/* Judges the status bits by mask and severity; UT_PCI_QUIET without AER. */
enum ut_pci_severity ut_pci_aer_severity(const struct ut_pci_aer *aer);

/* "correctable", "nonfatal", "fatal". */
const char *ut_pci_aer_kind_name(enum ut_pci_aer_kind kind);

#endif
