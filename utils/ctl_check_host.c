/*
 * Checks of the kernel and its surroundings: command line, IOMMU mode, memory set aside, FUSE, limits,
 * containers, and what direct transfers from GPUs need. What is not recorded is not judged.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "utils/ctl_find.h"
#include "utils/ut_num.h"

#define LANDING_ALIGN (2ull << 20) /* what device memory of huge pages and the larger windows ask for */

static unsigned count_kind(const struct ctl_case *c, enum ut_pci_kind kind)
{
    unsigned count = 0;
    for (size_t i = 0; i < c->mover_count; i++)
        count += c->model->node[c->mover[i]].kind == kind;
    return count;
}

static bool has_finding(const struct ctl_case *c, const char *check)
{
    for (size_t i = 0; i < c->findings->count; i++)
        if (!strcmp(c->findings->list[i].check, check))
            return true;
    return false;
}

/* ---- kernel command line ---- */

static void check_cmdline(const struct ctl_case *c)
{
    char pci[256] = "";
    bool has_pci = ctl_host_cmdline(c->host, "pci", pci, sizeof pci);
    if (has_pci && strstr(pci, "noaer")) {
        struct ctl_finding *f =
            ctl_find(c, CTL_WARNING, "cmdline-noaer", UT_PCI_NONE, "error reporting is switched off");
        ctl_evidence(f, "pci=%s", pci);
        ctl_advise(f, "Errors of links are neither counted nor handled.", "Boot without pci=noaer.");
    }
    if (has_pci && strstr(pci, "nommconf")) {
        struct ctl_finding *f = ctl_find(c, CTL_WARNING, "cmdline-nommconf", UT_PCI_NONE,
                                         "extended configuration space is switched off");
        ctl_evidence(f, "pci=%s", pci);
        ctl_advise(f, "AER, ACS and DPC live there: none of them works or can be seen.",
                   "Boot without pci=nommconf.");
    }
    if (ctl_host_cmdline(c->host, "pcie_acs_override", pci, sizeof pci)) {
        struct ctl_finding *f = ctl_find(c, CTL_NOTE, "cmdline-acs-override", UT_PCI_NONE,
                                         "IOMMU groups are split by an override");
        ctl_evidence(f, "pcie_acs_override=%s", pci);
        ctl_advise(
            f,
            "The groups then promise an isolation that the hardware does not give; mainline kernels ignore "
            "the option.",
            "Use it only where the virtual machines trust each other.");
    }
    if (has_finding(c, "bar-unassigned") && !strstr(pci, "realloc")) {
        struct ctl_finding *f = ctl_find(c, CTL_NOTE, "cmdline-realloc", UT_PCI_NONE,
                                         "the kernel was not asked to assign windows anew");
        ctl_evidence(f, "no pci=realloc on the command line");
        ctl_advise(f, "With it the kernel enlarges bridge windows that firmware made too small.",
                   "Boot with pci=realloc, after switching on Above 4G Decoding.");
    }
}

/* ---- IOMMU ---- */

static void check_iommu(const struct ctl_case *c)
{
    char value[64] = "";
    bool any_group = false, asked = ctl_host_cmdline(c->host, "intel_iommu", value, sizeof value);
    asked |= ctl_host_cmdline(c->host, "amd_iommu", NULL, 0);
    for (size_t i = 0; i < c->model->node_count; i++)
        any_group |= c->model->node[i].fn->attrs.iommu_group >= 0;
    if (!c->host->live || any_group || !c->mover_count)
        return;
    struct ctl_finding *f = ctl_find(c, asked && strcmp(value, "off") ? CTL_WARNING : CTL_NOTE, "iommu-off",
                                     UT_PCI_NONE, "no device is behind an IOMMU");
    ctl_evidence(f, "no iommu_group in sysfs%s", asked ? ", though the command line asks for one" : "");
    ctl_advise(
        f, "Peer traffic is at its fastest, but a device, or a peer behind a window, can write anywhere.",
        "Right for a trusted rack; else switch VT-d or AMD-Vi on in firmware and boot with intel_iommu=on "
        "iommu=pt.");
}

/* ---- memory ---- */

/* Reads the memmap=SIZE!START of a reserved region. False when it has another form. */
static bool parse_memmap(char *text, uint64_t *bytes, uint64_t *start)
{
    char *mark = strpbrk(text, "!$@#");
    if (!mark || (*mark != '!' && *mark != '$'))
        return false;
    *mark = '\0';
    bool is_hex = !strncmp(mark + 1, "0x", 2);
    if (is_hex)
        *start = strtoull(mark + 1, NULL, 16);
    return !ut_num_bytes(text, bytes) && (is_hex || !ut_num_bytes(mark + 1, start));
}

