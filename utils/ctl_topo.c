#include "utils/ctl_topo.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <pci/header.h>
#include <stdio.h>
#include <string.h>

#include "utils/ctl_function.h"

/* ---- the tree ---- */

/* Lines of the drawing, in the terminal's character set. */
struct strokes {
    const char *fork, *last, *pass, *none, *link;
};

static struct strokes strokes_of_locale(void)
{
    setlocale(LC_CTYPE, "");
    if (!strcmp(nl_langinfo(CODESET), "UTF-8"))
        return (struct strokes){"\u251c\u2500 ", "\u2514\u2500 ", "\u2502  ", "   ", "\u2550\u2550"};
    return (struct strokes){"|- ", "`- ", "|  ", "   ", "=="};
}

static const char *colour_of(enum ut_pci_verdict verdict, const struct ctl_style *style)
{
    if (ut_pci_verdict_is_fault(verdict))
        return style->red;
    return verdict == UT_PCI_BELOW_OWN || verdict == UT_PCI_IDLE || verdict == UT_PCI_DISABLED ? style->yellow
                                                                                               : "";
}

/* What is known of a slot: for ports that have one. Those of virtual machines call it empty with a device in
 * it, and whoever is listed there may also have gone: the link tells. */
static void add_slot(const struct ut_pci_node *node, struct ut_text *text)
{
    const struct ut_pci_express *e = &node->caps.express;
    if (!e->has_slot)
        return;
    bool is_full = e->sltsta & PCI_EXP_SLTSTA_PRES;
    bool is_empty = node->child == UT_PCI_NONE && !ut_pci_express_link_up(e);
    ut_text_addf(text, ", slot %s%s",
                 is_full    ? "full"
                 : is_empty ? "empty"
                            : "calls itself empty",
                 e->sltcap & PCI_EXP_SLTCAP_HPC ? ", hot-plug" : "");
}

/* A port says what is behind it where the tree below does not show it. */
static void add_below(const struct ctl_machine *machine, const struct ut_pci_node *node, struct ut_text *text)
{
    const struct ut_pci_link *link = node->side == UT_PCI_SIDE_ABOVE && node->link != UT_PCI_NONE
                                         ? &machine->model->link[node->link]
                                         : NULL;
    bool nobody = node->child == UT_PCI_NONE;
    if (link && link->verdict == UT_PCI_EMPTY)
        return; /* the slot says so already */
    if (nobody && link && (link->verdict == UT_PCI_UNUSED || link->verdict == UT_PCI_DOWN))
        ut_text_addf(text, ": %s", link->why);
    else if (nobody && node->is_bridge && node->secondary != UT_PCI_NONE)
        ut_text_addf(text, ": bus %02x-%02x behind it %s", node->secondary, node->subordinate,
                     machine->snap->source == UT_PCI_LIVE ? "holds no function" : "not recorded");
}

static void add_link(const struct ctl_machine *machine, const struct ut_pci_node *node,
                     const struct strokes *strokes, const struct ctl_style *style, struct ut_text *text)
{
    char rate[UT_PCI_RATE_CHARS];
    if (node->link == UT_PCI_NONE)
        return;
    const struct ut_pci_link *link = &machine->model->link[node->link];
    bool speaks = node->side == UT_PCI_SIDE_BELOW ? link->below == (int)(node - machine->model->node)
                                                  : link->below == UT_PCI_NONE;
    if (!speaks || (node->side == UT_PCI_SIDE_ABOVE && !ut_pci_rate_known(link->cur)))
        return;
    ut_pci_rate_show(link->cur, rate);
    ut_text_addf(text, "  %s%s %s", colour_of(link->verdict, style), strokes->link, rate);
    if (ut_pci_rate_known(link->cur))
        ut_text_addf(text, " %.2f GB/s", ut_pci_gbytes(link->cur));
    ut_text_addf(text, ", ");
    if (link->verdict == UT_PCI_DEGRADED) {
        ut_pci_rate_show(link->want, rate);
        ut_text_addf(text, "DEGRADED, should be %s%s", rate, style->off);
        return;
    }
    if (link->verdict != UT_PCI_LIMITED)
        ut_text_addf(text, "%s: ", ut_pci_verdict_name(link->verdict));
    ctl_link_why(machine, node->link, text);
    ut_text_addf(text, "%s", colour_of(link->verdict, style)[0] ? style->off : "");
}

