#include "utils/ctl_function.h"

#include <pci/header.h>
#include <stdio.h>

#include "utils/pci_errors.h"

static void set(json_t *object, const char *key, json_t *value)
{
    json_object_set_new(object, key, value);
}

static json_t *number_or_null(int value)
{
    return value < 0 ? json_null() : json_integer(value);
}

static json_t *text_or_null(const char *text)
{
    return *text ? json_string(text) : json_null();
}

static json_t *hex_json(unsigned value, int digits)
{
    char text[16];
    snprintf(text, sizeof text, "0x%0*x", digits, value);
    return json_string(text);
}

/* The bits of an AER status register, each with its mask and severity. */
static json_t *bits_json(uint32_t status, uint32_t mask, uint32_t severity, bool uncorrectable)
{
    json_t *list = json_array();
    for (unsigned bit = 0; bit < 32; bit++) {
        const char *name = uncorrectable ? ut_pci_aer_ue_name(bit) : ut_pci_aer_ce_name(bit);
        if (!(status >> bit & 1))
            continue;
        json_t *entry =
            json_pack("{s:s, s:b}", "name", name ? name : "reserved", "masked", (int)(mask >> bit & 1));
        if (uncorrectable)
            set(entry, "fatal", json_boolean(severity >> bit & 1));
        json_array_append_new(list, entry);
    }
    return list;
}

static json_t *aer_json(const struct ut_pci_aer *aer)
{
    json_t *value = json_pack("{s:s}", "present", ut_pci_have_word(aer->have));
    if (aer->have != UT_PCI_PRESENT)
        return value;
    set(value, "uncorrectable", bits_json(aer->ue_status, aer->ue_mask, aer->ue_severity, true));
    set(value, "correctable", bits_json(aer->ce_status, aer->ce_mask, 0, false));
    set(value, "uncorrectable_status", hex_json(aer->ue_status, 8));
    set(value, "uncorrectable_mask", hex_json(aer->ue_mask, 8));
    set(value, "correctable_status", hex_json(aer->ce_status, 8));
    set(value, "correctable_mask", hex_json(aer->ce_mask, 8));
    set(value, "first_error", json_integer(aer->first_error));
    set(value, "header_log_valid", json_boolean(aer->ue_status != 0));
    json_t *log = json_array();
    for (int i = 0; i < 4; i++)
        json_array_append_new(log, hex_json(aer->header_log[i], 8));
    set(value, "header_log", log);
    if (aer->has_root) {
        set(value, "root_command", hex_json(aer->root_command, 8));
        set(value, "root_status", hex_json(aer->root_status, 8));
    }
    return value;
}

static json_t *acs_json(const struct ut_pci_acs *acs)
{
    static const char *const BITS[] = {"SrcValid",    "TransBlk",   "ReqRedir",   "CmpltRedir",
                                       "UpstreamFwd", "EgressCtrl", "DirectTrans"};
    json_t *value = json_pack("{s:s}", "present", ut_pci_have_word(acs->have)), *on = json_array();
    if (acs->have != UT_PCI_PRESENT) {
        json_decref(on);
        return value;
    }
    for (int bit = 0; bit < 7; bit++)
        if (acs->ctl >> bit & 1)
            json_array_append_new(on, json_string(BITS[bit]));
    set(value, "cap", hex_json(acs->cap, 4));
    set(value, "ctl", hex_json(acs->ctl, 4));
    set(value, "enabled", on);
    set(value, "redirects_peers", json_boolean(ut_pci_acs_redirects(acs)));
    return value;
}

static json_t *counters_json(const struct ut_pci_attrs *attrs)
{
    json_t *value = json_object();
    if (!attrs->aer) {
        json_decref(value);
        return json_null();
    }
    for (int kind = 0; kind < UT_PCI_AER_KINDS; kind++) {
        const struct ut_pci_counters *file = &attrs->aer[kind];
        json_t *lines = json_object();
        for (size_t i = 0; i < file->line_count; i++)
            set(lines, file->line[i].name, json_integer((json_int_t)file->line[i].count));
        set(value, ut_pci_aer_kind_name((enum ut_pci_aer_kind)kind),
            file->present ? json_pack("{s:I, s:o}", "total", (json_int_t)file->total, "lines", lines)
                          : json_null());
        if (!file->present)
            json_decref(lines);
    }
    return value;
}

static json_t *slot_json(const struct ut_pci_express *e)
{
    if (!e->has_slot)
        return json_null();
    return json_pack("{s:b, s:b, s:b, s:i}", "present", (e->sltsta & PCI_EXP_SLTSTA_PRES) != 0, "hotplug",
                     (e->sltcap & PCI_EXP_SLTCAP_HPC) != 0, "surprise", (e->sltcap & PCI_EXP_SLTCAP_HPS) != 0,
                     "number", (int)(e->sltcap >> 19));
}

static json_t *express_json(const struct ut_pci_node *node)
{
    const struct ut_pci_express *e = &node->caps.express;
    json_t *value = json_pack("{s:s}", "present", ut_pci_have_word(e->have));
    if (e->have != UT_PCI_PRESENT)
        return value;
    bool reports = e->has_link && e->lnkcap & PCI_EXP_LNKCAP_DLLA;
    uint32_t target = e->has_link2 ? ut_pci_speed_of_code(PCI_EXP_LNKCTL2_SPEED(e->lnkctl2)) : 0;
    set(value, "device_status", hex_json(e->devsta & 0xf, 1));
    set(value, "max_payload", json_integer(128 << ((e->devctl & PCI_EXP_DEVCTL_PAYLOAD) >> 5)));
    set(value, "link_active", reports ? json_boolean((e->lnksta & PCI_EXP_LNKSTA_DL_ACT) != 0) : json_null());
    set(value, "target_gts", target ? json_real(target / 1000.0) : json_null());
    set(value, "slot", slot_json(e));
    return value;
}

