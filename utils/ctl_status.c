#include "utils/ctl_status.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "utils/ctl_fabric.h"
#include "utils/ctl_machine.h"
#include "utils/ctl_text.h"

/* ---- in words: a line for each thing, key=value ---- */

/* " key=12.3": "-" when not known, without a fraction when it has none. */
static void show_number(const char *key, double number, unsigned digits, struct ut_text *text)
{
    if (number < 0)
        ut_text_addf(text, " %s=-", key);
    else
        ut_text_addf(text, " %s=%.*f", key, number == floor(number) ? 0 : (int)digits, number);
}

static void show_word(const char *key, const char *word, struct ut_text *text)
{
    ut_text_addf(text, " %s=%s", key, *word ? word : "-");
}

/* " key="a sentence"", and nothing when there is none. */
static void show_sentence(const char *key, const char *words, struct ut_text *text)
{
    if (!*words)
        return;
    ut_text_addf(text, " %s=\"", key);
    for (; *words; words++)
        ut_text_add(text, *words == '"' ? "'" : words, 1);
    ut_text_addf(text, "\"");
}

static void show_fabric(const struct ctl_fabric *fabric, struct ut_text *text)
{
    ut_text_addf(text, "fabric %s", *fabric->name ? fabric->name : "-");
    show_number("node", fabric->node, 0, text);
    show_number("nodes", (double)fabric->node_count, 0, text);
    show_number("jobs", (double)fabric->job_count, 0, text);
    show_word("version", fabric->version, text);
    show_number("pid", fabric->pid, 0, text);
    show_number("uptime_s", fabric->uptime_s, 0, text);
    show_word("buffers", fabric->buffer_mode, text);
    show_number("memory_used_bytes", fabric->memory_used, 0, text);
    show_number("memory_limit_bytes", fabric->memory_limit, 0, text);
    ut_text_addf(text, "\n");
}

static void show_node(const struct ctl_fabric_node *node, struct ut_text *text)
{
    ut_text_addf(text, "node %.0f", node->number);
    show_word("state", node->state, text);
    show_word("host", node->host, text);
    show_word("device", node->device, text);
    show_word("hardware", node->hardware, text);
    show_number("gbytes_s", node->gbytes_s, 2, text);
    show_number("possible_gbytes_s", node->possible_gbytes_s, 2, text);
    show_number("errors", node->errors, 0, text);
    show_number("suspect", node->suspect, 0, text);
    show_number("put_bytes", node->put_bytes, 0, text);
    show_sentence("memory", node->memory, text);
    show_sentence("why", node->why, text);
    show_sentence("suspect_why", node->suspect_why, text);
    ut_text_addf(text, "\n");
}

static void show_job(const struct ctl_fabric_job *job, struct ut_text *text)
{
    int slowest = ctl_fabric_slowest(job);
    ut_text_addf(text, "job %s", job->name);
    show_number("world", job->world > 0 ? job->world : -1, 0, text);
    show_number("in", job->in, 0, text);
    show_number("lost", job->lost, 0, text);
    show_number("ops", job->ops, 0, text);
    show_number("failed_ops", job->failed, 0, text);
    show_number("p50_us", job->latency.p50, 1, text);
    show_number("p99.9_us", job->latency.p999, 1, text);
    show_number("busbw_gbps", job->busbw_gbps, 3, text);
    show_number("waiting", job->waiting, 0, text);
    show_word("missing", job->missing, text);
    show_number("slowest", slowest, 0, text);
    if (slowest >= 0) {
        const struct ctl_fabric_rank *rank = &job->ranks[slowest];
        show_number("slowest_node", rank->node, 0, text);
        show_number("slowest_pid", rank->pid, 0, text);
        show_number("arrived_last", rank->arrived_last, 0, text);
        show_number("late_mean_us", ctl_fabric_late_us(job, rank), 1, text);
        show_number("late_max_us", rank->late_max_us, 0, text);
    }
    ut_text_addf(text, "\n");
}

