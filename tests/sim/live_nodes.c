/*
 * Nodes in real time over real shared memory, each with a progress thread and a worker, all exchanging
 * messages and slots as fast as they can.
 *
 *     live_nodes kill N       every node is a process; N times one of them is killed or stopped, and
 * restarted; in the end all must be up live_nodes threads S    every node is a pair of threads of this
 * process, for S seconds: for ThreadSanitizer
 *
 * A torn message or slot ends the program.
 */
#include "ntbmem/ntbm_guard.h"
#include "ntbmem/ntbm_node.h"
#include "ntbmem/ntbm_random.h"
#include "utils/ut_clock.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NODES 4u
#define LANDING_BYTES (256u << 10)
#define JOBS 64u

#define MUST(cond) ((cond) ? (void)0 : give_up(#cond, __LINE__))

/* What the parent sees of a node; in memory that both share. */
struct shown {
    atomic_bool stop;
    _Atomic uint32_t up_mask;
    _Atomic uint64_t messages, slots, bytes;
};

/* Work for the worker: a slot to fill and send, or one to check and give back. */
struct job {
    bool is_out;
    struct ntbm_slot_out out;
    struct ntbm_slot_in in;
};

struct live {
    uint32_t idx;
    struct shown *shown;
    struct ntbm_node node;
    struct ntbm_mem landing;
    struct ntbm_mem_link links[NODES];
    struct ntbm_peer *peers[NODES];
    uint32_t sent[NODES], received[NODES]; /* messages of the session */
    pthread_t worker;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    struct job jobs[JOBS];
    uint32_t job_count;
    bool ends;
};

static struct shown *shown;
static pid_t parent;

__attribute__((noreturn)) static void give_up(const char *cond, int line)
{
    fprintf(stderr, "live_nodes.c:%d: not true: %s\n", line, cond);
    abort();
}

/* ---- the worker ---- */

static void do_out(struct live *live, const struct ntbm_slot_out *out)
{
    uint64_t random = ut_clock_ns();
    uint8_t user[NTBM_USER_BYTES] = {(uint8_t)ntbm_random(&random)};
    uint32_t bytes = (uint32_t)(ntbm_random(&random) % (out->max_bytes + 1));
    memset(out->data, user[0], bytes);
    ntbm_slot_send(out, bytes, user);
    atomic_fetch_add(&live->shown->bytes, bytes);
}

static void do_in(struct live *live, const struct ntbm_slot_in *in)
{
    const uint8_t *data = in->data;
    for (uint32_t i = 0; i < in->bytes; i++)
        MUST(data[i] == in->user[0]);
    ntbm_slot_done(in);
    atomic_fetch_add(&live->shown->slots, 1);
}

static bool take_job(struct live *live, struct job *job)
{
    pthread_mutex_lock(&live->lock);
    while (!live->job_count && !live->ends)
        pthread_cond_wait(&live->changed, &live->lock);
    bool is_there = live->job_count;
    if (is_there)
        *job = live->jobs[--live->job_count];
    pthread_mutex_unlock(&live->lock);
    return is_there;
}

static void *work(void *arg)
{
    struct live *live = arg;
    struct job job;
    while (take_job(live, &job)) {
        if (job.is_out)
            do_out(live, &job.out);
        else
            do_in(live, &job.in);
    }
    return NULL;
}

/* ---- the progress thread ---- */

static void on_up(void *ctx, struct ntbm_peer *peer)
{
    struct live *live = ctx;
    live->sent[peer->node] = live->received[peer->node] = 0;
    atomic_fetch_or(&live->shown->up_mask, 1u << peer->node);
}

static void on_down(void *ctx, struct ntbm_peer *peer, const char *reason)
{
    struct live *live = ctx;
    (void)reason;
    atomic_fetch_and(&live->shown->up_mask, ~(1u << peer->node));
}

