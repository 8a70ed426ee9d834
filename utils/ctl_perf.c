#include "utils/ctl_perf.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "utils/ctl_machine.h"
#include "utils/ctl_perf_limit.h"
#include "utils/ctl_perf_rank.h"
#include "utils/ut_clock.h"
#include "utils/ut_num.h"
#include "utils/ut_order.h"

#define MOUNTS_MAX 64u
#define SIZES_MAX 64u
#define BYTES_MAX (1ull << 30)
#define ITERATIONS_MAX 1000000u

/* Figures of one size; durations in nanoseconds. */
struct row {
    uint64_t bytes, wrong, mean, p50, p99, p999, max, limit; /* limit 0: not asked for */
    unsigned iterations;
};

struct perf {
    const struct ctl_opts *opts;
    char *mounts_text, *mount[MOUNTS_MAX];
    unsigned mounts, jobs_made;
    char job[MOUNTS_MAX][PATH_MAX]; /* the job's directory in each mount */
    uint64_t size[SIZES_MAX];
    unsigned sizes;
    struct ctl_perf_plan *plan; /* shared */
    uint64_t *took;             /* shared: iterations_max of each rank */
    unsigned iterations_max;
    pid_t pid[CTL_PERF_RANKS_MAX];
    unsigned started;
    uint64_t told_ns; /* when progress was last told */
    struct row row[SIZES_MAX];
};

/* ---- what is asked for ---- */

static int take_sizes(struct perf *perf, struct ut_err *err)
{
    char text[1024], *rest = text;
    snprintf(text, sizeof text, "%s", perf->opts->perf.sizes);
    for (const char *word; (word = strsep(&rest, ","));) {
        uint64_t bytes, element = perf->plan->work.element_bytes;
        if (perf->sizes == SIZES_MAX)
            return ut_err_set(err, -EINVAL, "--sizes takes at most %u", SIZES_MAX);
        if (ut_num_bytes(word, &bytes) || bytes < element || bytes % element || bytes > BYTES_MAX)
            return ut_err_set(err, -EINVAL, "--sizes %s: a multiple of %u bytes up to 1G, K M G accepted",
                              word, (unsigned)element);
        perf->size[perf->sizes++] = bytes;
        if (bytes * perf->plan->queue > perf->plan->bytes_max)
            perf->plan->bytes_max = bytes * perf->plan->queue;
    }
    return 0;
}

static int take_mounts(struct perf *perf, struct ut_err *err)
{
    char *rest = perf->mounts_text = strdup(perf->opts->perf.mount);
    if (!rest)
        return -ENOMEM;
    for (char *word; (word = strsep(&rest, ","));) {
        char jobs[PATH_MAX];
        if (perf->mounts == MOUNTS_MAX)
            return ut_err_set(err, -EINVAL, "--mount takes at most %u", MOUNTS_MAX);
        if (snprintf(jobs, sizeof jobs, "%s/jobs", word) >= PATH_MAX / 2 || access(jobs, X_OK))
            return ut_err_set(err, -ENOENT, "%s: no fabric is mounted there (%s)", word, strerror(errno));
        perf->mount[perf->mounts++] = word;
    }
    return 0;
}

/* About as many as a second or two hold. */
static unsigned iterations_of(const struct perf *perf, uint64_t bytes)
{
    uint64_t count = (256u << 20) / bytes;
    if (perf->opts->perf.iters)
        return (unsigned)perf->opts->perf.iters;
    return count < 10 ? 10 : count > 2000 ? 2000 : (unsigned)count;
}

