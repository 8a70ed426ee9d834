/*
 * The pictures of a report, as SVG. Colours are named in its style sheet: .wait .work .bad .axis .grid.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utils/ctl_html.h"
#include "utils/ctl_report.h"
#include "utils/ctl_units.h"

#define WIDTH 960.0
#define LEFT 64.0 /* for the numbers of the axis */
#define RIGHT 12.0
#define TIMELINE_OPS 24u
#define RING_NODES 24u

static void begin_svg(struct ut_text *out, double height, const char *what)
{
    ut_text_addf(out, "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\"><title>", WIDTH, height);
    ctl_html_add(out, what);
    ut_text_addf(out, "</title>\n");
}

/* ---- latency ---- */

#define PLOT_TOP 10.0
#define PLOT_HEIGHT 240.0

struct scale {
    double low, high; /* powers of ten, as exponents */
};

static double y_of(const struct scale *scale, double us)
{
    double at = (log10(us > 0 ? us : 1e-9) - scale->low) / (scale->high - scale->low);
    return PLOT_TOP + PLOT_HEIGHT * (1 - fmin(fmax(at, 0), 1));
}

static double x_of(const struct ctl_trace *trace, size_t idx)
{
    return LEFT + 8 +
           (WIDTH - LEFT - RIGHT - 16) * (trace->count > 1 ? (double)idx / (double)(trace->count - 1) : 0.5);
}

static double total_us(const struct ctl_trace_op *op)
{
    return op->wait_us + op->work_us;
}

static struct scale scale_of(const struct ctl_trace *trace)
{
    double least = INFINITY, most = 1;
    for (size_t i = 0; i < trace->count; i++) {
        const struct ctl_trace_op *op = &trace->ops[i];
        double smaller = op->work_us > 0 ? fmin(op->work_us, total_us(op)) : total_us(op);
        least = smaller > 0 ? fmin(least, smaller) : least;
        most = fmax(most, total_us(op));
    }
    struct scale scale = {.low = floor(log10(fmin(least, most))), .high = ceil(log10(most))};
    scale.low = fmax(scale.low, -1);
    scale.high = fmin(fmax(scale.high, scale.low + 1), scale.low + 12);
    return scale;
}

static void draw_grid(const struct ctl_trace *trace, const struct scale *scale, struct ut_text *out)
{
    char text[CTL_UNITS_CHARS];
    for (double exponent = scale->low; exponent <= scale->high; exponent++) {
        double us = pow(10, exponent), y = y_of(scale, us);
        ut_text_addf(out,
                     "<path class=\"grid\" d=\"M%.0f %.1fH%.0f\"/><text class=\"axis\" x=\"%.0f\" y=\"%.1f\" "
                     "text-anchor=\"end\">%s</text>\n",
                     LEFT, y, WIDTH - RIGHT, LEFT - 8, y + 4, ctl_units_us(us, text));
    }
    for (unsigned i = 0; trace->count && i < 5; i++) {
        size_t idx = i * (trace->count - 1) / 4;
        if (!i || trace->count > 4)
            ut_text_addf(out,
                         "<text class=\"axis\" x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%.0f</text>\n",
                         x_of(trace, idx), PLOT_TOP + PLOT_HEIGHT + 18, trace->ops[idx].seq);
    }
    ut_text_addf(out, "<text class=\"axis\" x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">operation</text>\n",
                 (LEFT + WIDTH) / 2, PLOT_TOP + PLOT_HEIGHT + 36);
}

static void say_op(const struct ctl_trace_op *op, struct ut_text *out)
{
    char wait[CTL_UNITS_CHARS], work[CTL_UNITS_CHARS];
    ut_text_addf(out, "<title>");
    ctl_html_addf(out,
                  "operation %.0f: %s %s %s, %.0f elements: %s. Waited %s, worked %s; rank %.0f came last",
                  op->seq, op->name, op->dtype, op->op, op->count, op->result,
                  ctl_units_us(op->wait_us, wait), ctl_units_us(op->work_us, work), op->last_rank);
    ut_text_addf(out, "</title>");
}

static void draw_op(const struct ctl_trace *trace, size_t idx, const struct scale *scale, struct ut_text *out)
{
    const struct ctl_trace_op *op = &trace->ops[idx];
    double x = x_of(trace, idx), y = y_of(scale, total_us(op));
    ut_text_addf(out, "<g>");
    say_op(op, out);
    if (!ctl_trace_is_ok(op))
        ut_text_addf(out, "<path class=\"bad-line\" d=\"M%.1f %.1fl8 8m0 -8l-8 8\"/>", x - 4, y - 4);
    else
        ut_text_addf(out,
                     "<circle class=\"total\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.4\"/>"
                     "<circle class=\"work\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.4\"/>",
                     x, y, x, y_of(scale, op->work_us));
    ut_text_addf(out, "</g>\n");
}

