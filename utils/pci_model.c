#include "utils/pci_model.h"

#include <errno.h>
#include <pci/header.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a function is ---- */

/* Device ids of non-transparent bridges whose class alone does not tell them from other bridges. */
static bool is_ntb_id(uint16_t vendor, uint16_t device)
{
    static const struct {
        uint16_t vendor, device;
    } IDS[] = {
        {0x8086, 0x3725}, {0x8086, 0x3c0d}, {0x8086, 0x3c0e}, {0x8086, 0x3c0f}, {0x8086, 0x0e0d},
        {0x8086, 0x0e0e}, {0x8086, 0x0e0f}, {0x8086, 0x2f0d}, {0x8086, 0x2f0e}, {0x8086, 0x2f0f},
        {0x8086, 0x6f0d}, {0x8086, 0x6f0e}, {0x8086, 0x6f0f}, {0x8086, 0x201c}, {0x8086, 0x347e},
        {0x8086, 0x0db4}, {0x1022, 0x145b}, {0x1022, 0x148b}, {0x1022, 0x14c0}, {0x1022, 0x14c3},
        {0x1022, 0x155a}, {0x1d94, 0x145b}, {0x10b5, 0x87b0}, {0x10b5, 0x87b1}, {0x10b5, 0x87b2},
    };
    for (size_t i = 0; i < sizeof IDS / sizeof IDS[0]; i++)
        if (IDS[i].vendor == vendor && IDS[i].device == device)
            return true;
    return false;
}

/* By class, ids and driver, never by name: pci.ids calls transparent bridges "non-transparent mode". */
static bool is_ntb(const struct ut_pci_fn *fn)
{
    if (fn->vendor == 0x1af4 && fn->device == 0x1110)
        return true; /* ivshmem */
    if (fn->class_code >> 8 != 0x0680)
        return false;
    return is_ntb_id(fn->vendor, fn->device) || fn->vendor == 0x11f8 || fn->vendor == 0x111d ||
           !strncmp(fn->attrs.driver, "ntb_hw_", 7);
}

/* ASPEED, Matrox, Hisilicon, Silicon Motion, Cirrus, QEMU: displays that render nothing. */
static bool is_management_display(uint16_t vendor)
{
    return vendor == 0x1a03 || vendor == 0x102b || vendor == 0x19e5 || vendor == 0x126f || vendor == 0x1013 ||
           vendor == 0x1234;
}

static enum ut_pci_kind kind_of(const struct ut_pci_node *node)
{
    const struct ut_pci_fn *fn = node->fn;
    unsigned class = fn->class_code >> 8;
    if (node->is_bridge)
        return UT_PCI_KIND_BRIDGE;
    if (is_ntb(fn))
        return UT_PCI_KIND_NTB;
    if (class == 0x0600)
        return UT_PCI_KIND_HOST;
    if (class >> 8 == 0x12)
        return UT_PCI_KIND_GPU;
    if (class >> 8 == 0x03)
        return is_management_display(fn->vendor) ? UT_PCI_KIND_VGA : UT_PCI_KIND_GPU;
    if (class == 0x0200 || class == 0x0207 || class == 0x0208)
        return UT_PCI_KIND_NIC; /* Ethernet, InfiniBand, fabric; 0280 is mostly wireless */
    return class == 0x0108 ? UT_PCI_KIND_NVME : UT_PCI_KIND_OTHER;
}

const char *ut_pci_kind_name(enum ut_pci_kind kind)
{
    static const char *const NAMES[] = {"other", "bridge", "host", "gpu", "vga", "nic", "ntb", "nvme"};
    return kind < UT_PCI_KIND_COUNT ? NAMES[kind] : "other";
}

