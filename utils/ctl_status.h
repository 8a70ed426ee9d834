/*
 * fabricctl status: how a mounted fabric is, for scripts and for a glance.
 */
#ifndef CTL_STATUS_H
#define CTL_STATUS_H

#include "utils/ctl_opts.h"

/* Runs it. CTL_OK; CTL_FINDINGS when health has any; CTL_ERROR, with the reason in err, when no fabric is
 * mounted there or the daemon does not answer in time. */
enum ctl_exit ctl_status(const struct ctl_opts *opts, struct ut_err *err);

#endif
