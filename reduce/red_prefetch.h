/*
 * Asking for memory before it is read. The processor's own prefetch ends with the page, and instructions that
 * also widen and round fill its window before it reaches as far as memory is away: without this f16 and bf16
 * take 1.4 times as long as f32 does, with it 1.1. From 1 to 4 KiB ahead make no difference.
 */
#ifndef RED_PREFETCH_H
#define RED_PREFETCH_H

#include <stddef.h>

#define RED_PREFETCH_BYTES 2048
#define RED_CACHE_LINE_BYTES 64

/* For whoever reads `bytes` at `from` now: what lies ahead of them. That may be beyond the end of what is
 * read; it cannot fault. */
static inline __attribute__((always_inline)) void red_prefetch(const void *from, size_t bytes)
{
    const char *const ahead = (const char *)from + RED_PREFETCH_BYTES;
    for (size_t line = 0; line < bytes; line += RED_CACHE_LINE_BYTES) {
        __builtin_prefetch(ahead + line);
    }
}

#endif
