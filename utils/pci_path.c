#include "utils/pci_path.h"

#include <inttypes.h>
#include <pci/header.h>
#include <stdio.h>
#include <string.h>

/* ---- up to the root ---- */

/* The link above a node. A function without link registers right below a port (virtual machines have such)
 * uses the port's. */
static int uplink(const struct ut_pci_model *m, int node)
{
    const struct ut_pci_node *n = &m->node[node],
                             *above = n->parent == UT_PCI_NONE ? NULL : &m->node[n->parent];
    if (n->side == UT_PCI_SIDE_BELOW)
        return n->link;
    return above && above->side == UT_PCI_SIDE_ABOVE && !n->parent_indirect ? above->link : UT_PCI_NONE;
}

static void weigh_hop(const struct ut_pci_model *m, struct ut_pci_path *path, unsigned hop)
{
    const struct ut_pci_link *link = &m->link[path->hop[hop]];
    double now = ut_pci_gbytes(link->cur), want = ut_pci_gbytes(link->want);
    if (now > 0 && (path->bottleneck == UT_PCI_NONE || now < path->gbytes)) {
        path->bottleneck = (int)hop;
        path->gbytes = now;
    }
    want = want > 0 ? want : now;
    if (want > 0 && (path->possible_gbytes <= 0 || want < path->possible_gbytes))
        path->possible_gbytes = want;
}

void ut_pci_path_up(const struct ut_pci_model *m, int node, struct ut_pci_path *out)
{
    struct ut_pci_path path = {.device = node, .top = node, .bottleneck = UT_PCI_NONE, .complete = true};
    for (int at = node; at != UT_PCI_NONE; at = m->node[at].parent) {
        const struct ut_pci_node *n = &m->node[at];
        path.top = at;
        path.complete &= !n->parent_missing && !n->parent_indirect;
        int link = uplink(m, at);
        if (link == UT_PCI_NONE)
            continue;
        if (path.hop_count == UT_PCI_MAX_HOPS) {
            path.complete = false;
            break;
        }
        path.hop[path.hop_count] = link;
        weigh_hop(m, &path, path.hop_count++);
    }
    *out = path;
}

void ut_pci_root_bus(const struct ut_pci_model *m, int node, char out[UT_PCI_BUS_CHARS])
{
    while (m->node[node].parent != UT_PCI_NONE)
        node = m->node[node].parent;
    struct ut_pci_addr addr = m->node[node].fn->addr;
    snprintf(out, UT_PCI_BUS_CHARS, "%04" PRIx32 ":%02x", addr.domain, addr.bus);
}

/* ---- between two ---- */

bool ut_pci_acs_redirects(const struct ut_pci_acs *acs)
{
    return acs->have == UT_PCI_PRESENT &&
           acs->ctl & (PCI_ACS_CTRL_REQ_RED | PCI_ACS_CTRL_CMPLT_RED | PCI_ACS_CTRL_FORWARD);
}

static unsigned depth_of(const struct ut_pci_model *m, int node)
{
    unsigned depth = 0;
    for (; m->node[node].parent != UT_PCI_NONE; node = m->node[node].parent)
        depth++;
    return depth;
}

static int common_of(const struct ut_pci_model *m, int a, int b)
{
    unsigned da = depth_of(m, a), db = depth_of(m, b);
    for (; da > db; da--)
        a = m->node[a].parent;
    for (; db > da; db--)
        b = m->node[b].parent;
    while (a != b) {
        a = m->node[a].parent;
        b = m->node[b].parent;
    }
    return a;
}

/* What one arm of the way, from a device to below the common bridge, passes. */
struct arm {
    unsigned switches;
    bool acs_unknown, broken;
};

static void pass(const struct ut_pci_model *m, int at, struct arm *arm, struct ut_pci_pair *pair)
{
    const struct ut_pci_node *node = &m->node[at];
    arm->broken |= node->parent_indirect;
    if (node->type == UT_PCI_UPSTREAM || (node->is_bridge && node->side == UT_PCI_SIDE_NONE))
        arm->switches++;
    if (node->side == UT_PCI_SIDE_ABOVE) {
        enum ut_pci_have have = node->caps.acs.have;
        arm->acs_unknown |= have != UT_PCI_PRESENT && have != UT_PCI_ABSENT;
        if (ut_pci_acs_redirects(&node->caps.acs) && pair->redirect_count < 2 * UT_PCI_MAX_HOPS)
            pair->redirects[pair->redirect_count++] = at;
    }
    int link = uplink(m, at);
    if (link != UT_PCI_NONE) {
        double gbytes = ut_pci_gbytes(m->link[link].cur);
        if (gbytes > 0 && (pair->gbytes <= 0 || gbytes < pair->gbytes))
            pair->gbytes = gbytes;
    }
}

