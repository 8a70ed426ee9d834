/*
 * The tree, the verdicts on links, and paths, on machines of a few functions made up for each test.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/pci/make.h"
#include "utils/pci_errors.h"
#include "utils/pci_model.h"
#include "utils/pci_path.h"

#define GPU 0x030200
#define NIC 0x020000
#define BRIDGE 0x060400
#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static struct ut_text text;
static struct ut_pci_snap *snap;
static struct ut_pci_model *model;

static void build(const struct make_fn *fns, size_t count, size_t bytes)
{
    for (size_t i = 0; i < count; i++)
        make_hex(&text, &fns[i], bytes);
    cr_assert_eq(ut_pci_snap_dump_text(text.bytes, text.len, &snap), 0);
    cr_assert_eq(ut_pci_model_new(snap, &model), 0);
}

static void clean(void)
{
    ut_pci_model_free(model);
    ut_pci_snap_free(snap);
    ut_text_fini(&text);
}

static int node_at(const char *address)
{
    struct ut_pci_addr addr;
    cr_assert_eq(ut_pci_addr_parse(address, &addr), 0);
    return ut_pci_model_find(model, addr);
}

static const struct ut_pci_link *link_at(const char *address)
{
    int node = node_at(address);
    cr_assert_neq(node, UT_PCI_NONE);
    cr_assert_neq(model->node[node].link, UT_PCI_NONE);
    return &model->link[model->node[node].link];
}

static struct make_fn port(const char *address, unsigned type, unsigned speed, unsigned width,
                           unsigned secondary, unsigned subordinate)
{
    return (struct make_fn){.address = address,
                            .class_code = BRIDGE,
                            .type = type,
                            .cap_speed = speed,
                            .cap_width = width,
                            .now_speed = speed,
                            .now_width = width,
                            .secondary = secondary,
                            .subordinate = subordinate,
                            .active = 1,
                            .slot = 1};
}

static struct make_fn device(const char *address, unsigned class_code, unsigned speed, unsigned width)
{
    return (struct make_fn){.address = address,
                            .class_code = class_code,
                            .cap_speed = speed,
                            .cap_width = width,
                            .now_speed = speed,
                            .now_width = width};
}

static void run_at(struct make_fn fns[2], unsigned speed, unsigned width)
{
    for (int i = 0; i < 2; i++) {
        fns[i].now_speed = speed;
        fns[i].now_width = width;
    }
}

/* ---- verdicts ---- */

Test(pci_link, a_narrow_card_in_a_wide_port_is_healthy, .fini = clean)
{
    struct make_fn fns[] = {port("00:01.0", UT_PCI_ROOT_PORT, 4, 16, 1, 1), device("01:00.0", NIC, 3, 8)};
    run_at(fns, 3, 8);
    build(fns, COUNT(fns), 256);
    cr_assert_eq(link_at("01:00.0")->verdict, UT_PCI_LIMITED);
    cr_assert_eq(link_at("01:00.0")->limiter, UT_PCI_LIMIT_BELOW);
    cr_assert_eq(ut_pci_node_verdict(model, node_at("01:00.0")), UT_PCI_FULL);
    cr_assert_eq(ut_pci_node_verdict(model, node_at("00:01.0")), UT_PCI_LIMITED);
}

Test(pci_link, slower_than_both_ends_can_is_degraded, .fini = clean)
{
    struct make_fn fns[] = {port("00:01.0", UT_PCI_ROOT_PORT, 3, 16, 1, 1), device("01:00.0", NIC, 3, 16)};
    run_at(fns, 2, 8);
    build(fns, COUNT(fns), 256);
    const struct ut_pci_link *link = link_at("00:01.0");
    cr_assert_eq(link->verdict, UT_PCI_DEGRADED);
    cr_assert(link->slower && link->narrower);
    cr_assert_eq(link->want.mts, 8000u);
    cr_assert_eq(link->want.width, 16u);
}

