/*
 * The machine that a command looks at: snapshot, model and names, from wherever the options say. And what
 * every command has to say about the reading itself: what is missing, and whether that makes it an error.
 */
#ifndef CTL_MACHINE_H
#define CTL_MACHINE_H

#include <jansson.h>

#include "utils/ctl_opts.h"
#include "utils/ctl_text.h"
#include "utils/pci_libpci.h"
#include "utils/pci_model.h"
#include "utils/pci_path.h"
#include "utils/pci_snap.h"

struct ctl_machine {
    struct ut_pci_snap *snap;
    struct ut_pci_model *model;
    struct ut_pci_lib *names; /* NULL without names */
    const char *source;       /* for messages: "this machine", or the path */
};

/* Reads the machine. 0 or -errno with the reason in err; the caller frees it with ctl_machine_fini. */
int ctl_machine_load(const struct ctl_opts *opts, struct ctl_machine *machine, struct ut_err *err);

/* Frees what ctl_machine_load made; nothing after a failed load. */
void ctl_machine_fini(struct ctl_machine *machine);

/* The exit status: CTL_ERROR when the input is damaged, else CTL_FINDINGS when there are any. */
enum ctl_exit ctl_machine_exit(const struct ctl_machine *machine, bool findings);

/* Appends what could not be read, a line each; nothing when all was. */
void ctl_machine_gaps(const struct ctl_machine *machine, const struct ctl_style *style, struct ut_text *text);

/* "0000:03:00.0" of a node, or "(not recorded)" for UT_PCI_NONE. The text holds until the fourth call after.
 */
const char *ctl_addr(const struct ctl_machine *machine, int node);

/* The name of a node's device from pci.ids, or its ids; as ctl_addr. */
const char *ctl_name(const struct ctl_machine *machine, int node);

/* Appends the way from the root to a node: "0000:00:03.0 > 0000:02:00.0 > ...". */
void ctl_path_text(const struct ctl_machine *machine, int node, struct ut_text *text);

/* Appends why a link has its verdict, naming the end that limits it. */
void ctl_link_why(const struct ctl_machine *machine, int link, struct ut_text *text);

/* The object that every JSON output begins with: command, source, complete, gaps. Owned by the caller. */
json_t *ctl_json_head(const struct ctl_machine *machine, const char *command);

/* {"gts": 8.0, "width": 16, "gbytes": 15.75}; null where unknown. */
json_t *ctl_json_rate(struct ut_pci_rate rate);

/* A node's address as a string, or null. */
json_t *ctl_json_addr(const struct ctl_machine *machine, int node);

/* One link with both ends. */
json_t *ctl_json_link(const struct ctl_machine *machine, int link);

/* Prints and frees a JSON value. 0, -ENOMEM when it could not be built, or -EIO. */
int ctl_json_print(json_t *value);

#endif