static void check_reserved(const struct ctl_case *c)
{
    char text[128], shown[128];
    uint64_t bytes = 0, start = 0;
    if (!ctl_host_cmdline(c->host, "memmap", text, sizeof text))
        return;
    memcpy(shown, text, sizeof shown);
    if (!parse_memmap(text, &bytes, &start) || !(bytes % LANDING_ALIGN || start % LANDING_ALIGN))
        return;
    struct ctl_finding *f = ctl_find(c, CTL_WARNING, "reserved-misaligned", UT_PCI_NONE,
                                     "reserved memory is not aligned to 2 MiB");
    ctl_evidence(f, "memmap=%s", shown);
    ctl_advise(
        f,
        "As landing memory it cannot be mapped in huge pages, and windows that want their base aligned "
        "refuse it or write elsewhere.",
        "Reserve a multiple of 2 MiB at a multiple of 2 MiB, better of the window's size.");
}

static void check_huge_pages(const struct ctl_case *c)
{
    int64_t small = 0, large = 0;
    bool known = ctl_host_sys_number(c->host, "kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", &small);
    ctl_host_sys_number(c->host, "kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", &large);
    if (!known || small || large || !count_kind(c, UT_PCI_KIND_NTB))
        return;
    struct ctl_finding *f =
        ctl_find(c, CTL_NOTE, "no-huge-pages", UT_PCI_NONE, "no huge pages are set aside");
    ctl_evidence(f, "nr_hugepages 0");
    ctl_advise(f, "Large contiguous buffers for windows become hard to get once memory is fragmented.",
               "Set vm.nr_hugepages at boot, or reserve landing memory with memmap=.");
}

static void check_memlock(const struct ctl_case *c)
{
    struct rlimit limit;
    if (!c->host->live || getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur > 64ull << 20 || geteuid() == 0)
        return;
    struct ctl_finding *f = ctl_find(c, CTL_NOTE, "memlock-low", UT_PCI_NONE, "little memory can be pinned");
    ctl_evidence(f, "memlock limit %llu KiB", (unsigned long long)limit.rlim_cur >> 10);
    ctl_advise(
        f, "RDMA and CUDA pin their buffers; beyond the limit they fail or copy.",
        "Raise memlock in limits.conf, the service (LimitMEMLOCK=infinity) or the container (--ulimit).");
}

/* ---- FUSE ---- */

static bool kernel_at_least(const struct ctl_case *c, unsigned major, unsigned minor, char *release,
                            size_t size)
{
    unsigned have_major, have_minor;
    if (ctl_host_proc(c->host, "sys/kernel/osrelease", release, size) <= 0 ||
        sscanf(release, "%u.%u", &have_major, &have_minor) != 2)
        return true;
    return have_major > major || (have_major == major && have_minor >= minor);
}

static void check_fuse_mode(const struct ctl_case *c)
{
    char systems[8192], release[64] = "";
    bool known = ctl_host_proc(c->host, "filesystems", systems, sizeof systems) > 0;
    if (known && !strstr(systems, "\tfuse") && !ctl_host_module(c->host, "fuse")) {
        struct ctl_finding *f =
            ctl_find(c, CTL_WARNING, "fuse-missing", UT_PCI_NONE, "the kernel has no FUSE");
        ctl_evidence(f, "fuse is not in /proc/filesystems");
        ctl_advise(f, "fabricfs cannot mount.", "modprobe fuse, or use a kernel with CONFIG_FUSE_FS.");
    } else if (!kernel_at_least(c, 6, 9, release, sizeof release)) {
        struct ctl_finding *f =
            ctl_find(c, CTL_NOTE, "fuse-no-passthrough", UT_PCI_NONE, "the kernel has no FUSE passthrough");
        ctl_evidence(f, "kernel %s, passthrough came with 6.9", release);
        ctl_advise(f, "fabricfs then keeps buffers coherent through the page cache, which is slower.",
                   "Use a kernel from 6.9 on where speed matters.");
    }
}

