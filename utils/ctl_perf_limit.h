/*
 * What the machine itself takes for a collective's memory traffic: one pass in one process.
 */
#ifndef CTL_PERF_LIMIT_H
#define CTL_PERF_LIMIT_H

#include <stdint.h>

/*
 * Median nanoseconds of `rounds` passes that read the buffers of all ranks (bytes each), add them as f32, and
 * write the sum into every buffer, by one thread a core that this process may use (one thread below 256 KiB).
 * There are no files, requests or waiting in it, and its code shares nothing with the daemon's. 0 without
 * memory.
 */
uint64_t ctl_perf_limit_ns(unsigned ranks, uint64_t bytes, unsigned rounds);

#endif
