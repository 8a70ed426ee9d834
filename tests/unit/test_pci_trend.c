/*
 * What a row of looks comes to, in virtual time: reports are made up, no device is read.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "utils/pci_trend.h"

#define S UINT64_C(1000000000)

static struct ut_pci_limits limits;
static struct ut_pci_trend trend;
static struct ut_pci_report report;
static uint64_t now;
static char said[4096]; /* "severity text\n" of each event since forget() */

static void say(void *ctx, const char *severity, const char *text)
{
    size_t len = strlen(said);
    cr_assert_eq(ctx, &trend);
    snprintf(said + len, sizeof said - len, "%s %s\n", severity, text);
}

static void set_path(enum ut_pci_verdict verdict, uint32_t mts, uint32_t width)
{
    struct ut_pci_hop *hop = &report.hop[0];
    *hop = (struct ut_pci_hop){.has_above = true,
                               .has_below = true,
                               .above = {0, 0, 1, 0},
                               .below = {0, 1, 0, 0},
                               .cur = {mts, width},
                               .want = {16000, 16},
                               .verdict = verdict,
                               .why = "because"};
    report.hop_count = 1;
    report.worst = 0;
    report.gbytes = ut_pci_gbytes(hop->cur);
    report.bottleneck = report.gbytes > 0 ? 0 : UT_PCI_NONE;
    report.possible_gbytes = 31.5;
}

static void set_up(void)
{
    limits = (struct ut_pci_limits){.errors = 100, .drops = 3, .well_ns = 600 * S};
    now = 1000 * S;
    report = (struct ut_pci_report){.found = true, .addr = {0, 1, 0, 0}};
    set_path(UT_PCI_FULL, 16000, 16);
    ut_pci_trend_init(&trend, &limits, say, &trend);
    said[0] = '\0';
}

/* A look a second later; true when the device became suspect by it. */
static bool look(uint64_t errors)
{
    now += S;
    report.new_errors[UT_PCI_AER_COR] = errors;
    said[0] = '\0';
    return ut_pci_trend_look(&trend, &report, now);
}

static void drop_and_recover(void)
{
    set_path(UT_PCI_DEGRADED, 16000, 8);
    look(0);
    set_path(UT_PCI_FULL, 16000, 16);
    look(0);
}

Test(pci_trend, a_good_path_says_nothing, .init = set_up)
{
    for (int i = 0; i < 100; i++) {
        cr_assert_not(look(0));
        cr_assert_str_empty(said);
    }
}

Test(pci_trend, a_drop_is_told_once_and_so_is_its_end, .init = set_up)
{
    look(0);
    set_path(UT_PCI_DEGRADED, 16000, 8);
    look(0);
    cr_assert_str_eq(said,
                     "warn link dropped: 0000:00:01.0 - 0000:01:00.0 runs at 16 GT/s x8 of 16 GT/s x16, "
                     "because; path 15.75 of 31.50 GB/s\n");
    look(0);
    cr_assert_str_empty(said);
    set_path(UT_PCI_FULL, 16000, 16);
    look(0);
    cr_assert_str_eq(said, "info link is back: path 31.51 of 31.50 GB/s\n");
    cr_assert_eq(trend.drops, 1);
}

Test(pci_trend, a_second_drop_while_degraded_is_told_and_is_no_flap, .init = set_up)
{
    look(0);
    for (uint32_t width = 8; width; width /= 2) {
        set_path(UT_PCI_DEGRADED, 16000, width);
        cr_assert_not(look(0));
        cr_assert(strstr(said, "warn link dropped"), "x%u", width);
    }
    cr_assert_eq(trend.drops, 4);
    cr_assert_not(trend.suspect);
}

Test(pci_trend, a_path_that_is_bad_from_the_beginning_is_told_and_is_no_drop, .init = set_up)
{
    set_path(UT_PCI_DEGRADED, 8000, 16);
    look(0);
    cr_assert(strstr(said, "warn link is slow: "), "%s", said);
    cr_assert_eq(trend.drops, 0);
}

Test(pci_trend, speeds_lowered_on_purpose_are_no_drops, .init = set_up)
{
    look(0);
    for (int i = 0; i < 50; i++) {
        set_path(i % 2 ? UT_PCI_FULL : UT_PCI_IDLE, i % 2 ? 16000 : 2500, 16);
        cr_assert_not(look(0));
        cr_assert_str_empty(said);
    }
    set_path(UT_PCI_DISABLED, 2500, 1);
    look(0);
    cr_assert_str_empty(said);
    cr_assert_eq(trend.drops, 0);
}

Test(pci_trend, a_look_in_the_middle_of_a_change_is_passed_over, .init = set_up)
{
    look(0);
    set_path(UT_PCI_UNKNOWN, 2500, 1);
    report.hop[0].changing = true;
    look(0);
    set_path(UT_PCI_UNKNOWN, 0, 0);
    look(0);
    set_path(UT_PCI_FULL, 16000, 16);
    look(0);
    cr_assert_str_empty(said);
    cr_assert_eq(trend.drops, 0);
}

