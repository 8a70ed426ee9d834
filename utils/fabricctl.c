/*
 * fabricctl: looks at the PCI Express fabric of a machine, and at a mounted fabric. It reads, judges and
 * prints; only perf changes something: it makes a job, and removes it.
 *
 * utils/pci_*.c and ctl_fabric.c read and judge, each command of utils/ctl_*.c prints.
 */
#include <stdio.h>

#include "utils/ctl_doctor.h"
#include "utils/ctl_links.h"
#include "utils/ctl_opts.h"
#include "utils/ctl_perf.h"
#include "utils/ctl_plan.h"
#include "utils/ctl_report.h"
#include "utils/ctl_status.h"
#include "utils/ctl_top.h"
#include "utils/ctl_topo.h"

static enum ctl_exit run(const struct ctl_opts *opts, struct ut_err *err)
{
    switch (opts->command) {
    case CTL_DOCTOR:
        return ctl_doctor(opts, err);
    case CTL_TOPO:
        return ctl_topo(opts, err);
    case CTL_LINKS:
        return ctl_links(opts, err);
    case CTL_PLAN:
        return ctl_plan(opts, err);
    case CTL_PERF:
        return ctl_perf(opts, err);
    case CTL_STATUS:
        return ctl_status(opts, err);
    case CTL_TOP:
        return ctl_top(opts, err);
    case CTL_REPORT:
        return ctl_report(opts, err);
    }
    return CTL_ERROR;
}

int main(int argc, char **argv)
{
    struct ctl_opts opts;
    struct ut_err err = {""};
    if (ctl_opts_parse(argc, argv, &opts, &err)) {
        fprintf(stderr, "fabricctl: %s\nfabricctl --help shows how it is used.\n", err.text);
        return CTL_ERROR;
    }
    if (opts.help) {
        ctl_opts_help(opts.command);
        return CTL_OK;
    }
    enum ctl_exit status = run(&opts, &err);
    if (err.text[0])
        fprintf(stderr, "fabricctl: %s\n", err.text);
    return (int)status;
}
