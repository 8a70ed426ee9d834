/*
 * The words of the interface: collectives, element types and operations, with their names and sizes.
 */
#ifndef COLL_TYPES_H
#define COLL_TYPES_H

#include <stdbool.h>
#include <stddef.h>

enum coll_kind {
    COLL_ALLREDUCE,
    COLL_REDUCE_SCATTER,
    COLL_ALLGATHER,
    COLL_BROADCAST,
    COLL_BARRIER,
    COLL_KIND_COUNT
};

enum coll_dtype {
    COLL_F32,
    COLL_F64,
    COLL_F16,
    COLL_BF16,
    COLL_I8,
    COLL_U8,
    COLL_I32,
    COLL_U32,
    COLL_I64,
    COLL_U64,
    COLL_DTYPE_COUNT
};

enum coll_op {
    COLL_SUM,
    COLL_AVG,
    COLL_MIN,
    COLL_MAX,
    COLL_PROD,
    COLL_BAND,
    COLL_BOR,
    COLL_BXOR,
    COLL_OP_COUNT
};

/* Names as users write them ("allreduce", "f32", "sum"). */
const char *coll_kind_name(enum coll_kind kind);
const char *coll_dtype_name(enum coll_dtype dtype);
const char *coll_op_name(enum coll_op op);

/* The inverse: 0, or -EINVAL for an unknown word. */
int coll_dtype_parse(const char *word, enum coll_dtype *out);
int coll_op_parse(const char *word, enum coll_op *out);

/* Bytes of one element, and of one element as partial sums are kept and travel (f16 and bf16: f32's 4). */
size_t coll_dtype_bytes(enum coll_dtype dtype);
size_t coll_dtype_acc_bytes(enum coll_dtype dtype);

/* The type in which partial sums are kept: f32 for f16 and bf16, else the type itself. */
enum coll_dtype coll_dtype_acc(enum coll_dtype dtype);

/* False for band, bor and bxor on floating point types: there is no such operation. */
bool coll_op_fits(enum coll_op op, enum coll_dtype dtype);

/* Whether the collective combines values, so that dtype and op must agree between ranks. */
bool coll_kind_reduces(enum coll_kind kind);

/* The name of the link between two nodes, the same whichever end writes it: "link node 0 - node 1". */
#define COLL_LINK "link node %u - node %u"
#define COLL_LINK_ENDS(a, b) (a) < (b) ? (a) : (b), (a) < (b) ? (b) : (a)

#endif
