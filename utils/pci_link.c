/*
 * Links: pairing the two ends, and the verdict.
 *
 * Speed and width are judged alike and apart. With both ends' capability known the link should run at the
 * lower one; with one known, falling short of it proves nothing; with none known there is nothing to say. A
 * port that reports its data link layer as down is down, whatever speed its status register still shows;
 * unless it calls its slot empty as well while a device behind it answers: it knows neither then, as the
 * ports of virtual machines do.
 */
#include "utils/pci_model.h"

#include <errno.h>
#include <pci/header.h>
#include <stdlib.h>
#include <string.h>

const char *ut_pci_verdict_name(enum ut_pci_verdict verdict)
{
    static const char *const NAMES[] = {"full",      "limited", "degraded", "idle",   "disabled",
                                        "undecided", "down",    "empty",    "unused", "unknown"};
    return verdict < UT_PCI_VERDICTS ? NAMES[verdict] : "n/a";
}

int ut_pci_verdict_rank(enum ut_pci_verdict verdict)
{
    static const enum ut_pci_verdict WORST_FIRST[] = {
        UT_PCI_DOWN,    UT_PCI_DEGRADED, UT_PCI_BELOW_OWN, UT_PCI_IDLE,   UT_PCI_DISABLED,
        UT_PCI_UNKNOWN, UT_PCI_LIMITED,  UT_PCI_FULL,      UT_PCI_UNUSED, UT_PCI_EMPTY,
    };
    int rank = 0;
    while (rank < UT_PCI_VERDICTS && WORST_FIRST[rank] != verdict)
        rank++;
    return rank;
}

bool ut_pci_verdict_is_fault(enum ut_pci_verdict verdict)
{
    return verdict == UT_PCI_DOWN || verdict == UT_PCI_DEGRADED;
}

/* ---- one quantity, speed or width ---- */

enum reach { REACHED, SHORT, OPEN, UNSAID };

static uint32_t lower(uint32_t above, uint32_t below)
{
    return above < below ? above : below;
}

static enum reach reach_of(uint32_t cur, uint32_t above, uint32_t below)
{
    uint32_t known = above && below ? lower(above, below) : above | below;
    if (!cur || !known)
        return UNSAID;
    if (cur >= known)
        return REACHED;
    return above && below ? SHORT : OPEN;
}

/* ---- exceptions from "degraded" ---- */

/* A function nobody has enabled carries no traffic. Bridges count as used: their traffic is others'. */
static bool in_use(const struct ut_pci_node *node)
{
    const unsigned decodes = PCI_COMMAND_IO | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;
    if (node->is_bridge)
        return true;
    if (node->fn->attrs.enabled >= 0)
        return node->fn->attrs.enabled > 0;
    return !node->caps.has_header || node->caps.command & decodes;
}

static bool any_in_use(const struct ut_pci_model *m, int link)
{
    int above = m->link[link].above;
    for (int at = m->node[above].child; at != UT_PCI_NONE; at = m->node[at].next)
        if (m->node[at].link == link && in_use(&m->node[at]))
            return true;
    return false;
}

static bool asleep(const struct ut_pci_attrs *attrs)
{
    return !strncmp(attrs->power, "D3", 2) || !strcmp(attrs->power, "D2") ||
           !strcmp(attrs->runtime, "suspended");
}

/* Lowered speed that is no fault: a sleeping device, a GPU at the speeds they idle at, or a port that says it
 * changed the speed by itself and not because the link was unreliable. */
static const char *idle_reason(const struct ut_pci_model *m, const struct ut_pci_link *link)
{
    const struct ut_pci_node *below = &m->node[link->below], *above = &m->node[link->above];
    uint16_t status = above->caps.express.has_link ? above->caps.express.lnksta : 0;
    if (link->narrower)
        return NULL;
    if (asleep(&below->fn->attrs))
        return "the device is in a power-saving state";
    if (below->kind == UT_PCI_KIND_GPU && link->cur.mts <= 5000)
        return "GPUs lower their speed while idle: look again under load";
    if (status & PCI_EXP_LNKSTA_AUTBW && !(status & PCI_EXP_LNKSTA_BWMGMT))
        return "the port lowered the speed by itself, not because of errors";
    return NULL;
}

