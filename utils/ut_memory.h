/*
 * How much memory this process may use, which is less than the machine has when it runs in a container.
 */
#ifndef UT_MEMORY_H
#define UT_MEMORY_H

#include <stdint.h>

/* Bytes: the machine's RAM, or the lowest limit of the control groups (v2, or v1) above this process. */
uint64_t ut_memory_bytes(void);

#endif
