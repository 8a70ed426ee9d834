/*
 * What doctor says about the kernel whether or not anything is wrong with it: a name and a value each. What
 * is not known is left out.
 */
#ifndef CTL_FACTS_H
#define CTL_FACTS_H

#include "utils/ctl_host.h"
#include "utils/ctl_machine.h"

struct ctl_fact {
    const char *name;
    struct ut_text value; /* owned */
};

#define CTL_FACTS_MAX 16

/* Collects the facts; the count. The caller frees them with ctl_facts_fini. */
size_t ctl_facts(const struct ctl_machine *machine, const struct ctl_host *host,
                 struct ctl_fact facts[CTL_FACTS_MAX]);

/* Frees the values. */
void ctl_facts_fini(struct ctl_fact *facts, size_t count);

#endif
