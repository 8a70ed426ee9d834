#include "utils/pci_caps.h"

#include <pci/header.h>
#include <string.h>

/* ---- bytes ---- */

static bool recorded(const struct ut_pci_fn *fn, unsigned offset, unsigned len)
{
    return offset + len <= fn->cfg_len;
}

static uint16_t reg16(const struct ut_pci_fn *fn, unsigned offset)
{
    return recorded(fn, offset, 2) ? (uint16_t)(fn->cfg[offset] | fn->cfg[offset + 1] << 8) : 0;
}

static uint32_t reg32(const struct ut_pci_fn *fn, unsigned offset)
{
    return reg16(fn, offset) | (uint32_t)reg16(fn, offset + 2) << 16;
}

/* Each aligned offset of configuration space once. */
struct visited {
    uint32_t bits[UT_PCI_CFG_BYTES / 4 / 32];
};

static bool visit(struct visited *seen, unsigned offset)
{
    uint32_t bit = 1u << (offset / 4 % 32), *word = &seen->bits[offset / 4 / 32];
    bool first = !(*word & bit);
    *word |= bit;
    return first;
}

/* ---- header ---- */

static void read_buses(const struct ut_pci_fn *fn, struct ut_pci_caps *caps)
{
    if (caps->header_type != 1 && caps->header_type != 2)
        return;
    if (!recorded(fn, PCI_PRIMARY_BUS, 3))
        return;
    caps->primary = fn->cfg[PCI_PRIMARY_BUS];
    caps->secondary = fn->cfg[PCI_SECONDARY_BUS];
    caps->subordinate = fn->cfg[PCI_SUBORDINATE_BUS];
    caps->has_buses = true;
}

static void read_bars(const struct ut_pci_fn *fn, struct ut_pci_caps *caps)
{
    unsigned count = caps->header_type == 0 ? 6 : caps->header_type == 1 ? 2 : 0;
    for (unsigned i = 0; i < count && recorded(fn, PCI_BASE_ADDRESS_0 + 4 * i, 4); i++) {
        uint32_t value = reg32(fn, PCI_BASE_ADDRESS_0 + 4 * i);
        struct ut_pci_bar *bar = &caps->bar[i];
        if (!value || value == 0xffffffff)
            continue;
        bar->implemented = true;
        bar->is_io = value & PCI_BASE_ADDRESS_SPACE_IO;
        bar->address = value & (bar->is_io ? ~3u : ~15u);
        if (bar->is_io)
            continue;
        bar->is_prefetchable = value & PCI_BASE_ADDRESS_MEM_PREFETCH;
        bar->is_64bit = (value & PCI_BASE_ADDRESS_MEM_TYPE_MASK) == PCI_BASE_ADDRESS_MEM_TYPE_64;
        if (bar->is_64bit && ++i < count)
            bar->address |= (uint64_t)reg32(fn, PCI_BASE_ADDRESS_0 + 4 * i) << 32;
    }
}

static void read_header(const struct ut_pci_fn *fn, struct ut_pci_caps *caps)
{
    if (fn->silent || !recorded(fn, 0, 16))
        return;
    caps->has_header = true;
    caps->command = reg16(fn, PCI_COMMAND);
    caps->status = reg16(fn, PCI_STATUS);
    caps->header_type = fn->cfg[PCI_HEADER_TYPE] & 0x7f;
    read_buses(fn, caps);
    read_bars(fn, caps);
}

/* ---- the Express capability ---- */

static bool type_has_link(unsigned type)
{
    return type <= UT_PCI_LEGACY_ENDPOINT || (type >= UT_PCI_ROOT_PORT && type <= UT_PCI_FROM_PCI_BRIDGE);
}