static void *share(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static int prepare(struct perf *perf, struct ut_err *err)
{
    const struct ctl_opts *opts = perf->opts;
    const unsigned ranks = (unsigned)opts->perf.ranks;
    struct ctl_perf_plan *plan = perf->plan = share(sizeof *plan);
    if (!plan)
        return -ENOMEM;
    int rc =
        ctl_perf_work_find(opts->perf.collective, opts->perf.dtype, opts->perf.op, ranks, &plan->work, err);
    if (rc)
        return rc;
    plan->rw = opts->perf.rw;
    plan->bind = opts->perf.bind;
    plan->queue = (unsigned)opts->perf.queue;
    plan->all = (struct ctl_perf_step){.failure = &plan->failure, .parties = ranks + 1};
    plan->ranks = (struct ctl_perf_step){.failure = &plan->failure, .parties = ranks};
    rc = take_mounts(perf, err);
    if (!rc)
        rc = take_sizes(perf, err);
    for (unsigned i = 0; !rc && i < perf->sizes; i++)
        if (iterations_of(perf, perf->size[i]) > perf->iterations_max)
            perf->iterations_max = iterations_of(perf, perf->size[i]);
    perf->took = rc ? NULL : share((size_t)ranks * perf->iterations_max * sizeof *perf->took);
    return rc ? rc : perf->took ? 0 : -ENOMEM;
}

/* ---- the job ---- */

static int write_config(const struct perf *perf, const char *job, struct ut_err *err)
{
    char path[PATH_MAX + 16], text[128];
    snprintf(path, sizeof path, "%s/config", job);
    int len = snprintf(text, sizeof text, "world=%u\ndtype=%s\ntimeout=120\n", perf->plan->work.world,
                       perf->plan->work.dtype);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int rc = fd < 0 || write(fd, text, (size_t)len) != len ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return rc ? ut_err_set(err, rc, "%s: %s", path, strerror(-rc)) : 0;
}

static int make_jobs(struct perf *perf, struct ut_err *err)
{
    for (unsigned i = 0; i < perf->mounts; i++) {
        char *job = perf->job[i];
        snprintf(job, PATH_MAX, "%s/jobs/perf-%d", perf->mount[i], (int)getpid());
        if (mkdir(job, 0777))
            return ut_err_set(err, -errno, "%s: %s", job, strerror(errno));
        perf->jobs_made++;
        int rc = write_config(perf, job, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* A rank whose process has just ended is busy until the daemon has seen that. */
static void remove_directory(const char *path)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    for (int i = 0; i < 200 && rmdir(path) && errno == EBUSY; i++)
        nanosleep(&pause, NULL);
}

static void remove_jobs(const struct perf *perf)
{
    char path[PATH_MAX + 32];
    for (unsigned r = 0; r < perf->started; r++) {
        snprintf(path, sizeof path, "%s/ranks/%u", perf->job[r % perf->mounts], r);
        remove_directory(path);
    }
    for (unsigned i = 0; i < perf->jobs_made; i++)
        remove_directory(perf->job[i]);
}

/* ---- processes ---- */

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    interrupted = number;
}

static void start_rank(struct perf *perf, unsigned number)
{
    const struct ctl_perf_rank rank = {.plan = perf->plan,
                                       .number = number,
                                       .job = perf->job[number % perf->mounts],
                                       .took_ns = perf->took + (size_t)number * perf->iterations_max};
    const pid_t parent = getpid();
    perf->pid[number] = fork();
    if (perf->pid[number] < 0) {
        ctl_perf_step_fail(&perf->plan->failure, "a rank's process cannot be started");
    } else if (perf->pid[number] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGINT, SIG_IGN);
        if (getppid() != parent)
            _exit(1);
        ctl_perf_rank_live(&rank);
    } else {
        perf->started++;
    }
}

static void tell_progress(struct perf *perf)
{
    const bool terminal = isatty(STDERR_FILENO);
    const uint64_t now = ut_clock_ns(), pause = terminal ? 1 : 10;
    char bytes[24];
    if (!perf->plan->iterations || now - perf->told_ns < pause * UT_NS_PER_S)
        return;
    perf->told_ns = now;
    ut_num_show_bytes(perf->plan->bytes, bytes);
    fprintf(stderr, "%s%s: %u of %u%s", terminal ? "\r" : "", bytes, perf->plan->finished,
            perf->plan->iterations, terminal ? " \r" : "\n");
}

/* What this process does while the ranks work. */
static void look_after(void *ctx)
{
    struct perf *perf = ctx;
    if (interrupted)
        ctl_perf_step_fail(&perf->plan->failure, "interrupted");
    siginfo_t ended = {0}; /* by itself only when all is over */
    if (!waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) && ended.si_pid &&
        (ended.si_code != CLD_EXITED || ended.si_status))
        ctl_perf_step_fail(&perf->plan->failure, "a rank's process was killed");
    tell_progress(perf);
}