Test(pci_link, one_end_alone_leaves_the_cause_open, .fini = clean)
{
    struct make_fn fns[] = {port("00:01.0", UT_PCI_ROOT_PORT, 3, 16, 1, 1), device("05:00.0", NIC, 4, 8)};
    fns[0].now_speed = 2;
    build(fns, COUNT(fns), 256);
    cr_assert_eq(link_at("00:01.0")->verdict, UT_PCI_BELOW_OWN);
    cr_assert_eq(link_at("05:00.0")->verdict, UT_PCI_FULL);
    cr_assert(model->node[node_at("05:00.0")].parent_missing);
}

Test(pci_link, an_empty_slot_is_no_fault_whatever_the_status_register_shows, .fini = clean)
{
    struct make_fn fns[] = {port("00:01.0", UT_PCI_ROOT_PORT, 3, 16, 1, 1)};
    fns[0].active = 0;
    fns[0].slot = 0;
    build(fns, COUNT(fns), 256);
    cr_assert_eq(link_at("00:01.0")->verdict, UT_PCI_EMPTY);
    cr_assert_eq(link_at("00:01.0")->cur.mts, 0u);
}

Test(pci_link, a_card_whose_link_is_down_is_a_fault, .fini = clean)
{
    struct make_fn fns[] = {port("00:01.0", UT_PCI_ROOT_PORT, 3, 16, 1, 1)};
    fns[0].active = 0;
    build(fns, COUNT(fns), 256);
    cr_assert_eq(link_at("00:01.0")->verdict, UT_PCI_DOWN);
}

Test(pci_link, a_device_that_answers_behind_a_slot_called_empty_has_a_link, .fini = clean)
{
    struct make_fn fns[] = {port("00:01.0", UT_PCI_ROOT_PORT, 3, 16, 1, 1), device("01:00.0", NIC, 3, 8)};
    run_at(fns, 3, 8);
    fns[0].active = 0;
    fns[0].slot = 0;
    build(fns, COUNT(fns), 256);
    cr_assert_eq(link_at("00:01.0")->verdict, UT_PCI_LIMITED);
    clean();
    fns[0].slot = 1;
    build(fns, COUNT(fns), 256);
    cr_assert_eq(link_at("00:01.0")->verdict, UT_PCI_DOWN, "a slot that knows of its card");
}

Test(pci_link, a_port_that_does_not_report_activity_is_not_down, .fini = clean)
{
    struct make_fn fns[] = {port("00:01.0", UT_PCI_ROOT_PORT, 3, 8, 1, 1), device("01:00.0", NIC, 3, 8)};
    fns[0].active = -1;
    fns[0].slot = -1;
    build(fns, COUNT(fns), 256);
    cr_assert_eq(link_at("00:01.0")->verdict, UT_PCI_FULL);
}

Test(pci_link, value_zero_is_unknown_and_no_alarm, .fini = clean)
{
    struct make_fn fns[] = {device("01:00.0", NIC, 0, 0)};
    build(fns, COUNT(fns), 256);
    cr_assert_eq(link_at("01:00.0")->verdict, UT_PCI_UNKNOWN);
}

Test(pci_link, ends_that_disagree_were_read_at_different_times, .fini = clean)
{
    struct make_fn fns[] = {port("00:01.0", UT_PCI_ROOT_PORT, 3, 16, 1, 1), device("01:00.0", NIC, 3, 16)};
    fns[1].now_speed = 1;
    build(fns, COUNT(fns), 256);
    cr_assert_eq(link_at("00:01.0")->verdict, UT_PCI_UNKNOWN);
    cr_assert(link_at("00:01.0")->ends_disagree);
}

