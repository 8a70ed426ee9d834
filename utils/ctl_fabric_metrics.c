/*
 * The file `metrics`, Prometheus' text format, as far as status, top and report want it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "utils/ctl_fabric.h"
#include "utils/ctl_fields.h"
#include "utils/ut_table.h"

#define PREFIX "fabricfs_"

/* One line: fabricfs_NAME{LABEL="VALUE",...} NUMBER. */
struct sample {
    char name[48];
    char job[65], quantile[8];
    double node, rank, le; /* -1: no such label, or no number */
    double value;
};

/* Where a figure goes. The value is added to what is there, for samples that differ in a label we do not
 * tell apart, such as the collective. */
struct metric {
    const char *name;
    enum { OF_JOB, OF_NODE, OF_RANK, OF_SPREAD, OF_BUCKET } of;
    size_t offset; /* OF_SPREAD: of the struct ctl_spread; its member follows from the quantile */
    double scale;
};

#define JOB(metric, member)                                                                         \
    {                                                                                               \
        .name = metric, .of = OF_JOB, .offset = offsetof(struct ctl_fabric_job, member), .scale = 1 \
    }
#define NODE(metric, member)                                                                          \
    {                                                                                                 \
        .name = metric, .of = OF_NODE, .offset = offsetof(struct ctl_fabric_node, member), .scale = 1 \
    }
#define RANK(metric, member, factor)                                                                       \
    {                                                                                                      \
        .name = metric, .of = OF_RANK, .offset = offsetof(struct ctl_fabric_rank, member), .scale = factor \
    }
#define SPREAD(metric, member)                                                                          \
    {.name = metric, .of = OF_SPREAD, .offset = offsetof(struct ctl_fabric_job, member), .scale = 1e6}, \
        {.name = metric "_sum",                                                                         \
         .of = OF_JOB,                                                                                  \
         .offset = offsetof(struct ctl_fabric_job, member.sum),                                         \
         .scale = 1e6},                                                                                 \
        JOB(metric "_count", member.count)

static const struct metric METRICS[] = {
    JOB("job_lost", lost),
    JOB("job_ops_total", ops),
    JOB("job_failed_ops_total", failed),
    JOB("job_refused_total", refused),
    JOB("job_bytes_total", bytes),
    SPREAD("job_latency_seconds", latency),
    {.name = "job_request_duration_seconds_bucket", .of = OF_BUCKET, .scale = 1},
    SPREAD("job_wait_seconds", wait),
    SPREAD("job_work_seconds", work),
    RANK("rank_arrived_last_total", arrived_last, 1),
    RANK("rank_late_seconds_total", late_sum_us, 1e6),
    NODE("peer_put_bytes_total", put_bytes),
    NODE("peer_sessions_total", sessions),
    NODE("link_gbytes_per_second", gbytes_s),
    NODE("link_possible_gbytes_per_second", possible_gbytes_s),
    NODE("link_data_gbytes_per_second", data_gbytes_s),
    NODE("link_degraded", degraded),
    NODE("link_errors_total", errors),
    NODE("node_suspect", suspect),
};

static void take_label(struct sample *sample, const char *name, size_t name_len, const char *value,
                       size_t len)
{
    if (name_len == 3 && !strncmp(name, "job", 3))
        ctl_fields_copy(value, len, sample->job, sizeof sample->job);
    else if (name_len == 8 && !strncmp(name, "quantile", 8))
        ctl_fields_copy(value, len, sample->quantile, sizeof sample->quantile);
    else if (name_len == 4 && !strncmp(name, "node", 4))
        ctl_fields_number(value, len, &sample->node);
    else if (name_len == 4 && !strncmp(name, "rank", 4))
        ctl_fields_number(value, len, &sample->rank);
    else if (name_len == 2 && !strncmp(name, "le", 2))
        ctl_fields_number(value, len, &sample->le);
}

/* What stands between the braces; none of our values has a quote in it. The rest of the line after them, or
 * NULL. */