static void on_message(void *ctx, struct ntbm_peer *peer, const uint8_t *bytes, uint32_t len)
{
    struct live *live = ctx;
    uint32_t number;
    MUST(len >= sizeof(number));
    memcpy(&number, bytes, sizeof(number));
    MUST(number == live->received[peer->node]++);
    for (uint32_t i = sizeof(number); i < len; i++)
        MUST(bytes[i] == (uint8_t)number);
    atomic_fetch_add(&live->shown->messages, 1);
}

static void on_event(void *ctx, struct ntbm_peer *peer, const char *text)
{
    (void)ctx, (void)peer, (void)text;
}

static const struct ntbm_peer_ops ops = {
    .on_up = on_up, .on_down = on_down, .on_message = on_message, .on_event = on_event};

/* Lock held. */
static bool offer(struct live *live, struct ntbm_peer *peer)
{
    struct job *job = &live->jobs[live->job_count];
    job->is_out = ntbm_peer_next(peer, &job->in) != 0;
    if (job->is_out && ntbm_peer_take(peer, &job->out))
        return false;
    live->job_count++;
    return true;
}

static void load(struct live *live, struct ntbm_peer *peer)
{
    uint8_t bytes[300];
    uint32_t number = live->sent[peer->node];
    uint32_t len = (uint32_t)sizeof(number) + number % (sizeof(bytes) - (uint32_t)sizeof(number));
    memset(bytes, (uint8_t)number, sizeof(bytes));
    memcpy(bytes, &number, sizeof(number));
    if (ntbm_peer_send(peer, bytes, len) == 0)
        live->sent[peer->node]++;
    pthread_mutex_lock(&live->lock);
    for (int i = 0; i < 4 && live->job_count < JOBS; i++)
        if (offer(live, peer))
            pthread_cond_signal(&live->changed);
    pthread_mutex_unlock(&live->lock);
}

static struct ntbm_uri uri_of(uint32_t idx)
{
    char text[64];
    struct ntbm_uri uri;
    snprintf(text, sizeof(text), "shm:fabricfs-live-%d-%u", parent, idx);
    MUST(ntbm_uri_parse(text, &uri, NULL) == 0);
    return uri;
}

static void start(struct live *live)
{
    char host[32];
    struct ut_err err;
    struct ntbm_node_attr attr = {.fabric = "live", .node = live->idx, .node_count = NODES};
    struct ntbm_uri own = uri_of(live->idx);
    MUST(ntbm_mem_open(&own, NTBM_LANDING, LANDING_BYTES, &live->landing, &err) == 0);
    MUST(ntbm_node_identify(&attr, host) == 0);
    attr.landing = live->landing.base;
    attr.landing_bytes = live->landing.bytes;
    MUST(ntbm_node_init(&live->node, &attr, &err) == 0);
    for (uint32_t i = 0; i < NODES; i++) {
        struct ntbm_uri uri = uri_of(i);
        ntbm_mem_link_init(&live->links[i], &uri);
        if (i != live->idx)
            MUST(ntbm_node_add(&live->node, i, &live->links[i].link, &ops, live, &live->peers[i]) == 0);
    }
    pthread_mutex_init(&live->lock, NULL);
    pthread_cond_init(&live->changed, NULL);
    MUST(pthread_create(&live->worker, NULL, work, live) == 0);
}

/* The worker first: it has to give everything back. */
static void stop(struct live *live)
{
    pthread_mutex_lock(&live->lock);
    live->ends = true;
    pthread_cond_signal(&live->changed);
    pthread_mutex_unlock(&live->lock);
    pthread_join(live->worker, NULL);
    ntbm_node_fini(&live->node);
    ntbm_mem_remove(&live->landing);
    pthread_cond_destroy(&live->changed);
    pthread_mutex_destroy(&live->lock);
}

static void *run_node(void *arg)
{
    struct live live = {.idx = (uint32_t)(uintptr_t)arg, .shown = &shown[(uintptr_t)arg]};
    start(&live);
    while (!atomic_load(&live.shown->stop)) {
        if (!ntbm_node_poll(&live.node, ut_clock_ns()))
            sched_yield();
        for (uint32_t i = 0; i < NODES; i++)
            if (i != live.idx && ntbm_peer_is_open(live.peers[i]))
                load(&live, live.peers[i]);
    }
    stop(&live);
    return NULL;
}

