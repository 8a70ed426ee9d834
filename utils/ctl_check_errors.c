/*
 * Checks of errors: functions that do not respond, the kernel's AER counters, sticky status bits,
 * containment.
 *
 * Counters say how much since boot; bits say that it happened at all, some time. Neither was "just now": that
 * is for the daemon, which looks twice.
 */
#include <pci/header.h>
#include <stdio.h>
#include <string.h>

#include "utils/ctl_find.h"
#include "utils/pci_errors.h"

#define LISTED_MAX 16       /* functions that one finding names */
#define MANY_CORRECTED 1000 /* that many corrected errors since boot deserve a look at the cable */

static void check_silence(const struct ctl_case *c, int idx)
{
    const struct ut_pci_fn *fn = c->model->node[idx].fn;
    if (!fn->silent)
        return;
    bool asleep = !strncmp(fn->attrs.power, "D3", 2);
    struct ctl_finding *f =
        ctl_find(c, asleep ? CTL_NOTE : CTL_WARNING, "not-responding", idx, "function does not respond");
    ctl_evidence(f, "all %u bytes of configuration space read ff", fn->cfg_len);
    if (fn->attrs.power[0])
        ctl_evidence(f, "power state %s", fn->attrs.power);
    ctl_advise(f, "It is gone, powered down or hung: reads return all ones and writes vanish.",
               "Look at the link of the port above and at the kernel log; a sleeping device (D3cold) wakes "
               "when used.");
}

/* ---- sticky bits ---- */

static void name_bits(struct ctl_finding *f, uint32_t status, uint32_t mask, uint32_t severity,
                      bool uncorrectable)
{
    for (unsigned bit = 0; bit < 32; bit++) {
        uint32_t flag = 1u << bit;
        const char *name = uncorrectable ? ut_pci_aer_ue_name(bit) : ut_pci_aer_ce_name(bit);
        if (!(status & flag))
            continue;
        ctl_evidence(f, "%s %s (%s%s)", uncorrectable ? "uncorrectable" : "correctable",
                     name ? name : "reserved bit",
                     !uncorrectable    ? ""
                     : severity & flag ? "fatal, "
                                       : "non-fatal, ",
                     mask & flag ? "masked" : "unmasked");
    }
}

static enum ctl_severity severity_of(const struct ut_pci_aer *aer)
{
    return ut_pci_aer_severity(aer) >= UT_PCI_UNCORRECTED ? CTL_WARNING : CTL_NOTE;
}

static void check_aer_bits(const struct ctl_case *c, int idx)
{
    const struct ut_pci_aer *aer = &c->model->node[idx].caps.aer;
    if (ut_pci_aer_severity(aer) == UT_PCI_QUIET)
        return;
    struct ctl_finding *f =
        ctl_find(c, severity_of(aer), "aer-status", idx, "AER status bits are set: history");
    name_bits(f, aer->ue_status, aer->ue_mask, aer->ue_severity, true);
    name_bits(f, aer->ce_status, aer->ce_mask, 0, false);
    if (aer->ue_status)
        ctl_evidence(f, "first error %02x, header log %08x %08x %08x %08x", aer->first_error,
                     aer->header_log[0], aer->header_log[1], aer->header_log[2], aer->header_log[3]);
    ctl_advise(f, "The bits are sticky: the error happened at some time since they were last cleared.",
               "Compare the counters of both ends over time; unsupported requests also stem from bus scans.");
}

/* History outside AER, told only where AER does not tell it already. Most machines have some, so it is one
 * note for all. */
static bool has_history(const struct ut_pci_caps *caps)
{
    const unsigned bits = PCI_EXP_DEVSTA_CED | PCI_EXP_DEVSTA_NFED | PCI_EXP_DEVSTA_FED | PCI_EXP_DEVSTA_URD;
    return caps->express.have == UT_PCI_PRESENT && caps->express.devsta & bits &&
           ut_pci_aer_severity(&caps->aer) == UT_PCI_QUIET;
}

