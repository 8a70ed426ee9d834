/*
 * Findings: what the checks of fabricctl doctor hand to whoever prints them.
 *
 * A check looks at one subject and adds findings; it prints nothing and changes nothing. Each finding says
 * what, where, the evidence, why it matters and what to do next.
 */
#ifndef CTL_FIND_H
#define CTL_FIND_H

#include "utils/ctl_host.h"
#include "utils/ctl_machine.h"
#include "utils/ut_text.h"

enum ctl_severity {
    CTL_FAULT,   /* something is broken */
    CTL_WARNING, /* something costs performance or will break */
    CTL_NOTE,    /* worth knowing; no fault */
};

struct ctl_finding {
    enum ctl_severity severity;
    const char *check; /* a constant name, for scripts: "link-degraded" */
    int node;          /* what it is about; UT_PCI_NONE: the machine as a whole */
    char what[160];
    struct ut_text evidence; /* owned */
    const char *why, *next;  /* constants */
};

struct ctl_findings {
    struct ctl_finding *list; /* owned */
    size_t count, cap;
    bool failed; /* one was lost for want of memory */
};

#define CTL_MAX_MOVERS 512 /* checks of pairs stay short; machines have a few dozen */

/* What the checks look at. */
struct ctl_case {
    const struct ctl_machine *machine;
    const struct ut_pci_model *model;
    const struct ctl_host *host;
    struct ctl_findings *findings;
    int mover[CTL_MAX_MOVERS]; /* the nodes of ctl_is_mover */
    size_t mover_count;
};

/* Adds a finding. The pointer holds until the next one is added; NULL without memory, which the other
 * functions here take. */
struct ctl_finding *ctl_find(const struct ctl_case *c, enum ctl_severity severity, const char *check,
                             int node, const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Adds to its evidence; pieces are separated by "; ". */
void ctl_evidence(struct ctl_finding *finding, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Sets why it matters and what to do next; both must be constants. */
void ctl_advise(struct ctl_finding *finding, const char *why, const char *next);

/* Worst first, otherwise in the order they were found. */
void ctl_findings_sort(struct ctl_findings *findings);

/* Frees the findings and makes the list empty again. */
void ctl_findings_fini(struct ctl_findings *findings);

/* Runs all checks on a machine; host may be all unknown. The findings come worst first. */
void ctl_find_all(const struct ctl_machine *machine, const struct ctl_host *host,
                  struct ctl_findings *findings);

/* ---- the checks, a file each ---- */

/* Degraded, down and undecided links, a slow NIC beside a fast GPU, shared switches. */
void ctl_check_links(const struct ctl_case *c);

/* Silent functions, AER counters and status bits, containment. */
void ctl_check_errors(const struct ctl_case *c);

/* BARs and windows, bus numbers, packet sizes. */
void ctl_check_windows(const struct ctl_case *c);

/* ACS, IOMMU groups and translation, NUMA. */
void ctl_check_peers(const struct ctl_case *c);

/* What the kernel says: command line, memory, FUSE, limits, containers, modules. */
void ctl_check_host(const struct ctl_case *c);

/* ---- what several checks ask ---- */

/* True for the devices that move data here: GPUs, NICs, NTBs and NVMe, the first function of each device,
 * virtual functions left out. */
bool ctl_is_mover(const struct ut_pci_model *model, int node);

#endif
