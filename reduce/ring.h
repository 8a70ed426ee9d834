/*
 * The ring: carries operations of many nodes out, chunk by chunk, through slots in the next node's memory.
 *
 * Each slot that arrives is one step: a chunk on its reduce journey is added to this node's ranks and written
 * straight into a slot of the next node, in one pass; a chunk on its gather journey is copied to this node's
 * ranks and handed on. See ring_plan.h for who does what.
 *
 * Data move when every node has started the operation and has said so to all (READY): so a chunk never waits
 * in its slot for a node that is late, and an operation that fails before leaves all buffers as they were.
 *
 * No deadlock. A gathered chunk is kept at once and its slot given back, whatever the way onward. A reducing
 * chunk may have to wait in its slot for a free one of the next node. All operations go around the nodes in
 * one order, whichever of them take part, and no journey comes back to where it began. The last free slot of
 * a link is kept for reducing chunks that have passed the end of that order: they wait only for others like
 * them, further on, and the rest wait only for those further on, or for them. So whatever operations share
 * the links, somebody can move.
 *
 * An operation ends on a node when all its steps are done and every other node has said the same (DONE): the
 * results are everywhere, or nobody says success. Small allreduces skip all that: each node sends its partial
 * sum to every other in one message (PART), and all add them up in the same order.
 *
 * The last word. A node that fails before its DONE (or PART) keeps all others from success. After it a node
 * can only miss somebody else's: when that node, the link to it, or the time is lost just then. It says
 * failure (EHOSTDOWN, ENOLINK, ETIMEDOUT), while a node that has got all words says success: no further
 * messages would exclude that. What holds always: a success is the whole result, of all ranks that take part;
 * the buffers of a node that fails so hold it as well, though they are called undefined, or, for a small one,
 * are as they were; the number is used up on both, so the next operation works.
 *
 * Threads: the loop thread only. A step is at most one slot, tens of microseconds.
 */
#ifndef RING_H
#define RING_H

#include "ntbmem/ntbm_peer.h"
#include "reduce/red_kernel.h"
#include "reduce/ring_plan.h"
#include "utils/ut_list.h"

#define RING_PART_BYTES 2048u /* largest partial sum that travels in a message */

/* What goes before a chunk; the user bytes of a slot (ntbm_slot.h). Little-endian. */
struct ring_header {
    uint64_t job; /* ring_id of its name */
    uint64_t seq;
    uint64_t tag;     /* likewise */
    uint32_t members; /* coll_op_members_sum: both nodes mean the same operation */
    uint32_t chunk;
    uint32_t crc; /* of the data, CRC32C; 0 unless verified */
    uint16_t segment;
    uint8_t journey; /* enum ring_journey */
    uint8_t reserved[9];
};

_Static_assert(sizeof(struct ring_header) <= NTBM_USER_BYTES, "fits before a chunk");

enum ring_journey { RING_REDUCE = 1, RING_GATHER = 2 };

/* What nodes say to each other about an operation, by messages: that they have started it, that they have
 * done their part, and what their part of a small one is. */
enum ring_word { RING_READY, RING_DONE, RING_PART };

/* An operation under way on this node. Filled in by the caller, who owns it until `done`. */
struct ring_op {
    struct ring_header id; /* job, seq, tag, members */
    enum coll_kind kind;
    enum coll_dtype dtype;
    enum coll_op op;
    enum coll_dtype wire; /* what f16 and bf16 travel as while they are reduced */
    bool verify;
    uint64_t count;
    unsigned member_count;      /* of all nodes */
    const unsigned *member_pos; /* [member_count] position in the ring of each member's node */
    unsigned root;              /* index of a member */
    void **base;                /* [member_count]: this node's members' ranges; NULL for others */
    unsigned node_count;
    const unsigned *nodes; /* [node_count] the ring: numbers of nodes by position */
    unsigned me;
    const struct red_table *table;
    /* Once, from ring_poll or ring_abort: result 0, or -errno with a sentence. */
    void (*done)(struct ring_op *op, int result, const char *text);
    bool moved;                           /* data have been written to buffers */
    uint64_t begun_ns, local_ns, copy_ns; /* figures: when it began, what adding and copying took */

    /* private */
    struct ut_list link;
    uint64_t (*now)(void);
    struct ring_plan plan;
    uint64_t steps_left;              /* own steps: arrivals to handle, chunks to send */
    struct ring_nodes ready, done_by; /* by position: who has said READY, and DONE */
    bool said_done;
    unsigned start_segment; /* cursor of journeys to set going */
    uint32_t start_chunk;
    struct ring_send *sends; /* FIFO of gathered chunks to hand on */
    uint32_t send_head, send_tail, send_cap;
    uint64_t *seen;               /* bit for each (journey, segment, chunk) that has arrived */
    uint64_t *seen_base;          /* [segment_count] first bit of a segment */
    uint8_t *parts;               /* small: [node_count] partial sums by position */
    struct ring_nodes parts_here; /* by position */
    void **local;                 /* [local_count] scratch for kernels */
    const void **sources;
    unsigned *local_idx; /* [local_count] indices of this node's members */
    unsigned local_count;
};

struct ring {
    unsigned node;
    struct ntbm_peer **peers; /* by node number; NULL: none */
    unsigned peer_count;
    struct ut_list ops;     /* struct ring_op.link */
    struct ring_held *held; /* slots that wait for a free one of the next node */
    unsigned held_count, held_cap;
    /* Sends the word to the node, and with RING_PART the bytes. */
    void (*tell)(void *ctx, const struct ring_op *op, unsigned node, enum ring_word word, const void *bytes,
                 uint32_t len);
    /* Whether that operation may still start here: then words about it are kept for it, one of each from each
     * node. So it is this that bounds what is kept. */
    bool (*expects)(void *ctx, const struct ring_header *id);
    uint64_t (*now)(void);
    void *ctx;
    struct ut_list early; /* words about operations that have not started here: struct ring_early.link */
    uint8_t *scratch_in, *scratch_out; /* NTBM_SLOT_BYTES_MAX each: checked copies */
};

/* The number by which nodes mean a job, or a tag, without its name. */
uint64_t ring_id(const char *name);

/* 0 or -ENOMEM. peers must outlive it. The functions and ctx are set by the caller, afterwards. */
int ring_init(struct ring *ring, unsigned node, struct ntbm_peer **peers, unsigned peer_count);
void ring_fini(struct ring *ring);

/* Begins the operation. 0; -ENOMEM; -ENOTCONN when a node of the ring is not there. */
int ring_start(struct ring *ring, struct ring_op *op);

/* Ends it: `done` is called with result. */
void ring_abort(struct ring *ring, struct ring_op *op, int result, const char *text);

/* Does what can be done now, a bounded number of steps. True when anything was. */
bool ring_poll(struct ring *ring);

/* True while an operation is under way, so that the caller polls without sleeping. */
bool ring_is_busy(const struct ring *ring);

/* What another node's tell said. The operation may end in here; before it starts, the word is kept. */
void ring_hear(struct ring *ring, unsigned node, enum ring_word word, const struct ring_header *id,
               const void *bytes, uint32_t len);

/* Forgets kept words about operations that are not expected any more. */
void ring_forget(struct ring *ring);

/* The connection to the node has ended: slots from it that wait are given back, its words forgotten. */
void ring_peer_down(struct ring *ring, unsigned node);

#endif
