/*
 * BARs as memory: what is found in sysfs, and the sentence for each reason not to map one. The trees are made
 * up here, as sysfs has them; real ones are looked at in the guests of tests/vm.
 */
#include "ntbmem/ntbm_bar.h"
#include "ntbmem/ntbm_mem.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICE "0000:05:00.0"
#define NONE "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
#define WINDOW "0x0000008000000000 0x0000008000ffffff 0x000000000014220c\n" /* 16 MiB, 64 bits */
#define PLAIN "0x00000000fe000000 0x00000000fe000fff 0x0000000000040200\n"
#define PORTS "0x000000000000e000 0x000000000000e07f 0x0000000000040101\n"
#define CROOKED "0x0000008000100000 0x00000080010fffff 0x000000000014220c\n"

static char tree[64];

static void write_file(const char *name, const void *bytes, size_t len)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/devices/" DEVICE "/%s", tree, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    cr_assert_geq(fd, 0, "%s", path);
    cr_assert_eq(write(fd, bytes, len), (ssize_t)len);
    close(fd);
}

static void make_dir(const char *name)
{
    char path[160];
    snprintf(path, sizeof(path), "%s%s", tree, name);
    cr_assert_eq(mkdir(path, 0700), 0);
}

/* Configuration space: vendor, command register, and the bits of the BARs. */
static void write_config(uint16_t vendor, uint16_t command)
{
    uint8_t config[256] = {0};
    memcpy(config, &vendor, 2);
    memcpy(config + 4, &command, 2);
    config[0x18] = 0x0c; /* BAR 2: 64 bits, prefetchable */
    if (vendor == 0xffff)
        memset(config, 0xff, sizeof(config));
    write_file("config", config, sizeof(config));
}

