/*
 * fabricctl doctor: runs the checks and prints what they found.
 */
#ifndef CTL_DOCTOR_H
#define CTL_DOCTOR_H

#include "utils/ctl_opts.h"

/* Runs the command. The exit status: CTL_FINDINGS for faults and warnings, not for notes. */
enum ctl_exit ctl_doctor(const struct ctl_opts *opts, struct ut_err *err);

#endif
