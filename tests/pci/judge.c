#include "tests/pci/judge.h"

#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "utils/ctl_find.h"
#include "utils/ctl_function.h"
#include "utils/ctl_topo.h"
#include "utils/pci_errors.h"

/* Every node once through child and next, and every walk up ends. */
static void judge_tree(const struct ut_pci_model *m)
{
    size_t seen = 0;
    for (int at = m->first_root; at != UT_PCI_NONE;) {
        seen++;
        fuzz_must(seen <= m->node_count);
        int next = m->node[at].child;
        while (next == UT_PCI_NONE && at != UT_PCI_NONE) {
            next = m->node[at].next;
            at = m->node[at].parent;
        }
        at = next;
    }
    fuzz_must(seen == m->node_count);
}

static void judge_links(const struct ut_pci_model *m)
{
    for (size_t i = 0; i < m->link_count; i++) {
        const struct ut_pci_link *link = &m->link[i];
        struct ut_pci_link_errors errors;
        fuzz_must(link->above != UT_PCI_NONE || link->below != UT_PCI_NONE);
        fuzz_must(link->verdict < UT_PCI_VERDICTS && link->why && *link->why);
        if (link->verdict == UT_PCI_DEGRADED)
            fuzz_must(link->above != UT_PCI_NONE && link->below != UT_PCI_NONE &&
                      (link->slower || link->narrower));
        ut_pci_link_errors(m, (int)i, &errors);
    }
}

static void judge_paths(const struct ut_pci_model *m)
{
    for (size_t i = 0; i < m->node_count; i++) {
        struct ut_pci_path path;
        struct ut_pci_pair pair, back;
        ut_pci_path_up(m, (int)i, &path);
        fuzz_must(path.bottleneck < (int)path.hop_count);
        ut_pci_pair_of(m, (int)i, (int)(m->node_count - 1 - i), &pair);
        ut_pci_pair_of(m, (int)(m->node_count - 1 - i), (int)i, &back);
        fuzz_must(pair.cls == back.cls && pair.p2p == back.p2p);
    }
}

static void judge_views(const struct ctl_machine *machine)
{
    struct ctl_style plain = ctl_style_of(CTL_COLOUR_NEVER);
    struct ctl_matrix matrix;
    struct ut_err err;
    struct ut_text text = {0};
    fuzz_must(!ctl_matrix_choose(machine, "all", &matrix, &err));
    ctl_tree_text(machine, &plain, &text);
    ctl_paths_text(machine, &plain, &text);
    ctl_matrix_text(machine, &matrix, &plain, &text);
    ctl_graph_dot(machine, &text);
    ctl_graph_svg(machine, &text);
    ctl_machine_gaps(machine, &plain, &text);
    fuzz_must(!ut_text_failed(&text));
    fuzz_must(!text.bytes || !strchr(text.bytes, '\033'));
    ut_text_fini(&text);
    for (size_t i = 0; i < machine->model->node_count; i++) {
        json_t *value = ctl_function_json(machine, (int)i);
        fuzz_must(value);
        json_decref(value);
    }
}

static void judge_findings(const struct ctl_machine *machine)
{
    struct ctl_host host = {.sys_fd = -1, .proc_fd = -1};
    struct ctl_findings findings = {0};
    ctl_find_all(machine, &host, &findings);
    for (size_t i = 0; i < findings.count; i++) {
        const struct ctl_finding *f = &findings.list[i];
        fuzz_must(f->what[0] && f->evidence.len && *f->why && *f->next);
        fuzz_must(!i || findings.list[i - 1].severity <= f->severity);
    }
    ctl_findings_fini(&findings);
}

void judge_snap(struct ut_pci_snap *snap)
{
    struct ctl_machine machine = {.snap = snap, .source = "input"};
    fuzz_must(!ut_pci_model_new(snap, &machine.model));
    judge_tree(machine.model);
    judge_links(machine.model);
    judge_paths(machine.model);
    judge_views(&machine);
    judge_findings(&machine);
    ctl_machine_fini(&machine);
}
