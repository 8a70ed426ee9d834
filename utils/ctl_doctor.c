#include "utils/ctl_doctor.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "utils/ctl_facts.h"
#include "utils/ctl_find.h"
#include "utils/ctl_function.h"
#include "utils/pci_errors.h"

static const char *const SEVERITIES[] = {"fault", "warning", "note"};

/* ---- the picture in a few lines ---- */

/* How many functions have a capability, and of how many it is not known. */
struct tally {
    size_t have[UT_PCI_SILENCE + 1];
};

static void show_tally(const struct tally *tally, const char *name, const char *detail, struct ut_text *text)
{
    ut_text_addf(text, "  %-10son %zu", name, tally->have[UT_PCI_PRESENT]);
    if (tally->have[UT_PCI_PRESENT])
        ut_text_addf(text, "%s", detail);
    ut_text_addf(text, "; absent on %zu", tally->have[UT_PCI_ABSENT]);
    for (int have = UT_PCI_NA; have <= UT_PCI_SILENCE; have++)
        if (tally->have[have])
            ut_text_addf(text, ", %s on %zu", ut_pci_have_word((enum ut_pci_have)have), tally->have[have]);
    ut_text_addf(text, "\n");
}

static void show_capabilities(const struct ut_pci_model *m, struct ut_text *text)
{
    struct tally aer = {{0}}, acs = {{0}}, dpc = {{0}};
    size_t with_bits = 0, redirecting = 0;
    char detail[64];
    for (size_t i = 0; i < m->node_count; i++) {
        const struct ut_pci_caps *caps = &m->node[i].caps;
        aer.have[caps->aer.have]++;
        acs.have[caps->acs.have]++;
        dpc.have[caps->dpc.have]++;
        with_bits += ut_pci_aer_severity(&caps->aer) != UT_PCI_QUIET;
        redirecting += m->node[i].side == UT_PCI_SIDE_ABOVE && ut_pci_acs_redirects(&caps->acs);
    }
    snprintf(detail, sizeof detail, with_bits ? " (%zu with status bits set)" : " (all status bits 0)",
             with_bits);
    show_tally(&aer, "AER", detail, text);
    snprintf(detail, sizeof detail,
             redirecting ? " (%zu ports redirect peers)" : " (no port redirects peers)", redirecting);
    show_tally(&acs, "ACS", detail, text);
    show_tally(&dpc, "DPC", "", text);
}

/* The kernel's counters are there exactly for functions with AER, and readable without root. */
static void show_counters(const struct ut_pci_model *m, struct ut_text *text)
{
    size_t have = 0, quiet = 0;
    if (m->snap->source == UT_PCI_DUMP)
        return;
    for (size_t i = 0; i < m->node_count; i++) {
        const struct ut_pci_counters *aer = m->node[i].fn->attrs.aer;
        uint64_t errors = 0;
        for (int kind = 0; aer && kind < UT_PCI_AER_KINDS; kind++)
            errors |= ut_pci_counter_total(&aer[kind]);
        have += aer != NULL;
        quiet += aer && !errors;
    }
    ut_text_addf(text, "  %-10sof AER on %zu, %zu of them all 0; not available on %zu\n", "counters", have,
                 quiet, m->node_count - have);
}

static void show_virtual(const struct ctl_machine *machine, struct ut_text *text)
{
    for (size_t i = 0; i < machine->model->node_count; i++) {
        const struct ut_pci_sriov *sriov = &machine->model->node[i].caps.sriov;
        const struct ut_pci_attrs *attrs = &machine->model->node[i].fn->attrs;
        bool by_config = sriov->have == UT_PCI_PRESENT;
        unsigned total = by_config ? sriov->total_vfs : attrs->total_vfs > 0 ? (unsigned)attrs->total_vfs : 0;
        unsigned now = by_config && sriov->enabled ? sriov->num_vfs
                       : attrs->num_vfs > 0        ? (unsigned)attrs->num_vfs
                                                   : 0;
        if (total)
            ut_text_addf(text, "  %-10s%s: %u of %u virtual functions enabled\n", "SR-IOV",
                         ctl_addr(machine, (int)i), now, total);
    }
}

