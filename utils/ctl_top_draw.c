/*
 * The screen of fabricctl top. What a colour says a word says, too.
 *
 *   three lines that are always there: the fabric, its nodes and links, its health
 *   a list: jobs, nodes, findings, or the ranks of a job
 *   a sentence about the picked job, and the keys
 */
#include <curses.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utils/ctl_top.h"
#include "utils/ctl_units.h"

#define LIST_Y 5 /* the line of a list's titles */

enum { PLAIN, RED, YELLOW, GREEN };

static attr_t look_of(const struct ctl_top *top, int colour)
{
    if (colour == PLAIN)
        return A_NORMAL;
    if (top->colours)
        return COLOR_PAIR(colour) | (colour == GREEN ? 0 : A_BOLD);
    return colour == GREEN ? A_NORMAL : A_BOLD;
}

/* Writes a text that ends where the screen does. */
static void __attribute__((format(printf, 4, 5))) put(int y, int x, attr_t look, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    if (y < 0 || y >= LINES || x >= COLS)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    attrset(look);
    mvaddnstr(y, x, text, COLS - x);
    attrset(A_NORMAL);
}

/* A line of titles over the whole width. */
static void put_titles(int y, const char *titles)
{
    put(y, 0, A_REVERSE, "%-*.*s", COLS < 1000 ? COLS : 1000, COLS, titles);
}

/* One of eight heights for each number, the greatest the highest; a blank for one that is not known. */
static void put_spark(const struct ctl_top *top, int y, int x, int width, const double *numbers, size_t count)
{
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const plain[] = {"_", ".", ":", "-", "=", "+", "*", "#"};
    size_t first = count > (size_t)width ? count - (size_t)width : 0;
    double most = 0;
    for (size_t i = first; i < count; i++)
        most = numbers[i] > most ? numbers[i] : most;
    for (size_t i = first; i < count; i++) {
        int height = most > 0 && numbers[i] >= 0 ? (int)(numbers[i] / most * 7.999) : -1;
        if (height >= 0 && y < LINES)
            mvaddstr(y, x + (int)(i - first), top->unicode ? blocks[height] : plain[height]);
    }
}

/* How many lines a list has, and which of its lines comes first so that line `picked` is to be seen. */
static int list_lines(void)
{
    int lines = LINES - LIST_Y - 3;
    return lines > 0 ? lines : 0;
}

static size_t list_first(struct ctl_top *top, size_t count, size_t picked)
{
    size_t lines = (size_t)list_lines();
    if (picked < top->scroll)
        top->scroll = picked;
    if (lines && picked >= top->scroll + lines)
        top->scroll = picked - lines + 1;
    if (top->scroll + lines > count)
        top->scroll = count > lines ? count - lines : 0;
    return top->scroll;
}

/* ---- the three lines ---- */

static void draw_fabric(const struct ctl_top *top)
{
    const struct ctl_fabric *f = &top->now;
    char up[CTL_UNITS_CHARS], used[CTL_UNITS_CHARS], limit[CTL_UNITS_CHARS];
    put(0, 0, A_BOLD, "%s", f->name);
    put(0, (int)strlen(f->name), A_NORMAL, ": node %.0f of %zu, up %s, buffers %s of %s, %s", f->node,
        f->node_count, ctl_units_span(f->uptime_s, up), ctl_units_bytes(f->memory_used, used),
        ctl_units_bytes(f->memory_limit, limit), f->buffer_mode);
    if (top->paused)
        put(0, COLS - 8, A_REVERSE, " PAUSED ");
}

static bool is_good(const struct ctl_fabric_node *node)
{
    return ctl_fabric_is_up(node) && node->degraded <= 0 && node->suspect <= 0;
}

/* What is wrong with a node, in two or three words. */
static void say_node(const struct ctl_fabric_node *node, char out[96])
{
    char now[CTL_UNITS_CHARS], possible[CTL_UNITS_CHARS];
    if (!ctl_fabric_is_up(node))
        snprintf(out, 96, "node %.0f %s", node->number, node->state);
    else if (node->suspect > 0)
        snprintf(out, 96, "node %.0f SUSPECT", node->number);
    else
        snprintf(out, 96, "link to %.0f degraded: %s of %s GB/s", node->number,
                 ctl_units_count(node->gbytes_s, now), ctl_units_count(node->possible_gbytes_s, possible));
}