static void show_findings(const struct ctl_fabric *fabric, const struct ctl_style *style,
                          struct ut_text *text)
{
    for (size_t i = 0; i < fabric->finding_count; i++) {
        const struct ctl_fabric_finding *finding = &fabric->findings[i];
        const char *colour = strcmp(finding->severity, "error") ? style->yellow : style->red;
        ut_text_addf(text, "%s%s%s %s %s%s%s\n", colour, finding->severity, style->off, finding->object,
                     finding->fact, *finding->next ? "; next: " : "", finding->next);
    }
    if (fabric->files.cut)
        ut_text_addf(text, "note fabric more nodes, jobs or bytes than are read here\n");
    if (!fabric->finding_count)
        ut_text_addf(text, "%sok%s\n", style->green, style->off);
}

static int show_text(const struct ctl_fabric *fabric, const struct ctl_style *style)
{
    struct ut_text text = {0};
    show_fabric(fabric, &text);
    for (size_t i = 0; i < fabric->node_count; i++)
        show_node(&fabric->nodes[i], &text);
    for (size_t i = 0; i < fabric->job_count; i++)
        show_job(&fabric->jobs[i], &text);
    show_findings(fabric, style, &text);
    return ctl_text_print(&text);
}

/* ---- as JSON ---- */

static void set_number(json_t *object, const char *key, double number)
{
    json_t *value = number < 0 ? json_null()
                    : number == floor(number) && number < (double)(1ll << 53)
                        ? json_integer((json_int_t)number)
                        : json_real(number);
    json_object_set_new(object, key, value);
}

static void set_text(json_t *object, const char *key, const char *text)
{
    json_object_set_new(object, key, *text ? json_string(text) : json_null());
}

static json_t *node_json(const struct ctl_fabric_node *node)
{
    json_t *object = json_object();
    set_number(object, "node", node->number);
    set_text(object, "state", node->state);
    set_text(object, "why", node->why);
    set_text(object, "host", node->host);
    set_text(object, "memory", node->memory);
    set_text(object, "window", node->window);
    set_text(object, "device", node->device);
    set_text(object, "hardware", node->hardware);
    set_text(object, "bottleneck", node->bottleneck);
    set_number(object, "gbytes_s", node->gbytes_s);
    set_number(object, "possible_gbytes_s", node->possible_gbytes_s);
    set_number(object, "data_gbytes_s", node->data_gbytes_s);
    set_number(object, "errors", node->errors);
    json_object_set_new(object, "degraded",
                        node->degraded < 0 ? json_null() : json_boolean(node->degraded > 0));
    json_object_set_new(object, "suspect", node->suspect < 0 ? json_null() : json_boolean(node->suspect > 0));
    set_text(object, "suspect_why", node->suspect_why);
    set_number(object, "put_bytes", node->put_bytes);
    set_number(object, "sessions", node->sessions);
    return object;
}

static json_t *spread_json(const struct ctl_spread *spread)
{
    json_t *object = json_object();
    set_number(object, "p50", spread->p50);
    set_number(object, "p90", spread->p90);
    set_number(object, "p99", spread->p99);
    set_number(object, "p99.9", spread->p999);
    set_number(object, "max", spread->max);
    set_number(object, "mean", spread->count > 0 ? spread->sum / spread->count : -1);
    set_number(object, "count", spread->count);
    return object;
}

static json_t *rank_json(const struct ctl_fabric_job *job, size_t number)
{
    const struct ctl_fabric_rank *rank = &job->ranks[number];
    json_t *object = json_object();
    set_number(object, "rank", (double)number);
    set_number(object, "node", rank->node);
    set_number(object, "pid", rank->pid);
    set_text(object, "state", rank->state);
    set_number(object, "last", rank->last);
    json_object_set_new(object, "suspect", json_boolean(rank->suspect));
    set_number(object, "arrived_last", rank->arrived_last);
    set_number(object, "late_mean_us", ctl_fabric_late_us(job, rank));
    set_number(object, "late_max_us", rank->late_max_us);
    return object;
}