static void check_fuse_limits(const struct ctl_case *c)
{
    int64_t timeout = 0, pages = 0;
    const char *name = "sys/fs/fuse/max_request_timeout";
    bool limited = ctl_host_proc_number(c->host, name, &timeout) && timeout;
    if (!limited) {
        name = "sys/fs/fuse/default_request_timeout";
        limited = ctl_host_proc_number(c->host, name, &timeout) && timeout;
    }
    if (limited) {
        struct ctl_finding *f = ctl_find(c, timeout < 60 ? CTL_WARNING : CTL_NOTE, "fuse-timeout",
                                         UT_PCI_NONE, "the kernel ends FUSE mounts whose requests wait");
        ctl_evidence(f, "/proc/%s is %lld s", name, (long long)timeout);
        ctl_advise(f, "A rank that waits longer than that in an operation would take the whole mount down.",
                   "Keep the jobs' timeout well below it; fabricfs answers waiting requests before it.");
    }
    if (ctl_host_proc_number(c->host, "sys/fs/fuse/max_pages_limit", &pages) && pages < 256) {
        struct ctl_finding *f = ctl_find(c, CTL_NOTE, "fuse-pages", UT_PCI_NONE, "FUSE requests are small");
        ctl_evidence(f, "max_pages_limit %lld, 256 is usual", (long long)pages);
        ctl_advise(f, "write() into buffers takes more round trips; mmap is not affected.",
                   "Set fs.fuse.max_pages_limit to 256 or more.");
    }
}

/* ---- surroundings ---- */

static void check_lockdown(const struct ctl_case *c)
{
    char text[128];
    if (ctl_host_sys(c->host, "kernel/security/lockdown", text, sizeof text) <= 0 ||
        (!strstr(text, "[integrity]") && !strstr(text, "[confidentiality]")))
        return;
    struct ctl_finding *f = ctl_find(c, CTL_WARNING, "lockdown", UT_PCI_NONE, "the kernel is locked down");
    ctl_evidence(f, "%s", text);
    ctl_advise(f, "Windows of PCI devices cannot be mapped from user space (EPERM).",
               "Switch secure boot's lockdown off, or reach the device through a kernel driver.");
}

/* What tells that this is a container; NULL when nothing does. The first PID namespace has a fixed number. */
static const char *container_sign(void)
{
    static const char *const files[] = {"/.dockerenv", "/run/.containerenv", "/run/systemd/container"};
    char namespace[64] = "";
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (!access(files[i], F_OK))
            return files[i];
    if (readlink("/proc/self/ns/pid", namespace, sizeof namespace - 1) > 0 &&
        strcmp(namespace, "pid:[4026531836]"))
        return "a PID namespace of its own";
    return NULL;
}

static void check_container(const struct ctl_case *c)
{
    const char *sign = c->host->live ? container_sign() : NULL;
    if (!sign)
        return;
    struct ctl_finding *f = ctl_find(c, CTL_NOTE, "container", UT_PCI_NONE, "this is a container");
    ctl_evidence(f, "%s; %s", sign, access("/dev/fuse", F_OK) ? "no /dev/fuse" : "/dev/fuse is there");
    ctl_advise(f,
               "A mount made on the host later is not seen here, and limits of memory and pinning are the "
               "container's own.",
               "Bind /fabric with rslave propagation; pass /dev/fuse, --ulimit memlock=-1 and, for RDMA, the "
               "device files.");
}

/* Direct transfers from GPUs to NICs: as far as modules show. */
static void check_gpudirect(const struct ctl_case *c)
{
    bool peermem = ctl_host_module(c->host, "nvidia_peermem") || ctl_host_module(c->host, "nv_peer_mem");
    if (!c->host->live || !ctl_host_module(c->host, "nvidia") || !count_kind(c, UT_PCI_KIND_GPU))
        return;
    if (ctl_host_module(c->host, "ib_core") && !peermem) {
        struct ctl_finding *f = ctl_find(c, CTL_NOTE, "gpudirect-peermem", UT_PCI_NONE,
                                         "RDMA NICs cannot reach GPU memory through the peer-memory module");
        ctl_evidence(f, "nvidia and ib_core are loaded, nvidia_peermem is not");
        ctl_advise(f, "Without it, and without DMA-BUF support, data goes through host memory twice.",
                   "modprobe nvidia_peermem, or use drivers that export DMA-BUF (open kernel modules).");
    }
    if (!ctl_host_module(c->host, "gdrdrv")) {
        struct ctl_finding *f = ctl_find(c, CTL_NOTE, "gpudirect-copy", UT_PCI_NONE, "gdrdrv is not loaded");
        ctl_advise(f,
                   "Small copies between host and GPU memory are then slower; large ones are not affected.",
                   "Install and load gdrcopy's module if latency of small messages matters.");
    }
}

void ctl_check_host(const struct ctl_case *c)
{
    check_cmdline(c);
    check_iommu(c);
    check_reserved(c);
    check_huge_pages(c);
    check_memlock(c);
    check_fuse_mode(c);
    check_fuse_limits(c);
    check_lockdown(c);
    check_container(c);
    check_gpudirect(c);
}
