/* The arithmetic of a ring: every element on every journey, carried by hand from node to node. */
#include "reduce/ring_plan.h"

#include "reduce/coll_config.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define NODES_MAX 9u
#define MEMBERS_MAX 24u

/* One operation as all its nodes see it. */
struct world {
    enum coll_kind kind;
    uint64_t count;
    unsigned node_count, member_count, root;
    uint32_t chunk_count;
    unsigned member_pos[MEMBERS_MAX];
    struct ring_segment segments[NODES_MAX][MEMBERS_MAX + NODES_MAX];
    struct ring_plan plans[NODES_MAX];
};

static void plan_all(struct world *world)
{
    for (unsigned node = 0; node < world->node_count; node++) {
        world->plans[node].segments = world->segments[node];
        ring_plan_init(&world->plans[node], world->kind, world->count, world->member_pos, world->member_count,
                       world->root, world->node_count, node, world->chunk_count);
    }
}

/* Members dealt out like cards: rank 0 to node 0, rank 1 to node 1, ... */
static struct world *interleaved(enum coll_kind kind, uint64_t count, unsigned nodes, unsigned members)
{
    struct world *world = calloc(1, sizeof(*world));
    *world = (struct world){
        .kind = kind, .count = count, .node_count = nodes, .member_count = members, .chunk_count = 7};
    for (unsigned i = 0; i < members; i++)
        world->member_pos[i] = i % nodes;
    plan_all(world);
    return world;
}

static void check_cover(const struct world *world, uint64_t begin, uint64_t count)
{
    const struct ring_plan *plan = &world->plans[0];
    uint64_t next = begin;
    for (unsigned s = 0; s < plan->segment_count; s++) {
        uint64_t left = plan->segments[s].count;
        cr_assert_eq(plan->segments[s].begin, next);
        for (uint32_t c = 0; c < ring_chunks(plan, s); c++) {
            uint64_t at;
            uint32_t elements;
            ring_chunk(plan, s, c, &at, &elements);
            cr_assert_eq(at, next, "chunks follow each other");
            cr_assert(elements > 0 && elements <= plan->chunk_count && elements <= left);
            cr_assert(elements == plan->chunk_count || c + 1 == ring_chunks(plan, s),
                      "only the last is short");
            next += elements;
            left -= elements;
        }
        cr_assert_eq(left, 0u);
    }
    cr_assert_eq(next, begin + count, "every element once");
}

static bool same_cut(const struct ring_plan *a, const struct ring_plan *b)
{
    if (a->segment_count != b->segment_count)
        return false;
    for (unsigned s = 0; s < a->segment_count; s++) {
        if (a->segments[s].begin != b->segments[s].begin || a->segments[s].count != b->segments[s].count ||
            a->segments[s].owner != b->segments[s].owner)
            return false;
    }
    return true;
}

/* Walks one segment around: which nodes add to it, and which get the result. */
static void walk_segment(const struct world *world, unsigned segment, uint64_t *sent)
{
    unsigned n = world->node_count, owner = world->plans[0].segments[segment].owner, starters = 0;
    uint64_t count = world->plans[0].segments[segment].count, added = 0, got = 0;
    unsigned at = owner;
    for (unsigned i = 0; i < n; i++) {
        starters += ring_starts(&world->plans[i], segment);
        if (ring_starts(&world->plans[i], segment))
            at = i;
        cr_assert_eq(ring_owns(&world->plans[i], segment), i == owner);
    }
    cr_assert_eq(starters, 1u);
    if (world->plans[0].reduces) {
        for (added |= 1u << at; !ring_owns(&world->plans[at], segment); added |= 1u << at) {
            sent[at] += count;
            at = (at + 1) % n;
        }
        cr_assert_eq(added, (1u << n) - 1, "every node adds its own before the sum is complete");
    }
    if (world->plans[0].gathers) {
        at = owner;
        for (got |= 1u << at; ring_hands_on(&world->plans[at], segment); got |= 1u << at) {
            sent[at] += count;
            at = (at + 1) % n;
        }
        cr_assert_eq(got, (1u << n) - 1, "every node gets the result");
    }
}

static void walk(const struct world *world, uint64_t *sent)
{
    for (unsigned i = 0; i < world->node_count; i++) {
        cr_assert(same_cut(&world->plans[0], &world->plans[i]), "all nodes cut alike");
        sent[i] = 0;
    }
    for (unsigned s = 0; s < world->plans[0].segment_count; s++)
        walk_segment(world, s, sent);
}

