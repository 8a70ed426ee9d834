#include "utils/ctl_machine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int read_snap(const struct ctl_opts *opts, struct ut_pci_snap **out)
{
    if (opts->dump)
        return ut_pci_snap_dump(strcmp(opts->dump, "-") ? opts->dump : "/dev/stdin", out);
    return opts->sysfs ? ut_pci_snap_sysfs(opts->sysfs, out) : ut_pci_snap_live(out);
}

static int explain(const struct ctl_opts *opts, const char *source, int rc, struct ut_err *err)
{
    if (rc == -ENODATA)
        return ut_err_set(err, rc, "%s: no PCI function in it; lspci -xxxx makes such a file", source);
    if (rc == -ENOENT && opts->sysfs)
        return ut_err_set(err, rc, "%s: no such directory, or no bus/pci/devices in it", source);
    if (rc == -EFBIG)
        return ut_err_set(err, rc, "%s: larger than any recording of a machine", source);
    return ut_err_set(err, rc, "%s: %s", source, strerror(-rc));
}

int ctl_machine_load(const struct ctl_opts *opts, struct ctl_machine *machine, struct ut_err *err)
{
    memset(machine, 0, sizeof *machine);
    machine->source = opts->dump ? opts->dump : opts->sysfs ? opts->sysfs : "this machine";
    int rc = read_snap(opts, &machine->snap);
    if (rc)
        return explain(opts, machine->source, rc, err);
    rc = ut_pci_model_new(machine->snap, &machine->model);
    if (!rc)
        rc = ut_pci_lib_open_names(&machine->names);
    if (rc) {
        ctl_machine_fini(machine);
        return ut_err_set(err, rc, "%s: %s", machine->source, strerror(-rc));
    }
    return 0;
}

void ctl_machine_fini(struct ctl_machine *machine)
{
    ut_pci_model_free(machine->model);
    ut_pci_snap_free(machine->snap);
    ut_pci_lib_close(machine->names);
    memset(machine, 0, sizeof *machine);
}

enum ctl_exit ctl_machine_exit(const struct ctl_machine *machine, bool findings)
{
    if (machine->snap->damaged)
        return CTL_ERROR;
    return findings ? CTL_FINDINGS : CTL_OK;
}

static const char *gap_word(enum ut_pci_gap_kind kind)
{
    static const char *const WORDS[] = {"needs-root", "not-responding", "vanished",
                                        "cut",        "damaged",        "failed"};
    return WORDS[kind];
}

void ctl_machine_gaps(const struct ctl_machine *machine, const struct ctl_style *style, struct ut_text *text)
{
    const struct ut_pci_snap *snap = machine->snap;
    if (!snap->gap_count)
        return;
    ut_text_addf(text, "\n%sMissing from this picture%s\n", style->bold, style->off);
    for (size_t i = 0; i < snap->gap_count; i++) {
        char addr[UT_PCI_ADDR_CHARS];
        ut_pci_addr_show(snap->gap[i].addr, addr);
        ut_text_addf(text, "  %s%s%s\n", snap->gap[i].has_addr ? addr : "", snap->gap[i].has_addr ? "  " : "",
                     snap->gap[i].text);
    }
    if (snap->gap_lost)
        ut_text_addf(text, "  and %zu more\n", snap->gap_lost);
}

/* ---- words for nodes ---- */

/* A few buffers in turn, so that one printf can show several nodes. */
static char *turn(size_t *size)
{
    static char buffers[4][128];
    static unsigned next;
    *size = sizeof buffers[0];
    return buffers[next++ % 4];
}

const char *ctl_addr(const struct ctl_machine *machine, int node)
{
    size_t size;
    char *out = turn(&size);
    if (node == UT_PCI_NONE)
        return "(not recorded)";
    ut_pci_addr_show(machine->model->node[node].fn->addr, out);
    return out;
}

const char *ctl_name(const struct ctl_machine *machine, int node)
{
    size_t size;
    char *out = turn(&size);
    const struct ut_pci_fn *fn = machine->model->node[node].fn;
    out[0] = '\0';
    if (machine->names && fn->vendor)
        ut_pci_lib_name(machine->names, fn->vendor, fn->device, out, size);
    if (!out[0] && fn->vendor)
        snprintf(out, size, "device %04x:%04x", fn->vendor, fn->device);
    else if (!out[0])
        snprintf(out, size, "%s", fn->silent ? "not responding" : "ids not recorded");
    return out;
}

void ctl_path_text(const struct ctl_machine *machine, int node, struct ut_text *text)
{
    int stack[UT_PCI_MAX_HOPS * 2];
    unsigned count = 0;
    for (; node != UT_PCI_NONE && count < sizeof stack / sizeof stack[0];
         node = machine->model->node[node].parent)
        stack[count++] = node;
    if (count && machine->model->node[stack[count - 1]].parent_missing)
        ut_text_addf(text, "(not recorded) > ");
    while (count)
        ut_text_addf(text, "%s%s", ctl_addr(machine, stack[count - 1]), count > 1 ? " > " : ""), count--;
}

