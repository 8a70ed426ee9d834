/*
 * `metrics`: the figures of stats in Prometheus' text exposition format. Each metric is one family with a
 * HELP and a TYPE line and a sample for each job.
 */
#include "fs/fs_fabric.h"
#include "fs/fs_job.h"
#include "fs/fs_memory.h"
#include "fs/fs_root.h"
#include "fs/fs_watch.h"
#include "utils/ut_clock.h"

#include <inttypes.h>
#include <stdio.h>

static void family(struct ut_text *out, const char *name, const char *type, const char *help)
{
    ut_text_addf(out, "# HELP fabricfs_%s %s\n# TYPE fabricfs_%s %s\n", name, help, name, type);
}

static void gauge(struct ut_text *out, const char *name, const char *help, uint64_t value)
{
    family(out, name, "gauge", help);
    ut_text_addf(out, "fabricfs_%s %" PRIu64 "\n", name, value);
}

static void node_metrics(struct fs *fs, struct ut_text *out)
{
    family(out, "build_info", "gauge", "Version of the daemon; always 1.");
    ut_text_addf(out, "fabricfs_build_info{version=\"%s\",buffer_mode=\"%s\",kernel=\"%s\"} 1\n", FS_VERSION,
                 fs->passthrough ? "passthrough" : "coherent", fs->table->name);
    gauge(out, "memory_limit_bytes", "Limit of all buffers together.", fs->settings->memory_bytes);
    gauge(out, "memory_used_bytes", "Bytes that buffers use, or are promised.", fs_memory_used_bytes(fs));
    family(out, "requests_total", "counter", "FUSE requests served.");
    ut_text_addf(out, "fabricfs_requests_total %" PRIu64 "\n", fs->requests);
}

/* Begins a sample of a job: `fabricfs_NAME{job="JOB"`, with a further label unless that is NULL. Jobs may be
 * thousands, so what is said of each is put together without printf. */
static void begin_sample(struct ut_text *out, const char *name, const struct coll_job *job, const char *label,
                         const char *value)
{
    ut_text_puts(out, "fabricfs_");
    ut_text_puts(out, name);
    ut_text_puts(out, "{job=\"");
    ut_text_puts(out, job->name);
    if (label) {
        ut_text_puts(out, "\",");
        ut_text_puts(out, label);
        ut_text_puts(out, "=\"");
        ut_text_puts(out, value);
    }
    ut_text_puts(out, "\"} ");
}

static void count_sample(struct ut_text *out, const char *name, const struct coll_job *job, const char *label,
                         const char *value, uint64_t count)
{
    begin_sample(out, name, job, label, value);
    ut_text_u64(out, count);
    ut_text_puts(out, "\n");
}

static void time_sample(struct ut_text *out, const char *name, const struct coll_job *job, const char *label,
                        const char *value, uint64_t ns)
{
    begin_sample(out, name, job, label, value);
    ut_text_seconds(out, ns);
    ut_text_puts(out, "\n");
}

/* A counter or gauge of each job, read by `get`. */
static void job_family(const struct fs *fs, struct ut_text *out, const char *name, const char *type,
                       const char *help, uint64_t (*get)(const struct coll_job *job))
{
    family(out, name, type, help);
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        count_sample(out, name, job->coll, NULL, NULL, get(job->coll));
    }
}

static uint64_t get_world(const struct coll_job *job)
{
    return job->config.world;
}

static uint64_t get_joined(const struct coll_job *job)
{
    return job->joined;
}

static uint64_t get_lost(const struct coll_job *job)
{
    return job->lost;
}

static uint64_t get_bytes(const struct coll_job *job)
{
    return job->stats.bytes;
}

static uint64_t get_refused(const struct coll_job *job)
{
    return job->stats.refused;
}