static void excuse(const struct ut_pci_model *m, struct ut_pci_link *link, int idx)
{
    const char *idle = idle_reason(m, link);
    if (!any_in_use(m, idx)) {
        link->verdict = UT_PCI_DISABLED;
        link->why = "the device is not enabled, so nothing is lost";
    } else if (idle) {
        link->verdict = UT_PCI_IDLE;
        link->why = idle;
    }
}

/* The port may have been told to stay slow: by firmware, or by a kernel whose retraining failed. */
static bool held_by_target(const struct ut_pci_model *m, const struct ut_pci_link *link)
{
    const struct ut_pci_express *e = &m->node[link->above].caps.express;
    uint32_t target = e->has_link2 ? ut_pci_speed_of_code(PCI_EXP_LNKCTL2_SPEED(e->lnkctl2)) : 0;
    return link->slower && !link->narrower && target && target <= link->cur.mts;
}

/* Only the port tells; on the device the bit means nothing. */
static bool in_training(const struct ut_pci_model *m, const struct ut_pci_link *link)
{
    const struct ut_pci_express *e = link->above == UT_PCI_NONE ? NULL : &m->node[link->above].caps.express;
    return e && e->has_link && e->lnksta & PCI_EXP_LNKSTA_TRAIN;
}

/* ---- down, empty, unused ---- */

static bool slot_off(const struct ut_pci_express *e)
{
    return e->has_slot && e->sltcap & PCI_EXP_SLTCAP_PWRC && e->sltctl & PCI_EXP_SLTCTL_PWRC;
}

static void set(struct ut_pci_link *link, enum ut_pci_verdict verdict, const char *why)
{
    link->verdict = verdict;
    link->why = why;
}

static bool is_contained(const struct ut_pci_node *port)
{
    return port->caps.dpc.have == UT_PCI_PRESENT && port->caps.dpc.status & PCI_DPC_STS_TRIGGER;
}

static void judge_down(struct ut_pci_link *link, const struct ut_pci_node *port, bool has_device)
{
    const struct ut_pci_express *e = &port->caps.express;
    if (is_contained(port))
        set(link, UT_PCI_DOWN, "containment (DPC) has taken the link down after an error");
    else if (has_device)
        set(link, UT_PCI_DOWN, "the link is down, though devices behind it are still listed");
    else if (e->lnkctl & PCI_EXP_LNKCTL_DISABLE)
        set(link, UT_PCI_UNUSED, "the link is disabled by its control register");
    else if (slot_off(e))
        set(link, UT_PCI_UNUSED, "the slot is powered off");
    else if (!e->has_slot)
        set(link, UT_PCI_UNUSED, "the link is down or unused; the port has no slot to tell");
    else if (e->sltsta & PCI_EXP_SLTSTA_PRES)
        set(link, UT_PCI_DOWN, "the slot holds a card, but the link is down");
    else
        set(link, UT_PCI_EMPTY, "the slot is empty");
}

/* Whether a device directly behind the port has given its registers, and not all ones. */
static bool is_answered(const struct ut_pci_model *m, const struct ut_pci_node *port)
{
    static const uint8_t ONES[4] = {0xff, 0xff, 0xff, 0xff};
    for (int i = port->child; i != UT_PCI_NONE; i = m->node[i].next) {
        const struct ut_pci_fn *fn = m->node[i].fn;
        if (fn->cfg_len >= sizeof ONES && !fn->silent && memcmp(fn->cfg, ONES, sizeof ONES) != 0)
            return true;
    }
    return false;
}