Test(ring_plan, every_element_of_every_collective_travels_once_whatever_the_sizes)
{
    static const uint64_t counts[] = {0, 1, 2, 3, 6, 7, 8, 48, 49, 50, 1000, 4099};
    uint64_t sent[NODES_MAX];
    for (unsigned kind = 0; kind < COLL_KIND_COUNT; kind++)
        for (unsigned nodes = 2; nodes <= NODES_MAX; nodes++)
            for (unsigned members = nodes; members <= MEMBERS_MAX; members += 5)
                for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
                    struct world *world = interleaved((enum coll_kind)kind, counts[i], nodes, members);
                    if (kind != COLL_BARRIER)
                        check_cover(world, 0, counts[i]);
                    walk(world, sent);
                    free(world);
                }
}

Test(ring_plan, last_chunk_of_a_segment_is_the_short_one)
{
    struct world *world = interleaved(COLL_BROADCAST, 7 * 3 + 2, 3, 3);
    uint64_t begin;
    uint32_t count;
    cr_assert_eq(ring_chunks(&world->plans[0], 0), 4u);
    ring_chunk(&world->plans[0], 0, 2, &begin, &count);
    cr_assert(begin == 14 && count == 7);
    ring_chunk(&world->plans[0], 0, 3, &begin, &count);
    cr_assert(begin == 21 && count == 2);
    free(world);
}

Test(ring_plan, each_node_of_an_allreduce_sends_twice_all_but_its_share)
{
    uint64_t sent[NODES_MAX];
    for (unsigned nodes = 2; nodes <= NODES_MAX; nodes++) {
        uint64_t count = 840 * nodes;
        struct world *world = interleaved(COLL_ALLREDUCE, count, nodes, nodes);
        walk(world, sent);
        for (unsigned i = 0; i < nodes; i++)
            cr_assert_eq(sent[i], 2 * (count - count / nodes), "node %u of %u", i, nodes);
        free(world);
    }
}

Test(ring_plan, half_a_collective_sends_all_but_its_share_once)
{
    uint64_t sent[NODES_MAX];
    static const enum coll_kind kinds[] = {COLL_REDUCE_SCATTER, COLL_ALLGATHER};
    for (unsigned k = 0; k < 2; k++) {
        struct world *world = interleaved(kinds[k], 5 * 840, 5, 5);
        walk(world, sent);
        for (unsigned i = 0; i < 5; i++)
            cr_assert_eq(sent[i], 4u * 840u);
        free(world);
    }
}

Test(ring_plan, broadcast_goes_once_around_and_not_back_to_the_root)
{
    uint64_t sent[NODES_MAX];
    struct world *world = interleaved(COLL_BROADCAST, 100, 4, 8);
    world->root = 6; /* on node 2 */
    plan_all(world);
    cr_assert(ring_owns(&world->plans[2], 0));
    walk(world, sent);
    cr_assert(sent[2] == 100 && sent[3] == 100 && sent[0] == 100 && sent[1] == 0);
    free(world);
}

Test(ring_plan, parts_belong_to_members_and_lie_with_their_nodes)
{
    struct world *world = interleaved(COLL_REDUCE_SCATTER, 10, 2, 3);
    const struct ring_plan *plan = &world->plans[1];
    static const uint64_t begins[] = {0, 3, 6};
    static const unsigned owners[] = {0, 1, 0};
    cr_assert_eq(plan->segment_count, 3u);
    for (unsigned i = 0; i < 3; i++)
        cr_assert(plan->segments[i].begin == begins[i] && plan->segments[i].owner == owners[i] &&
                  plan->segments[i].member == i);
    free(world);
}

Test(ring_plan, fewer_elements_than_nodes_leave_segments_empty)
{
    struct world *world = interleaved(COLL_ALLREDUCE, 2, 5, 5);
    unsigned chunks = 0;
    for (unsigned s = 0; s < world->plans[0].segment_count; s++)
        chunks += ring_chunks(&world->plans[0], s);
    cr_assert_eq(chunks, 2u);
    free(world);
}

Test(ring_plan, a_barrier_and_an_empty_range_move_nothing)
{
    struct world *world = interleaved(COLL_BARRIER, 0, 4, 4);
    cr_assert_eq(world->plans[0].segment_count, 0u);
    free(world);
    world = interleaved(COLL_ALLREDUCE, 0, 4, 4);
    for (unsigned s = 0; s < world->plans[0].segment_count; s++)
        cr_assert_eq(ring_chunks(&world->plans[0], s), 0u);
    free(world);
}
