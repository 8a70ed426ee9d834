/*
 * Looking again and again at the path of one device, from its own link to the root port: what the daemon does
 * for each window that it lives on.
 *
 * Opening reads everything once; a look then reads only what changes: speeds, status registers and error
 * counters, through files that stay open. The counters of all functions on the path are added up, since it is
 * often the partner that counts, and one that restarts (the device was reset) subtracts nothing.
 *
 * Threads: a watch belongs to one thread at a time. Looks block on the device's registers: never from a
 * thread that must not wait.
 */
#ifndef UT_PCI_WATCH_H
#define UT_PCI_WATCH_H

#include "utils/pci_errors.h"
#include "utils/pci_path.h"

struct ut_pci_watch;

struct ut_pci_health {
    bool gone;                         /* the device, or a bridge above it, has left or answers all ones */
    enum ut_pci_verdict worst;         /* of the links on the path; UT_PCI_VERDICTS when it has none */
    int worst_link;                    /* of the watch's model; UT_PCI_NONE */
    struct ut_pci_path path;           /* hops and bottleneck, in the watch's model */
    bool has_counters;                 /* some function on the path counts errors */
    uint64_t errors[UT_PCI_AER_KINDS]; /* on the whole path since the watch was opened */
    uint64_t new_errors[UT_PCI_AER_KINDS]; /* since the look before */
    struct ut_pci_addr noisiest; /* who counted most of one kind since then; the device when nobody did */
    bool changed;                /* speed, width or verdict of some link differs from the look before */
};

/* Opens a watch on a device of this machine (dir NULL) or of a sysfs tree. 0, -ENODEV when there is no such
 * device, -ENOMEM, or -errno. */
int ut_pci_watch_open(const char *dir, struct ut_pci_addr addr, struct ut_pci_watch **out);

/* Closes; NULL is fine. */
void ut_pci_watch_close(struct ut_pci_watch *watch);

/* Looks. The first look has no new errors and has not changed. 0 or -ENOMEM; *out is untouched then. */
int ut_pci_watch_look(struct ut_pci_watch *watch, struct ut_pci_health *out);

/* The model of the last look, or of the opening: nodes, links, capabilities of the path. It holds until the
 * next look. */
const struct ut_pci_model *ut_pci_watch_model(const struct ut_pci_watch *watch);

#endif
