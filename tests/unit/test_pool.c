/*
 * The workers: what runs how often, in which order, on which thread, and who owns it then.
 */
#include "reduce/red_pool.h"

#include "utils/ut_clock.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <numa.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_BLOCKS 1000u

/* A work that counts how often each block ran, and says when it is finished. */
struct counted {
    struct red_work work;
    atomic_uint runs[MAX_BLOCKS];
    atomic_uint finishes;
    unsigned done_at_finish; /* blocks that had run when finish came */
    sem_t finished;
};

static void count_block(struct red_work *work, unsigned idx)
{
    struct counted *counted = UT_CONTAINER(work, struct counted, work);
    atomic_fetch_add(&counted->runs[idx], 1);
}

static void count_finish(struct red_work *work)
{
    struct counted *counted = UT_CONTAINER(work, struct counted, work);
    for (unsigned i = 0; i < work->block_count; i++) {
        counted->done_at_finish += atomic_load(&counted->runs[i]);
    }
    atomic_fetch_add(&counted->finishes, 1);
    sem_post(&counted->finished);
}

static struct counted *counted_create(unsigned block_count)
{
    struct counted *counted = calloc(1, sizeof *counted);
    counted->work =
        (struct red_work){.block = count_block, .finish = count_finish, .block_count = block_count};
    sem_init(&counted->finished, 0, 0);
    return counted;
}

/* A work that keeps its worker until it is let go. */
struct held {
    struct red_work work;
    sem_t let_go;
};

static void hold(struct red_work *work, unsigned idx)
{
    (void)idx;
    sem_wait(&UT_CONTAINER(work, struct held, work)->let_go);
}

static void held_over(struct red_work *work)
{
    (void)work;
}

static void expect_blocks(const struct counted *counted)
{
    for (unsigned i = 0; i < counted->work.block_count; i++) {
        cr_assert_eq(atomic_load(&counted->runs[i]), 1, "block %u", i);
    }
}

static void expect_complete(const struct counted *counted)
{
    cr_assert_eq(atomic_load(&counted->finishes), 1);
    cr_assert_eq(counted->done_at_finish, counted->work.block_count);
    expect_blocks(counted);
}

static struct red_pool *pool_of(unsigned threads)
{
    struct red_pool *pool;
    cr_assert_eq(red_pool_create(threads, -1, &pool), 0);
    return pool;
}

Test(pool, every_block_runs_once_and_finish_comes_once_after_the_last, .timeout = 20)
{
    struct red_pool *pool = pool_of(0);
    for (unsigned blocks = 1; blocks <= MAX_BLOCKS; blocks += 1 + blocks / 2) {
        struct counted *counted = counted_create(blocks);
        red_pool_submit(pool, &counted->work);
        sem_wait(&counted->finished);
        expect_complete(counted);
        free(counted);
    }
    red_pool_destroy(pool);
}

Test(pool, a_shared_work_is_complete_and_its_caller_took_part, .timeout = 20)
{
    struct red_pool *pool = pool_of(1); /* whose thread is kept busy by the first work */
    struct counted *first = counted_create(1), *shared = counted_create(7);
    struct held held = {.work = {.block = hold, .finish = held_over, .block_count = 1}};
    sem_init(&held.let_go, 0, 0);
    red_pool_submit(pool, &held.work);
    red_pool_submit(pool, &first->work);
    cr_assert(red_pool_share(pool, &shared->work), "it does not wait for works before it");
    expect_blocks(shared);
    cr_assert_eq(atomic_load(&shared->finishes), 0, "who knows that it is over is not told");
    cr_assert_eq(atomic_load(&first->finishes), 0);
    sem_post(&held.let_go);
    red_pool_destroy(pool);
    expect_complete(first);
    free(first);
    free(shared);
}

Test(pool, shared_works_run_each_block_once_whoever_takes_it, .timeout = 20)
{
    struct red_pool *pool = pool_of(0);
    for (unsigned round = 0; round < 2000; round++) {
        struct counted *counted = counted_create(1 + round % 9);
        if (red_pool_share(pool, &counted->work)) {
            expect_blocks(counted);
            cr_assert_eq(atomic_load(&counted->finishes), 0);
        } else {
            sem_wait(&counted->finished);
            expect_complete(counted);
        }
        free(counted);
    }
    red_pool_destroy(pool);
}

