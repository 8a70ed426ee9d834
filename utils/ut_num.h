/*
 * Numbers as people write them: strict parsers that take the whole word or refuse it.
 */
#ifndef UT_NUM_H
#define UT_NUM_H

#include <stdint.h>

/* Decimal digits only, no sign, no blanks. 0 or -EINVAL (not a number), -ERANGE (above max). */
int ut_num_u64(const char *word, uint64_t max, uint64_t *out);

/* Bytes: decimal digits with an optional K, M, G or T (powers of 1024, upper or lower case, "B" or "iB"
 * may follow). 0, -EINVAL or -ERANGE. */
int ut_num_bytes(const char *word, uint64_t *out);

/* Seconds with an optional fraction ("30", "0.5") to nanoseconds. 0, -EINVAL or -ERANGE (over 10^9 s). */
int ut_num_seconds(const char *word, uint64_t *out_ns);

/* Writes bytes in the shortest form that ut_num_bytes reads back to the same value ("1G", "1536K", "7"). */
void ut_num_show_bytes(uint64_t bytes, char out[24]);

/* Writes nanoseconds as seconds without trailing zeros, readable by ut_num_seconds ("30", "0.25"). */
void ut_num_show_seconds(uint64_t ns, char out[24]);

#endif
