/*
 * Checks of addresses: BARs without one, windows of NTBs, bus numbers, and packet sizes that do not fit
 * together.
 */
#include <pci/header.h>

#include "utils/ctl_find.h"

#define RESOURCE_MEM 0x200u
#define RESOURCE_UNSET 0x20000000u
#define RESOURCE_DISABLED 0x10000000u
#define SMALL_GPU_BAR (256ull << 20)
#define PLX 0x10b5
#define SEED_ALIGN (1ull << 20)

/* ---- BARs ---- */

static bool is_unassigned(const struct ut_pci_node *node, unsigned bar)
{
    const struct ut_pci_bar *reg = &node->caps.bar[bar];
    const struct ut_pci_attrs *attrs = &node->fn->attrs;
    if (attrs->has_resources) {
        const struct ut_pci_resource *res = &attrs->bar[bar];
        bool unset = res->flags & RESOURCE_UNSET && res->flags & RESOURCE_MEM;
        return unset || (reg->implemented && !reg->is_io && !res->start && !res->end);
    }
    return reg->implemented && !reg->is_io && !reg->address;
}

/* Firmware leaves functions that it hides without addresses; that costs nothing. */
static enum ctl_severity unassigned_severity(const struct ctl_case *c, int idx)
{
    if (ctl_is_mover(c->model, idx))
        return CTL_FAULT;
    return c->model->node[idx].caps.command & PCI_COMMAND_MEMORY ? CTL_WARNING : CTL_NOTE;
}

static void check_assigned(const struct ctl_case *c, int idx)
{
    const struct ut_pci_node *node = &c->model->node[idx];
    struct ctl_finding *f = NULL;
    if (node->is_bridge)
        return;
    for (unsigned bar = 0; bar < UT_PCI_BARS; bar++) {
        if (!is_unassigned(node, bar))
            continue;
        if (!f)
            f = ctl_find(c, unassigned_severity(c, idx), "bar-unassigned", idx,
                         "memory window has no address");
        ctl_evidence(f, "BAR %u (%s%s): unassigned", bar, node->caps.bar[bar].is_64bit ? "64-bit" : "32-bit",
                     node->caps.bar[bar].is_prefetchable ? ", prefetchable" : "");
    }
    ctl_advise(
        f, "The device cannot be mapped: its driver fails, and mapping it anyway would hit address 0.",
        "Look for \"no space\" and \"can't assign\" in the kernel log; switch on Above 4G Decoding (and "
        "resizable BAR) in firmware, boot with pci=realloc, or pci=hpmmioprefsize=SIZE for hot-plug ports.");
}

static uint64_t bar_bytes(const struct ut_pci_attrs *attrs, unsigned bar)
{
    const struct ut_pci_resource *res = &attrs->bar[bar];
    bool assigned = res->start && res->end > res->start && res->flags & RESOURCE_MEM;
    return assigned ? res->end - res->start + 1 : 0;
}

static void check_gpu_window(const struct ctl_case *c, int idx)
{
    const struct ut_pci_attrs *attrs = &c->model->node[idx].fn->attrs;
    uint64_t largest = 0;
    for (unsigned bar = 0; bar < UT_PCI_BARS; bar++)
        if (bar_bytes(attrs, bar) > largest)
            largest = bar_bytes(attrs, bar);
    if (!largest || largest > SMALL_GPU_BAR || c->model->node[idx].kind != UT_PCI_KIND_GPU)
        return;
    struct ctl_finding *f =
        ctl_find(c, CTL_NOTE, "gpu-window-small", idx, "GPU shows at most %llu MiB of its memory",
                 (unsigned long long)(largest >> 20));
    ctl_advise(f, "Peers reach only what the window shows; direct transfers of large buffers need all of it.",
               "Switch on Above 4G Decoding and resizable BAR in firmware, if the GPU can do it.");
}

/* Windows of NTBs: the device translates by masks, so base and size decide what can be mapped. */
static void check_ntb_window(const struct ctl_case *c, int idx)
{
    const struct ut_pci_node *node = &c->model->node[idx];
    struct ctl_finding *f = NULL;
    for (unsigned bar = 0; bar < UT_PCI_BARS; bar++) {
        uint64_t bytes = bar_bytes(&node->fn->attrs, bar), start = node->fn->attrs.bar[bar].start;
        uint64_t align = node->fn->vendor == PLX && bytes > SEED_ALIGN ? SEED_ALIGN : 4096;
        bool crooked =
            bytes && (bytes & (bytes - 1) || start & (bytes - 1) || (bytes >= align && start % align));
        if (!crooked)
            continue;
        if (!f)
            f = ctl_find(c, CTL_FAULT, "window-misaligned", idx,
                         "window of a non-transparent bridge is misaligned");
        ctl_evidence(f, "BAR %u at 0x%llx, 0x%llx bytes", bar, (unsigned long long)start,
                     (unsigned long long)bytes);
    }
    ctl_advise(
        f,
        "The bridge replaces the upper address bits: a base that is no multiple of the size sends data "
        "elsewhere. Small transfers then work and large ones fail.",
        "Let firmware or pci=realloc assign the window anew; align landing memory to the size of the "
        "window.");
}

