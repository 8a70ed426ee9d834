/*
 * The parts of PCI state that need no machine: addresses, speeds, and the arithmetic of planning.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>

#include "utils/pci_addr.h"
#include "utils/pci_plan.h"
#include "utils/pci_speed.h"

static bool near(double a, double b)
{
    return fabs(a - b) < 0.005;
}

Test(pci_addr, reads_short_and_long_addresses)
{
    struct ut_pci_addr addr;
    char shown[UT_PCI_ADDR_CHARS];
    cr_assert_eq(ut_pci_addr_parse("03:1f.7", &addr), 0);
    ut_pci_addr_show(addr, shown);
    cr_assert_str_eq(shown, "0000:03:1f.7");
    cr_assert_eq(ut_pci_addr_parse("10000:e1:00.0", &addr), 0);
    cr_assert_eq(addr.domain, 0x10000u);
    cr_assert_eq(ut_pci_addr_parse("ffffffff:ff:1f.7", &addr), 0);
    ut_pci_addr_show(addr, shown);
    cr_assert_str_eq(shown, "ffffffff:ff:1f.7");
}

Test(pci_addr, refuses_what_is_no_address)
{
    static const char *const WRONG[] = {"",         "03",          "03:00",
                                        "3:00.0",   "03:00.8",     "03:20.0",
                                        "03:00.0x", "000:03:00.0", "fffffffff:00:00.0",
                                        "gg:00.0",  "03:00,0",     " 03:00.0"};
    struct ut_pci_addr addr = {7, 7, 7, 7};
    for (size_t i = 0; i < sizeof WRONG / sizeof WRONG[0]; i++)
        cr_assert_eq(ut_pci_addr_parse(WRONG[i], &addr), -EINVAL, "%s", WRONG[i]);
    cr_assert_eq(addr.domain, 7u, "untouched on failure");
}

Test(pci_addr, orders_by_domain_first)
{
    struct ut_pci_addr low = {0, 255, 31, 7}, high = {1, 0, 0, 0};
    cr_assert_lt(ut_pci_addr_cmp(low, high), 0);
    cr_assert_gt(ut_pci_addr_cmp(high, low), 0);
    cr_assert_eq(ut_pci_addr_cmp(high, high), 0);
}

Test(pci_speed, reads_every_spelling_of_sysfs)
{
    cr_assert_eq(ut_pci_speed_of_text("2.5 GT/s PCIe"), 2500u);
    cr_assert_eq(ut_pci_speed_of_text("8 GT/s"), 8000u);
    cr_assert_eq(ut_pci_speed_of_text("64.0 GT/s PCIe"), 64000u);
    cr_assert_eq(ut_pci_speed_of_text("Unknown"), 0u);
    cr_assert_eq(ut_pci_speed_of_text("Unknown speed"), 0u);
    cr_assert_eq(ut_pci_speed_of_text(""), 0u);
    cr_assert_eq(ut_pci_speed_of_text("0 GT/s"), 0u);
    cr_assert_eq(ut_pci_speed_of_text("255"), 0u);
    cr_assert_eq(ut_pci_speed_of_text("7.3 GT/s"), 0u, "nobody has such a link");
    cr_assert_eq(ut_pci_speed_of_text("1e999 GT/s"), 0u);
    cr_assert_eq(ut_pci_speed_of_text("-8 GT/s"), 0u);
}

Test(pci_speed, unknown_codes_and_widths_stay_unknown)
{
    cr_assert_eq(ut_pci_speed_of_code(0), 0u);
    cr_assert_eq(ut_pci_speed_of_code(6), 64000u);
    cr_assert_eq(ut_pci_speed_of_code(15), 0u);
    cr_assert_eq(ut_pci_width_of(0), 0u);
    cr_assert_eq(ut_pci_width_of(12), 12u);
    cr_assert_eq(ut_pci_width_of(3), 0u);
    cr_assert_eq(ut_pci_width_of(63), 0u);
    cr_assert_eq(ut_pci_width_of(255), 0u);
}

Test(pci_speed, bandwidth_follows_the_encoding_of_each_generation)
{
    static const double X16[] = {4.0, 8.0, 15.754, 31.508, 63.015, 118.0};
    for (unsigned gen = 1; gen <= 6; gen++)
        cr_assert(near(ut_pci_gbytes((struct ut_pci_rate){ut_pci_speed_of_gen(gen), 16}), X16[gen - 1]),
                  "gen %u", gen);
    cr_assert_eq(ut_pci_gbytes((struct ut_pci_rate){0, 16}), 0);
    cr_assert(near(15.754 * ut_pci_payload_share(256), 14.40));
    cr_assert(near(15.754 * ut_pci_payload_share(64), 11.457));
}

Test(pci_plan, a_ring_sends_less_than_two_buffers)
{
    cr_assert(near(ut_pci_plan_ring_bytes(4, 256), 384));
    cr_assert_eq(ut_pci_plan_ring_bytes(1, 256), 0);
    cr_assert(near(ut_pci_plan_ms(ut_pci_plan_ring_bytes(4, 256e6), 12), 32));
    cr_assert_eq(ut_pci_plan_mesh_cables(4), 6);
    cr_assert_eq(ut_pci_plan_mesh_cables(8), 28);
    cr_assert_eq(ut_pci_plan_mesh_cables(0), 0);
}