static void ops_family(const struct fs *fs, struct ut_text *out)
{
    family(out, "job_ops_total", "counter", "Operations that succeeded, by collective.");
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        for (unsigned kind = 0; kind < COLL_KIND_COUNT; kind++)
            count_sample(out, "job_ops_total", job->coll, "collective", coll_kind_name((enum coll_kind)kind),
                         job->coll->stats.ops[kind]);
    }
}

static void failures_family(const struct fs *fs, struct ut_text *out)
{
    family(out, "job_failed_ops_total", "counter", "Operations that failed, by reason.");
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        const struct coll_stats *stats = &job->coll->stats;
        const struct {
            const char *reason;
            uint64_t count;
        } reasons[] = {
            {"timeout", stats->timeouts},
            {"mismatch", stats->mismatches},
            {"lost", stats->lost},
            {"canceled", stats->canceled},
            {"other", stats->failed - stats->timeouts - stats->mismatches - stats->lost - stats->canceled}};
        for (unsigned i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
            count_sample(out, "job_failed_ops_total", job->coll, "reason", reasons[i].reason,
                         reasons[i].count);
    }
}

static void summary(const struct fs *fs, struct ut_text *out, const char *name, const char *help,
                    size_t offset)
{
    static const struct {
        unsigned permille;
        const char *quantile;
    } quantiles[] = {{500, "0.5"}, {900, "0.9"}, {990, "0.99"}, {999, "0.999"}};
    char sum[64], count[64];
    snprintf(sum, sizeof(sum), "%s_sum", name);
    snprintf(count, sizeof(count), "%s_count", name);
    family(out, name, "summary", help);
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        const struct ut_hist *hist = (const struct ut_hist *)((const char *)&job->coll->stats + offset);
        for (unsigned i = 0; i < sizeof(quantiles) / sizeof(quantiles[0]); i++)
            time_sample(out, name, job->coll, "quantile", quantiles[i].quantile,
                        ut_hist_permille(hist, quantiles[i].permille));
        time_sample(out, sum, job->coll, NULL, NULL, hist->sum_ns);
        count_sample(out, count, job->coll, NULL, NULL, hist->count);
    }
}

/* Edges of the histogram's buckets: two to a power of two, from 16.4 us to 68.7 s. They are edges of struct
 * ut_hist, too, so that the counts are exact. */
#define EDGE_COUNT 45u

struct edge {
    uint64_t ns;
    char label[24]; /* in seconds */
};

static void make_edges(struct edge edges[EDGE_COUNT])
{
    for (unsigned i = 0; i < EDGE_COUNT; i++) {
        uint64_t ns = (uint64_t)(2 + i % 2) << (13 + i / 2);
        edges[i].ns = ns;
        snprintf(edges[i].label, sizeof(edges[i].label), "%" PRIu64 ".%09" PRIu64, ns / UT_NS_PER_S,
                 ns % UT_NS_PER_S);
    }
}

/* The latencies once more, as Prometheus takes quantiles of any span of time from them: those of the summary
 * are since the job began, so that after a day nothing moves them any more. */
static void latency_histogram(const struct fs *fs, struct ut_text *out)
{
    struct edge edges[EDGE_COUNT];
    make_edges(edges);
    family(out, "job_request_duration_seconds", "histogram",
           "From a rank's write to its answer, for quantiles of a span of time.");
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        const struct ut_hist *hist = &job->coll->stats.latency;
        uint64_t until = 0, below_ns = 0;
        for (unsigned i = 0; i < EDGE_COUNT; below_ns = edges[i++].ns) {
            until += ut_hist_between(hist, below_ns, edges[i].ns);
            count_sample(out, "job_request_duration_seconds_bucket", job->coll, "le", edges[i].label, until);
        }
        count_sample(out, "job_request_duration_seconds_bucket", job->coll, "le", "+Inf", hist->count);
        time_sample(out, "job_request_duration_seconds_sum", job->coll, NULL, NULL, hist->sum_ns);
        count_sample(out, "job_request_duration_seconds_count", job->coll, NULL, NULL, hist->count);
    }
}

