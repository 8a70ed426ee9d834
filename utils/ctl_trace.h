/*
 * The `trace` of a job, read back: the last operations, each with how long its ranks waited for each other
 * and how long the work took.
 */
#ifndef CTL_TRACE_H
#define CTL_TRACE_H

#include <stdbool.h>
#include <stddef.h>

#define CTL_TRACE_MAX 4096u

struct ctl_trace_op {
    double seq, count;       /* count: elements */
    double start_us;         /* since the first operation of the trace */
    double wait_us, work_us; /* first rank to last; last rank to end */
    double last_rank;
    char name[16], op[8], dtype[8], result[24], tag[40];
};

struct ctl_trace {
    struct ctl_trace_op *ops; /* in the order in which they ended */
    size_t count;
};

/* Reads a trace; at most CTL_TRACE_MAX operations of it. 0, -EINVAL when it is no Chrome trace, -ENOMEM. */
int ctl_trace_parse(const char *text, struct ctl_trace *trace);

/* Frees it and leaves it empty. */
void ctl_trace_fini(struct ctl_trace *trace);

/* True when the operation succeeded. */
bool ctl_trace_is_ok(const struct ctl_trace_op *op);

#endif