static void end_ranks(struct perf *perf)
{
    for (unsigned r = 0; perf->plan->failure.state && r < perf->started; r++)
        kill(perf->pid[r], SIGKILL);
    for (unsigned r = 0; r < perf->started; r++)
        waitpid(perf->pid[r], NULL, 0);
}

/* ---- one size ---- */

/* An iteration took as long as at the rank where it took longest. Uses the times of rank 0 as its own. */
static void summarise(struct perf *perf, struct row *row)
{
    uint64_t *longest = perf->took, sum = 0;
    const unsigned count = row->iterations;
    for (unsigned r = 1; r < perf->plan->work.world; r++)
        for (unsigned i = 0; i < count; i++)
            if (perf->took[(size_t)r * perf->iterations_max + i] > longest[i])
                longest[i] = perf->took[(size_t)r * perf->iterations_max + i];
    ut_order_sort(longest, count);
    for (unsigned i = 0; i < count; i++)
        sum += longest[i];
    row->mean = sum / count;
    row->p50 = ut_order_permille(longest, count, 500);
    row->p99 = ut_order_permille(longest, count, 990);
    row->p999 = ut_order_permille(longest, count, 999);
    row->max = longest[count - 1];
    row->wrong = perf->plan->wrong;
}

static bool measure(struct perf *perf, struct row *row, uint64_t bytes)
{
    struct ctl_perf_plan *plan = perf->plan;
    *row = (struct row){.bytes = bytes, .iterations = iterations_of(perf, bytes)};
    plan->bytes = bytes;
    plan->iterations = row->iterations;
    plan->warm_ups = row->iterations / 10 + 2;
    plan->wrong = 0;
    plan->finished = 0;
    perf->told_ns = ut_clock_ns();
    if (!ctl_perf_step_wait(&plan->all, look_after, perf) ||
        !ctl_perf_step_wait(&plan->all, look_after, perf))
        return false;
    summarise(perf, row);
    if (perf->opts->perf.limit && plan->work.kind != CTL_PERF_BARRIER)
        row->limit = ctl_perf_limit_ns(plan->work.world, bytes, row->iterations < 11 ? 11 : row->iterations);
    return true;
}

/* ---- output ---- */

static void print_head(const struct perf *perf)
{
    const struct ctl_perf_plan *plan = perf->plan;
    printf("# %s through %s, %u ranks, %s, %u in flight\n", plan->work.collective, perf->opts->perf.mount,
           plan->work.world, plan->rw ? "buffers written and read" : "buffers mapped", plan->queue);
    printf("#%11s %11s %5s %5s %10s %7s %7s %6s %10s %10s %10s %10s", "size", "count", "type", "redop",
           "time", "algbw", "busbw", "#wrong", "p50", "p99", "p99.9", "max");
    printf(perf->opts->perf.limit ? " %10s %6s\n" : "\n", "limit", "p50/");
    printf("#%11s %11s %5s %5s %10s %7s %7s %6s %10s %10s %10s %10s", "(B)", "(elements)", "", "", "(us)",
           "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(us)", "(us)");
    printf(perf->opts->perf.limit ? " %10s %6s\n" : "\n", "(us)", "limit");
}

static double us(uint64_t ns)
{
    return (double)ns / 1e3;
}

/* GB/s; 0 when the clock did not move. */
static double rate(const struct row *row, double factor)
{
    return row->mean ? (double)row->bytes * factor / (double)row->mean : 0;
}

static void print_row(const struct perf *perf, const struct row *row)
{
    const struct ctl_perf_work *work = &perf->plan->work;
    printf("%12llu %11llu %5s %5s %10.1f %7.2f %7.2f %6llu %10.1f %10.1f %10.1f %10.1f",
           (unsigned long long)row->bytes, (unsigned long long)(row->bytes / work->element_bytes),
           work->dtype, work->op_name, us(row->mean), rate(row, 1), rate(row, ctl_perf_bus_factor(work)),
           (unsigned long long)row->wrong, us(row->p50), us(row->p99), us(row->p999), us(row->max));
    if (row->limit)
        printf(" %10.1f %6.2f", us(row->limit), (double)row->p50 / (double)row->limit);
    puts("");
    fflush(stdout);
}

