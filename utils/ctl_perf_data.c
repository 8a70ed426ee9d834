#include "utils/ctl_perf_data.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* ---- elements ---- */

/* Values are whole numbers or halves below 2^7 before they are wrapped, so doubles hold them exactly. */
typedef void encode_fn(double value, void *out);

#define ENCODER(NAME, TYPE)                            \
    static void encode_##NAME(double value, void *out) \
    {                                                  \
        TYPE element = (TYPE)value;                    \
        memcpy(out, &element, sizeof element);         \
    }

#define WHOLE_ENCODER(NAME, TYPE)                      \
    static void encode_##NAME(double value, void *out) \
    {                                                  \
        TYPE element = (TYPE)(int64_t)value;           \
        memcpy(out, &element, sizeof element);         \
    }

ENCODER(f32, float)
ENCODER(f64, double)
WHOLE_ENCODER(i8, int8_t)
WHOLE_ENCODER(u8, uint8_t)
WHOLE_ENCODER(i32, int32_t)
WHOLE_ENCODER(u32, uint32_t)
WHOLE_ENCODER(i64, int64_t)
WHOLE_ENCODER(u64, uint64_t)

/* The upper half of the float: what is encoded has no more digits. */
static void encode_bf16(double value, void *out)
{
    float wide = (float)value;
    uint32_t bits;
    memcpy(&bits, &wide, sizeof bits);
    memcpy(out, &(uint16_t){(uint16_t)(bits >> 16)}, sizeof(uint16_t));
}

/* IEEE 754 binary16 of a value that has one: sign, 5 bits of exponent with bias 15, 10 of fraction. */
static void encode_f16(double value, void *out)
{
    float wide = (float)value;
    uint32_t bits;
    memcpy(&bits, &wide, sizeof bits);
    uint16_t narrow = 0;
    if (value != 0)
        narrow = (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 127 + 15) << 10) |
                            (bits >> 13 & 0x3ff));
    memcpy(out, &narrow, sizeof narrow);
}

struct ctl_perf_type {
    const char *name;
    unsigned bytes;
    bool whole;       /* an integer */
    unsigned sum_max; /* the largest sum that it holds exactly, or without wrapping */
    encode_fn *encode;
};

static const struct ctl_perf_type TYPES[] = {
    {"f32", 4, false, 1u << 24, encode_f32}, {"f64", 8, false, 1u << 31, encode_f64},
    {"f16", 2, false, 1u << 11, encode_f16}, {"bf16", 2, false, 1u << 8, encode_bf16},
    {"i8", 1, true, 127, encode_i8},         {"u8", 1, true, 255, encode_u8},
    {"i32", 4, true, 1u << 31, encode_i32},  {"u32", 4, true, 1u << 31, encode_u32},
    {"i64", 8, true, 1u << 31, encode_i64},  {"u64", 8, true, 1u << 31, encode_u64},
};

/* ---- operations: what rank r stores at an element, and what comes of all ranks' ---- */

struct ctl_perf_op {
    const char *name;
    bool whole_only;
    double (*stored)(unsigned element, unsigned rank, unsigned world);
    double (*join)(double sofar, double value);
    double most_a_rank; /* of a sum: the largest value, 0 where no sum grows */
};

static double small_number(unsigned element, unsigned rank, unsigned world)
{
    (void)world;
    return 1 + (element + rank) % 3;
}

/* The sum over all ranks is a multiple of world / 2. */
static double averaged_number(unsigned element, unsigned rank, unsigned world)
{
    return 1 + element % 3 + (rank + element) % world;
}

static double spread_number(unsigned element, unsigned rank, unsigned world)
{
    (void)world;
    return 1 + (5 * element + 3 * rank) % 11;
}

/* Two at one rank in eight, so that the product stays small. */
static double factor(unsigned element, unsigned rank, unsigned world)
{
    (void)world;
    return (element + rank) % 8 == 0 ? 2 : 1;
}

static double bits(unsigned element, unsigned rank, unsigned world)
{
    (void)world;
    return (37 * element + 91 * rank) & 0x7f;
}

static double join_sum(double sofar, double value)
{
    return sofar + value;
}

