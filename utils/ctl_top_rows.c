/*
 * Rates: what each job did between two snapshots. Nothing here knows the terminal.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utils/ctl_top.h"
#include "utils/ut_clock.h"

static const struct ctl_top_row *row_of(const struct ctl_top *top, const char *name)
{
    for (size_t i = 0; i < top->now.job_count && top->rows; i++)
        if (!strcmp(top->rows[i].job->name, name))
            return &top->rows[i];
    return NULL;
}

/* The rank that was late for longest between the two; over all time where nothing was done in between. */
static void find_slowest(struct ctl_top_row *row, const struct ctl_fabric_job *before)
{
    const struct ctl_fabric_job *job = row->job;
    double arrivals = ctl_fabric_arrivals(job) - ctl_fabric_arrivals(before), most = 0;
    row->slowest = -1;
    for (size_t r = 0; arrivals > 0 && r < (size_t)job->world && r < (size_t)before->world; r++) {
        double late = job->ranks[r].late_sum_us - before->ranks[r].late_sum_us;
        if (late > most) {
            most = late;
            row->slowest = (int)r;
            row->late_us = late / arrivals;
        }
    }
}

static void add_sample(struct ctl_top_row *row, double us)
{
    if (row->samples == CTL_TOP_SAMPLES) {
        memmove(row->latency_us, row->latency_us + 1, sizeof row->latency_us - sizeof *row->latency_us);
        row->samples--;
    }
    row->latency_us[row->samples++] = us;
}

/* What that share of the requests between the two took at most. Within a bucket they are taken to be spread
 * evenly, as Prometheus' histogram_quantile takes them. -1 when there were none. */
static double find_share(const struct ctl_fabric_job *job, const struct ctl_fabric_job *before, double share)
{
    double wanted = (job->latency.count - before->latency.count) * share, from_us = 0, seen = 0;
    if (!job->bucket_count || job->bucket_count != before->bucket_count || !(wanted > 0))
        return -1;
    for (size_t i = 0; i < job->bucket_count; i++) {
        double until_us = job->buckets[i].until_us, until = job->buckets[i].count - before->buckets[i].count;
        if (until >= wanted)
            return from_us + (until_us - from_us) * (wanted - seen) / (until - seen);
        from_us = until_us;
        seen = until;
    }
    return from_us; /* longer than any bucket */
}

static void compare(struct ctl_top_row *row, const struct ctl_top_row *old, double seconds)
{
    const struct ctl_fabric_job *job = row->job, *before = old->job;
    double requests = job->latency.count - before->latency.count;
    memcpy(row->latency_us, old->latency_us, sizeof row->latency_us);
    row->samples = old->samples;
    if (seconds <= 0 || job->ops < before->ops || requests < 0 || job->bytes < before->bytes)
        return; /* another job of that name */
    row->ops_s = (job->ops - before->ops) / seconds;
    row->gbytes_s = (job->bytes - before->bytes) / seconds / 1e9;
    row->p50_us = find_share(job, before, 0.5);
    row->p999_us = find_share(job, before, 0.999);
    add_sample(row, requests > 0 ? (job->latency.sum - before->latency.sum) / requests : -1);
    find_slowest(row, before);
}

static void make_row(struct ctl_top_row *row, const struct ctl_fabric_job *job)
{
    *row = (struct ctl_top_row){
        .job = job, .ops_s = -1, .gbytes_s = -1, .p50_us = -1, .p999_us = -1, .slowest = -1, .late_us = -1};
}

int ctl_top_take(struct ctl_top *top, struct ctl_fabric *fabric, uint64_t now_ns)
{
    struct ctl_top_row *rows = calloc(fabric->job_count + 1, sizeof *rows);
    double seconds = (double)(now_ns - top->now_ns) / (double)UT_NS_PER_S;
    if (!rows)
        return -ENOMEM;
    for (size_t i = 0; i < fabric->job_count; i++) {
        const struct ctl_top_row *old = row_of(top, fabric->jobs[i].name);
        make_row(&rows[i], &fabric->jobs[i]);
        if (old)
            compare(&rows[i], old, seconds);
        if (rows[i].slowest < 0 && (rows[i].slowest = ctl_fabric_slowest(rows[i].job)) >= 0)
            rows[i].late_us = ctl_fabric_late_us(rows[i].job, &rows[i].job->ranks[rows[i].slowest]);
    }
    free(top->rows);
    ctl_fabric_fini(&top->now);
    top->now = *fabric;
    top->rows = rows;
    top->now_ns = now_ns;
    *fabric = (struct ctl_fabric){0};
    ctl_top_order(top);
    return 0;
}

/* ---- order ---- */

static double key_of(const struct ctl_top_row *row, enum ctl_top_sort sort)
{
    switch (sort) {
    case CTL_TOP_OPS:
        return row->ops_s;
    case CTL_TOP_P50:
        return row->p50_us;
    case CTL_TOP_P999:
        return row->p999_us;
    case CTL_TOP_GBYTES:
        return row->gbytes_s;
    case CTL_TOP_LATE:
        return row->late_us;
    default:
        return 0;
    }
}

/* Figures from the greatest on, names from A on; the name decides between equals. */
static int compare_rows(const void *a, const void *b, void *of)
{
    const struct ctl_top *top = of;
    const struct ctl_top_row *x = a, *y = b;
    double first = key_of(x, top->sort), second = key_of(y, top->sort);
    int order = (first < second) - (first > second);
    if (!order)
        order = strcmp(x->job->name, y->job->name);
    return top->reverse ? -order : order;
}

static size_t picked_idx(const struct ctl_top *top)
{
    for (size_t i = 0; i < top->now.job_count; i++)
        if (!strcmp(top->rows[i].job->name, top->picked))
            return i;
    return 0;
}

void ctl_top_pick(struct ctl_top *top, long further)
{
    size_t count = top->now.job_count;
    if (!count)
        return;
    long idx = (long)picked_idx(top) + further;
    idx = idx < 0 ? 0 : idx >= (long)count ? (long)count - 1 : idx;
    snprintf(top->picked, sizeof top->picked, "%s", top->rows[idx].job->name);
}

void ctl_top_order(struct ctl_top *top)
{
    size_t idx = picked_idx(top);
    bool is_there = idx < top->now.job_count && !strcmp(top->rows[idx].job->name, top->picked);
    qsort_r(top->rows, top->now.job_count, sizeof *top->rows, compare_rows, top);
    if (!is_there && top->view != CTL_TOP_RANKS)
        ctl_top_pick(top, 0);
}

const struct ctl_top_row *ctl_top_picked(const struct ctl_top *top)
{
    return row_of(top, top->picked);
}

void ctl_top_fini(struct ctl_top *top)
{
    free(top->rows);
    top->rows = NULL;
    ctl_fabric_fini(&top->now);
    ctl_trace_fini(&top->trace);
}
