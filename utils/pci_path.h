/*
 * Paths through the tree: from a device up to its root port, with the hop that holds it back; and between
 * two devices, with the class that nvidia-smi topo names and what peer-to-peer traffic meets on the way.
 *
 * Pure functions of a model, any thread.
 */
#ifndef UT_PCI_PATH_H
#define UT_PCI_PATH_H

#include "utils/pci_model.h"

#define UT_PCI_MAX_HOPS 32

struct ut_pci_path {
    int device, top;          /* first and last node; top is below nothing that is recorded */
    int hop[UT_PCI_MAX_HOPS]; /* links, the device's own first */
    unsigned hop_count;
    bool complete;          /* ends at a root bus: no bridge on the way is missing from the snapshot */
    int bottleneck;         /* index into hop of the slowest; of equal ones the one nearest the device;
                               UT_PCI_NONE when no hop's rate is known */
    double gbytes;          /* of that hop, GB/s after encoding; 0 unknown */
    double possible_gbytes; /* if every hop ran at what both its ends can do; 0 unknown */
};

/* Walks from a node up to its root. */
void ut_pci_path_up(const struct ut_pci_model *model, int node, struct ut_pci_path *out);

/* How far apart two devices are. */
enum ut_pci_class {
    UT_PCI_SELF,
    UT_PCI_PIX,           /* one switch at most */
    UT_PCI_PXB,           /* several switches, no host bridge */
    UT_PCI_PHB,           /* the same host bridge */
    UT_PCI_NODE,          /* host bridges of one NUMA node */
    UT_PCI_SYS,           /* across NUMA nodes */
    UT_PCI_NODE_SYS,      /* different host bridges, NUMA nodes unknown */
    UT_PCI_CLASS_UNKNOWN, /* a bridge that would tell is not recorded */
    UT_PCI_CLASSES,
};

const char *
ut_pci_class_name(enum ut_pci_class cls); /* "PIX", ..., "NODE|SYS", "?"; "X" for the device itself */

enum ut_pci_p2p {
    UT_PCI_P2P_DIRECT,          /* turns round in a switch */
    UT_PCI_P2P_REDIRECTED,      /* a switch port on the way sends it up to the root complex (ACS) */
    UT_PCI_P2P_HOST,            /* through the root complex: depends on the platform */
    UT_PCI_P2P_REDIRECTED_HOST, /* through the root complex, redirected there for translation (ACS) */
    UT_PCI_P2P_SOCKETS,         /* between sockets: slow where it works at all */
    UT_PCI_P2P_UNKNOWN,         /* ACS of a port on the way is not recorded, or the class is unknown */
};

/* "direct", "redirected", ...; never NULL. */
const char *ut_pci_p2p_name(enum ut_pci_p2p p2p);

struct ut_pci_pair {
    enum ut_pci_class cls;
    enum ut_pci_p2p p2p;
    int common;                         /* the lowest bridge above both; UT_PCI_NONE */
    unsigned switches;                  /* passed, of classes PIX and PXB */
    int redirects[2 * UT_PCI_MAX_HOPS]; /* ports on the way with redirection on */
    unsigned redirect_count;
    double gbytes; /* of the slowest link on the way; 0 unknown */
};

/* Looks at the way from one node to another. */
void ut_pci_pair_of(const struct ut_pci_model *model, int a, int b, struct ut_pci_pair *out);

/* True when a port's ACS sends peer traffic up: request or completion redirection, or upstream forwarding. */
bool ut_pci_acs_redirects(const struct ut_pci_acs *acs);

/* The domain and bus that a path ends on, as "0000:00"; both devices on one root bus share a host bridge. */
#define UT_PCI_BUS_CHARS 16
void ut_pci_root_bus(const struct ut_pci_model *model, int node, char out[UT_PCI_BUS_CHARS]);

#endif
