/*
 * Any attributes as a sysfs tree, read whole, and looked at again and again as the daemon does. The input is
 * lines: "ADDRESS @ PARENT" makes a device below that parent (an address, or pci0000:00 for a root bus),
 * "ADDRESS NAME VALUE" a file of it, with | for newlines in the value and config in hex. Each input becomes a
 * tree in a temporary directory, which is read and removed again.
 */
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tests/pci/judge.h"
#include "utils/pci_trend.h"

#define LINES_MAX 64
#define WORD_CHARS 40

static char root[64];
static bool with_links; /* entries are links; else text that stands in their place */

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    return ftw->level ? remove(path) : 0;
}

static void empty_root(void)
{
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void remove_root(void)
{
    empty_root();
    rmdir(root);
}

static void make_root(void)
{
    strcpy(root, "/tmp/fuzz-pci.XXXXXX");
    fuzz_must(mkdtemp(root));
    atexit(remove_root);
}

/* Directories from the root down to the device's; existing ones are fine. */
static void make_dirs(char *path)
{
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    mkdir(path, 0700);
}

static void write_file(const char *path, const char *bytes, size_t len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    fuzz_must(write(fd, bytes, len) == (ssize_t)len);
    close(fd);
}

/* Only names that stay where they are put. */
static bool plain_name(const char *name)
{
    return *name && name[0] != '.' && !strchr(name, '/');
}

static void add_device(const char *address, const char *parent)
{
    char path[256], entry[256], target[128];
    snprintf(path, sizeof path, "%s/devices/%s/%s", root, parent, address);
    snprintf(entry, sizeof entry, "%s/bus/pci/devices/%s", root, address);
    make_dirs(path);
    int len = snprintf(target, sizeof target, "../../../devices/%s/%s", parent, address);
    if (with_links)
        (void)!symlink(target, entry);
    else
        write_file(entry, target, (size_t)len);
}

static size_t from_hex(char *text)
{
    size_t len = 0;
    unsigned byte;
    for (const char *p = text; p[0] && p[1] && sscanf(p, "%2x", &byte) == 1; p += 2)
        text[len++] = (char)byte;
    return len;
}

static void read_entry(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, out, size - 1) <= 0)
        out[0] = '\0';
    if (fd >= 0)
        close(fd);
}

/* The file goes where the last device line of that address put the device. */
static void add_file(const char *address, const char *name, char *value)
{
    char entry[256], target[128] = "", path[512];
    snprintf(entry, sizeof entry, "%s/bus/pci/devices/%s", root, address);
    if (with_links) {
        if (readlink(entry, target, sizeof target - 1) <= 0)
            target[0] = '\0';
    } else {
        read_entry(entry, target, sizeof target);
    }
    if (!target[0])
        return;
    snprintf(path, sizeof path, "%s/bus/pci/devices/%s/%s", root, target, name);
    size_t len = strcmp(name, "config") ? strlen(value) : from_hex(value);
    for (size_t i = 0; i < len && strcmp(name, "config"); i++)
        value[i] = value[i] == '|' ? '\n' : value[i];
    write_file(path, value, len);
}

static void add_line(char *line)
{
    char *rest = line, *address = strsep(&rest, " "), *name = strsep(&rest, " ");
    struct ut_pci_addr addr;
    if (!name || !rest || strlen(address) > WORD_CHARS || strlen(name) > WORD_CHARS || !plain_name(name) ||
        ut_pci_addr_parse(address, &addr))
        return;
    if (strcmp(name, "@"))
        add_file(address, name, rest);
    else if (plain_name(rest) && strlen(rest) <= WORD_CHARS)
        add_device(address, rest);
}

static void hear(void *ctx, const char *severity, const char *text)
{
    (void)ctx;
    fuzz_must(*severity && *text);
}

/* Watches a device, with a storm of errors in the middle. */
static void watch_device(struct ut_pci_addr addr)
{
    static const struct ut_pci_limits limits = {.errors = 10, .drops = 1, .well_ns = 5};
    static struct ut_pci_report report;
    struct ut_pci_trend trend;
    struct ut_pci_watch *watch;
    struct ut_pci_health health;
    ut_pci_trend_init(&trend, &limits, hear, NULL);
    if (ut_pci_watch_open(root, addr, &watch))
        return;
    for (uint64_t now = 1; now < 5; now++) {
        fuzz_must(!ut_pci_watch_look(watch, &health));
        ut_pci_report_of(watch, &health, &report);
        fuzz_must(report.hop_count <= UT_PCI_MAX_HOPS && report.worst < (int)report.hop_count &&
                  report.bottleneck < (int)report.hop_count);
        report.new_errors[UT_PCI_AER_COR] += now == 2 ? 100 : 0;
        ut_pci_trend_look(&trend, &report, now);
        for (unsigned i = 0; i < report.hop_count; i++) {
            char text[UT_PCI_HOP_CHARS];
            ut_pci_hop_show(&report.hop[i], text);
        }
    }
    fuzz_must(trend.suspect);
    ut_pci_watch_close(watch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[256], *text = strndup((const char *)data, size), *rest = text, *line;
    struct ut_pci_snap *snap;
    fuzz_must(text);
    if (!root[0])
        make_root();
    snprintf(path, sizeof path, "%s/bus/pci/devices", root);
    make_dirs(path);
    with_links = size & 1;
    for (int count = 0; count < LINES_MAX && (line = strsep(&rest, "\n")); count++)
        add_line(line);
    free(text);
    fuzz_must(!ut_pci_snap_sysfs(root, &snap));
    if (snap->fn_count)
        watch_device(snap->fn[snap->fn_count - 1].addr);
    judge_snap(snap);
    empty_root();
    return 0;
}
