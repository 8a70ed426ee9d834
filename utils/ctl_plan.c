#include "utils/ctl_plan.h"

#include <errno.h>
#include <string.h>

#include "utils/ctl_machine.h"
#include "utils/pci_plan.h"
#include "utils/pci_speed.h"

#define RESERVE 0.30        /* of the raw rate, kept free when planning, as the article advises */
#define ETHERNET_SHARE 0.88 /* of the line rate that TCP reaches with large frames */
#define CPU_STORE_BYTES 64  /* a write-combining line: what a processor's stores put into a packet */

static const unsigned WIDTHS[] = {1, 4, 8, 16};
static const unsigned PAYLOADS[] = {64, 128, 256, 512};
static const double ETHERNETS[] = {10, 25, 100}; /* Gb/s */
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* ---- figures ---- */

struct figures {
    struct ut_pci_rate rate;
    double raw, payload, cpu_store; /* GB/s of the link */
    double practice, reserved;      /* what the plan counts on; the raw rate without the reserve */
    double bytes_once;              /* bytes a node sends when its devices are reduced first */
    double bytes_each;              /* when every device's buffer travels */
};

static void work_out(const struct ctl_opts *opts, struct figures *f)
{
    f->rate = (struct ut_pci_rate){ut_pci_speed_of_gen((unsigned)opts->gen), (uint32_t)opts->width};
    f->raw = ut_pci_gbytes(f->rate);
    f->payload = f->raw * ut_pci_payload_share((unsigned)opts->payload_bytes);
    f->cpu_store = f->raw * ut_pci_payload_share(CPU_STORE_BYTES);
    f->practice = opts->gbytes > 0 ? opts->gbytes : f->raw * opts->efficiency;
    f->reserved = (opts->gbytes > 0 ? opts->gbytes : f->raw) * (1 - RESERVE);
    f->bytes_once = ut_pci_plan_ring_bytes((unsigned)opts->nodes, (double)opts->size_bytes);
    f->bytes_each = f->bytes_once * (double)opts->devices_a_node;
}

/* ---- text ---- */

static void show_bandwidth(const struct ctl_style *style, struct ut_text *text)
{
    ut_text_addf(text, "%sBandwidth, GB/s and direction%s\n  %-4s %8s", style->bold, style->off, "gen",
                 "GT/s");
    for (size_t i = 0; i < COUNT(WIDTHS); i++)
        ut_text_addf(text, "     x%-2u", WIDTHS[i]);
    for (size_t i = 0; i < COUNT(PAYLOADS); i++)
        ut_text_addf(text, "  x16/%-3uB", PAYLOADS[i]);
    ut_text_addf(text, "\n");
    for (unsigned gen = 1; gen <= 6; gen++) {
        uint32_t mts = ut_pci_speed_of_gen(gen);
        ut_text_addf(text, "  %-4u %8g", gen, mts / 1000.0);
        for (size_t i = 0; i < COUNT(WIDTHS); i++)
            ut_text_addf(text, " %7.3f", ut_pci_gbytes((struct ut_pci_rate){mts, WIDTHS[i]}));
        for (size_t i = 0; i < COUNT(PAYLOADS); i++)
            ut_text_addf(text, " %9.2f",
                         ut_pci_gbytes((struct ut_pci_rate){mts, 16}) * ut_pci_payload_share(PAYLOADS[i]));
        ut_text_addf(text, "\n");
    }
    ut_text_addf(text,
                 "  raw = GT/s x lanes x encoding / 8 (0.8; 128/130 from Gen3; 236/256 in Gen6);\n"
                 "  with payload P: raw x P/(P+%d)\n",
                 UT_PCI_TLP_OVERHEAD_BYTES);
}

static void show_link(const struct ctl_opts *opts, const struct figures *f, const struct ctl_style *style,
                      struct ut_text *text)
{
    char rate[UT_PCI_RATE_CHARS];
    ut_pci_rate_show(f->rate, rate);
    ut_text_addf(text, "\n%sThe link: Gen%u x%u (%s)%s\n", style->bold, (unsigned)opts->gen,
                 (unsigned)opts->width, rate, style->off);
    ut_text_addf(text, "  %7.2f GB/s raw\n  %7.2f GB/s with %u bytes in a packet\n", f->raw, f->payload,
                 (unsigned)opts->payload_bytes);
    ut_text_addf(text, "  %7.2f GB/s by stores of a processor (%d-byte packets)\n", f->cpu_store,
                 CPU_STORE_BYTES);
    if (opts->gbytes > 0)
        ut_text_addf(text, "  %7.2f GB/s as given: what this plan counts on\n", f->practice);
    else
        ut_text_addf(text, "  %7.2f GB/s at %.0f %% efficiency: what this plan counts on\n", f->practice,
                     opts->efficiency * 100);
    ut_text_addf(text, "  %7.2f GB/s with the %.0f %% reserve that the article advises\n", f->reserved,
                 RESERVE * 100);
}

