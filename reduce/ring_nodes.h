/*
 * A set of nodes, or of places in a ring.
 */
#ifndef RING_NODES_H
#define RING_NODES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define RING_NODES_MAX 512u

struct ring_nodes {
    uint64_t bits[RING_NODES_MAX / 64];
};

static inline bool ring_nodes_has(const struct ring_nodes *nodes, unsigned n)
{
    return nodes->bits[n / 64] >> n % 64 & 1;
}

static inline void ring_nodes_add(struct ring_nodes *nodes, unsigned n)
{
    nodes->bits[n / 64] |= UINT64_C(1) << n % 64;
}

static inline void ring_nodes_drop(struct ring_nodes *nodes, unsigned n)
{
    nodes->bits[n / 64] &= ~(UINT64_C(1) << n % 64);
}

static inline bool ring_nodes_empty(const struct ring_nodes *nodes)
{
    static const struct ring_nodes none;
    return memcmp(nodes, &none, sizeof(none)) == 0;
}

static inline unsigned ring_nodes_count(const struct ring_nodes *nodes)
{
    unsigned count = 0;
    for (unsigned i = 0; i < RING_NODES_MAX / 64; i++)
        count += (unsigned)__builtin_popcountll(nodes->bits[i]);
    return count;
}

#endif