static double join_min(double sofar, double value)
{
    return value < sofar ? value : sofar;
}

static double join_max(double sofar, double value)
{
    return value > sofar ? value : sofar;
}

static double join_prod(double sofar, double value)
{
    return sofar * value;
}

static double join_and(double sofar, double value)
{
    return (double)((int)sofar & (int)value);
}

static double join_or(double sofar, double value)
{
    return (double)((int)sofar | (int)value);
}

static double join_xor(double sofar, double value)
{
    return (double)((int)sofar ^ (int)value);
}

static const struct ctl_perf_op OPS[] = {
    {"sum", false, small_number, join_sum, 3},
    {"avg", false, averaged_number, join_sum, 0},
    {"min", false, spread_number, join_min, 0},
    {"max", false, spread_number, join_max, 0},
    {"prod", false, factor, join_prod, 0},
    {"band", true, bits, join_and, 0},
    {"bor", true, bits, join_or, 0},
    {"bxor", true, bits, join_xor, 0},
};

static const char *const COLLECTIVES[] = {"allreduce", "reduce_scatter", "allgather", "broadcast", "barrier"};

/* ---- looking up ---- */

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* The largest sum that comes up, for a check against the type. */
static double sum_of(const struct ctl_perf_op *op, unsigned world)
{
    if (op->join == join_prod)
        return (double)(1ull << ((world + 7) / 8 < 63 ? (world + 7) / 8 : 63));
    return op->stored == averaged_number ? 3.0 * world + world * (world - 1) / 2.0 : op->most_a_rank * world;
}

static int check_exact(const struct ctl_perf_work *work, struct ut_err *err)
{
    if (work->op->whole_only && !work->type->whole)
        return ut_err_set(err, -EINVAL, "--op %s is for whole numbers, not %s", work->op_name, work->dtype);
    if (sum_of(work->op, work->world) > work->type->sum_max)
        return ut_err_set(err, -EINVAL, "--op %s of %u ranks cannot be checked exactly in %s", work->op_name,
                          work->world, work->dtype);
    return 0;
}

int ctl_perf_work_find(const char *collective, const char *dtype, const char *op, unsigned world,
                       struct ctl_perf_work *out, struct ut_err *err)
{
    struct ctl_perf_work work = {.kind = COUNT_OF(COLLECTIVES), .world = world};
    for (size_t i = 0; i < COUNT_OF(COLLECTIVES); i++)
        if (!strcmp(COLLECTIVES[i], collective))
            work.kind = (enum ctl_perf_kind)i, work.collective = COLLECTIVES[i];
    for (size_t i = 0; i < COUNT_OF(TYPES); i++)
        if (!strcmp(TYPES[i].name, dtype))
            work.type = &TYPES[i], work.dtype = TYPES[i].name, work.element_bytes = TYPES[i].bytes;
    for (size_t i = 0; i < COUNT_OF(OPS); i++)
        if (!strcmp(OPS[i].name, op))
            work.op = &OPS[i], work.op_name = OPS[i].name;
    if (!work.collective)
        return ut_err_set(err, -EINVAL,
                          "--collective %s: allreduce, reduce_scatter, allgather, broadcast or barrier",
                          collective);
    if (!work.type)
        return ut_err_set(err, -EINVAL, "--dtype %s: f32 f64 f16 bf16 i8 u8 i32 u32 i64 or u64", dtype);
    if (!work.op)
        return ut_err_set(err, -EINVAL, "--op %s: sum avg min max prod band bor or bxor", op);
    int rc = check_exact(&work, err);
    if (!rc)
        *out = work;
    return rc;
}

/* ---- patterns ---- */

static double reduced(const struct ctl_perf_work *work, unsigned element)
{
    double value = work->op->stored(element, 0, work->world);
    for (unsigned rank = 1; rank < work->world; rank++)
        value = work->op->join(value, work->op->stored(element, rank, work->world));
    return work->op->stored == averaged_number ? value / work->world : value;
}