static void node_line(const struct ctl_machine *machine, int idx, const struct strokes *strokes,
                      const struct ctl_style *style, struct ut_text *text)
{
    const struct ut_pci_node *node = &machine->model->node[idx];
    bool known = node->type != UT_PCI_TYPE_UNKNOWN && node->type != UT_PCI_ENDPOINT;
    ut_text_addf(text, "%s%s%s ", style->bold, ctl_addr(machine, idx), style->off);
    if (node->kind != UT_PCI_KIND_OTHER && node->kind != UT_PCI_KIND_BRIDGE)
        ut_text_addf(text, "%s, ", ut_pci_kind_name(node->kind));
    if (known)
        ut_text_addf(text, "%s, ", ut_pci_type_name(node->type));
    ut_text_addf(text, "%s%s%s", style->dim, ctl_name(machine, idx), style->off);
    if (node->fn->attrs.numa_node >= 0)
        ut_text_addf(text, ", NUMA node %d", node->fn->attrs.numa_node);
    add_slot(node, text);
    if (node->parent_indirect)
        ut_text_addf(text, ", behind a bridge that is not recorded");
    add_link(machine, node, strokes, style, text);
    add_below(machine, node, text);
    ut_text_addf(text, "\n");
}

/* A root stands for its bus: the first function of each bus writes the bus's own line. */
static void root_line(const struct ctl_machine *machine, int idx, int before, struct ut_text *text)
{
    const struct ut_pci_node *node = &machine->model->node[idx],
                             *last = before < 0 ? NULL : &machine->model->node[before];
    char bus[UT_PCI_BUS_CHARS];
    if (last && last->fn->addr.domain == node->fn->addr.domain && last->fn->addr.bus == node->fn->addr.bus)
        return;
    ut_pci_root_bus(machine->model, idx, bus);
    ut_text_addf(text,
                 node->parent_missing ? "bus %s, reached through a bridge that is not recorded\n"
                                      : "root bus %s\n",
                 bus);
}

/* The last of a node's siblings that the drawing puts under the same line. */
static bool ends_group(const struct ut_pci_model *m, int idx)
{
    const struct ut_pci_node *node = &m->node[idx];
    if (node->next == UT_PCI_NONE)
        return true;
    struct ut_pci_addr next = m->node[node->next].fn->addr;
    return node->parent == UT_PCI_NONE &&
           (next.domain != node->fn->addr.domain || next.bus != node->fn->addr.bus);
}

/* Indents by what is still to come at each level above. The model is at most 256 deep. */
static void indent(const struct ut_pci_model *m, int idx, const struct strokes *strokes, struct ut_text *text)
{
    int above[260];
    unsigned depth = 0;
    for (int at = m->node[idx].parent; at != UT_PCI_NONE && depth < 260; at = m->node[at].parent)
        above[depth++] = at;
    while (depth)
        ut_text_addf(text, "%s", ends_group(m, above[--depth]) ? strokes->none : strokes->pass);
    ut_text_addf(text, "%s", ends_group(m, idx) ? strokes->last : strokes->fork);
}

static int after(const struct ut_pci_model *m, int at)
{
    if (m->node[at].child != UT_PCI_NONE)
        return m->node[at].child;
    while (at != UT_PCI_NONE && m->node[at].next == UT_PCI_NONE)
        at = m->node[at].parent;
    return at == UT_PCI_NONE ? UT_PCI_NONE : m->node[at].next;
}

void ctl_tree_text(const struct ctl_machine *machine, const struct ctl_style *style, struct ut_text *text)
{
    const struct ut_pci_model *m = machine->model;
    struct strokes strokes = strokes_of_locale();
    int last_root = -1;
    for (int at = m->first_root; at != UT_PCI_NONE; at = after(m, at)) {
        if (m->node[at].parent == UT_PCI_NONE) {
            root_line(machine, at, last_root, text);
            last_root = at;
        }
        indent(m, at, &strokes, text);
        node_line(machine, at, &strokes, style, text);
    }
}

/* ---- paths ---- */

bool ctl_has_path(const struct ut_pci_model *m, int idx)
{
    const struct ut_pci_node *node = &m->node[idx];
    return !node->is_bridge && node->link != UT_PCI_NONE && node->side == UT_PCI_SIDE_BELOW &&
           !node->fn->attrs.is_vf && m->link[node->link].below == idx;
}

static void path_line(const struct ctl_machine *machine, int idx, const struct ctl_style *style,
                      struct ut_text *text)
{
    struct ut_pci_path path;
    char rate[UT_PCI_RATE_CHARS];
    ut_pci_path_up(machine->model, idx, &path);
    ut_text_addf(text, "  ");
    ctl_path_text(machine, idx, text);
    if (path.bottleneck == UT_PCI_NONE) {
        ut_text_addf(text, "  speed unknown\n");
        return;
    }
    int hop = path.hop[path.bottleneck];
    const struct ut_pci_link *link = &machine->model->link[hop];
    ut_pci_rate_show(link->cur, rate);
    ut_text_addf(text, "\n      %.2f GB/s: %sbottleneck %s = %s at %s%s, ", path.gbytes,
                 colour_of(link->verdict, style), ctl_addr(machine, link->above),
                 ctl_addr(machine, link->below), rate, colour_of(link->verdict, style)[0] ? style->off : "");
    ctl_link_why(machine, hop, text);
    if (path.possible_gbytes > path.gbytes * 1.01)
        ut_text_addf(text, "; %.2f GB/s if every link ran at what both ends can do", path.possible_gbytes);
    ut_text_addf(text, "\n");
}