static void time_row(const struct figures *f, const char *name, double gbytes, struct ut_text *text)
{
    ut_text_addf(text, "  %-24s %8.2f %14.1f %14.1f\n", name, gbytes, ut_pci_plan_ms(f->bytes_once, gbytes),
                 ut_pci_plan_ms(f->bytes_each, gbytes));
}

static void show_times(const struct ctl_opts *opts, const struct figures *f, const struct ctl_style *style,
                       struct ut_text *text)
{
    char size[24];
    double factor = ut_pci_plan_bus_factor((unsigned)opts->nodes);
    double ms = ut_pci_plan_ms(f->bytes_once, f->practice);
    ut_text_addf(text, "\n%sRing allreduce of %.1f MB, %u nodes, %u devices in each%s\n", style->bold,
                 (double)opts->size_bytes / 1e6, (unsigned)opts->nodes, (unsigned)opts->devices_a_node,
                 style->off);
    ut_text_addf(text,
                 "  each node sends 2(n-1)/n = %.3f buffers: %.1f MB when its devices are reduced first,\n"
                 "  %.1f MB when every device's buffer travels\n",
                 factor, f->bytes_once / 1e6, f->bytes_each / 1e6);
    ut_text_addf(text, "  %-24s %8s %14s %14s\n", "over", "GB/s", "reduced, ms", "unreduced, ms");
    time_row(f, "PCIe as planned", f->practice, text);
    time_row(f, "PCIe with reserve", f->reserved, text);
    time_row(f, "PCIe raw", f->raw, text);
    for (size_t i = 0; i < COUNT(ETHERNETS); i++) {
        snprintf(size, sizeof size, "%g GbE (%.0f %%)", ETHERNETS[i], ETHERNET_SHARE * 100);
        time_row(f, size, ETHERNETS[i] / 8 * ETHERNET_SHARE, text);
    }
    if (opts->nodes > 1)
        ut_text_addf(text, "  algbw %.2f GB/s, busbw %.2f GB/s (planned, reduced)\n",
                     (double)opts->size_bytes / ms / 1e6, (double)opts->size_bytes / ms / 1e6 * factor);
    else
        ut_text_addf(text, "  one node sends nothing\n");
    ut_text_addf(
        text, "  Times are lower bounds: copies in the nodes, latency of switches (about 1 us) and waiting\n"
              "  for the slowest come on top.\n");
}

static void show_cables(const struct ctl_opts *opts, const struct ctl_style *style, struct ut_text *text)
{
    unsigned list[] = {2, 4, 8, 16, (unsigned)opts->nodes};
    ut_text_addf(text, "\n%sCables%s\n  %-6s %16s %10s\n", style->bold, style->off, "nodes", "point to point",
                 "switch");
    for (size_t i = 0; i < COUNT(list); i++) {
        bool again = i == COUNT(list) - 1 && (list[i] == 2 || list[i] == 4 || list[i] == 8 || list[i] == 16);
        if (!again)
            ut_text_addf(text, "  %-6u %16llu %10u\n", list[i],
                         (unsigned long long)ut_pci_plan_mesh_cables(list[i]), list[i]);
    }
    ut_text_addf(
        text, "  point to point: n(n-1)/2, each link undivided; a ring needs only n of them. A switch: one\n"
              "  a node, its inner bandwidth shared.\n");
}

static void show_claims(const struct ctl_style *style, struct ut_text *text)
{
    struct ctl_claim claims[CTL_CLAIMS];
    unsigned count = ctl_plan_claims(claims);
    ut_text_addf(text, "%sThe articles' figures beside ours%s\n  %-10s %-50s %10s %10s\n", style->bold,
                 style->off, "where", "what", "theirs", "ours");
    for (unsigned i = 0; i < count; i++) {
        bool agrees = ctl_claim_agrees(&claims[i]);
        ut_text_addf(text, "  %-10s %-50s %10g %10.4g %s%s%s\n", claims[i].where, claims[i].claim,
                     claims[i].theirs, claims[i].ours, claims[i].unit, agrees ? "" : style->yellow,
                     agrees ? "" : "  differs");
        ut_text_addf(text, "%s", agrees ? "" : style->off);
        ctl_text_wrap(text, 13, claims[i].why);
    }
}

