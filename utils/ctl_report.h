/*
 * fabricctl report: a job in one HTML file that can be mailed. Nothing in it is fetched from elsewhere and
 * nothing runs: text, tables, and pictures as SVG (ctl_report_plots.c).
 */
#ifndef CTL_REPORT_H
#define CTL_REPORT_H

#include "utils/ctl_fabric.h"
#include "utils/ctl_opts.h"
#include "utils/ctl_trace.h"

/* Runs it. CTL_OK when the report is written, whatever is in it; CTL_ERROR, with the reason in err. */
enum ctl_exit ctl_report(const struct ctl_opts *opts, struct ut_err *err);

/* Draws what each operation of the trace took, a mark each, on a logarithmic scale. */
void ctl_report_latency(const struct ctl_trace *trace, struct ut_text *out);

/* Draws the last operations of the trace on a time line: waiting, then working; side by side where they
 * overlap. */
void ctl_report_timeline(const struct ctl_trace *trace, struct ut_text *out);

/* Draws where the time of all operations went, as one bar with a legend. */
void ctl_report_phases(const struct ctl_fabric_job *job, struct ut_text *out);

/* Draws the nodes in the order of the ring, with the ranks of the job on each. Nothing for one node, or for
 * more than a picture holds. */
void ctl_report_ring(const struct ctl_fabric *fabric, const struct ctl_fabric_job *job, struct ut_text *out);

#endif
