#include "utils/ctl_find.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool grow(struct ctl_findings *findings)
{
    size_t cap = findings->cap ? findings->cap * 2 : 16;
    struct ctl_finding *list = realloc(findings->list, cap * sizeof *list);
    if (!list)
        return false;
    findings->list = list;
    findings->cap = cap;
    return true;
}

struct ctl_finding *ctl_find(const struct ctl_case *c, enum ctl_severity severity, const char *check,
                             int node, const char *fmt, ...)
{
    struct ctl_findings *findings = c->findings;
    if (findings->count == findings->cap && !grow(findings)) {
        findings->failed = true;
        return NULL;
    }
    struct ctl_finding *finding = &findings->list[findings->count++];
    *finding =
        (struct ctl_finding){.severity = severity, .check = check, .node = node, .why = "", .next = ""};
    va_list args;
    va_start(args, fmt);
    vsnprintf(finding->what, sizeof finding->what, fmt, args);
    va_end(args);
    return finding;
}

void ctl_evidence(struct ctl_finding *finding, const char *fmt, ...)
{
    char piece[512];
    va_list args;
    if (!finding)
        return;
    va_start(args, fmt);
    vsnprintf(piece, sizeof piece, fmt, args);
    va_end(args);
    ut_text_addf(&finding->evidence, "%s%s", finding->evidence.len ? "; " : "", piece);
}

void ctl_advise(struct ctl_finding *finding, const char *why, const char *next)
{
    if (!finding)
        return;
    finding->why = why;
    finding->next = next;
}

/* Insertion keeps equals in order, and findings are few. */
void ctl_findings_sort(struct ctl_findings *findings)
{
    size_t first = 0;
    for (int severity = CTL_FAULT; severity <= CTL_NOTE; severity++) {
        for (size_t i = first; i < findings->count; i++) {
            if (findings->list[i].severity != (enum ctl_severity)severity)
                continue;
            struct ctl_finding found = findings->list[i];
            memmove(&findings->list[first + 1], &findings->list[first], (i - first) * sizeof found);
            findings->list[first++] = found;
        }
    }
}

void ctl_findings_fini(struct ctl_findings *findings)
{
    for (size_t i = 0; i < findings->count; i++)
        ut_text_fini(&findings->list[i].evidence);
    free(findings->list);
    memset(findings, 0, sizeof *findings);
}

static bool moves_data(enum ut_pci_kind kind)
{
    return kind == UT_PCI_KIND_GPU || kind == UT_PCI_KIND_NIC || kind == UT_PCI_KIND_NTB ||
           kind == UT_PCI_KIND_NVME;
}

bool ctl_is_mover(const struct ut_pci_model *m, int idx)
{
    const struct ut_pci_node *node = &m->node[idx];
    if (!moves_data(node->kind) || node->fn->attrs.is_vf || node->fn->silent)
        return false;
    for (int before = idx - 1; before >= 0; before--) {
        if (!ut_pci_addr_same_dev(m->node[before].fn->addr, node->fn->addr))
            break;
        if (m->node[before].kind == node->kind)
            return false;
    }
    return true;
}

void ctl_find_all(const struct ctl_machine *machine, const struct ctl_host *host,
                  struct ctl_findings *findings)
{
    struct ctl_case c = {.machine = machine, .model = machine->model, .host = host, .findings = findings};
    for (size_t i = 0; i < c.model->node_count && c.mover_count < CTL_MAX_MOVERS; i++)
        if (ctl_is_mover(c.model, (int)i))
            c.mover[c.mover_count++] = (int)i;
    ctl_check_links(&c);
    ctl_check_errors(&c);
    ctl_check_windows(&c);
    ctl_check_peers(&c);
    ctl_check_host(&c);
    ctl_findings_sort(findings);
}