static void check_decoding(const struct ctl_case *c, int idx)
{
    const struct ut_pci_node *node = &c->model->node[idx];
    bool any = false;
    for (unsigned bar = 0; bar < UT_PCI_BARS; bar++)
        any |= node->caps.bar[bar].implemented && !node->caps.bar[bar].is_io && node->caps.bar[bar].address;
    if (!any || !node->caps.has_header || node->caps.command & PCI_COMMAND_MEMORY ||
        node->fn->attrs.driver[0])
        return;
    struct ctl_finding *f =
        ctl_find(c, CTL_NOTE, "memory-disabled", idx, "device does not decode memory: not in use");
    ctl_evidence(f, "command register %04x, no driver", node->caps.command);
    ctl_advise(f, "Its windows cannot be used until something enables it.",
               "Nothing, if it is meant to be idle; the daemon enables the windows that it is told to use.");
}

/* ---- bus numbers ---- */

static void check_buses(const struct ctl_case *c, int idx)
{
    const struct ut_pci_node *node = &c->model->node[idx];
    const struct ut_pci_caps *caps = &node->caps;
    bool backwards = caps->secondary && caps->subordinate < caps->secondary;
    bool onto_itself = caps->secondary && caps->secondary == node->fn->addr.bus;
    if (!caps->has_buses || (caps->secondary && !backwards && !onto_itself))
        return;
    bool unset = !caps->secondary;
    struct ctl_finding *f = ctl_find(c, unset ? CTL_NOTE : CTL_WARNING, "bus-numbers", idx,
                                     unset ? "bridge has no bus number: nothing behind it can be seen"
                                           : "bus numbers of the bridge contradict themselves");
    ctl_evidence(f, "on bus %02x, secondary %02x, subordinate %02x", node->fn->addr.bus, caps->secondary,
                 caps->subordinate);
    ctl_advise(f, "Devices behind such a bridge are not found at all, or answer under the wrong address.",
               "Boot with pci=assign-busses or pci=realloc, or give the port above more buses in firmware.");
}

static void check_bus_tree(const struct ctl_case *c)
{
    const struct ut_pci_model *m = c->model;
    if (!m->bus_loops && !m->bus_doubles)
        return;
    struct ctl_finding *f =
        ctl_find(c, CTL_WARNING, "bus-tree", UT_PCI_NONE, "bus numbers do not form a tree");
    if (m->bus_loops)
        ctl_evidence(f, "%u bridges lead back to themselves; shown cut open", m->bus_loops);
    if (m->bus_doubles)
        ctl_evidence(f, "%u bridges claim a bus that another one has", m->bus_doubles);
    ctl_advise(f, "Requests for a bus with two bridges go to either; the picture here is a guess.",
               "Boot with pci=assign-busses; when the input is a recording, record it again.");
}

/* ---- packet sizes ---- */

static unsigned mps_of(const struct ut_pci_express *e)
{
    return 128u << ((e->devctl & PCI_EXP_DEVCTL_PAYLOAD) >> 5);
}

static void check_packet_size(const struct ctl_case *c, const struct ut_pci_link *link)
{
    if (link->above == UT_PCI_NONE || link->below == UT_PCI_NONE || link->verdict == UT_PCI_DOWN)
        return;
    const struct ut_pci_express *above = &c->model->node[link->above].caps.express;
    const struct ut_pci_express *below = &c->model->node[link->below].caps.express;
    if (above->have != UT_PCI_PRESENT || below->have != UT_PCI_PRESENT || mps_of(below) <= mps_of(above))
        return;
    struct ctl_finding *f = ctl_find(c, CTL_WARNING, "payload-mismatch", link->below,
                                     "device may send larger packets than its port takes");
    ctl_evidence(f, "maximum payload: %s %u bytes, %s %u bytes", ctl_addr(c->machine, link->below),
                 mps_of(below), ctl_addr(c->machine, link->above), mps_of(above));
    ctl_advise(f,
               "A packet that is too large is malformed: small transfers work, the first large one is fatal.",
               "Boot with pci=pcie_bus_safe, or correct the payload size in firmware.");
}

void ctl_check_windows(const struct ctl_case *c)
{
    for (size_t i = 0; i < c->model->node_count; i++) {
        check_assigned(c, (int)i);
        check_buses(c, (int)i);
    }
    for (size_t i = 0; i < c->mover_count; i++) {
        check_gpu_window(c, c->mover[i]);
        check_decoding(c, c->mover[i]);
        if (c->model->node[c->mover[i]].kind == UT_PCI_KIND_NTB)
            check_ntb_window(c, c->mover[i]);
    }
    for (size_t i = 0; i < c->model->link_count; i++)
        check_packet_size(c, &c->model->link[i]);
    check_bus_tree(c);
}