static json_t *row_json(const struct perf *perf, const struct row *row)
{
    const struct ctl_perf_work *work = &perf->plan->work;
    json_t *json = json_pack(
        "{s:I, s:I, s:s, s:s, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "size", (json_int_t)row->bytes,
        "count", (json_int_t)(row->bytes / work->element_bytes), "type", work->dtype, "redop", work->op_name,
        "iterations", (int)row->iterations, "wrong", (json_int_t)row->wrong, "time_us", us(row->mean),
        "algbw_gbs", rate(row, 1), "busbw_gbs", rate(row, ctl_perf_bus_factor(work)), "p50_us", us(row->p50),
        "p99_us", us(row->p99), "p999_us", us(row->p999), "max_us", us(row->max));
    if (json && row->limit) {
        json_object_set_new(json, "limit_us", json_real(us(row->limit)));
        json_object_set_new(json, "ratio_to_limit", json_real((double)row->p50 / (double)row->limit));
    }
    return json;
}

static int print_json(const struct perf *perf)
{
    const struct ctl_perf_plan *plan = perf->plan;
    json_t *rows = json_array();
    for (unsigned i = 0; i < perf->sizes; i++)
        json_array_append_new(rows, row_json(perf, &perf->row[i]));
    return ctl_json_print(json_pack("{s:s, s:s, s:s, s:i, s:s, s:i, s:o}", "command", "perf", "mount",
                                    perf->opts->perf.mount, "collective", plan->work.collective, "ranks",
                                    (int)plan->work.world, "io", plan->rw ? "rw" : "mmap", "queue",
                                    (int)plan->queue, "rows", rows));
}

/* ---- all of it ---- */

/* Measures all sizes; false when it failed. */
static bool run_sizes(struct perf *perf)
{
    const bool table = !perf->opts->json;
    if (table)
        print_head(perf);
    for (unsigned i = 0; i < perf->sizes; i++) {
        if (!measure(perf, &perf->row[i], perf->size[i]))
            return false;
        if (table)
            print_row(perf, &perf->row[i]);
    }
    perf->plan->over = true;
    return ctl_perf_step_wait(&perf->plan->all, look_after, perf);
}

static enum ctl_exit verdict(const struct perf *perf, struct ut_err *err)
{
    uint64_t wrong = 0;
    for (unsigned i = 0; i < perf->sizes; i++)
        wrong += perf->row[i].wrong;
    if (perf->opts->json && print_json(perf))
        return ut_err_set(err, CTL_ERROR, "the output could not be written");
    if (wrong)
        return ut_err_set(err, CTL_FINDINGS, "%llu elements were wrong", (unsigned long long)wrong);
    return CTL_OK;
}

static enum ctl_exit run(struct perf *perf, struct ut_err *err)
{
    int rc = prepare(perf, err);
    if (!rc)
        rc = make_jobs(perf, err);
    if (rc)
        return err->text[0] ? CTL_ERROR : ut_err_set(err, CTL_ERROR, "%s", strerror(-rc));
    fflush(stdout);
    for (unsigned r = 0; r < perf->plan->work.world && !perf->plan->failure.state; r++)
        start_rank(perf, r);
    const bool good = run_sizes(perf);
    end_ranks(perf);
    if (good)
        return verdict(perf, err);
    return ut_err_set(err, CTL_ERROR, "%s", perf->plan->failure.why);
}

enum ctl_exit ctl_perf(const struct ctl_opts *opts, struct ut_err *err)
{
    struct perf *perf = calloc(1, sizeof *perf);
    if (!perf)
        return ut_err_set(err, CTL_ERROR, "%s", strerror(ENOMEM));
    perf->opts = opts;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    enum ctl_exit status = run(perf, err);
    remove_jobs(perf);
    free(perf->mounts_text);
    free(perf);
    return status;
}
