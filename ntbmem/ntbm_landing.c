#include "ntbmem/ntbm_landing.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define CELLS_MAX 128u
#define AREA_BYTES_MIN                                                                  \
    (NTBM_CELLS_OFFSET + 8 * NTBM_LINE + 2 * (NTBM_LINE + NTBM_SLOT_BYTES_MIN)) /* 2048 \
                                                                                 */

uint64_t ntbm_landing_min_bytes(uint32_t node_count)
{
    return NTBM_HEADER_BYTES + (uint64_t)AREA_BYTES_MIN * (node_count - 1);
}

uint64_t ntbm_landing_default_bytes(uint32_t node_count)
{
    const uint64_t area_bytes =
        NTBM_CELLS_OFFSET + CELLS_MAX * NTBM_LINE + 4 * (NTBM_LINE + NTBM_SLOT_BYTES_MAX);
    return (NTBM_HEADER_BYTES + area_bytes * (node_count - 1) + 4095) & ~4095ull;
}

static uint32_t whole_lines(uint64_t bytes)
{
    return (uint32_t)(bytes & ~(uint64_t)(NTBM_LINE - 1));
}

/* Messages get about an eighth of a small area, and never more than they can use. */
static uint32_t cells_for(uint32_t area_bytes)
{
    uint32_t count = 8;
    while (count < CELLS_MAX && count * 2 * NTBM_LINE * 8 <= area_bytes)
        count *= 2;
    return count;
}

/* Slots as large as they may be, but at least four where they stay useful, so that filling, travelling and
 * draining overlap. */
static uint32_t slots_for(uint32_t bytes)
{
    uint32_t count = bytes / (NTBM_LINE + NTBM_SLOT_BYTES_MAX);
    if (count >= 4)
        return count < NTBM_SLOTS_MAX ? count : NTBM_SLOTS_MAX;
    return bytes >= 4 * (NTBM_LINE + NTBM_SLOT_BYTES_MIN) ? 4 : 2;
}

int ntbm_landing_cut(uint64_t landing_bytes, uint32_t node_count, struct ntbm_geometry *out,
                     struct ut_err *err)
{
    if (node_count < 2 || node_count > 65536)
        return ut_err_set(err, -EINVAL, "%" PRIu32 " nodes: 2 to 65536 share a fabric", node_count);
    if (landing_bytes < ntbm_landing_min_bytes(node_count))
        return ut_err_set(err, -EINVAL,
                          "landing memory of %" PRIu64 " bytes is too small: %" PRIu32
                          " nodes need at least %" PRIu64,
                          landing_bytes, node_count, ntbm_landing_min_bytes(node_count));
    /* All that an area can use at most; memory beyond stays free. */
    const uint64_t area_max = NTBM_CELLS_OFFSET + CELLS_MAX * NTBM_LINE +
                              (uint64_t)NTBM_SLOTS_MAX * (NTBM_LINE + NTBM_SLOT_BYTES_MAX);
    uint64_t share = (landing_bytes - NTBM_HEADER_BYTES) / (node_count - 1);
    struct ntbm_geometry geo = {.area_bytes = whole_lines(share < area_max ? share : area_max)};
    geo.cell_count = cells_for(geo.area_bytes);
    uint32_t left = geo.area_bytes - ntbm_cell_offset(geo.cell_count);
    geo.slot_count = slots_for(left);
    geo.slot_bytes = whole_lines(left / geo.slot_count) - NTBM_LINE;
    if (geo.slot_bytes > NTBM_SLOT_BYTES_MAX)
        geo.slot_bytes = NTBM_SLOT_BYTES_MAX;
    *out = geo;
    return 0;
}

uint32_t ntbm_sum(const void *bytes, size_t len)
{
    const uint8_t *at = bytes;
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < len; i++)
        sum = (sum ^ at[i]) * 16777619u;
    return sum;
}

uint32_t ntbm_cell_sum(const struct ntbm_cell *cell)
{
    return ntbm_sum(&cell->bytes,
                    offsetof(struct ntbm_cell, payload) - offsetof(struct ntbm_cell, bytes) + cell->bytes);
}

