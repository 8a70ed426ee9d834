/*
 * The arithmetic: one kernel for each element type and operation, in several instruction sets behind one
 * table. All tables give the same bits: an element's sources are combined one after the other in the order
 * given, whatever the vector width and however the range was cut.
 *
 * Rules (design): f16 and bf16 are accumulated in f32 and rounded once, to nearest even; avg is the sum,
 * then one division by divisor; integers wrap, and avg on them truncates toward zero; min and max propagate
 * NaN and order -0 below +0. Denormals are kept, whatever the thread's floating point mode is.
 *
 * Threads: any; kernels keep no state, allocate nothing and make no system call. A fault in the middle of
 * one (ntbm_guard.h) leaves nothing behind but the default floating point mode.
 */
#ifndef RED_KERNEL_H
#define RED_KERNEL_H

#include "reduce/coll_types.h"

#include <stddef.h>
#include <stdint.h>

/*
 * One step over the `count` elements from element `first` of every src and dst:
 *   acc = acc_in (if not NULL), src[0], src[1], ... combined by the operation, in this order
 *   acc_out (if not NULL) = acc                 in the accumulator type (coll_dtype_acc_bytes)
 *   dst[i] = round(acc / divisor)  for each i   in the element type, identical in all
 * acc_in and acc_out point at the step's own first element: `first` does not move them, so that a partial
 * sum may lie in a slot that is only as long as the step.
 * src_count + (acc_in != NULL) >= 1. A dst, or acc_out, may be the same memory as a src or acc_in (exactly,
 * not shifted). Pointers are aligned to the element. divisor is 1 except for avg's last step.
 */
struct red_step {
    void *const *dst;
    unsigned dst_count;
    const void *const *src;
    unsigned src_count;
    size_t first;
    const void *acc_in;
    void *acc_out;
    size_t count;
    unsigned divisor;
};

struct red_table {
    const char *name; /* "portable", "avx2", "avx512" */
    /* Carries out a step in one sweep, which is best for few sources: red_reduce() is what others call.
     * COLL_AVG has the kernel of COLL_SUM; NULL where !coll_op_fits(). */
    void (*sweep[COLL_DTYPE_COUNT][COLL_OP_COUNT])(const struct red_step *step);
};

/* The tables this machine can run, best first, ending with NULL. "portable" is always the last one. */
const struct red_table *const *red_tables(void);

/* The table called name; NULL when this machine cannot run it or nobody knows it. "auto" is the best. */
const struct red_table *red_table_find(const char *name);

/* Carries out a step with any number of sources and destinations; coll_op_fits(op, dtype). */
void red_reduce(const struct red_table *table, enum coll_dtype dtype, enum coll_op op,
                const struct red_step *step);

/* To how many of dst_count buffers an operation over so many bytes of each is better copied past the caches:
 * all, or none when it is small. */
unsigned red_stream_count(uint64_t op_bytes, unsigned dst_count);

/* Copies bytes [offset, offset + bytes) of src to the same place of every dst (allgather, broadcast); a dst
 * that is src itself is passed over. No range overlaps another. The first stream_count of dst are written
 * past the caches: memory that is not there yet is not read first, and nobody finds it there after. Streamed
 * or not, what was copied is ordered before the caller's next store. */
void red_copy(void *const *dst, unsigned dst_count, unsigned stream_count, const void *src, size_t offset,
              size_t bytes);

/* The tables there are, for red_kernel.c alone: calling into one that the machine cannot run is SIGILL. */
extern const struct red_table red_portable, red_avx2, red_avx512;

#endif
