/*
 * A job in text: what its members, status, stats and trace files hold. Everything here only reads.
 */
#include "reduce/coll_job.h"

#include "utils/ut_clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TRACE_LINE_BYTES 320u /* more than the longest event, with numbers of 64 bits */

const char *coll_rank_state_name(enum coll_rank_state state)
{
    static const char *const names[] = {"absent", "joined", "present", "lost", "dropped"};
    return names[state];
}

void coll_job_show_members(const struct coll_job *job, struct ut_text *out)
{
    for (unsigned r = 0; r < job->config.world; r++) {
        const struct coll_rank *rank = job->ranks ? &job->ranks[r] : NULL;
        enum coll_rank_state state = rank ? rank->state : COLL_ABSENT;
        if (state == COLL_ABSENT)
            ut_text_addf(out, "rank=%u node=- pid=- state=absent last=0\n", r);
        else
            ut_text_addf(out, "rank=%u node=%u pid=%d state=%s last=%" PRIu64 "%s\n", r, rank->node,
                         (int)rank->pid, coll_rank_state_name(state), rank->last_seq,
                         coll_rank_is_suspect(rank) ? " suspect=yes" : "");
    }
}

/* The sentence in quotes; those inside it, around what a client wrote, become single ones. */
static void show_why(struct ut_err err, struct ut_text *out)
{
    for (char *c = err.text; *c; c++)
        *c = *c == '"' ? '\'' : *c;
    ut_text_addf(out, " why=\"%s\"", err.text);
}

/* ---- one operation ---- */

size_t coll_show_result(const struct coll_cmd *cmd, uint64_t seq, const struct coll_why *why,
                        uint64_t time_ns, char *out, size_t len)
{
    int used = snprintf(
        out, len, "seq=%" PRIu64 "%s%s op=%s dtype=%s count=%" PRIu64 " result=%s%s%s time_us=%" PRIu64 "\n",
        seq, cmd->tag[0] ? " tag=" : "", cmd->tag, coll_cmd_op_word(cmd), coll_dtype_name(cmd->dtype),
        cmd->count, ut_err_name(why->result), why->missing[0] ? " missing=" : "", why->missing,
        time_ns / UT_NS_PER_US);
    return used < 0 ? 0 : (size_t)used < len ? (size_t)used : len - 1;
}

static void show_status_line(const struct coll_status *line, struct ut_text *out)
{
    char result[256];
    if (line->seq && line->parsed) {
        size_t len =
            coll_show_result(&line->cmd, line->seq, &line->why, line->time_ns, result, sizeof(result));
        ut_text_addf(out, "%.*s collective=%s offset=%" PRIu64, (int)len - 1, result,
                     coll_kind_name(line->cmd.kind), line->cmd.offset);
    } else {
        ut_text_addf(out, "refused result=%s%s%s", ut_err_name(line->why.result),
                     line->why.missing[0] ? " missing=" : "", line->why.missing);
        if (line->parsed)
            ut_text_addf(out, " collective=%s", coll_kind_name(line->cmd.kind));
    }
    if (line->why.undefined)
        ut_text_addf(out, " buffer=undefined");
    if (line->why.err.text[0])
        show_why(line->why.err, out);
    ut_text_addf(out, "\n");
}

void coll_rank_show_status(const struct coll_rank *rank, struct ut_text *out)
{
    uint64_t first = rank->status_count > COLL_STATUS_LINES ? rank->status_count - COLL_STATUS_LINES : 0;
    for (uint64_t i = first; i < rank->status_count; i++)
        show_status_line(&rank->status[i % COLL_STATUS_LINES], out);
}

/* ---- figures ---- */

