/*
 * Processes that go in step: a barrier in shared memory that nobody hangs in.
 *
 * Who comes within a millisecond of the others goes on with them at once; after that they sleep.
 *
 * Several barriers share one place for failure. When one process fails, those that wait at any of them get
 * out.
 */
#ifndef CTL_PERF_STEP_H
#define CTL_PERF_STEP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ctl_perf_failure {
    _Atomic uint32_t state; /* 1: one process is writing why; 2: why is written */
    char why[256];
};

struct ctl_perf_step {
    struct ctl_perf_failure *failure;
    uint32_t parties;
    _Atomic uint32_t arrived, round; /* round is what those that wait sleep on */
};

/* Returns true when all parties have come, false when one has failed: at once to those that come later,
 * within 100 ms to those that wait. Meanwhile idle() is called every 100 ms, if there is one. */
bool ctl_perf_step_wait(struct ctl_perf_step *step, void (*idle)(void *ctx), void *ctx);

/* Ends it for all. The first sentence stays. */
void ctl_perf_step_fail(struct ctl_perf_failure *failure, const char *why);

#endif