void ctl_link_why(const struct ctl_machine *machine, int idx, struct ut_text *text)
{
    const struct ut_pci_link *link = &machine->model->link[idx];
    if (link->verdict != UT_PCI_LIMITED) {
        ut_text_addf(text, "%s", link->why);
    } else if (link->limiter == UT_PCI_LIMIT_BOTH) {
        bool speed_above = link->above_max.mts < link->below_max.mts;
        ut_text_addf(text, "speed limited by %s, width by %s",
                     ctl_addr(machine, speed_above ? link->above : link->below),
                     ctl_addr(machine, speed_above ? link->below : link->above));
    } else {
        bool above = link->limiter == UT_PCI_LIMIT_ABOVE;
        ut_text_addf(text, "limited by %s %s", above ? "the port" : "the device",
                     ctl_addr(machine, above ? link->above : link->below));
    }
}

/* ---- JSON ---- */

static json_t *gaps_json(const struct ut_pci_snap *snap)
{
    json_t *gaps = json_array();
    for (size_t i = 0; i < snap->gap_count; i++) {
        char addr[UT_PCI_ADDR_CHARS];
        ut_pci_addr_show(snap->gap[i].addr, addr);
        json_array_append_new(gaps,
                              json_pack("{s:s, s:s?, s:s}", "kind", gap_word(snap->gap[i].kind), "address",
                                        snap->gap[i].has_addr ? addr : NULL, "text", snap->gap[i].text));
    }
    return gaps;
}

/* A path from the command line need not be UTF-8, which JSON has to be. */
static json_t *path_json(const char *path)
{
    json_t *value = json_string(path);
    return value ? value : json_null();
}

json_t *ctl_json_head(const struct ctl_machine *machine, const char *command)
{
    static const char *const SOURCES[] = {"live", "sysfs", "dump"};
    const struct ut_pci_snap *snap = machine->snap;
    return json_pack("{s:s, s:{s:s, s:o}, s:I, s:b, s:o, s:I}", "command", command, "source", "kind",
                     SOURCES[snap->source], "path",
                     snap->source == UT_PCI_LIVE ? json_null() : path_json(machine->source), "functions",
                     (json_int_t)snap->fn_count, "complete", !snap->gap_count, "missing", gaps_json(snap),
                     "missing_not_listed", (json_int_t)snap->gap_lost);
}

json_t *ctl_json_rate(struct ut_pci_rate rate)
{
    double gbytes = ut_pci_gbytes(rate);
    return json_pack("{s:o, s:o, s:o}", "gts", rate.mts ? json_real(rate.mts / 1000.0) : json_null(), "width",
                     rate.width ? json_integer(rate.width) : json_null(), "gbytes",
                     gbytes > 0 ? json_real(gbytes) : json_null());
}

json_t *ctl_json_addr(const struct ctl_machine *machine, int node)
{
    return node == UT_PCI_NONE ? json_null() : json_string(ctl_addr(machine, node));
}

static json_t *end_json(const struct ctl_machine *machine, int node, struct ut_pci_rate max)
{
    if (node == UT_PCI_NONE)
        return json_null();
    const struct ut_pci_node *n = &machine->model->node[node];
    return json_pack("{s:o, s:s, s:o, s:o, s:s}", "address", ctl_json_addr(machine, node), "type",
                     ut_pci_type_name(n->type), "max", ctl_json_rate(max), "current", ctl_json_rate(n->cur),
                     "verdict", ut_pci_verdict_name(ut_pci_node_verdict(machine->model, node)));
}

static json_t *functions_json(const struct ctl_machine *machine, int link)
{
    json_t *list = json_array();
    for (size_t i = 0; i < machine->model->node_count; i++)
        if (machine->model->node[i].link == link && machine->model->node[i].side == UT_PCI_SIDE_BELOW)
            json_array_append_new(list, ctl_json_addr(machine, (int)i));
    return list;
}

json_t *ctl_json_link(const struct ctl_machine *machine, int idx)
{
    static const char *const LIMITERS[] = {"none", "above", "below", "both", "unknown"};
    const struct ut_pci_link *link = &machine->model->link[idx];
    struct ut_text why = {0};
    ctl_link_why(machine, idx, &why);
    json_t *value = json_pack(
        "{s:s, s:s, s:b, s:o, s:o, s:s, s:o, s:o, s:o}", "verdict", ut_pci_verdict_name(link->verdict), "why",
        why.bytes ? why.bytes : "", "fault", ut_pci_verdict_is_fault(link->verdict), "current",
        ctl_json_rate(link->cur), "expected", ctl_json_rate(link->want), "limited_by",
        LIMITERS[link->limiter], "above", end_json(machine, link->above, link->above_max), "below",
        end_json(machine, link->below, link->below_max), "functions", functions_json(machine, idx));
    ut_text_fini(&why);
    return value;
}

int ctl_json_print(json_t *value)
{
    if (!value)
        return -ENOMEM;
    int rc =
        json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) || puts("") < 0 || fflush(stdout);
    json_decref(value);
    return rc ? -EIO : 0;
}
