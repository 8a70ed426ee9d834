/*
 * The arithmetic of a ring: who sends which elements to whom. Pure; nothing here moves data.
 *
 * The elements are cut into segments, each owned by one node, and a segment into chunks of at most
 * chunk_count elements, which travel on their own. Positions count nodes along the ring; data go from a
 * position to the next one. A chunk of a segment owned by position o makes two journeys:
 *
 *   reduce   o+1 ──▶ o+2 ──▶ ... ──▶ o        each adds its own; at o the sum is complete
 *   gather   o ──▶ o+1 ──▶ ... ──▶ o-1        each keeps a copy
 *
 *   collective       segments                              journeys
 *   allreduce        one for each node, equal parts        reduce, gather
 *   reduce_scatter   one for each rank, its part           reduce
 *   allgather        one for each rank, its part           gather
 *   broadcast        one, the root's                       gather
 *
 * So each node sends (n-1)/n of the data on each journey, the least there is.
 */
#ifndef RING_PLAN_H
#define RING_PLAN_H

#include "reduce/coll_types.h"
#include "reduce/ring_nodes.h"

#include <stdbool.h>
#include <stdint.h>

struct ring_segment {
    uint64_t begin, count; /* elements */
    unsigned owner;        /* position */
    unsigned member;       /* whose part it is, as an index of members; allreduce and broadcast: unused */
};

struct ring_plan {
    enum coll_kind kind;
    unsigned node_count; /* >= 2 */
    unsigned me;         /* own position */
    bool reduces, gathers;
    uint32_t chunk_count; /* elements of a full chunk */
    unsigned segment_count;
    struct ring_segment *segments; /* owned by the caller, room for one a member */
};

/* Fills in the plan. member_pos[i] is the position of member i's node; root is a member. */
void ring_plan_init(struct ring_plan *plan, enum coll_kind kind, uint64_t count, const unsigned *member_pos,
                    unsigned member_count, unsigned root, unsigned node_count, unsigned me,
                    uint32_t chunk_count);

/* Chunks of a segment. */
uint32_t ring_chunks(const struct ring_plan *plan, unsigned segment);

/* Elements of one chunk: the first, and how many. */
void ring_chunk(const struct ring_plan *plan, unsigned segment, uint32_t chunk, uint64_t *begin,
                uint32_t *count);

/* What this node does with a segment: whether it sets its reduction going, completes it, and whether it hands
 * the gathered one on. */
bool ring_starts(const struct ring_plan *plan, unsigned segment);
bool ring_owns(const struct ring_plan *plan, unsigned segment);
bool ring_hands_on(const struct ring_plan *plan, unsigned segment);

#endif
