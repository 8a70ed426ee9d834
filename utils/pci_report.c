#include "utils/pci_report.h"

#include <pci/header.h>
#include <stdio.h>
#include <string.h>

static void copy_device(const struct ut_pci_fn *fn, struct ut_pci_report *out)
{
    const struct ut_pci_attrs *attrs = &fn->attrs;
    out->addr = fn->addr;
    out->vendor = fn->vendor;
    out->device = fn->device;
    out->numa_node = attrs->numa_node;
    out->iommu_group = attrs->iommu_group;
    memcpy(out->driver, attrs->driver, sizeof out->driver);
    memcpy(out->power, attrs->power, sizeof out->power);
    memcpy(out->iommu_type, attrs->iommu_type, sizeof out->iommu_type);
    memcpy(out->local_cpus, attrs->local_cpus, sizeof out->local_cpus);
}

static void copy_hop(const struct ut_pci_model *m, const struct ut_pci_link *link, struct ut_pci_hop *out)
{
    *out = (struct ut_pci_hop){.has_above = link->above != UT_PCI_NONE,
                               .has_below = link->below != UT_PCI_NONE,
                               .cur = link->cur,
                               .want = link->want,
                               .above_max = link->above_max,
                               .below_max = link->below_max,
                               .changing = link->ends_disagree,
                               .verdict = link->verdict,
                               .why = link->why};
    if (out->has_above)
        out->above = m->node[link->above].fn->addr;
    if (out->has_below)
        out->below = m->node[link->below].fn->addr;
    else if (out->has_above && m->node[link->above].child != UT_PCI_NONE) {
        out->below = m->node[m->node[link->above].child].fn->addr; /* one without link registers */
        out->has_below = true;
    }
}

static void copy_path(const struct ut_pci_model *m, const struct ut_pci_health *health,
                      struct ut_pci_report *out)
{
    const struct ut_pci_path *path = &health->path;
    out->complete = path->complete;
    out->hop_count = path->hop_count;
    out->worst = UT_PCI_NONE;
    for (unsigned i = 0; i < path->hop_count; i++) {
        copy_hop(m, &m->link[path->hop[i]], &out->hop[i]);
        if (path->hop[i] == health->worst_link)
            out->worst = (int)i;
    }
    out->bottleneck = path->bottleneck;
    out->gbytes = path->gbytes;
    out->possible_gbytes = path->possible_gbytes;
}

/* How much is known of a capability on the path: there on any function, else the first reason why that is not
 * known, else absent; not applicable when it is so on all. */
static void merge_have(enum ut_pci_have *have, enum ut_pci_have of)
{
    bool open = *have == UT_PCI_NA || (*have == UT_PCI_ABSENT && of != UT_PCI_NA);
    if (of == UT_PCI_PRESENT || open)
        *have = *have == UT_PCI_PRESENT ? *have : of;
}

static void add_port(const struct ut_pci_node *node, struct ut_pci_report *out)
{
    const struct ut_pci_caps *caps = &node->caps;
    merge_have(&out->acs, caps->acs.have);
    merge_have(&out->dpc, caps->dpc.have);
    if (ut_pci_acs_redirects(&caps->acs) && out->redirect_count < UT_PCI_MAX_HOPS)
        out->redirects[out->redirect_count++] = node->fn->addr;
    if (caps->dpc.have != UT_PCI_PRESENT)
        return;
    out->dpc_armed += PCI_DPC_CTL_TRIGGER(caps->dpc.ctl) != 0;
    if (caps->dpc.status != 0xffff && caps->dpc.status & PCI_DPC_STS_TRIGGER) {
        out->dpc_triggered = true;
        out->dpc_at = node->fn->addr;
    }
}

/* The model holds the path and nothing else. */
static void copy_functions(const struct ut_pci_model *m, struct ut_pci_report *out)
{
    out->aer = out->acs = out->dpc = UT_PCI_NA;
    for (size_t i = 0; i < m->node_count; i++) {
        const struct ut_pci_node *node = &m->node[i];
        merge_have(&out->aer, node->caps.aer.have);
        enum ut_pci_severity severity = ut_pci_aer_severity(&node->caps.aer);
        out->needs_root |= node->fn->needs_root;
        out->sticky = severity > out->sticky ? severity : out->sticky;
        if (node->is_bridge)
            add_port(node, out);
    }
}

void ut_pci_report_of(const struct ut_pci_watch *watch, const struct ut_pci_health *health,
                      struct ut_pci_report *out)
{
    const struct ut_pci_model *m = ut_pci_watch_model(watch);
    memset(out, 0, sizeof *out);
    out->found = true;
    out->gone = health->gone;
    copy_device(m->node[health->path.device].fn, out);
    copy_path(m, health, out);
    copy_functions(m, out);
    out->has_counters = health->has_counters;
    memcpy(out->new_errors, health->new_errors, sizeof out->new_errors);
    out->noisiest = health->noisiest;
}

enum ut_pci_verdict ut_pci_report_verdict(const struct ut_pci_report *report)
{
    return report->worst == UT_PCI_NONE ? UT_PCI_VERDICTS : report->hop[report->worst].verdict;
}

bool ut_pci_report_is_bad(const struct ut_pci_report *report)
{
    return report->found && (report->gone || (report->worst != UT_PCI_NONE &&
                                              ut_pci_verdict_is_fault(report->hop[report->worst].verdict)));
}

void ut_pci_hop_show(const struct ut_pci_hop *hop, char out[UT_PCI_HOP_CHARS])
{
    char above[UT_PCI_ADDR_CHARS] = "?", below[UT_PCI_ADDR_CHARS] = "?";
    char cur[UT_PCI_RATE_CHARS], want[UT_PCI_RATE_CHARS];
    if (hop->has_above)
        ut_pci_addr_show(hop->above, above);
    if (hop->has_below)
        ut_pci_addr_show(hop->below, below);
    ut_pci_rate_show(hop->cur, cur);
    ut_pci_rate_show(hop->want, want);
    if (hop->verdict == UT_PCI_DOWN)
        snprintf(out, UT_PCI_HOP_CHARS, "%s - %s is down, could run at %s", above, below, want);
    else
        snprintf(out, UT_PCI_HOP_CHARS, "%s - %s runs at %s of %s", above, below, cur, want);
}