void ctl_paths_text(const struct ctl_machine *machine, const struct ctl_style *style, struct ut_text *text)
{
    bool any = false;
    for (size_t i = 0; i < machine->model->node_count; i++) {
        if (!ctl_has_path(machine->model, (int)i))
            continue;
        if (!any)
            ut_text_addf(text, "\n%sPaths from the root to each device%s\n", style->bold, style->off);
        any = true;
        path_line(machine, (int)i, style, text);
    }
}

json_t *ctl_path_json(const struct ctl_machine *machine, int idx)
{
    struct ut_pci_path path;
    json_t *hops = json_array(), *nodes = json_array();
    ut_pci_path_up(machine->model, idx, &path);
    for (int at = idx; at != UT_PCI_NONE; at = machine->model->node[at].parent)
        json_array_insert_new(nodes, 0, ctl_json_addr(machine, at));
    for (unsigned i = 0; i < path.hop_count; i++)
        json_array_append_new(hops, ctl_json_link(machine, path.hop[i]));
    return json_pack("{s:o, s:o, s:b, s:o, s:o, s:o, s:o}", "device", ctl_json_addr(machine, idx), "path",
                     nodes, "complete", path.complete, "gbytes",
                     path.gbytes > 0 ? json_real(path.gbytes) : json_null(), "possible_gbytes",
                     path.possible_gbytes > 0 ? json_real(path.possible_gbytes) : json_null(), "bottleneck",
                     path.bottleneck == UT_PCI_NONE ? json_null()
                                                    : ctl_json_link(machine, path.hop[path.bottleneck]),
                     "hops", hops);
}

/* ---- the command ---- */

static int show_json(const struct ctl_machine *machine, const struct ctl_matrix *matrix)
{
    json_t *head = ctl_json_head(machine, "topo"), *devices = json_array(), *paths = json_array();
    for (size_t i = 0; i < machine->model->node_count; i++)
        json_array_append_new(devices, ctl_function_json(machine, (int)i));
    for (size_t i = 0; i < machine->model->node_count; i++)
        if (ctl_has_path(machine->model, (int)i))
            json_array_append_new(paths, ctl_path_json(machine, (int)i));
    json_object_set_new(head, "devices", devices);
    json_object_set_new(head, "paths", paths);
    json_object_set_new(head, "matrix", ctl_matrix_json(machine, matrix));
    return ctl_json_print(head);
}

static int show_text(const struct ctl_opts *opts, const struct ctl_machine *machine,
                     const struct ctl_matrix *matrix)
{
    struct ctl_style style = ctl_style_of(opts->colour);
    struct ut_text text = {0};
    if (opts->graph == CTL_GRAPH_DOT) {
        ctl_graph_dot(machine, &text);
        return ctl_text_print(&text);
    }
    if (opts->graph == CTL_GRAPH_SVG) {
        ctl_graph_svg(machine, &text);
        return ctl_text_print(&text);
    }
    ctl_tree_text(machine, &style, &text);
    ctl_paths_text(machine, &style, &text);
    ctl_matrix_text(machine, matrix, &style, &text);
    ctl_machine_gaps(machine, &style, &text);
    return ctl_text_print(&text);
}

static bool any_fault(const struct ut_pci_model *m)
{
    for (size_t i = 0; i < m->link_count; i++)
        if (ut_pci_verdict_is_fault(m->link[i].verdict))
            return true;
    return false;
}

enum ctl_exit ctl_topo(const struct ctl_opts *opts, struct ut_err *err)
{
    struct ctl_machine machine;
    struct ctl_matrix matrix;
    if (ctl_machine_load(opts, &machine, err))
        return CTL_ERROR;
    int rc = ctl_matrix_choose(&machine, opts->devices, &matrix, err);
    if (!rc)
        rc = opts->json ? show_json(&machine, &matrix) : show_text(opts, &machine, &matrix);
    enum ctl_exit status = ctl_machine_exit(&machine, any_fault(machine.model));
    ctl_machine_fini(&machine);
    if (rc && !err->text[0])
        ut_err_set(err, rc, "%s", strerror(-rc));
    return rc ? CTL_ERROR : status;
}
