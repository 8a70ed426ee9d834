#include "reduce/ring.h"

#include "ntbmem/ntbm_guard.h"

#include <errno.h>
#include <isa-l.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_A_POLL 32u

/* A chunk to hand on to the next node, read from this node's own memory. */
struct ring_send {
    uint16_t segment;
    uint32_t chunk;
};

/* A slot that has arrived and waits. */
struct ring_held {
    struct ntbm_slot_in in;
    struct ring_header header;
    unsigned node;
};

/* What a node said of an operation before it started here: the last rank's request comes on another way. */
struct ring_early {
    struct ut_list link;
    struct ring_header id;
    unsigned node;
    enum ring_word word;
    uint32_t len;
    uint8_t bytes[];
};

uint64_t ring_id(const char *name)
{
    uint64_t sum = 14695981039346656037ull; /* FNV-1a, 64 bits */
    for (const char *c = name; *c; c++)
        sum = (sum ^ (uint8_t)*c) * 1099511628211ull;
    return sum;
}

/* ---- memory of an operation ---- */

static bool uses_parts(const struct ring_op *op)
{
    return op->kind == COLL_ALLREDUCE && op->count * coll_dtype_acc_bytes(op->dtype) <= RING_PART_BYTES;
}

/* Bytes an element travels as while it is reduced. */
static size_t wire_bytes(const struct ring_op *op)
{
    return op->wire == op->dtype ? coll_dtype_bytes(op->dtype) : coll_dtype_acc_bytes(op->dtype);
}

static void free_private(struct ring_op *op)
{
    free(op->plan.segments);
    free(op->sends);
    free(op->seen);
    free(op->seen_base);
    free(op->parts);
    free(op->local);
    free(op->sources);
    free(op->local_idx);
}

static int alloc_members(struct ring_op *op)
{
    unsigned room = op->member_count + op->node_count + 2;
    op->local = calloc(room, sizeof(op->local[0]));
    op->sources = calloc(room, sizeof(op->sources[0]));
    op->local_idx = calloc(room, sizeof(op->local_idx[0]));
    op->plan.segments = calloc(room, sizeof(op->plan.segments[0]));
    if (!op->local || !op->sources || !op->local_idx || !op->plan.segments)
        return -ENOMEM;
    for (unsigned i = 0; i < op->member_count; i++) {
        if (op->base[i])
            op->local_idx[op->local_count++] = i;
    }
    return 0;
}

/* Counts the steps of this node, and makes room to note arrivals and chunks to hand on. */
static int alloc_steps(struct ring_op *op)
{
    const struct ring_plan *plan = &op->plan;
    uint64_t bits = 0, sends = 0;
    op->seen_base = calloc(plan->segment_count + 1, sizeof(op->seen_base[0]));
    if (!op->seen_base)
        return -ENOMEM;
    for (unsigned s = 0; s < plan->segment_count; s++) {
        uint64_t chunks = ring_chunks(plan, s);
        op->seen_base[s] = bits;
        bits += 2 * chunks;
        op->steps_left += plan->reduces ? chunks : 0; /* started, handed on, or completed */
        if (!plan->gathers)
            continue;
        bool hands_on = ring_hands_on(plan, s), owns = ring_owns(plan, s);
        op->steps_left += (owns ? 0 : chunks) + (hands_on ? chunks : 0);
        sends += hands_on ? chunks : 0;
    }
    op->seen = calloc(bits / 64 + 1, sizeof(op->seen[0]));
    op->send_cap = (uint32_t)sends + 1;
    op->sends = calloc(op->send_cap, sizeof(op->sends[0]));
    return op->seen && op->sends ? 0 : -ENOMEM;
}

static uint64_t arrival_bit(const struct ring_op *op, const struct ring_header *header)
{
    return op->seen_base[header->segment] + 2 * (uint64_t)header->chunk + (header->journey == RING_GATHER);
}

static bool has_arrived(const struct ring_op *op, const struct ring_header *header)
{
    uint64_t bit = arrival_bit(op, header);
    return op->seen[bit / 64] >> bit % 64 & 1;
}

static void note_arrival(struct ring_op *op, const struct ring_header *header)
{
    uint64_t bit = arrival_bit(op, header);
    op->seen[bit / 64] |= UINT64_C(1) << bit % 64;
}

/* ---- kernels, under guard: buffers belong to clients ---- */

