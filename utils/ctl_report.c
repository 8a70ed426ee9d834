#include "utils/ctl_report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "utils/ctl_fields.h"
#include "utils/ctl_html.h"
#include "utils/ctl_text.h"
#include "utils/ctl_units.h"

#define RANKS_FIRST 32u /* shown without unfolding */
#define EVENTS_MAX 200u

struct report {
    const struct ctl_fabric *fabric;
    const struct ctl_fabric_job *job;
    struct ctl_trace trace;
    struct ut_text *out;
};

static const char STYLE[] =
    ":root{--ink:#1c2330;--soft:#5b6675;--line:#dfe4ea;--paper:#fff;--wait:#c3cfdd;--work:#2a6f97;--total:#"
    "e08e45;"
    "--ring:#61a5c2;--copy:#a9d6e5;--bad:#c1292e;--good:#e6f2ea;--doubt:#fff1d0}\n"
    "body{margin:0;background:#f4f6f8;color:var(--ink);font:15px/1.5 system-ui,sans-serif}\n"
    "main{max-width:960px;margin:24px auto;padding:28px 36px;background:var(--paper);border-radius:10px;"
    "box-shadow:0 1px 4px #0002}\n"
    "h1{font-size:26px;margin:0}h2{font-size:18px;margin:34px 0 8px;padding-top:14px;border-top:1px solid "
    "var(--line)}\n"
    "p{margin:8px 0}.soft{color:var(--soft)}.note{color:var(--soft);font-size:13px}\n"
    ".tiles{display:flex;flex-wrap:wrap;gap:10px;margin:18px 0}\n"
    ".tiles div{flex:1 1 120px;padding:10px 14px;border:1px solid var(--line);border-radius:8px}\n"
    ".tiles b{display:block;font-size:22px;line-height:1.3}.tiles span{color:var(--soft);font-size:13px}\n"
    "table{border-collapse:collapse;width:100%;font-size:14px}\n"
    "th{text-align:left;font-weight:600;color:var(--soft);font-size:13px}\n"
    "th,td{padding:4px 12px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}\n"
    ".n{text-align:right;font-variant-numeric:tabular-nums}\n"
    "th.w{width:30%}.bar{display:block;height:12px;margin-top:5px;background:var(--total);border-radius:2px}"
    "\n"
    ".finding{padding:8px 12px;margin:8px 0;border-left:4px solid #d9a400;background:var(--doubt)}\n"
    ".finding.error{border-color:var(--bad);background:#fbe9e9}.ok{border-color:#2f8f5b;background:var(--"
    "good)}\n"
    ".error b,b.error,td.error,tr.lost td{color:var(--bad)}\n"
    "svg{display:block;width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:var(--ink)}\n"
    "svg .axis{fill:var(--soft)}svg .name{font-weight:600}svg .label{font-size:11px}svg .light{fill:#fff}\n"
    ".grid{stroke:var(--line);fill:none}.wait{fill:var(--wait);background:var(--wait)}\n"
    ".work{fill:var(--work);background:var(--work)}.total{fill:var(--total);background:var(--total)}\n"
    ".ring-part{fill:var(--ring);background:var(--ring)}.copy{fill:var(--copy);background:var(--copy)}\n"
    ".bad{fill:var(--bad);background:var(--bad)}.bad-line{stroke:var(--bad);stroke-width:2;fill:none}\n"
    ".way{fill:none;stroke:var(--ring);stroke-width:3}rect.good{fill:var(--good);stroke:#2f8f5b}\n"
    "rect.doubt{fill:var(--doubt);stroke:#d9a400}rect.bad{stroke:var(--bad);fill:#fbe9e9}\n"
    ".legend span{margin-right:18px;font-size:13px;white-space:nowrap}\n"
    ".legend "
    "i{display:inline-block;width:12px;height:12px;margin-right:6px;border-radius:2px;vertical-align:-1px}\n"
    "code{font:13px ui-monospace,monospace;white-space:nowrap}pre code{white-space:pre}details{margin:8px "
    "0}summary{cursor:pointer;color:var(--soft)}\n"
    "@media print{body{background:#fff}main{box-shadow:none;margin:0;padding:0}}\n";

