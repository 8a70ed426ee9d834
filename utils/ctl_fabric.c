#include "utils/ctl_fabric.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utils/ctl_fields.h"
#include "utils/ut_table.h"

/* ---- tables ---- */

#define NUMBER(member) CTL_FIELD_NUMBER(struct OBJECT, member)
#define NAMED(text, member)                                     \
    {                                                           \
        .name = text, .offset = offsetof(struct OBJECT, member) \
    }
#define TEXT(member) CTL_FIELD_TEXT(struct OBJECT, member)

#define OBJECT ctl_fabric
static const struct ctl_field ROOT_FIELDS[] = {
    {.name = "fabric",
     .offset = offsetof(struct ctl_fabric, name),
     .size = sizeof(((struct ctl_fabric *)0)->name)},
    NUMBER(node),
    NUMBER(pid),
    NUMBER(uptime_s),
    TEXT(buffer_mode),
    TEXT(kernel),
    NAMED("memory_limit_bytes", memory_limit),
    NAMED("memory_used_bytes", memory_used),
};
#undef OBJECT

#define OBJECT ctl_fabric_node
static const struct ctl_field LINK_FIELDS[] = {
    TEXT(state),    TEXT(why),         TEXT(host),   TEXT(memory),     TEXT(window),
    TEXT(hardware), TEXT(suspect_why), TEXT(device), TEXT(bottleneck),
};
#undef OBJECT

#define OBJECT ctl_fabric_job
static const struct ctl_field JOB_FIELDS[] = {
    NUMBER(algbw_gbps),
    NUMBER(busbw_gbps),
    NUMBER(phase_wait_us),
    NUMBER(phase_local_us),
    NUMBER(phase_ring_us),
    NUMBER(phase_copy_us),
    TEXT(last_failure),
    NAMED("ranks_waiting", waiting),
    NAMED("latency_max_us", latency.max),
    NAMED("wait_max_us", wait.max),
    NAMED("work_max_us", work.max),
    NAMED("memory_used_bytes", memory_used),
    {.name = "ranks_missing",
     .offset = offsetof(struct ctl_fabric_job, missing),
     .size = sizeof(((struct ctl_fabric_job *)0)->missing)},
};
#undef OBJECT

static void take(const char *text, const struct ctl_field *table, size_t count, void *object)
{
    ctl_fields_take(text, table, count, object);
}

#define TAKE(text, table, object) take((text), (table), UT_TABLE_COUNT(table), (object))

/* A text whose value is "-" is one that is not known. */
static void forget_dash(char *text)
{
    if (!strcmp(text, "-"))
        text[0] = '\0';
}

static const struct ctl_spread NO_SPREAD = {-1, -1, -1, -1, -1, -1, -1};

/* What has never happened has not taken 0 us. */
static void forget_nothing(struct ctl_spread *spread)
{
    if (spread->count == 0)
        *spread = (struct ctl_spread){-1, -1, -1, -1, -1, 0, 0};
}

/* ---- nodes ---- */

static const char *text_of(const struct ctl_fabric *fabric, const char *directory, const char *name,
                           const char *file)
{
    char path[96];
    snprintf(path, sizeof path, "%s/%s/%s", directory, name, file);
    return ctl_files_text(&fabric->files, path);
}

static void build_node(struct ctl_fabric *fabric, const char *name)
{
    struct ctl_fabric_node *node = &fabric->nodes[fabric->node_count++];
    *node = (struct ctl_fabric_node){.gbytes_s = -1,
                                     .possible_gbytes_s = -1,
                                     .data_gbytes_s = -1,
                                     .errors = -1,
                                     .degraded = -1,
                                     .suspect = -1,
                                     .put_bytes = -1,
                                     .sessions = -1};
    ctl_fields_number(name, strlen(name), &node->number);
    TAKE(text_of(fabric, "nodes", name, "link"), LINK_FIELDS, node);
    if (!strcmp(node->device, "none"))
        node->device[0] = '\0';
    if (!node->state[0])
        snprintf(node->state, sizeof node->state, "?");
}

static int by_number(const void *a, const void *b)
{
    double x = ((const struct ctl_fabric_node *)a)->number, y = ((const struct ctl_fabric_node *)b)->number;
    return (x > y) - (x < y);
}

