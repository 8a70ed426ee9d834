#include "utils/ctl_perf_step.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "utils/ut_clock.h"

/* How long they look for each other before they sleep: who is woken comes 15 to 60 us after the others on a
 * virtual machine, which would count as the time of what they begin together. */
#define LOOK_NS UT_NS_PER_MS

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    const struct timespec wait = {.tv_nsec = 100000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &wait, NULL, 0);
}

bool ctl_perf_step_wait(struct ctl_perf_step *step, void (*idle)(void *ctx), void *ctx)
{
    const uint32_t round = step->round;
    if (atomic_fetch_add(&step->arrived, 1) + 1 == step->parties) {
        step->arrived = 0;
        step->round = round + 1;
        syscall(SYS_futex, &step->round, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
    for (uint64_t until = ut_clock_ns() + LOOK_NS;
         step->round == round && !step->failure->state && ut_clock_ns() < until;)
        sched_yield();
    while (step->round == round && !step->failure->state) {
        futex_wait(&step->round, round);
        if (idle)
            idle(ctx);
    }
    return !step->failure->state;
}

void ctl_perf_step_fail(struct ctl_perf_failure *failure, const char *why)
{
    uint32_t none = 0;
    if (atomic_compare_exchange_strong(&failure->state, &none, 1)) {
        snprintf(failure->why, sizeof failure->why, "%s", why);
        failure->state = 2;
    }
}
