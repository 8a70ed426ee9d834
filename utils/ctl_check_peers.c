/*
 * Checks of what stands between two devices: ACS redirection, the IOMMU, and NUMA distance.
 */
#include <pci/header.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utils/ctl_find.h"

#define LISTED_MAX 16 /* ports that one finding names */

/* ---- ACS ---- */

struct redirect {
    unsigned near_pairs; /* of movers below one switch tree whose way passes the port */
    int a, b;            /* one such pair */
};

static void count_pair(const struct ctl_case *c, int a, int b, struct redirect *port)
{
    struct ut_pci_pair pair;
    ut_pci_pair_of(c->model, a, b, &pair);
    if (pair.cls != UT_PCI_PIX && pair.cls != UT_PCI_PXB)
        return;
    for (unsigned i = 0; i < pair.redirect_count; i++)
        port[pair.redirects[i]] = (struct redirect){port[pair.redirects[i]].near_pairs + 1, a, b};
}

static void acs_bits(uint16_t bits, char out[128])
{
    snprintf(out, 128,
             "SrcValid%c TransBlk%c ReqRedir%c CmpltRedir%c UpstreamFwd%c EgressCtrl%c DirectTrans%c",
             bits & PCI_ACS_CTRL_VALID ? '+' : '-', bits & PCI_ACS_CTRL_BLOCK ? '+' : '-',
             bits & PCI_ACS_CTRL_REQ_RED ? '+' : '-', bits & PCI_ACS_CTRL_CMPLT_RED ? '+' : '-',
             bits & PCI_ACS_CTRL_FORWARD ? '+' : '-', bits & PCI_ACS_CTRL_EGRESS ? '+' : '-',
             bits & PCI_ACS_CTRL_TRANS ? '+' : '-');
}

static void evidence_port(const struct ctl_case *c, int idx, struct ctl_finding *f)
{
    const struct ut_pci_node *node = &c->model->node[idx];
    char bits[128];
    acs_bits(node->caps.acs.ctl, bits);
    ctl_evidence(f, "%s, a %s: ACSCtl 0x%04x, %s", ctl_addr(c->machine, idx), ut_pci_type_name(node->type),
                 node->caps.acs.ctl, bits);
}

static void advise_redirect(struct ctl_finding *f)
{
    ctl_advise(
        f,
        "Packets between neighbours take the detour up and down again: slow, and on some platforms large "
        "transfers fail while small ones work.",
        "If isolation between virtual machines is not needed: switch ACS off for these ports in firmware, or "
        "boot with pci=disable_acs_redir=ADDRESS where the kernel has it.");
}

static void report_near(const struct ctl_case *c, int idx, const struct redirect *port)
{
    struct ctl_finding *f = ctl_find(c, CTL_WARNING, "acs-redirect", idx,
                                     "peer-to-peer traffic is redirected to the root complex (ACS)");
    evidence_port(c, idx, f);
    ctl_evidence(f, "on the way of %u pairs below one switch, such as %s and %s", port->near_pairs,
                 ctl_addr(c->machine, port->a), ctl_addr(c->machine, port->b));
    advise_redirect(f);
}

static bool redirects(const struct ut_pci_node *node)
{
    return node->side == UT_PCI_SIDE_ABOVE && ut_pci_acs_redirects(&node->caps.acs);
}

/* Ports that no two neighbours have on their way, in one note: with an IOMMU in use, that is all of them. */
static void report_far(const struct ctl_case *c, const struct redirect *port)
{
    struct ctl_finding *f = NULL;
    unsigned count = 0;
    for (size_t i = 0; i < c->model->node_count; i++) {
        if (!redirects(&c->model->node[i]) || port[i].near_pairs)
            continue;
        if (!count++)
            f = ctl_find(
                c, CTL_NOTE, "acs-redirect", (int)i,
                "ports redirect peer-to-peer traffic (ACS); no two devices below one switch are affected");
        if (count <= LISTED_MAX)
            evidence_port(c, (int)i, f);
    }
    if (count > LISTED_MAX)
        ctl_evidence(f, "and %u more", count - LISTED_MAX);
    advise_redirect(f);
}

static void check_acs(const struct ctl_case *c)
{
    struct redirect *port = calloc(c->model->node_count + 1, sizeof *port);
    if (!port) {
        c->findings->failed = true;
        return;
    }
    for (size_t i = 0; i < c->mover_count; i++)
        for (size_t j = i + 1; j < c->mover_count; j++)
            count_pair(c, c->mover[i], c->mover[j], port);
    for (size_t i = 0; i < c->model->node_count; i++)
        if (redirects(&c->model->node[i]) && port[i].near_pairs)
            report_near(c, (int)i, &port[i]);
    report_far(c, port);
    free(port);
}

/* ---- IOMMU ---- */

static void check_groups(const struct ctl_case *c)
{
    for (size_t i = 0; i < c->mover_count; i++) {
        int group = c->model->node[c->mover[i]].fn->attrs.iommu_group, mates = 0;
        struct ctl_finding *f = NULL;
        for (size_t j = 0; j < c->mover_count; j++) {
            if (group < 0 || c->model->node[c->mover[j]].fn->attrs.iommu_group != group)
                continue;
            if (j < i)
                break;
            if (j > i && !mates++)
                f = ctl_find(c, CTL_NOTE, "iommu-group-shared", c->mover[i], "devices share IOMMU group %d",
                             group);
            if (j > i)
                ctl_evidence(f, "with %s", ctl_addr(c->machine, c->mover[j]));
        }
        ctl_advise(
            f,
            "They can only be given to a virtual machine together; on bare metal it is no loss, and peer "
            "traffic between them is not isolated.",
            "Nothing on bare metal. For pass-through: other slots, or ports with ACS.");
    }
}

