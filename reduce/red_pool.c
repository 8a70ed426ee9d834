/*
 * One queue under one lock. A worker takes a block of the first work there, and from then on blocks of the
 * same work by one atomic step each: while it has a block that is not done the work stays. Whoever takes the
 * last one takes the work out of the queue.
 *
 * Each worker sleeps on a semaphore of its own, so that a caller chooses whom to wake. Where there is a
 * worker for each CPU, each has one of its own: the kernel would put a woken worker beside the thread that
 * wakes it when no CPU is idle in that very moment, and both would take turns while a rank that has just
 * asked leaves another CPU idle. (Measured on two CPUs, 1 MiB a rank: every time.)
 *
 * A worker gives way while it does blocks of a work: SCHED_IDLE makes the kernel put whoever wakes in its
 * place at once, and wake others on its CPU as on an idle one. It yields before each block, since one who
 * wakes together with it may have to wait until it has had more than its share. It is as all others again
 * before it touches the lock, which it would hold for long if it were put aside there (so it is for the last
 * block of all, whose taker dequeues the work). After such a work it sleeps so, too: a rank that is woken
 * beside it comes first. Each change of the policy makes the kernel forget most of what the worker has had,
 * so there are few. (Measured with a change at each block: now and then a rank waited 1.5 ms.) A hurry gives
 * its place back to a worker that was put aside.
 */
#include "reduce/red_pool.h"

#include "utils/ut_clock.h"

#include <assert.h>
#include <errno.h>
#include <numa.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <time.h>

/* How long a worker looks for work before it sleeps; and how soon after the last it must have come the time
 * before for that to be worth it. A CPU with nothing to run takes 15 to 60 us to come back on a virtual
 * machine, each time: for the worker, and for the rank there that is answered in the end. */
#define SPIN_NS 200000u

/* How long a sharing thread waits for the blocks that others still carry out before it leaves the end to
 * them: what waking it again would take. */
#define SHARE_WAIT_NS 50000u

#define SLICE_NS 100000u /* the shortest that the kernel takes */

/* The argument of sched_setattr(2); glibc before 2.41 has no name for it. */
struct sched_attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

/* Whether a worker gives way, or is about to; or did, until somebody hurried it. */
enum aside { AS_ALL, ASIDE, HURRIED };

struct worker {
    struct red_pool *pool;
    pthread_t thread;
    pid_t tid;
    struct sched_attributes as_all; /* what it is when it does not give way */
    atomic_int aside;               /* enum aside */
    sem_t call;
    struct ut_list link; /* in pool->idle until somebody takes it out to call it */
    bool spins;          /* before it sleeps */
    bool gave_way;       /* in the work it did last */
    int cpu;             /* the only one it runs on; -1: whichever of pool->cpus */
};

struct red_pool {
    pthread_mutex_t lock; /* guards the fields up to stopping; taken last */
    struct ut_list queue; /* works with blocks nobody has taken */
    struct ut_list idle;  /* workers that sleep, or are about to */
    bool stopping;
    struct bitmask *cpus; /* where workers may run */
    bool pinned;          /* that is less than where the process may */
    bool may_give_way;    /* workers can come back from it */
    atomic_uint hurries;  /* so many there have been */
    atomic_bool has_work; /* whether the queue has any; changed with the lock held */
    unsigned thread_count;
    unsigned capacity; /* of worker[] */
    struct worker worker[];
};

/* ---- A worker ---- */

/* The next block of the work, which is in the queue, or of which the caller has a block that is not done.
 * block_count when none is left. Who gets the last one dequeues the work before doing it. */
