/*
 * A snapshot of PCI state: every function with the bytes and attributes that were read for it, and a list of
 * what could not be read. Nothing is judged here; pci_model.h does that.
 *
 * There is one snapshot type and three places it comes from: this machine (sysfs, and configuration space
 * through libpci), a recorded sysfs tree, and a file as lspci -x, -xxx or -xxxx writes it. All three are
 * hostile: whatever is missing, cut, contradictory or endless becomes a gap in the list, and the rest is
 * kept. "Not recorded", "needs root", "not responding" and "zero" stay four different things.
 *
 * Threads: a snapshot belongs to whoever reads it and does not change afterwards. Reading blocks on files.
 */
#ifndef UT_PCI_SNAP_H
#define UT_PCI_SNAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "utils/pci_addr.h"
#include "utils/pci_speed.h"

#define UT_PCI_CFG_BYTES 4096u
#define UT_PCI_MAX_FNS 16384u /* a few thousand virtual functions are seen in practice */
#define UT_PCI_MAX_GAPS 256u
#define UT_PCI_BARS 6
#define UT_PCI_AER_LINES 40

enum ut_pci_source {
    UT_PCI_LIVE,  /* this machine: the list is complete, so what is absent does not exist */
    UT_PCI_SYSFS, /* a recorded sysfs tree: what is absent may not have been recorded */
    UT_PCI_DUMP,  /* lspci hex */
};

/* Why something is missing from the snapshot. */
enum ut_pci_gap_kind {
    UT_PCI_GAP_ROOT,     /* the kernel shows it to root only */
    UT_PCI_GAP_SILENT,   /* the function answers all ones: gone, asleep or broken */
    UT_PCI_GAP_VANISHED, /* the function went away while it was read */
    UT_PCI_GAP_CUT,      /* the input ends in the middle of something */
    UT_PCI_GAP_DAMAGED,  /* the input contradicts itself or the format */
    UT_PCI_GAP_FAILED,   /* the system refused to read it */
};

struct ut_pci_gap {
    enum ut_pci_gap_kind kind;
    bool has_addr;
    struct ut_pci_addr addr;
    char text[160]; /* one sentence, printable, no newline */
};

enum ut_pci_aer_kind { UT_PCI_AER_COR, UT_PCI_AER_NONFATAL, UT_PCI_AER_FATAL, UT_PCI_AER_KINDS };

/* One aer_dev_* file: the kernel's counters since boot or the last reset of the device. */
struct ut_pci_counters {
    bool present;
    size_t line_count;
    struct {
        char name[32];
        uint64_t count;
    } line[UT_PCI_AER_LINES]; /* the single errors, without the total */
    uint64_t total;           /* as the file states it; the sum of the lines where it states none */
};

/* One line of the resource file. All zero: nothing is assigned. */
struct ut_pci_resource {
    uint64_t start, end, flags;
};

/* What sysfs adds to configuration space. Fields keep their "unknown" value where a file is missing. */
struct ut_pci_attrs {
    bool present;                /* the function came from sysfs */
    bool has_link;               /* there are link attributes, whatever they say */
    struct ut_pci_rate max, cur; /* unknown parts 0 */
    int numa_node;               /* -1 unknown */
    int iommu_group;             /* -1 unknown or none */
    char iommu_type[16];         /* "DMA", "DMA-FQ", "identity", ...; empty unknown */
    int enabled;                 /* count of enables; -1 unknown */
    int secondary, subordinate;  /* bus numbers; -1 unknown */
    int total_vfs, num_vfs;      /* -1 unknown or no SR-IOV */
    bool is_vf;
    bool has_parent;
    struct ut_pci_addr parent; /* the bridge above, by the device's path; only when has_parent */
    bool at_root_bus;          /* the path says that nothing is above */
    char driver[32];           /* empty: none, or unknown */
    char power[12];            /* "D0", "D3hot", ...; empty unknown */
    char runtime[12];          /* "active", "suspended", ...; empty unknown */
    char local_cpus[64];       /* CPU list; empty unknown, may be cut */
    bool has_resources;        /* the resource file was readable */
    struct ut_pci_resource bar[UT_PCI_BARS];
    struct ut_pci_counters *aer; /* UT_PCI_AER_KINDS of them, owned; NULL without aer_dev_* files */
};