static void read_express(const struct ut_pci_fn *fn, unsigned at, struct ut_pci_express *e)
{
    uint16_t flags = reg16(fn, at + PCI_EXP_FLAGS);
    e->have = UT_PCI_PRESENT;
    e->at = at;
    e->type = (flags & PCI_EXP_FLAGS_TYPE) >> 4;
    e->version = flags & PCI_EXP_FLAGS_VERS;
    e->devcap = reg32(fn, at + PCI_EXP_DEVCAP);
    e->devctl = reg16(fn, at + PCI_EXP_DEVCTL);
    e->devsta = reg16(fn, at + PCI_EXP_DEVSTA);
    e->has_link = type_has_link(e->type) && recorded(fn, at, PCI_EXP_SLTCAP);
    if (e->has_link) {
        e->lnkcap = reg32(fn, at + PCI_EXP_LNKCAP);
        e->lnkctl = reg16(fn, at + PCI_EXP_LNKCTL);
        e->lnksta = reg16(fn, at + PCI_EXP_LNKSTA);
    }
    e->has_slot = flags & PCI_EXP_FLAGS_SLOT && recorded(fn, at, PCI_EXP_SLTSTA + 2) &&
                  (e->type == UT_PCI_ROOT_PORT || e->type == UT_PCI_DOWNSTREAM);
    if (e->has_slot) {
        e->sltcap = reg32(fn, at + PCI_EXP_SLTCAP);
        e->sltctl = reg16(fn, at + PCI_EXP_SLTCTL);
        e->sltsta = reg16(fn, at + PCI_EXP_SLTSTA);
    }
    e->has_link2 = e->has_link && e->version >= 2 && recorded(fn, at, PCI_EXP_LNKCTL2 + 2);
    if (e->has_link2) {
        e->lnkcap2 = reg32(fn, at + PCI_EXP_LNKCAP2);
        e->lnkctl2 = reg16(fn, at + PCI_EXP_LNKCTL2);
    }
}

/* Why a list that could not be followed to its end is not known. */
static enum ut_pci_have unknown(const struct ut_pci_fn *fn)
{
    if (fn->silent)
        return UT_PCI_SILENCE;
    return fn->needs_root ? UT_PCI_NEEDS_ROOT : UT_PCI_NOT_RECORDED;
}

/* Follows the conventional list to the Express capability. */
static void find_express(const struct ut_pci_fn *fn, struct ut_pci_caps *caps)
{
    struct visited seen = {0};
    caps->express.type = UT_PCI_TYPE_UNKNOWN;
    caps->express.have = unknown(fn);
    if (!caps->has_header)
        return;
    if (!(caps->status & PCI_STATUS_CAP_LIST)) {
        caps->express.have = UT_PCI_ABSENT;
        return;
    }
    unsigned pointer = caps->header_type == 2 ? PCI_CB_CAPABILITY_LIST : PCI_CAPABILITY_LIST;
    if (!recorded(fn, pointer, 1))
        return;
    unsigned at = fn->cfg[pointer] & ~3u;
    while (at) {
        if (at < 0x40 || !visit(&seen, at)) {
            caps->list_damaged = true;
            return;
        }
        if (!recorded(fn, at, 2))
            return;
        if (fn->cfg[at] == PCI_CAP_ID_EXP) {
            if (recorded(fn, at, PCI_EXP_LNKCAP))
                read_express(fn, at, &caps->express);
            return;
        }
        at = fn->cfg[at + 1] & ~3u;
    }
    caps->express.have = UT_PCI_ABSENT;
}

/* ---- extended capabilities ---- */

static void read_aer(const struct ut_pci_fn *fn, unsigned at, struct ut_pci_caps *caps)
{
    struct ut_pci_aer *aer = &caps->aer;
    if (!recorded(fn, at, PCI_ERR_HEADER_LOG + 16))
        return;
    aer->have = UT_PCI_PRESENT;
    aer->at = at;
    aer->ue_status = reg32(fn, at + PCI_ERR_UNCOR_STATUS);
    aer->ue_mask = reg32(fn, at + PCI_ERR_UNCOR_MASK);
    aer->ue_severity = reg32(fn, at + PCI_ERR_UNCOR_SEVER);
    aer->ce_status = reg32(fn, at + PCI_ERR_COR_STATUS);
    aer->ce_mask = reg32(fn, at + PCI_ERR_COR_MASK);
    aer->first_error = PCI_ERR_CAP_FEP(reg32(fn, at + PCI_ERR_CAP));
    for (unsigned i = 0; i < 4; i++)
        aer->header_log[i] = reg32(fn, at + PCI_ERR_HEADER_LOG + 4 * i);
    if (aer->ue_status == 0xffffffff && aer->ce_status == 0xffffffff)
        aer->have = UT_PCI_SILENCE;
    unsigned type = caps->express.type;
    aer->has_root = (type == UT_PCI_ROOT_PORT || type == UT_PCI_RC_EVENT_COLLECTOR) &&
                    recorded(fn, at, PCI_ERR_ROOT_STATUS + 4);
    if (aer->has_root) {
        aer->root_command = reg32(fn, at + PCI_ERR_ROOT_COMMAND);
        aer->root_status = reg32(fn, at + PCI_ERR_ROOT_STATUS);
    }
}

