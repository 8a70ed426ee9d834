#include "reduce/ring_plan.h"

#include "reduce/coll_exec.h"

static void cut_for_nodes(struct ring_plan *plan, uint64_t count)
{
    plan->segment_count = plan->node_count;
    for (unsigned i = 0; i < plan->node_count; i++) {
        uint64_t begin = coll_part_begin(count, plan->node_count, i);
        plan->segments[i] = (struct ring_segment){
            .begin = begin, .count = coll_part_begin(count, plan->node_count, i + 1) - begin, .owner = i};
    }
}

static void cut_for_members(struct ring_plan *plan, uint64_t count, const unsigned *member_pos,
                            unsigned member_count)
{
    plan->segment_count = member_count;
    for (unsigned i = 0; i < member_count; i++) {
        uint64_t begin = coll_part_begin(count, member_count, i);
        plan->segments[i] =
            (struct ring_segment){.begin = begin,
                                  .count = coll_part_begin(count, member_count, i + 1) - begin,
                                  .owner = member_pos[i],
                                  .member = i};
    }
}

void ring_plan_init(struct ring_plan *plan, enum coll_kind kind, uint64_t count, const unsigned *member_pos,
                    unsigned member_count, unsigned root, unsigned node_count, unsigned me,
                    uint32_t chunk_count)
{
    plan->kind = kind;
    plan->node_count = node_count;
    plan->me = me;
    plan->chunk_count = chunk_count;
    plan->reduces = coll_kind_reduces(kind);
    plan->gathers = kind != COLL_REDUCE_SCATTER && kind != COLL_BARRIER;
    if (kind == COLL_ALLREDUCE) {
        cut_for_nodes(plan, count);
    } else if (kind == COLL_BROADCAST) {
        plan->segment_count = 1;
        plan->segments[0] = (struct ring_segment){.count = count, .owner = member_pos[root], .member = root};
    } else if (kind == COLL_BARRIER) {
        plan->segment_count = 0;
    } else {
        cut_for_members(plan, count, member_pos, member_count);
    }
}

uint32_t ring_chunks(const struct ring_plan *plan, unsigned segment)
{
    return (uint32_t)((plan->segments[segment].count + plan->chunk_count - 1) / plan->chunk_count);
}

void ring_chunk(const struct ring_plan *plan, unsigned segment, uint32_t chunk, uint64_t *begin,
                uint32_t *count)
{
    uint64_t first = (uint64_t)chunk * plan->chunk_count, left = plan->segments[segment].count - first;
    *begin = plan->segments[segment].begin + first;
    *count = left < plan->chunk_count ? (uint32_t)left : plan->chunk_count;
}

bool ring_starts(const struct ring_plan *plan, unsigned segment)
{
    return (plan->segments[segment].owner + 1) % plan->node_count == plan->me;
}

bool ring_owns(const struct ring_plan *plan, unsigned segment)
{
    return plan->segments[segment].owner == plan->me;
}

bool ring_hands_on(const struct ring_plan *plan, unsigned segment)
{
    return (plan->me + 1) % plan->node_count != plan->segments[segment].owner;
}