/* Judges a port whose link is not up; false when it is, or may be. */
static bool judge_presence(const struct ut_pci_model *m, struct ut_pci_link *link)
{
    const struct ut_pci_node *port = &m->node[link->above];
    const struct ut_pci_express *e = &port->caps.express;
    bool has_device = port->child != UT_PCI_NONE;
    bool nothing = !has_device && m->snap->source == UT_PCI_LIVE && !ut_pci_express_link_up(e);
    if (!e->has_link && !nothing && (has_device || port->cur.width))
        return false;
    bool no_width = !(e->lnksta & PCI_EXP_LNKSTA_WIDTH), up = ut_pci_express_link_up(e);
    bool no_card = e->has_slot && !(e->sltsta & PCI_EXP_SLTSTA_PRES);
    bool unaware = no_card && !is_contained(port) && is_answered(m, port);
    bool down = ut_pci_express_link_down(e) && !unaware;
    if (e->has_link && (down || (!has_device && !up && (no_width || no_card)))) {
        judge_down(link, port, has_device);
        return true;
    }
    if (nothing || !e->has_link)
        set(link, UT_PCI_UNUSED, "nothing is behind the port");
    return nothing || !e->has_link;
}

/* ---- a link that is up ---- */

static enum ut_pci_limiter limiter_of(struct ut_pci_rate above, struct ut_pci_rate below)
{
    bool by_above = above.mts < below.mts || above.width < below.width;
    bool by_below = below.mts < above.mts || below.width < above.width;
    if (!ut_pci_rate_known(above) || !ut_pci_rate_known(below))
        return UT_PCI_LIMIT_UNKNOWN;
    if (by_above && by_below)
        return UT_PCI_LIMIT_BOTH;
    return by_above ? UT_PCI_LIMIT_ABOVE : by_below ? UT_PCI_LIMIT_BELOW : UT_PCI_LIMIT_NONE;
}

static const char *limited_why(enum ut_pci_limiter limiter)
{
    if (limiter == UT_PCI_LIMIT_BOTH)
        return "one end limits the speed, the other the width";
    return limiter == UT_PCI_LIMIT_ABOVE ? "limited by the port" : "limited by the device";
}

static bool one_end_missing(const struct ut_pci_model *m, const struct ut_pci_link *link)
{
    return link->above == UT_PCI_NONE || m->node[link->above].child == UT_PCI_NONE;
}

static const char *full_why(const struct ut_pci_model *m, const struct ut_pci_link *link)
{
    if (one_end_missing(m, link))
        return "all this end can do; the other end is not recorded";
    return link->limiter == UT_PCI_LIMIT_NONE ? "all both ends can do"
                                              : "all this end can do; the other states nothing";
}

static void judge_rate(const struct ut_pci_model *m, struct ut_pci_link *link, int idx)
{
    enum reach speed = reach_of(link->cur.mts, link->above_max.mts, link->below_max.mts);
    enum reach width = reach_of(link->cur.width, link->above_max.width, link->below_max.width);
    link->slower = speed == SHORT || speed == OPEN;
    link->narrower = width == SHORT || width == OPEN;
    if (link->ends_disagree) {
        set(link, UT_PCI_UNKNOWN, "the two ends state different speeds: read while it changed, look again");
    } else if ((link->slower || link->narrower) && in_training(m, link)) {
        set(link, UT_PCI_UNKNOWN, "the port is training it, which changes its speed and width: look again");
    } else if (speed == SHORT || width == SHORT) {
        set(link, UT_PCI_DEGRADED, "both ends can do more");
        if (held_by_target(m, link))
            link->why = "both ends can do more; the port's target speed is set this low";
        excuse(m, link, idx);
    } else if (speed == OPEN || width == OPEN) {
        set(link, UT_PCI_BELOW_OWN,
            one_end_missing(m, link)
                ? "below its own capability; the other end is not recorded, so the cause is open"
                : "below one end's capability; the other end states none");
    } else if (speed == UNSAID || width == UNSAID) {
        set(link, UT_PCI_UNKNOWN, "speed or width is unknown");
    } else if (link->limiter == UT_PCI_LIMIT_NONE || link->limiter == UT_PCI_LIMIT_UNKNOWN) {
        set(link, UT_PCI_FULL, full_why(m, link));
    } else {
        set(link, UT_PCI_LIMITED, limited_why(link->limiter));
    }
}

