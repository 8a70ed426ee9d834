/*
 * fabricctl top: a mounted fabric in a terminal, as it goes.
 *
 * ctl_top_rows.c turns snapshots into rates, ctl_top_draw.c draws, ctl_top.c reads keys and files in turn.
 * The files come from a process of their own (ctl_reader.h), so that keys are answered while the daemon is
 * not.
 */
#ifndef CTL_TOP_H
#define CTL_TOP_H

#include "utils/ctl_fabric.h"
#include "utils/ctl_opts.h"
#include "utils/ctl_trace.h"

#define CTL_TOP_SAMPLES 64u

enum ctl_top_view { CTL_TOP_JOBS, CTL_TOP_NODES, CTL_TOP_HEALTH, CTL_TOP_RANKS };

enum ctl_top_sort {
    CTL_TOP_NAME,
    CTL_TOP_OPS,
    CTL_TOP_P50,
    CTL_TOP_P999,
    CTL_TOP_GBYTES,
    CTL_TOP_LATE,
    CTL_TOP_SORTS
};

/* A job, and what it did between the last two snapshots; -1 where that is not known. */
struct ctl_top_row {
    const struct ctl_fabric_job *job;
    double ops_s, gbytes_s, p50_us, p999_us;
    int slowest; /* the rank that was late for longest; -1: none */
    double late_us;
    double latency_us[CTL_TOP_SAMPLES]; /* means between snapshots, oldest first; -1: nothing was done */
    unsigned samples;
};

struct ctl_top {
    struct ctl_fabric now;
    uint64_t now_ns;          /* when it was read */
    struct ctl_trace trace;   /* of the picked job, in CTL_TOP_RANKS */
    struct ctl_top_row *rows; /* a row a job, as sorted */
    enum ctl_top_view view;
    enum ctl_top_sort sort;
    bool reverse, late_first; /* late_first: ranks by lateness, not by number */
    bool paused, unicode, colours, quit;
    char picked[65];   /* the job */
    size_t scroll;     /* lines of a list that are above its window */
    char trouble[256]; /* why there is no newer snapshot */
};

/* Runs it until the user quits. CTL_OK; CTL_ERROR, with the reason in err, when no fabric is mounted there,
 * or the standard input or output is no terminal, or one that cannot be drawn on. */
enum ctl_exit ctl_top(const struct ctl_opts *opts, struct ut_err *err);

/* Takes a snapshot, read at the time now_ns, over from *fabric. 0 or -ENOMEM; then the one before stays. */
int ctl_top_take(struct ctl_top *top, struct ctl_fabric *fabric, uint64_t now_ns);

/* Brings the rows into the order that is asked for, and the picked job back to one that is there. */
void ctl_top_order(struct ctl_top *top);

/* The row of the picked job; NULL without jobs. */
const struct ctl_top_row *ctl_top_picked(const struct ctl_top *top);

/* Picks the job that many rows further on, as far as there are any. */
void ctl_top_pick(struct ctl_top *top, long further);

/* Frees the snapshot and the rows. */
void ctl_top_fini(struct ctl_top *top);

/* Draws all of it on the screen of ncurses. */
void ctl_top_draw(struct ctl_top *top);

#endif
