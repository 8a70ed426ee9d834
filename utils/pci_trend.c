#include "utils/pci_trend.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SAY_ERRORS_NS UINT64_C(60000000000) /* errors below the limit are told once in this time */

void ut_pci_trend_init(struct ut_pci_trend *trend, const struct ut_pci_limits *limits,
                       void (*say)(void *ctx, const char *severity, const char *text), void *ctx)
{
    *trend = (struct ut_pci_trend){.limits = limits, .say = say, .ctx = ctx};
}

bool ut_pci_pour(struct ut_pci_bucket *bucket, double more, unsigned limit, uint64_t window_ns,
                 uint64_t now_ns)
{
    double leaked = (double)limit * (double)(now_ns - bucket->at_ns) / (double)window_ns;
    bucket->level = (bucket->level > leaked ? bucket->level - leaked : 0) + more;
    bucket->at_ns = now_ns;
    bool over = limit && bucket->level > limit;
    if (bucket->level > 2.0 * limit)
        bucket->level = 2.0 * limit; /* so that a storm is over when it has been over for a window */
    return over;
}

/* ---- drops ---- */

static void say_drop(const struct ut_pci_trend *trend, const struct ut_pci_report *report)
{
    char hop[UT_PCI_HOP_CHARS], addr[UT_PCI_ADDR_CHARS], text[400];
    ut_pci_addr_show(report->addr, addr);
    if (report->gone) {
        snprintf(text, sizeof text,
                 "device %s does not answer: it was removed, or has lost power or its link", addr);
    } else if (report->worst != UT_PCI_NONE) {
        const struct ut_pci_hop *worst = &report->hop[report->worst];
        ut_pci_hop_show(worst, hop);
        snprintf(text, sizeof text, "link %s: %s, %s; path %.2f of %.2f GB/s",
                 trend->seen ? "dropped" : "is slow", hop, worst->why, report->gbytes,
                 report->possible_gbytes);
    } else {
        snprintf(text, sizeof text, "path of device %s dropped to %.2f of %.2f GB/s", addr, report->gbytes,
                 report->possible_gbytes);
    }
    trend->say(trend->ctx, "warn", text);
}

static void say_recovery(const struct ut_pci_trend *trend, const struct ut_pci_report *report)
{
    char text[160];
    snprintf(text, sizeof text, "link is back: path %.2f of %.2f GB/s", report->gbytes,
             report->possible_gbytes);
    trend->say(trend->ctx, "info", text);
}

/* The slowest link is slow on purpose. */
static bool is_lowered(const struct ut_pci_report *report)
{
    enum ut_pci_verdict verdict =
        report->bottleneck == UT_PCI_NONE ? UT_PCI_VERDICTS : report->hop[report->bottleneck].verdict;
    return verdict == UT_PCI_IDLE || verdict == UT_PCI_DISABLED;
}

/* Caught while it changed, or all of it hidden for the moment: the next look will tell. */
static bool is_between(const struct ut_pci_trend *trend, const struct ut_pci_report *report)
{
    bool changing = trend->seen && report->gbytes <= 0 && ut_pci_report_verdict(report) == UT_PCI_UNKNOWN;
    for (unsigned i = 0; i < report->hop_count; i++)
        changing |= report->hop[i].changing;
    return changing && !report->gone;
}

/* Compares with the look before; the number of drops, 0 or 1, that are to be counted against the device. */
static unsigned compare(struct ut_pci_trend *trend, const struct ut_pci_report *report)
{
    bool bad = ut_pci_report_is_bad(report), was_bad = trend->seen && trend->bad;
    bool slower = trend->seen && report->gbytes > 0 && report->gbytes < trend->gbytes;
    bool dropped = bad ? !was_bad || slower : slower && !is_lowered(report);
    if (dropped) {
        trend->drops += trend->seen;
        say_drop(trend, report);
    } else if (was_bad && !bad) {
        say_recovery(trend, report);
    }
    bool counts = trend->seen && bad && !was_bad;
    trend->seen = true;
    trend->bad = bad;
    trend->gbytes = report->gbytes > 0 ? report->gbytes : trend->gbytes;
    return counts;
}