Test(pci_trend, unknown_after_a_drop_is_no_recovery, .init = set_up)
{
    look(0);
    set_path(UT_PCI_DEGRADED, 16000, 8);
    look(0);
    set_path(UT_PCI_UNKNOWN, 0, 0);
    look(0);
    cr_assert_str_empty(said);
    cr_assert(trend.bad);
}

Test(pci_trend, more_drops_in_a_minute_than_the_limit_are_suspect, .init = set_up)
{
    look(0);
    for (int i = 0; i < 3; i++)
        drop_and_recover();
    cr_assert_not(trend.suspect);
    set_path(UT_PCI_DOWN, 0, 0);
    cr_assert(look(0));
    cr_assert(strstr(said, "error suspect: its link flaps: it was lost or degraded more than 3 times"), "%s",
              said);
    set_path(UT_PCI_FULL, 16000, 16);
    cr_assert_not(look(0), "told once");
}

Test(pci_trend, as_many_drops_over_a_longer_time_are_not, .init = set_up)
{
    look(0);
    for (int i = 0; i < 20; i++) {
        drop_and_recover();
        now += 20 * S;
    }
    cr_assert_not(trend.suspect);
}

Test(pci_trend, a_burst_of_errors_above_the_limit_is_a_storm, .init = set_up)
{
    look(0);
    cr_assert_not(look(100));
    set_up();
    look(0);
    cr_assert(look(101));
    cr_assert(strstr(said, "error suspect: more than 100 errors in 10 s; at the last look 101 correctable"),
              "%s", said);
}

Test(pci_trend, a_stream_of_errors_is_a_storm_when_it_is_faster_than_the_limit_for_long, .init = set_up)
{
    bool slow = false, fast = false;
    for (int i = 0; i < 1000; i++)
        slow |= look(10);
    cr_assert_not(slow, "10 a second is 100 in 10 s");
    for (int i = 0; i < 60 && !fast; i++)
        fast = look(13);
    cr_assert(fast);
}

Test(pci_trend, errors_below_the_limit_are_told_in_sums_once_a_minute, .init = set_up)
{
    look(1);
    cr_assert(strstr(said, "info 1 correctable, 0 nonfatal, 0 fatal errors"), "%s", said);
    unsigned told = 0;
    for (int i = 0; i < 60; i++) {
        look(1);
        told += said[0] != '\0';
    }
    cr_assert_eq(told, 1);
    cr_assert(strstr(said, "info 60 correctable"), "%s", said);
    cr_assert_eq(trend.errors[UT_PCI_AER_COR], 61);
}

Test(pci_trend, errors_that_are_not_corrected_are_a_warning, .init = set_up)
{
    report.new_errors[UT_PCI_AER_FATAL] = 1;
    look(0);
    cr_assert(strstr(said, "warn 0 correctable, 0 nonfatal, 1 fatal errors"), "%s", said);
}

Test(pci_trend, a_suspect_device_is_well_after_a_while_without_trouble_and_may_become_suspect_again,
     .init = set_up)
{
    look(0);
    cr_assert(look(5000));
    for (int i = 0; i < 600; i++)
        look(0);
    cr_assert(trend.suspect, "a burst is trouble until it would have fitted the limit");
    for (int i = 0; i < 11; i++)
        look(0);
    cr_assert_not(trend.suspect);
    cr_assert_str_empty(trend.why);
    cr_assert(look(5000), "the next time");
}

Test(pci_trend, a_suspect_device_whose_path_stays_bad_is_not_well, .init = set_up)
{
    look(0);
    look(5000);
    set_path(UT_PCI_DEGRADED, 8000, 16);
    for (int i = 0; i < 2000; i++)
        look(0);
    cr_assert(trend.suspect);
}

Test(pci_trend, limits_of_zero_never_make_suspect, .init = set_up)
{
    limits.errors = limits.drops = 0;
    look(0);
    for (int i = 0; i < 20; i++) {
        cr_assert_not(look(UINT64_MAX));
        drop_and_recover();
    }
    cr_assert_not(trend.suspect);
    cr_assert_eq(trend.errors[UT_PCI_AER_COR], UINT64_MAX, "counters stop at their end");
}

Test(pci_trend, a_device_that_has_gone_is_bad_until_it_answers, .init = set_up)
{
    look(0);
    report.gone = true;
    look(0);
    cr_assert_str_eq(
        said, "warn device 0000:01:00.0 does not answer: it was removed, or has lost power or its link\n");
    report.gone = false;
    look(0);
    cr_assert(strstr(said, "info link is back"), "%s", said);
}

Test(pci_trend, a_device_that_was_never_there_is_nothing_yet, .init = set_up)
{
    report.found = false;
    cr_assert_not(look(1000000));
    cr_assert_str_empty(said);
    cr_assert_eq(trend.looks, 0);
    cr_assert_eq(trend.looks_failed, 1);
}