Test(pci_link, an_idle_gpu_and_an_unused_device_raise_no_alarm, .fini = clean)
{
    struct make_fn fns[] = {port("00:01.0", UT_PCI_ROOT_PORT, 4, 16, 1, 1), device("01:00.0", GPU, 4, 16),
                            port("00:02.0", UT_PCI_ROOT_PORT, 4, 16, 2, 2), device("02:00.0", NIC, 4, 16),
                            port("00:03.0", UT_PCI_ROOT_PORT, 4, 16, 3, 3), device("03:00.0", GPU, 4, 16)};
    run_at(&fns[0], 1, 16);
    run_at(&fns[2], 3, 2);
    fns[3].command = 0x400; /* decodes nothing */
    run_at(&fns[4], 1, 8);
    build(fns, COUNT(fns), 256);
    cr_assert_eq(link_at("01:00.0")->verdict, UT_PCI_IDLE);
    cr_assert_eq(link_at("02:00.0")->verdict, UT_PCI_DISABLED);
    cr_assert_eq(link_at("03:00.0")->verdict, UT_PCI_DEGRADED, "no power saving takes lanes away");
}

Test(pci_link, a_port_that_lowered_the_speed_by_itself_is_no_alarm, .fini = clean)
{
    struct make_fn fns[] = {port("00:01.0", UT_PCI_ROOT_PORT, 4, 16, 1, 1), device("01:00.0", NIC, 4, 16)};
    run_at(fns, 3, 16);
    fns[0].link_status = 0x8000;
    build(fns, COUNT(fns), 256);
    cr_assert_eq(link_at("01:00.0")->verdict, UT_PCI_IDLE);
}

Test(pci_link, an_unreliable_link_is_an_alarm_also_when_autonomous, .fini = clean)
{
    struct make_fn fns[] = {port("00:01.0", UT_PCI_ROOT_PORT, 4, 16, 1, 1), device("01:00.0", NIC, 4, 16)};
    run_at(fns, 3, 16);
    fns[0].link_status = 0xc000;
    build(fns, COUNT(fns), 256);
    cr_assert_eq(link_at("01:00.0")->verdict, UT_PCI_DEGRADED);
}

/* ---- the tree ---- */

Test(pci_tree, equal_bus_numbers_of_two_domains_are_two_buses, .fini = clean)
{
    struct make_fn fns[] = {port("0000:00:01.0", UT_PCI_ROOT_PORT, 3, 8, 1, 1),
                            device("0001:01:00.0", NIC, 3, 8)};
    build(fns, COUNT(fns), 256);
    cr_assert_eq(model->node[node_at("0001:01:00.0")].parent, UT_PCI_NONE);
    cr_assert_eq(model->link_count, 2);
}

Test(pci_tree, loops_in_bus_numbers_are_cut, .fini = clean)
{
    struct make_fn fns[] = {port("01:00.0", UT_PCI_ROOT_PORT, 3, 8, 2, 2),
                            port("02:00.0", UT_PCI_ROOT_PORT, 3, 8, 3, 3),
                            port("03:00.0", UT_PCI_ROOT_PORT, 3, 8, 1, 1), device("03:01.0", NIC, 3, 8)};
    struct ut_pci_path path;
    build(fns, COUNT(fns), 256);
    cr_assert_eq(model->bus_loops, 1u);
    for (int i = 0; i < (int)model->node_count; i++)
        ut_pci_path_up(model, i, &path);
}

Test(pci_tree, a_bridge_onto_itself_leads_nowhere, .fini = clean)
{
    struct make_fn fns[] = {port("05:00.0", UT_PCI_ROOT_PORT, 3, 8, 5, 4)};
    build(fns, COUNT(fns), 256);
    cr_assert_eq(model->node[0].secondary, UT_PCI_NONE);
    cr_assert_eq(model->node[0].parent, UT_PCI_NONE);
}

Test(pci_tree, a_root_port_without_buses_stands_alone, .fini = clean)
{
    struct make_fn fns[] = {{.address = "00:00.0",
                             .class_code = 0x060000,
                             .type = UT_PCI_ROOT_PORT,
                             .cap_speed = 2,
                             .cap_width = 4,
                             .slot = -1}};
    build(fns, COUNT(fns), 256);
    cr_assert_eq(link_at("00:00.0")->verdict, UT_PCI_UNUSED);
}

/* ---- paths ---- */