/* Registers and attributes say the same; each fills in what the other does not know. */
static void rates_of(struct ut_pci_node *node)
{
    const struct ut_pci_attrs *attrs = &node->fn->attrs;
    const struct ut_pci_express *e = &node->caps.express;
    node->max = attrs->max;
    node->cur = attrs->cur;
    if (!e->has_link)
        return;
    struct ut_pci_rate max = {ut_pci_speed_of_code(e->lnkcap & PCI_EXP_LNKCAP_SPEED),
                              ut_pci_width_of((e->lnkcap & PCI_EXP_LNKCAP_WIDTH) >> 4)};
    struct ut_pci_rate cur = {ut_pci_speed_of_code(e->lnksta & PCI_EXP_LNKSTA_SPEED),
                              ut_pci_width_of((e->lnksta & PCI_EXP_LNKSTA_WIDTH) >> 4)};
    node->max.mts = node->max.mts ? node->max.mts : max.mts;
    node->max.width = node->max.width ? node->max.width : max.width;
    node->cur.mts = node->cur.mts ? node->cur.mts : cur.mts;
    node->cur.width = node->cur.width ? node->cur.width : cur.width;
}

static void init_node(const struct ut_pci_fn *fn, struct ut_pci_node *node)
{
    node->fn = fn;
    ut_pci_caps_read(fn, &node->caps);
    node->type = node->caps.express.type;
    node->parent = node->child = node->next = node->link = UT_PCI_NONE;
    node->secondary = fn->attrs.secondary;
    node->subordinate = fn->attrs.subordinate;
    if (node->caps.has_buses) {
        node->secondary = node->caps.secondary;
        node->subordinate = node->caps.subordinate;
    }
    node->is_bridge = node->caps.has_header ? node->caps.header_type == 1 || node->caps.header_type == 2
                                            : node->secondary >= 0 || fn->class_code >> 8 == 0x0604;
    if (!node->is_bridge || node->secondary <= 0 || node->secondary == fn->addr.bus)
        node->secondary = node->subordinate = UT_PCI_NONE;
    node->kind = kind_of(node);
    rates_of(node);
}

/* ---- the tree ---- */

/* For each bus of each domain the bridge that leads to it: looked up once a function, so kept as a table. */
struct bus_table {
    size_t count;
    struct bus_row {
        uint32_t domain;
        int bridge[256];    /* the bridge whose secondary bus it is */
        int enclosing[256]; /* the innermost bridge whose range of buses holds it */
    } * row;                /* sorted by domain, as nodes are */
};

static struct bus_row *row_of(const struct bus_table *table, uint32_t domain)
{
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (table->row[mid].domain < domain)
            low = mid + 1;
        else
            high = mid;
    }
    return &table->row[low];
}

static int make_rows(struct ut_pci_model *m, struct bus_table *table)
{
    size_t domains = 0;
    for (size_t i = 0; i < m->node_count; i++)
        domains += !i || m->node[i].fn->addr.domain != m->node[i - 1].fn->addr.domain;
    table->row = calloc(domains ? domains : 1, sizeof *table->row);
    if (!table->row)
        return -ENOMEM;
    for (size_t i = 0; i < m->node_count; i++) {
        uint32_t domain = m->node[i].fn->addr.domain;
        if (i && domain == m->node[i - 1].fn->addr.domain)
            continue;
        struct bus_row *row = &table->row[table->count++];
        memset(row, 0xff, sizeof *row); /* UT_PCI_NONE everywhere */
        row->domain = domain;
    }
    return 0;
}

static void claim_range(struct ut_pci_model *m, struct bus_row *row, int bridge)
{
    const struct ut_pci_node *node = &m->node[bridge];
    for (int bus = node->secondary; bus <= node->subordinate; bus++) {
        int *inner = &row->enclosing[bus];
        if (bus != node->fn->addr.bus &&
            (*inner == UT_PCI_NONE || m->node[*inner].secondary < node->secondary))
            *inner = bridge;
    }
}