static void draw_nodes_line(const struct ctl_top *top)
{
    const struct ctl_fabric *f = &top->now;
    size_t up = 0, bad = 0;
    double errors = 0;
    char worst[96] = "", text[200];
    bool emulated = false;
    for (size_t i = 0; i < f->node_count; i++) {
        const struct ctl_fabric_node *node = &f->nodes[i];
        up += ctl_fabric_is_up(node);
        errors += node->errors > 0 ? node->errors : 0;
        emulated |= !strcmp(node->state, "up") && !strncmp(node->memory, "emulated", 8);
        if (!is_good(node) && !bad++)
            say_node(node, worst);
    }
    snprintf(text, sizeof text, "%zu of %zu up%s, links %s%.0f errors", up, f->node_count,
             bad ? "" : ", none suspect or degraded", emulated ? "emulated, " : "", errors);
    put(1, 0, A_BOLD, "nodes");
    put(1, 8, A_NORMAL, "%s", text);
    if (bad)
        put(1, 8 + (int)strlen(text), look_of(top, RED), "; %s%s", worst, bad > 1 ? ", and more: Tab" : "");
}

static int finding_colour(const struct ctl_fabric_finding *finding)
{
    return strcmp(finding->severity, "error") ? YELLOW : RED;
}

static void draw_health_line(const struct ctl_top *top)
{
    const struct ctl_fabric *f = &top->now;
    const struct ctl_fabric_finding *worst = f->findings;
    put(2, 0, A_BOLD, "health");
    for (size_t i = 0; i < f->finding_count; i++)
        if (finding_colour(worst) != RED && finding_colour(&f->findings[i]) == RED)
            worst = &f->findings[i];
    if (*top->trouble)
        put(2, 8, look_of(top, RED) | A_REVERSE, "%s", top->trouble);
    else if (!f->finding_count)
        put(2, 8, look_of(top, GREEN), "ok");
    else if (f->finding_count == 1)
        put(2, 8, look_of(top, finding_colour(worst)), "%s %s %s", worst->severity, worst->object,
            worst->fact);
    else
        put(2, 8, look_of(top, finding_colour(worst)), "%zu findings, %s %s %s", f->finding_count,
            worst->severity, worst->object, worst->fact);
}

/* ---- jobs ---- */

static void show_late(int rank, double late_us, char out[32])
{
    char late[CTL_UNITS_CHARS];
    if (rank < 0)
        snprintf(out, 32, "-");
    else
        snprintf(out, 32, "%d +%s", rank, ctl_units_us(late_us, late));
}

/* Ranks wait and nothing has got done since the snapshot before. */
static bool is_stuck(const struct ctl_top_row *row)
{
    return *row->job->missing && row->ops_s <= 0;
}

static void draw_job(const struct ctl_top *top, int y, const struct ctl_top_row *row)
{
    const struct ctl_fabric_job *job = row->job;
    char in[CTL_UNITS_CHARS], ranks[32], ops[CTL_UNITS_CHARS], p50[CTL_UNITS_CHARS], p999[CTL_UNITS_CHARS],
        rate[CTL_UNITS_CHARS], late[32];
    bool is_picked = !strcmp(job->name, top->picked);
    snprintf(ranks, sizeof ranks, "%s/%.0f", ctl_units_count(job->in, in), job->world);
    show_late(row->slowest, row->late_us, late);
    int colour = job->lost > 0 ? RED : is_stuck(row) ? YELLOW : PLAIN;
    put(y, 0, look_of(top, colour) | (is_picked ? A_STANDOUT : 0), "%c%-15.15s %8s", is_picked ? '>' : ' ',
        job->name, ranks);
    put(y, 25, A_NORMAL, "%8s%8s%8s%7s  %-13.13s", ctl_units_count(row->ops_s, ops),
        ctl_units_us(row->p50_us, p50), ctl_units_us(row->p999_us, p999),
        ctl_units_count(row->gbytes_s, rate), late);
    put_spark(top, y, 72, COLS > 72 ? COLS - 72 : 0, row->latency_us, row->samples);
}

static void draw_jobs(struct ctl_top *top)
{
    size_t picked = 0, count = top->now.job_count;
    put_titles(LIST_Y, " JOB                RANKS   OPS/S     P50   P99.9   GB/S  SLOWEST RANK  LATENCY");
    for (size_t i = 0; i < count; i++)
        picked = strcmp(top->rows[i].job->name, top->picked) ? picked : i;
    size_t first = list_first(top, count, picked);
    for (size_t i = first; i < count && i < first + (size_t)list_lines(); i++)
        draw_job(top, LIST_Y + 1 + (int)(i - first), &top->rows[i]);
    if (!count)
        put(LIST_Y + 2, 2, A_NORMAL, "no jobs yet: mkdir jobs/NAME makes one");
}

