#include "utils/ctl_facts.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define NODES_SHOWN 8

struct collector {
    const struct ctl_machine *machine;
    const struct ctl_host *host;
    struct ctl_fact *facts;
    size_t count;
};

/* The text of the next fact, which exists only once something is added to it. */
static struct ut_text *fact(struct collector *c, const char *name)
{
    c->facts[c->count] = (struct ctl_fact){.name = name};
    return &c->facts[c->count].value;
}

static void keep(struct collector *c)
{
    if (c->facts[c->count].value.len)
        c->count++;
}

static void add_file(struct collector *c, const char *name, const char *path)
{
    char text[4096];
    if (ctl_host_proc(c->host, path, text, sizeof text) > 0)
        ut_text_addf(fact(c, name), "%s", text);
    else
        fact(c, name);
    keep(c);
}

/* Which domain types the IOMMU gives to the devices here. */
static void add_iommu(struct collector *c)
{
    const struct ut_pci_model *m = c->machine->model;
    struct ut_text *text = fact(c, "iommu");
    size_t grouped = 0;
    const char *type = "";
    bool mixed = false;
    for (size_t i = 0; i < m->node_count; i++) {
        const struct ut_pci_attrs *attrs = &m->node[i].fn->attrs;
        grouped += attrs->iommu_group >= 0;
        mixed |= *type && *attrs->iommu_type && strcmp(type, attrs->iommu_type);
        type = *attrs->iommu_type ? attrs->iommu_type : type;
    }
    if (grouped)
        ut_text_addf(text, "%zu of %zu functions in groups, %s", grouped, m->node_count,
                     mixed   ? "of several types"
                     : *type ? type
                             : "type not known");
    else if (c->host->live)
        ut_text_addf(text, "no function is in a group");
    keep(c);
}

/* The distances between nodes, a row each: 10 is near. */
static void add_numa(struct collector *c)
{
    struct ut_text *text = fact(c, "numa");
    for (int node = 0; node < NODES_SHOWN; node++) {
        char path[64], distance[256], cpus[256];
        snprintf(path, sizeof path, "devices/system/node/node%d/distance", node);
        if (ctl_host_sys(c->host, path, distance, sizeof distance) <= 0)
            continue;
        snprintf(path, sizeof path, "devices/system/node/node%d/cpulist", node);
        bool has_cpus = ctl_host_sys(c->host, path, cpus, sizeof cpus) > 0;
        ut_text_addf(text, "%snode %d: distances %s, CPUs %.40s", text->len ? "; " : "", node, distance,
                     has_cpus ? cpus : "none");
    }
    keep(c);
}

static void add_memory(struct collector *c)
{
    struct ut_text *text = fact(c, "memory");
    char value[128];
    int64_t count;
    if (ctl_host_sys_number(c->host, "kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", &count))
        ut_text_addf(text, "%lld huge pages of 2 MiB", (long long)count);
    if (ctl_host_sys_number(c->host, "kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", &count))
        ut_text_addf(text, "%s%lld of 1 GiB", text->len ? ", " : "", (long long)count);
    if (ctl_host_cmdline(c->host, "memmap", value, sizeof value))
        ut_text_addf(text, "%sreserved memmap=%s", text->len ? ", " : "", value);
    keep(c);
}

static void add_limits(struct collector *c)
{
    struct rlimit limit;
    struct ut_text *text = fact(c, "memlock");
    if (c->host->live && !getrlimit(RLIMIT_MEMLOCK, &limit)) {
        if (limit.rlim_cur == RLIM_INFINITY)
            ut_text_addf(text, "unlimited");
        else
            ut_text_addf(text, "%llu KiB", (unsigned long long)limit.rlim_cur >> 10);
    }
    keep(c);
}

static void add_fuse(struct collector *c)
{
    static const struct {
        const char *path, *name;
    } LIMITS[] = {{"sys/fs/fuse/max_pages_limit", "max_pages_limit"},
                  {"sys/fs/fuse/default_request_timeout", "default_request_timeout"},
                  {"sys/fs/fuse/max_request_timeout", "max_request_timeout"}};
    struct ut_text *text = fact(c, "fuse");
    char release[64], uring[8];
    unsigned major, minor;
    if (ctl_host_proc(c->host, "sys/kernel/osrelease", release, sizeof release) > 0 &&
        sscanf(release, "%u.%u", &major, &minor) == 2)
        ut_text_addf(text, "passthrough %s",
                     major > 6 || (major == 6 && minor >= 9) ? "possible" : "not in this kernel");
    for (size_t i = 0; i < sizeof LIMITS / sizeof LIMITS[0]; i++) {
        int64_t value;
        if (ctl_host_proc_number(c->host, LIMITS[i].path, &value))
            ut_text_addf(text, ", %s %lld", LIMITS[i].name, (long long)value);
    }
    if (ctl_host_sys(c->host, "module/fuse/parameters/enable_uring", uring, sizeof uring) > 0)
        ut_text_addf(text, ", io_uring %s", uring[0] == 'Y' || uring[0] == '1' ? "on" : "off");
    keep(c);
}

/* The modules that direct transfers between GPUs and NICs need, as far as they are loaded. */
static void add_modules(struct collector *c)
{
    static const char *const NAMES[] = {"nvidia",  "nvidia_peermem", "nv_peer_mem", "gdrdrv",    "amdgpu",
                                        "ib_core", "mlx5_core",      "ntb",         "switchtec", "vfio_pci"};
    struct ut_text *text = fact(c, "modules");
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++)
        if (ctl_host_module(c->host, NAMES[i]))
            ut_text_addf(text, "%s%s", text->len ? " " : "", NAMES[i]);
    keep(c);
}

size_t ctl_facts(const struct ctl_machine *machine, const struct ctl_host *host,
                 struct ctl_fact facts[CTL_FACTS_MAX])
{
    struct collector c = {machine, host, facts, 0};
    add_file(&c, "kernel", "sys/kernel/osrelease");
    add_file(&c, "cmdline", "cmdline");
    add_iommu(&c);
    add_numa(&c);
    add_memory(&c);
    add_limits(&c);
    add_fuse(&c);
    add_modules(&c);
    return c.count;
}

void ctl_facts_fini(struct ctl_fact *facts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ut_text_fini(&facts[i].value);
}