struct ut_pci_fn {
    struct ut_pci_addr addr;
    uint32_t read_idx; /* when it was read, counted from 0 */
    uint16_t vendor, device;
    uint32_t class_code; /* 24 bits: base class, subclass, programming interface */
    bool has_class;
    bool needs_root;  /* only the first 64 bytes could be read */
    bool silent;      /* configuration space reads all ones */
    uint16_t cfg_len; /* bytes of cfg that were read, from 0 on without a hole; 0 when none */
    uint8_t *cfg;     /* owned; NULL when cfg_len is 0 */
    struct ut_pci_attrs attrs;
};

struct ut_pci_snap {
    enum ut_pci_source source;
    struct ut_pci_fn *fn; /* sorted by address, each address once; owned */
    size_t fn_count, fn_cap;
    struct ut_pci_gap gap[UT_PCI_MAX_GAPS];
    size_t gap_count;    /* kept in gap[] */
    size_t gap_lost;     /* more gaps than fit */
    bool damaged;        /* some gap, kept or lost, is UT_PCI_GAP_CUT or worse */
    unsigned numa_nodes; /* NUMA nodes of the machine; 0 unknown */
};

/* Reads this machine; without PCI the snapshot is empty and has a gap. 0, -ENOMEM, or -errno of opening /sys.
 * *out is the caller's then, to be freed by ut_pci_snap_free. */
int ut_pci_snap_live(struct ut_pci_snap **out);

/* Reads a recorded sysfs tree: dir/bus/pci/devices/ADDRESS/..., with links as links, as text files (what git
 * makes of links on some systems) or followed. Never leaves dir. As above; -ENOENT when it holds no
 * bus/pci/devices. */
int ut_pci_snap_sysfs(const char *dir, struct ut_pci_snap **out);

/* Reads lspci hex. As above; -errno of opening or reading the file, -EFBIG beyond 256 MiB, -ENODATA when it
 * names no function. */
int ut_pci_snap_dump(const char *path, struct ut_pci_snap **out);

/* The same from memory that need not end in NUL; for tests and fuzzing. */
int ut_pci_snap_dump_text(const char *text, size_t len, struct ut_pci_snap **out);

/* Reads one device and the bridges above it, of this machine (dir NULL) or of a recorded tree. As above;
 * -ENODEV when there is no such device. */
int ut_pci_snap_path(const char *dir, struct ut_pci_addr addr, struct ut_pci_snap **out);

/* Frees a snapshot; NULL is fine. */
void ut_pci_snap_free(struct ut_pci_snap *snap);

/* ---- for the readers ---- */

/* Makes an empty snapshot. NULL without memory. */
struct ut_pci_snap *ut_pci_snap_new(enum ut_pci_source source);

/* Adds a function with unknown attributes; the pointer holds until the next one is added. NULL without
 * memory or beyond UT_PCI_MAX_FNS. */
struct ut_pci_fn *ut_pci_snap_add(struct ut_pci_snap *snap, struct ut_pci_addr addr);

/* Remembers that something is missing; addr may be NULL. */
void ut_pci_snap_gap(struct ut_pci_snap *snap, enum ut_pci_gap_kind kind, const struct ut_pci_addr *addr,
                     const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Reads the text of an aer_dev_* file, which it takes apart. */
void ut_pci_snap_counters(char *text, struct ut_pci_counters *counters);

/* Reads anew what says whether a function is in use and awake (enabled, power, runtime), which changes while
 * the machine runs; devices_fd is that of bus/pci/devices. What cannot be read becomes unknown. */
void ut_pci_snap_state(int devices_fd, const char *name, struct ut_pci_fn *fn);

/* Sorts, drops repeated addresses (the first one stays), and derives ids, class and silence from the bytes.
 */
void ut_pci_snap_finish(struct ut_pci_snap *snap);

#endif