/* ---- jobs ---- */

/* "rank=0 node=0 pid=7 state=present last=9 suspect=yes" */
static void take_member(struct ctl_fabric_job *job, const char *line, size_t len)
{
    struct ctl_fabric_rank seen = {.node = -1, .pid = -1, .last = -1}, *rank;
    double number = -1;
    for (const char *end = line + len; line < end; line++) {
        size_t word = strcspn(line, " \n"), name = strcspn(line, "= \n");
        const char *value = line + name + 1;
        size_t value_len = name < word ? word - name - 1 : 0;
        if (name == 4 && !strncmp(line, "rank", 4))
            ctl_fields_number(value, value_len, &number);
        else if (name == 4 && !strncmp(line, "node", 4))
            ctl_fields_number(value, value_len, &seen.node);
        else if (name == 3 && !strncmp(line, "pid", 3))
            ctl_fields_number(value, value_len, &seen.pid);
        else if (name == 4 && !strncmp(line, "last", 4))
            ctl_fields_number(value, value_len, &seen.last);
        else if (name == 5 && !strncmp(line, "state", 5))
            ctl_fields_copy(value, value_len, seen.state, sizeof seen.state);
        else if (name == 7 && !strncmp(line, "suspect", 7))
            seen.suspect = true;
        line += word;
    }
    if (number < 0 || number >= job->world)
        return;
    rank = &job->ranks[(size_t)number];
    seen.arrived_last = rank->arrived_last;
    seen.late_sum_us = rank->late_sum_us;
    seen.late_max_us = rank->late_max_us;
    *rank = seen;
}

/* "rank3_late_max_us 72778" */
static void take_late(struct ctl_fabric_job *job, const char *text)
{
    const char *line;
    for (size_t len; ctl_fields_line(&text, &line, &len);) {
        static const char tail[] = "_late_max_us ";
        if (len < 4 || strncmp(line, "rank", 4))
            continue;
        size_t digits = strspn(line + 4, "0123456789");
        double number;
        if (!ctl_fields_number(line + 4, digits, &number) || number >= job->world ||
            strncmp(line + 4 + digits, tail, sizeof tail - 1))
            continue;
        size_t skip = 4 + digits + sizeof tail - 1;
        ctl_fields_number(line + skip, len - skip, &job->ranks[(size_t)number].late_max_us);
    }
}

static int make_ranks(struct ctl_fabric_job *job, double world)
{
    if (!(world >= 1 && world <= CTL_FABRIC_WORLD_MAX))
        return 0;
    job->ranks = calloc((size_t)world, sizeof *job->ranks);
    if (!job->ranks)
        return -ENOMEM;
    job->world = (double)(size_t)world;
    for (size_t r = 0; r < (size_t)world; r++)
        job->ranks[r] = (struct ctl_fabric_rank){
            .node = -1, .pid = -1, .last = -1, .arrived_last = -1, .late_sum_us = -1, .late_max_us = -1};
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct ctl_fabric_job *)a)->name, ((const struct ctl_fabric_job *)b)->name);
}

/* The world of a job: a job that cannot be entered has it in metrics only. */
static double world_of(const struct ctl_fabric *fabric, const char *name, const char *stats)
{
    static const struct ctl_field field[] = {{.name = "world"}};
    char label[128];
    double world = 0;
    ctl_fields_take(stats, field, 1, &world);
    snprintf(label, sizeof label, "\nfabricfs_job_world{job=\"%s\"} ", name);
    const char *at = world > 0 ? NULL : strstr(ctl_files_text(&fabric->files, "metrics"), label);
    if (at)
        ctl_fields_number(at + strlen(label), strcspn(at + strlen(label), "\n"), &world);
    return world;
}

