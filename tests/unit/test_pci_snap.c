/*
 * Reading lspci hex and sysfs trees: what is whole is kept, what is not is named.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/pci/make.h"
#include "utils/pci_snap.h"

static const struct make_fn NIC = {.address = "01:00.0",
                                   .class_code = 0x020000,
                                   .cap_speed = 3,
                                   .cap_width = 8,
                                   .now_speed = 3,
                                   .now_width = 8};

static struct ut_pci_snap *read_text(const struct ut_text *text)
{
    struct ut_pci_snap *snap = NULL;
    cr_assert_eq(ut_pci_snap_dump_text(text->bytes, text->len, &snap), 0);
    return snap;
}

static bool has_gap(const struct ut_pci_snap *snap, enum ut_pci_gap_kind kind)
{
    for (size_t i = 0; i < snap->gap_count; i++)
        if (snap->gap[i].kind == kind)
            return true;
    return false;
}

Test(pci_dump, keeps_all_bytes_of_a_function)
{
    struct ut_text text = {0};
    make_hex(&text, &NIC, 4096);
    struct ut_pci_snap *snap = read_text(&text);
    cr_assert_eq(snap->fn_count, 1);
    cr_assert_eq(snap->fn[0].cfg_len, 4096);
    cr_assert_eq(snap->fn[0].vendor, 0x8086);
    cr_assert_eq(snap->fn[0].class_code, 0x020000);
    cr_assert_eq(snap->gap_count, 0);
    ut_pci_snap_free(snap);
    ut_text_fini(&text);
}

Test(pci_dump, a_file_cut_in_its_last_line_keeps_what_came_before)
{
    struct ut_text text = {0};
    make_hex(&text, &NIC, 256);
    for (size_t cut = text.len - 2; cut > text.len - 60; cut--) {
        struct ut_pci_snap *snap = NULL;
        cr_assert_eq(ut_pci_snap_dump_text(text.bytes, cut, &snap), 0);
        cr_assert_eq(snap->fn_count, 1);
        cr_assert_geq(snap->fn[0].cfg_len, 0xd0);
        cr_assert_eq(snap->damaged, snap->fn[0].cfg_len != 256, "cut at %zu", cut);
        ut_pci_snap_free(snap);
    }
    ut_text_fini(&text);
}

Test(pci_dump, sixty_four_bytes_are_what_lspci_shows_without_root)
{
    struct ut_text text = {0};
    make_hex(&text, &NIC, 64);
    struct ut_pci_snap *snap = read_text(&text);
    cr_assert(snap->fn[0].needs_root);
    cr_assert(has_gap(snap, UT_PCI_GAP_ROOT));
    cr_assert_not(snap->damaged);
    ut_pci_snap_free(snap);
    ut_text_fini(&text);
}

Test(pci_dump, all_ones_is_not_responding)
{
    struct ut_text text = {0};
    uint8_t cfg[256];
    memset(cfg, 0xff, sizeof cfg);
    make_hex_bytes(&text, "04:00.0", cfg, sizeof cfg);
    struct ut_pci_snap *snap = read_text(&text);
    cr_assert(snap->fn[0].silent);
    cr_assert_not(snap->fn[0].needs_root);
    cr_assert(has_gap(snap, UT_PCI_GAP_SILENT));
    ut_pci_snap_free(snap);
    ut_text_fini(&text);
}

Test(pci_dump, domains_over_16_bits_do_not_run_into_the_function_before)
{
    struct ut_text text = {0};
    struct make_fn vmd = NIC;
    vmd.address = "10000:e1:00.0";
    make_hex(&text, &NIC, 256);
    text.bytes[--text.len] = '\0'; /* no blank line between them */
    make_hex(&text, &vmd, 256);
    struct ut_pci_snap *snap = read_text(&text);
    cr_assert_eq(snap->fn_count, 2);
    cr_assert_eq(snap->fn[1].addr.domain, 0x10000u);
    cr_assert_eq(snap->fn[0].cfg_len, 256);
    cr_assert_eq(snap->gap_count, 0);
    ut_pci_snap_free(snap);
    ut_text_fini(&text);
}

Test(pci_dump, a_hole_ends_what_is_known_and_is_named)
{
    struct ut_text text = {0};
    make_hex(&text, &NIC, 256);
    char *row = strstr(text.bytes, "\n50:");
    cr_assert(row);
    row[1] = '9';
    struct ut_pci_snap *snap = read_text(&text);
    cr_assert_eq(snap->fn[0].cfg_len, 0x50);
    cr_assert(snap->damaged);
    ut_pci_snap_free(snap);
    ut_text_fini(&text);
}

