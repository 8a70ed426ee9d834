#include "utils/pci_errors.h"

#include <pci/header.h>
#include <string.h>

uint64_t ut_pci_counter_total(const struct ut_pci_counters *counters)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < counters->line_count; i++)
        if (__builtin_add_overflow(sum, counters->line[i].count, &sum))
            return UINT64_MAX;
    return sum > counters->total ? sum : counters->total;
}

static void add_counters(const struct ut_pci_node *node, struct ut_pci_link_errors *out)
{
    for (int kind = 0; node->fn->attrs.aer && kind < UT_PCI_AER_KINDS; kind++) {
        const struct ut_pci_counters *counters = &node->fn->attrs.aer[kind];
        out->present[kind] |= counters->present;
        if (__builtin_add_overflow(out->total[kind], ut_pci_counter_total(counters), &out->total[kind]))
            out->total[kind] = UINT64_MAX;
    }
}

void ut_pci_link_errors(const struct ut_pci_model *m, int link, struct ut_pci_link_errors *out)
{
    int above = m->link[link].above, below = m->link[link].below;
    memset(out, 0, sizeof *out);
    if (above == UT_PCI_NONE) {
        add_counters(&m->node[below], out);
        return;
    }
    add_counters(&m->node[above], out);
    for (int at = m->node[above].child; at != UT_PCI_NONE; at = m->node[at].next)
        if (m->node[at].link == link)
            add_counters(&m->node[at], out);
}

enum ut_pci_severity ut_pci_aer_severity(const struct ut_pci_aer *aer)
{
    uint32_t unmasked = aer->ue_status & ~aer->ue_mask, telling = unmasked & ~(uint32_t)PCI_ERR_UNC_UNSUP;
    if (aer->have != UT_PCI_PRESENT || !(aer->ue_status | aer->ce_status))
        return UT_PCI_QUIET;
    if (unmasked & aer->ue_severity)
        return UT_PCI_FATAL;
    return telling ? UT_PCI_UNCORRECTED : UT_PCI_HARMLESS;
}

const char *ut_pci_aer_kind_name(enum ut_pci_aer_kind kind)
{
    static const char *const NAMES[] = {"correctable", "nonfatal", "fatal"};
    return NAMES[kind];
}