/* A block that lasts until it is let go, when a worker carries it out; the sharing thread's end at once. */
struct divided {
    struct red_work work;
    pthread_t sharer;
    sem_t begun, let_go, finished;
};

static void hold_worker(struct red_work *work, unsigned idx)
{
    struct divided *divided = UT_CONTAINER(work, struct divided, work);
    if (pthread_equal(pthread_self(), divided->sharer)) {
        sem_wait(&divided->begun); /* so that a worker has the other one */
    } else {
        sem_post(&divided->begun);
        sem_wait(&divided->let_go);
    }
}

static void divided_finish(struct red_work *work)
{
    sem_post(&UT_CONTAINER(work, struct divided, work)->finished);
}

Test(pool, who_shares_does_not_wait_for_a_block_that_takes_long, .timeout = 20)
{
    struct red_pool *pool = pool_of(0);
    if (red_pool_threads(pool) < 2) {
        cr_skip_test("one CPU: there is nobody to share with");
    }
    struct divided divided = {.work = {.block = hold_worker, .finish = divided_finish, .block_count = 2},
                              .sharer = pthread_self()};
    sem_init(&divided.begun, 0, 0);
    sem_init(&divided.let_go, 0, 0);
    sem_init(&divided.finished, 0, 0);
    cr_assert_not(red_pool_share(pool, &divided.work));
    sem_post(&divided.let_go);
    sem_wait(&divided.finished);
    red_pool_destroy(pool);
}

Test(pool, destroying_carries_out_all_that_is_queued, .timeout = 20)
{
    struct counted *works[50];
    struct red_pool *pool = pool_of(0);
    for (unsigned i = 0; i < 50; i++) {
        works[i] = counted_create(1 + i * 7);
        red_pool_submit(pool, &works[i]->work);
    }
    red_pool_destroy(pool);
    for (unsigned i = 0; i < 50; i++) {
        expect_complete(works[i]);
        free(works[i]);
    }
}

/* ---- Order ---- */

static unsigned order[64], order_count;

static void note_order(struct red_work *work, unsigned idx)
{
    order[order_count++] = work->block_count * 100 + idx;
}

static void finish_nothing(struct red_work *work)
{
}

Test(pool, one_worker_takes_works_and_blocks_in_order, .timeout = 20)
{
    struct red_work works[3];
    struct red_pool *pool = pool_of(1);
    for (unsigned i = 0; i < 3; i++) {
        works[i] = (struct red_work){.block = note_order, .finish = finish_nothing, .block_count = i + 1};
        red_pool_submit(pool, &works[i]);
    }
    red_pool_destroy(pool);
    const unsigned want[] = {100, 200, 201, 300, 301, 302};
    cr_assert_eq(order_count, 6);
    cr_assert_arr_eq(order, want, sizeof want);
}

static pthread_barrier_t meeting;

static void meet(struct red_work *work, unsigned idx)
{
    pthread_barrier_wait(&meeting);
}

Test(pool, works_of_one_block_run_side_by_side, .timeout = 20)
{
    struct red_work works[2];
    struct red_pool *pool = pool_of(2);
    if (red_pool_threads(pool) < 2) {
        cr_skip_test("one CPU: there is one worker");
    }
    pthread_barrier_init(&meeting, NULL, 2);
    for (unsigned i = 0; i < 2; i++) {
        works[i] = (struct red_work){.block = meet, .finish = finish_nothing, .block_count = 1};
        red_pool_submit(pool, &works[i]);
    }
    red_pool_destroy(pool);
}

/* ---- Who owns the work ---- */

struct relay {
    struct red_work work;
    struct red_pool *pool;
    unsigned *laps;
};

static void relay_block(struct red_work *work, unsigned idx)
{
}

/* Frees the work and submits a new one in its place. */
static void relay_finish(struct red_work *work)
{
    struct relay *old = UT_CONTAINER(work, struct relay, work);
    if (++*old->laps < 1000) {
        struct relay *next = malloc(sizeof *next);
        *next = (struct relay){.work = {.block = relay_block, .finish = relay_finish, .block_count = 3},
                               .pool = old->pool,
                               .laps = old->laps};
        red_pool_submit(next->pool, &next->work);
    }
    free(old);
}

