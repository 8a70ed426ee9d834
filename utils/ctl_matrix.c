/*
 * The matrix between devices: how far apart any two are, and what peer-to-peer traffic meets on the way.
 */
#include "utils/ctl_topo.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "utils/ctl_find.h"

#define DEFAULT_LIST "gpu,nic,ntb,nvme"
#define WORD_CHARS 32

/* ---- choosing ---- */

static void add(const struct ctl_machine *machine, int node, struct ctl_matrix *matrix)
{
    unsigned number = 0;
    const char *kind = ut_pci_kind_name(machine->model->node[node].kind);
    for (size_t i = 0; i < matrix->count; i++) {
        if (matrix->node[i] == node)
            return;
        number += machine->model->node[matrix->node[i]].kind == machine->model->node[node].kind;
    }
    if (matrix->count == CTL_MATRIX_DEVICES) {
        matrix->left_out++;
        return;
    }
    char *name = matrix->name[matrix->count];
    snprintf(name, sizeof matrix->name[0], "%s%u", kind, number);
    for (; *name; name++)
        *name = (char)toupper((unsigned char)*name);
    matrix->node[matrix->count++] = node;
}

/* What "all" means: devices, not the plumbing between them; the lowest function of each. */
static bool is_device(const struct ut_pci_model *m, int idx)
{
    const struct ut_pci_node *node = &m->node[idx];
    bool lowest = !idx || !ut_pci_addr_same_dev(m->node[idx - 1].fn->addr, node->fn->addr);
    return node->kind != UT_PCI_KIND_BRIDGE && node->kind != UT_PCI_KIND_HOST && lowest &&
           !node->fn->attrs.is_vf;
}

static int add_word(const struct ctl_machine *machine, const char *word, struct ctl_matrix *matrix,
                    struct ut_err *err)
{
    const struct ut_pci_model *m = machine->model;
    struct ut_pci_addr addr;
    bool is_kind = false, all = !strcmp(word, "all");
    if (!ut_pci_addr_parse(word, &addr)) {
        int node = ut_pci_model_find(m, addr);
        if (node == UT_PCI_NONE)
            return ut_err_set(err, -EINVAL, "--devices: there is no %s here", word);
        add(machine, node, matrix);
        return 0;
    }
    for (int kind = UT_PCI_KIND_GPU; kind < UT_PCI_KIND_COUNT; kind++)
        is_kind |= !strcmp(word, ut_pci_kind_name((enum ut_pci_kind)kind));
    if (!is_kind && !all)
        return ut_err_set(err, -EINVAL, "--devices: %s is neither gpu, nic, ntb, nvme, all nor an address",
                          word);
    for (size_t i = 0; i < m->node_count; i++)
        if (all ? is_device(m, (int)i)
                : ctl_is_mover(m, (int)i) && !strcmp(word, ut_pci_kind_name(m->node[i].kind)))
            add(machine, (int)i, matrix);
    return 0;
}

int ctl_matrix_choose(const struct ctl_machine *machine, const char *list, struct ctl_matrix *matrix,
                      struct ut_err *err)
{
    memset(matrix, 0, sizeof *matrix);
    for (list = list ? list : DEFAULT_LIST; *list; list += *list == ',') {
        char word[WORD_CHARS];
        size_t len = strcspn(list, ",");
        if (len >= sizeof word)
            return ut_err_set(err, -EINVAL, "--devices: %.40s is too long", list);
        memcpy(word, list, len);
        word[len] = '\0';
        int rc = add_word(machine, word, matrix, err);
        if (rc)
            return rc;
        list += len;
    }
    return 0;
}

/* ---- showing ---- */

static const char *mark_of(enum ut_pci_p2p p2p)
{
    if (p2p == UT_PCI_P2P_REDIRECTED || p2p == UT_PCI_P2P_REDIRECTED_HOST)
        return "*";
    return p2p == UT_PCI_P2P_UNKNOWN ? "?" : "";
}

static const char *words_of(enum ut_pci_p2p p2p)
{
    static const char *const WORDS[] = {
        "direct: turns round in the switch",
        "redirected: a switch port sends it up to the root complex (ACS)",
        "through the root complex: works on most server platforms, often at less than the link's speed",
        "through the root complex, redirected there for translation (ACS)",
        "between sockets: slow, and refused by many platforms",
        "unknown: ACS, a bridge on the way or the NUMA node is not recorded",
    };
    return WORDS[p2p];
}