/* ---- errors ---- */

static uint64_t sum(const uint64_t errors[UT_PCI_AER_KINDS])
{
    return errors[UT_PCI_AER_COR] + errors[UT_PCI_AER_NONFATAL] + errors[UT_PCI_AER_FATAL];
}

static void show_errors(const uint64_t errors[UT_PCI_AER_KINDS], const struct ut_pci_report *report,
                        char *out, size_t size)
{
    char addr[UT_PCI_ADDR_CHARS];
    ut_pci_addr_show(report->noisiest, addr);
    snprintf(out, size, "%" PRIu64 " correctable, %" PRIu64 " nonfatal, %" PRIu64 " fatal errors, most at %s",
             errors[UT_PCI_AER_COR], errors[UT_PCI_AER_NONFATAL], errors[UT_PCI_AER_FATAL], addr);
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* Tells of errors at once when there were none for a while, and then in sums: a storm must not fill a log. */
static void count_errors(struct ut_pci_trend *trend, const struct ut_pci_report *report, uint64_t now_ns)
{
    char text[200];
    for (int kind = 0; kind < UT_PCI_AER_KINDS; kind++) {
        trend->errors[kind] = add(trend->errors[kind], report->new_errors[kind]);
        trend->untold[kind] = add(trend->untold[kind], report->new_errors[kind]);
    }
    if (!sum(trend->untold) || (trend->told_ns && now_ns - trend->told_ns < SAY_ERRORS_NS))
        return;
    bool serious = trend->untold[UT_PCI_AER_NONFATAL] || trend->untold[UT_PCI_AER_FATAL];
    show_errors(trend->untold, report, text, sizeof text);
    trend->say(trend->ctx, serious ? "warn" : "info", text);
    memset(trend->untold, 0, sizeof trend->untold);
    trend->told_ns = now_ns;
}

/* ---- suspicion ---- */

static void become_well(struct ut_pci_trend *trend)
{
    trend->suspect = false;
    trend->why[0] = '\0';
    trend->say(trend->ctx, "info", "well again: neither errors nor drops above their limits for a while");
}

static bool become_suspect(struct ut_pci_trend *trend, uint64_t now_ns)
{
    char text[260];
    trend->suspect = true;
    trend->suspect_ns = now_ns;
    snprintf(text, sizeof text, "suspect: %s", trend->why);
    trend->say(trend->ctx, "error", text);
    return true;
}

static void explain(struct ut_pci_trend *trend, const struct ut_pci_report *report, bool storm)
{
    char errors[128];
    if (storm) {
        show_errors(report->new_errors, report, errors, sizeof errors);
        snprintf(trend->why, sizeof trend->why, "more than %u errors in 10 s; at the last look %s",
                 trend->limits->errors, errors);
    } else {
        snprintf(trend->why, sizeof trend->why,
                 "its link flaps: it was lost or degraded more than %u times in a minute",
                 trend->limits->drops);
    }
}

bool ut_pci_trend_look(struct ut_pci_trend *trend, const struct ut_pci_report *report, uint64_t now_ns)
{
    const struct ut_pci_limits *limits = trend->limits;
    if (!report->found) {
        trend->looks_failed++;
        return false;
    }
    trend->looks++;
    count_errors(trend, report, now_ns);
    unsigned drops = is_between(trend, report) ? 0 : compare(trend, report);
    bool storm = ut_pci_pour(&trend->error_bucket, (double)sum(report->new_errors), limits->errors,
                             UT_PCI_ERRORS_WINDOW_NS, now_ns);
    bool flaps = ut_pci_pour(&trend->drop_bucket, drops, limits->drops, UT_PCI_DROPS_WINDOW_NS, now_ns);
    if (storm || flaps || trend->bad)
        trend->trouble_ns = now_ns;
    if (trend->suspect && now_ns - trend->trouble_ns >= limits->well_ns)
        become_well(trend);
    if (trend->suspect || !(storm || flaps))
        return false;
    explain(trend, report, storm);
    return become_suspect(trend, now_ns);
}