/* The picked job in a sentence: whom it waits for, or who is late. */
static void draw_sentence(const struct ctl_top *top, int y)
{
    const struct ctl_top_row *row = ctl_top_picked(top);
    char late[CTL_UNITS_CHARS];
    if (!row)
        return;
    const struct ctl_fabric_job *job = row->job;
    const struct ctl_fabric_rank *rank = row->slowest >= 0 ? &job->ranks[row->slowest] : NULL;
    if (job->lost > 0)
        put(y, 0, look_of(top, RED), "%s: %.0f of %.0f ranks lost. %s", job->name, job->lost, job->world,
            job->last_failure);
    else if (is_stuck(row))
        put(y, 0, look_of(top, YELLOW), "%s: %.0f of %.0f ranks wait for %s", job->name, job->waiting,
            job->world, job->missing);
    else if (rank && rank->pid >= 0)
        put(y, 0, A_NORMAL, "%s: rank %d (node %.0f, pid %.0f) came last in %.0f%% of operations, now +%s",
            job->name, row->slowest, rank->node, rank->pid,
            100 * rank->arrived_last / fmax(ctl_fabric_arrivals(job), 1), ctl_units_us(row->late_us, late));
    else if (!job->open)
        put(y, 0, A_NORMAL, "%s: the job is another user's; its ranks are not shown", job->name);
}

/* ---- ranks of a job ---- */

static int by_lateness(const void *a, const void *b)
{
    const struct ctl_fabric_rank *x = *(const struct ctl_fabric_rank *const *)a,
                                 *y = *(const struct ctl_fabric_rank *const *)b;
    int order = (x->late_sum_us < y->late_sum_us) - (x->late_sum_us > y->late_sum_us);
    return order ? order : (x > y) - (x < y);
}

static void draw_rank(const struct ctl_top *top, int y, const struct ctl_fabric_job *job,
                      const struct ctl_fabric_rank *rank)
{
    char node[CTL_UNITS_CHARS], late[CTL_UNITS_CHARS], late_max[CTL_UNITS_CHARS];
    double arrivals = ctl_fabric_arrivals(job);
    int share = arrivals > 0 && rank->arrived_last > 0 ? (int)(100 * rank->arrived_last / arrivals + 0.5) : 0;
    int colour = !strcmp(rank->state, "lost") ? RED : rank->suspect ? YELLOW : PLAIN;
    put(y, 0, look_of(top, colour), "%5zu %5s %8.0f %-8s", (size_t)(rank - job->ranks),
        ctl_units_count(rank->node, node), rank->pid > 0 ? rank->pid : 0, *rank->state ? rank->state : "-");
    put(y, 30, A_NORMAL, "%10.0f %8s %8s %5d%%  %.*s", rank->last > 0 ? rank->last : 0,
        ctl_units_us(ctl_fabric_late_us(job, rank), late), ctl_units_us(rank->late_max_us, late_max), share,
        share * (COLS > 68 ? COLS - 68 : 0) / 100,
        "########################################################################################");
}

/* What the last operations took, the newest at the right. */
static void draw_trace(const struct ctl_top *top, int y)
{
    const struct ctl_trace *trace = &top->trace;
    double *took = calloc(trace->count + 1, sizeof *took), most = 0;
    char text[CTL_UNITS_CHARS];
    size_t width = COLS > 24 ? (size_t)COLS - 24 : 0;
    for (size_t i = 0; took && i < trace->count; i++) {
        took[i] = trace->ops[i].wait_us + trace->ops[i].work_us;
        most = i + width >= trace->count && took[i] > most ? took[i] : most;
    }
    put(y, 0, A_BOLD, "last operations");
    put(y + 1, 0, A_NORMAL, "up to %s", ctl_units_us(trace->count ? most : -1, text));
    if (took)
        put_spark(top, y, 24, (int)width, took, trace->count);
    free(took);
}

static void draw_ranks(struct ctl_top *top)
{
    const struct ctl_top_row *row = ctl_top_picked(top);
    size_t world = row ? (size_t)row->job->world : 0;
    const struct ctl_fabric_rank **order = calloc(world + 1, sizeof(*order));
    draw_trace(top, LIST_Y - 2);
    put_titles(LIST_Y, " RANK  NODE      PID STATE        LAST     LATE AT MOST  CAME LAST");
    for (size_t r = 0; order && r < world; r++)
        order[r] = &row->job->ranks[r];
    if (order && top->late_first)
        qsort(order, world, sizeof(*order), by_lateness);
    size_t first = list_first(top, world, top->scroll);
    for (size_t r = first; order && r < world && r < first + (size_t)list_lines(); r++)
        draw_rank(top, LIST_Y + 1 + (int)(r - first), row->job, order[r]);
    if (!row)
        put(LIST_Y + 2, 2, A_NORMAL, "the job %s has gone", top->picked);
    free(order);
}