Test(pool, finish_may_free_its_work_and_submit_the_next, .timeout = 20)
{
    unsigned laps = 0;
    struct red_pool *pool = pool_of(0);
    struct relay *first = malloc(sizeof *first);
    *first = (struct relay){.work = {.block = relay_block, .finish = relay_finish, .block_count = 3},
                            .pool = pool,
                            .laps = &laps};
    red_pool_submit(pool, &first->work);
    red_pool_destroy(pool);
    cr_assert_eq(laps, 1000);
}

static void *submit_many(void *arg)
{
    struct counted *counted[100];
    for (unsigned i = 0; i < 100; i++) {
        counted[i] = counted_create(1 + i % 5);
        red_pool_submit(arg, &counted[i]->work);
    }
    for (unsigned i = 0; i < 100; i++) {
        sem_wait(&counted[i]->finished);
        expect_complete(counted[i]);
        free(counted[i]);
    }
    return NULL;
}

Test(pool, any_thread_may_submit, .timeout = 20)
{
    pthread_t thread[4];
    struct red_pool *pool = pool_of(0);
    for (unsigned i = 0; i < 4; i++) {
        cr_assert_eq(pthread_create(&thread[i], NULL, submit_many, pool), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
    }
    red_pool_destroy(pool);
}

/* ---- The threads ---- */

static unsigned usable_cpus(void)
{
    cpu_set_t cpus;
    cr_assert_eq(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    return (unsigned)CPU_COUNT(&cpus);
}

Test(pool, there_are_never_more_workers_than_cpus)
{
    struct red_pool *all = pool_of(0), *many = pool_of(100000), *one = pool_of(1);
    cr_assert_eq(red_pool_threads(all), usable_cpus());
    cr_assert_eq(red_pool_threads(many), usable_cpus());
    cr_assert_eq(red_pool_threads(one), 1);
    red_pool_destroy(all);
    red_pool_destroy(many);
    red_pool_destroy(one);
}

Test(pool, a_cpu_taken_from_the_process_takes_its_worker)
{
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(sched_getcpu(), &first);
    cr_assert_eq(sched_setaffinity(0, sizeof first, &first), 0);
    struct red_pool *pool = pool_of(0);
    cr_assert_eq(red_pool_threads(pool), 1);
    red_pool_destroy(pool);
}

Test(pool, a_node_that_does_not_exist_is_refused)
{
    struct red_pool *pool = NULL;
    cr_assert_eq(red_pool_create(0, 1000000, &pool), -EINVAL);
    cr_assert_null(pool);
}

static cpu_set_t worker_cpus;

static void note_cpus(struct red_work *work, unsigned idx)
{
    sched_getaffinity(0, sizeof worker_cpus, &worker_cpus);
}

Test(pool, workers_pinned_to_a_node_keep_to_its_cpus)
{
    struct red_work work = {.block = note_cpus, .finish = finish_nothing, .block_count = 1};
    struct bitmask *node = numa_allocate_cpumask();
    struct red_pool *pool;
    if (numa_available() < 0 || numa_node_to_cpus(0, node) != 0 || red_pool_create(1, 0, &pool) != 0) {
        cr_skip_test("no CPU of NUMA node 0 to run on");
    }
    red_pool_submit(pool, &work);
    red_pool_destroy(pool);
    cr_assert_gt(CPU_COUNT(&worker_cpus), 0);
    for (unsigned i = 0; i < CPU_SETSIZE; i++) {
        cr_assert(!CPU_ISSET(i, &worker_cpus) || numa_bitmask_isbitset(node, i));
    }
    numa_free_cpumask(node);
}

struct meeting {
    struct red_work work;
    pthread_barrier_t all;
    atomic_uint met[CPU_SETSIZE]; /* workers that may run on this CPU and no other */
};

static void note_own_cpu(struct red_work *work, unsigned idx)
{
    struct meeting *here = UT_CONTAINER(work, struct meeting, work);
    cpu_set_t cpus;
    pthread_barrier_wait(&here->all); /* each worker has one block */
    sched_getaffinity(0, sizeof cpus, &cpus);
    if (CPU_COUNT(&cpus) == 1) {
        atomic_fetch_add(&here->met[sched_getcpu()], 1);
    }
}

Test(pool, where_there_is_a_worker_for_each_cpu_each_has_its_own, .timeout = 20)
{
    static struct meeting here;
    cpu_set_t usable;
    struct red_pool *pool = pool_of(0);
    here.work = (struct red_work){
        .block = note_own_cpu, .finish = finish_nothing, .block_count = red_pool_threads(pool)};
    pthread_barrier_init(&here.all, NULL, red_pool_threads(pool));
    red_pool_submit(pool, &here.work);
    red_pool_destroy(pool);
    sched_getaffinity(0, sizeof usable, &usable);
    for (unsigned i = 0; i < CPU_SETSIZE; i++) {
        cr_assert_eq(atomic_load(&here.met[i]), CPU_ISSET(i, &usable) ? 1 : 0, "CPU %u", i);
    }
}

/* A work of two workers on two CPUs, the caller on the first: what its worker finds of the other one. */
struct pair {
    struct red_work work;
    int cpu[2];
    atomic_int tid[2]; /* of the workers, known from the first round on */
    sem_t finished;
    atomic_bool looked;
    atomic_uint asleep; /* so often the other one had not been called yet */
};

static char state_of(int tid)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "r");
    cr_assert(file && fgets(text, sizeof text, file), "%s", path);
    fclose(file);
    return strrchr(text, ')')[2];
}