/* ---- what it is ---- */

static unsigned nodes_of(const struct ctl_fabric_job *job)
{
    unsigned nodes = 0;
    for (size_t r = 0; r < (size_t)job->world; r++) {
        bool is_first = job->ranks[r].node >= 0;
        for (size_t s = 0; is_first && s < r; s++)
            is_first = job->ranks[s].node != job->ranks[r].node;
        nodes += is_first;
    }
    return nodes;
}

static bool is_emulated(const struct ctl_fabric *fabric)
{
    for (size_t i = 0; i < fabric->node_count; i++)
        if (strcmp(fabric->nodes[i].state, "self") && !strncmp(fabric->nodes[i].memory, "emulated", 8))
            return true;
    return false;
}

static void show_head(const struct report *r)
{
    char when[40];
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &utc);
    ut_text_addf(r->out,
                 "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
                 "content=\"width=device-width\">\n<title>Job ");
    ctl_html_add(r->out, r->job->name);
    ut_text_addf(r->out, "</title>\n<style>\n%s</style>\n<main>\n<h1>Job ", STYLE);
    ctl_html_add(r->out, r->job->name);
    ut_text_addf(r->out, "</h1>\n<p class=\"soft\">");
    ctl_html_addf(r->out, "Fabric %s, as node %.0f of %zu saw it on %s; fabricfs %s.", r->fabric->name,
                  r->fabric->node, r->fabric->node_count, when, r->fabric->version);
    if (is_emulated(r->fabric))
        ut_text_addf(r->out, " <b>The links between its nodes are emulated on one machine: their speed says "
                             "nothing about hardware.</b>");
    ut_text_addf(r->out, "</p>\n");
}

static void tile(const struct report *r, const char *figure, const char *what)
{
    ut_text_addf(r->out, "<div>");
    ctl_html_tag(r->out, "b", figure);
    ctl_html_tag(r->out, "span", what);
    ut_text_addf(r->out, "</div>\n");
}

static void show_tiles(const struct report *r)
{
    const struct ctl_fabric_job *job = r->job;
    char text[64], in[CTL_UNITS_CHARS];
    ut_text_addf(r->out, "<div class=\"tiles\">\n");
    snprintf(text, sizeof text, "%s of %.0f", ctl_units_count(job->in, in), job->world);
    tile(r, text, "ranks are in");
    tile(r, ctl_units_count(job->ops, text), "operations");
    tile(r, ctl_units_count(job->failed, text), "failed");
    tile(r, ctl_units_us(job->latency.p50, text), "half take at most");
    tile(r, ctl_units_us(job->latency.p999, text), "999 of 1000 take at most");
    snprintf(text, sizeof text, "%s GB/s", ctl_units_count(job->busbw_gbps, in));
    tile(r, text, "bus bandwidth while data move");
    ut_text_addf(r->out, "</div>\n");
}

static void say_slowest(const struct report *r)
{
    const struct ctl_fabric_job *job = r->job;
    int slowest = ctl_fabric_slowest(job);
    char mean[CTL_UNITS_CHARS], most[CTL_UNITS_CHARS];
    if (slowest < 0)
        return;
    const struct ctl_fabric_rank *rank = &job->ranks[slowest];
    ut_text_addf(r->out, " ");
    ctl_html_addf(
        r->out,
        "Rank %d (node %.0f, process %.0f) keeps the others waiting for longest: it came last in %.0f of "
        "%.0f operations, %s after the first rank on the mean, %s at most.",
        slowest, rank->node, rank->pid, rank->arrived_last, ctl_fabric_arrivals(job),
        ctl_units_us(ctl_fabric_late_us(job, rank), mean), ctl_units_us(rank->late_max_us, most));
}