static void claim_buses(struct ut_pci_model *m, struct bus_table *table)
{
    for (size_t i = 0; i < m->node_count; i++) {
        const struct ut_pci_node *node = &m->node[i];
        if (node->secondary == UT_PCI_NONE)
            continue;
        struct bus_row *row = row_of(table, node->fn->addr.domain);
        if (row->bridge[node->secondary] == UT_PCI_NONE)
            row->bridge[node->secondary] = (int)i;
        else
            m->bus_doubles++;
        claim_range(m, row, (int)i);
    }
}

/* True when some link attribute says a number: inside the root complex they exist and say "Unknown". */
static bool has_rate(const struct ut_pci_node *node)
{
    return node->max.mts || node->max.width || node->cur.mts || node->cur.width;
}

/* Port types that always have something above them. */
static bool needs_parent(const struct ut_pci_node *node)
{
    unsigned type = node->type;
    return type <= UT_PCI_LEGACY_ENDPOINT || type == UT_PCI_UPSTREAM || type == UT_PCI_DOWNSTREAM ||
           type == UT_PCI_TO_PCI_BRIDGE ||
           (type == UT_PCI_TYPE_UNKNOWN && has_rate(node) && !node->is_bridge);
}

static void find_parent(struct ut_pci_model *m, const struct bus_table *table, size_t i)
{
    struct ut_pci_node *node = &m->node[i];
    const struct ut_pci_attrs *attrs = &node->fn->attrs;
    const struct bus_row *row = row_of(table, node->fn->addr.domain);
    if (attrs->has_parent)
        node->parent = ut_pci_model_find(m, attrs->parent);
    else if (!attrs->at_root_bus)
        node->parent = row->bridge[node->fn->addr.bus];
    if (node->parent == (int)i)
        node->parent = UT_PCI_NONE;
    node->parent_missing = node->parent == UT_PCI_NONE && (attrs->has_parent || needs_parent(node));
    if (!node->parent_missing)
        return;
    node->parent = row->enclosing[node->fn->addr.bus];
    node->parent_indirect =
        node->parent != UT_PCI_NONE && !attrs->is_vf; /* those may have buses of their own */
    node->parent_missing = node->parent == UT_PCI_NONE;
}

/* Cuts every loop that the bus numbers make: walking up from a node must end. Each node is coloured with the
 * walk that reached it first; meeting one's own colour again is a loop, meeting an older one is known ground.
 */
static int cut_loops(struct ut_pci_model *m)
{
    uint32_t *colour = calloc(m->node_count ? m->node_count : 1, sizeof *colour);
    if (!colour)
        return -ENOMEM;
    for (size_t i = 0; i < m->node_count; i++) {
        uint32_t mine = (uint32_t)i + 1;
        int at = (int)i;
        while (at != UT_PCI_NONE && !colour[at]) {
            colour[at] = mine;
            int up = m->node[at].parent;
            if (up != UT_PCI_NONE && colour[up] == mine) {
                m->node[at].parent = UT_PCI_NONE;
                m->node[at].parent_missing = true;
                m->node[at].parent_indirect = false;
                m->bus_loops++;
            }
            at = m->node[at].parent;
        }
    }
    free(colour);
    return 0;
}

/* A domain has 256 buses, so no honest path passes more bridges; what claims to is cut, and later walks up
 * stay short. */
static void cut_depth(struct ut_pci_model *m)
{
    for (size_t i = 0; i < m->node_count; i++) {
        unsigned steps = 0;
        for (int at = m->node[i].parent; at != UT_PCI_NONE && steps <= 256; at = m->node[at].parent)
            steps++;
        if (steps <= 256)
            continue;
        m->node[i].parent = UT_PCI_NONE;
        m->node[i].parent_missing = true;
        m->bus_loops++;
    }
}

/* Chains children in the snapshot's order, by going backwards and putting each in front. */
static void chain_children(struct ut_pci_model *m)
{
    m->first_root = UT_PCI_NONE;
    for (size_t i = m->node_count; i-- > 0;) {
        struct ut_pci_node *node = &m->node[i];
        int *head = node->parent == UT_PCI_NONE ? &m->first_root : &m->node[node->parent].child;
        node->next = *head;
        *head = (int)i;
    }
}

