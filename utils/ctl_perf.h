/*
 * fabricctl perf: what collectives take through a mounted fabric, seen from ordinary client processes.
 *
 * One process a rank (ctl_perf_rank.c) does what a training script does: it maps its buffer, stores a known
 * pattern (ctl_perf_data.c), writes a command to a trigger, and compares the result. This process starts
 * them, keeps them in step (ctl_perf_step.c) and prints a row a size.
 */
#ifndef CTL_PERF_H
#define CTL_PERF_H

#include "utils/ctl_opts.h"

/* Runs it. CTL_OK; CTL_FINDINGS when a result was wrong; CTL_ERROR with the reason in err. The job that it
 * makes is gone when it returns, also after SIGINT and SIGTERM. */
enum ctl_exit ctl_perf(const struct ctl_opts *opts, struct ut_err *err);

#endif