struct work {
    struct ring_op *op;
    struct red_step step;
    const void *copy_from;
    size_t copy_bytes;
    unsigned stream_count; /* of step.dst, when copying */
};

static void run_step(void *arg)
{
    const struct work *work = arg;
    if (work->copy_from)
        red_copy(work->step.dst, work->step.dst_count, work->stream_count, work->copy_from, 0,
                 work->copy_bytes);
    else
        red_reduce(work->op->table, work->op->dtype, work->op->op, &work->step);
}

static int guarded(struct work *work)
{
    uint64_t begin = work->op->now();
    int rc = ntbm_guard_run(run_step, work);
    *(work->copy_from ? &work->op->copy_ns : &work->op->local_ns) += work->op->now() - begin;
    return ntbm_guard_is_gone() ? -ENOLINK : rc; /* what came may be zeros in place of data */
}

static unsigned local_ranges(struct ring_op *op, uint64_t begin, void **out)
{
    size_t offset = begin * coll_dtype_bytes(op->dtype);
    for (unsigned i = 0; i < op->local_count; i++)
        out[i] = (char *)op->base[op->local_idx[i]] + offset;
    return op->local_count;
}

/* How many of so many ranges of ours are written past the caches; slots are not, for the next node reads
 * them. */
static unsigned streamed(const struct ring_op *op, unsigned ranges)
{
    return red_stream_count(op->count * coll_dtype_bytes(op->dtype), ranges);
}

static unsigned final_divisor(const struct ring_op *op)
{
    return op->op == COLL_AVG ? op->member_count : 1;
}

/* The combination of what came (NULL: nothing) with this node's ranks. Not final: into `out`, as it travels.
 * Final: into the owners' ranges, and into `out` as well when there is one. */
static int combine(struct ring_op *op, unsigned segment, uint64_t begin, uint32_t count, const void *came,
                   void *out, bool final)
{
    bool narrow = op->wire == op->dtype; /* travels in its own type: the kernel takes it as one more source */
    void **ranges = op->local;
    unsigned n = local_ranges(op, begin, ranges), sources = 0;
    if (came && narrow)
        op->sources[sources++] = came;
    for (unsigned i = 0; i < n; i++)
        op->sources[sources++] = ranges[i];
    struct work work = {.op = op,
                        .step = {.src = op->sources,
                                 .src_count = sources,
                                 .acc_in = came && !narrow ? came : NULL,
                                 .count = count,
                                 .divisor = final ? final_divisor(op) : 1}};
    void *owner[1];
    if (!final) {
        owner[0] = out;
        work.step.dst = owner;
        work.step.dst_count = narrow;
        work.step.acc_out = narrow ? NULL : out;
    } else if (op->kind == COLL_REDUCE_SCATTER) {
        owner[0] = (char *)op->base[op->plan.segments[segment].member] + begin * coll_dtype_bytes(op->dtype);
        work.step.dst = owner;
        work.step.dst_count = 1;
    } else {
        if (out)
            ranges[n] = out;
        work.step.dst = ranges;
        work.step.dst_count = n + (out != NULL);
    }
    op->moved = op->moved || final;
    return guarded(&work);
}

/* Copies a gathered chunk to this node's ranks, and into `out` as well when there is one. */
static int keep(struct ring_op *op, uint64_t begin, uint32_t count, const void *came, void *out)
{
    struct work work = {.op = op, .copy_from = came, .copy_bytes = count * coll_dtype_bytes(op->dtype)};
    unsigned n = local_ranges(op, begin, op->local);
    work.stream_count = streamed(op, n);
    if (out)
        op->local[n++] = out;
    work.step.dst = op->local;
    work.step.dst_count = n;
    op->moved = true;
    return guarded(&work);
}

/* ---- slots ---- */

static struct ntbm_peer *next_peer(const struct ring *ring, const struct ring_op *op)
{
    return ring->peers[op->nodes[(op->me + 1) % op->node_count]];
}

/* Borrows a slot of the next node; the last one only if `last` is true (ring.h). */
static int take_slot(struct ring *ring, struct ring_op *op, bool last, struct ntbm_slot_out *out)
{
    struct ntbm_peer *peer = next_peer(ring, op);
    struct ntbm_slot_out spare;
    int rc = ntbm_peer_take(peer, out);
    if (rc || last)
        return rc;
    rc = ntbm_peer_take(peer, &spare);
    if (rc)
        ntbm_slot_cancel(out);
    else
        ntbm_slot_cancel(&spare);
    return rc;
}