void ctl_report_latency(const struct ctl_trace *trace, struct ut_text *out)
{
    struct scale scale = scale_of(trace);
    begin_svg(out, PLOT_TOP + PLOT_HEIGHT + 44, "What each of the last operations took");
    draw_grid(trace, &scale, out);
    for (size_t i = 0; i < trace->count; i++)
        draw_op(trace, i, &scale, out);
    ut_text_addf(out, "</svg>\n");
}

/* ---- time line ---- */

#define LANE 22.0

/* The lowest lane that is free when the operation begins. They come in the order in which they end, so who
 * has ended last in a lane is the one to ask. */
static unsigned lane_of(double ends[TIMELINE_OPS], const struct ctl_trace_op *op)
{
    unsigned lane = 0;
    while (lane + 1 < TIMELINE_OPS && ends[lane] > op->start_us + 1e-6)
        lane++;
    ends[lane] = op->start_us + total_us(op);
    return lane;
}

static void draw_span(double x, double y, double width, const char *class, struct ut_text *out)
{
    ut_text_addf(out, "<rect class=\"%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\"/>", class, x,
                 y, fmax(width, 0.5), LANE - 6);
}

static void draw_times(double us, double height, struct ut_text *out)
{
    char text[CTL_UNITS_CHARS];
    double step = pow(10, floor(log10(us / 2.5)));
    step *= us / step > 12 ? 5 : us / step > 6 ? 2 : 1;
    for (double at = 0; at <= us; at += step) {
        double x = LEFT + (WIDTH - LEFT - RIGHT) * at / us;
        ut_text_addf(out,
                     "<path class=\"grid\" d=\"M%.1f 4V%.1f\"/><text class=\"axis\" x=\"%.1f\" y=\"%.1f\" "
                     "text-anchor=\"middle\">%s</text>\n",
                     x, height, x, height + 16, at > 0 ? ctl_units_us(at, text) : "0");
    }
}

/* The number of an operation in its bar, where there is room for it. */
static void draw_number(const struct ctl_trace_op *op, double x, double y, double per_us, struct ut_text *out)
{
    const double room = 42;
    bool in_wait = op->wait_us * per_us > room, in_work = op->work_us * per_us > room;
    if (in_wait || in_work)
        ut_text_addf(out, "<text class=\"label%s\" x=\"%.1f\" y=\"%.1f\">%.0f</text>",
                     in_wait ? "" : " light", x + 4 + (in_wait ? 0 : op->wait_us * per_us), y + 12, op->seq);
}

void ctl_report_timeline(const struct ctl_trace *trace, struct ut_text *out)
{
    size_t first = trace->count > TIMELINE_OPS ? trace->count - TIMELINE_OPS : 0;
    double from = INFINITY, to = 0, ends[TIMELINE_OPS] = {0};
    unsigned lane[TIMELINE_OPS], lanes = 0;
    for (size_t i = first; i < trace->count; i++) {
        lane[i - first] = lane_of(ends, &trace->ops[i]);
        lanes = lane[i - first] >= lanes ? lane[i - first] + 1 : lanes;
        from = fmin(from, trace->ops[i].start_us);
        to = fmax(to, trace->ops[i].start_us + total_us(&trace->ops[i]));
    }
    if (!(to > from))
        return;
    double per_us = (WIDTH - LEFT - RIGHT) / (to - from), height = 8 + lanes * LANE;
    begin_svg(out, height + 24, "The last operations on a time line");
    draw_times(to - from, height, out);
    for (size_t i = first; i < trace->count; i++) {
        const struct ctl_trace_op *op = &trace->ops[i];
        double x = LEFT + (op->start_us - from) * per_us, y = 8 + lane[i - first] * LANE;
        ut_text_addf(out, "<g>");
        say_op(op, out);
        draw_span(x, y, op->wait_us * per_us, "wait", out);
        draw_span(x + op->wait_us * per_us, y, op->work_us * per_us, ctl_trace_is_ok(op) ? "work" : "bad",
                  out);
        draw_number(op, x, y, per_us, out);
        ut_text_addf(out, "</g>\n");
    }
    ut_text_addf(out, "</svg>\n");
}

/* ---- phases ---- */

