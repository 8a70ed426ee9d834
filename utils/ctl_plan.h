/*
 * fabricctl plan: what a fabric would reach, by arithmetic.
 */
#ifndef CTL_PLAN_H
#define CTL_PLAN_H

#include "utils/ctl_opts.h"
#include "utils/ut_text.h"

/* Runs the command. CTL_OK, or CTL_ERROR with the reason in err. */
enum ctl_exit ctl_plan(const struct ctl_opts *opts, struct ut_err *err);

/* ---- the comparison with the articles, a file of its own ---- */

struct ctl_claim {
    const char *where; /* in which article and section */
    const char *claim;
    double theirs, ours;
    const char *unit;
    double tolerance; /* relative difference that rounding explains */
    const char *why;  /* where ours differs, or which reading reproduces theirs */
};

/* Writes the claims with our figures; the count. out holds at least CTL_CLAIMS. */
#define CTL_CLAIMS 24
unsigned ctl_plan_claims(struct ctl_claim out[CTL_CLAIMS]);

/* True when ours is theirs, up to rounding. */
int ctl_claim_agrees(const struct ctl_claim *claim);

#endif