static struct arm climb(const struct ut_pci_model *m, int node, int common, struct ut_pci_pair *pair)
{
    struct arm arm = {0, false, false};
    for (int at = node; at != common && at != UT_PCI_NONE; at = m->node[at].parent) {
        pass(m, at, &arm, pair);
        arm.broken |= m->node[at].parent_missing;
    }
    return arm;
}

/* The NUMA node of a device, or of the nearest bridge above that knows. */
static int numa_of(const struct ut_pci_model *m, int node)
{
    for (; node != UT_PCI_NONE; node = m->node[node].parent)
        if (m->node[node].fn->attrs.numa_node >= 0)
            return m->node[node].fn->attrs.numa_node;
    return -1;
}

static int top_of(const struct ut_pci_model *m, int node)
{
    while (m->node[node].parent != UT_PCI_NONE)
        node = m->node[node].parent;
    return node;
}

static enum ut_pci_class class_apart(const struct ut_pci_model *m, int a, int b)
{
    struct ut_pci_addr top_a = m->node[top_of(m, a)].fn->addr, top_b = m->node[top_of(m, b)].fn->addr;
    int numa_a = numa_of(m, a), numa_b = numa_of(m, b);
    if (top_a.domain == top_b.domain && top_a.bus == top_b.bus)
        return UT_PCI_PHB;
    if (numa_a >= 0 && numa_b >= 0)
        return numa_a == numa_b ? UT_PCI_NODE : UT_PCI_SYS;
    return m->snap->numa_nodes == 1 ? UT_PCI_NODE : UT_PCI_NODE_SYS;
}

static enum ut_pci_p2p verdict(const struct ut_pci_pair *pair, bool acs_unknown)
{
    switch (pair->cls) {
    case UT_PCI_SELF:
        return UT_PCI_P2P_DIRECT;
    case UT_PCI_PIX:
    case UT_PCI_PXB:
        if (pair->redirect_count)
            return UT_PCI_P2P_REDIRECTED;
        return acs_unknown ? UT_PCI_P2P_UNKNOWN : UT_PCI_P2P_DIRECT;
    case UT_PCI_PHB:
    case UT_PCI_NODE:
        return pair->redirect_count ? UT_PCI_P2P_REDIRECTED_HOST : UT_PCI_P2P_HOST;
    case UT_PCI_SYS:
        return UT_PCI_P2P_SOCKETS;
    default:
        return UT_PCI_P2P_UNKNOWN;
    }
}

void ut_pci_pair_of(const struct ut_pci_model *m, int a, int b, struct ut_pci_pair *out)
{
    memset(out, 0, sizeof *out);
    out->common = common_of(m, a, b);
    struct arm left = climb(m, a, out->common, out), right = climb(m, b, out->common, out);
    bool broken = left.broken || right.broken;
    if (a == b) {
        out->cls = UT_PCI_SELF;
    } else if (ut_pci_addr_same_dev(m->node[a].fn->addr, m->node[b].fn->addr)) {
        out->cls = UT_PCI_PIX;
    } else if (out->common != UT_PCI_NONE) {
        bool turns_in_switch = m->node[out->common].side != UT_PCI_SIDE_ABOVE;
        out->switches = left.switches + right.switches + turns_in_switch;
        out->cls = broken ? UT_PCI_CLASS_UNKNOWN : out->switches > 1 ? UT_PCI_PXB : UT_PCI_PIX;
    } else {
        out->cls = broken ? UT_PCI_CLASS_UNKNOWN : class_apart(m, a, b);
    }
    out->p2p = verdict(out, left.acs_unknown || right.acs_unknown);
}

/* ---- words ---- */

const char *ut_pci_class_name(enum ut_pci_class cls)
{
    static const char *const NAMES[] = {"X", "PIX", "PXB", "PHB", "NODE", "SYS", "NODE|SYS", "?"};
    return cls < UT_PCI_CLASSES ? NAMES[cls] : "?";
}

const char *ut_pci_p2p_name(enum ut_pci_p2p p2p)
{
    static const char *const NAMES[] = {"direct",          "redirected",     "host",
                                        "redirected-host", "across-sockets", "unknown"};
    return NAMES[p2p];
}