static void evidence_history(const struct ctl_case *c, int idx, struct ctl_finding *f)
{
    const struct ut_pci_caps *caps = &c->model->node[idx].caps;
    unsigned devsta = caps->express.devsta;
    ctl_evidence(
        f, "%s: DevSta%s%s%s%s%s%s, AER %s", ctl_addr(c->machine, idx),
        devsta & PCI_EXP_DEVSTA_CED ? " CorrErr+" : "", devsta & PCI_EXP_DEVSTA_NFED ? " NonFatalErr+" : "",
        devsta & PCI_EXP_DEVSTA_FED ? " FatalErr+" : "", devsta & PCI_EXP_DEVSTA_URD ? " UnsupReq+" : "",
        caps->status & PCI_STATUS_SIG_SYSTEM_ERROR ? ", PCI status >SERR+" : "",
        caps->status & PCI_STATUS_SIG_TARGET_ABORT ? ", PCI status >TAbort+" : "",
        caps->aer.have == UT_PCI_PRESENT ? "all status bits 0" : ut_pci_have_word(caps->aer.have));
}

static void check_history(const struct ctl_case *c)
{
    struct ctl_finding *f = NULL;
    unsigned count = 0;
    for (size_t i = 0; i < c->model->node_count; i++) {
        if (!has_history(&c->model->node[i].caps))
            continue;
        if (!count++)
            f = ctl_find(c, CTL_NOTE, "error-history", (int)i, "device status remembers errors: history");
        if (count <= LISTED_MAX)
            evidence_history(c, (int)i, f);
    }
    if (count > LISTED_MAX)
        ctl_evidence(f, "and %u more", count - LISTED_MAX);
    ctl_advise(f, "The bits are sticky and are often left by the firmware's own bus scan.",
               "Nothing, unless the counters of these links grow.");
}

static void check_lanes(const struct ctl_case *c, int idx)
{
    const struct ut_pci_caps *caps = &c->model->node[idx].caps;
    if (caps->lane_errors_have != UT_PCI_PRESENT || !caps->lane_errors || caps->lane_errors == 0xffffffff)
        return;
    struct ctl_finding *f = ctl_find(c, CTL_NOTE, "lane-errors", idx, "lane errors were seen: history");
    ctl_evidence(f, "lane error status %08x", caps->lane_errors);
    for (unsigned first = 0, last; first < 32; first = last + 1) {
        for (last = first; last < 31 && caps->lane_errors >> first & 1 && caps->lane_errors >> (last + 1) & 1;
             last++)
            ;
        if (caps->lane_errors >> first & 1)
            ctl_evidence(f, "lanes %u to %u", first, last);
    }
    ctl_advise(f, "The bits are sticky; link training alone can set them.",
               "Nothing while the link runs at full width; else suspect those lanes.");
}

static void check_containment(const struct ctl_case *c, int idx)
{
    const struct ut_pci_dpc *dpc = &c->model->node[idx].caps.dpc;
    static const char *const REASONS[] = {"an unmasked uncorrectable error", "ERR_NONFATAL from below",
                                          "ERR_FATAL from below", "another reason"};
    if (dpc->have != UT_PCI_PRESENT || dpc->status == 0xffff || !(dpc->status & PCI_DPC_STS_TRIGGER))
        return;
    struct ctl_finding *f =
        ctl_find(c, CTL_FAULT, "dpc-triggered", idx, "containment (DPC) has taken the link down");
    ctl_evidence(f, "triggered by %s", REASONS[PCI_DPC_STS_REASON(dpc->status)]);
    ctl_advise(
        f, "The port keeps the link down until software releases it.",
        "Read the kernel log for the error; the kernel recovers the port when its driver handles DPC.");
}

static void check_doe(const struct ctl_case *c, int idx)
{
    const struct ut_pci_caps *caps = &c->model->node[idx].caps;
    if (caps->doe_have != UT_PCI_PRESENT || !(caps->doe_status & 4) || caps->doe_status == 0xffffffff)
        return;
    struct ctl_finding *f =
        ctl_find(c, CTL_NOTE, "doe-error", idx, "the data object mailbox (DOE) reports an error");
    ctl_evidence(f, "DOE status %08x", caps->doe_status);
    ctl_advise(f, "It concerns management traffic only.", "Nothing, unless attestation or CXL tools fail.");
}

/* ---- counters ---- */