static void show_summary(const struct report *r)
{
    const struct ctl_fabric_job *job = r->job;
    double both = job->wait.sum + job->work.sum;
    unsigned nodes = nodes_of(job);
    ut_text_addf(r->out, "<p>");
    ctl_html_addf(r->out, "%.0f ranks on %u node%s.", job->world, nodes, nodes == 1 ? "" : "s");
    if (job->wait.sum >= 0 && both > 0)
        ctl_html_addf(r->out,
                      " Of the time of its operations %.0f %% is waiting for the last rank, the rest work.",
                      100 * job->wait.sum / both);
    say_slowest(r);
    ut_text_addf(r->out, "</p>\n");
    if (*job->missing) {
        ut_text_addf(r->out, "<p>");
        ctl_html_addf(r->out, "At the moment %.0f ranks wait for rank %s.", job->waiting, job->missing);
        ut_text_addf(r->out, "</p>\n");
    }
    if (*job->last_failure) {
        ut_text_addf(r->out, "<p class=\"finding error\"><b>Last failure:</b> ");
        ctl_html_add(r->out, job->last_failure);
        ut_text_addf(r->out, "</p>\n");
    }
}

/* ---- time ---- */

static void spread_row(const struct report *r, const char *what, const struct ctl_spread *spread)
{
    const double figures[] = {spread->p50, spread->p90,
                              spread->p99, spread->p999,
                              spread->max, spread->count > 0 ? spread->sum / spread->count : -1};
    char text[CTL_UNITS_CHARS];
    ut_text_addf(r->out, "<tr>");
    ctl_html_tag(r->out, "td", what);
    for (unsigned i = 0; i < sizeof figures / sizeof figures[0]; i++)
        ut_text_addf(r->out, "<td class=\"n\">%s</td>", ctl_units_us(figures[i], text));
    ut_text_addf(r->out, "</tr>\n");
}

static void show_time(const struct report *r)
{
    ut_text_addf(r->out, "<h2>Time</h2>\n<table><tr><th></th><th class=\"n\">P50</th><th class=\"n\">P90</th>"
                         "<th class=\"n\">P99</th><th class=\"n\">P99.9</th><th class=\"n\">most</th>"
                         "<th class=\"n\">mean</th></tr>\n");
    spread_row(r, "from a rank's write to its answer", &r->job->latency);
    spread_row(r, "waiting: from the first rank to the last", &r->job->wait);
    spread_row(r, "working: from the last rank to the end", &r->job->work);
    ut_text_addf(r->out, "</table>\n");
    if (r->job->phase_wait_us > 0 || r->job->phase_local_us > 0) {
        ut_text_addf(r->out, "<p>Where the time of all operations went, on this node:</p>\n");
        ctl_report_phases(r->job, r->out);
    }
}

static void show_trace(const struct report *r)
{
    ut_text_addf(r->out, "<h2>The last operations</h2>\n");
    if (!r->trace.count) {
        ut_text_addf(r->out, "<p>There were none yet.</p>\n");
        return;
    }
    ut_text_addf(
        r->out,
        "<p>What each of the last %zu took. <span class=\"legend\"><span><i class=\"total\"></i>from the "
        "first rank to the end</span> <span><i class=\"work\"></i>from the last rank to the end</span> "
        "<span><b class=\"error\">&times;</b> failed</span></span></p>\n",
        r->trace.count);
    ctl_report_latency(&r->trace, r->out);
    ut_text_addf(r->out,
                 "<p>The very last on a time line, with their numbers; one below the other where they "
                 "overlap. <span class=\"legend\"><span><i class=\"wait\"></i>waiting</span> "
                 "<span><i class=\"work\"></i>working</span> <span><i class=\"bad\"></i>failed</span>"
                 "</span></p>\n");
    ctl_report_timeline(&r->trace, r->out);
}

/* ---- ranks ---- */

static int by_lateness(const void *a, const void *b)
{
    const struct ctl_fabric_rank *x = *(const struct ctl_fabric_rank *const *)a,
                                 *y = *(const struct ctl_fabric_rank *const *)b;
    int order = (x->late_sum_us < y->late_sum_us) - (x->late_sum_us > y->late_sum_us);
    return order ? order : (x > y) - (x < y);
}

