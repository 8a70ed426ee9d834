/*
 * The reader of sysfs: this machine's, or a recorded tree. Both are walked by the same code, device by
 * device, so that one that vanishes or lacks a file costs nothing but itself; they differ only in where
 * configuration space comes from (libpci here, the config file there).
 */
#include "utils/pci_snap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "utils/pci_file.h"
#include "utils/pci_libpci.h"

#define DEVICES "bus/pci/devices"
#define PATH_BYTES 1024

struct walk {
    struct ut_pci_snap *snap;
    struct ut_pci_lib *lib; /* NULL for a recorded tree */
    int root_fd;            /* of the sysfs tree */
    int devices_fd;         /* of bus/pci/devices, to list it and read its links */
};

static int number_or(int dir_fd, const char *name, int64_t min, int64_t max, int unknown)
{
    int64_t value;
    int rc = ut_pci_file_number(dir_fd, name, &value);
    return rc || value < min || value > max ? unknown : (int)value;
}

/* What a file says may reach a terminal: nothing but printable ASCII stays as it is. */
static void make_printable(char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

/* Copies the last component of a link's target. */
static void link_name(int dir_fd, const char *name, char *out, size_t size)
{
    char target[PATH_BYTES];
    out[0] = '\0';
    if (ut_pci_file_link(dir_fd, name, target, sizeof target) <= 0)
        return;
    const char *slash = strrchr(target, '/');
    snprintf(out, size, "%.*s", (int)size - 1, slash ? slash + 1 : target);
    make_printable(out);
}

/* ---- link and errors ---- */

static struct ut_pci_rate read_rate(int dir_fd, const char *speed_name, const char *width_name, bool *present)
{
    char text[32];
    struct ut_pci_rate rate = {0, 0};
    if (ut_pci_file_text(dir_fd, speed_name, text, sizeof text) >= 0) {
        rate.mts = ut_pci_speed_of_text(text);
        *present = true;
    }
    rate.width = ut_pci_width_of((uint64_t)number_or(dir_fd, width_name, 0, 255, 0));
    return rate;
}

/* Reads one "Name count" line; names may contain blanks, so it is split at the last one. */
static void counter_line(struct ut_pci_counters *file, char *line, bool *has_total)
{
    char *blank = strrchr(line, ' '), *end;
    if (!blank || blank == line || blank[1] < '0' || blank[1] > '9')
        return;
    errno = 0;
    uint64_t count = strtoull(blank + 1, &end, 10);
    if (*end || errno)
        return;
    *blank = '\0';
    if (!strncmp(line, "TOTAL_ERR_", 10)) {
        file->total = count;
        *has_total = true;
    } else if (file->line_count < UT_PCI_AER_LINES) {
        snprintf(file->line[file->line_count].name, sizeof file->line[0].name, "%.31s", line);
        make_printable(file->line[file->line_count].name);
        file->line[file->line_count++].count = count;
    }
}

void ut_pci_snap_counters(char *text, struct ut_pci_counters *file)
{
    bool has_total = false;
    memset(file, 0, sizeof *file);
    char *rest = text, *line;
    file->present = true;
    while ((line = strsep(&rest, "\n")))
        counter_line(file, line, &has_total);
    for (size_t i = 0; !has_total && i < file->line_count; i++)
        file->total += file->line[i].count;
}

static int read_counters(int dir_fd, struct ut_pci_attrs *attrs)
{
    static const char *const NAMES[UT_PCI_AER_KINDS] = {"aer_dev_correctable", "aer_dev_nonfatal",
                                                        "aer_dev_fatal"};
    char text[4096];
    for (int kind = 0; kind < UT_PCI_AER_KINDS; kind++) {
        if (ut_pci_file_text(dir_fd, NAMES[kind], text, sizeof text) < 0)
            continue;
        if (!attrs->aer)
            attrs->aer = calloc(UT_PCI_AER_KINDS, sizeof *attrs->aer);
        if (!attrs->aer)
            return -ENOMEM;
        ut_pci_snap_counters(text, &attrs->aer[kind]);
    }
    return 0;
}

/* ---- the rest of the attributes ---- */

static void read_resources(int dir_fd, struct ut_pci_attrs *attrs)
{
    char text[4096], *rest = text, *line;
    if (ut_pci_file_text(dir_fd, "resource", text, sizeof text) < 0)
        return;
    for (int i = 0; i < UT_PCI_BARS && (line = strsep(&rest, "\n")); i++) {
        unsigned long long start, end, flags;
        if (sscanf(line, "%llx %llx %llx", &start, &end, &flags) != 3)
            return;
        attrs->bar[i] = (struct ut_pci_resource){start, end, flags};
    }
    attrs->has_resources = true;
}

static void read_text(int dir_fd, const char *name, char *out, size_t size)
{
    if (ut_pci_file_text(dir_fd, name, out, size) < 0)
        out[0] = '\0';
    make_printable(out);
}

static void read_driver(int dir_fd, struct ut_pci_attrs *attrs)
{
    char text[1024], *rest = text, *line;
    link_name(dir_fd, "driver", attrs->driver, sizeof attrs->driver);
    if (attrs->driver[0] || ut_pci_file_text(dir_fd, "uevent", text, sizeof text) < 0)
        return;
    while ((line = strsep(&rest, "\n")))
        if (!strncmp(line, "DRIVER=", 7))
            snprintf(attrs->driver, sizeof attrs->driver, "%.31s", line + 7);
    make_printable(attrs->driver);
}

static void read_iommu(struct walk *w, int dir_fd, struct ut_pci_attrs *attrs)
{
    char group[16], path[64], *end;
    link_name(dir_fd, "iommu_group", group, sizeof group);
    long number = strtol(group, &end, 10);
    if (!group[0] || *end || number < 0 || number > 1 << 24)
        return;
    attrs->iommu_group = (int)number;
    snprintf(path, sizeof path, "kernel/iommu_groups/%ld/type", number);
    read_text(w->root_fd, path, attrs->iommu_type, sizeof attrs->iommu_type);
}

static void read_state(int dir_fd, struct ut_pci_attrs *attrs)
{
    attrs->enabled = number_or(dir_fd, "enable", 0, 1 << 16, -1);
    read_text(dir_fd, "power_state", attrs->power, sizeof attrs->power);
    read_text(dir_fd, "power/runtime_status", attrs->runtime, sizeof attrs->runtime);
}

void ut_pci_snap_state(int devices_fd, const char *name, struct ut_pci_fn *fn)
{
    int fd = openat(devices_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    read_state(fd, &fn->attrs);
    if (fd >= 0)
        close(fd);
}

static int read_attrs(struct walk *w, int dir_fd, struct ut_pci_attrs *attrs)
{
    char physfn[PATH_BYTES];
    attrs->present = true;
    attrs->max = read_rate(dir_fd, "max_link_speed", "max_link_width", &attrs->has_link);
    attrs->cur = read_rate(dir_fd, "current_link_speed", "current_link_width", &attrs->has_link);
    attrs->numa_node = number_or(dir_fd, "numa_node", 0, 1 << 16, -1);
    attrs->secondary = number_or(dir_fd, "secondary_bus_number", 0, 255, -1);
    attrs->subordinate = number_or(dir_fd, "subordinate_bus_number", 0, 255, -1);
    attrs->total_vfs = number_or(dir_fd, "sriov_totalvfs", 0, 65535, -1);
    attrs->num_vfs = number_or(dir_fd, "sriov_numvfs", 0, 65535, -1);
    attrs->is_vf = ut_pci_file_link(dir_fd, "physfn", physfn, sizeof physfn) > 0;
    read_state(dir_fd, attrs);
    read_text(dir_fd, "local_cpulist", attrs->local_cpus, sizeof attrs->local_cpus);
    read_driver(dir_fd, attrs);
    read_iommu(w, dir_fd, attrs);
    read_resources(dir_fd, attrs);
    return read_counters(dir_fd, attrs);
}

static void read_ids(int dir_fd, struct ut_pci_fn *fn)
{
    int64_t value;
    if (!ut_pci_file_number(dir_fd, "vendor", &value) && value >= 0 && value <= 0xffff)
        fn->vendor = (uint16_t)value;
    if (!ut_pci_file_number(dir_fd, "device", &value) && value >= 0 && value <= 0xffff)
        fn->device = (uint16_t)value;
    if (!ut_pci_file_number(dir_fd, "class", &value) && value >= 0 && value <= 0xffffff) {
        fn->class_code = (uint32_t)value;
        fn->has_class = true;
    }
}

/* ---- configuration space ---- */

/* A config file whose ids differ from the vendor and device files is not this function's, or was mangled. */
static bool ids_agree(const struct ut_pci_fn *fn, const uint8_t *cfg, ssize_t len)
{
    unsigned vendor = (unsigned)(cfg[0] | cfg[1] << 8), device = (unsigned)(cfg[2] | cfg[3] << 8);
    return len < 4 || !fn->vendor || vendor == 0xffff || (vendor == fn->vendor && device == fn->device);
}

static int read_config(struct walk *w, int dir_fd, struct ut_pci_fn *fn)
{
    uint8_t cfg[UT_PCI_CFG_BYTES];
    ssize_t len = w->lib ? ut_pci_lib_config(w->lib, fn->addr, cfg, sizeof cfg)
                         : ut_pci_file_read(dir_fd, "config", cfg, sizeof cfg);
    fn->needs_root = len == 64 || (len < 0 && w->lib && geteuid() != 0);
    if (len <= 0)
        return 0;
    if (!ids_agree(fn, cfg, len)) {
        ut_pci_snap_gap(w->snap, UT_PCI_GAP_DAMAGED, &fn->addr,
                        "config does not begin with the ids of the device; it is left out");
        return 0;
    }
    if (len != 64 && len != 256 && len != (ssize_t)UT_PCI_CFG_BYTES)
        ut_pci_snap_gap(w->snap, UT_PCI_GAP_CUT, &fn->addr, "config ends at byte 0x%zx", (size_t)len);
    fn->cfg = malloc((size_t)len);
    if (!fn->cfg)
        return -ENOMEM;
    memcpy(fn->cfg, cfg, (size_t)len);
    fn->cfg_len = (uint16_t)len;
    return 0;
}

/* ---- the walk ---- */

/* Takes the bridge above from the device's path ".../pci0000:00/0000:00:03.0/0000:03:00.0". */
static void parent_of_path(const char *path, struct ut_pci_fn *fn)
{
    const char *last = strrchr(path, '/'), *before = last;
    while (before && before > path && before[-1] != '/')
        before--;
    if (!before || before == last)
        return;
    size_t len = ut_pci_addr_scan(before, &fn->attrs.parent);
    fn->attrs.has_parent = len && before + len == last;
    fn->attrs.at_root_bus = !strncmp(before, "pci", 3);
}

/* Opens the directory of one entry: through the link, or through the text that stands in its place. */
static int open_device(struct walk *w, const char *name, struct ut_pci_fn *fn)
{
    char path[PATH_BYTES + 32], target[PATH_BYTES];
    ssize_t len = ut_pci_file_link(w->devices_fd, name, target, sizeof target);
    if (len > 0)
        parent_of_path(target, fn);
    snprintf(path, sizeof path, DEVICES "/%s", name);
    int fd = ut_pci_file_dir(w->root_fd, path);
    if (fd != -ENOTDIR || len <= 0)
        return fd;
    snprintf(path, sizeof path, DEVICES "/%s", target);
    return ut_pci_file_dir(w->root_fd, path);
}

static int read_device(struct walk *w, const char *name, struct ut_pci_addr addr)
{
    struct ut_pci_fn *fn = ut_pci_snap_add(w->snap, addr);
    if (!fn)
        return -ENOMEM;
    int fd = open_device(w, name, fn);
    if (fd < 0) {
        bool gone = w->lib && (fd == -ENOENT || fd == -ENODEV);
        ut_pci_snap_gap(w->snap, gone ? UT_PCI_GAP_VANISHED : UT_PCI_GAP_FAILED, &addr, "%s",
                        gone ? "vanished while it was read" : strerror(-fd));
        w->snap->fn_count--;
        return 0;
    }
    read_ids(fd, fn);
    int rc = read_attrs(w, fd, &fn->attrs);
    if (!rc)
        rc = read_config(w, fd, fn);
    close(fd);
    return rc;
}

static int walk_devices(struct walk *w, DIR *dir)
{
    struct dirent *entry;
    struct ut_pci_addr addr;
    int rc = 0;
    while (!rc && (entry = readdir(dir))) {
        if (ut_pci_addr_parse(entry->d_name, &addr))
            continue;
        if (w->snap->fn_count == UT_PCI_MAX_FNS) {
            ut_pci_snap_gap(w->snap, UT_PCI_GAP_DAMAGED, &addr, "more than %u functions", UT_PCI_MAX_FNS);
            break;
        }
        rc = read_device(w, entry->d_name, addr);
    }
    return rc;
}

/* Counts the CPU and memory nodes, which decides whether two host bridges share one. */
static unsigned count_numa_nodes(int root_fd)
{
    unsigned count = 0, number;
    struct dirent *entry;
    int fd = ut_pci_file_dir(root_fd, "devices/system/node");
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    while ((entry = readdir(dir)))
        count += sscanf(entry->d_name, "node%u", &number) == 1;
    closedir(dir);
    return count;
}

static int walk_all(struct walk *w)
{
    int fd = dup(w->devices_fd);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return -ENOMEM;
    }
    int rc = walk_devices(w, dir);
    closedir(dir);
    w->snap->numa_nodes = count_numa_nodes(w->root_fd);
    return rc;
}

/* The device and, by the path that each one's link tells, the bridges above. */
static int walk_up(struct walk *w, struct ut_pci_addr addr)
{
    for (unsigned depth = 0; depth < 64; depth++) {
        char name[UT_PCI_ADDR_CHARS];
        size_t before = w->snap->fn_count;
        ut_pci_addr_show(addr, name);
        int rc = read_device(w, name, addr);
        if (rc)
            return rc;
        if (w->snap->fn_count == before)
            return depth ? 0 : -ENODEV;
        const struct ut_pci_attrs *attrs = &w->snap->fn[before].attrs;
        if (!attrs->has_parent)
            return 0;
        addr = attrs->parent;
    }
    return 0;
}

/* Opens the tree and walks all of it, or up from one address. */
static int walk(struct walk *w, const char *dir, const struct ut_pci_addr *from)
{
    w->root_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (w->root_fd < 0)
        return -errno;
    int rc = w->devices_fd = ut_pci_file_dir(w->root_fd, DEVICES);
    if (rc >= 0) {
        rc = from ? walk_up(w, *from) : walk_all(w);
        close(w->devices_fd);
    }
    close(w->root_fd);
    return rc;
}

static int snap_tree(const char *dir, enum ut_pci_source source, const struct ut_pci_addr *from,
                     struct ut_pci_snap **out)
{
    struct walk w = {.snap = ut_pci_snap_new(source)};
    int rc = w.snap ? 0 : -ENOMEM;
    if (!rc && source == UT_PCI_LIVE && ut_pci_lib_open(&w.lib) == -ENOMEM)
        rc = -ENOMEM;
    if (!rc)
        rc = walk(&w, dir, from);
    ut_pci_lib_close(w.lib);
    if (rc) {
        ut_pci_snap_free(w.snap);
        return rc;
    }
    ut_pci_snap_finish(w.snap);
    *out = w.snap;
    return 0;
}

int ut_pci_snap_sysfs(const char *dir, struct ut_pci_snap **out)
{
    return snap_tree(dir, UT_PCI_SYSFS, NULL, out);
}

/* A machine may have no PCI at all; what else there is to say about it is still worth saying. */
int ut_pci_snap_live(struct ut_pci_snap **out)
{
    int rc = snap_tree("/sys", UT_PCI_LIVE, NULL, out);
    if (rc != -ENOENT)
        return rc;
    struct ut_pci_snap *snap = ut_pci_snap_new(UT_PCI_LIVE);
    if (!snap)
        return -ENOMEM;
    ut_pci_snap_gap(snap, UT_PCI_GAP_FAILED, NULL,
                    "no /sys/bus/pci/devices: no PCI here, or sysfs is not mounted");
    *out = snap;
    return 0;
}

int ut_pci_snap_path(const char *dir, struct ut_pci_addr addr, struct ut_pci_snap **out)
{
    return snap_tree(dir ? dir : "/sys", dir ? UT_PCI_SYSFS : UT_PCI_LIVE, &addr, out);
}
