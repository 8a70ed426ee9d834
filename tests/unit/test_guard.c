/* Guarded access: losing memory is an error code inside a guard, and death outside one. */
#include "ntbmem/ntbm_guard.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

/* A mapping of one page over a file of no bytes: every access is SIGBUS. */
static char *page_without_file(void)
{
    int fd = memfd_create("empty", MFD_CLOEXEC);
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(page, MAP_FAILED);
    close(fd);
    return page;
}

static void read_byte(void *arg)
{
    (void)*(volatile char *)arg;
}

static void write_byte(void *arg)
{
    *(volatile char *)arg = 1;
}

static void send_self_sigbus(void *arg)
{
    (void)arg;
    raise(SIGBUS);
}

static void init_guard(void)
{
    cr_assert_eq(ntbm_guard_init(), 0);
}

TestSuite(guard, .init = init_guard);

Test(guard, lets_access_to_present_memory_through)
{
    char byte = 0;
    cr_assert_eq(ntbm_guard_run(write_byte, &byte), 0);
    cr_assert_eq(byte, 1);
}

Test(guard, turns_lost_memory_into_efault_every_time)
{
    char *page = page_without_file();
    for (int i = 0; i < 1000; i++) {
        cr_assert_eq(ntbm_guard_run(read_byte, page), -EFAULT);
        cr_assert_eq(ntbm_guard_run(write_byte, page), -EFAULT);
    }
}

Test(guard, leaves_the_signal_mask_as_it_was)
{
    sigset_t before, after;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    cr_assert_eq(ntbm_guard_run(read_byte, page_without_file()), -EFAULT);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    for (int sig = 1; sig < 32; sig++)
        cr_assert_eq(sigismember(&before, sig), sigismember(&after, sig), "signal %d", sig);
}

Test(guard, outside_a_guard_lost_memory_is_fatal, .signal = SIGBUS)
{
    read_byte(page_without_file());
}

Test(guard, after_a_guard_lost_memory_is_fatal_again, .signal = SIGBUS)
{
    char *page = page_without_file();
    cr_assert_eq(ntbm_guard_run(read_byte, page), -EFAULT);
    read_byte(page);
}

Test(guard, a_signal_somebody_sent_is_fatal_even_inside, .signal = SIGBUS)
{
    ntbm_guard_run(send_self_sigbus, NULL);
}

static void *fault_often(void *page)
{
    long faults = 0;
    for (int i = 0; i < 2000; i++)
        faults += ntbm_guard_run(read_byte, page) == -EFAULT;
    return (void *)faults;
}

Test(guard, threads_fault_independently)
{
    pthread_t threads[4];
    char *page = page_without_file();
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, fault_often, page);
    for (int i = 0; i < 4; i++) {
        void *faults;
        pthread_join(threads[i], &faults);
        cr_assert_eq((long)faults, 2000);
    }
}

Test(guard, covered_memory_that_is_gone_reads_as_zeros_and_is_said_to_be)
{
    char *page = page_without_file();
    ntbm_guard_cover(page, 4096);
    cr_assert(!ntbm_guard_is_gone());
    cr_assert_eq(*(volatile char *)(page + 100), 0);
    cr_assert(ntbm_guard_is_gone());
    *(volatile char *)page = 5; /* and can be written */
    cr_assert_eq(*(volatile char *)page, 5);
    ntbm_guard_cover(NULL, 0);
    cr_assert(!ntbm_guard_is_gone());
}

Test(guard, a_guard_on_covered_memory_still_fails_and_that_is_noted_too)
{
    char *page = page_without_file();
    ntbm_guard_cover(page, 4096);
    cr_assert_eq(ntbm_guard_run(read_byte, page), -EFAULT);
    cr_assert(ntbm_guard_is_gone());
}

Test(guard, a_cover_does_not_reach_beyond_its_memory, .signal = SIGBUS)
{
    char *page = page_without_file(), *other = page_without_file();
    ntbm_guard_cover(page, 4096);
    read_byte(other);
}