static void rank_row(const struct report *r, const struct ctl_fabric_rank *rank, double longest_us)
{
    char mean[CTL_UNITS_CHARS], most[CTL_UNITS_CHARS], node[CTL_UNITS_CHARS], last[CTL_UNITS_CHARS];
    double arrivals = ctl_fabric_arrivals(r->job), late = ctl_fabric_late_us(r->job, rank);
    ut_text_addf(r->out, "<tr%s><td class=\"n\">%zu</td><td class=\"n\">%s</td><td class=\"n\">%.0f</td>",
                 strcmp(rank->state, "lost") ? "" : " class=\"lost\"", (size_t)(rank - r->job->ranks),
                 ctl_units_count(rank->node, node), rank->pid > 0 ? rank->pid : 0);
    ut_text_addf(r->out, "<td>");
    ctl_html_addf(r->out, "%s%s", *rank->state ? rank->state : "-",
                  rank->suspect ? ", on a suspect node" : "");
    ut_text_addf(r->out, "</td><td class=\"n\">%s</td><td class=\"n\">%.0f %%</td><td class=\"n\">%s</td>",
                 ctl_units_count(rank->last, last),
                 arrivals > 0 && rank->arrived_last > 0 ? 100 * rank->arrived_last / arrivals : 0,
                 ctl_units_us(late, mean));
    ut_text_addf(
        r->out, "<td class=\"n\">%s</td><td><span class=\"bar\" style=\"width:%.1f%%\"></span></td></tr>\n",
        ctl_units_us(rank->late_max_us, most), longest_us > 0 && late > 0 ? 100 * late / longest_us : 0);
}

static void rank_table(const struct report *r, const struct ctl_fabric_rank **order, size_t count,
                       double longest_us)
{
    ut_text_addf(
        r->out,
        "<table><tr><th class=\"n\">rank</th><th class=\"n\">node</th><th class=\"n\">process</th>"
        "<th>state</th><th class=\"n\">last operation</th><th class=\"n\">came last</th>"
        "<th class=\"n\">late (mean)</th><th class=\"n\">late (most)</th><th class=\"w\"></th></tr>\n");
    for (size_t i = 0; i < count; i++)
        rank_row(r, order[i], longest_us);
    ut_text_addf(r->out, "</table>\n");
}

static void show_ranks(const struct report *r)
{
    size_t world = (size_t)r->job->world, first = world < RANKS_FIRST ? world : RANKS_FIRST;
    const struct ctl_fabric_rank **order = calloc(world + 1, sizeof(*order));
    ut_text_addf(r->out, "<h2>Ranks, the latest first</h2>\n");
    if (!order) {
        r->out->failed = true;
        return;
    }
    for (size_t i = 0; i < world; i++)
        order[i] = &r->job->ranks[i];
    qsort(order, world, sizeof(*order), by_lateness);
    double longest_us = world ? ctl_fabric_late_us(r->job, order[0]) : 0;
    rank_table(r, order, first, longest_us);
    if (world > first) {
        ut_text_addf(r->out, "<details><summary>%zu more</summary>\n", world - first);
        rank_table(r, order + first, world - first, longest_us);
        ut_text_addf(r->out, "</details>\n");
    }
    free(order);
}

/* ---- nodes, findings, events, settings ---- */

static void node_row(const struct report *r, const struct ctl_fabric_node *node)
{
    char now[CTL_UNITS_CHARS], possible[CTL_UNITS_CHARS], errors[CTL_UNITS_CHARS], bytes[CTL_UNITS_CHARS];
    const char *about = ctl_fabric_about(node);
    ut_text_addf(r->out, "<tr><td class=\"n\">%.0f</td><td%s>", node->number,
                 ctl_fabric_is_up(node) ? "" : " class=\"error\"");
    ctl_html_addf(r->out, "%s%s%s", node->state, node->suspect > 0 ? ", suspect" : "",
                  node->degraded > 0 ? ", degraded" : "");
    ut_text_addf(r->out, "</td>");
    ctl_html_tag(r->out, "td", *node->host ? node->host : "-");
    ut_text_addf(
        r->out,
        "<td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%s</td>",
        ctl_units_count(node->gbytes_s, now), ctl_units_count(node->possible_gbytes_s, possible),
        ctl_units_count(node->errors, errors), ctl_units_bytes(node->put_bytes, bytes));
    ctl_html_tag(r->out, "td", about);
    ut_text_addf(r->out, "</tr>\n");
}