static int build_job(struct ctl_fabric *fabric, const char *name)
{
    struct ctl_fabric_job *job = &fabric->jobs[fabric->job_count];
    const char *stats = text_of(fabric, "jobs", name, "stats"),
               *members = text_of(fabric, "jobs", name, "members");
    *job = (struct ctl_fabric_job){.in = -1,
                                   .lost = -1,
                                   .ops = -1,
                                   .failed = -1,
                                   .refused = -1,
                                   .bytes = -1,
                                   .memory_used = -1,
                                   .waiting = -1,
                                   .algbw_gbps = -1,
                                   .busbw_gbps = -1,
                                   .phase_wait_us = -1,
                                   .phase_local_us = -1,
                                   .phase_ring_us = -1,
                                   .phase_copy_us = -1,
                                   .latency = NO_SPREAD,
                                   .wait = NO_SPREAD,
                                   .work = NO_SPREAD};
    snprintf(job->name, sizeof job->name, "%.64s", name);
    if (make_ranks(job, world_of(fabric, name, stats)))
        return -ENOMEM;
    fabric->job_count++;
    job->open = *stats && *members;
    TAKE(stats, JOB_FIELDS, job);
    forget_dash(job->missing);
    forget_dash(job->last_failure);
    take_late(job, stats);
    const char *line;
    for (size_t len; ctl_fields_line(&members, &line, &len);)
        take_member(job, line, len);
    for (size_t r = 0; job->open && r < (size_t)job->world; r++)
        job->in = (job->in < 0 ? 0 : job->in) +
                  (!strcmp(job->ranks[r].state, "joined") || !strcmp(job->ranks[r].state, "present"));
    return 0;
}

/* ---- findings ---- */

/* "warn nodes/1 is absent: ...; next: start its daemon" */
static void take_finding(struct ctl_fabric *fabric, const char *line, size_t len)
{
    struct ctl_fabric_finding *finding = &fabric->findings[fabric->finding_count];
    const char *end = line + len, *next = end;
    size_t severity = strcspn(line, " \n");
    const char *object = line + severity + (severity < len);
    size_t object_len = strcspn(object, " \n");
    const char *fact = object + object_len + (object + object_len < end);
    if (len == 2 && !strncmp(line, "ok", 2))
        return;
    for (const char *at = fact; at + 8 <= end && next == end; at++)
        if (!strncmp(at, "; next: ", 8))
            next = at;
    *finding = (struct ctl_fabric_finding){.severity = ""};
    ctl_fields_copy(line, severity, finding->severity, sizeof finding->severity);
    ctl_fields_copy(object, object_len, finding->object, sizeof finding->object);
    ctl_fields_copy(fact, (size_t)(next - fact), finding->fact, sizeof finding->fact);
    if (next < end)
        ctl_fields_copy(next + 8, (size_t)(end - next - 8), finding->next, sizeof finding->next);
    fabric->finding_count++;
}

static int build_findings(struct ctl_fabric *fabric)
{
    const char *text = ctl_files_text(&fabric->files, "health"), *line;
    size_t lines = 1;
    for (const char *at = text; *at; at++)
        lines += *at == '\n';
    fabric->findings = calloc(lines, sizeof *fabric->findings);
    if (!fabric->findings)
        return -ENOMEM;
    for (size_t len; ctl_fields_line(&text, &line, &len);)
        if (len)
            take_finding(fabric, line, len);
    return 0;
}

/* ---- all of it ---- */

/* The name of a file's directory, when the path is DIRECTORY/NAME/FILE and can be read or is hidden. */
static bool name_of(const struct ctl_file *file, const char *directory, const char *last, char name[65])
{
    size_t len = strlen(directory);
    const char *slash = strrchr(file->path, '/');
    if (strncmp(file->path, directory, len) || !slash || slash <= file->path + len ||
        strcmp(slash + 1, last) || file->rc == -ENOENT || file->rc == -ENODEV)
        return false;
    ctl_fields_copy(file->path + len, (size_t)(slash - file->path) - len, name, 65);
    return true;
}

static int build_entries(struct ctl_fabric *fabric)
{
    const struct ctl_files *files = &fabric->files;
    fabric->nodes = calloc(files->count + 1, sizeof *fabric->nodes);
    fabric->jobs = calloc(files->count + 1, sizeof *fabric->jobs);
    int rc = fabric->nodes && fabric->jobs ? 0 : -ENOMEM;
    for (size_t i = 0; !rc && i < files->count; i++) {
        char name[65];
        if (name_of(&files->list[i], "nodes/", "link", name))
            build_node(fabric, name);
        else if (name_of(&files->list[i], "jobs/", "stats", name))
            rc = build_job(fabric, name);
    }
    return rc;
}