/* Whether a reducing chunk of the segment has passed the end of the order, or does so with this node's send.
 */
static bool has_passed_end(const struct ring_op *op, unsigned segment)
{
    unsigned start = (op->plan.segments[segment].owner + 1) % op->node_count;
    return op->me < start || op->me + 1 == op->node_count;
}

/* Where to compose a chunk: in the slot itself, or beside it when its sum is needed, since a window is never
 * read. */
static void *compose_at(const struct ring *ring, const struct ring_op *op, const struct ntbm_slot_out *out)
{
    return op->verify ? ring->scratch_out : out->data;
}

struct composed {
    void *slot;
    const void *from; /* NULL: it is in the slot already */
    size_t bytes;
};

/* Fills the slot up to whole lines: a line that is written in part leaves the processor in pieces. */
static void complete_slot(void *arg)
{
    const struct composed *composed = arg;
    if (composed->from)
        red_copy(&composed->slot, 1, 0, composed->from, 0, composed->bytes);
    memset((char *)composed->slot + composed->bytes, 0, -composed->bytes & (NTBM_LINE - 1));
}

static void send_slot(struct ring *ring, struct ring_op *op, const struct ntbm_slot_out *out,
                      enum ring_journey journey, unsigned segment, uint32_t chunk, size_t bytes)
{
    struct ring_header header = op->id;
    uint8_t user[NTBM_USER_BYTES] = {0};
    header.journey = (uint8_t)journey;
    header.segment = (uint16_t)segment;
    header.chunk = chunk;
    header.crc = 0;
    struct composed composed = {.slot = out->data, .bytes = bytes};
    if (op->verify) {
        header.crc = crc32_iscsi(ring->scratch_out, (int)bytes, ~0u);
        composed.from = ring->scratch_out;
    }
    ntbm_guard_run(complete_slot, &composed); /* a window that is gone is found by the put */
    memcpy(user, &header, sizeof(header));
    ntbm_slot_send(out, (uint32_t)bytes, user);
}

/* ---- ends ---- */

static void end_op(struct ring_op *op, int result, const char *text)
{
    ut_list_remove(&op->link);
    free_private(op);
    op->done(op, result, text);
}

void ring_abort(struct ring *ring, struct ring_op *op, int result, const char *text)
{
    (void)ring;
    end_op(op, result, text);
}

static bool is_all(const struct ring_op *op, const struct ring_nodes *positions)
{
    return ring_nodes_count(positions) == op->node_count;
}

static void tell_others(struct ring *ring, struct ring_op *op, enum ring_word word)
{
    for (unsigned i = 0; i < op->node_count; i++) {
        if (i != op->me)
            ring->tell(ring->ctx, op, op->nodes[i], word, "", 0);
    }
}

/* Says DONE when the own steps are, and ends when all have said it. True when the operation has ended. */
static bool check_done(struct ring *ring, struct ring_op *op)
{
    if (!op->said_done && !op->steps_left) {
        op->said_done = true;
        ring_nodes_add(&op->done_by, op->me);
        tell_others(ring, op, RING_DONE);
    }
    if (!op->said_done || !is_all(op, &op->done_by))
        return false;
    end_op(op, 0, "");
    return true;
}

static const char *fault_text(int rc)
{
    return rc == -EFAULT    ? "memory of a buffer was taken away while it was used"
           : rc == -ENOLINK ? "its landing memory was taken away"
                            : "a step failed";
}

/* ---- steps ---- */

/* The data of a slot, checked when the job wants that: NULL when they are not what was sent. */
static const void *checked(struct ring *ring, const struct ring_op *op, const struct ring_held *held)
{
    if (!op->verify)
        return held->in.data;
    void *copy = ring->scratch_in;
    red_copy(&copy, 1, 0, held->in.data, 0, held->in.bytes);
    return crc32_iscsi(ring->scratch_in, (int)held->in.bytes, ~0u) == held->header.crc ? ring->scratch_in
                                                                                       : NULL;
}

static void queue_send(struct ring_op *op, unsigned segment, uint32_t chunk)
{
    op->sends[op->send_tail++ % op->send_cap] =
        (struct ring_send){.segment = (uint16_t)segment, .chunk = chunk};
}