static void read_sriov(const struct ut_pci_fn *fn, unsigned at, struct ut_pci_sriov *sriov)
{
    if (!recorded(fn, at, PCI_IOV_NUMVF + 2))
        return;
    sriov->have = UT_PCI_PRESENT;
    sriov->enabled = reg16(fn, at + PCI_IOV_CTRL) & PCI_IOV_CTRL_VFE;
    sriov->total_vfs = reg16(fn, at + PCI_IOV_TOTALVF);
    sriov->num_vfs = reg16(fn, at + PCI_IOV_NUMVF);
}

static void read_dvsec(const struct ut_pci_fn *fn, unsigned at, struct ut_pci_caps *caps)
{
    if (!recorded(fn, at, PCI_DVSEC_HEADER2 + 2) || caps->dvsec_count == UT_PCI_MAX_DVSECS)
        return;
    caps->dvsec[caps->dvsec_count].vendor = reg16(fn, at + PCI_DVSEC_HEADER1);
    caps->dvsec[caps->dvsec_count++].id = reg16(fn, at + PCI_DVSEC_HEADER2);
}

static void read_extended(const struct ut_pci_fn *fn, unsigned id, unsigned at, struct ut_pci_caps *caps)
{
    if (id == PCI_EXT_CAP_ID_AER) {
        read_aer(fn, at, caps);
    } else if (id == PCI_EXT_CAP_ID_ACS && recorded(fn, at, PCI_ACS_CTRL + 2)) {
        caps->acs =
            (struct ut_pci_acs){UT_PCI_PRESENT, reg16(fn, at + PCI_ACS_CAP), reg16(fn, at + PCI_ACS_CTRL)};
    } else if (id == PCI_EXT_CAP_ID_DPC && recorded(fn, at, PCI_DPC_STATUS + 2)) {
        caps->dpc = (struct ut_pci_dpc){UT_PCI_PRESENT, at, reg16(fn, at + PCI_DPC_CTL),
                                        reg16(fn, at + PCI_DPC_STATUS)};
    } else if (id == PCI_EXT_CAP_ID_SRIOV) {
        read_sriov(fn, at, &caps->sriov);
    } else if (id == PCI_EXT_CAP_ID_SECPCI && recorded(fn, at, PCI_SEC_LANE_ERR + 4)) {
        caps->lane_errors_have = UT_PCI_PRESENT;
        caps->lane_errors = reg32(fn, at + PCI_SEC_LANE_ERR);
    } else if (id == PCI_EXT_CAP_ID_MCAST && recorded(fn, at, 8)) {
        caps->multicast_have = UT_PCI_PRESENT;
        caps->multicast_enabled = reg16(fn, at + 6) & 0x8000;
        caps->multicast_groups = (reg16(fn, at + 6) & 0x3fu) + 1;
    } else if (id == PCI_EXT_CAP_ID_DOE && recorded(fn, at, PCI_DOE_STS + 4)) {
        caps->doe_have = UT_PCI_PRESENT;
        caps->doe_status = reg32(fn, at + PCI_DOE_STS);
    } else if (id == PCI_EXT_CAP_ID_DVSEC) {
        read_dvsec(fn, at, caps);
    }
}

static void set_extended(struct ut_pci_caps *caps, enum ut_pci_have have)
{
    enum ut_pci_have *all[] = {&caps->aer.have,   &caps->acs.have,         &caps->dpc.have,
                               &caps->sriov.have, &caps->lane_errors_have, &caps->multicast_have,
                               &caps->doe_have};
    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)
        if (*all[i] != UT_PCI_PRESENT && *all[i] != UT_PCI_SILENCE)
            *all[i] = have;
}