/* A root port, a switch, a GPU at x16 and a NIC at x8 behind it; a second GPU at another root port. */
static void build_switch(uint16_t acs)
{
    struct make_fn fns[] = {
        port("00:01.0", UT_PCI_ROOT_PORT, 4, 16, 1, 4),  port("01:00.0", UT_PCI_UPSTREAM, 4, 16, 2, 4),
        port("02:00.0", UT_PCI_DOWNSTREAM, 4, 16, 3, 3), device("03:00.0", GPU, 4, 16),
        port("02:01.0", UT_PCI_DOWNSTREAM, 4, 16, 4, 4), device("04:00.0", NIC, 3, 8),
        port("00:02.0", UT_PCI_ROOT_PORT, 4, 16, 5, 5),  device("05:00.0", GPU, 4, 16),
    };
    fns[2].acs = fns[4].acs = acs;
    run_at(&fns[4], 3, 8);
    build(fns, COUNT(fns), 4096);
}

Test(pci_path, names_the_slowest_hop, .fini = clean)
{
    struct ut_pci_path path;
    build_switch(0);
    ut_pci_path_up(model, node_at("04:00.0"), &path);
    cr_assert(path.complete);
    cr_assert_eq(path.hop_count, 2u);
    cr_assert_eq(path.hop[path.bottleneck], model->node[node_at("04:00.0")].link);
    cr_assert_float_eq(path.gbytes, 7.877, 0.001);
    cr_assert_eq(path.top, node_at("00:01.0"));
}

Test(pci_path, neighbours_below_a_switch_turn_round_in_it, .fini = clean)
{
    struct ut_pci_pair pair;
    build_switch(0x01);
    ut_pci_pair_of(model, node_at("03:00.0"), node_at("04:00.0"), &pair);
    cr_assert_eq(pair.cls, UT_PCI_PIX);
    cr_assert_eq(pair.p2p, UT_PCI_P2P_DIRECT, "source validation alone redirects nothing");
    cr_assert_float_eq(pair.gbytes, 7.877, 0.001);
}

Test(pci_path, acs_redirection_names_both_ports, .fini = clean)
{
    struct ut_pci_pair pair;
    build_switch(0x1d);
    ut_pci_pair_of(model, node_at("03:00.0"), node_at("04:00.0"), &pair);
    cr_assert_eq(pair.p2p, UT_PCI_P2P_REDIRECTED);
    cr_assert_eq(pair.redirect_count, 2u);
}

Test(pci_path, two_root_ports_meet_in_the_host_bridge, .fini = clean)
{
    struct ut_pci_pair pair;
    build_switch(0);
    ut_pci_pair_of(model, node_at("03:00.0"), node_at("05:00.0"), &pair);
    cr_assert_eq(pair.cls, UT_PCI_PHB);
    cr_assert_eq(pair.p2p, UT_PCI_P2P_HOST);
    ut_pci_pair_of(model, node_at("05:00.0"), node_at("05:00.0"), &pair);
    cr_assert_eq(pair.cls, UT_PCI_SELF);
}

Test(pci_path, without_extended_space_acs_is_unknown_and_not_off, .fini = clean)
{
    struct ut_pci_pair pair;
    struct make_fn fns[] = {
        port("00:01.0", UT_PCI_ROOT_PORT, 4, 16, 1, 4),  port("01:00.0", UT_PCI_UPSTREAM, 4, 16, 2, 4),
        port("02:00.0", UT_PCI_DOWNSTREAM, 4, 16, 3, 3), device("03:00.0", GPU, 4, 16),
        port("02:01.0", UT_PCI_DOWNSTREAM, 4, 16, 4, 4), device("04:00.0", GPU, 4, 16),
    };
    build(fns, COUNT(fns), 256);
    cr_assert_eq(model->node[node_at("02:00.0")].caps.acs.have, UT_PCI_NOT_RECORDED);
    ut_pci_pair_of(model, node_at("03:00.0"), node_at("04:00.0"), &pair);
    cr_assert_eq(pair.p2p, UT_PCI_P2P_UNKNOWN);
}

