/*
 * Processors kept awake while operations follow one another closely. One with nothing to run sleeps, and
 * takes long to come back: tens of microseconds on a virtual machine that is halted meanwhile, or from the
 * deeper idle states of a real one; every rank that is woken pays that. So for such times the daemon asks the
 * kernel for a short way back (/dev/cpu_dma_latency, Documentation/power/pm_qos_interface.rst), which holds
 * for the whole machine, costs power, and ends with it.
 *
 * Threads: the loop thread only.
 */
#ifndef FS_AWAKE_H
#define FS_AWAKE_H

#include "utils/ut_text.h"

#include <stdbool.h>
#include <stdint.h>

struct fs_awake {
    int fd;         /* -1: the kernel cannot be asked */
    int error;      /* errno, why not; 0: nobody wants to */
    int32_t way_us; /* how long the way back may take */
    bool held;
    unsigned close;   /* operations that ended soon after the one before, in a row */
    uint64_t last_ns; /* when one ended last */
};

/* Does not fail: without the right to ask (it takes root) there is none of it. */
void fs_awake_init(struct fs_awake *awake, bool wanted);
void fs_awake_fini(struct fs_awake *awake);

/* An operation has ended. When fs_awake_tick is to be called next; UINT64_MAX: for nothing. */
uint64_t fs_awake_operation(struct fs_awake *awake, uint64_t now_ns);
uint64_t fs_awake_tick(struct fs_awake *awake, uint64_t now_ns);

/* Appends one word, and why when it cannot be had: held, free or none. */
void fs_awake_show(const struct fs_awake *awake, struct ut_text *out);

#endif