static json_t *bars_json(const struct ut_pci_node *node)
{
    json_t *list = json_array();
    for (int i = 0; i < UT_PCI_BARS; i++) {
        const struct ut_pci_bar *bar = &node->caps.bar[i];
        char address[24];
        if (!bar->implemented)
            continue;
        snprintf(address, sizeof address, "0x%llx", (unsigned long long)bar->address);
        json_array_append_new(list, json_pack("{s:i, s:s, s:b, s:b, s:o}", "bar", i, "kind",
                                              bar->is_io ? "io" : "memory", "64bit", bar->is_64bit,
                                              "prefetchable", bar->is_prefetchable, "address",
                                              bar->address ? json_string(address) : json_null()));
    }
    return list;
}

static json_t *sriov_json(const struct ut_pci_node *node)
{
    const struct ut_pci_sriov *sriov = &node->caps.sriov;
    if (sriov->have == UT_PCI_PRESENT)
        return json_pack("{s:s, s:b, s:i, s:i}", "present", "yes", "enabled", sriov->enabled, "total_vfs",
                         (int)sriov->total_vfs, "num_vfs", sriov->enabled ? (int)sriov->num_vfs : 0);
    if (node->fn->attrs.total_vfs >= 0)
        return json_pack("{s:s, s:b, s:i, s:i}", "present", "yes", "enabled", node->fn->attrs.num_vfs > 0,
                         "total_vfs", node->fn->attrs.total_vfs, "num_vfs",
                         node->fn->attrs.num_vfs > 0 ? node->fn->attrs.num_vfs : 0);
    return json_pack("{s:s}", "present", ut_pci_have_word(sriov->have));
}

static void add_rare(json_t *value, const struct ut_pci_caps *caps)
{
    json_t *dvsecs = json_array();
    for (unsigned i = 0; i < caps->dvsec_count; i++)
        json_array_append_new(dvsecs, json_pack("{s:o, s:i}", "vendor", hex_json(caps->dvsec[i].vendor, 4),
                                                "id", (int)caps->dvsec[i].id));
    set(value, "dvsecs", dvsecs);
    set(value, "lane_errors",
        caps->lane_errors_have == UT_PCI_PRESENT ? hex_json(caps->lane_errors, 8) : json_null());
    set(value, "multicast",
        caps->multicast_have == UT_PCI_PRESENT ? json_pack("{s:b, s:i}", "enabled", caps->multicast_enabled,
                                                           "groups", (int)caps->multicast_groups)
                                               : json_null());
    set(value, "doe_status", caps->doe_have == UT_PCI_PRESENT ? hex_json(caps->doe_status, 8) : json_null());
    set(value, "capability_list_damaged", json_boolean(caps->list_damaged));
}

static void add_place(json_t *value, const struct ctl_machine *machine, int idx)
{
    const struct ut_pci_node *node = &machine->model->node[idx];
    const struct ut_pci_attrs *attrs = &node->fn->attrs;
    set(value, "parent", ctl_json_addr(machine, node->parent));
    set(value, "parent_recorded", json_boolean(!node->parent_missing && !node->parent_indirect));
    set(value, "secondary", number_or_null(node->secondary));
    set(value, "subordinate", number_or_null(node->subordinate));
    set(value, "numa_node", number_or_null(attrs->numa_node));
    set(value, "iommu_group", number_or_null(attrs->iommu_group));
    set(value, "iommu_type", text_or_null(attrs->iommu_type));
    set(value, "driver", text_or_null(attrs->driver));
    set(value, "power_state", text_or_null(attrs->power));
    set(value, "local_cpus", text_or_null(attrs->local_cpus));
}

json_t *ctl_function_json(const struct ctl_machine *machine, int idx)
{
    const struct ut_pci_node *node = &machine->model->node[idx];
    const struct ut_pci_caps *caps = &node->caps;
    char id[16];
    snprintf(id, sizeof id, "%04x:%04x", node->fn->vendor, node->fn->device);
    json_t *value =
        json_pack("{s:o, s:s, s:o, s:s, s:s, s:o}", "address", ctl_json_addr(machine, idx), "id", id, "class",
                  node->fn->has_class ? hex_json(node->fn->class_code, 6) : json_null(), "kind",
                  ut_pci_kind_name(node->kind), "type", ut_pci_type_name(node->type), "name",
                  json_string(ctl_name(machine, idx)));
    set(value, "responding", json_boolean(!node->fn->silent));
    set(value, "config_bytes", json_integer(node->fn->cfg_len));
    add_place(value, machine, idx);
    set(value, "link_verdict", json_string(ut_pci_verdict_name(ut_pci_node_verdict(machine->model, idx))));
    set(value, "max", ctl_json_rate(node->max));
    set(value, "current", ctl_json_rate(node->cur));
    set(value, "express", express_json(node));
    set(value, "bars", bars_json(node));
    set(value, "aer", aer_json(&caps->aer));
    set(value, "aer_counters", counters_json(&node->fn->attrs));
    set(value, "acs", acs_json(&caps->acs));
    set(value, "dpc",
        json_pack("{s:s, s:b}", "present", ut_pci_have_word(caps->dpc.have), "triggered",
                  caps->dpc.have == UT_PCI_PRESENT && caps->dpc.status & PCI_DPC_STS_TRIGGER));
    set(value, "sriov", sriov_json(node));
    add_rare(value, caps);
    return value;
}