static int show_text(const struct ctl_opts *opts, const struct figures *f)
{
    struct ctl_style style = ctl_style_of(opts->colour);
    struct ut_text text = {0};
    if (!opts->seed) {
        show_bandwidth(&style, &text);
        show_link(opts, f, &style, &text);
        show_times(opts, f, &style, &text);
        show_cables(opts, &style, &text);
        ut_text_addf(&text, "\n");
    }
    show_claims(&style, &text);
    return ctl_text_print(&text);
}

/* ---- JSON ---- */

static json_t *bandwidth_json(void)
{
    json_t *list = json_array();
    for (unsigned gen = 1; gen <= 6; gen++) {
        uint32_t mts = ut_pci_speed_of_gen(gen);
        json_t *raw = json_object(), *payload = json_object();
        for (size_t i = 0; i < COUNT(WIDTHS); i++) {
            char key[8];
            snprintf(key, sizeof key, "x%u", WIDTHS[i]);
            json_object_set_new(raw, key, json_real(ut_pci_gbytes((struct ut_pci_rate){mts, WIDTHS[i]})));
        }
        for (size_t i = 0; i < COUNT(PAYLOADS); i++) {
            char key[8];
            snprintf(key, sizeof key, "%u", PAYLOADS[i]);
            json_object_set_new(
                payload, key,
                json_real(ut_pci_gbytes((struct ut_pci_rate){mts, 16}) * ut_pci_payload_share(PAYLOADS[i])));
        }
        json_array_append_new(list, json_pack("{s:i, s:f, s:o, s:o}", "gen", (int)gen, "gts", mts / 1000.0,
                                              "raw", raw, "x16_payload", payload));
    }
    return list;
}

static json_t *time_json(const struct figures *f, const char *name, double gbytes)
{
    return json_pack("{s:s, s:f, s:f, s:f}", "over", name, "gbytes", gbytes, "reduced_ms",
                     ut_pci_plan_ms(f->bytes_once, gbytes), "unreduced_ms",
                     ut_pci_plan_ms(f->bytes_each, gbytes));
}

static json_t *times_json(const struct figures *f)
{
    json_t *list = json_array();
    json_array_append_new(list, time_json(f, "pcie", f->practice));
    json_array_append_new(list, time_json(f, "pcie-reserve", f->reserved));
    json_array_append_new(list, time_json(f, "pcie-raw", f->raw));
    for (size_t i = 0; i < COUNT(ETHERNETS); i++) {
        char name[16];
        snprintf(name, sizeof name, "%ggbe", ETHERNETS[i]);
        json_array_append_new(list, time_json(f, name, ETHERNETS[i] / 8 * ETHERNET_SHARE));
    }
    return list;
}

static json_t *claims_json(void)
{
    struct ctl_claim claims[CTL_CLAIMS];
    unsigned count = ctl_plan_claims(claims);
    json_t *list = json_array();
    for (unsigned i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:f, s:f, s:s, s:b, s:s}", "where", claims[i].where,
                                              "what", claims[i].claim, "theirs", claims[i].theirs, "ours",
                                              claims[i].ours, "unit", claims[i].unit, "agrees",
                                              ctl_claim_agrees(&claims[i]), "why", claims[i].why));
    return list;
}

static int show_json(const struct ctl_opts *opts, const struct figures *f)
{
    json_t *link =
        json_pack("{s:i, s:i, s:f, s:f, s:f, s:f, s:f}", "gen", (int)opts->gen, "width", (int)opts->width,
                  "raw_gbytes", f->raw, "payload_gbytes", f->payload, "cpu_store_gbytes", f->cpu_store,
                  "planned_gbytes", f->practice, "reserve_gbytes", f->reserved);
    json_t *reduce = json_pack("{s:i, s:i, s:I, s:I, s:I, s:o}", "nodes", (int)opts->nodes,
                               "devices_per_node", (int)opts->devices_a_node, "buffer_bytes",
                               (json_int_t)opts->size_bytes, "sent_bytes_reduced", (json_int_t)f->bytes_once,
                               "sent_bytes_unreduced", (json_int_t)f->bytes_each, "times", times_json(f));
    json_t *cables =
        json_pack("{s:I, s:i}", "mesh", (json_int_t)ut_pci_plan_mesh_cables((unsigned)opts->nodes), "switch",
                  (int)opts->nodes);
    return ctl_json_print(json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "command", "plan", "bandwidth",
                                    bandwidth_json(), "link", link, "allreduce", reduce, "cables", cables,
                                    "articles", claims_json()));
}

enum ctl_exit ctl_plan(const struct ctl_opts *opts, struct ut_err *err)
{
    struct figures figures;
    work_out(opts, &figures);
    int rc = opts->json ? show_json(opts, &figures) : show_text(opts, &figures);
    if (rc)
        ut_err_set(err, rc, "%s", strerror(-rc));
    return rc ? CTL_ERROR : CTL_OK;
}