/* The sum of a chunk is complete here: result to our ranks, and on its way to the others. */
static int complete(struct ring *ring, struct ring_op *op, const struct ring_held *held)
{
    unsigned segment = held->header.segment;
    uint32_t chunk = held->header.chunk, count;
    struct ntbm_slot_out out;
    uint64_t begin;
    const void *came = checked(ring, op, held);
    if (!came)
        return -EBADMSG;
    ring_chunk(&op->plan, segment, chunk, &begin, &count);
    bool send = op->plan.gathers && take_slot(ring, op, false, &out) == 0;
    int rc = combine(op, segment, begin, count, came, send ? compose_at(ring, op, &out) : NULL, true);
    op->steps_left--;
    if (send && rc)
        ntbm_slot_cancel(&out);
    if (rc)
        return rc;
    if (send) {
        send_slot(ring, op, &out, RING_GATHER, segment, chunk, count * coll_dtype_bytes(op->dtype));
        op->steps_left--;
    } else if (op->plan.gathers) {
        queue_send(op, segment, chunk);
    }
    return 0;
}

/* A chunk on its way, or (held NULL) at its start: adds ours and sends it on. -EAGAIN when the next node has
 * no room. */
static int hand_on_sum(struct ring *ring, struct ring_op *op, unsigned segment, uint32_t chunk,
                       const struct ring_held *held)
{
    struct ntbm_slot_out out;
    uint64_t begin;
    uint32_t count;
    int rc = take_slot(ring, op, has_passed_end(op, segment), &out);
    if (rc)
        return rc;
    const void *came = held ? checked(ring, op, held) : NULL;
    ring_chunk(&op->plan, segment, chunk, &begin, &count);
    rc = held && !came ? -EBADMSG
                       : combine(op, segment, begin, count, came, compose_at(ring, op, &out), false);
    if (rc) {
        ntbm_slot_cancel(&out);
        return rc;
    }
    op->steps_left--;
    send_slot(ring, op, &out, RING_REDUCE, segment, chunk, count * wire_bytes(op));
    return 0;
}

/* Hands a gathered chunk on, from this node's own memory. */
static int hand_on_copy(struct ring *ring, struct ring_op *op)
{
    const struct ring_send *send = &op->sends[op->send_head % op->send_cap];
    struct ntbm_slot_out out;
    uint64_t begin;
    uint32_t count;
    int rc = take_slot(ring, op, false, &out);
    if (rc)
        return rc;
    ring_chunk(&op->plan, send->segment, send->chunk, &begin, &count);
    const struct ring_segment *segment = &op->plan.segments[send->segment];
    /* The owner's member has it; elsewhere every rank of ours has. */
    bool from_owner = ring_owns(&op->plan, send->segment) && op->kind != COLL_ALLREDUCE;
    const char *from = op->base[from_owner ? segment->member : op->local_idx[0]];
    void *to[1] = {compose_at(ring, op, &out)};
    size_t bytes = count * coll_dtype_bytes(op->dtype);
    struct work work = {.op = op,
                        .copy_from = from + begin * coll_dtype_bytes(op->dtype),
                        .copy_bytes = bytes,
                        .step = {.dst = to, .dst_count = 1}};
    rc = guarded(&work);
    if (rc) {
        ntbm_slot_cancel(&out);
        return rc;
    }
    send_slot(ring, op, &out, RING_GATHER, send->segment, send->chunk, bytes);
    op->send_head++;
    op->steps_left--;
    return 0;
}

/* The owner of a segment that is only gathered copies it to its other ranks, and queues it. */
static int start_gather(struct ring_op *op, unsigned segment, uint32_t chunk)
{
    uint64_t begin;
    uint32_t count;
    ring_chunk(&op->plan, segment, chunk, &begin, &count);
    size_t bytes = coll_dtype_bytes(op->dtype);
    const char *from = (const char *)op->base[op->plan.segments[segment].member] + begin * bytes;
    unsigned n = 0;
    for (unsigned i = 0; i < op->local_count; i++) {
        char *to = (char *)op->base[op->local_idx[i]] + begin * bytes;
        if (to != from)
            op->local[n++] = to;
    }
    struct work work = {.op = op,
                        .copy_from = from,
                        .copy_bytes = count * bytes,
                        .stream_count = streamed(op, n),
                        .step = {.dst = op->local, .dst_count = n}};
    op->moved = op->moved || n;
    int rc = n ? guarded(&work) : 0;
    if (!rc)
        queue_send(op, segment, chunk);
    return rc;
}

