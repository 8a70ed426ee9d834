#include "fs/fs_numa.h"

#include "fs/fs_watch.h"
#include "utils/pci_file.h"

#include <errno.h>
#include <fcntl.h>
#include <numa.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- where things are ---- */

/* The number in a numa_node attribute; -1 when it is not known. */
static int read_node(const char *sysfs, const char *path)
{
    int64_t node;
    int fd = open(sysfs, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 ? -errno : ut_pci_file_number(fd, path, &node);
    if (fd >= 0)
        close(fd);
    return rc || node < 0 || node > INT16_MAX ? -1 : (int)node;
}

static int node_of_device(const char *sysfs, struct ut_pci_addr addr)
{
    char name[UT_PCI_ADDR_CHARS], path[96];
    ut_pci_addr_show(addr, name);
    snprintf(path, sizeof(path), "bus/pci/devices/%s/numa_node", name);
    return read_node(sysfs, path);
}

/* Of landing memory "dax:/dev/daxX.Y"; -1 for other kinds. */
static int node_of_landing(const char *sysfs, const char *landing)
{
    char path[96];
    const char *slash = strncmp(landing, "dax:", 4) == 0 ? strrchr(landing, '/') : NULL;
    if (!slash)
        return -1;
    snprintf(path, sizeof(path), "bus/dax/devices/%.*s/numa_node", (int)strcspn(slash + 1, "+"), slash + 1);
    return read_node(sysfs, path);
}

/* ---- deciding ---- */

static void decide(struct fs *fs, int node, const char *why)
{
    fs->numa_node = node;
    snprintf(fs->numa_why, sizeof(fs->numa_why), "%s", why);
}

/* The node that all devices share. */
static void decide_by_devices(struct fs *fs)
{
    const struct fs_settings *settings = fs->settings;
    char name[UT_PCI_ADDR_CHARS], why[96];
    decide(fs, -1, "no device or dax: memory tells where it is");
    for (unsigned i = 0; i < (unsigned)settings->nodes; i++) {
        struct ut_pci_addr addr;
        if (!fs_watch_device_of(&settings->node_list[i], &addr))
            continue;
        int node = node_of_device(settings->sysfs, addr);
        ut_pci_addr_show(addr, name);
        if (node >= 0 && fs->numa_node >= 0 && node != fs->numa_node) {
            decide(fs, -1, "the devices are on different nodes");
            return;
        }
        snprintf(why, sizeof(why), "that of device %s", name);
        if (node >= 0)
            decide(fs, node, why);
    }
}

static void decide_by_itself(struct fs *fs)
{
    const struct fs_settings *settings = fs->settings;
    decide_by_devices(fs);
    int landing = node_of_landing(settings->sysfs, settings->node_list[settings->node].landing);
    if (fs->numa_node < 0 && landing >= 0)
        decide(fs, landing, "that of the landing memory");
}

/* ---- moving there ---- */

static bool has_memory(int node)
{
    struct bitmask *allowed = numa_get_mems_allowed();
    bool has = numa_bitmask_isbitset(allowed, (unsigned)node);
    numa_free_nodemask(allowed);
    return has;
}

/* Keeps the thread on the node's CPUs, among those it may use. 0 or -EINVAL. */
static int move_thread(int node)
{
    struct bitmask *cpus = numa_available() < 0 ? NULL : numa_allocate_cpumask();
    struct bitmask *of_node = cpus ? numa_allocate_cpumask() : NULL;
    bool known = of_node && node <= numa_max_node() && numa_node_to_cpus(node, of_node) == 0;
    if (known) {
        numa_sched_getaffinity(0, cpus);
        for (unsigned i = 0; i < cpus->size; i++) {
            if (!numa_bitmask_isbitset(of_node, i))
                numa_bitmask_clearbit(cpus, i);
        }
    }
    int rc = known && has_memory(node) && numa_bitmask_weight(cpus) && numa_sched_setaffinity(0, cpus) == 0
                 ? 0
                 : -EINVAL;
    if (cpus)
        numa_free_cpumask(cpus);
    if (of_node)
        numa_free_cpumask(of_node);
    return rc;
}

int fs_numa_place(struct fs *fs, struct ut_err *err)
{
    const char *asked = fs->settings->numa;
    char why[96];
    if (strcmp(asked, "none") == 0)
        decide(fs, -1, "asked for by the numa option");
    else if (strcmp(asked, "auto") == 0)
        decide_by_itself(fs);
    else
        decide(fs, (int)strtol(asked, NULL, 10), "asked for by the numa option");
    if (fs->numa_node < 0 || move_thread(fs->numa_node) == 0)
        return 0;
    if (strcmp(asked, "auto") != 0)
        return ut_err_set(err, -EINVAL,
                          "numa = %s: this machine has no such node, with CPUs and memory that may be used",
                          asked);
    snprintf(why, sizeof(why), "node %d has no CPUs and memory that may be used", fs->numa_node);
    decide(fs, -1, why);
    return 0;
}

void fs_numa_show(const struct fs *fs, struct ut_text *out)
{
    if (fs->numa_node < 0)
        ut_text_addf(out, "numa none (%s)\n", fs->numa_why);
    else
        ut_text_addf(out, "numa %d (%s)\n", fs->numa_node, fs->numa_why);
}

void fs_numa_prefer(const struct fs *fs, void *base, size_t bytes)
{
    if (fs->numa_node < 0)
        return;
    struct bitmask *nodes = numa_allocate_nodemask();
    numa_bitmask_setbit(nodes, (unsigned)fs->numa_node);
    (void)mbind(base, bytes, MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0); /* slower, not wrong */
    numa_free_nodemask(nodes);
}