static void legend(struct ut_text *text)
{
    ut_text_addf(
        text, "  PIX one switch at most, PXB several switches, PHB the same host bridge, NODE the same NUMA\n"
              "  node, SYS across NUMA nodes; * redirected by ACS, ? not known\n");
}

static void show_pairs(const struct ctl_machine *machine, const struct ctl_matrix *matrix,
                       struct ut_text *text)
{
    size_t count[UT_PCI_P2P_UNKNOWN + 1] = {0};
    for (size_t i = 0; i < matrix->count; i++) {
        for (size_t j = i + 1; j < matrix->count; j++) {
            struct ut_pci_pair pair;
            ut_pci_pair_of(machine->model, matrix->node[i], matrix->node[j], &pair);
            count[pair.p2p]++;
        }
    }
    for (int p2p = 0; p2p <= UT_PCI_P2P_UNKNOWN; p2p++)
        if (count[p2p])
            ut_text_addf(text, "  %zu pair%s %s\n", count[p2p], count[p2p] == 1 ? "" : "s",
                         words_of((enum ut_pci_p2p)p2p));
}

void ctl_matrix_text(const struct ctl_machine *machine, const struct ctl_matrix *matrix,
                     const struct ctl_style *style, struct ut_text *text)
{
    if (!matrix->count)
        return;
    ut_text_addf(text, "\n%sDevice to device%s\n  %-8s", style->bold, style->off, "");
    for (size_t j = 0; j < matrix->count; j++)
        ut_text_addf(text, " %-9s", matrix->name[j]);
    ut_text_addf(text, "\n");
    for (size_t i = 0; i < matrix->count; i++) {
        ut_text_addf(text, "  %-8s", matrix->name[i]);
        for (size_t j = 0; j < matrix->count; j++) {
            struct ut_pci_pair pair;
            char cell[16];
            ut_pci_pair_of(machine->model, matrix->node[i], matrix->node[j], &pair);
            snprintf(cell, sizeof cell, "%s%s", ut_pci_class_name(pair.cls),
                     pair.cls == UT_PCI_SELF || pair.cls == UT_PCI_CLASS_UNKNOWN ? "" : mark_of(pair.p2p));
            ut_text_addf(text, " %-9s", cell);
        }
        ut_text_addf(text, " %s\n", ctl_addr(machine, matrix->node[i]));
    }
    if (matrix->left_out)
        ut_text_addf(text, "  and %zu more: choose with --devices\n", matrix->left_out);
    legend(text);
    show_pairs(machine, matrix, text);
}

static json_t *pair_json(const struct ctl_machine *machine, const struct ctl_matrix *matrix, size_t i,
                         size_t j)
{
    struct ut_pci_pair pair;
    json_t *redirects = json_array();
    ut_pci_pair_of(machine->model, matrix->node[i], matrix->node[j], &pair);
    for (unsigned k = 0; k < pair.redirect_count; k++)
        json_array_append_new(redirects, ctl_json_addr(machine, pair.redirects[k]));
    return json_pack("{s:o, s:o, s:s, s:s, s:s, s:o, s:o, s:o}", "a", ctl_json_addr(machine, matrix->node[i]),
                     "b", ctl_json_addr(machine, matrix->node[j]), "class", ut_pci_class_name(pair.cls),
                     "p2p", ut_pci_p2p_name(pair.p2p), "meaning", words_of(pair.p2p), "common",
                     ctl_json_addr(machine, pair.common), "redirected_by", redirects, "gbytes",
                     pair.gbytes > 0 ? json_real(pair.gbytes) : json_null());
}

json_t *ctl_matrix_json(const struct ctl_machine *machine, const struct ctl_matrix *matrix)
{
    json_t *devices = json_array(), *pairs = json_array();
    for (size_t i = 0; i < matrix->count; i++)
        json_array_append_new(devices, json_pack("{s:s, s:o}", "name", matrix->name[i], "address",
                                                 ctl_json_addr(machine, matrix->node[i])));
    for (size_t i = 0; i < matrix->count; i++)
        for (size_t j = i + 1; j < matrix->count; j++)
            json_array_append_new(pairs, pair_json(machine, matrix, i, j));
    return json_pack("{s:o, s:o, s:I}", "devices", devices, "pairs", pairs, "left_out",
                     (json_int_t)matrix->left_out);
}
