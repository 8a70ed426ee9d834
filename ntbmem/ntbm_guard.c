#include "ntbmem/ntbm_guard.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <ucontext.h>

/* Where this thread goes on when guarded memory is gone; NULL outside a guard. */
static _Thread_local sigjmp_buf *volatile way_out;

/* A SIGBUS that somebody sent, or a misaligned access, does not mean that memory is gone. */
static bool is_lost_memory(const siginfo_t *info)
{
    return info->si_code == BUS_ADRERR || info->si_code == BUS_OBJERR || info->si_code == BUS_MCEERR_AR;
}

/* Changed by the thread that opens and restores the memory, read by the handler on any. */
static struct {
    char *_Atomic base;
    _Atomic size_t bytes;
    atomic_bool is_gone;
} cover;

static bool is_covered(const siginfo_t *info)
{
    const char *at = info->si_addr, *base = atomic_load(&cover.base);
    return base && at >= base && at < base + atomic_load(&cover.bytes);
}

/* mmap is a plain system call, as safe here as write is. */
static bool lay_zeros(void)
{
    void *base = atomic_load(&cover.base);
    return mmap(base, atomic_load(&cover.bytes), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == base;
}

/* Leaves the guard with the signals blocked that were blocked at the access, so that entering one need not
 * save them and costs no system call. */
static _Noreturn void leave(sigjmp_buf *out, const ucontext_t *at_access)
{
    pthread_sigmask(SIG_SETMASK, &at_access->uc_sigmask, NULL);
    siglongjmp(*out, 1);
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    sigjmp_buf *out = way_out;
    bool is_lost = is_lost_memory(info), covered = is_lost && is_covered(info);
    if (covered)
        atomic_store(&cover.is_gone, true);
    if (out && is_lost)
        leave(out, context);
    if (covered && lay_zeros())
        return;
    signal(sig, SIG_DFL);
    raise(sig);
}

void ntbm_guard_cover(void *base, size_t bytes)
{
    atomic_store(&cover.base, NULL);
    atomic_store(&cover.bytes, bytes);
    atomic_store(&cover.is_gone, false);
    atomic_store(&cover.base, base);
}

bool ntbm_guard_is_gone(void)
{
    atomic_thread_fence(memory_order_acquire); /* what the caller has read, zeros perhaps, was read before */
    return atomic_load_explicit(&cover.is_gone, memory_order_relaxed);
}

int ntbm_guard_init(void)
{
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, NULL) < 0 ? -errno : 0;
}

int ntbm_guard_run(void (*fn)(void *arg), void *arg)
{
    assert(!way_out);
    sigjmp_buf here;
    if (sigsetjmp(here, 0)) {
        way_out = NULL;
        return -EFAULT;
    }
    way_out = &here;
    atomic_signal_fence(memory_order_seq_cst); /* no access of fn moves out of the guarded span */
    fn(arg);
    atomic_signal_fence(memory_order_seq_cst);
    way_out = NULL;
    return 0;
}