static void show_hist(struct ut_text *out, const char *name, const struct ut_hist *hist)
{
    static const struct {
        const char *name;
        unsigned permille;
    } marks[] = {{"p50", 500}, {"p90", 900}, {"p99", 990}, {"p99.9", 999}};
    for (unsigned i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        ut_text_addf(out, "%s_%s_us %.1f\n", name, marks[i].name,
                     (double)ut_hist_permille(hist, marks[i].permille) / 1e3);
    ut_text_addf(out, "%s_max_us %.1f\n", name, (double)hist->max_ns / 1e3);
    ut_text_addf(out, "%s_mean_us %.1f\n", name,
                 hist->count ? (double)hist->sum_ns / (double)hist->count / 1e3 : 0.0);
}

static void show_rates(const struct coll_stats *stats, struct ut_text *out)
{
    /* Bytes over nanoseconds is GB/s. */
    double run_ns = (double)stats->run_ns;
    ut_text_addf(out, "algbw_gbps %.3f\n", stats->run_ns ? (double)stats->bytes / run_ns : 0.0);
    ut_text_addf(out, "busbw_gbps %.3f\n", stats->run_ns ? (double)stats->bus_bytes / run_ns : 0.0);
}

static void show_phases(const struct coll_stats *stats, struct ut_text *out)
{
    double ring_ns = (double)(stats->ring_ns + stats->local_ns + stats->copy_ns);
    ut_text_stat(out, "phase_wait_us", stats->wait_ns / UT_NS_PER_US);
    ut_text_stat(out, "phase_local_us", stats->local_ns / UT_NS_PER_US);
    ut_text_stat(out, "phase_ring_us", stats->ring_ns / UT_NS_PER_US);
    ut_text_stat(out, "phase_copy_us", stats->copy_ns / UT_NS_PER_US);
    ut_text_addf(out, "ring_busbw_gbps %.3f\n",
                 stats->ring_bus_bytes ? (double)stats->ring_bus_bytes / ring_ns : 0.0);
}

static void show_late(const struct coll_job *job, struct ut_text *out)
{
    for (unsigned r = 0; job->ranks && r < job->config.world; r++) {
        const struct coll_late *late = &job->ranks[r].late;
        ut_text_addf(out, "rank%u_arrived_last %" PRIu64 "\n", r, late->arrived_last);
        ut_text_addf(out, "rank%u_late_sum_us %" PRIu64 "\n", r, late->late_sum_ns / UT_NS_PER_US);
        ut_text_addf(out, "rank%u_late_max_us %" PRIu64 "\n", r, late->late_max_ns / UT_NS_PER_US);
    }
}

/* The ranks that somebody waits for now, as a list. */
static void show_waiting(const struct coll_job *job, struct ut_text *out)
{
    unsigned waiting = 0, missing = 0;
    for (unsigned r = 0; job->ranks && r < job->config.world; r++)
        waiting += job->ranks[r].asking > 0;
    ut_text_stat(out, "ranks_waiting", waiting);
    ut_text_addf(out, "ranks_missing ");
    for (unsigned r = 0; waiting && ut_list_empty(&job->active) && r < job->config.world; r++) {
        const struct coll_rank *rank = &job->ranks[r];
        if (rank->state != COLL_DROPPED && !rank->asking)
            ut_text_addf(out, "%s%u", missing++ ? "," : "", r);
    }
    ut_text_addf(out, "%s\n", missing ? "" : "-");
}

/* The last operation that failed, and who was to blame. */
static void show_failed(const struct coll_job *job, struct ut_text *out)
{
    const struct coll_why *why = &job->failed_why;
    if (!job->failed_seq) {
        ut_text_addf(out, "last_failure -\n");
        return;
    }
    ut_text_addf(out, "last_failure seq=%" PRIu64 " result=%s%s%s", job->failed_seq, ut_err_name(why->result),
                 why->missing[0] ? " missing=" : "", why->missing);
    show_why(why->err, out);
    ut_text_addf(out, "\n");
}

void coll_job_show_stats(const struct coll_job *job, struct ut_text *out)
{
    const struct coll_stats *stats = &job->stats;
    ut_text_stat(out, "world", job->config.world);
    ut_text_stat(out, "members", coll_job_member_count(job));
    ut_text_stat(out, "joined", job->joined);
    ut_text_stat(out, "lost", job->lost);
    ut_text_stat(out, "epoch", job->epoch);
    for (unsigned kind = 0; kind < COLL_KIND_COUNT; kind++) {
        char name[32];
        snprintf(name, sizeof(name), "%s_ops", coll_kind_name((enum coll_kind)kind));
        ut_text_stat(out, name, stats->ops[kind]);
    }
    ut_text_stat(out, "bytes", stats->bytes);
    ut_text_stat(out, "failed_ops", stats->failed);
    ut_text_stat(out, "timeout_ops", stats->timeouts);
    ut_text_stat(out, "mismatch_ops", stats->mismatches);
    ut_text_stat(out, "lost_ops", stats->lost);
    ut_text_stat(out, "canceled_ops", stats->canceled);
    ut_text_stat(out, "refused_requests", stats->refused);
    show_rates(stats, out);
    show_phases(stats, out);
    show_hist(out, "latency", &stats->latency);
    show_hist(out, "wait", &stats->wait);
    show_hist(out, "work", &stats->work);
    show_waiting(job, out);
    show_failed(job, out);
    show_late(job, out);
}

/* ---- trace ---- */

static uint64_t trace_count(const struct coll_job *job)
{
    uint64_t count = job->stats.trace_count;
    return count < COLL_TRACE_OPS ? count : COLL_TRACE_OPS;
}

/* Every event is a line of the same length, blanks before its end: so the length of the whole is known
 * without rendering it. Ends the line that began at `start`. */
static void end_line(struct ut_text *out, size_t start, bool is_last)
{
    size_t len = out->len - start, blanks = len < TRACE_LINE_BYTES - 2 ? TRACE_LINE_BYTES - 2 - len : 0;
    ut_text_addf(out, "%*s%s\n", (int)blanks, "", is_last ? " " : ",");
}

static const char trace_head[] = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
static const char trace_tail[] = "]}\n";

/* Operations overlap; the slices in one row of a viewer must not. So each takes the first row where the one
 * before has ended; since they come in the order in which they end, nothing else is in its way there. */
static unsigned trace_row(uint64_t row_ends[COLL_TRACE_OPS], const struct coll_done *done)
{
    unsigned row = 0;
    while (row_ends[row] > done->t_first)
        row++;
    row_ends[row] = done->t_end;
    return row;
}

/* Viewers add a slice's begin and length in double precision. Eighths of a microsecond come out exact; a
 * nanosecond does not, and where one slice then seems to end in the next, viewers draw the next inside it. */
#define TRACE_STEP_NS 125u

/* Begins a slice: its begin and length are written as microseconds. */
static void begin_slice(struct ut_text *out, const char *name, unsigned row, uint64_t begin, uint64_t end)
{
    begin -= begin % TRACE_STEP_NS;
    uint64_t ns = end - end % TRACE_STEP_NS - begin;
    ut_text_addf(out,
                 "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":%u,\"ts\":%" PRIu64 ".%03u,\"dur\":%" PRIu64
                 ".%03u,\"args\":",
                 name, row, begin / UT_NS_PER_US, (unsigned)(begin % UT_NS_PER_US), ns / UT_NS_PER_US,
                 (unsigned)(ns % UT_NS_PER_US));
}

static void trace_op(const struct coll_done *done, unsigned row, struct ut_text *out, bool is_last)
{
    uint64_t waited = done->t_last ? done->t_last : done->t_end;
    size_t start = out->len;
    begin_slice(out, "wait", row, done->t_first, waited);
    ut_text_addf(out, "{\"seq\":%" PRIu64 ",\"last_rank\":%u}}", done->seq, done->last_rank);
    end_line(out, start, false);
    start = out->len;
    begin_slice(out, coll_kind_name(done->cmd.kind), row, waited, done->t_end);
    ut_text_addf(out,
                 "{\"seq\":%" PRIu64 ",\"op\":\"%s\",\"dtype\":\"%s\",\"count\":%" PRIu64
                 ",\"result\":\"%s\",\"tag\":\"%s\"}}",
                 done->seq, coll_cmd_op_word(&done->cmd), coll_dtype_name(done->cmd.dtype), done->cmd.count,
                 ut_err_name(done->result), done->cmd.tag);
    end_line(out, start, is_last);
}

void coll_job_show_trace(const struct coll_job *job, struct ut_text *out)
{
    uint64_t count = trace_count(job), first = job->stats.trace_count - count, row_ends[COLL_TRACE_OPS] = {0};
    ut_text_add(out, trace_head, sizeof(trace_head) - 1);
    size_t start = out->len;
    ut_text_addf(out, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"job %s\"}}",
                 job->name);
    end_line(out, start, !count);
    for (uint64_t i = first; i < first + count; i++) {
        const struct coll_done *done = &job->stats.trace[i % COLL_TRACE_OPS];
        trace_op(done, trace_row(row_ends, done), out, i + 1 == first + count);
    }
    ut_text_add(out, trace_tail, sizeof(trace_tail) - 1);
}

uint64_t coll_job_trace_bytes(const struct coll_job *job)
{
    return sizeof(trace_head) - 1 + (1 + 2 * trace_count(job)) * TRACE_LINE_BYTES + sizeof(trace_tail) - 1;
}
