#include "reduce/coll_types.h"

#include "utils/ut_table.h"

#include <errno.h>

static const char *const kind_names[COLL_KIND_COUNT] = {"allreduce", "reduce_scatter", "allgather",
                                                        "broadcast", "barrier"};
static const char *const op_names[COLL_OP_COUNT] = {"sum",  "avg",  "min", "max",
                                                    "prod", "band", "bor", "bxor"};

static const struct {
    const char *name;
    size_t bytes, acc_bytes;
    bool integer;
} dtypes[COLL_DTYPE_COUNT] = {
    [COLL_F32] = {"f32", 4, 4, false},   [COLL_F64] = {"f64", 8, 8, false}, [COLL_F16] = {"f16", 2, 4, false},
    [COLL_BF16] = {"bf16", 2, 4, false}, [COLL_I8] = {"i8", 1, 1, true},    [COLL_U8] = {"u8", 1, 1, true},
    [COLL_I32] = {"i32", 4, 4, true},    [COLL_U32] = {"u32", 4, 4, true},  [COLL_I64] = {"i64", 8, 8, true},
    [COLL_U64] = {"u64", 8, 8, true},
};

const char *coll_kind_name(enum coll_kind kind)
{
    return kind_names[kind];
}

const char *coll_dtype_name(enum coll_dtype dtype)
{
    return dtypes[dtype].name;
}

const char *coll_op_name(enum coll_op op)
{
    return op_names[op];
}

int coll_dtype_parse(const char *word, enum coll_dtype *out)
{
    size_t idx = UT_TABLE_FIND(dtypes, word);
    if (idx == COLL_DTYPE_COUNT)
        return -EINVAL;
    *out = (enum coll_dtype)idx;
    return 0;
}

int coll_op_parse(const char *word, enum coll_op *out)
{
    size_t idx = UT_TABLE_FIND(op_names, word);
    if (idx == COLL_OP_COUNT)
        return -EINVAL;
    *out = (enum coll_op)idx;
    return 0;
}

size_t coll_dtype_bytes(enum coll_dtype dtype)
{
    return dtypes[dtype].bytes;
}

size_t coll_dtype_acc_bytes(enum coll_dtype dtype)
{
    return dtypes[dtype].acc_bytes;
}

enum coll_dtype coll_dtype_acc(enum coll_dtype dtype)
{
    return dtype == COLL_F16 || dtype == COLL_BF16 ? COLL_F32 : dtype;
}

bool coll_op_fits(enum coll_op op, enum coll_dtype dtype)
{
    return op < COLL_BAND || dtypes[dtype].integer;
}

bool coll_kind_reduces(enum coll_kind kind)
{
    return kind == COLL_ALLREDUCE || kind == COLL_REDUCE_SCATTER;
}
