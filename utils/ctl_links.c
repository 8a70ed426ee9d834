#include "utils/ctl_links.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "utils/ctl_machine.h"

/* ---- the table ---- */

static const struct ut_pci_link *sort_base;

static int worst_first(const void *left, const void *right)
{
    int a = *(const int *)left, b = *(const int *)right;
    int order = ut_pci_verdict_rank(sort_base[a].verdict) - ut_pci_verdict_rank(sort_base[b].verdict);
    return order ? order : a - b;
}

/* Indices of all links, worst first; the caller's to free. NULL without memory. */
static int *sorted_links(const struct ut_pci_model *m)
{
    int *order = malloc((m->link_count + 1) * sizeof *order);
    if (!order)
        return NULL;
    for (size_t i = 0; i < m->link_count; i++)
        order[i] = (int)i;
    sort_base = m->link;
    qsort(order, m->link_count, sizeof *order, worst_first);
    return order;
}

static const char *verdict_colour(enum ut_pci_verdict verdict, const struct ctl_style *style)
{
    if (ut_pci_verdict_is_fault(verdict))
        return style->red;
    if (verdict == UT_PCI_BELOW_OWN || verdict == UT_PCI_IDLE || verdict == UT_PCI_DISABLED)
        return style->yellow;
    return verdict == UT_PCI_FULL || verdict == UT_PCI_LIMITED ? style->green : style->dim;
}

static void rate_text(int node, struct ut_pci_rate rate, char out[UT_PCI_RATE_CHARS])
{
    if (node == UT_PCI_NONE)
        snprintf(out, UT_PCI_RATE_CHARS, "-");
    else
        ut_pci_rate_show(rate, out);
}

static void row(const struct ctl_machine *machine, int idx, const struct ctl_style *style,
                struct ut_text *text)
{
    const struct ut_pci_link *link = &machine->model->link[idx];
    char cur[UT_PCI_RATE_CHARS], above[UT_PCI_RATE_CHARS], below[UT_PCI_RATE_CHARS], gbytes[16] = "-";
    bool down =
        link->verdict == UT_PCI_DOWN || link->verdict == UT_PCI_EMPTY || link->verdict == UT_PCI_UNUSED;
    if (down)
        snprintf(cur, sizeof cur, "-");
    else
        ut_pci_rate_show(link->cur, cur);
    rate_text(link->above, link->above_max, above);
    rate_text(link->below, link->below_max, below);
    if (ut_pci_rate_known(link->cur))
        snprintf(gbytes, sizeof gbytes, "%.2f", ut_pci_gbytes(link->cur));
    ut_text_addf(text, "%s%-10s%s %-14s %-14s %-14s %7s  %-14s %-14s ", verdict_colour(link->verdict, style),
                 ut_pci_verdict_name(link->verdict), style->off, ctl_addr(machine, link->above),
                 ctl_addr(machine, link->below), cur, gbytes, above, below);
    ctl_link_why(machine, idx, text);
    ut_text_add(text, "\n", 1);
}

/* Functions without link registers are no fault and no zero: they are counted so that nobody misses them. */
static size_t without_link(const struct ut_pci_model *m)
{
    size_t count = 0;
    for (size_t i = 0; i < m->node_count; i++)
        count += m->node[i].link == UT_PCI_NONE;
    return count;
}

/* A function whose capabilities could not be read may have a link after all; sysfs settles it by showing link
 * attributes or none. */
static bool link_unsure(const struct ut_pci_node *node)
{
    enum ut_pci_have have = node->caps.express.have;
    return node->link == UT_PCI_NONE && have != UT_PCI_ABSENT && have != UT_PCI_PRESENT &&
           !node->fn->attrs.present;
}

static size_t maybe_link(const struct ut_pci_model *m)
{
    size_t count = 0;
    for (size_t i = 0; i < m->node_count; i++)
        count += link_unsure(&m->node[i]);
    return count;
}

static void summary(const struct ctl_machine *machine, struct ut_text *text)
{
    const struct ut_pci_model *m = machine->model;
    size_t count[UT_PCI_VERDICTS] = {0}, maybe = maybe_link(m);
    for (size_t i = 0; i < m->link_count; i++)
        count[m->link[i].verdict]++;
    ut_text_addf(text, "\n%zu link%s:", m->link_count, m->link_count == 1 ? "" : "s");
    for (int i = 0; i < UT_PCI_VERDICTS; i++)
        if (count[i] || i == UT_PCI_DEGRADED)
            ut_text_addf(text, " %zu %s", count[i], ut_pci_verdict_name((enum ut_pci_verdict)i));
    ut_text_addf(text, "\n%zu of %zu functions have no PCIe link of their own (n/a)", without_link(m) - maybe,
                 m->node_count);
    if (maybe)
        ut_text_addf(text, "; of %zu it is not known", maybe);
    ut_text_addf(text, "\n");
}

static bool any_fault(const struct ut_pci_model *m)
{
    for (size_t i = 0; i < m->link_count; i++)
        if (ut_pci_verdict_is_fault(m->link[i].verdict))
            return true;
    return false;
}

static int show_table(const struct ctl_machine *machine, const struct ctl_style *style)
{
    struct ut_text text = {0};
    int *order = sorted_links(machine->model);
    if (!order)
        return -ENOMEM;
    ut_text_addf(&text, "%s%-10s %-14s %-14s %-14s %7s  %-14s %-14s %s%s\n", style->bold, "VERDICT",
                 "PORT ABOVE", "DEVICE BELOW", "NOW", "GB/s", "ABOVE CAN", "BELOW CAN", "WHY", style->off);
    for (size_t i = 0; i < machine->model->link_count; i++)
        row(machine, order[i], style, &text);
    free(order);
    summary(machine, &text);
    ctl_machine_gaps(machine, style, &text);
    return ctl_text_print(&text);
}

