/*
 * What is known of the watched devices, in words and figures. Everything here only reads.
 */
#include "fs/fs_watch.h"
#include "utils/ut_clock.h"

#include <inttypes.h>

#define STORE_BYTES 64 /* the payload of each packet of a stream of stores: a write-combining line */

/* What a CPU's stores can put through a path of so many GB/s. */
static double practical(double gbytes)
{
    return gbytes * ut_pci_payload_share(STORE_BYTES);
}

/* ---- nodes/N/link ---- */

static const char *no_redirect_word(enum ut_pci_have have)
{
    if (have == UT_PCI_ABSENT)
        return "no ACS";
    return have == UT_PCI_PRESENT ? "none" : ut_pci_have_word(have);
}

static void show_hops(const struct ut_pci_report *now, struct ut_text *out)
{
    char text[UT_PCI_HOP_CHARS];
    for (unsigned i = 0; i < now->hop_count; i++) {
        const struct ut_pci_hop *hop = &now->hop[i];
        ut_pci_hop_show(hop, text);
        ut_text_addf(out, "hop%u %s: %s, %s\n", i, text, ut_pci_verdict_name(hop->verdict), hop->why);
    }
    if (!now->complete)
        ut_text_addf(out, "path_missing a bridge between the device and the root is not listed\n");
}

static void show_bottleneck(const struct ut_pci_report *now, struct ut_text *out)
{
    char text[UT_PCI_HOP_CHARS];
    if (now->bottleneck == UT_PCI_NONE) {
        ut_text_addf(out, "bottleneck %s\n", now->hop_count ? "unknown" : "n/a");
        return;
    }
    ut_pci_hop_show(&now->hop[now->bottleneck], text);
    ut_text_addf(out, "bottleneck %s\n", text);
}

/* Of a rate that is not known nothing is said. */
static void show_gbytes(const char *name, double gbytes, struct ut_text *out)
{
    if (gbytes > 0)
        ut_text_addf(out, "%s %.3f\n", name, gbytes);
    else
        ut_text_addf(out, "%s -\n", name);
}

static void show_rates(const struct fs_watched *watched, struct ut_text *out)
{
    const struct ut_pci_report *now = &watched->now;
    show_gbytes("gbytes_s", now->gbytes, out);
    show_gbytes("possible_gbytes_s", now->possible_gbytes, out);
    show_gbytes("practical_gbytes_s", practical(now->gbytes), out);
    ut_text_addf(out, "data_gbytes_s %.3f\n", watched->data_gbytes);
    ut_text_stat(out, "drops", watched->trend.drops);
}

static void show_errors(const struct fs_watched *watched, struct ut_text *out)
{
    static const char *const sticky[] = {"none", "harmless", "uncorrected", "fatal"};
    for (int kind = 0; kind < UT_PCI_AER_KINDS; kind++) {
        const char *name = ut_pci_aer_kind_name((enum ut_pci_aer_kind)kind);
        if (watched->now.has_counters)
            ut_text_addf(out, "aer_%s %" PRIu64 "\n", name, watched->trend.errors[kind]);
        else
            ut_text_addf(out, "aer_%s -\n", name);
    }
    ut_text_addf(out, "aer_sticky %s\n",
                 watched->now.aer == UT_PCI_PRESENT ? sticky[watched->now.sticky]
                                                    : ut_pci_have_word(watched->now.aer));
}

static void show_ports(const struct ut_pci_report *now, struct ut_text *out)
{
    char addr[UT_PCI_ADDR_CHARS];
    ut_text_addf(out, "acs_redirect");
    for (unsigned i = 0; i < now->redirect_count; i++) {
        ut_pci_addr_show(now->redirects[i], addr);
        ut_text_addf(out, " %s", addr);
    }
    ut_text_addf(out, "%s%s\n", now->redirect_count ? "" : " ",
                 now->redirect_count ? "" : no_redirect_word(now->acs));
    ut_pci_addr_show(now->dpc_at, addr);
    if (now->dpc_triggered)
        ut_text_addf(out, "dpc triggered at %s\n", addr);
    else if (now->dpc == UT_PCI_PRESENT)
        ut_text_addf(out, "dpc %s\n", now->dpc_armed ? "armed" : "off");
    else
        ut_text_addf(out, "dpc %s\n", ut_pci_have_word(now->dpc));
}

static void show_number(const char *name, int number, struct ut_text *out)
{
    if (number < 0)
        ut_text_addf(out, "%s -\n", name);
    else
        ut_text_addf(out, "%s %d\n", name, number);
}