static void show_nodes(const struct report *r)
{
    ut_text_addf(r->out, "<h2>Nodes and links</h2>\n");
    ctl_report_ring(r->fabric, r->job, r->out);
    ut_text_addf(
        r->out,
        "<table><tr><th class=\"n\">node</th><th>state</th><th>host</th><th class=\"n\">GB/s now</th>"
        "<th class=\"n\">possible</th><th class=\"n\">PCIe errors</th><th class=\"n\">written to it</th>"
        "<th>link</th></tr>\n");
    for (size_t i = 0; i < r->fabric->node_count; i++)
        node_row(r, &r->fabric->nodes[i]);
    ut_text_addf(r->out, "</table>\n<p class=\"note\">GB/s and errors are of the PCIe path, as registers and "
                         "counters say; - where there is no device or nothing is known.</p>\n");
}

/* Findings about other jobs are no concern of who gets this. */
static bool is_ours(const struct report *r, const char *object)
{
    return strncmp(object, "jobs/", 5) || !strcmp(object + 5, r->job->name);
}

static void show_findings(const struct report *r)
{
    unsigned count = 0;
    ut_text_addf(r->out, "<h2>Health</h2>\n");
    for (size_t i = 0; i < r->fabric->finding_count; i++) {
        const struct ctl_fabric_finding *finding = &r->fabric->findings[i];
        if (!is_ours(r, finding->object))
            continue;
        count++;
        ut_text_addf(r->out, "<p class=\"finding%s\"><b>",
                     strcmp(finding->severity, "error") ? "" : " error");
        ctl_html_addf(r->out, "%s %s:", finding->severity, finding->object);
        ut_text_addf(r->out, "</b> ");
        ctl_html_add(r->out, finding->fact);
        if (*finding->next)
            ut_text_addf(r->out, "<br><span class=\"soft\">Next: ");
        ctl_html_add(r->out, finding->next);
        ut_text_addf(r->out, "%s</p>\n", *finding->next ? "</span>" : "");
    }
    if (!count)
        ut_text_addf(r->out, "<p class=\"finding ok\">Nothing is to be said against the fabric.</p>\n");
}

/* "TIME SEVERITY OBJECT TEXT": whether the object is this job. */
static bool is_event_of(const struct report *r, const char *line, size_t len)
{
    char object[80];
    size_t time_len = strcspn(line, " \n"), severity = time_len + (time_len < len);
    size_t severity_len = strcspn(line + severity, " \n"), at = severity + severity_len + 1;
    snprintf(object, sizeof object, "jobs/%s", r->job->name);
    return at < len && strcspn(line + at, " \n") == strlen(object) &&
           !strncmp(line + at, object, strlen(object));
}

static void event_row(const struct report *r, const char *line, size_t len)
{
    size_t time_len = strcspn(line, " "), severity_len = strcspn(line + time_len + 1, " ");
    size_t rest = time_len + severity_len + 2 + strlen("jobs/") + strlen(r->job->name);
    char severity[16];
    ctl_fields_copy(line + time_len + 1, severity_len, severity, sizeof severity);
    ut_text_addf(r->out, "<tr><td><code>");
    ctl_html_addf(r->out, "%.*s", (int)time_len, line);
    ut_text_addf(r->out, "</code></td><td%s>", strcmp(severity, "info") ? " class=\"error\"" : "");
    ctl_html_add(r->out, severity);
    ut_text_addf(r->out, "</td><td>");
    if (rest < len)
        ctl_html_addf(r->out, "%.*s", (int)(len - rest), line + rest);
    ut_text_addf(r->out, "</td></tr>\n");
}

