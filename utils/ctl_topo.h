/*
 * fabricctl topo: the tree, the paths of its devices, and the matrix between chosen ones.
 */
#ifndef CTL_TOPO_H
#define CTL_TOPO_H

#include "utils/ctl_machine.h"

/* Runs the command. The exit status: CTL_FINDINGS when a link of the tree is degraded or down. */
enum ctl_exit ctl_topo(const struct ctl_opts *opts, struct ut_err *err);

/* ---- its parts, a file each ---- */

/* Appends the tree as a person draws it. */
void ctl_tree_text(const struct ctl_machine *machine, const struct ctl_style *style, struct ut_text *text);

/* Appends, for every device with a link, the way to its root and the hop that holds it back. */
void ctl_paths_text(const struct ctl_machine *machine, const struct ctl_style *style, struct ut_text *text);

/* One path, as JSON. */
json_t *ctl_path_json(const struct ctl_machine *machine, int node);

/* True for a function that a path is worth showing for: no bridge, with a link, lowest of its device. */
bool ctl_has_path(const struct ut_pci_model *model, int node);

#define CTL_MATRIX_DEVICES 64

/* The devices of a matrix, with names such as "GPU0". */
struct ctl_matrix {
    int node[CTL_MATRIX_DEVICES];
    char name[CTL_MATRIX_DEVICES][12];
    size_t count;
    size_t left_out; /* more were chosen than fit */
};

/* Chooses devices by the words of a list (NULL: the default). 0, or -EINVAL with the reason in err. */
int ctl_matrix_choose(const struct ctl_machine *machine, const char *list, struct ctl_matrix *matrix,
                      struct ut_err *err);

/* Appends the matrix with its legend and a count of the verdicts; nothing for no devices. */
void ctl_matrix_text(const struct ctl_machine *machine, const struct ctl_matrix *matrix,
                     const struct ctl_style *style, struct ut_text *text);

/* The devices and every pair, as JSON; the caller's. */
json_t *ctl_matrix_json(const struct ctl_machine *machine, const struct ctl_matrix *matrix);

/* Appends the tree for Graphviz, or as a picture. */
void ctl_graph_dot(const struct ctl_machine *machine, struct ut_text *text);
void ctl_graph_svg(const struct ctl_machine *machine, struct ut_text *text);

#endif