/* Whether this node sets chunks of the segment going. */
static bool is_start(const struct ring_op *op, unsigned segment)
{
    return op->plan.reduces ? ring_starts(&op->plan, segment) : ring_owns(&op->plan, segment);
}

/* Sets the next journey going. -ENOENT when all are. */
static int start_next(struct ring *ring, struct ring_op *op)
{
    while (
        op->start_segment < op->plan.segment_count &&
        (!is_start(op, op->start_segment) || op->start_chunk >= ring_chunks(&op->plan, op->start_segment))) {
        op->start_segment++;
        op->start_chunk = 0;
    }
    if (op->start_segment == op->plan.segment_count)
        return -ENOENT;
    int rc = op->plan.reduces ? hand_on_sum(ring, op, op->start_segment, op->start_chunk, NULL)
                              : start_gather(op, op->start_segment, op->start_chunk);
    if (!rc)
        op->start_chunk++;
    return rc;
}

/* ---- arrivals ---- */

/* The members are compared apart: nodes that disagree about them must find out. */
static bool same_op(const struct ring_header *a, const struct ring_header *b)
{
    return a->job == b->job && a->seq == b->seq && a->tag == b->tag;
}

static struct ring_op *find_op(const struct ring *ring, const struct ring_header *header)
{
    UT_LIST_EACH(&ring->ops, struct ring_op, link, op)
    {
        if (same_op(&op->id, header))
            return op;
    }
    return NULL;
}

static size_t chunk_bytes(const struct ring_op *op, const struct ring_header *header)
{
    uint64_t begin;
    uint32_t count;
    ring_chunk(&op->plan, header->segment, header->chunk, &begin, &count);
    return count * (header->journey == RING_REDUCE ? wire_bytes(op) : coll_dtype_bytes(op->dtype));
}

/* Whether the chunk is one that this node is to get in this operation, from that node. */
static bool makes_sense(const struct ring_op *op, const struct ring_held *held)
{
    const struct ring_header *header = &held->header;
    unsigned from = (op->me + op->node_count - 1) % op->node_count;
    if (op->parts || held->node != op->nodes[from] || header->segment >= op->plan.segment_count ||
        header->chunk >= ring_chunks(&op->plan, header->segment))
        return false;
    bool wanted =
        header->journey == RING_REDUCE   ? op->plan.reduces && !ring_starts(&op->plan, header->segment)
        : header->journey == RING_GATHER ? op->plan.gathers && !ring_owns(&op->plan, header->segment)
                                         : false;
    return wanted && held->in.bytes == chunk_bytes(op, header);
}

/* Keeps a gathered chunk, and hands it on in the same pass if the next node has room. */
static int take_gathered(struct ring *ring, struct ring_op *op, const struct ring_held *held)
{
    const struct ring_header *header = &held->header;
    const void *came = checked(ring, op, held);
    struct ntbm_slot_out out;
    uint64_t begin;
    uint32_t count;
    if (!came)
        return -EBADMSG;
    ring_chunk(&op->plan, header->segment, header->chunk, &begin, &count);
    bool hands_on = ring_hands_on(&op->plan, header->segment);
    bool send = hands_on && take_slot(ring, op, false, &out) == 0;
    int rc = keep(op, begin, count, came, send ? compose_at(ring, op, &out) : NULL);
    op->steps_left--;
    if (send && rc)
        ntbm_slot_cancel(&out);
    if (rc)
        return rc;
    if (send) {
        send_slot(ring, op, &out, RING_GATHER, header->segment, header->chunk, held->in.bytes);
        op->steps_left--;
    } else if (hands_on) {
        queue_send(op, header->segment, header->chunk);
    }
    return 0;
}

/* One arrived slot. 0: done with; -EAGAIN: it has to wait; else the operation has failed. */
static int step(struct ring *ring, struct ring_op *op, const struct ring_held *held)
{
    const struct ring_header *header = &held->header;
    int rc;
    if (has_arrived(op, header))
        return 0; /* once is enough */
    if (header->journey == RING_GATHER)
        rc = take_gathered(ring, op, held);
    else if (ring_owns(&op->plan, header->segment))
        rc = complete(ring, op, held);
    else
        rc = hand_on_sum(ring, op, header->segment, header->chunk, held);
    if (!rc)
        note_arrival(op, header);
    return rc;
}