/* ---- sides of links ---- */

static enum ut_pci_side side_of_type(unsigned type)
{
    switch (type) {
    case UT_PCI_ROOT_PORT:
    case UT_PCI_DOWNSTREAM:
    case UT_PCI_FROM_PCI_BRIDGE:
        return UT_PCI_SIDE_ABOVE;
    case UT_PCI_ENDPOINT:
    case UT_PCI_LEGACY_ENDPOINT:
    case UT_PCI_UPSTREAM:
    case UT_PCI_TO_PCI_BRIDGE:
        return UT_PCI_SIDE_BELOW;
    default:
        return UT_PCI_SIDE_NONE;
    }
}

static bool below_port(const struct ut_pci_model *m, const struct ut_pci_node *node)
{
    return node->parent != UT_PCI_NONE && m->node[node->parent].side == UT_PCI_SIDE_ABOVE;
}

/* Without registers the attributes show that there is a link, and the tree shows which side it is on: ports
 * alternate on the way down, root port, upstream port, downstream port, ... */
static void infer_side(struct ut_pci_model *m, struct ut_pci_node *node)
{
    node->side = below_port(m, node) || !node->is_bridge ? UT_PCI_SIDE_BELOW : UT_PCI_SIDE_ABOVE;
    if (!node->is_bridge)
        return;
    if (node->side == UT_PCI_SIDE_BELOW)
        node->type = UT_PCI_UPSTREAM;
    else
        node->type = node->parent == UT_PCI_NONE ? UT_PCI_ROOT_PORT : UT_PCI_DOWNSTREAM;
}

/* Top down, since the side of a node can depend on its parent's. Iterative: a tree may be deep. */
static void set_sides(struct ut_pci_model *m)
{
    int at = m->first_root;
    while (at != UT_PCI_NONE) {
        struct ut_pci_node *node = &m->node[at];
        if (node->caps.express.have == UT_PCI_PRESENT)
            node->side = node->caps.express.has_link ? side_of_type(node->type) : UT_PCI_SIDE_NONE;
        else if (node->fn->attrs.has_link && (has_rate(node) || below_port(m, node)))
            infer_side(m, node);
        int up = at;
        at = node->child;
        while (at == UT_PCI_NONE && up != UT_PCI_NONE) {
            at = m->node[up].next;
            up = m->node[up].parent;
        }
    }
}

/* ---- the whole ---- */

static int build_tree(struct ut_pci_model *m)
{
    struct bus_table table = {0, NULL};
    int rc = make_rows(m, &table);
    if (!rc) {
        claim_buses(m, &table);
        for (size_t i = 0; i < m->node_count; i++)
            find_parent(m, &table, i);
        rc = cut_loops(m);
    }
    free(table.row);
    if (rc)
        return rc;
    cut_depth(m);
    chain_children(m);
    set_sides(m);
    return ut_pci_links_judge(m);
}

int ut_pci_model_new(const struct ut_pci_snap *snap, struct ut_pci_model **out)
{
    struct ut_pci_model *m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    m->snap = snap;
    m->node_count = snap->fn_count;
    m->node = calloc(m->node_count ? m->node_count : 1, sizeof *m->node);
    for (size_t i = 0; m->node && i < m->node_count; i++)
        init_node(&snap->fn[i], &m->node[i]);
    int rc = m->node ? build_tree(m) : -ENOMEM;
    if (rc)
        ut_pci_model_free(m);
    else
        *out = m;
    return rc;
}

void ut_pci_model_free(struct ut_pci_model *model)
{
    if (!model)
        return;
    free(model->node);
    free(model->link);
    free(model);
}

int ut_pci_model_find(const struct ut_pci_model *m, struct ut_pci_addr addr)
{
    size_t low = 0, high = m->node_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = ut_pci_addr_cmp(m->node[mid].fn->addr, addr);
        if (!order)
            return (int)mid;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return UT_PCI_NONE;
}