static void show_place(const struct ut_pci_report *now, struct ut_text *out)
{
    show_number("numa_node", now->numa_node, out);
    if (*now->iommu_type)
        ut_text_addf(out, "iommu_group %d %s\n", now->iommu_group, now->iommu_type);
    else
        show_number("iommu_group", now->iommu_group, out);
    ut_text_addf(out, "driver %s\n", *now->driver ? now->driver : "-");
    if (now->needs_root)
        ut_text_addf(out, "registers hidden: the daemon is not root; speeds and counters are sysfs's\n");
}

/* One word for the state of the hardware. */
static const char *hardware_word(const struct fs_watched *watched)
{
    if (!watched->trend.looks)
        return watched->trend.looks_failed ? "absent" : "unknown";
    if (watched->now.gone)
        return "gone";
    if (watched->trend.suspect)
        return "suspect";
    return watched->trend.bad ? "degraded" : "ok";
}

void fs_watch_show_link(const struct fs *fs, unsigned node, struct ut_text *out)
{
    const struct fs_watched *watched = fs_watch_of(fs->watch, node);
    char addr[UT_PCI_ADDR_CHARS];
    uint64_t since;
    const char *why = fs_watch_session_why(fs->watch, node, &since);
    if (why)
        ut_text_addf(out, "session_why %s\n", why);
    if (!watched) {
        ut_text_addf(out, "device none\n");
        return;
    }
    ut_pci_addr_show(watched->addr, addr);
    ut_text_addf(out, "device %s\nhardware %s\n", addr, hardware_word(watched));
    if (watched->trend.suspect)
        ut_text_addf(out, "suspect_why %s\n", watched->trend.why);
    if (!watched->now.found)
        return;
    show_hops(&watched->now, out);
    show_bottleneck(&watched->now, out);
    show_rates(watched, out);
    show_errors(watched, out);
    show_ports(&watched->now, out);
    show_place(&watched->now, out);
}

void fs_watch_show_topology(const struct fs *fs, unsigned node, struct ut_text *out)
{
    const struct fs_watched *watched = fs_watch_of(fs->watch, node);
    char addr[UT_PCI_ADDR_CHARS];
    if (!watched || !watched->now.found)
        return;
    ut_pci_addr_show(watched->addr, addr);
    ut_text_addf(out, " device=%s", addr);
    if (watched->now.gbytes > 0)
        ut_text_addf(out, " gbytes_s=%.2f possible_gbytes_s=%.2f", watched->now.gbytes,
                     watched->now.possible_gbytes);
    if (watched->now.numa_node >= 0)
        ut_text_addf(out, " numa_node=%d", watched->now.numa_node);
    ut_text_addf(out, " hardware=%s", hardware_word(watched));
}

/* ---- health ---- */

static void show_bad(const struct fs_watched *watched, struct ut_text *out)
{
    char text[UT_PCI_HOP_CHARS], addr[UT_PCI_ADDR_CHARS];
    const struct ut_pci_report *now = &watched->now;
    ut_pci_addr_show(watched->addr, addr);
    if (now->gone || now->worst == UT_PCI_NONE) {
        ut_text_addf(out,
                     "error nodes/%u its device %s does not answer; next: look at its power, slot and cable; "
                     "echo 1 > /sys/bus/pci/rescan when it is back\n",
                     watched->blamed, addr);
        return;
    }
    ut_pci_hop_show(&now->hop[now->worst], text);
    ut_text_addf(out,
                 "warn nodes/%u link %s, %s: %.2f of %.2f GB/s, stores reach %.2f; next: fabricctl doctor, "
                 "then reseat card and cable\n",
                 watched->blamed, text, now->hop[now->worst].why, now->gbytes, now->possible_gbytes,
                 practical(now->gbytes));
}

static void show_suspect(unsigned node, const char *why, uint64_t ns, struct ut_text *out)
{
    ut_text_addf(out,
                 "error nodes/%u is suspect for %" PRIu64
                 " s: %s; next: replace card, slot or cable; jobs go on "
                 "without its ranks when their owner writes drop=suspect to members\n",
                 node, ns / UT_NS_PER_S, why);
}

static void show_one(const struct fs_watched *watched, uint64_t now, struct ut_text *out)
{
    char addr[UT_PCI_ADDR_CHARS];
    ut_pci_addr_show(watched->addr, addr);
    if (watched->trend.suspect)
        show_suspect(watched->blamed, watched->trend.why, now - watched->trend.suspect_ns, out);
    if (watched->trend.bad)
        show_bad(watched, out);
    if (watched->trend.looks_failed && !watched->trend.looks)
        ut_text_addf(out,
                     "warn nodes/%u there is no device %s to watch; next: compare device and window of the "
                     "configuration with fabricctl topo\n",
                     watched->blamed, addr);
}

