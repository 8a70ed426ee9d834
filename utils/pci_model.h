/*
 * The picture of a machine's PCI Express: a tree of functions, and each link with both of its ends and a
 * verdict. Made from a snapshot, without input or output of its own; fabricctl and the daemon read it.
 *
 *      root bus ── root port ══ upstream port ── downstream port ══ endpoint
 *                     link A (══)                   link B
 *
 * A link joins the port above (root port, switch downstream port) and the functions on the bus below it. A
 * link is judged from both ends: what it should run at is the lower of what the two can do, so a wide port
 * with a narrow card is healthy, and with one end unknown the verdict stays open.
 *
 * Always holds: following `parent` from any node ends at a node without one; every node is reached exactly
 * once from the roots through `child` and `next`.
 *
 * Threads: a model is built once and then only read.
 */
#ifndef UT_PCI_MODEL_H
#define UT_PCI_MODEL_H

#include <stdbool.h>
#include <stddef.h>

#include "utils/pci_caps.h"
#include "utils/pci_snap.h"

#define UT_PCI_NONE (-1)

/* What a function is to us. */
enum ut_pci_kind {
    UT_PCI_KIND_OTHER,
    UT_PCI_KIND_BRIDGE, /* ports and bridges: has a bus below */
    UT_PCI_KIND_HOST,   /* host bridge */
    UT_PCI_KIND_GPU,    /* GPUs and other accelerators */
    UT_PCI_KIND_VGA,    /* the display of a management controller */
    UT_PCI_KIND_NIC,
    UT_PCI_KIND_NTB, /* non-transparent bridge, or shared memory of a virtual machine */
    UT_PCI_KIND_NVME,
    UT_PCI_KIND_COUNT,
};

/* "gpu", "nic", ...; never NULL. */
const char *ut_pci_kind_name(enum ut_pci_kind kind);

/* Which end of a link a node is. */
enum ut_pci_side {
    UT_PCI_SIDE_NONE,  /* no link: conventional PCI, or inside the root complex */
    UT_PCI_SIDE_ABOVE, /* its link goes down to the devices on its secondary bus */
    UT_PCI_SIDE_BELOW, /* its link goes up to the port above */
};

struct ut_pci_node {
    const struct ut_pci_fn *fn;
    struct ut_pci_caps caps;
    enum ut_pci_kind kind;
    enum ut_pci_side side;
    unsigned type;               /* of the Express capability, or worked out from the tree without one */
    struct ut_pci_rate max, cur; /* of the node's own link registers or attributes */
    bool is_bridge;
    int secondary, subordinate; /* buses below a bridge; UT_PCI_NONE unknown */
    int parent;                 /* the bridge above; UT_PCI_NONE on a root bus, or when it is not recorded */
    bool parent_missing;        /* there must be a bridge above, but it is not in the snapshot */
    bool parent_indirect;       /* some bridge between parent and this node is not recorded */
    int child, next;            /* first function below, next one beside; UT_PCI_NONE ends */
    int link;                   /* the link of this node, UT_PCI_NONE when side is NONE */
};

enum ut_pci_verdict {
    UT_PCI_FULL,      /* runs at all that both ends can do */
    UT_PCI_LIMITED,   /* healthy: one end can do more, the other cannot */
    UT_PCI_DEGRADED,  /* both ends can do more */
    UT_PCI_IDLE,      /* slower than both can do, but lowered on purpose or by power saving */
    UT_PCI_DISABLED,  /* slower than both can do, but nobody uses the device */
    UT_PCI_BELOW_OWN, /* below what the recorded end can do; the other end is not recorded */
    UT_PCI_DOWN,      /* down, although something is plugged in */
    UT_PCI_EMPTY,     /* down: the slot is empty */
    UT_PCI_UNUSED,    /* down or never up, and nothing says that anything is plugged in */
    UT_PCI_UNKNOWN,   /* the registers do not say */
    UT_PCI_VERDICTS,
};

/* "full", "degraded", ...; never NULL; "n/a" for UT_PCI_VERDICTS. */
const char *ut_pci_verdict_name(enum ut_pci_verdict verdict);

/* Which end holds a link back. */
enum ut_pci_limiter {
    UT_PCI_LIMIT_NONE,  /* both ends can do the same */
    UT_PCI_LIMIT_ABOVE, /* the port */
    UT_PCI_LIMIT_BELOW, /* the device */
    UT_PCI_LIMIT_BOTH,  /* one in speed, the other in width */
    UT_PCI_LIMIT_UNKNOWN,
};

struct ut_pci_link {
    int above, below; /* nodes; UT_PCI_NONE when not recorded, never both. below is the lowest function */
    struct ut_pci_rate above_max, below_max;
    struct ut_pci_rate cur;  /* of the port, of the device where the port does not say; unknown when the
                                link is down, whatever the registers still show */
    struct ut_pci_rate want; /* the lower of both ends; unknown parts 0 */
    bool ends_disagree;      /* both state a current rate, and they differ: read while it changed */
    bool slower, narrower;   /* cur is below want in speed, in width */
    enum ut_pci_limiter limiter;
    enum ut_pci_verdict verdict;
    const char *why; /* a constant half sentence that supports the verdict; never NULL */
};

struct ut_pci_model {
    const struct ut_pci_snap *snap; /* must outlive the model */
    struct ut_pci_node *node;       /* one a function, in the snapshot's order; owned */
    size_t node_count;
    struct ut_pci_link *link; /* owned */
    size_t link_count;
    int first_root;       /* first node without a parent; the others follow through next */
    unsigned bus_loops;   /* bridges whose bus numbers lead back to themselves, cut open */
    unsigned bus_doubles; /* bridges that claim a bus another bridge has */
};

/* Builds the model of a snapshot. 0 or -ENOMEM; *out is the caller's, to be freed by ut_pci_model_free. */
int ut_pci_model_new(const struct ut_pci_snap *snap, struct ut_pci_model **out);

/* Frees a model; NULL is fine. The snapshot stays. */
void ut_pci_model_free(struct ut_pci_model *model);

/* The node with that address, or UT_PCI_NONE. */
int ut_pci_model_find(const struct ut_pci_model *model, struct ut_pci_addr addr);

/* The verdict for one end alone, as a table of functions shows it: FULL when the function runs at all that it
 * can do, else that of its link. UT_PCI_VERDICTS when it has no link. */
enum ut_pci_verdict ut_pci_node_verdict(const struct ut_pci_model *model, int node);

/* How bad a verdict is, to sort by: DOWN and DEGRADED first. */
int ut_pci_verdict_rank(enum ut_pci_verdict verdict);

/* True for what an operator must look at: DEGRADED and DOWN. */
bool ut_pci_verdict_is_fault(enum ut_pci_verdict verdict);

/* Judges all links of a model whose tree is built; ut_pci_model_new calls it. 0 or -ENOMEM. */
int ut_pci_links_judge(struct ut_pci_model *model);

#endif