/* Follows the extended list; what it finds is kept even when the list turns out to be cut or to loop. */
static enum ut_pci_have walk_extended(const struct ut_pci_fn *fn, struct ut_pci_caps *caps)
{
    struct visited seen = {0};
    unsigned at = 0x100;
    while (at) {
        if (!recorded(fn, at, 4))
            return unknown(fn);
        uint32_t header = reg32(fn, at);
        if (at == 0x100 && (!header || header == 0xffffffff))
            return UT_PCI_ABSENT;
        if (at < 0x100 || !visit(&seen, at)) {
            caps->list_damaged = true;
            return UT_PCI_NOT_RECORDED;
        }
        read_extended(fn, header & 0xffff, at, caps);
        at = header >> 20 & ~3u;
    }
    return UT_PCI_ABSENT;
}

void ut_pci_caps_read(const struct ut_pci_fn *fn, struct ut_pci_caps *caps)
{
    memset(caps, 0, sizeof *caps);
    read_header(fn, caps);
    find_express(fn, caps);
    set_extended(caps, UT_PCI_NOT_RECORDED);
    if (caps->express.have == UT_PCI_PRESENT)
        set_extended(caps, walk_extended(fn, caps));
    else
        set_extended(caps, caps->express.have == UT_PCI_ABSENT ? UT_PCI_NA : caps->express.have);
}

bool ut_pci_express_link_down(const struct ut_pci_express *e)
{
    return e->has_link && e->lnkcap & PCI_EXP_LNKCAP_DLLA && !(e->lnksta & PCI_EXP_LNKSTA_DL_ACT);
}

bool ut_pci_express_link_up(const struct ut_pci_express *e)
{
    return e->has_link && e->lnkcap & PCI_EXP_LNKCAP_DLLA && e->lnksta & PCI_EXP_LNKSTA_DL_ACT;
}

/* ---- words ---- */

const char *ut_pci_have_word(enum ut_pci_have have)
{
    static const char *const WORDS[] = {"no", "yes", "n/a", "not recorded", "needs root", "not responding"};
    return WORDS[have];
}

const char *ut_pci_type_name(unsigned type)
{
    static const char *const NAMES[] = {
        [UT_PCI_ENDPOINT] = "endpoint",
        [UT_PCI_LEGACY_ENDPOINT] = "legacy endpoint",
        [UT_PCI_ROOT_PORT] = "root port",
        [UT_PCI_UPSTREAM] = "switch upstream port",
        [UT_PCI_DOWNSTREAM] = "switch downstream port",
        [UT_PCI_TO_PCI_BRIDGE] = "PCIe-to-PCI bridge",
        [UT_PCI_FROM_PCI_BRIDGE] = "PCI-to-PCIe bridge",
        [UT_PCI_RC_ENDPOINT] = "root complex integrated endpoint",
        [UT_PCI_RC_EVENT_COLLECTOR] = "root complex event collector",
    };
    const char *name = type < sizeof NAMES / sizeof NAMES[0] ? NAMES[type] : NULL;
    return name ? name : "function";
}

const char *ut_pci_aer_ce_name(unsigned bit)
{
    static const char *const NAMES[32] = {
        [0] = "RxErr",    [6] = "BadTLP",          [7] = "BadDLLP",     [8] = "Rollover",
        [12] = "Timeout", [13] = "AdvNonFatalErr", [14] = "CorrIntErr", [15] = "HeaderOF"};
    return bit < 32 ? NAMES[bit] : NULL;
}

const char *ut_pci_aer_ue_name(unsigned bit)
{
    static const char *const NAMES[32] = {[0] = "Undefined",      [4] = "DLP",
                                          [5] = "SDES",           [12] = "PoisonedTLP",
                                          [13] = "FCP",           [14] = "CmpltTO",
                                          [15] = "CmpltAbrt",     [16] = "UnxCmplt",
                                          [17] = "RxOF",          [18] = "MalfTLP",
                                          [19] = "ECRC",          [20] = "UnsupReq",
                                          [21] = "ACSViol",       [22] = "UncorrIntErr",
                                          [23] = "BlockedTLP",    [24] = "AtomicOpBlocked",
                                          [25] = "TLPBlockedErr", [26] = "PoisonTLPBlocked"};
    return bit < 32 ? NAMES[bit] : NULL;
}