/* A function with this resource file; BAR 2 and 3 are one of 64 bits. */
static void make_tree(uint16_t vendor, const char *resource)
{
    strcpy(tree, "/tmp/fabricfs-bar-XXXXXX");
    cr_assert_not_null(mkdtemp(tree));
    make_dir("/devices");
    make_dir("/devices/" DEVICE);
    make_dir("/ntb_hw");
    write_file("resource", resource, strlen(resource));
    write_file("enable", "0\n", 2);
    write_config(vendor, 2);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static void remove_tree(void)
{
    nftw(tree, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static struct ntbm_bar found(const char *name)
{
    struct ntbm_bar bar;
    struct ut_err err = {""};
    cr_assert_eq(ntbm_bar_find(tree, name, &bar, &err), 0, "%s", err.text);
    return bar;
}

static void refused(const char *name, int rc, const char *because)
{
    struct ntbm_bar bar = {.number = 77};
    struct ut_err err = {""};
    cr_assert_eq(ntbm_bar_find(tree, name, &bar, &err), rc, "%s", err.text);
    cr_assert(strstr(err.text, because), "%s is refused with: %s", name, err.text);
    cr_assert(strstr(err.text, "0000:0"), "no address in: %s", err.text);
    cr_assert_eq(bar.number, 77);
}

#define RESOURCES PLAIN NONE WINDOW NONE PORTS NONE

Test(bar, is_found_with_its_size_and_what_it_can)
{
    make_tree(0x1af4, RESOURCES);
    struct ntbm_bar bar = found(DEVICE "/2");
    cr_assert_eq(bar.addr.bus, 5);
    cr_assert_eq(bar.number, 2);
    cr_assert_eq(bar.bytes, 16 << 20);
    cr_assert_eq(bar.align_bytes, 4096);
    cr_assert(bar.prefetchable && bar.decodes);
    cr_assert_not(found(DEVICE "/0").prefetchable);
    cr_assert_eq(found("05:00.0/0").bytes, 4096);
    write_config(0x1af4, 0);
    cr_assert_not(found(DEVICE "/2").decodes);
    remove_tree();
}

Test(bar, parts_of_a_plx_window_keep_to_its_grid)
{
    make_tree(0x10b5, RESOURCES);
    cr_assert_eq(found(DEVICE "/2").align_bytes, 1 << 20);
    cr_assert_eq(found(DEVICE "/0").align_bytes, 4096);
    remove_tree();
}

Test(bar, that_is_no_memory_is_refused)
{
    make_tree(0x1af4, RESOURCES);
    refused(DEVICE "/4", -EINVAL, "BAR 4 is I/O ports");
    refused(DEVICE "/3", -EINVAL, "upper half of BAR 2");
    refused(DEVICE "/5", -EADDRNOTAVAIL, "BAR 5 does not exist");
    remove_tree();
}

Test(bar, without_an_address_is_refused)
{
    make_tree(0x1af4, PLAIN NONE NONE NONE NONE NONE);
    refused(DEVICE "/2", -EADDRNOTAVAIL, "BAR 2 has no address");
    refused(DEVICE "/2", -EADDRNOTAVAIL, "Above 4G");
    remove_tree();
    make_tree(0x1af4, NONE NONE "0x0000000000000000 0x0000000000ffffff 0x000000002014220c\n" NONE NONE NONE);
    refused(DEVICE "/2", -EADDRNOTAVAIL, "no address");
    remove_tree();
}

Test(bar, whose_base_is_no_multiple_of_its_size_is_refused)
{
    make_tree(0x1af4, PLAIN NONE CROOKED NONE NONE NONE);
    refused(DEVICE "/2", -EINVAL, "0x8000100000");
    remove_tree();
}

Test(bar, of_a_driver_is_refused_with_its_name)
{
    char from[128];
    make_tree(0x1af4, RESOURCES);
    snprintf(from, sizeof(from), "%s/devices/" DEVICE "/driver", tree);
    cr_assert_eq(symlink("../../ntb_hw", from), 0);
    refused(DEVICE "/2", -EBUSY, "drivers/ntb_hw/unbind");
    remove_tree();
}

Test(bar, of_a_function_that_is_gone_or_silent_is_refused)
{
    make_tree(0xffff, RESOURCES);
    refused(DEVICE "/2", -ENODEV, "all ones");
    refused("0000:06:00.0/2", -ENODEV, "no PCI device 0000:06:00.0");
    remove_tree();
}

Test(bar, resource_files_that_are_damaged_end_nothing)
{
    const char *damaged[] = {"",
                             "x",
                             "0x",
                             "0x1 0x2\n",
                             "0xffffffffffffffffffff 0x1 0x2\n",
                             "0x0000008000000000 0x0000007fffffffff 0x000000000014220c\n" NONE NONE};
    for (size_t i = 0; i < sizeof(damaged) / sizeof(damaged[0]); i++) {
        struct ntbm_bar bar;
        struct ut_err err = {""};
        make_tree(0x1af4, damaged[i]);
        cr_assert_lt(ntbm_bar_find(tree, DEVICE "/0", &bar, &err), 0, "\"%s\"", damaged[i]);
        cr_assert_neq(err.text[0], '\0');
        remove_tree();
    }
}

Test(bar, decoding_is_asked_of_the_kernel_and_then_of_the_device)
{
    struct ut_err err = {""};
    char text[8] = "";
    uint16_t command;
    make_tree(0x1af4, RESOURCES);
    write_config(0x1af4, 0);
    struct ntbm_bar bar = found(DEVICE "/2");
    cr_assert_eq(ntbm_bar_enable(tree, &bar, &err), 0, "%s", err.text);
    char path[128];
    snprintf(path, sizeof(path), "%s/devices/" DEVICE "/enable", tree);
    int fd = open(path, O_RDONLY);
    cr_assert_eq(read(fd, text, 1), 1);
    close(fd);
    cr_assert_str_eq(text, "1");
    snprintf(path, sizeof(path), "%s/devices/" DEVICE "/config", tree);
    fd = open(path, O_RDONLY);
    cr_assert_eq(pread(fd, &command, 2, 4), 2);
    close(fd);
    cr_assert_eq(command, 2);
    remove_tree();
    cr_assert_lt(ntbm_bar_enable(tree, &bar, &err), 0);
    cr_assert(strstr(err.text, "cannot be enabled"), "%s", err.text);
}

Test(bar, memory_that_is_not_there_is_refused_in_words)
{
    struct ntbm_uri uri;
    struct ntbm_mem mem;
    struct ut_err err = {""};
    cr_assert_eq(ntbm_uri_parse("pci:fffe:ff:1f.7/2", &uri, &err), 0);
    cr_assert_lt(ntbm_mem_open(&uri, NTBM_WINDOW, 0, &mem, &err), 0);
    cr_assert(strstr(err.text, "fffe:ff:1f.7"), "%s", err.text);
}