/* ---- the parent ---- */

static bool all_are_up(void)
{
    for (uint32_t i = 0; i < NODES; i++)
        if (atomic_load(&shown[i].up_mask) != (((1u << NODES) - 1) & ~(1u << i)))
            return false;
    return true;
}

/* All come up and stay so for a while. */
static bool come_up(uint64_t stay_ns)
{
    uint64_t now_ns = ut_clock_ns(), end_ns = now_ns + stay_ns + 15 * NTBM_LIMIT_NS, since_ns = now_ns;
    while (now_ns < end_ns && now_ns - since_ns < stay_ns) {
        usleep(5000);
        now_ns = ut_clock_ns();
        if (!all_are_up())
            since_ns = now_ns;
    }
    return now_ns - since_ns >= stay_ns;
}

static pid_t fork_node(uint32_t idx)
{
    atomic_store(&shown[idx].up_mask, 0);
    atomic_store(&shown[idx].stop, false);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    MUST(ntbm_guard_init() == 0);
    run_node((void *)(uintptr_t)idx);
    _exit(0);
}

/* Ends a node as asked for and tells whether it ended as it should. */
static bool end_node(pid_t pid, uint32_t idx, bool by_force)
{
    int status;
    if (by_force)
        kill(pid, SIGKILL);
    else
        atomic_store(&shown[idx].stop, true);
    MUST(waitpid(pid, &status, 0) == pid);
    return by_force ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0;
}

static void kill_nodes(unsigned times)
{
    pid_t pids[NODES];
    uint64_t random = ut_clock_ns();
    for (uint32_t i = 0; i < NODES; i++)
        pids[i] = fork_node(i);
    for (unsigned n = 0; n < times; n++) {
        uint32_t idx = (uint32_t)(ntbm_random(&random) % NODES);
        usleep((useconds_t)(ntbm_random(&random) % 40000));
        MUST(end_node(pids[idx], idx, n % 4));
        pids[idx] = fork_node(idx);
    }
    bool is_well = come_up(2 * NTBM_LIMIT_NS);
    for (uint32_t i = 0; i < NODES; i++)
        MUST(end_node(pids[i], i, false));
    MUST(is_well);
}

static void run_threads(unsigned seconds)
{
    pthread_t threads[NODES];
    MUST(ntbm_guard_init() == 0);
    for (uintptr_t i = 0; i < NODES; i++)
        MUST(pthread_create(&threads[i], NULL, run_node, (void *)i) == 0);
    bool is_well = come_up(seconds * NTBM_LIMIT_NS);
    for (uint32_t i = 0; i < NODES; i++)
        atomic_store(&shown[i].stop, true);
    for (uint32_t i = 0; i < NODES; i++)
        pthread_join(threads[i], NULL);
    MUST(is_well);
}

int main(int argc, char **argv)
{
    unsigned amount = argc == 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    uint64_t begin_ns = ut_clock_ns(), messages = 0, slots = 0, bytes = 0;
    parent = getpid();
    shown = mmap(NULL, sizeof(*shown) * NODES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(shown != MAP_FAILED);
    if (argc == 3 && !strcmp(argv[1], "kill"))
        kill_nodes(amount);
    else if (argc == 3 && !strcmp(argv[1], "threads"))
        run_threads(amount);
    else
        return fprintf(stderr, "usage: live_nodes kill TIMES | threads SECONDS\n"), 2;
    for (uint32_t i = 0; i < NODES; i++) {
        messages += shown[i].messages;
        slots += shown[i].slots;
        bytes += shown[i].bytes;
    }
    double seconds = (double)(ut_clock_ns() - begin_ns) / 1e9;
    printf("%.1f s: %" PRIu64 " messages, %" PRIu64 " slots, %.3f GB/s\n", seconds, messages, slots,
           (double)bytes / 1e9 / seconds);
    return 0;
}