static void look_at_other(struct red_work *work, unsigned idx)
{
    struct pair *pair = UT_CONTAINER(work, struct pair, work);
    const bool beside_caller = sched_getcpu() == pair->cpu[0];
    const uint64_t until = ut_clock_ns() + 10 * UT_NS_PER_S;
    atomic_store(&pair->tid[beside_caller ? 0 : 1], gettid());
    if (beside_caller) {
        const int other = atomic_load(&pair->tid[1]);
        if (other && !atomic_load(&pair->looked) && state_of(other) == 'S') {
            atomic_fetch_add(&pair->asleep, 1);
        }
        atomic_store(&pair->looked, true);
    }
    while (!(atomic_load(&pair->looked) && atomic_load(&pair->tid[1])) && ut_clock_ns() < until) {
    }
    (void)idx;
}

static void pair_finished(struct red_work *work)
{
    sem_post(&UT_CONTAINER(work, struct pair, work)->finished);
}

/* One may sleep for a moment because the other has the lock, but then the other does not. */
static void wait_until_asleep(struct pair *pair)
{
    const int first = atomic_load(&pair->tid[0]), second = atomic_load(&pair->tid[1]);
    while (state_of(first) != 'S' || state_of(second) != 'S' || state_of(first) != 'S') {
        sched_yield();
    }
}

/* A pool with a worker on each of two CPUs, the caller on the first of them. NULL where there is only one
 * CPU. */
static struct red_pool *pool_of_two_beside(int cpu[2])
{
    cpu_set_t usable, set;
    sched_getaffinity(0, sizeof usable, &usable);
    if (CPU_COUNT(&usable) < 2) {
        return NULL;
    }
    CPU_ZERO(&set);
    for (int at = 0, found = 0; found < 2; at++) {
        if (CPU_ISSET(at, &usable)) {
            cpu[found++] = at;
            CPU_SET(at, &set);
        }
    }
    sched_setaffinity(0, sizeof set, &set);
    struct red_pool *pool = pool_of(0);
    CPU_CLR(cpu[1], &set);
    sched_setaffinity(0, sizeof set, &set);
    return pool;
}

Test(pool, the_worker_beside_the_caller_is_called_last, .timeout = 60)
{
    static struct pair pair = {.work = {.block = look_at_other, .finish = pair_finished, .block_count = 2}};
    struct red_pool *pool = pool_of_two_beside(pair.cpu);
    if (!pool) {
        cr_skip_test("one CPU only");
    }
    sem_init(&pair.finished, 0, 0);
    for (unsigned round = 0; round < 50; round++) {
        atomic_store(&pair.looked, false);
        red_pool_submit(pool, &pair.work);
        sem_wait(&pair.finished);
        wait_until_asleep(&pair);
    }
    red_pool_destroy(pool);
    cr_assert_eq(atomic_load(&pair.asleep), 0);
}

/* A work that its caller shares, on one CPU. */
struct shared {
    struct red_work work;
    int cpu, tid;       /* the caller's */
    atomic_uint beside; /* blocks that somebody else did on that CPU */
    sem_t finished;
};