static void judge(const struct ut_pci_model *m, int idx)
{
    struct ut_pci_link *link = &m->link[idx];
    struct ut_pci_rate above = {0, 0}, below = {0, 0};
    if (link->above != UT_PCI_NONE) {
        above = m->node[link->above].cur;
        link->above_max = m->node[link->above].max;
    }
    if (link->below != UT_PCI_NONE) {
        below = m->node[link->below].cur;
        link->below_max = m->node[link->below].max;
    }
    link->cur = ut_pci_rate_known(above) ? above : below;
    link->ends_disagree = ut_pci_rate_known(above) && ut_pci_rate_known(below) &&
                          (above.mts != below.mts || above.width != below.width);
    if (link->above_max.mts && link->below_max.mts)
        link->want.mts = lower(link->above_max.mts, link->below_max.mts);
    if (link->above_max.width && link->below_max.width)
        link->want.width = lower(link->above_max.width, link->below_max.width);
    link->limiter = limiter_of(link->above_max, link->below_max);
    if (link->above == UT_PCI_NONE || !judge_presence(m, link))
        judge_rate(m, link, idx);
    else
        link->cur = (struct ut_pci_rate){0, 0};
}

/* ---- pairing ---- */

static int add_link(struct ut_pci_model *m, int above, int below)
{
    struct ut_pci_link *link = &m->link[m->link_count];
    memset(link, 0, sizeof *link);
    link->above = above;
    link->below = below;
    link->why = "";
    return (int)m->link_count++;
}

/* The functions on a port's bus are the other end of its link; the lowest that knows its capability speaks
 * for the device (virtual functions know nothing). */
static void pair_port(struct ut_pci_model *m, int port)
{
    int idx = add_link(m, port, UT_PCI_NONE), *below = &m->link[idx].below;
    m->node[port].link = idx;
    for (int at = m->node[port].child; at != UT_PCI_NONE; at = m->node[at].next) {
        struct ut_pci_node *node = &m->node[at];
        if (node->side != UT_PCI_SIDE_BELOW || node->parent_indirect)
            continue;
        node->link = idx;
        if (*below == UT_PCI_NONE ||
            (!ut_pci_rate_known(m->node[*below].max) && ut_pci_rate_known(node->max)))
            *below = at;
    }
}

/* A device whose port is not recorded has a link of its own; the functions of one device share it. */
static void pair_orphan(struct ut_pci_model *m, int at)
{
    struct ut_pci_node *node = &m->node[at];
    const struct ut_pci_node *before = at ? &m->node[at - 1] : NULL;
    bool shared = before && before->side == UT_PCI_SIDE_BELOW && before->link != UT_PCI_NONE &&
                  m->link[before->link].above == UT_PCI_NONE &&
                  ut_pci_addr_same_dev(before->fn->addr, node->fn->addr);
    node->link = shared ? before->link : add_link(m, UT_PCI_NONE, at);
}

int ut_pci_links_judge(struct ut_pci_model *m)
{
    m->link = calloc(m->node_count ? m->node_count : 1, sizeof *m->link);
    if (!m->link)
        return -ENOMEM;
    for (size_t i = 0; i < m->node_count; i++)
        if (m->node[i].side == UT_PCI_SIDE_ABOVE)
            pair_port(m, (int)i);
    for (size_t i = 0; i < m->node_count; i++)
        if (m->node[i].side == UT_PCI_SIDE_BELOW && m->node[i].link == UT_PCI_NONE)
            pair_orphan(m, (int)i);
    for (size_t i = 0; i < m->link_count; i++)
        judge(m, (int)i);
    return 0;
}

enum ut_pci_verdict ut_pci_node_verdict(const struct ut_pci_model *m, int idx)
{
    const struct ut_pci_node *node = &m->node[idx];
    if (node->link == UT_PCI_NONE)
        return UT_PCI_VERDICTS;
    enum ut_pci_verdict verdict = m->link[node->link].verdict;
    bool full =
        ut_pci_rate_known(node->max) && node->cur.mts >= node->max.mts && node->cur.width >= node->max.width;
    if (verdict == UT_PCI_LIMITED && full)
        return UT_PCI_FULL;
    return verdict;
}