static void fail_step(struct ring *ring, struct ring_op *op, const struct ring_held *held, int rc)
{
    char text[160];
    if (rc == -EBADMSG)
        snprintf(text, sizeof(text), "data from node %u arrived damaged at node %u (CRC32C): check that link",
                 held->node, ring->node);
    else
        snprintf(text, sizeof(text), "node %u: %s", ring->node, fault_text(rc));
    end_op(op, rc, text);
}

/* True when the slot is done with. */
static bool handle(struct ring *ring, const struct ring_held *held)
{
    struct ring_op *op = find_op(ring, &held->header);
    if (!op || op->id.members != held->header.members)
        return true; /* of one that has ended: this node had started it before anybody sent */
    if (!makes_sense(op, held)) {
        char text[160];
        snprintf(text, sizeof(text), "node %u sent a chunk that does not belong to the operation",
                 held->node);
        end_op(op, -EPROTO, text);
        return true;
    }
    int rc = step(ring, op, held);
    if (rc == -EAGAIN || rc == -ENOTCONN)
        return false;
    if (rc)
        fail_step(ring, op, held, rc);
    else
        check_done(ring, op);
    return true;
}

static bool retry_held(struct ring *ring)
{
    bool any = false;
    for (unsigned i = 0; i < ring->held_count;) {
        if (!handle(ring, &ring->held[i])) {
            i++;
            continue;
        }
        ntbm_slot_done(&ring->held[i].in);
        ring->held[i] = ring->held[--ring->held_count];
        any = true;
    }
    return any;
}

static bool take_arrivals(struct ring *ring)
{
    bool any = false;
    for (unsigned n = 0; n < ring->peer_count; n++) {
        struct ring_held held = {.node = n};
        for (unsigned i = 0; ring->peers[n] && i < STEPS_A_POLL && ring->held_count < ring->held_cap &&
                             ntbm_peer_next(ring->peers[n], &held.in) == 0;
             i++) {
            memcpy(&held.header, held.in.user, sizeof(held.header));
            any = true;
            if (handle(ring, &held))
                ntbm_slot_done(&held.in);
            else
                ring->held[ring->held_count++] = held;
        }
    }
    return any;
}

/* ---- small operations ---- */

static int make_part(struct ring *ring, struct ring_op *op)
{
    size_t bytes = op->count * coll_dtype_acc_bytes(op->dtype);
    op->parts = calloc(op->node_count, RING_PART_BYTES);
    if (!op->parts)
        return -ENOMEM;
    uint8_t *mine = op->parts + (size_t)op->me * RING_PART_BYTES;
    struct work work = {.op = op,
                        .step = {.src = op->sources, .acc_out = mine, .count = op->count, .divisor = 1}};
    work.step.src_count = local_ranges(op, 0, op->local);
    for (unsigned i = 0; i < work.step.src_count; i++)
        op->sources[i] = op->local[i];
    int rc = guarded(&work);
    for (unsigned i = 0; !rc && i < op->node_count; i++) {
        if (i != op->me)
            ring->tell(ring->ctx, op, op->nodes[i], RING_PART, mine, (uint32_t)bytes);
    }
    ring_nodes_add(&op->parts_here, op->me);
    return rc;
}

/* Adds up the partial sums in the order of the ring, the same on every node, and rounds once. */
static int add_parts(struct ring_op *op)
{
    struct work sum = {.op = op,
                       .step = {.src = op->sources,
                                .src_count = op->node_count,
                                .acc_out = op->parts,
                                .count = op->count,
                                .divisor = 1}};
    for (unsigned i = 0; i < op->node_count; i++)
        op->sources[i] = op->parts + (size_t)i * RING_PART_BYTES;
    red_reduce(op->table, coll_dtype_acc(op->dtype), op->op, &sum.step);
    struct work result = {.op = op,
                          .step = {.dst = op->local,
                                   .dst_count = local_ranges(op, 0, op->local),
                                   .src = op->sources,
                                   .acc_in = op->parts,
                                   .count = op->count,
                                   .divisor = final_divisor(op)}};
    op->moved = true;
    return guarded(&result);
}

static void check_parts(struct ring_op *op)
{
    if (!is_all(op, &op->parts_here))
        return;
    int rc = add_parts(op);
    end_op(op, rc, rc ? fault_text(rc) : "");
}

