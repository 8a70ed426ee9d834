/*
 * The tree as a graph: for Graphviz, and as an SVG of its own. Functions inside the root complex that lead
 * nowhere are left out: a picture is for the fabric.
 */
#include "utils/ctl_topo.h"

#include <stdio.h>
#include <stdlib.h>

#define BOX_WIDTH 190
#define BOX_HEIGHT 34
#define COLUMN 300
#define ROW 44
#define MARGIN 20

/* Bridges with somebody below, and devices with a link or of a kind that moves data. */
static bool in_picture(const struct ut_pci_model *m, int idx)
{
    const struct ut_pci_node *node = &m->node[idx];
    bool plain = node->kind == UT_PCI_KIND_OTHER || node->kind == UT_PCI_KIND_HOST;
    return node->child != UT_PCI_NONE || node->link != UT_PCI_NONE || node->parent != UT_PCI_NONE || !plain;
}

static const char *label_of(const struct ut_pci_node *node)
{
    return node->kind == UT_PCI_KIND_BRIDGE || node->kind == UT_PCI_KIND_OTHER ? ut_pci_type_name(node->type)
                                                                               : ut_pci_kind_name(node->kind);
}

static const char *colour_of(const struct ut_pci_model *m, const struct ut_pci_node *node)
{
    if (node->link == UT_PCI_NONE)
        return "#888888";
    enum ut_pci_verdict verdict = m->link[node->link].verdict;
    if (ut_pci_verdict_is_fault(verdict))
        return "#c00000";
    if (verdict == UT_PCI_BELOW_OWN || verdict == UT_PCI_IDLE || verdict == UT_PCI_DISABLED)
        return "#b08000";
    return verdict == UT_PCI_FULL || verdict == UT_PCI_LIMITED ? "#207020" : "#888888";
}

/* The text on the line between a node and its parent: its link's rate. */
static void edge_text(const struct ut_pci_model *m, const struct ut_pci_node *node,
                      char out[UT_PCI_RATE_CHARS])
{
    out[0] = '\0';
    if (node->side == UT_PCI_SIDE_BELOW && node->link != UT_PCI_NONE)
        ut_pci_rate_show(m->link[node->link].cur, out);
}

/* ---- Graphviz ---- */

void ctl_graph_dot(const struct ctl_machine *machine, struct ut_text *text)
{
    const struct ut_pci_model *m = machine->model;
    ut_text_addf(text, "graph pci {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n");
    for (size_t i = 0; i < m->node_count; i++) {
        const struct ut_pci_node *node = &m->node[i];
        char bus[UT_PCI_BUS_CHARS], rate[UT_PCI_RATE_CHARS];
        if (!in_picture(m, (int)i))
            continue;
        ut_text_addf(text, "  \"%s\" [label=\"%s\\n%s\"];\n", ctl_addr(machine, (int)i),
                     ctl_addr(machine, (int)i), label_of(node));
        edge_text(m, node, rate);
        ut_pci_root_bus(m, (int)i, bus);
        if (node->parent == UT_PCI_NONE)
            ut_text_addf(text, "  \"bus %s\" -- \"%s\" [color=\"#888888\"%s, label=\"%s\"];\n", bus,
                         ctl_addr(machine, (int)i), node->parent_missing ? ", style=dashed" : "", rate);
        else
            ut_text_addf(text, "  \"%s\" -- \"%s\" [color=\"%s\", label=\"%s\"];\n",
                         ctl_addr(machine, node->parent), ctl_addr(machine, (int)i), colour_of(m, node),
                         rate);
    }
    ut_text_addf(text, "}\n");
}

/* ---- SVG ---- */

struct place {
    int column, row;
};

static int after(const struct ut_pci_model *m, int at)
{
    if (m->node[at].child != UT_PCI_NONE)
        return m->node[at].child;
    while (at != UT_PCI_NONE && m->node[at].next == UT_PCI_NONE)
        at = m->node[at].parent;
    return at == UT_PCI_NONE ? UT_PCI_NONE : m->node[at].next;
}

