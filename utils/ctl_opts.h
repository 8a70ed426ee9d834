/*
 * The command line of fabricctl: one table of options, which parsing and --help are made from.
 */
#ifndef CTL_OPTS_H
#define CTL_OPTS_H

#include <stdbool.h>
#include <stdint.h>

#include "utils/ut_err.h"

/* Exit statuses, as the man page states them. */
enum ctl_exit { CTL_OK = 0, CTL_FINDINGS = 1, CTL_ERROR = 2 };

enum ctl_command {
    CTL_DOCTOR = 1,
    CTL_TOPO = 2,
    CTL_LINKS = 4,
    CTL_PLAN = 8,
    CTL_PERF = 16,
    CTL_STATUS = 32,
    CTL_TOP = 64,
    CTL_REPORT = 128,
};

enum ctl_colour { CTL_COLOUR_AUTO, CTL_COLOUR_ALWAYS, CTL_COLOUR_NEVER };

enum ctl_graph { CTL_GRAPH_NONE, CTL_GRAPH_DOT, CTL_GRAPH_SVG };

struct ctl_opts {
    enum ctl_command command;
    bool help, json;
    enum ctl_colour colour;
    const char *dump, *sysfs, *proc; /* NULL: not given */
    /* status, top, report */
    const char *mount;
    uint64_t timeout_ns;
    const char *job, *output; /* report; output NULL: standard output */
    /* links, and of top the interval */
    bool watch;
    uint64_t interval_ns, samples; /* samples 0: until interrupted */
    /* topo */
    enum ctl_graph graph;
    const char *devices; /* comma-separated kinds and addresses; NULL: the default choice */
    /* plan */
    uint64_t nodes, devices_a_node, size_bytes, gen, width, payload_bytes;
    double gbytes;     /* GB/s of a link, 0: from gen, width and efficiency */
    double efficiency; /* share of the raw rate that is reached */
    bool seed;
    struct {
        const char *mount, *sizes, *collective, *dtype, *op; /* lists with commas: mount, sizes */
        uint64_t ranks, queue, iters;                        /* iters 0: chosen by size */
        bool rw, bind, limit;
    } perf;
};

/* Reads argv. 0, or -EINVAL with the reason in err. Strings point into argv. */
int ctl_opts_parse(int argc, char **argv, struct ctl_opts *opts, struct ut_err *err);

/* Prints the help of one command, or of the program when command is 0. */
void ctl_opts_help(enum ctl_command command);

#endif