/* ---- what others call ---- */

int ring_init(struct ring *ring, unsigned node, struct ntbm_peer **peers, unsigned peer_count)
{
    ring->node = node;
    ring->peers = peers;
    ring->peer_count = peer_count;
    ring->held_cap = peer_count * NTBM_SLOTS_MAX;
    ut_list_init(&ring->ops);
    ut_list_init(&ring->early);
    ring->held = calloc(ring->held_cap, sizeof(ring->held[0]));
    ring->scratch_in = malloc(NTBM_SLOT_BYTES_MAX);
    ring->scratch_out = malloc(NTBM_SLOT_BYTES_MAX);
    if (ring->held && ring->scratch_in && ring->scratch_out)
        return 0;
    ring_fini(ring);
    return -ENOMEM;
}

static void free_early(struct ring_early *early)
{
    ut_list_remove(&early->link);
    free(early);
}

void ring_fini(struct ring *ring)
{
    UT_LIST_EACH(&ring->early, struct ring_early, link, early)
    {
        free_early(early);
    }
    for (unsigned i = 0; i < ring->held_count; i++)
        ntbm_slot_done(&ring->held[i].in);
    free(ring->held);
    free(ring->scratch_in);
    free(ring->scratch_out);
    ring->held = NULL;
    ring->scratch_in = ring->scratch_out = NULL;
    ring->held_count = 0;
}

static bool all_nodes_open(const struct ring *ring, const struct ring_op *op)
{
    for (unsigned i = 0; i < op->node_count; i++) {
        const struct ntbm_peer *peer = ring->peers[op->nodes[i]];
        if (i != op->me && (!peer || !ntbm_peer_is_open(peer)))
            return false;
    }
    return true;
}

static int prepare(struct ring *ring, struct ring_op *op)
{
    int rc = alloc_members(op);
    if (rc)
        return rc;
    if (uses_parts(op))
        return make_part(ring, op);
    uint32_t slot_bytes = next_peer(ring, op)->session.geo.slot_bytes;
    size_t widest = coll_dtype_acc_bytes(op->dtype) > coll_dtype_bytes(op->dtype)
                        ? coll_dtype_acc_bytes(op->dtype)
                        : coll_dtype_bytes(op->dtype);
    ring_plan_init(&op->plan, op->kind, op->count, op->member_pos, op->member_count, op->root, op->node_count,
                   op->me, slot_bytes / (uint32_t)widest);
    return alloc_steps(op);
}

static bool is_kept(const struct ring *ring, unsigned node, enum ring_word word, const struct ring_header *id)
{
    UT_LIST_EACH(&ring->early, struct ring_early, link, early)
    {
        if (early->node == node && early->word == word && same_op(&early->id, id))
            return true;
    }
    return false;
}

/* Keeps a word until its operation starts, which on the other node may have been long ago. */
static void keep_early(struct ring *ring, unsigned node, enum ring_word word, const struct ring_header *id,
                       const void *bytes, uint32_t len)
{
    bool keep = len <= RING_PART_BYTES && ring->expects(ring->ctx, id) && !is_kept(ring, node, word, id);
    struct ring_early *early = keep ? malloc(sizeof(*early) + len) : NULL;
    if (!early)
        return; /* if it was wanted, the operation will run out of time, and say so */
    *early = (struct ring_early){.id = *id, .node = node, .word = word, .len = len};
    memcpy(early->bytes, bytes, len);
    ut_list_append(&ring->early, &early->link);
}

void ring_forget(struct ring *ring)
{
    UT_LIST_EACH(&ring->early, struct ring_early, link, early)
    {
        if (!ring->expects(ring->ctx, &early->id))
            free_early(early);
    }
}

static struct ring_early *find_early(const struct ring *ring, const struct ring_header *id)
{
    UT_LIST_EACH(&ring->early, struct ring_early, link, early)
    {
        if (same_op(&early->id, id))
            return early;
    }
    return NULL;
}

/* Looks anew each time: the operation may end with any word, and others may start then. */
static void hear_early(struct ring *ring, struct ring_header id)
{
    struct ring_early *early;
    while (find_op(ring, &id) && (early = find_early(ring, &id))) {
        ut_list_remove(&early->link);
        ring_hear(ring, early->node, early->word, &early->id, early->bytes, early->len);
        free(early);
    }
}

