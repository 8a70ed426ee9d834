/*
 * Everything that is known of one function, as JSON: the data behind doctor and topo, for scripts.
 */
#ifndef CTL_FUNCTION_H
#define CTL_FUNCTION_H

#include "utils/ctl_machine.h"

/* Owned by the caller; NULL without memory. */
json_t *ctl_function_json(const struct ctl_machine *machine, int node);

#endif
