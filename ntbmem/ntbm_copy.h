/*
 * Copying where another machine reads or writes at the same time. Every 8 bytes are whole, their order is
 * open: words and fences (ntbm_link.h) make the order. Addresses and lengths are multiples of 8.
 */
#ifndef NTBM_COPY_H
#define NTBM_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint64_t __attribute__((may_alias)) ntbm_shared_u64;

static inline void ntbm_copy_from_shared(void *to, const void *shared, size_t len)
{
    const ntbm_shared_u64 *from = shared;
    for (size_t i = 0; i < len / 8; i++) {
        uint64_t value = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
        memcpy((uint8_t *)to + 8 * i, &value, 8);
    }
}

/* In rising order, as write-combining buffers like it. */
static inline void ntbm_copy_to_shared(void *shared, const void *from, size_t len)
{
    ntbm_shared_u64 *to = shared;
    for (size_t i = 0; i < len / 8; i++) {
        uint64_t value;
        memcpy(&value, (const uint8_t *)from + 8 * i, 8);
        __atomic_store_n(&to[i], value, __ATOMIC_RELAXED);
    }
}

static inline void ntbm_clear_shared(void *shared, size_t len)
{
    ntbm_shared_u64 *to = shared;
    for (size_t i = 0; i < len / 8; i++)
        __atomic_store_n(&to[i], 0, __ATOMIC_RELAXED);
}

#endif
