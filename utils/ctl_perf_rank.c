#include "utils/ctl_perf_rank.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "utils/ut_clock.h"
#include "utils/ut_text.h"

/* In step with the others, before and after, where filling and comparing large buffers would be measured:
 * where ranks share a core, the one would delay others' beginning and the other their waking. Small
 * operations are their own barrier, one after the other. */
#define STEP_BYTES (256u << 10)

struct live {
    const struct ctl_perf_rank *rank;
    struct ctl_perf_plan *plan;
    struct ctl_perf_pattern pattern;
    int buffer_fd, trigger_fd;
    char *map;                            /* the buffer, or in rw mode memory of our own */
    char command[CTL_PERF_QUEUE_MAX][96]; /* one for each operation in flight */
    size_t command_len[CTL_PERF_QUEUE_MAX];
};

static void path_of(const struct live *live, const char *name, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/ranks/%u%s%s", live->rank->job, live->rank->number, *name ? "/" : "", name);
}

/* Appends the last line of the rank's status, which says why something failed. */
static void add_status(const struct live *live, struct ut_text *out)
{
    char path[PATH_MAX], text[1024];
    path_of(live, "status", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END), most = (off_t)sizeof text - 1;
    ssize_t got = fd < 0 ? 0 : pread(fd, text, sizeof text - 1, end > most ? end - most : 0);
    if (fd >= 0)
        close(fd);
    while (got > 0 && text[got - 1] == '\n')
        got--;
    text[got > 0 ? got : 0] = '\0';
    char *line = strrchr(text, '\n');
    if (*text)
        ut_text_addf(out, "; %s", line ? line + 1 : text);
}

static _Noreturn void fail(const struct live *live, const char *what)
{
    struct ut_text why = {0};
    ut_text_addf(&why, "rank %u: %s: %s", live->rank->number, what, strerror(errno));
    add_status(live, &why);
    ctl_perf_step_fail(&live->plan->failure, ut_text_failed(&why) ? what : why.bytes);
    _exit(1);
}

/* ---- joining ---- */

/* Where it fails the kernel places the process, as without. */
static void bind_to_cpu(unsigned number)
{
    cpu_set_t usable, own;
    if (sched_getaffinity(0, sizeof usable, &usable))
        return;
    unsigned skip = number % (unsigned)CPU_COUNT(&usable);
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &usable) || skip--)
        cpu++;
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    sched_setaffinity(0, sizeof own, &own);
}

static int open_file(const struct live *live, const char *name, int flags)
{
    char path[PATH_MAX];
    path_of(live, name, path);
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0)
        fail(live, path);
    return fd;
}

/* Every page is there and entered before anything is measured. */
static void map_buffer(struct live *live)
{
    const size_t bytes = live->plan->bytes_max;
    const int flags = live->plan->rw ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    live->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, live->plan->rw ? -1 : live->buffer_fd, 0);
    if (live->map == MAP_FAILED)
        fail(live, "mapping the buffer");
    memset(live->map, 0, bytes);
}

static void join(struct live *live)
{
    char path[PATH_MAX];
    if (live->plan->bind)
        bind_to_cpu(live->rank->number);
    path_of(live, "", path);
    if (mkdir(path, 0777))
        fail(live, path);
    live->buffer_fd = open_file(live, "buffer", O_RDWR);
    if (ftruncate(live->buffer_fd, (off_t)live->plan->bytes_max))
        fail(live, "setting the length of the buffer");
    map_buffer(live);
    live->trigger_fd =
        open_file(live, live->plan->work.collective, O_RDWR | (live->plan->queue > 1 ? O_NONBLOCK : 0));
    ctl_perf_pattern_make(&live->plan->work, live->rank->number, &live->pattern);
}

/* ---- one operation, or as many as are in flight ---- */

static uint64_t count_of(const struct live *live)
{
    return live->plan->bytes / live->plan->work.element_bytes;
}