static void show_links(const struct ut_pci_model *m, struct ut_text *text)
{
    size_t count[UT_PCI_VERDICTS] = {0};
    for (size_t i = 0; i < m->link_count; i++)
        count[m->link[i].verdict]++;
    ut_text_addf(text, "  %-10s%zu:", "links", m->link_count);
    for (int i = 0; i < UT_PCI_VERDICTS; i++)
        if (count[i] || i == UT_PCI_DEGRADED)
            ut_text_addf(text, " %zu %s", count[i], ut_pci_verdict_name((enum ut_pci_verdict)i));
    ut_text_addf(text, "\n");
}

static bool root_bus_of(const struct ut_pci_node *node)
{
    return node->parent == UT_PCI_NONE && !node->parent_missing;
}

static void show_places(const struct ut_pci_model *m, struct ut_text *text)
{
    size_t domains = 0;
    ut_text_addf(text, "  %-10s", "buses");
    for (size_t i = 0; i < m->node_count; i++)
        domains += !i || m->node[i].fn->addr.domain != m->node[i - 1].fn->addr.domain;
    ut_text_addf(text, "%zu domain%s; root buses:", domains, domains == 1 ? "" : "s");
    int last = UT_PCI_NONE;
    for (size_t i = 0; i < m->node_count; i++) {
        struct ut_pci_addr addr = m->node[i].fn->addr;
        char bus[UT_PCI_BUS_CHARS];
        if (!root_bus_of(&m->node[i]))
            continue;
        bool again = last != UT_PCI_NONE && m->node[last].fn->addr.domain == addr.domain &&
                     m->node[last].fn->addr.bus == addr.bus;
        last = (int)i;
        ut_pci_root_bus(m, (int)i, bus);
        if (!again)
            ut_text_addf(text, " %s", bus);
    }
    ut_text_addf(text, "%s\n", last == UT_PCI_NONE ? " none recorded" : "");
}

static void show_field(struct ut_text *text, const char *name, const char *words)
{
    struct ut_text line = {0};
    if (!*words)
        return;
    ctl_text_wrap(&line, 12, words);
    if (line.bytes && line.len > 12)
        ut_text_addf(text, "  %-10s%s", name, line.bytes + 12);
    ut_text_fini(&line);
}

static void show_facts(const struct ctl_case *c, struct ut_text *text)
{
    struct ctl_fact facts[CTL_FACTS_MAX];
    size_t count = ctl_facts(c->machine, c->host, facts);
    for (size_t i = 0; i < count; i++)
        show_field(text, facts[i].name, facts[i].value.bytes ? facts[i].value.bytes : "");
    ctl_facts_fini(facts, count);
}

static void show_summary(const struct ctl_case *c, const struct ctl_style *style, struct ut_text *text)
{
    const struct ut_pci_snap *snap = c->model->snap;
    ut_text_addf(text, "%sfabricctl doctor%s: %s, %zu function%s\n", style->bold, style->off,
                 c->machine->source, snap->fn_count, snap->fn_count == 1 ? "" : "s");
    show_places(c->model, text);
    show_links(c->model, text);
    show_capabilities(c->model, text);
    show_counters(c->model, text);
    show_virtual(c->machine, text);
    show_facts(c, text);
}

/* ---- findings in words ---- */

static void show_finding(const struct ctl_case *c, const struct ctl_finding *f, const struct ctl_style *style,
                         struct ut_text *text)
{
    const char *colour = f->severity == CTL_FAULT     ? style->red
                         : f->severity == CTL_WARNING ? style->yellow
                                                      : style->dim;
    ut_text_addf(text, "\n%s%s%s: %s%s%s [%s]\n", colour, SEVERITIES[f->severity], style->off, style->bold,
                 f->what, style->off, f->check);
    if (f->node != UT_PCI_NONE) {
        struct ut_text where = {0};
        ut_text_addf(&where, "%s, %s, path ", ctl_addr(c->machine, f->node), ctl_name(c->machine, f->node));
        ctl_path_text(c->machine, f->node, &where);
        show_field(text, "where", where.bytes ? where.bytes : "");
        ut_text_fini(&where);
    }
    show_field(text, "evidence", f->evidence.bytes ? f->evidence.bytes : "");
    show_field(text, "why", f->why);
    show_field(text, "next", f->next);
}