static json_t *without_link_json(const struct ctl_machine *machine)
{
    json_t *list = json_array();
    for (size_t i = 0; i < machine->model->node_count; i++) {
        const struct ut_pci_node *node = &machine->model->node[i];
        const char *word = link_unsure(node) ? ut_pci_have_word(node->caps.express.have) : "n/a";
        if (node->link == UT_PCI_NONE)
            json_array_append_new(
                list, json_pack("{s:o, s:s}", "address", ctl_json_addr(machine, (int)i), "link", word));
    }
    return list;
}

static int show_json(const struct ctl_machine *machine)
{
    int *order = sorted_links(machine->model);
    json_t *head = ctl_json_head(machine, "links"), *links = json_array();
    size_t degraded = 0;
    for (size_t i = 0; order && i < machine->model->link_count; i++) {
        degraded += machine->model->link[order[i]].verdict == UT_PCI_DEGRADED;
        json_array_append_new(links, ctl_json_link(machine, order[i]));
    }
    free(order);
    json_object_set_new(head, "degraded", json_integer((json_int_t)degraded));
    json_object_set_new(head, "links", links);
    json_object_set_new(head, "without_link", without_link_json(machine));
    return ctl_json_print(head);
}

/* ---- watching ---- */

static volatile sig_atomic_t stopped;

static void on_stop(int signal_number)
{
    (void)signal_number;
    stopped = 1;
}

/* What changed in one link since the last look, as a line; links are matched by their ends. */
static void show_change(const struct ctl_machine *before, const struct ctl_machine *now, size_t idx,
                        const struct ctl_style *style, struct ut_text *text)
{
    const struct ut_pci_link *link = &now->model->link[idx];
    int end = link->above != UT_PCI_NONE ? link->above : link->below;
    int old_end = ut_pci_model_find(before->model, now->model->node[end].fn->addr);
    int old_idx = old_end == UT_PCI_NONE ? UT_PCI_NONE : before->model->node[old_end].link;
    const struct ut_pci_link *old = old_idx == UT_PCI_NONE ? NULL : &before->model->link[old_idx];
    char from[UT_PCI_RATE_CHARS] = "absent", to[UT_PCI_RATE_CHARS];
    if (old && old->verdict == link->verdict && !memcmp(&old->cur, &link->cur, sizeof link->cur))
        return;
    if (old)
        ut_pci_rate_show(old->cur, from);
    ut_pci_rate_show(link->cur, to);
    ut_text_addf(text, "%s%s = %s: %s (%s), was %s (%s)%s\n", verdict_colour(link->verdict, style),
                 ctl_addr(now, link->above), ctl_addr(now, link->below), to,
                 ut_pci_verdict_name(link->verdict), from, old ? ut_pci_verdict_name(old->verdict) : "absent",
                 style->off);
}

static int show_changes(const struct ctl_machine *before, const struct ctl_machine *now,
                        const struct ctl_style *style)
{
    struct ut_text text = {0};
    for (size_t i = 0; i < now->model->link_count; i++)
        show_change(before, now, i, style, &text);
    if (before->snap->fn_count != now->snap->fn_count)
        ut_text_addf(&text, "functions: %zu, was %zu\n", now->snap->fn_count, before->snap->fn_count);
    if (text.len) {
        char stamp[32];
        time_t at = time(NULL);
        struct tm tm;
        strftime(stamp, sizeof stamp, "%F %T", localtime_r(&at, &tm));
        printf("%s%s%s\n", style->dim, stamp, style->off);
    }
    return ctl_text_print(&text);
}

static int wait_interval(uint64_t ns)
{
    struct timespec ts = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    return clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL);
}

/* Looks until interrupted or until the wanted number of looks is reached. The last look stays in machine. */
static int watch(const struct ctl_opts *opts, struct ctl_machine *machine, const struct ctl_style *style,
                 struct ut_err *err)
{
    struct sigaction action = {.sa_handler = on_stop};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    for (uint64_t look = 1; !stopped && (!opts->samples || look < opts->samples); look++) {
        struct ctl_machine now;
        if (wait_interval(opts->interval_ns))
            continue;
        int rc = ctl_machine_load(opts, &now, err);
        if (!rc)
            rc = opts->json ? show_json(&now) : show_changes(machine, &now, style);
        if (rc)
            return rc;
        ctl_machine_fini(machine);
        *machine = now;
    }
    return 0;
}

enum ctl_exit ctl_links(const struct ctl_opts *opts, struct ut_err *err)
{
    struct ctl_machine machine;
    struct ctl_style style = ctl_style_of(opts->colour);
    if (ctl_machine_load(opts, &machine, err))
        return CTL_ERROR;
    int rc = opts->json ? show_json(&machine) : show_table(&machine, &style);
    if (!rc && opts->watch)
        rc = watch(opts, &machine, &style, err);
    enum ctl_exit status = ctl_machine_exit(&machine, any_fault(machine.model));
    ctl_machine_fini(&machine);
    if (rc && !err->text[0])
        ut_err_set(err, rc, "%s", strerror(-rc));
    return rc ? CTL_ERROR : status;
}