static unsigned next_block(struct red_work *work)
{
    unsigned idx = atomic_load_explicit(&work->next_idx, memory_order_relaxed);
    while (idx < work->block_count &&
           !atomic_compare_exchange_weak_explicit(&work->next_idx, &idx, idx + 1, memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
    return idx;
}

static bool is_last_block(const struct red_work *work, unsigned idx)
{
    return idx == work->block_count - 1;
}

/* Lock held. */
static void dequeue(struct red_pool *pool, struct red_work *work)
{
    ut_list_remove(&work->link);
    atomic_store_explicit(&pool->has_work, !ut_list_empty(&pool->queue), memory_order_relaxed);
}

static void dequeue_alone(struct red_pool *pool, struct red_work *work)
{
    pthread_mutex_lock(&pool->lock);
    dequeue(pool, work);
    pthread_mutex_unlock(&pool->lock);
}

/* Releases what was written before to whoever is last, and acquires the others' writes when that is us.
 * Unless it is, the work may be gone the moment we have counted down. */
static bool is_last(struct red_work *work)
{
    return atomic_fetch_sub_explicit(&work->left, 1, memory_order_acq_rel) == 1;
}

static void end_block(struct red_work *work)
{
    if (is_last(work)) {
        work->finish(work);
    }
}

static void sleep_until_called(struct worker *worker)
{
    while (sem_wait(&worker->call) != 0 && errno == EINTR) {
    }
}

static bool set_attributes(pid_t tid, struct sched_attributes attr)
{
    return syscall(SYS_sched_setattr, tid, &attr, 0) == 0;
}

static bool is_hurried(const struct worker *worker, unsigned hurries)
{
    return atomic_load(&worker->pool->hurries) != hurries;
}

static void step_back(struct worker *worker)
{
    if (atomic_load_explicit(&worker->aside, memory_order_relaxed) != AS_ALL) {
        set_attributes(0, worker->as_all);
        atomic_store(&worker->aside, AS_ALL);
    }
}

/* Unless there have been hurries since there were that many. Who hurries counts, then looks for whom it finds
 * aside; we are aside, then look at the count. So one of the two notices the other. */
static void step_aside(struct worker *worker, unsigned hurries)
{
    struct sched_attributes idle = worker->as_all;
    if (is_hurried(worker, hurries)) {
        return;
    }
    idle.policy = SCHED_IDLE;
    idle.runtime_ns = 0; /* the usual: the kernel runs first who asks for less */
    atomic_store(&worker->aside, ASIDE);
    if (!set_attributes(0, idle) || is_hurried(worker, hurries)) {
        step_back(worker);
    }
}

/* Whoever else wants the CPU has it meanwhile. */
static void look_for_work(const struct red_pool *pool, uint64_t since)
{
    while (!atomic_load_explicit(&pool->has_work, memory_order_relaxed) && ut_clock_ns() - since < SPIN_NS) {
        sched_yield();
    }
}

/* The first work in the queue with a block left that is not being shared by a thread on the worker's own CPU,
 * where they would only take turns. Lock held. */
static struct red_work *find_work(const struct worker *worker)
{
    UT_LIST_EACH(&worker->pool->queue, struct red_work, link, work)
    {
        const bool for_us = work->home < 0 || work->home != worker->cpu;
        if (for_us && atomic_load_explicit(&work->next_idx, memory_order_relaxed) < work->block_count) {
            return work;
        }
    }
    return NULL;
}

/* Once. There may be nothing when it returns: others take what has come. Lock held, but not while it waits.
 */
static void wait_for_work(struct worker *worker)
{
    struct red_pool *pool = worker->pool;
    const uint64_t since = ut_clock_ns();
    if (worker->spins && !worker->gave_way) { /* who gave way has a CPU that others want */
        pthread_mutex_unlock(&pool->lock);
        look_for_work(pool, since);
        pthread_mutex_lock(&pool->lock);
    }
    if (!find_work(worker) && !pool->stopping) {
        const unsigned hurries = atomic_load(&pool->hurries);
        ut_list_append(&pool->idle, &worker->link);
        pthread_mutex_unlock(&pool->lock);
        if (worker->gave_way) {
            step_aside(worker, hurries);
        }
        sleep_until_called(worker);
        step_back(worker);
        pthread_mutex_lock(&pool->lock);
    }
    worker->spins = ut_clock_ns() - since < SPIN_NS;
}

/* Waits for a block and takes it. False when the pool stops and nothing is left. */
static bool take_block(struct worker *worker, struct red_work **work, unsigned *idx)
{
    struct red_pool *pool = worker->pool;
    bool found = false;
    pthread_mutex_lock(&pool->lock);
    while (!found && ((*work = find_work(worker)) || !pool->stopping)) {
        if (!*work) {
            wait_for_work(worker);
            continue;
        }
        *idx = next_block(*work);
        found = *idx < (*work)->block_count;
        if (found && is_last_block(*work, *idx)) {
            dequeue(pool, *work);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return found;
}

/* A rank that wakes beside a worker runs soon instead of after the kernel's usual slice, milliseconds in
 * which a training loop would stand still after each bucket that it queues. (EEVDF's time of a request, Linux
 * 6.12; kernels before do not look at it.) */
static void ask_for_short_slices(struct worker *worker)
{
    struct sched_attributes *attr = &worker->as_all;
    if (syscall(SYS_sched_getattr, 0, attr, sizeof *attr, 0) == 0 && attr->policy == SCHED_OTHER) {
        attr->runtime_ns = SLICE_NS;
        set_attributes(0, *attr);
    }
}

/* Where it may run. When that fails we are slower, not wrong. */
static void settle(struct worker *worker)
{
    worker->tid = gettid();
    ask_for_short_slices(worker);
    if (worker->cpu >= 0) {
        struct bitmask *cpu = numa_allocate_cpumask();
        if (cpu) {
            numa_sched_setaffinity(0, numa_bitmask_setbit(cpu, (unsigned)worker->cpu));
            numa_free_cpumask(cpu);
        }
    } else if (worker->pool->pinned) {
        numa_sched_setaffinity(0, worker->pool->cpus);
    }
}

static void let_others_first(const struct worker *worker)
{
    if (atomic_load_explicit(&worker->aside, memory_order_relaxed) == ASIDE) {
        sched_yield();
    }
}

/* The block, and those of the same work that nobody else takes meanwhile. */
static void do_blocks(struct worker *worker, struct red_work *work, unsigned idx)
{
    const unsigned count = work->block_count;
    worker->gave_way = work->gives_way && worker->pool->may_give_way;
    if (worker->gave_way) {
        step_aside(worker, work->hurries);
    }
    while (idx < count) {
        let_others_first(worker);
        work->block(work, idx);
        idx = next_block(work);
        if (idx >= count - 1) {
            step_back(worker);
        }
        if (is_last_block(work, idx)) {
            dequeue_alone(worker->pool, work);
        }
        end_block(work);
    }
}

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    struct red_work *work;
    unsigned idx;
    settle(worker);
    while (take_block(worker, &work, &idx)) {
        do_blocks(worker, work, idx);
    }
    return NULL;
}

/* ---- Submitting ---- */

void red_pool_hurry(struct red_pool *pool)
{
    atomic_fetch_add(&pool->hurries, 1);
    for (unsigned i = 0; i < pool->capacity; i++) {
        struct worker *worker = &pool->worker[i];
        int aside = ASIDE;
        if (atomic_compare_exchange_strong(&worker->aside, &aside, HURRIED)) {
            set_attributes(worker->tid, worker->as_all);
        }
    }
}

/* Takes up to `wanted` idle workers out for calling. That of the caller's own CPU comes last, or not at all
 * when the caller is to stay there: it takes the caller's place the moment it is called, and those after it
 * would wait until it sleeps again. Lock held. */
static void choose(struct red_pool *pool, unsigned wanted, bool stays, struct ut_list *out)
{
    const int here = sched_getcpu();
    struct worker *own = NULL;
    ut_list_init(out);
    UT_LIST_EACH(&pool->idle, struct worker, link, worker)
    {
        if (worker->cpu >= 0 && worker->cpu == here) {
            own = worker;
        } else if (wanted > 0) {
            ut_list_remove(&worker->link);
            ut_list_append(out, &worker->link);
            wanted--;
        }
    }
    if (own && wanted > 0 && !stays) {
        ut_list_remove(&own->link);
        ut_list_append(out, &own->link);
    }
}

/* Without the lock, which they would run into at once. A worker that has been called may list itself anew. */
static void call(struct ut_list *workers)
{
    UT_LIST_EACH(workers, struct worker, link, worker)
    {
        ut_list_remove(&worker->link);
        sem_post(&worker->call);
    }
}

/* Queues the work, of which `left` things are to be done before it is finished, and wakes workers for so many
 * of its blocks; the caller may stay on its CPU to do some itself. */
static void enqueue(struct red_pool *pool, struct red_work *work, unsigned left, unsigned for_workers,
                    bool stays)
{
    const bool hurries = !work->gives_way; /* the work may be gone once it is in the queue */
    struct ut_list called;
    assert(work->block_count > 0);
    atomic_init(&work->next_idx, 0);
    work->home = stays ? sched_getcpu() : -1;
    atomic_init(&work->left, left);
    pthread_mutex_lock(&pool->lock);
    work->hurries = atomic_load(&pool->hurries);
    ut_list_append(&pool->queue, &work->link);
    atomic_store_explicit(&pool->has_work, true, memory_order_relaxed);
    choose(pool, for_workers, stays, &called);
    pthread_mutex_unlock(&pool->lock);
    if (hurries) {
        red_pool_hurry(pool); /* what is before it, and who went to sleep meanwhile */
    }
    call(&called);
}

void red_pool_submit(struct red_pool *pool, struct red_work *work)
{
    enqueue(pool, work, work->block_count, work->block_count, false);
}

static void pause_briefly(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

/* Whether nothing but the caller's own part is left of the work, within a moment. */
static bool others_end(struct red_work *work)
{
    const uint64_t until = ut_clock_ns() + SHARE_WAIT_NS;
    while (atomic_load_explicit(&work->left, memory_order_acquire) > 1) {
        if (ut_clock_ns() > until) {
            return false;
        }
        pause_briefly();
    }
    return true;
}

/* Beside its blocks the work has one part more, the caller's, which is over when this returns. */
bool red_pool_share(struct red_pool *pool, struct red_work *work)
{
    const unsigned others = pool->thread_count - 1; /* this thread is busy in place of a worker */
    const unsigned block_count = work->block_count;
    enqueue(pool, work, block_count + 1, block_count - 1 < others ? block_count - 1 : others, true);
    for (unsigned idx; (idx = next_block(work)) < block_count;) {
        if (is_last_block(work, idx)) {
            dequeue_alone(pool, work);
        }
        work->block(work, idx);
        end_block(work);
    }
    return others_end(work) || is_last(work);
}

/* ---- Starting and ending ---- */

/* Takes the CPUs that are not of the NUMA node out of cpus; all of them when there is no such node. */
static int keep_node(struct bitmask *cpus, int numa_node)
{
    struct bitmask *node = numa_allocate_cpumask();
    if (!node) {
        return -ENOMEM;
    }
    const bool known = numa_available() >= 0 && numa_node_to_cpus(numa_node, node) == 0;
    for (unsigned i = 0; i < cpus->size; i++) {
        if (!known || !numa_bitmask_isbitset(node, i)) {
            numa_bitmask_clearbit(cpus, i);
        }
    }
    numa_free_cpumask(node);
    return 0;
}

/* The CPUs this process may use, on the NUMA node when one is given. NULL without memory. */
static struct bitmask *usable_cpus(int numa_node)
{
    struct bitmask *cpus = numa_allocate_cpumask();
    if (cpus) {
        numa_sched_getaffinity(0, cpus);
        if (numa_node >= 0 && keep_node(cpus, numa_node) != 0) {
            numa_free_cpumask(cpus);
            cpus = NULL;
        }
    }
    return cpus;
}

/* The first CPU of the set after `after`, which must exist. */
static int next_cpu(const struct bitmask *cpus, int after)
{
    int cpu = after + 1;
    while (!numa_bitmask_isbitset(cpus, (unsigned)cpu)) {
        cpu++;
    }
    return cpu;
}

static int start_worker(struct red_pool *pool, int cpu)
{
    struct worker *worker = &pool->worker[pool->thread_count];
    *worker = (struct worker){.pool = pool, .cpu = cpu};
    ut_list_init(&worker->link);
    sem_init(&worker->call, 0, 0);
    const int err = pthread_create(&worker->thread, NULL, worker_main, worker);
    if (err) {
        sem_destroy(&worker->call);
        return err;
    }
    pthread_setname_np(worker->thread, "red-worker");
    pool->thread_count++;
    return 0;
}

/* On a thread of its own, which ends. */
static void *try_giving_way(void *arg)
{
    bool *can = arg;
    struct sched_attributes attr = {0}, idle;
    if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) == 0 && attr.policy == SCHED_OTHER) {
        idle = attr;
        idle.policy = SCHED_IDLE;
        *can = set_attributes(0, idle) && set_attributes(0, attr);
    }
    return NULL;
}

/* Without the right to come back (CAP_SYS_NICE, RLIMIT_NICE) a worker would stay aside for ever. */
static bool can_come_back(void)
{
    bool can = false;
    pthread_t thread;
    if (pthread_create(&thread, NULL, try_giving_way, &can) == 0) {
        pthread_join(thread, NULL);
    }
    return can;
}

/* Threads inherit the mask: signals sent to the process are for others. */
static int start_workers(struct red_pool *pool, unsigned threads)
{
    const bool one_each = threads == numa_bitmask_weight(pool->cpus);
    sigset_t blocked, was;
    sigfillset(&blocked);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGFPE);
    sigdelset(&blocked, SIGILL);
    pthread_sigmask(SIG_SETMASK, &blocked, &was);
    pool->may_give_way = can_come_back();
    int err = 0, cpu = -1;
    while (err == 0 && pool->thread_count < threads) {
        cpu = one_each ? next_cpu(pool->cpus, cpu) : -1;
        err = start_worker(pool, cpu);
    }
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    return -err;
}

int red_pool_create(unsigned threads, int numa_node, struct red_pool **out)
{
    struct bitmask *cpus = usable_cpus(numa_node);
    if (!cpus) {
        return -ENOMEM;
    }
    const unsigned cores = numa_bitmask_weight(cpus);
    if (threads == 0 || threads > cores) {
        threads = cores;
    }
    struct red_pool *pool = calloc(1, sizeof *pool + threads * sizeof pool->worker[0]);
    if (!pool) {
        numa_free_cpumask(cpus);
        return -ENOMEM;
    }
    pthread_mutex_init(&pool->lock, NULL);
    ut_list_init(&pool->queue);
    ut_list_init(&pool->idle);
    pool->cpus = cpus;
    pool->capacity = threads;
    pool->pinned = numa_node >= 0;
    const int err = cores > 0 ? start_workers(pool, threads) : -EINVAL;
    if (err) {
        red_pool_destroy(pool);
        return err;
    }
    *out = pool;
    return 0;
}

unsigned red_pool_threads(const struct red_pool *pool)
{
    return pool->thread_count;
}

/* So long from now, on the one clock that pthread_timedjoin_np knows. */
static struct timespec after(uint64_t ns)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    const uint64_t nsec = (uint64_t)at.tv_nsec + ns;
    return (struct timespec){.tv_sec = at.tv_sec + (time_t)(nsec / UT_NS_PER_S),
                             .tv_nsec = (long)(nsec % UT_NS_PER_S)};
}

/* Without a deadline: as long as it takes. */
static bool end_pool(struct red_pool *pool, const struct timespec *deadline)
{
    struct ut_list called;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    choose(pool, pool->thread_count, false, &called);
    pthread_mutex_unlock(&pool->lock);
    red_pool_hurry(pool);
    call(&called);
    for (; pool->thread_count > 0; pool->thread_count--) {
        struct worker *worker = &pool->worker[pool->thread_count - 1];
        if ((deadline ? pthread_timedjoin_np(worker->thread, NULL, deadline)
                      : pthread_join(worker->thread, NULL)) != 0) {
            return false;
        }
        sem_destroy(&worker->call);
    }
    numa_free_cpumask(pool->cpus);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
    return true;
}

void red_pool_destroy(struct red_pool *pool)
{
    end_pool(pool, NULL);
}

bool red_pool_destroy_within(struct red_pool *pool, uint64_t patience_ns)
{
    const struct timespec deadline = after(patience_ns);
    return end_pool(pool, &deadline);
}