int ring_start(struct ring *ring, struct ring_op *op)
{
    ut_list_init(&op->link);
    op->now = ring->now;
    op->begun_ns = ring->now();
    if (!all_nodes_open(ring, op))
        return -ENOTCONN;
    int rc = prepare(ring, op);
    if (rc) {
        free_private(op);
        return rc;
    }
    ut_list_append(&ring->ops, &op->link);
    ring_nodes_add(&op->ready, op->me);
    if (op->steps_left)
        tell_others(ring, op, RING_READY);
    hear_early(ring, op->id);
    return 0;
}

/* Gives every operation one turn: first what is on its way, then what starts. True when something moved. */
static bool push_op(struct ring *ring, struct ring_op *op)
{
    int rc = -ENOENT;
    if (op->parts)
        return false;
    if (op->steps_left && !is_all(op, &op->ready))
        return false;
    if (op->send_head != op->send_tail)
        rc = hand_on_copy(ring, op);
    else
        rc = start_next(ring, op);
    if (rc && rc != -EAGAIN && rc != -ENOENT && rc != -ENOTCONN) {
        char text[160];
        snprintf(text, sizeof(text), "node %u: %s", ring->node, fault_text(rc));
        end_op(op, rc, text);
        return true;
    }
    if (check_done(ring, op))
        return true;
    return rc == 0;
}

static bool push_all(struct ring *ring)
{
    bool any = false;
    UT_LIST_EACH(&ring->ops, struct ring_op, link, op)
    {
        if (push_op(ring, op)) {
            any = true;
            break; /* the list may have changed */
        }
    }
    if (any && !ut_list_empty(&ring->ops)) { /* the next turn begins with another one */
        struct ut_list *first = ring->ops.next;
        ut_list_remove(first);
        ut_list_append(&ring->ops, first);
    }
    return any;
}

bool ring_poll(struct ring *ring)
{
    bool any = take_arrivals(ring);
    any = retry_held(ring) || any;
    for (unsigned i = 0; i < STEPS_A_POLL && push_all(ring); i++)
        any = true;
    return any;
}

bool ring_is_busy(const struct ring *ring)
{
    return !ut_list_empty(&ring->ops) || ring->held_count;
}

/* The node's position in the ring of the operation, or -1. */
static int position_of(const struct ring_op *op, unsigned node)
{
    for (unsigned i = 0; i < op->node_count; i++) {
        if (op->nodes[i] == node && i != op->me)
            return (int)i;
    }
    return -1;
}

static void take_part(struct ring_op *op, unsigned position, const void *bytes, uint32_t len)
{
    if (!op->parts || len != op->count * coll_dtype_acc_bytes(op->dtype))
        return;
    memcpy(op->parts + (size_t)position * RING_PART_BYTES, bytes, len);
    ring_nodes_add(&op->parts_here, position);
    check_parts(op);
}

static void fail_disagreement(struct ring_op *op, unsigned node)
{
    char text[160];
    snprintf(text, sizeof(text), "node %u disagrees about which ranks take part, and from which node", node);
    end_op(op, -EPROTO, text);
}

void ring_hear(struct ring *ring, unsigned node, enum ring_word word, const struct ring_header *id,
               const void *bytes, uint32_t len)
{
    struct ring_op *op = find_op(ring, id);
    if (!op) {
        keep_early(ring, node, word, id, bytes, len);
        return;
    }
    int position = position_of(op, node);
    if (op->id.members != id->members) {
        fail_disagreement(op, node);
    } else if (position < 0) {
        return; /* it takes no part */
    } else if (word == RING_PART) {
        take_part(op, (unsigned)position, bytes, len);
    } else if (word == RING_READY) {
        ring_nodes_add(&op->ready, (unsigned)position);
    } else if (!op->parts) {
        ring_nodes_add(&op->done_by, (unsigned)position);
        check_done(ring, op);
    }
}

void ring_peer_down(struct ring *ring, unsigned node)
{
    UT_LIST_EACH(&ring->early, struct ring_early, link, early)
    {
        if (early->node == node)
            free_early(early);
    }
    for (unsigned i = 0; i < ring->held_count;) {
        if (ring->held[i].node != node) {
            i++;
            continue;
        }
        ntbm_slot_done(&ring->held[i].in);
        ring->held[i] = ring->held[--ring->held_count];
    }
}