static void note_who(struct red_work *work, unsigned idx)
{
    struct shared *shared = UT_CONTAINER(work, struct shared, work);
    const uint64_t until = ut_clock_ns() + 5000; /* long enough for others to come */
    if (gettid() != shared->tid && sched_getcpu() == shared->cpu) {
        atomic_fetch_add(&shared->beside, 1);
    }
    while (ut_clock_ns() < until) {
    }
    (void)idx;
}

static void shared_finished(struct red_work *work)
{
    sem_post(&UT_CONTAINER(work, struct shared, work)->finished);
}

/* Both workers still look for work, after one that was for both. */
Test(pool, the_worker_beside_who_shares_leaves_the_work_to_him, .timeout = 60)
{
    static struct pair pair = {.work = {.block = look_at_other, .finish = pair_finished, .block_count = 2}};
    static struct shared shared = {.work = {.block = note_who, .finish = shared_finished, .block_count = 8}};
    struct red_pool *pool = pool_of_two_beside(pair.cpu);
    if (!pool) {
        cr_skip_test("one CPU only");
    }
    shared.cpu = pair.cpu[0];
    shared.tid = gettid();
    sem_init(&pair.finished, 0, 0);
    sem_init(&shared.finished, 0, 0);
    const uint64_t until = ut_clock_ns() + 5 * UT_NS_PER_S; /* where processors are busy: fewer rounds */
    for (unsigned round = 0; round < 3000 && ut_clock_ns() < until; round++) {
        atomic_store(&pair.looked, false);
        red_pool_submit(pool, &pair.work);
        sem_wait(&pair.finished);
        if (!red_pool_share(pool, &shared.work)) {
            sem_wait(&shared.finished);
        }
    }
    red_pool_destroy(pool);
    cr_assert_eq(atomic_load(&shared.beside), 0);
}

static sigset_t worker_mask;

static void note_mask(struct red_work *work, unsigned idx)
{
    pthread_sigmask(SIG_SETMASK, NULL, &worker_mask);
}

Test(pool, workers_leave_signals_to_others_except_their_own_faults)
{
    struct red_work work = {.block = note_mask, .finish = finish_nothing, .block_count = 1};
    struct red_pool *pool = pool_of(1);
    red_pool_submit(pool, &work);
    red_pool_destroy(pool);
    cr_assert(sigismember(&worker_mask, SIGTERM));
    cr_assert(sigismember(&worker_mask, SIGUSR1));
    cr_assert_not(sigismember(&worker_mask, SIGBUS));
    cr_assert_not(sigismember(&worker_mask, SIGSEGV));
}

static uint64_t process_cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * UT_NS_PER_S + (uint64_t)ts.tv_nsec;
}

Test(pool, idle_workers_take_no_processor_time)
{
    struct red_pool *pool = pool_of(0);
    struct counted *counted = counted_create(10);
    red_pool_submit(pool, &counted->work);
    sem_wait(&counted->finished);
    uint64_t least_ns = UINT64_MAX; /* what a hypervisor takes counts as used, but not each time */
    for (int i = 0; i < 5 && least_ns >= 10 * UT_NS_PER_MS; i++) {
        const uint64_t before = process_cpu_ns();
        poll(NULL, 0, 300);
        const uint64_t used_ns = process_cpu_ns() - before;
        least_ns = used_ns < least_ns ? used_ns : least_ns;
    }
    cr_assert_lt(least_ns, 10 * UT_NS_PER_MS);
    red_pool_destroy(pool);
    free(counted);
}

/* ---- Giving way ---- */

/* A work whose block says under which policy it runs, and waits in it. */
struct watched {
    struct red_work work;
    sem_t started, let_go, finished;
    pid_t worker;
    int in_block, in_finish; /* policies */
};

static void start_and_hold(struct red_work *work, unsigned idx)
{
    struct watched *watched = UT_CONTAINER(work, struct watched, work);
    (void)idx;
    watched->worker = gettid();
    sem_post(&watched->started);
    sem_wait(&watched->let_go);
}

static void do_nothing(struct red_work *work, unsigned idx)
{
    (void)work, (void)idx;
}

static void note_policy(struct red_work *work)
{
    struct watched *watched = UT_CONTAINER(work, struct watched, work);
    watched->in_finish = sched_getscheduler(0);
    sem_post(&watched->finished);
}