void ctl_report_phases(const struct ctl_fabric_job *job, struct ut_text *out)
{
    const struct {
        const char *class, *name;
        double us;
    } phases[] = {{"wait", "waiting for the last rank", job->phase_wait_us},
                  {"work", "adding up the buffers of a node", job->phase_local_us},
                  {"ring-part", "on the way round the ring", job->phase_ring_us},
                  {"copy", "copying results into buffers", job->phase_copy_us}};
    double sum = 0, x = 0;
    char text[CTL_UNITS_CHARS];
    for (int i = 0; i < 4; i++)
        sum += fmax(phases[i].us, 0);
    if (!(sum > 0))
        return;
    begin_svg(out, 34, "Where the time went");
    for (int i = 0; i < 4; i++) {
        double width = fmax(phases[i].us, 0) / sum * WIDTH;
        ut_text_addf(out, "<rect class=\"%s\" x=\"%.2f\" y=\"2\" width=\"%.2f\" height=\"30\"/>\n",
                     phases[i].class, x, width);
        x += width;
    }
    ut_text_addf(out, "</svg>\n<p class=\"legend\">");
    for (int i = 0; i < 4; i++)
        ut_text_addf(out, "<span><i class=\"%s\"></i>%s: %.3g %% (%s)</span>\n", phases[i].class,
                     phases[i].name, 100 * fmax(phases[i].us, 0) / sum, ctl_units_us(phases[i].us, text));
    ut_text_addf(out, "</p>\n");
}

/* ---- ring ---- */

/* The order of nodes from "ring 0 2 1 (why)" of the file topology; how many, 0 when there is none. */
static unsigned order_of(const struct ctl_fabric *fabric, unsigned order[RING_NODES])
{
    const char *at = strstr(ctl_files_text(&fabric->files, "topology"), "\nring ");
    unsigned count = 0;
    for (at = at ? at + 6 : ""; *at >= '0' && *at <= '9'; at += *at == ' ') {
        char *end;
        unsigned long number = strtoul(at, &end, 10);
        if (count == RING_NODES || !ctl_fabric_find_node(fabric, (double)number))
            return 0;
        order[count++] = (unsigned)number;
        at = end;
    }
    return count;
}

/* "ranks 0, 2, 4 and 9 more" of a job on a node. */
static void list_ranks(const struct ctl_fabric_job *job, unsigned node, struct ut_text *out)
{
    unsigned count = 0;
    for (size_t r = 0; r < (size_t)job->world; r++) {
        if (job->ranks[r].node != node)
            continue;
        if (count++ < 4)
            ut_text_addf(out, "%s%zu", count > 1 ? ", " : "rank ", r);
    }
    if (count > 4)
        ut_text_addf(out, " and %u more", count - 4);
}

static void draw_place(const struct ctl_fabric *fabric, const struct ctl_fabric_job *job, unsigned number,
                       double x, double y, struct ut_text *out)
{
    const struct ctl_fabric_node *node = ctl_fabric_find_node(fabric, number);
    bool good = ctl_fabric_is_up(node);
    const char *class = !good ? "bad" : node->degraded > 0 || node->suspect > 0 ? "doubt" : "good";
    ut_text_addf(out,
                 "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"140\" height=\"48\" rx=\"8\"/>"
                 "<text class=\"name\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">node %u: ",
                 class, x - 70, y - 24, x, y - 4, number);
    ctl_html_add(out, node->state);
    ut_text_addf(out, "</text><text class=\"axis\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", x, y + 14);
    list_ranks(job, number, out);
    ut_text_addf(out, "</text>\n");
}

void ctl_report_ring(const struct ctl_fabric *fabric, const struct ctl_fabric_job *job, struct ut_text *out)
{
    unsigned order[RING_NODES], count = order_of(fabric, order);
    if (count < 2)
        return;
    double height = count < 3 ? 120 : count < 9 ? 320 : 560, rx = count < 3 ? 150 : 340, ry = height / 2 - 40;
    begin_svg(out, height, "The ring of nodes");
    ut_text_addf(out, "<ellipse class=\"way\" cx=\"%.0f\" cy=\"%.0f\" rx=\"%.0f\" ry=\"%.0f\"/>\n", WIDTH / 2,
                 height / 2, rx, ry);
    for (unsigned i = 0; i < count; i++) {
        double angle = 2 * M_PI * i / count - (count < 3 ? M_PI : M_PI / 2);
        draw_place(fabric, job, order[i], WIDTH / 2 + rx * cos(angle), height / 2 + ry * sin(angle), out);
    }
    ut_text_addf(out, "</svg>\n");
}