/* ---- nodes ---- */

static void draw_node(const struct ctl_top *top, int y, const struct ctl_fabric_node *node)
{
    char now[CTL_UNITS_CHARS], possible[CTL_UNITS_CHARS], errors[CTL_UNITS_CHARS], put_bytes[CTL_UNITS_CHARS];
    const char *about = ctl_fabric_about(node);
    size_t len = about == node->memory ? strcspn(about, ",") : strlen(about); /* "emulated, ..." */
    put(y, 0,
        look_of(top, is_good(node)            ? PLAIN
                     : ctl_fabric_is_up(node) ? YELLOW
                                              : RED),
        "%5.0f %-9s", node->number,
        node->suspect > 0    ? "SUSPECT"
        : node->degraded > 0 ? "DEGRADED"
                             : node->state);
    put(y, 16, A_NORMAL, "%-12.12s%6s/%-4s%7s%8s  %.*s", *node->host ? node->host : "-",
        ctl_units_count(node->gbytes_s, now), ctl_units_count(node->possible_gbytes_s, possible),
        ctl_units_count(node->errors, errors), ctl_units_bytes(node->put_bytes, put_bytes), (int)len, about);
}

static void draw_nodes(struct ctl_top *top)
{
    put_titles(LIST_Y, " NODE STATE     HOST         GB/S OF MAX ERRORS WRITTEN  LINK");
    size_t count = top->now.node_count, first = list_first(top, count, top->scroll);
    for (size_t i = first; i < count && i < first + (size_t)list_lines(); i++)
        draw_node(top, LIST_Y + 1 + (int)(i - first), &top->now.nodes[i]);
}

/* ---- findings ---- */

/* Words over as many lines as they need; the line behind them. */
static int put_words(int y, int x, attr_t look, const char *words)
{
    size_t room = COLS > x + 8 ? (size_t)(COLS - x) : 8;
    while (*words && y < LINES - 2) {
        size_t len = strlen(words);
        if (len > room) {
            for (len = room; len > 1 && words[len] != ' '; len--) {
            }
            len = len > 1 ? len : room;
        }
        put(y++, x, look, "%.*s", (int)len, words);
        words += len;
        words += *words == ' ';
    }
    return y;
}

static void draw_health(struct ctl_top *top)
{
    const struct ctl_fabric *f = &top->now;
    int y = LIST_Y + 1;
    size_t first = list_first(top, f->finding_count, top->scroll);
    put_titles(LIST_Y, " FINDINGS");
    for (size_t i = first; i < f->finding_count && y < LINES - 2; i++) {
        const struct ctl_fabric_finding *finding = &f->findings[i];
        put(y, 0, look_of(top, finding_colour(finding)), " %-5s %s", finding->severity, finding->object);
        y = put_words(y + 1, 7, A_NORMAL, finding->fact);
        y = put_words(y, 7, A_NORMAL, finding->next);
    }
    if (!f->finding_count)
        put(y + 1, 2, look_of(top, GREEN), "ok: nothing to be said against this fabric");
}

/* ---- all of it ---- */

static void draw_keys(const struct ctl_top *top, int y)
{
    static const char *const sorts[] = {"name", "ops/s", "P50", "P99.9", "GB/s", "late"};
    if (top->view == CTL_TOP_JOBS)
        put(y, 0, A_BOLD, "Up Down pick  Enter ranks  s sort: %s%s  r reverse  Tab nodes  p pause  q quit",
            sorts[top->sort], top->reverse ? " (reversed)" : "");
    else if (top->view == CTL_TOP_RANKS)
        put(y, 0, A_BOLD, "Up Down scroll  s sort: %s  Esc back  p pause  q quit",
            top->late_first ? "late" : "rank");
    else
        put(y, 0, A_BOLD, "Up Down scroll  Tab %s  Esc back  p pause  q quit",
            top->view == CTL_TOP_NODES ? "findings" : "jobs");
}

void ctl_top_draw(struct ctl_top *top)
{
    static void (*const draw[])(struct ctl_top *) = {draw_jobs, draw_nodes, draw_health, draw_ranks};
    erase();
    draw_fabric(top);
    draw_nodes_line(top);
    draw_health_line(top);
    draw[top->view](top);
    if (top->view == CTL_TOP_JOBS || top->view == CTL_TOP_RANKS)
        draw_sentence(top, LINES - 2);
    draw_keys(top, LINES - 1);
    refresh();
}