static size_t count_severity(const struct ctl_findings *findings, enum ctl_severity severity)
{
    size_t count = 0;
    for (size_t i = 0; i < findings->count; i++)
        count += findings->list[i].severity == severity;
    return count;
}

static int show_text(const struct ctl_case *c, const struct ctl_style *style)
{
    struct ut_text text = {0};
    show_summary(c, style, &text);
    for (size_t i = 0; i < c->findings->count; i++)
        show_finding(c, &c->findings->list[i], style, &text);
    ctl_machine_gaps(c->machine, style, &text);
    for (int severity = CTL_FAULT; severity <= CTL_NOTE; severity++) {
        size_t count = count_severity(c->findings, (enum ctl_severity)severity);
        ut_text_addf(&text, "%s%zu %s%s", severity == CTL_FAULT ? "\n" : ", ", count, SEVERITIES[severity],
                     count == 1 ? "" : "s");
    }
    ut_text_add(&text, "\n", 1);
    return ctl_text_print(&text);
}

/* ---- findings as JSON ---- */

static json_t *finding_json(const struct ctl_case *c, const struct ctl_finding *f)
{
    struct ut_text path = {0};
    ctl_path_text(c->machine, f->node, &path);
    json_t *value =
        json_pack("{s:s, s:s, s:s, s:o, s:o, s:s, s:s, s:s}", "severity", SEVERITIES[f->severity], "check",
                  f->check, "what", f->what, "address", ctl_json_addr(c->machine, f->node), "path",
                  path.len ? json_string(path.bytes) : json_null(), "evidence",
                  f->evidence.bytes ? f->evidence.bytes : "", "why", f->why, "next", f->next);
    ut_text_fini(&path);
    return value;
}

static json_t *facts_json(const struct ctl_case *c)
{
    struct ctl_fact facts[CTL_FACTS_MAX];
    size_t count = ctl_facts(c->machine, c->host, facts);
    json_t *object = json_object();
    for (size_t i = 0; i < count; i++)
        json_object_set_new(object, facts[i].name,
                            json_string(facts[i].value.bytes ? facts[i].value.bytes : ""));
    ctl_facts_fini(facts, count);
    return object;
}

static int show_json(const struct ctl_case *c)
{
    json_t *head = ctl_json_head(c->machine, "doctor"), *list = json_array(), *functions = json_array();
    for (size_t i = 0; i < c->findings->count; i++)
        json_array_append_new(list, finding_json(c, &c->findings->list[i]));
    for (size_t i = 0; i < c->model->node_count; i++)
        json_array_append_new(functions, ctl_function_json(c->machine, (int)i));
    json_object_set_new(head, "faults", json_integer((json_int_t)count_severity(c->findings, CTL_FAULT)));
    json_object_set_new(head, "warnings", json_integer((json_int_t)count_severity(c->findings, CTL_WARNING)));
    json_object_set_new(head, "notes", json_integer((json_int_t)count_severity(c->findings, CTL_NOTE)));
    json_object_set_new(head, "findings", list);
    json_object_set_new(head, "host", facts_json(c));
    json_object_set_new(head, "devices", functions);
    return ctl_json_print(head);
}

enum ctl_exit ctl_doctor(const struct ctl_opts *opts, struct ut_err *err)
{
    struct ctl_machine machine;
    struct ctl_host host;
    struct ctl_findings findings = {0};
    struct ctl_style style = ctl_style_of(opts->colour);
    if (ctl_machine_load(opts, &machine, err))
        return CTL_ERROR;
    ctl_host_open(opts, &host);
    struct ctl_case c = {.machine = &machine, .model = machine.model, .host = &host, .findings = &findings};
    ctl_find_all(&machine, &host, &findings);
    int rc = findings.failed ? -ENOMEM : opts->json ? show_json(&c) : show_text(&c, &style);
    bool bad = count_severity(&findings, CTL_FAULT) || count_severity(&findings, CTL_WARNING);
    enum ctl_exit status = ctl_machine_exit(&machine, bad);
    ctl_findings_fini(&findings);
    ctl_host_close(&host);
    ctl_machine_fini(&machine);
    if (rc)
        ut_err_set(err, rc, "%s", strerror(-rc));
    return rc ? CTL_ERROR : status;
}
