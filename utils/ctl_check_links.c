/*
 * Checks of links: degraded, down, undecided; cards that trained but were not enumerated; a slow NIC beside a
 * fast GPU; devices that share a switch's way up.
 */
#include <pci/header.h>

#include "utils/ctl_find.h"

#define NIC_MIN_GBYTES 3.5 /* below Gen3 x4 a NIC is for management, not for gradients */
#define ASYMMETRY 1.9      /* a generation or half the lanes less */

static int end_of(const struct ut_pci_link *link)
{
    return link->below != UT_PCI_NONE ? link->below : link->above;
}

static void evidence_rates(const struct ctl_case *c, const struct ut_pci_link *link, struct ctl_finding *f)
{
    char cur[UT_PCI_RATE_CHARS], max[UT_PCI_RATE_CHARS];
    ut_pci_rate_show(link->cur, cur);
    ctl_evidence(f, "runs at %s", cur);
    if (link->above != UT_PCI_NONE) {
        ut_pci_rate_show(link->above_max, max);
        ctl_evidence(f, "%s (%s) can do %s", ctl_addr(c->machine, link->above),
                     ut_pci_type_name(c->model->node[link->above].type), max);
    }
    if (link->below != UT_PCI_NONE) {
        ut_pci_rate_show(link->below_max, max);
        ctl_evidence(f, "%s can do %s", ctl_addr(c->machine, link->below), max);
    }
    ctl_evidence(f, "%s", link->why);
}

static void degraded(const struct ctl_case *c, const struct ut_pci_link *link)
{
    char cur[UT_PCI_RATE_CHARS], want[UT_PCI_RATE_CHARS];
    ut_pci_rate_show(link->cur, cur);
    ut_pci_rate_show(link->want, want);
    struct ctl_finding *f =
        ctl_find(c, CTL_FAULT, "link-degraded", end_of(link), "link runs at %s and should at %s", cur, want);
    evidence_rates(c, link, f);
    ctl_evidence(f, "%.2f of %.2f GB/s", ut_pci_gbytes(link->cur), ut_pci_gbytes(link->want));
    ctl_advise(f, "Everything that crosses this link is that much slower, and nothing else reports it.",
               "Reseat the card, replace or straighten the cable, check the riser and the slot's setting in "
               "firmware, then look again under load; error counters of both ends tell a bad signal.");
}

static bool contained(const struct ut_pci_caps *caps)
{
    return caps->dpc.have == UT_PCI_PRESENT && caps->dpc.status != 0xffff &&
           caps->dpc.status & PCI_DPC_STS_TRIGGER;
}

static void down(const struct ctl_case *c, const struct ut_pci_link *link)
{
    if (contained(&c->model->node[link->above].caps))
        return; /* the checks of errors tell it better */
    struct ctl_finding *f = ctl_find(c, CTL_FAULT, "link-down", end_of(link), "link is down");
    ctl_evidence(f, "%s", link->why);
    ctl_advise(
        f, "The device behind it cannot be reached; writes to it vanish and reads return all ones.",
        "Check power and seating of the card; a reset or rescan by the administrator may bring it back. If "
        "containment (DPC) took it down, read the kernel log for the error first.");
}

static void undecided(const struct ctl_case *c, const struct ut_pci_link *link)
{
    struct ctl_finding *f = ctl_find(c, CTL_NOTE, "link-undecided", end_of(link),
                                     "link is below the capability of the one end that is known");
    evidence_rates(c, link, f);
    ctl_advise(
        f, "Either the other end cannot do more, and all is well, or the link is degraded.",
        "Read the other end as well: a recording of the whole machine, or the data sheet of the card.");
}

static void excused(const struct ctl_case *c, const struct ut_pci_link *link)
{
    bool idle = link->verdict == UT_PCI_IDLE;
    struct ctl_finding *f = ctl_find(c, CTL_NOTE, idle ? "link-idle" : "link-disabled", end_of(link),
                                     idle ? "link is slower than both ends can do, probably on purpose"
                                          : "link of an unused device is slower than both ends can do");
    evidence_rates(c, link, f);
    ctl_advise(f, "Devices lower their links to save power; that is no fault.",
               "Look again while the device works: it must then run at full speed.");
}

/* Only this machine's own list is complete enough to say that nothing answers behind a link that is up. */
static void missing_device(const struct ctl_case *c, const struct ut_pci_link *link)
{
    const struct ut_pci_node *port = &c->model->node[link->above];
    if (c->model->snap->source != UT_PCI_LIVE || port->child != UT_PCI_NONE ||
        !ut_pci_express_link_up(&port->caps.express))
        return;
    struct ctl_finding *f = ctl_find(c, CTL_WARNING, "device-missing", link->above,
                                     "link is up, but no device was enumerated behind it");
    ctl_evidence(f, "DLActive+, bus %02x holds no function", port->secondary >= 0 ? port->secondary : 0);
    ctl_advise(f,
               "The card is powered and trained, yet invisible: usually too few bus numbers behind a switch.",
               "Look for \"bridge configuration invalid\" and \"no bus number\" in the kernel log; boot with "
               "pci=realloc or pci=assign-busses, or give the switch more buses in firmware.");
}

