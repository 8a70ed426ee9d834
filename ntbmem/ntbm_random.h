/*
 * Random numbers that a seed repeats (splitmix64): for epochs and emulated faults, not for secrets.
 */
#ifndef NTBM_RANDOM_H
#define NTBM_RANDOM_H

#include <stdint.h>

static inline uint64_t ntbm_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

#endif
