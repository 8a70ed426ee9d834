#include "utils/pci_snap.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ut_pci_snap *ut_pci_snap_new(enum ut_pci_source source)
{
    struct ut_pci_snap *snap = calloc(1, sizeof *snap);
    if (snap)
        snap->source = source;
    return snap;
}

static void free_fn(struct ut_pci_fn *fn)
{
    free(fn->cfg);
    free(fn->attrs.aer);
}

void ut_pci_snap_free(struct ut_pci_snap *snap)
{
    if (!snap)
        return;
    for (size_t i = 0; i < snap->fn_count; i++)
        free_fn(&snap->fn[i]);
    free(snap->fn);
    free(snap);
}

static bool grow(struct ut_pci_snap *snap)
{
    size_t cap = snap->fn_cap ? snap->fn_cap * 2 : 32;
    struct ut_pci_fn *fn = realloc(snap->fn, cap * sizeof *fn);
    if (!fn)
        return false;
    snap->fn = fn;
    snap->fn_cap = cap;
    return true;
}

struct ut_pci_fn *ut_pci_snap_add(struct ut_pci_snap *snap, struct ut_pci_addr addr)
{
    if (snap->fn_count >= UT_PCI_MAX_FNS || (snap->fn_count == snap->fn_cap && !grow(snap)))
        return NULL;
    struct ut_pci_fn *fn = &snap->fn[snap->fn_count++];
    memset(fn, 0, sizeof *fn);
    fn->addr = addr;
    fn->read_idx = (uint32_t)(snap->fn_count - 1);
    fn->attrs.numa_node = fn->attrs.iommu_group = fn->attrs.enabled = -1;
    fn->attrs.secondary = fn->attrs.subordinate = -1;
    fn->attrs.total_vfs = fn->attrs.num_vfs = -1;
    return fn;
}

void ut_pci_snap_gap(struct ut_pci_snap *snap, enum ut_pci_gap_kind kind, const struct ut_pci_addr *addr,
                     const char *fmt, ...)
{
    snap->damaged |= kind >= UT_PCI_GAP_CUT;
    if (snap->gap_count == UT_PCI_MAX_GAPS) {
        snap->gap_lost++;
        return;
    }
    struct ut_pci_gap *gap = &snap->gap[snap->gap_count++];
    gap->kind = kind;
    gap->has_addr = addr != NULL;
    if (addr)
        gap->addr = *addr;
    va_list args;
    va_start(args, fmt);
    vsnprintf(gap->text, sizeof gap->text, fmt, args);
    va_end(args);
    for (char *p = gap->text; *p; p++)
        if (*p < ' ' || *p > '~')
            *p = '?';
}

static int by_addr(const void *left, const void *right)
{
    const struct ut_pci_fn *a = left, *b = right;
    int order = ut_pci_addr_cmp(a->addr, b->addr);
    return order ? order : (int)a->read_idx - (int)b->read_idx;
}

static bool all_ones(const struct ut_pci_fn *fn)
{
    for (size_t i = 0; i < fn->cfg_len; i++)
        if (fn->cfg[i] != 0xff)
            return false;
    return fn->cfg_len >= 16;
}

/* The header says who the function is, unless it is silent or a virtual function (whose ids read ffff). */
static void identify(struct ut_pci_snap *snap, struct ut_pci_fn *fn)
{
    fn->silent = all_ones(fn);
    if (fn->silent) {
        ut_pci_snap_gap(snap, UT_PCI_GAP_SILENT, &fn->addr,
                        "not responding: configuration space reads all ones");
        return;
    }
    if (fn->cfg_len >= 4 && (fn->cfg[0] & fn->cfg[1]) != 0xff) {
        fn->vendor = (uint16_t)(fn->cfg[0] | fn->cfg[1] << 8);
        fn->device = (uint16_t)(fn->cfg[2] | fn->cfg[3] << 8);
    } else if (fn->cfg_len >= 4) {
        fn->attrs.is_vf = true;
    }
    if (fn->cfg_len >= 12 && !fn->has_class) {
        fn->class_code = (uint32_t)(fn->cfg[9] | fn->cfg[10] << 8 | fn->cfg[11] << 16);
        fn->has_class = true;
    }
}

void ut_pci_snap_finish(struct ut_pci_snap *snap)
{
    size_t kept = 0;
    if (snap->fn_count)
        qsort(snap->fn, snap->fn_count, sizeof *snap->fn, by_addr);
    for (size_t i = 0; i < snap->fn_count; i++) {
        if (kept && !ut_pci_addr_cmp(snap->fn[kept - 1].addr, snap->fn[i].addr)) {
            ut_pci_snap_gap(snap, UT_PCI_GAP_DAMAGED, &snap->fn[i].addr, "listed twice; the first is used");
            free_fn(&snap->fn[i]);
            continue;
        }
        snap->fn[kept++] = snap->fn[i];
    }
    snap->fn_count = kept;
    size_t rootless = 0;
    for (size_t i = 0; i < kept; i++) {
        identify(snap, &snap->fn[i]);
        rootless += snap->fn[i].needs_root;
    }
    if (rootless)
        ut_pci_snap_gap(snap, UT_PCI_GAP_ROOT, NULL,
                        "%zu of %zu functions: only the first 64 bytes of configuration space could be read; "
                        "needs root",
                        rootless, kept);
}