static void write_commands(struct live *live)
{
    const struct ctl_perf_work *work = &live->plan->work;
    for (unsigned i = 0; i < live->plan->queue; i++) {
        char *line = live->command[i];
        int len = work->kind == CTL_PERF_BARRIER
                      ? snprintf(line, sizeof live->command[i], "\n")
                      : snprintf(line, sizeof live->command[i], "dtype=%s op=%s count=%llu offset=%llu\n",
                                 work->dtype, work->op_name, (unsigned long long)count_of(live),
                                 (unsigned long long)(i * live->plan->bytes));
        live->command_len[i] = (size_t)len;
    }
}

static void fill(struct live *live)
{
    for (unsigned i = 0; i < live->plan->queue; i++)
        ctl_perf_fill(&live->plan->work, &live->pattern, live->map + i * live->plan->bytes, count_of(live));
}

static void check(struct live *live)
{
    uint64_t wrong = 0;
    for (unsigned i = 0; i < live->plan->queue; i++)
        wrong += ctl_perf_count_wrong(&live->plan->work, live->rank->number,
                                      live->map + i * live->plan->bytes, count_of(live));
    live->plan->wrong += wrong;
}

static void ask(struct live *live, unsigned i)
{
    if (write(live->trigger_fd, live->command[i], live->command_len[i]) != (ssize_t)live->command_len[i])
        fail(live, live->plan->work.collective);
}

/* Takes one result line of those that are in flight. */
static void collect(struct live *live)
{
    struct pollfd wait = {.fd = live->trigger_fd, .events = POLLIN};
    char line[512];
    if (poll(&wait, 1, -1) < 0)
        fail(live, "poll");
    ssize_t got = read(live->trigger_fd, line, sizeof line - 1);
    if (got <= 0)
        fail(live, "reading a result");
    line[got] = '\0';
    if (!strstr(line, " result=ok")) {
        errno = EIO;
        fail(live, line);
    }
}

static void move(struct live *live, ssize_t (*call)(int, void *, size_t, off_t), const char *what)
{
    const size_t bytes = live->plan->bytes * live->plan->queue;
    for (size_t done = 0; done < bytes;) {
        ssize_t moved = call(live->buffer_fd, live->map + done, bytes - done, (off_t)done);
        if (moved <= 0)
            fail(live, what);
        done += (size_t)moved;
    }
}

static ssize_t put(int fd, void *bytes, size_t len, off_t at)
{
    return pwrite(fd, bytes, len, at);
}

static void operate(struct live *live)
{
    if (live->plan->rw)
        move(live, put, "writing the buffer");
    for (unsigned i = 0; i < live->plan->queue; i++)
        ask(live, i);
    for (unsigned i = 0; live->plan->queue > 1 && i < live->plan->queue; i++)
        collect(live);
    if (live->plan->rw)
        move(live, pread, "reading the buffer");
}

/* ---- all iterations of a size ---- */

static void meet(const struct live *live)
{
    if (live->plan->bytes > STEP_BYTES && !ctl_perf_step_wait(&live->plan->ranks, NULL, NULL))
        _exit(1);
}

/* Nanoseconds of one operation; data are stored before, and compared after, outside of what is measured. */
static uint64_t iterate(struct live *live)
{
    fill(live);
    meet(live);
    const uint64_t start = ut_clock_ns();
    operate(live);
    const uint64_t took = ut_clock_ns() - start;
    meet(live);
    check(live);
    return took / live->plan->queue;
}

static void measure(struct live *live)
{
    write_commands(live);
    for (unsigned i = 0; i < live->plan->warm_ups; i++)
        iterate(live);
    for (unsigned i = 0; i < live->plan->iterations; i++) {
        live->rank->took_ns[i] = iterate(live);
        if (live->rank->number == 0)
            live->plan->finished++;
    }
}

void ctl_perf_rank_live(const struct ctl_perf_rank *rank)
{
    static struct live live;
    live = (struct live){.rank = rank, .plan = rank->plan};
    join(&live);
    while (ctl_perf_step_wait(&rank->plan->all, NULL, NULL) && !rank->plan->over) {
        measure(&live);
        if (!ctl_perf_step_wait(&rank->plan->all, NULL, NULL))
            break;
    }
    close(live.trigger_fd); /* it leaves, and is not lost */
    _exit(0);
}