static void show_events(const struct report *r)
{
    const char *text = ctl_files_text(&r->fabric->files, "events"), *line;
    size_t count = 0, idx = 0, len;
    for (const char *at = text; ctl_fields_line(&at, &line, &len);)
        count += is_event_of(r, line, len);
    ut_text_addf(r->out, "<h2>Events</h2>\n");
    if (count > EVENTS_MAX)
        ut_text_addf(r->out, "<p class=\"note\">The last %u of %zu.</p>\n", EVENTS_MAX, count);
    ut_text_addf(r->out, "<table>\n");
    while (ctl_fields_line(&text, &line, &len))
        if (is_event_of(r, line, len) && idx++ + EVENTS_MAX >= count)
            event_row(r, line, len);
    ut_text_addf(r->out, "</table>\n");
}

static void show_config(const struct report *r)
{
    char path[96];
    snprintf(path, sizeof path, "jobs/%s/config", r->job->name);
    ut_text_addf(r->out, "<details><summary>Settings of the job, and of this node</summary>\n<pre><code>");
    ctl_html_add(r->out, ctl_files_text(&r->fabric->files, path));
    ut_text_addf(r->out, "\n");
    ctl_html_add(r->out, ctl_files_text(&r->fabric->files, "stats"));
    ut_text_addf(r->out,
                 "</code></pre></details>\n<p class=\"note\">Written by fabricctl report. Figures are of all "
                 "operations since the job was made, but for the pictures of the last ones.</p>\n</main>\n"
                 "</html>\n");
}

/* ---- all of it ---- */

static void render(const struct report *r)
{
    show_head(r);
    show_tiles(r);
    show_summary(r);
    show_time(r);
    show_trace(r);
    show_ranks(r);
    show_nodes(r);
    show_findings(r);
    show_events(r);
    show_config(r);
}

/* Writes the text to the file, or to standard output when path is NULL, and frees it. */
static int write_out(struct ut_text *text, const char *path, struct ut_err *err)
{
    FILE *file = path ? fopen(path, "we") : stdout;
    int rc = ut_text_failed(text) ? -ENOMEM : !file ? -errno : 0;
    if (!rc && (fwrite(text->bytes, 1, text->len, file) != text->len || fflush(file)))
        rc = -errno;
    if (path && file && fclose(file) && !rc)
        rc = -errno;
    ut_text_fini(text);
    return rc ? ut_err_set(err, rc, "%s: %s", path ? path : "the output", strerror(-rc)) : 0;
}

static int find_job(const struct ctl_fabric *fabric, const struct ctl_opts *opts, struct report *r,
                    struct ut_err *err)
{
    char path[96];
    r->fabric = fabric;
    r->job = ctl_fabric_find_job(fabric, opts->job);
    if (!r->job)
        return ut_err_set(err, -ENOENT, "there is no job %s at %s; fabricctl status lists them", opts->job,
                          opts->mount);
    if (!r->job->open)
        return ut_err_set(err, -EACCES, "the job %s is another user's: this user may not read it", opts->job);
    snprintf(path, sizeof path, "jobs/%s/trace", r->job->name);
    int rc = ctl_trace_parse(ctl_files_text(&fabric->files, path), &r->trace);
    return rc ? ut_err_set(err, rc, "%s/%s: this is no trace", opts->mount, path) : 0;
}

enum ctl_exit ctl_report(const struct ctl_opts *opts, struct ut_err *err)
{
    struct ctl_want want = {
        .mount = opts->mount, .timeout_ns = opts->timeout_ns, .job = opts->job, .events = true};
    struct ctl_fabric fabric;
    struct ut_text text = {0};
    struct report report = {.out = &text};
    if (!opts->output && isatty(STDOUT_FILENO))
        return ut_err_set(err, CTL_ERROR, "a report is HTML: give a file, -o %s.html", opts->job);
    if (ctl_fabric_load(&want, &fabric, err))
        return CTL_ERROR;
    int rc = find_job(&fabric, opts, &report, err);
    if (!rc) {
        render(&report);
        rc = write_out(&text, opts->output, err);
    }
    ctl_trace_fini(&report.trace);
    ctl_fabric_fini(&fabric);
    return rc ? CTL_ERROR : CTL_OK;
}