static void note_policy_in_block(struct red_work *work, unsigned idx)
{
    (void)idx;
    UT_CONTAINER(work, struct watched, work)->in_block = sched_getscheduler(0);
}

/* Submits it to a worker of its own, and returns when that is in the block. */
static struct red_pool *begin_giving_way(struct watched *watched)
{
    struct red_pool *pool = pool_of(1);
    *watched = (struct watched){
        .work = {.block = start_and_hold, .finish = note_policy, .block_count = 1, .gives_way = true}};
    sem_init(&watched->started, 0, 0);
    sem_init(&watched->let_go, 0, 0);
    sem_init(&watched->finished, 0, 0);
    red_pool_submit(pool, &watched->work);
    sem_wait(&watched->started);
    return pool;
}

static void end_giving_way(struct red_pool *pool, struct watched *watched)
{
    sem_post(&watched->let_go);
    sem_wait(&watched->finished);
    cr_assert_eq(watched->in_finish, sched_getscheduler(0));
    red_pool_destroy(pool);
}

/* The policy of a worker that gives way, found out by a thread of its own: another one than ours where that
 * can be left again. */
static void *find_policy(void *arg)
{
    int *policy = arg;
    const struct sched_param none = {0};
    *policy = sched_getscheduler(0);
    if (*policy == SCHED_OTHER && sched_setscheduler(0, SCHED_IDLE, &none) == 0 &&
        sched_setscheduler(0, SCHED_OTHER, &none) == 0) {
        *policy = SCHED_IDLE;
    }
    return NULL;
}

static int policy_of_giving_way(void)
{
    pthread_t thread;
    int policy = -1;
    cr_assert_eq(pthread_create(&thread, NULL, find_policy, &policy), 0);
    pthread_join(thread, NULL);
    return policy;
}

/* A rank that is woken together with the worker comes first. */
Test(pool, who_gave_way_sleeps_so_until_work_comes_that_does_not, .timeout = 20)
{
    struct watched watched,
        next = {.work = {.block = note_policy_in_block, .finish = note_policy, .block_count = 1}};
    const int policy = policy_of_giving_way();
    struct red_pool *pool = begin_giving_way(&watched);
    sem_init(&next.finished, 0, 0);
    sem_post(&watched.let_go);
    sem_wait(&watched.finished);
    while (sched_getscheduler(watched.worker) != policy) {
        sched_yield();
    }
    red_pool_hurry(pool);
    cr_assert_eq(sched_getscheduler(watched.worker), sched_getscheduler(0));
    red_pool_submit(pool, &next.work);
    sem_wait(&next.finished);
    cr_assert_eq(next.in_block, sched_getscheduler(0));
    red_pool_destroy(pool);
}

Test(pool, who_gives_way_does_so_in_its_blocks_only, .timeout = 20)
{
    struct watched watched;
    const int policy = policy_of_giving_way();
    struct red_pool *pool = begin_giving_way(&watched);
    cr_assert_eq(sched_getscheduler(watched.worker), policy);
    end_giving_way(pool, &watched);
}

Test(pool, a_hurry_reaches_who_is_in_a_block, .timeout = 20)
{
    struct watched watched;
    struct red_pool *pool = begin_giving_way(&watched);
    red_pool_hurry(pool);
    cr_assert_eq(sched_getscheduler(watched.worker), sched_getscheduler(0));
    end_giving_way(pool, &watched);
}

Test(pool, a_work_that_does_not_give_way_hurries_those_before_it, .timeout = 20)
{
    struct watched watched;
    struct red_pool *pool = begin_giving_way(&watched);
    struct red_work next = {.block = do_nothing, .finish = finish_nothing, .block_count = 1};
    red_pool_submit(pool, &next);
    cr_assert_eq(sched_getscheduler(watched.worker), sched_getscheduler(0));
    end_giving_way(pool, &watched);
}

Test(pool, what_gives_way_is_complete_while_others_hurry, .timeout = 20)
{
    struct red_pool *pool = pool_of(0);
    for (unsigned i = 0; i < 200; i++) {
        struct counted *counted = counted_create(100);
        counted->work.gives_way = true;
        red_pool_submit(pool, &counted->work);
        red_pool_hurry(pool);
        sem_wait(&counted->finished);
        expect_blocks(counted);
        free(counted);
    }
    red_pool_destroy(pool);
}