int ctl_fabric_build(struct ctl_files *files, struct ctl_fabric *fabric)
{
    *fabric = (struct ctl_fabric){
        .files = *files, .node = -1, .pid = -1, .uptime_s = -1, .memory_used = -1, .memory_limit = -1};
    *files = (struct ctl_files){0};
    const char *version = ctl_files_text(&fabric->files, "version") + sizeof "fabricfs " - 1;
    ctl_fields_copy(version, strcspn(version, " \n"), fabric->version, sizeof fabric->version);
    TAKE(ctl_files_text(&fabric->files, "stats"), ROOT_FIELDS, fabric);
    int rc = build_entries(fabric);
    if (!rc)
        rc = build_findings(fabric);
    if (rc) {
        ctl_fabric_fini(fabric);
        return rc;
    }
    qsort(fabric->nodes, fabric->node_count, sizeof *fabric->nodes, by_number);
    qsort(fabric->jobs, fabric->job_count, sizeof *fabric->jobs, by_name);
    ctl_fabric_take_metrics(fabric, ctl_files_text(&fabric->files, "metrics"));
    for (size_t i = 0; i < fabric->job_count; i++) {
        forget_nothing(&fabric->jobs[i].latency);
        forget_nothing(&fabric->jobs[i].wait);
        forget_nothing(&fabric->jobs[i].work);
    }
    return 0;
}

int ctl_fabric_load(const struct ctl_want *want, struct ctl_fabric *fabric, struct ut_err *err)
{
    struct ctl_files files;
    int rc = ctl_reader_read(want, &files, err);
    if (rc)
        return rc;
    rc = ctl_fabric_build(&files, fabric);
    return rc ? ut_err_set(err, rc, "%s: %s", want->mount, strerror(-rc)) : 0;
}

void ctl_fabric_fini(struct ctl_fabric *fabric)
{
    for (size_t i = 0; i < fabric->job_count; i++)
        free(fabric->jobs[i].ranks);
    free(fabric->jobs);
    free(fabric->nodes);
    free(fabric->findings);
    ctl_files_fini(&fabric->files);
    *fabric = (struct ctl_fabric){0};
}

/* ---- asking it ---- */

struct ctl_fabric_job *ctl_fabric_find_job(const struct ctl_fabric *fabric, const char *name)
{
    struct ctl_fabric_job key = {.name = ""};
    snprintf(key.name, sizeof key.name, "%.64s", name);
    return fabric->job_count ? bsearch(&key, fabric->jobs, fabric->job_count, sizeof key, by_name) : NULL;
}

struct ctl_fabric_node *ctl_fabric_find_node(const struct ctl_fabric *fabric, double number)
{
    struct ctl_fabric_node key = {.number = number};
    return fabric->node_count ? bsearch(&key, fabric->nodes, fabric->node_count, sizeof key, by_number)
                              : NULL;
}

bool ctl_fabric_is_up(const struct ctl_fabric_node *node)
{
    return !strcmp(node->state, "up") || !strcmp(node->state, "self");
}

const char *ctl_fabric_about(const struct ctl_fabric_node *node)
{
    return *node->suspect_why   ? node->suspect_why
           : *node->why         ? node->why
           : node->degraded > 0 ? node->bottleneck
                                : node->memory;
}

int ctl_fabric_slowest(const struct ctl_fabric_job *job)
{
    int slowest = -1;
    double most = 0;
    for (size_t r = 0; r < (size_t)job->world; r++) {
        if (job->ranks[r].late_sum_us > most) {
            most = job->ranks[r].late_sum_us;
            slowest = (int)r;
        }
    }
    return slowest;
}

double ctl_fabric_arrivals(const struct ctl_fabric_job *job)
{
    double sum = 0;
    for (size_t r = 0; r < (size_t)job->world; r++)
        sum += job->ranks[r].arrived_last > 0 ? job->ranks[r].arrived_last : 0;
    return sum;
}

double ctl_fabric_late_us(const struct ctl_fabric_job *job, const struct ctl_fabric_rank *rank)
{
    double arrivals = ctl_fabric_arrivals(job);
    return arrivals > 0 && rank->late_sum_us >= 0 ? rank->late_sum_us / arrivals : -1;
}