static double resulting(const struct ctl_perf_work *work, unsigned element, unsigned rank)
{
    switch (work->kind) {
    case CTL_PERF_ALLREDUCE:
    case CTL_PERF_REDUCE_SCATTER:
        return reduced(work, element);
    case CTL_PERF_BROADCAST:
        return work->op->stored(element, 0, work->world);
    case CTL_PERF_ALLGATHER:
    case CTL_PERF_BARRIER:
        break;
    }
    return work->op->stored(element, rank, work->world);
}

void ctl_perf_pattern_make(const struct ctl_perf_work *work, unsigned rank, struct ctl_perf_pattern *out)
{
    for (unsigned i = 0; i < CTL_PERF_PERIOD; i++) {
        work->type->encode(work->op->stored(i, rank, work->world), out->stored + i * work->element_bytes);
        work->type->encode(resulting(work, i, rank), out->result + i * work->element_bytes);
    }
}

void ctl_perf_fill(const struct ctl_perf_work *work, const struct ctl_perf_pattern *pattern, void *buffer,
                   uint64_t count)
{
    const uint64_t period = (uint64_t)CTL_PERF_PERIOD * work->element_bytes,
                   bytes = count * work->element_bytes;
    for (uint64_t at = 0; at < bytes; at += period)
        memcpy((char *)buffer + at, pattern->stored, bytes - at < period ? bytes - at : period);
}

/* ---- checking ---- */

/* Compares elements [first, end) with a period that starts at element 0 of the buffer. */
static uint64_t wrong_in(const unsigned char *buffer, const unsigned char *period, unsigned size,
                         uint64_t first, uint64_t end)
{
    uint64_t wrong = 0;
    while (first < end) {
        uint64_t at = first % CTL_PERF_PERIOD,
                 run = CTL_PERF_PERIOD - at < end - first ? CTL_PERF_PERIOD - at : end - first;
        const unsigned char *have = buffer + first * size, *want = period + at * size;
        if (memcmp(have, want, run * size))
            for (uint64_t i = 0; i < run; i++)
                wrong += memcmp(have + i * size, want + i * size, size) != 0;
        first += run;
    }
    return wrong;
}

static uint64_t part_begin(const struct ctl_perf_work *work, unsigned rank, uint64_t count)
{
    return (uint64_t)((unsigned __int128)count * rank / work->world);
}

/* The part that each rank's input fills: part r of all buffers is what rank r stored. */
static uint64_t wrong_gathered(const struct ctl_perf_work *work, const void *buffer, uint64_t count)
{
    struct ctl_perf_pattern pattern;
    uint64_t wrong = 0;
    for (unsigned rank = 0; rank < work->world; rank++) {
        ctl_perf_pattern_make(work, rank, &pattern);
        wrong += wrong_in(buffer, pattern.stored, work->element_bytes, part_begin(work, rank, count),
                          part_begin(work, rank + 1, count));
    }
    return wrong;
}

uint64_t ctl_perf_count_wrong(const struct ctl_perf_work *work, unsigned rank, const void *buffer,
                              uint64_t count)
{
    struct ctl_perf_pattern pattern;
    const unsigned size = work->element_bytes;
    if (work->kind == CTL_PERF_ALLGATHER)
        return wrong_gathered(work, buffer, count);
    ctl_perf_pattern_make(work, rank, &pattern);
    if (work->kind != CTL_PERF_REDUCE_SCATTER)
        return wrong_in(buffer, pattern.result, size, 0, count);
    uint64_t begin = part_begin(work, rank, count), end = part_begin(work, rank + 1, count);
    return wrong_in(buffer, pattern.stored, size, 0, begin) +
           wrong_in(buffer, pattern.result, size, begin, end) +
           wrong_in(buffer, pattern.stored, size, end, count);
}

double ctl_perf_bus_factor(const struct ctl_perf_work *work)
{
    const double others = (work->world - 1.0) / work->world;
    switch (work->kind) {
    case CTL_PERF_ALLREDUCE:
        return 2 * others;
    case CTL_PERF_REDUCE_SCATTER:
    case CTL_PERF_ALLGATHER:
        return others;
    case CTL_PERF_BROADCAST:
        return 1;
    case CTL_PERF_BARRIER:
        break;
    }
    return 0;
}