Test(pci_dump, lines_of_windows_and_prose_between_are_understood)
{
    const char text[] = "01:00.0 Class\r\n\tCapabilities: [40] Express\r\n00: 86 80 34 12\r\n\r\nnothing\r\n";
    struct ut_pci_snap *snap = NULL;
    cr_assert_eq(ut_pci_snap_dump_text(text, sizeof text - 1, &snap), 0);
    cr_assert_eq(snap->fn_count, 1);
    cr_assert_eq(snap->fn[0].cfg_len, 4);
    ut_pci_snap_free(snap);
}

Test(pci_dump, bytes_of_no_function_are_not_lost_in_silence)
{
    const char text[] = "01:00.0 x\n00: 86 80 34 12\n\n10: 00 00\n20: 00 00\n";
    struct ut_pci_snap *snap = NULL;
    cr_assert_eq(ut_pci_snap_dump_text(text, sizeof text - 1, &snap), 0);
    cr_assert(snap->damaged);
    cr_assert(strstr(snap->gap[1].text, "line 4"), "%s", snap->gap[1].text);
    cr_assert_eq(snap->gap_count, 2, "one for where it ends, one for all the rest");
    ut_pci_snap_free(snap);
}

Test(pci_dump, tabs_and_a_byte_order_mark_do_no_harm)
{
    const char text[] = "\xef\xbb\xbf"
                        "01:00.0 x\n00:\t86\t80\t34\t12\n";
    struct ut_pci_snap *snap = NULL;
    cr_assert_eq(ut_pci_snap_dump_text(text, sizeof text - 1, &snap), 0);
    cr_assert_eq(snap->fn[0].vendor, 0x8086);
    ut_pci_snap_free(snap);
}

Test(pci_dump, a_virtual_function_has_no_ids_and_yet_responds)
{
    struct ut_text text = {0};
    uint8_t cfg[256];
    uint8_t whole[4096];
    make_config(&NIC, whole);
    memcpy(cfg, whole, sizeof cfg);
    memset(cfg, 0xff, 4);
    make_hex_bytes(&text, "01:00.1", cfg, sizeof cfg);
    struct ut_pci_snap *snap = read_text(&text);
    cr_assert_not(snap->fn[0].silent);
    cr_assert(snap->fn[0].attrs.is_vf);
    cr_assert_eq(snap->fn[0].class_code, 0x020000);
    ut_pci_snap_free(snap);
    ut_text_fini(&text);
}

Test(pci_dump, an_address_listed_twice_keeps_the_first)
{
    struct ut_text text = {0};
    struct make_fn again = NIC;
    again.class_code = 0x030000;
    make_hex(&text, &NIC, 64);
    make_hex(&text, &again, 64);
    struct ut_pci_snap *snap = read_text(&text);
    cr_assert_eq(snap->fn_count, 1);
    cr_assert_eq(snap->fn[0].class_code, 0x020000);
    cr_assert(snap->damaged);
    ut_pci_snap_free(snap);
    ut_text_fini(&text);
}

Test(pci_dump, text_without_a_function_is_no_machine)
{
    struct ut_pci_snap *snap = NULL;
    cr_assert_eq(ut_pci_snap_dump_text("hello\n00: 11\n", 13, &snap), -ENODATA);
    cr_assert_eq(ut_pci_snap_dump_text("", 0, &snap), -ENODATA);
    cr_assert_eq(ut_pci_snap_dump("/nonexistent/file", &snap), -ENOENT);
    cr_assert_null(snap);
}

/* ---- sysfs ---- */

static char tree[64];

static void make_tree(void)
{
    strcpy(tree, "/tmp/pci-tree.XXXXXX");
    cr_assert(mkdtemp(tree));
    char command[256];
    snprintf(command, sizeof command, "%s/bus", tree);
    mkdir(command, 0755);
    snprintf(command, sizeof command, "%s/bus/pci", tree);
    mkdir(command, 0755);
    snprintf(command, sizeof command, "%s/bus/pci/devices", tree);
    mkdir(command, 0755);
    snprintf(command, sizeof command, "%s/bus/pci/devices/0000:01:00.0", tree);
    mkdir(command, 0755);
}

static void write_attr(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/bus/pci/devices/0000:01:00.0/%s", tree, name);
    FILE *file = fopen(path, "w");
    cr_assert(file);
    fputs(text, file);
    fclose(file);
}