void fs_watch_show_health(const struct fs *fs, struct ut_text *out)
{
    uint64_t now = ut_clock_ns(), late = fs_watch_late_ns(fs->watch, now);
    const struct fs_watched *watched;
    for (unsigned i = 0; (watched = fs_watch_at(fs->watch, i)); i++)
        show_one(watched, now, out);
    for (unsigned i = 0; i < (unsigned)fs->settings->nodes; i++) {
        uint64_t since;
        const char *why = fs_watch_session_why(fs->watch, i, &since);
        if (why)
            show_suspect(i, why, now - since, out);
    }
    if (late)
        ut_text_addf(out,
                     "warn watch the last look at the devices has not ended for %" PRIu64
                     " s; next: a device does not answer, see the kernel log\n",
                     late / UT_NS_PER_S + 5);
}

/* ---- metrics ---- */

/* A get that gives a negative number knows none: there is no sample then. */
struct metric {
    const char *name, *type, *help;
    double (*get)(const struct fs_watched *watched);
};

static double get_gbytes(const struct fs_watched *watched)
{
    if (watched->now.gone || (watched->trend.bad && watched->now.gbytes <= 0))
        return 0; /* nothing gets through */
    return watched->now.gbytes > 0 ? watched->now.gbytes : -1;
}

static double get_possible(const struct fs_watched *watched)
{
    return watched->now.possible_gbytes > 0 ? watched->now.possible_gbytes : -1;
}

static double get_practical(const struct fs_watched *watched)
{
    return practical(get_gbytes(watched));
}

static double get_data(const struct fs_watched *watched)
{
    return watched->data_gbytes;
}

static double get_bad(const struct fs_watched *watched)
{
    return watched->trend.bad;
}

static double get_drops(const struct fs_watched *watched)
{
    return (double)watched->trend.drops;
}

static double get_looks(const struct fs_watched *watched)
{
    return (double)watched->trend.looks;
}

static const struct metric metrics[] = {
    {"link_gbytes_per_second", "gauge", "10^9 bytes a second that the path to the node can carry now.",
     get_gbytes},
    {"link_possible_gbytes_per_second", "gauge", "The same if every link ran at what its ends can do.",
     get_possible},
    {"link_practical_gbytes_per_second", "gauge", "What stores of a CPU can reach of it.", get_practical},
    {"link_data_gbytes_per_second", "gauge", "What was put into the node's window since the look before.",
     get_data},
    {"link_degraded", "gauge", "1 while a link on the path is degraded or down, or the device has gone.",
     get_bad},
    {"link_drops_total", "counter", "How often speed or width of the path dropped.", get_drops},
    {"link_looks_total", "counter", "Looks at the path.", get_looks},
};

static void show_metric(const struct fs *fs, const struct metric *metric, struct ut_text *out)
{
    ut_text_addf(out, "# HELP fabricfs_%s %s\n# TYPE fabricfs_%s %s\n", metric->name, metric->help,
                 metric->name, metric->type);
    for (unsigned i = 0; i < (unsigned)fs->settings->nodes; i++) {
        const struct fs_watched *watched = fs_watch_of(fs->watch, i);
        double value = watched ? metric->get(watched) : -1;
        if (value >= 0)
            ut_text_addf(out, "fabricfs_%s{node=\"%u\"} %.10g\n", metric->name, i, value);
    }
}

static void show_error_metric(const struct fs *fs, struct ut_text *out)
{
    ut_text_addf(out, "# HELP fabricfs_link_errors_total AER errors of all functions on the path.\n"
                      "# TYPE fabricfs_link_errors_total counter\n");
    for (unsigned i = 0; i < (unsigned)fs->settings->nodes; i++) {
        const struct fs_watched *watched = fs_watch_of(fs->watch, i);
        for (int kind = 0; watched && watched->now.has_counters && kind < UT_PCI_AER_KINDS; kind++)
            ut_text_addf(out, "fabricfs_link_errors_total{node=\"%u\",kind=\"%s\"} %" PRIu64 "\n", i,
                         ut_pci_aer_kind_name((enum ut_pci_aer_kind)kind), watched->trend.errors[kind]);
    }
}

static void show_suspect_metric(const struct fs *fs, struct ut_text *out)
{
    ut_text_addf(out,
                 "# HELP fabricfs_node_suspect 1 while errors or a flapping link make the node suspect.\n"
                 "# TYPE fabricfs_node_suspect gauge\n");
    for (unsigned i = 0; i < (unsigned)fs->settings->nodes; i++)
        ut_text_addf(out, "fabricfs_node_suspect{node=\"%u\"} %d\n", i, fs_watch_is_suspect((void *)fs, i));
}

void fs_watch_show_metrics(const struct fs *fs, struct ut_text *out)
{
    show_suspect_metric(fs, out);
    for (unsigned i = 0; i < sizeof(metrics) / sizeof(metrics[0]); i++)
        show_metric(fs, &metrics[i], out);
    show_error_metric(fs, out);
}