static void check_link(const struct ctl_case *c, const struct ut_pci_link *link)
{
    switch (link->verdict) {
    case UT_PCI_DEGRADED:
        degraded(c, link);
        break;
    case UT_PCI_DOWN:
        down(c, link);
        break;
    case UT_PCI_BELOW_OWN:
        undecided(c, link);
        break;
    case UT_PCI_IDLE:
    case UT_PCI_DISABLED:
        excused(c, link);
        break;
    default:
        break;
    }
    if (link->above != UT_PCI_NONE)
        missing_device(c, link);
}

/* ---- asymmetry ---- */

static bool same_host(enum ut_pci_class cls)
{
    return cls == UT_PCI_PIX || cls == UT_PCI_PXB || cls == UT_PCI_PHB || cls == UT_PCI_NODE ||
           cls == UT_PCI_NODE_SYS;
}

/* The fastest GPU near a NIC, by what its path can do. */
static int fastest_gpu(const struct ctl_case *c, int nic, struct ut_pci_path *out)
{
    int best = UT_PCI_NONE;
    for (size_t i = 0; i < c->mover_count; i++) {
        struct ut_pci_path path;
        struct ut_pci_pair pair;
        if (c->model->node[c->mover[i]].kind != UT_PCI_KIND_GPU)
            continue;
        ut_pci_pair_of(c->model, nic, c->mover[i], &pair);
        ut_pci_path_up(c->model, c->mover[i], &path);
        if (same_host(pair.cls) && (best == UT_PCI_NONE || path.possible_gbytes > out->possible_gbytes)) {
            best = c->mover[i];
            *out = path;
        }
    }
    return best;
}

static void check_asymmetry(const struct ctl_case *c, int nic)
{
    struct ut_pci_path mine, theirs;
    char nic_rate[UT_PCI_RATE_CHARS], gpu_rate[UT_PCI_RATE_CHARS];
    ut_pci_path_up(c->model, nic, &mine);
    if (mine.bottleneck == UT_PCI_NONE || mine.possible_gbytes < NIC_MIN_GBYTES)
        return;
    int gpu = fastest_gpu(c, nic, &theirs);
    if (gpu == UT_PCI_NONE || theirs.bottleneck == UT_PCI_NONE ||
        theirs.possible_gbytes < ASYMMETRY * mine.possible_gbytes)
        return;
    ut_pci_rate_show(c->model->link[mine.hop[mine.bottleneck]].cur, nic_rate);
    ut_pci_rate_show(c->model->link[theirs.hop[theirs.bottleneck]].cur, gpu_rate);
    struct ctl_finding *f = ctl_find(c, CTL_WARNING, "link-asymmetry", nic,
                                     "NIC is reached at %.2f GB/s, the GPU beside it at %.2f GB/s",
                                     mine.gbytes, theirs.possible_gbytes);
    ctl_evidence(f, "narrowest link of the NIC: %s", nic_rate);
    ctl_evidence(f, "GPU %s: %s", ctl_addr(c->machine, gpu), gpu_rate);
    ctl_advise(f, "What the GPU sends to other machines passes the NIC, so the slower link is the limit.",
               "Move the NIC to a slot of the GPU's generation and width, or use a NIC that can do both.");
}

/* ---- shared switches ---- */

static bool below(const struct ut_pci_model *m, int node, int bridge)
{
    for (; node != UT_PCI_NONE; node = m->node[node].parent)
        if (node == bridge)
            return true;
    return false;
}

/* Sums what the devices below a switch can move; names them in the finding, when there is one. */
static double sum_below(const struct ctl_case *c, int upstream, unsigned *count, struct ctl_finding *f)
{
    double sum = 0;
    *count = 0;
    for (size_t i = 0; i < c->mover_count; i++) {
        const struct ut_pci_node *node = &c->model->node[c->mover[i]];
        if (node->link == UT_PCI_NONE || !below(c->model, c->mover[i], upstream))
            continue;
        sum += ut_pci_gbytes(c->model->link[node->link].cur);
        (*count)++;
        ctl_evidence(f, "%s %s", ut_pci_kind_name(node->kind), ctl_addr(c->machine, c->mover[i]));
    }
    return sum;
}

static void check_switch(const struct ctl_case *c, int upstream)
{
    double up = ut_pci_gbytes(c->model->link[c->model->node[upstream].link].cur);
    unsigned count;
    double sum = sum_below(c, upstream, &count, NULL);
    if (count < 2 || up <= 0 || sum < 1.05 * up)
        return;
    struct ctl_finding *f =
        ctl_find(c, CTL_NOTE, "switch-shared", upstream,
                 "%u devices share a switch's way up: %.1f GB/s behind %.1f GB/s", count, sum, up);
    ctl_evidence(f, "%.1f to 1", sum / up);
    sum_below(c, upstream, &count, f);
    ctl_advise(
        f, "Busy at once, they get that share each; traffic between them inside the switch does not count.",
        "Keep traffic between neighbours inside the switch, or spread devices over root ports.");
}

void ctl_check_links(const struct ctl_case *c)
{
    const struct ut_pci_model *m = c->model;
    for (size_t i = 0; i < m->link_count; i++)
        check_link(c, &m->link[i]);
    for (size_t i = 0; i < c->mover_count; i++)
        if (m->node[c->mover[i]].kind == UT_PCI_KIND_NIC)
            check_asymmetry(c, c->mover[i]);
    for (size_t i = 0; i < m->node_count; i++)
        if (m->node[i].type == UT_PCI_UPSTREAM && m->node[i].link != UT_PCI_NONE)
            check_switch(c, (int)i);
}