static void remove_tree(void)
{
    static const char *const NAMES[] = {"vendor", "class",     "aer_dev_correctable", "aer_dev_fatal",
                                        "config", "numa_node", "max_link_width",      "current_link_speed",
                                        "device"};
    char path[256];
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
        snprintf(path, sizeof path, "%s/bus/pci/devices/0000:01:00.0/%s", tree, NAMES[i]);
        unlink(path);
    }
    static const char *const DIRS[] = {"/bus/pci/devices/0000:01:00.0", "/bus/pci/devices", "/bus/pci",
                                       "/bus", ""};
    for (size_t i = 0; i < sizeof DIRS / sizeof DIRS[0]; i++) {
        snprintf(path, sizeof path, "%s%s", tree, DIRS[i]);
        cr_assert_eq(rmdir(path), 0, "%s", path);
    }
}

Test(pci_sysfs, counters_are_split_at_the_last_blank_and_totals_believed, .init = make_tree,
     .fini = remove_tree)
{
    struct ut_pci_snap *snap = NULL;
    write_attr("vendor", "0x15b3\n");
    write_attr("aer_dev_correctable", "Receiver Error 3\nBadTLP 4\nnonsense\nTOTAL_ERR_COR 9\n");
    write_attr("aer_dev_fatal", "DLP 2\nSDES 5\n");
    cr_assert_eq(ut_pci_snap_sysfs(tree, &snap), 0);
    const struct ut_pci_counters *aer = snap->fn[0].attrs.aer;
    cr_assert(aer);
    cr_assert_eq(aer[UT_PCI_AER_COR].line_count, 2);
    cr_assert_str_eq(aer[UT_PCI_AER_COR].line[0].name, "Receiver Error");
    cr_assert_eq(aer[UT_PCI_AER_COR].total, 9);
    cr_assert_eq(aer[UT_PCI_AER_FATAL].total, 7, "no total stated: the sum");
    cr_assert_not(aer[UT_PCI_AER_NONFATAL].present);
    ut_pci_snap_free(snap);
}

Test(pci_sysfs, odd_values_are_unknown_and_not_zero, .init = make_tree, .fini = remove_tree)
{
    struct ut_pci_snap *snap = NULL;
    write_attr("numa_node", "-1\n");
    write_attr("max_link_width", "255\n");
    write_attr("current_link_speed", "Unknown\n");
    cr_assert_eq(ut_pci_snap_sysfs(tree, &snap), 0);
    cr_assert_eq(snap->fn[0].attrs.numa_node, -1);
    cr_assert_eq(snap->fn[0].attrs.max.width, 0u);
    cr_assert_eq(snap->fn[0].attrs.cur.mts, 0u);
    cr_assert_eq(snap->fn[0].attrs.enabled, -1);
    cr_assert_null(snap->fn[0].attrs.aer);
    cr_assert_not(snap->damaged);
    ut_pci_snap_free(snap);
}

Test(pci_sysfs, a_config_of_another_device_is_left_out, .init = make_tree, .fini = remove_tree)
{
    struct ut_pci_snap *snap = NULL;
    write_attr("vendor", "0x15b3\n");
    write_attr("device", "0x1007\n");
    write_attr("config", "this is not the configuration space of that device, it is a sentence");
    cr_assert_eq(ut_pci_snap_sysfs(tree, &snap), 0);
    cr_assert_eq(snap->fn[0].cfg_len, 0);
    cr_assert_eq(snap->fn[0].vendor, 0x15b3);
    cr_assert(snap->damaged);
    ut_pci_snap_free(snap);
}

Test(pci_sysfs, links_out_of_the_tree_and_pipes_are_not_followed, .init = make_tree, .fini = remove_tree)
{
    struct ut_pci_snap *snap = NULL;
    char path[256];
    snprintf(path, sizeof path, "%s/bus/pci/devices/0000:01:00.0/vendor", tree);
    cr_assert_eq(symlink("/proc/self/cmdline", path), 0);
    snprintf(path, sizeof path, "%s/bus/pci/devices/0000:01:00.0/config", tree);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(ut_pci_snap_sysfs(tree, &snap), 0, "and it does not wait for a writer");
    cr_assert_eq(snap->fn[0].vendor, 0);
    cr_assert_eq(snap->fn[0].cfg_len, 0);
    ut_pci_snap_free(snap);
}

Test(pci_sysfs, a_directory_without_devices_is_refused)
{
    struct ut_pci_snap *snap = NULL;
    cr_assert_eq(ut_pci_snap_sysfs("/nonexistent", &snap), -ENOENT);
    cr_assert_eq(ut_pci_snap_sysfs("/tmp", &snap), -ENOENT);
    cr_assert_null(snap);
}