static void name_counters(const struct ut_pci_counters *counters, const char *kind, struct ctl_finding *f)
{
    char text[400] = "";
    size_t len = 0;
    for (size_t i = 0; i < counters->line_count && len < sizeof text - 60; i++)
        if (counters->line[i].count)
            len += (size_t)snprintf(text + len, sizeof text - len, " %s %llu", counters->line[i].name,
                                    (unsigned long long)counters->line[i].count);
    ctl_evidence(f, "%s: total %llu,%s", kind, (unsigned long long)counters->total,
                 len ? text : " no line above 0");
}

static void evidence_both_ends(const struct ctl_case *c, int idx, struct ctl_finding *f)
{
    struct ut_pci_link_errors both;
    int link = c->model->node[idx].link;
    if (link == UT_PCI_NONE)
        return;
    ut_pci_link_errors(c->model, link, &both);
    ctl_evidence(f, "both ends of the link together: %llu correctable, %llu nonfatal, %llu fatal",
                 (unsigned long long)both.total[UT_PCI_AER_COR],
                 (unsigned long long)both.total[UT_PCI_AER_NONFATAL],
                 (unsigned long long)both.total[UT_PCI_AER_FATAL]);
}

static void check_counters(const struct ctl_case *c, int idx)
{
    const struct ut_pci_counters *aer = c->model->node[idx].fn->attrs.aer;
    uint64_t total[UT_PCI_AER_KINDS];
    if (!aer)
        return;
    for (int kind = 0; kind < UT_PCI_AER_KINDS; kind++)
        total[kind] = ut_pci_counter_total(&aer[kind]);
    bool uncorrected = total[UT_PCI_AER_NONFATAL] || total[UT_PCI_AER_FATAL];
    if (!uncorrected && !total[UT_PCI_AER_COR])
        return;
    bool serious = uncorrected || total[UT_PCI_AER_COR] >= MANY_CORRECTED;
    struct ctl_finding *f = ctl_find(c, serious ? CTL_WARNING : CTL_NOTE, "aer-counters", idx,
                                     "AER counters are not zero: errors since boot");
    for (int kind = 0; kind < UT_PCI_AER_KINDS; kind++)
        if (total[kind])
            name_counters(&aer[kind], ut_pci_aer_kind_name((enum ut_pci_aer_kind)kind), f);
    evidence_both_ends(c, idx, f);
    ctl_advise(
        f, "Corrected errors cost bandwidth and, in numbers, CPU time; uncorrected ones lose data.",
        "Watch whether they grow (fabricctl links --watch, the daemon's events); if so check cable, seating, "
        "power and temperature of this link, and take the node out of the job.");
}

/* ---- reporting ---- */

static bool reports_nothing(const struct ut_pci_node *node)
{
    const unsigned enables =
        PCI_ERR_ROOT_CMD_COR_EN | PCI_ERR_ROOT_CMD_NONFATAL_EN | PCI_ERR_ROOT_CMD_FATAL_EN;
    return node->caps.aer.have == UT_PCI_PRESENT && node->caps.aer.has_root &&
           !(node->caps.aer.root_command & enables);
}

static void check_reporting(const struct ctl_case *c)
{
    struct ctl_finding *f = NULL;
    for (size_t i = 0; i < c->model->node_count; i++) {
        if (!reports_nothing(&c->model->node[i]))
            continue;
        if (!f)
            f = ctl_find(c, CTL_NOTE, "aer-reporting-off", (int)i,
                         "root ports do not report errors to the kernel");
        ctl_evidence(f, "%s: root command %x", ctl_addr(c->machine, (int)i),
                     c->model->node[i].caps.aer.root_command);
    }
    ctl_advise(
        f, "The kernel's counters then stay 0 whatever happens; firmware may handle the errors instead.",
        "If errors should be seen here, let firmware hand AER to the system; pci=noaer must not be set.");
}

void ctl_check_errors(const struct ctl_case *c)
{
    for (size_t i = 0; i < c->model->node_count; i++) {
        check_silence(c, (int)i);
        check_containment(c, (int)i);
        check_aer_bits(c, (int)i);
        check_counters(c, (int)i);
        check_lanes(c, (int)i);
        check_doe(c, (int)i);
    }
    check_history(c);
    check_reporting(c);
}
