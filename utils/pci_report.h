/*
 * What one look at a device's path has shown, in plain values: it can be handed to another thread and kept
 * while the watch goes on. pci_trend.h judges a row of them.
 *
 * Threads: made by whoever has the watch; then it is data.
 */
#ifndef UT_PCI_REPORT_H
#define UT_PCI_REPORT_H

#include "utils/pci_watch.h"

/* One link of the path, with both of its ends. */
struct ut_pci_hop {
    bool has_above, has_below; /* the end is recorded */
    struct ut_pci_addr above, below;
    struct ut_pci_rate cur, want;            /* now; the lower of what the ends can do */
    struct ut_pci_rate above_max, below_max; /* what each can do; unknown parts 0 */
    bool changing; /* both ends state a rate, and they differ: read while it changed */
    enum ut_pci_verdict verdict;
    const char *why; /* constant */
};

struct ut_pci_report {
    bool found; /* false: there is no such device, or it cannot be read; then nothing else is set */
    bool gone;  /* it has left, or answers all ones; the rest is what was last known */
    bool needs_root, complete; /* registers hidden; the path ends at a root bus */
    struct ut_pci_addr addr;
    uint16_t vendor, device;
    char driver[32];            /* empty: none, or unknown */
    char power[12];             /* "D0", ...; empty unknown */
    int numa_node, iommu_group; /* -1 unknown or none */
    char iommu_type[16];
    char local_cpus[64];

    unsigned hop_count;
    struct ut_pci_hop hop[UT_PCI_MAX_HOPS]; /* the device's own first */
    int worst, bottleneck;                  /* index into hop; UT_PCI_NONE when there is none, or unknown */
    double gbytes, possible_gbytes;         /* GB/s of the path; 0 unknown */

    bool has_counters;
    uint64_t new_errors[UT_PCI_AER_KINDS]; /* on the whole path since the look before */
    struct ut_pci_addr noisiest;           /* who counted most of them */
    enum ut_pci_severity sticky;           /* the worst that status registers on the path remember */

    enum ut_pci_have aer;      /* PRESENT when some function on the path has it, else why it is not known */
    enum ut_pci_have acs, dpc; /* the same of ports; UT_PCI_NA when there is none */
    struct ut_pci_addr redirects[UT_PCI_MAX_HOPS]; /* ports whose ACS sends peer traffic up to the root */
    unsigned redirect_count;
    unsigned dpc_armed; /* ports that take the link down on a fatal error */
    bool dpc_triggered; /* one of them has */
    struct ut_pci_addr dpc_at;
};

/* Describes the watch's last look. */
void ut_pci_report_of(const struct ut_pci_watch *watch, const struct ut_pci_health *health,
                      struct ut_pci_report *out);

/* The worst link's verdict; UT_PCI_VERDICTS when the path has none. */
enum ut_pci_verdict ut_pci_report_verdict(const struct ut_pci_report *report);

/* True when the path is worse than it could be and somebody should look: the device has gone, or a link is
 * degraded or down. */
bool ut_pci_report_is_bad(const struct ut_pci_report *report);

#define UT_PCI_HOP_CHARS 160

/* Writes "0000:00:01.0 - 0000:01:00.0 runs at 8 GT/s x8 of 8 GT/s x16", or of what little is known. */
void ut_pci_hop_show(const struct ut_pci_hop *hop, char out[UT_PCI_HOP_CHARS]);

#endif