static uint64_t get_arrived_last(const struct coll_late *late)
{
    return late->arrived_last;
}

static uint64_t get_late_ns(const struct coll_late *late)
{
    return late->late_sum_ns;
}

/* A figure of each rank, as `show` writes it. */
static void rank_family(const struct fs *fs, struct ut_text *out, const char *name, const char *help,
                        uint64_t (*get)(const struct coll_late *late),
                        void (*show)(struct ut_text *, const char *, const struct coll_job *, const char *,
                                     const char *, uint64_t))
{
    char rank[12];
    family(out, name, "counter", help);
    UT_LIST_EACH(&fs->jobs, struct fs_job, link, job)
    {
        for (unsigned r = 0; job->coll->ranks && r < job->coll->config.world; r++) {
            snprintf(rank, sizeof(rank), "%u", r);
            show(out, name, job->coll, "rank", rank, get(&job->coll->ranks[r].late));
        }
    }
}

static uint64_t get_up(const struct fs_peer *peer)
{
    return peer->peer->state == NTBM_UP;
}

static uint64_t get_sessions(const struct fs_peer *peer)
{
    return peer->peer->figures.sessions;
}

static uint64_t get_put_bytes(const struct fs_peer *peer)
{
    return atomic_load(&peer->memory.link.put_bytes);
}

static uint64_t get_remote_reads(const struct fs_peer *peer)
{
    return atomic_load(&peer->memory.link.reads);
}

/* A figure of each other node; nothing on a node that is alone. */
static void peer_family(const struct fs *fs, struct ut_text *out, const char *name, const char *type,
                        const char *help, uint64_t (*get)(const struct fs_peer *peer))
{
    if (!fs->fabric)
        return;
    family(out, name, type, help);
    for (unsigned i = 0; i < (unsigned)fs->settings->nodes; i++)
        if (i != (unsigned)fs->settings->node)
            ut_text_addf(out, "fabricfs_%s{node=\"%u\"} %" PRIu64 "\n", name, i, get(&fs->fabric->peers[i]));
}

void fs_metrics_render(void *of, struct ut_text *out)
{
    struct fs *fs = of;
    node_metrics(fs, out);
    job_family(fs, out, "job_world", "gauge", "Ranks of the job.", get_world);
    job_family(fs, out, "job_joined", "gauge", "Ranks that have joined.", get_joined);
    job_family(fs, out, "job_lost", "gauge", "Ranks whose process has ended.", get_lost);
    job_family(fs, out, "job_bytes_total", "counter", "Bytes of one rank's ranges, succeeded.", get_bytes);
    job_family(fs, out, "job_refused_total", "counter", "Requests refused at once.", get_refused);
    ops_family(fs, out);
    failures_family(fs, out);
    summary(fs, out, "job_latency_seconds", "From a rank's write to its answer, since the job began.",
            offsetof(struct coll_stats, latency));
    latency_histogram(fs, out);
    summary(fs, out, "job_wait_seconds", "From the first rank to the last, since the job began.",
            offsetof(struct coll_stats, wait));
    summary(fs, out, "job_work_seconds", "From the last rank to the end, since the job began.",
            offsetof(struct coll_stats, work));
    rank_family(fs, out, "rank_arrived_last_total", "Operations in which the rank came last.",
                get_arrived_last, count_sample);
    rank_family(fs, out, "rank_late_seconds_total", "How long after the first rank it came, summed.",
                get_late_ns, time_sample);
    peer_family(fs, out, "peer_up", "gauge", "1 while the node is connected and verified.", get_up);
    peer_family(fs, out, "peer_sessions_total", "counter", "How often the node was connected.", get_sessions);
    peer_family(fs, out, "peer_put_bytes_total", "counter", "Bytes written into the node's window.",
                get_put_bytes);
    peer_family(fs, out, "peer_remote_reads_total", "counter",
                "Reads across the link: a handful when it is set up, none while data flow.",
                get_remote_reads);
    fs_watch_show_metrics(fs, out);
}