/* A row for each node that has no child of its own to share it with; a parent stands beside its first. */
static struct place lay_out(const struct ut_pci_model *m, struct place *place)
{
    struct place size = {0, 0};
    bool fresh = true;
    for (int at = m->first_root; at != UT_PCI_NONE; at = after(m, at)) {
        const struct ut_pci_node *node = &m->node[at];
        if (!in_picture(m, at))
            continue;
        bool beside_parent = node->parent != UT_PCI_NONE && m->node[node->parent].child == at;
        place[at].column = node->parent == UT_PCI_NONE ? 0 : place[node->parent].column + 1;
        place[at].row = beside_parent ? place[node->parent].row : fresh ? 0 : size.row + 1;
        size.row = place[at].row > size.row ? place[at].row : size.row;
        size.column = place[at].column > size.column ? place[at].column : size.column;
        fresh = false;
    }
    return size;
}

static void svg_edge(const struct ctl_machine *machine, int idx, const struct place *place,
                     struct ut_text *text)
{
    const struct ut_pci_node *node = &machine->model->node[idx];
    const struct place *from = &place[node->parent], *to = &place[idx];
    char rate[UT_PCI_RATE_CHARS];
    int x1 = MARGIN + from->column * COLUMN + BOX_WIDTH, y1 = MARGIN + from->row * ROW + BOX_HEIGHT / 2;
    int x2 = MARGIN + to->column * COLUMN, y2 = MARGIN + to->row * ROW + BOX_HEIGHT / 2, turn = x1 + 14;
    edge_text(machine->model, node, rate);
    ut_text_addf(text, "<path d=\"M%d %d H%d V%d H%d\" fill=\"none\" stroke=\"%s\" stroke-width=\"%d\"/>\n",
                 x1, y1, turn, y2, x2, colour_of(machine->model, node), rate[0] ? 3 : 1);
    if (rate[0])
        ut_text_addf(text, "<text x=\"%d\" y=\"%d\" font-size=\"10\">%s</text>\n", turn + 4, y2 - 4, rate);
}

static void svg_box(const struct ctl_machine *machine, int idx, const struct place *place,
                    struct ut_text *text)
{
    const struct ut_pci_node *node = &machine->model->node[idx];
    int x = MARGIN + place[idx].column * COLUMN, y = MARGIN + place[idx].row * ROW;
    ut_text_addf(
        text,
        "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" fill=\"#ffffff\" stroke=\"%s\"/>\n"
        "<text x=\"%d\" y=\"%d\" font-weight=\"bold\">%s</text>\n<text x=\"%d\" y=\"%d\">%s</text>\n",
        x, y, BOX_WIDTH, BOX_HEIGHT, colour_of(machine->model, node), x + 6, y + 14, ctl_addr(machine, idx),
        x + 6, y + 28, label_of(node));
}

void ctl_graph_svg(const struct ctl_machine *machine, struct ut_text *text)
{
    const struct ut_pci_model *m = machine->model;
    struct place *place = calloc(m->node_count + 1, sizeof *place);
    if (!place) {
        text->failed = true;
        return;
    }
    struct place size = lay_out(m, place);
    ut_text_addf(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
        2 * MARGIN + size.column * COLUMN + BOX_WIDTH, 2 * MARGIN + size.row * ROW + BOX_HEIGHT);
    for (size_t i = 0; i < m->node_count; i++)
        if (in_picture(m, (int)i) && m->node[i].parent != UT_PCI_NONE)
            svg_edge(machine, (int)i, place, text);
    for (size_t i = 0; i < m->node_count; i++)
        if (in_picture(m, (int)i))
            svg_box(machine, (int)i, place, text);
    ut_text_addf(text, "</svg>\n");
    free(place);
}
