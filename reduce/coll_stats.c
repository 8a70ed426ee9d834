#include "reduce/coll_stats.h"

#include <errno.h>

double coll_stats_bus_factor(enum coll_kind kind, unsigned member_count)
{
    double n = member_count;
    switch (kind) {
    case COLL_ALLREDUCE:
        return 2 * (n - 1) / n;
    case COLL_REDUCE_SCATTER:
    case COLL_ALLGATHER:
        return (n - 1) / n;
    default:
        return 1;
    }
}

static void count_failure(struct coll_stats *stats, int result)
{
    stats->failed++;
    stats->timeouts += result == -ETIMEDOUT;
    stats->mismatches += result == -EPROTO;
    stats->lost += result == -ECONNRESET;
    stats->canceled += result == -ECANCELED;
}

static void count_phases(struct coll_stats *stats, const struct coll_done *done, uint64_t bytes)
{
    const struct coll_phases *phases = &done->phases;
    stats->wait_ns += done->t_last - done->t_first;
    if (!phases->node_count) {
        stats->local_ns += done->t_end - done->t_start;
        return;
    }
    uint64_t busy = phases->local_ns + phases->copy_ns;
    stats->local_ns += phases->local_ns;
    stats->copy_ns += phases->copy_ns;
    stats->ring_ns += phases->ring_ns > busy ? phases->ring_ns - busy : 0;
    stats->ring_bus_bytes +=
        (uint64_t)((double)bytes * coll_stats_bus_factor(done->cmd.kind, phases->node_count));
}

static void count_success(struct coll_stats *stats, const struct coll_done *done, unsigned member_count)
{
    uint64_t bytes = coll_cmd_bytes(&done->cmd);
    stats->ops[done->cmd.kind]++;
    stats->bytes += bytes;
    ut_hist_add(&stats->wait, done->t_last - done->t_first);
    ut_hist_add(&stats->work, done->t_end - done->t_last);
    count_phases(stats, done, bytes);
    if (bytes) {
        stats->run_ns += done->t_end - done->t_start;
        stats->bus_bytes += (uint64_t)((double)bytes * coll_stats_bus_factor(done->cmd.kind, member_count));
    }
}

void coll_stats_op(struct coll_stats *stats, const struct coll_done *done, unsigned member_count)
{
    if (done->result)
        count_failure(stats, done->result);
    else
        count_success(stats, done, member_count);
    stats->trace[stats->trace_count++ % COLL_TRACE_OPS] = *done;
}