static void check_translation(const struct ctl_case *c)
{
    struct ctl_finding *f = NULL;
    unsigned count = 0;
    for (size_t i = 0; i < c->mover_count; i++) {
        const char *type = c->model->node[c->mover[i]].fn->attrs.iommu_type;
        if (strncmp(type, "DMA", 3))
            continue;
        if (!count++)
            f = ctl_find(c, CTL_NOTE, "iommu-translates", c->mover[i],
                         "the IOMMU translates what devices read and write");
        if (count <= 4)
            ctl_evidence(f, "%s: %s", ctl_addr(c->machine, c->mover[i]), type);
    }
    if (count > 4)
        ctl_evidence(f, "and %u more", count - 4);
    ctl_advise(
        f,
        "Every page is mapped before and unmapped after each transfer, and peer traffic that is redirected "
        "for translation takes the detour through the root complex.",
        "Where devices are trusted, boot with iommu=pt: identity mapping for the kernel's drivers.");
}

/* ---- NUMA ---- */

static void check_numa(const struct ctl_case *c)
{
    struct ctl_finding *f = NULL;
    if (c->model->snap->numa_nodes < 2)
        return;
    for (size_t i = 0; i < c->mover_count; i++) {
        if (c->model->node[c->mover[i]].fn->attrs.numa_node >= 0)
            continue;
        if (!f)
            f = ctl_find(c, CTL_NOTE, "numa-unknown", c->mover[i], "the NUMA node of devices is not known");
        ctl_evidence(f, "%s: numa_node -1", ctl_addr(c->machine, c->mover[i]));
    }
    ctl_advise(
        f, "Memory and threads cannot be placed beside the device; half of all traffic may cross sockets.",
        "Look for a firmware setting or update (ACPI _PXM); else name the node in the configuration.");
}

/* What a NUMA node lacks: "CPUs", "memory" or both; NULL when it has all, or that is not recorded. */
static const char *lack_of(const struct ctl_case *c, int numa)
{
    char path[64], cpus[64], memory[256];
    long long kib = 1;
    snprintf(path, sizeof path, "devices/system/node/node%d/cpulist", numa);
    bool no_cpus = ctl_host_sys(c->host, path, cpus, sizeof cpus) == 0;
    snprintf(path, sizeof path, "devices/system/node/node%d/meminfo", numa);
    const char *total =
        ctl_host_sys(c->host, path, memory, sizeof memory) > 0 ? strstr(memory, "MemTotal:") : NULL;
    bool no_memory = total && sscanf(total, "MemTotal: %lld", &kib) == 1 && !kib;
    if (no_cpus)
        return no_memory ? "neither CPUs nor memory" : "no CPUs";
    return no_memory ? "no memory" : NULL;
}

static void check_numa_empty(const struct ctl_case *c, int idx)
{
    int numa = c->model->node[idx].fn->attrs.numa_node;
    const char *lack = numa < 0 ? NULL : lack_of(c, numa);
    char path[64], distances[256];
    if (!lack)
        return;
    struct ctl_finding *f =
        ctl_find(c, CTL_NOTE, "numa-empty", idx, "the NUMA node of this device has %s", lack);
    snprintf(path, sizeof path, "devices/system/node/node%d/distance", numa);
    if (ctl_host_sys(c->host, path, distances, sizeof distances) > 0)
        ctl_evidence(f, "node %d, distances %s", numa, distances);
    ctl_advise(f, "Landing memory and threads cannot be beside the device: all its traffic crosses sockets.",
               "Put memory and CPUs on that socket, or the device on another; name the nearest node in the "
               "configuration (numa = N).");
}

/* Of a NIC, or of a non-transparent bridge, which takes its place. */
static void check_gpu_distance(const struct ctl_case *c, int nic)
{
    int near = 0, far = 0, node = c->model->node[nic].fn->attrs.numa_node, last = -1;
    const char *what = c->model->node[nic].kind == UT_PCI_KIND_NIC ? "NIC" : "bridge";
    for (size_t i = 0; i < c->mover_count; i++) {
        const struct ut_pci_node *gpu = &c->model->node[c->mover[i]];
        if (gpu->kind != UT_PCI_KIND_GPU || gpu->fn->attrs.numa_node < 0)
            continue;
        near += gpu->fn->attrs.numa_node == node;
        far += gpu->fn->attrs.numa_node != node;
        last = c->mover[i];
    }
    if (near || !far || node < 0)
        return;
    struct ctl_finding *f =
        ctl_find(c, CTL_NOTE, "numa-far", nic, "every GPU is on another NUMA node than this %s", what);
    ctl_evidence(f, "%s on node %d, GPU %s on node %d", what, node, ctl_addr(c->machine, last),
                 c->model->node[last].fn->attrs.numa_node);
    ctl_advise(f, "Traffic between them crosses the sockets, and direct transfers often do not work at all.",
               "Move one of them to a slot of the other socket.");
}

void ctl_check_peers(const struct ctl_case *c)
{
    check_acs(c);
    check_groups(c);
    check_translation(c);
    check_numa(c);
    for (size_t i = 0; i < c->mover_count; i++) {
        enum ut_pci_kind kind = c->model->node[c->mover[i]].kind;
        check_numa_empty(c, c->mover[i]);
        if (kind == UT_PCI_KIND_NIC || kind == UT_PCI_KIND_NTB)
            check_gpu_distance(c, c->mover[i]);
    }
}