Test(pci_path, a_device_without_link_registers_uses_the_link_of_its_port, .fini = clean)
{
    struct make_fn fns[] = {port("00:01.0", UT_PCI_ROOT_PORT, 3, 4, 1, 1), device("01:00.0", 0x050000, 0, 0)};
    struct ut_pci_path path;
    fns[1].type = UT_PCI_TYPE_UNKNOWN;
    build(fns, COUNT(fns), 256);
    cr_assert_eq(ut_pci_node_verdict(model, node_at("01:00.0")), UT_PCI_VERDICTS, "n/a for itself");
    ut_pci_path_up(model, node_at("01:00.0"), &path);
    cr_assert_eq(path.hop_count, 1u);
    cr_assert_float_eq(path.gbytes, 3.938, 0.001);
}

/* ---- capabilities ---- */

Test(pci_caps, a_capability_list_that_loops_ends, .fini = clean)
{
    uint8_t cfg[4096];
    struct make_fn fn = device("01:00.0", NIC, 3, 8);
    make_config(&fn, cfg);
    cfg[0x34] = 0x60;
    cfg[0x60] = 5;
    cfg[0x61] = 0x60;
    make_hex_bytes(&text, fn.address, cfg, sizeof cfg);
    build(NULL, 0, 0);
    cr_assert(model->node[0].caps.list_damaged);
    cr_assert_neq(model->node[0].caps.express.have, UT_PCI_PRESENT);
}

Test(pci_caps, an_extended_list_that_loops_keeps_what_it_had, .fini = clean)
{
    uint8_t cfg[4096];
    struct make_fn fn = device("01:00.0", NIC, 3, 8);
    make_config(&fn, cfg);
    cfg[0x102] = 0x01;
    cfg[0x103] = 0x10; /* next: 0x100 */
    make_hex_bytes(&text, fn.address, cfg, sizeof cfg);
    build(NULL, 0, 0);
    cr_assert_eq(model->node[0].caps.aer.have, UT_PCI_PRESENT);
    cr_assert_eq(model->node[0].caps.acs.have, UT_PCI_NOT_RECORDED);
    cr_assert(model->node[0].caps.list_damaged);
}

Test(pci_caps, functions_without_express_have_no_extended_capabilities, .fini = clean)
{
    struct make_fn fn = device("01:00.0", NIC, 3, 8);
    fn.type = UT_PCI_TYPE_UNKNOWN;
    build(&fn, 1, 4096);
    cr_assert_eq(model->node[0].caps.express.have, UT_PCI_ABSENT);
    cr_assert_eq(model->node[0].caps.aer.have, UT_PCI_NA);
    cr_assert_eq(model->node[0].link, UT_PCI_NONE);
}

Test(pci_caps, sixty_four_bytes_need_root, .fini = clean)
{
    struct make_fn fn = device("01:00.0", NIC, 3, 8);
    build(&fn, 1, 64);
    cr_assert_eq(model->node[0].caps.express.have, UT_PCI_NEEDS_ROOT);
    cr_assert_eq(model->node[0].caps.aer.have, UT_PCI_NEEDS_ROOT);
}

Test(pci_errors, status_bits_are_judged_by_mask_and_severity)
{
    struct ut_pci_aer aer = {.have = UT_PCI_PRESENT};
    cr_assert_eq(ut_pci_aer_severity(&aer), UT_PCI_QUIET);
    aer.ce_status = 1;
    cr_assert_eq(ut_pci_aer_severity(&aer), UT_PCI_HARMLESS);
    aer.ue_status = 1u << 20;
    cr_assert_eq(ut_pci_aer_severity(&aer), UT_PCI_HARMLESS, "unsupported request");
    aer.ue_status = 1u << 14;
    cr_assert_eq(ut_pci_aer_severity(&aer), UT_PCI_UNCORRECTED);
    aer.ue_severity = 1u << 14;
    cr_assert_eq(ut_pci_aer_severity(&aer), UT_PCI_FATAL);
    aer.ue_mask = 1u << 14;
    cr_assert_eq(ut_pci_aer_severity(&aer), UT_PCI_HARMLESS, "masked");
}
