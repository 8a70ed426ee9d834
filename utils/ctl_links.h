/*
 * fabricctl links: the table of links, once or again and again.
 */
#ifndef CTL_LINKS_H
#define CTL_LINKS_H

#include "utils/ctl_opts.h"

/* Runs the command. The exit status; the reason in err when it is CTL_ERROR without output. */
enum ctl_exit ctl_links(const struct ctl_opts *opts, struct ut_err *err);

#endif