/* "1,3" as a list; "1,2,..." ends where it was cut. */
static json_t *missing_json(const char *missing)
{
    json_t *list = json_array();
    double number;
    for (size_t len; *missing; missing += len + (missing[len] == ',')) {
        len = strcspn(missing, ",");
        if (len < 5 && len && strspn(missing, "0123456789") >= len) {
            number = 0;
            for (size_t i = 0; i < len; i++)
                number = 10 * number + (missing[i] - '0');
            json_array_append_new(list, json_integer((json_int_t)number));
        }
    }
    return list;
}

static json_t *job_json(const struct ctl_fabric_job *job)
{
    json_t *object = json_object(), *ranks = json_array();
    set_text(object, "job", job->name);
    json_object_set_new(object, "open", json_boolean(job->open));
    set_number(object, "world", job->world > 0 ? job->world : -1);
    set_number(object, "in", job->in);
    set_number(object, "lost", job->lost);
    set_number(object, "ops", job->ops);
    set_number(object, "failed_ops", job->failed);
    set_number(object, "refused_requests", job->refused);
    set_number(object, "bytes", job->bytes);
    set_number(object, "memory_used_bytes", job->memory_used);
    set_number(object, "algbw_gbps", job->algbw_gbps);
    set_number(object, "busbw_gbps", job->busbw_gbps);
    json_object_set_new(object, "latency_us", spread_json(&job->latency));
    json_object_set_new(object, "wait_us", spread_json(&job->wait));
    json_object_set_new(object, "work_us", spread_json(&job->work));
    set_number(object, "waiting", job->waiting);
    json_object_set_new(object, "missing", missing_json(job->missing));
    set_text(object, "last_failure", job->last_failure);
    set_number(object, "slowest", ctl_fabric_slowest(job));
    for (size_t r = 0; r < (size_t)job->world; r++)
        json_array_append_new(ranks, rank_json(job, r));
    json_object_set_new(object, "ranks", ranks);
    return object;
}

static json_t *findings_json(const struct ctl_fabric *fabric)
{
    json_t *list = json_array();
    for (size_t i = 0; i < fabric->finding_count; i++) {
        const struct ctl_fabric_finding *finding = &fabric->findings[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s}", "severity", finding->severity, "object",
                                              finding->object, "fact", finding->fact, "next", finding->next));
    }
    return list;
}

static int show_json(const struct ctl_fabric *fabric, const char *mount)
{
    json_t *head = json_object(), *nodes = json_array(), *jobs = json_array();
    set_text(head, "command", "status");
    set_text(head, "mount", mount);
    json_object_set_new(head, "complete", json_boolean(!fabric->files.cut));
    set_text(head, "fabric", fabric->name);
    set_text(head, "version", fabric->version);
    set_number(head, "node", fabric->node);
    set_number(head, "pid", fabric->pid);
    set_number(head, "uptime_s", fabric->uptime_s);
    set_text(head, "buffer_mode", fabric->buffer_mode);
    set_text(head, "kernel", fabric->kernel);
    set_number(head, "memory_used_bytes", fabric->memory_used);
    set_number(head, "memory_limit_bytes", fabric->memory_limit);
    for (size_t i = 0; i < fabric->node_count; i++)
        json_array_append_new(nodes, node_json(&fabric->nodes[i]));
    for (size_t i = 0; i < fabric->job_count; i++)
        json_array_append_new(jobs, job_json(&fabric->jobs[i]));
    json_object_set_new(head, "nodes", nodes);
    json_object_set_new(head, "jobs", jobs);
    json_object_set_new(head, "findings", findings_json(fabric));
    return ctl_json_print(head);
}

enum ctl_exit ctl_status(const struct ctl_opts *opts, struct ut_err *err)
{
    struct ctl_want want = {.mount = opts->mount, .timeout_ns = opts->timeout_ns};
    struct ctl_style style = ctl_style_of(opts->colour);
    struct ctl_fabric fabric;
    if (ctl_fabric_load(&want, &fabric, err))
        return CTL_ERROR;
    int rc = opts->json ? show_json(&fabric, opts->mount) : show_text(&fabric, &style);
    enum ctl_exit status = fabric.finding_count ? CTL_FINDINGS : CTL_OK;
    ctl_fabric_fini(&fabric);
    if (rc)
        return ut_err_set(err, CTL_ERROR, "%s", strerror(-rc));
    return status;
}
