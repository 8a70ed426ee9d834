/*
 * Looking again and again at one device's path, in a sysfs tree whose files the test changes between looks.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/pci/make.h"
#include "utils/pci_report.h"

#define PORT "/devices/pci0000:00/0000:00:01.0"
#define DEVICE PORT "/0000:01:00.0"

static char tree[64];
static struct ut_pci_watch *watch;
static const struct ut_pci_addr ADDR = {0, 1, 0, 0};

/* In place, as the kernel's files are: descriptors that are open see it. */
static void put(const char *dir, const char *name, const void *bytes, size_t len)
{
    char path[256];
    snprintf(path, sizeof path, "%s%s/%s", tree, dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    cr_assert_geq(fd, 0, "%s", path);
    cr_assert_eq(write(fd, bytes, len), (ssize_t)len);
    close(fd);
}

static void put_text(const char *dir, const char *name, const char *text)
{
    put(dir, name, text, strlen(text));
}

static void make_dir(const char *dir)
{
    char path[256];
    snprintf(path, sizeof path, "%s%s", tree, dir);
    cr_assert_eq(mkdir(path, 0700), 0, "%s", path);
}

static void make_link(const char *name, const char *target)
{
    char path[256];
    snprintf(path, sizeof path, "%s/bus/pci/devices/%s", tree, name);
    cr_assert_eq(symlink(target, path), 0);
}

static void put_rates(const char *dir, const char *speed, const char *width)
{
    put_text(dir, "current_link_speed", speed);
    put_text(dir, "current_link_width", width);
}

static void put_function(const char *dir, const struct make_fn *fn)
{
    uint8_t cfg[4096];
    make_config(fn, cfg);
    put(dir, "config", cfg, sizeof cfg);
    put_text(dir, "max_link_speed", "8.0 GT/s PCIe\n");
    put_text(dir, "max_link_width", "16\n");
    put_rates(dir, "8.0 GT/s PCIe\n", "16\n");
    put_text(dir, "aer_dev_correctable", "RxErr 5\nTOTAL_ERR_COR 5\n");
}

static struct make_fn port_fn(void)
{
    return (struct make_fn){.class_code = 0x060400,
                            .type = UT_PCI_ROOT_PORT,
                            .cap_speed = 3,
                            .cap_width = 16,
                            .now_speed = 3,
                            .now_width = 16,
                            .secondary = 1,
                            .subordinate = 1,
                            .active = 1,
                            .slot = 1};
}

static struct make_fn device_fn(void)
{
    return (struct make_fn){
        .class_code = 0x020000, .cap_speed = 3, .cap_width = 16, .now_speed = 3, .now_width = 16};
}

static void set_up(void)
{
    static const char *const DIRS[] = {
        "/bus", "/bus/pci", "/bus/pci/devices", "/devices", "/devices/pci0000:00", PORT, DEVICE};
    struct make_fn port = port_fn(), device = device_fn();
    strcpy(tree, "/tmp/pci-watch.XXXXXX");
    cr_assert(mkdtemp(tree));
    for (size_t i = 0; i < sizeof DIRS / sizeof DIRS[0]; i++)
        make_dir(DIRS[i]);
    make_link("0000:00:01.0", "../../.." PORT);
    make_link("0000:01:00.0", "../../.." DEVICE);
    put_function(PORT, &port);
    put_function(DEVICE, &device);
    cr_assert_eq(ut_pci_watch_open(tree, ADDR, &watch), 0);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void tear_down(void)
{
    ut_pci_watch_close(watch);
    nftw(tree, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static struct ut_pci_health look(void)
{
    struct ut_pci_health health;
    cr_assert_eq(ut_pci_watch_look(watch, &health), 0);
    return health;
}

static void lower_both(unsigned speed_code, const char *speed, unsigned width, const char *width_text)
{
    struct make_fn port = port_fn(), device = device_fn();
    port.now_speed = device.now_speed = speed_code;
    port.now_width = device.now_width = width;
    uint8_t cfg[4096];
    make_config(&port, cfg);
    put(PORT, "config", cfg, sizeof cfg);
    make_config(&device, cfg);
    put(DEVICE, "config", cfg, sizeof cfg);
    put_rates(PORT, speed, width_text);
    put_rates(DEVICE, speed, width_text);
}

Test(pci_watch, a_healthy_path_stays_quiet, .init = set_up, .fini = tear_down)
{
    for (int i = 0; i < 3; i++) {
        struct ut_pci_health health = look();
        cr_assert_eq(health.worst, UT_PCI_FULL);
        cr_assert_not(health.gone || health.changed);
        cr_assert_eq(health.path.hop_count, 1u);
        cr_assert_float_eq(health.path.gbytes, 15.754, 0.001);
        cr_assert(health.has_counters);
        cr_assert_eq(health.errors[UT_PCI_AER_COR], 0, "what was counted before is not ours");
    }
}

Test(pci_watch, a_drop_shows_at_the_next_look_and_so_does_its_end, .init = set_up, .fini = tear_down)
{
    look();
    lower_both(2, "5.0 GT/s PCIe\n", 8, "8\n");
    struct ut_pci_health health = look();
    cr_assert(health.changed);
    cr_assert_eq(health.worst, UT_PCI_DEGRADED);
    cr_assert_float_eq(health.path.gbytes, 4.0, 0.001);
    cr_assert_float_eq(health.path.possible_gbytes, 15.754, 0.001);
    cr_assert_not(look().changed);
    lower_both(3, "8.0 GT/s PCIe\n", 16, "16\n");
    health = look();
    cr_assert(health.changed);
    cr_assert_eq(health.worst, UT_PCI_FULL);
}

Test(pci_watch, errors_of_both_ends_are_added_and_restarts_subtract_nothing, .init = set_up,
     .fini = tear_down)
{
    look();
    put_text(PORT, "aer_dev_correctable", "RxErr 15\nTOTAL_ERR_COR 15\n");
    put_text(DEVICE, "aer_dev_correctable", "RxErr 6\nTOTAL_ERR_COR 6\n");
    struct ut_pci_health health = look();
    cr_assert_eq(health.new_errors[UT_PCI_AER_COR], 11);
    put_text(DEVICE, "aer_dev_correctable", "RxErr 2\nTOTAL_ERR_COR 2\n");
    health = look();
    cr_assert_eq(health.new_errors[UT_PCI_AER_COR], 2);
    cr_assert_eq(health.errors[UT_PCI_AER_COR], 13);
}

Test(pci_watch, a_link_that_goes_down_is_seen_by_the_port, .init = set_up, .fini = tear_down)
{
    struct make_fn port = port_fn();
    uint8_t cfg[4096];
    look();
    port.active = 0;
    make_config(&port, cfg);
    put(PORT, "config", cfg, sizeof cfg);
    struct ut_pci_health health = look();
    cr_assert_eq(health.worst, UT_PCI_DOWN);
    cr_assert_eq(health.path.gbytes, 0);
    cr_assert(health.changed);
}

Test(pci_watch, a_device_that_answers_all_ones_is_gone, .init = set_up, .fini = tear_down)
{
    uint8_t cfg[4096];
    look();
    memset(cfg, 0xff, sizeof cfg);
    put(DEVICE, "config", cfg, sizeof cfg);
    cr_assert(look().gone);
    struct make_fn device = device_fn();
    make_config(&device, cfg);
    put(DEVICE, "config", cfg, sizeof cfg);
    cr_assert_not(look().gone, "and back");
}

Test(pci_watch, a_device_that_is_silent_when_the_watch_is_opened_is_gone, .init = set_up, .fini = tear_down)
{
    uint8_t cfg[4096];
    struct ut_pci_watch *late;
    struct ut_pci_health health;
    memset(cfg, 0xff, sizeof cfg);
    put(DEVICE, "config", cfg, sizeof cfg);
    cr_assert_eq(ut_pci_watch_open(tree, ADDR, &late), 0);
    cr_assert_eq(ut_pci_watch_look(late, &health), 0);
    cr_assert(health.gone);
    ut_pci_watch_close(late);
}

Test(pci_watch, a_device_that_is_not_listed_any_more_is_gone, .init = set_up, .fini = tear_down)
{
    char path[256];
    look();
    snprintf(path, sizeof path, "%s/bus/pci/devices/0000:01:00.0", tree);
    cr_assert_eq(unlink(path), 0);
    cr_assert(look().gone);
    make_link("0000:01:00.0", "../../.." DEVICE);
    cr_assert_not(look().gone);
}

Test(pci_watch, whether_a_slow_device_is_in_use_is_looked_up_again, .init = set_up, .fini = tear_down)
{
    look();
    put_text(DEVICE, "enable", "0\n");
    lower_both(2, "5.0 GT/s PCIe\n", 16, "16\n");
    cr_assert_eq(look().worst, UT_PCI_DISABLED);
    put_text(DEVICE, "enable", "1\n");
    cr_assert_eq(look().worst, UT_PCI_DEGRADED);
}

Test(pci_watch, who_counts_most_is_named, .init = set_up, .fini = tear_down)
{
    look();
    put_text(PORT, "aer_dev_correctable", "RxErr 9\nTOTAL_ERR_COR 9\n");
    cr_assert_eq(look().noisiest.bus, 0);
    put_text(PORT, "aer_dev_correctable", "RxErr 10\nTOTAL_ERR_COR 10\n");
    put_text(DEVICE, "aer_dev_correctable", "RxErr 7\nTOTAL_ERR_COR 7\n");
    cr_assert_eq(look().noisiest.bus, 1);
}

Test(pci_watch, a_report_has_both_ends_of_each_link_and_what_the_ports_say, .init = set_up, .fini = tear_down)
{
    struct ut_pci_report report;
    struct make_fn port = port_fn();
    uint8_t cfg[4096];
    port.acs = 0x1d;
    make_config(&port, cfg);
    put(PORT, "config", cfg, sizeof cfg);
    ut_pci_watch_close(watch);
    cr_assert_eq(ut_pci_watch_open(tree, ADDR, &watch), 0);
    lower_both(3, "8.0 GT/s PCIe\n", 8, "8\n");
    struct ut_pci_health health = look();
    ut_pci_report_of(watch, &health, &report);
    cr_assert(report.found && report.complete && ut_pci_report_is_bad(&report));
    cr_assert_eq(report.hop_count, 1u);
    cr_assert_eq(ut_pci_addr_cmp(report.hop[0].below, ADDR), 0);
    cr_assert_eq(report.hop[0].above_max.width, 16u);
    cr_assert_eq(report.worst, 0);
    cr_assert_eq(report.acs, UT_PCI_PRESENT);
    cr_assert_eq(report.redirect_count, 1u);
    cr_assert_eq(report.numa_node, -1);
    char text[UT_PCI_HOP_CHARS];
    ut_pci_hop_show(&report.hop[0], text);
    cr_assert_str_eq(text, "0000:00:01.0 - 0000:01:00.0 runs at 8 GT/s x8 of 8 GT/s x16");
}

Test(pci_watch, there_must_be_such_a_device, .init = set_up, .fini = tear_down)
{
    struct ut_pci_watch *none = NULL;
    cr_assert_eq(ut_pci_watch_open(tree, (struct ut_pci_addr){0, 9, 0, 0}, &none), -ENODEV);
    cr_assert_eq(ut_pci_watch_open("/nonexistent", ADDR, &none), -ENOENT);
    cr_assert_null(none);
}