/* True when all bytes of the first line are `byte`. */
static bool is_filled_with(const struct ntbm_ident *ident, uint8_t byte)
{
    const uint8_t *at = (const uint8_t *)ident;
    for (size_t i = 0; i < NTBM_LINE; i++)
        if (at[i] != byte)
            return false;
    return true;
}

/* What any version of the layout can judge. */
static int check_version(const struct ntbm_ident *ours, const struct ntbm_ident *theirs, uint32_t node,
                         struct ut_err *err)
{
    if (is_filled_with(theirs, 0xff))
        return ut_err_set(err, -ENODEV, "the memory of node %" PRIu32 " reads as all ones: its link is down",
                          node);
    if (is_filled_with(theirs, 0))
        return ut_err_set(err, -ENXIO, "no daemon uses the memory of node %" PRIu32, node);
    if (theirs->magic != ours->magic)
        return ut_err_set(err, -EPROTO, "the memory of node %" PRIu32 " is not landing memory of a fabric",
                          node);
    if (theirs->version != ours->version || theirs->bytes != ours->bytes)
        return ut_err_set(err, -EPROTO,
                          "node %" PRIu32 " speaks version %" PRIu32
                          " of the fabric, this daemon version %" PRIu32 ": install the same on both",
                          node, theirs->version, ours->version);
    return 0;
}

static int check_number(const struct ntbm_ident *ours, const struct ntbm_ident *theirs, uint32_t node,
                        struct ut_err *err)
{
    if (theirs->node == ours->node)
        return ut_err_set(err, -EPROTO,
                          "node number %" PRIu32 " is used twice: here, and by process %" PRIu32
                          " on %.31s, which is configured as node %" PRIu32,
                          ours->node, theirs->pid, theirs->host, node);
    if (theirs->node != node)
        return ut_err_set(err, -EPROTO,
                          "the memory configured for node %" PRIu32 " is that of node %" PRIu32
                          " (process %" PRIu32 " on %.31s)",
                          node, theirs->node, theirs->pid, theirs->host);
    return 0;
}

static int check_geometry(const struct ntbm_ident *ours, const struct ntbm_ident *theirs, uint32_t node,
                          struct ut_err *err)
{
    const struct ntbm_geometry *a = &ours->geometry, *b = &theirs->geometry;
    if (theirs->node_count != ours->node_count)
        return ut_err_set(err, -EPROTO,
                          "node %" PRIu32 " (process %" PRIu32 " on %.31s) counts %" PRIu32
                          " nodes in the fabric, this daemon %" PRIu32,
                          node, theirs->pid, theirs->host, theirs->node_count, ours->node_count);
    if (memcmp(a, b, sizeof(*a)))
        return ut_err_set(
            err, -EPROTO,
            "node %" PRIu32 " (process %" PRIu32 " on %.31s) has %" PRIu32 " slots of %" PRIu32
            " bytes, this daemon %" PRIu32 " of %" PRIu32 ": give both landing memories the same length",
            node, theirs->pid, theirs->host, b->slot_count, b->slot_bytes, a->slot_count, a->slot_bytes);
    return 0;
}

int ntbm_ident_check(const struct ntbm_ident *ours, const struct ntbm_ident *theirs, uint32_t node,
                     struct ut_err *err)
{
    int rc = check_version(ours, theirs, node, err);
    if (rc)
        return rc;
    if (memcmp(ours->fabric, theirs->fabric, sizeof(ours->fabric)))
        return ut_err_set(err, -EPROTO,
                          "node %" PRIu32 " (process %" PRIu32
                          " on %.31s) belongs to fabric \"%.31s\", this daemon to \"%s\"",
                          node, theirs->pid, theirs->host, theirs->fabric, ours->fabric);
    rc = check_number(ours, theirs, node, err);
    if (!rc)
        rc = check_geometry(ours, theirs, node, err);
    return rc;
}