static const char *take_labels(struct sample *sample, const char *at, const char *end)
{
    while (at < end && *at != '}') {
        const char *equals = memchr(at, '=', (size_t)(end - at));
        if (!equals || equals + 1 >= end || equals[1] != '"')
            return NULL;
        const char *value = equals + 2, *quote = memchr(value, '"', (size_t)(end - value));
        if (!quote)
            return NULL;
        take_label(sample, at, (size_t)(equals - at), value, (size_t)(quote - value));
        at = quote + 1 + (quote[1] == ',');
    }
    return at < end ? at + 1 : NULL;
}

static bool parse_sample(const char *line, size_t len, struct sample *sample)
{
    const char *end = line + len, *at = line + sizeof PREFIX - 1;
    *sample = (struct sample){.node = -1, .rank = -1, .le = -1};
    if (len < sizeof PREFIX || strncmp(line, PREFIX, sizeof PREFIX - 1))
        return false;
    size_t name_len = strcspn(at, "{ \n");
    ctl_fields_copy(at, name_len, sample->name, sizeof sample->name);
    at += name_len;
    if (at < end && *at == '{')
        at = take_labels(sample, at + 1, end);
    return at && at < end && *at == ' ' && ctl_fields_number(at + 1, (size_t)(end - at - 1), &sample->value);
}

static double *spread_member(struct ctl_spread *spread, const char *quantile)
{
    static const struct {
        const char *name;
        size_t offset;
    } QUANTILES[] = {{"0.5", offsetof(struct ctl_spread, p50)},
                     {"0.9", offsetof(struct ctl_spread, p90)},
                     {"0.99", offsetof(struct ctl_spread, p99)},
                     {"0.999", offsetof(struct ctl_spread, p999)}};
    size_t i = UT_TABLE_FIND(QUANTILES, quantile);
    return i == UT_TABLE_COUNT(QUANTILES) ? NULL : (double *)(void *)((char *)spread + QUANTILES[i].offset);
}

/* The next bucket, unless it is the one that holds all, or they do not ascend. */
static double *bucket_member(struct ctl_fabric_job *job, double le)
{
    double until_us = le * 1e6,
           least_us = job->bucket_count ? job->buckets[job->bucket_count - 1].until_us : 0;
    if (!(until_us > least_us) || isinf(until_us) || job->bucket_count == CTL_FABRIC_BUCKETS)
        return NULL;
    struct ctl_bucket *bucket = &job->buckets[job->bucket_count++];
    *bucket = (struct ctl_bucket){.until_us = until_us};
    return &bucket->count;
}

/* Where the sample belongs, or NULL. *job is the one of the sample before: they come job by job. */
static double *place_of(struct ctl_fabric *fabric, const struct metric *metric, const struct sample *sample,
                        struct ctl_fabric_job **job)
{
    void *object = NULL;
    if (metric->of == OF_NODE) {
        object = ctl_fabric_find_node(fabric, sample->node);
    } else {
        if (!*job || strcmp((*job)->name, sample->job))
            *job = ctl_fabric_find_job(fabric, sample->job);
        object = *job;
    }
    if (object && metric->of == OF_RANK)
        object =
            sample->rank >= 0 && sample->rank < (*job)->world ? &(*job)->ranks[(size_t)sample->rank] : NULL;
    if (!object)
        return NULL;
    if (metric->of == OF_BUCKET)
        return bucket_member(object, sample->le);
    char *at = (char *)object + metric->offset;
    return metric->of == OF_SPREAD ? spread_member((struct ctl_spread *)(void *)at, sample->quantile)
                                   : (double *)(void *)at;
}

void ctl_fabric_take_metrics(struct ctl_fabric *fabric, const char *text)
{
    struct ctl_fabric_job *job = NULL;
    const char *line;
    for (size_t len; ctl_fields_line(&text, &line, &len);) {
        struct sample sample;
        if (!parse_sample(line, len, &sample))
            continue;
        size_t i = UT_TABLE_FIND(METRICS, sample.name);
        double *at = i < UT_TABLE_COUNT(METRICS) ? place_of(fabric, &METRICS[i], &sample, &job) : NULL;
        if (at)
            *at = (*at < 0 ? 0 : *at) + sample.value * METRICS[i].scale;
    }
}
