/*
 * The bytes that nodes write into each other's memory: the layout of landing memory.
 *
 *     0        header page    written by its owner; read by peers when they greet, never afterwards
 *     4096     area 0         written by one sender only
 *     ...      area n-2       one for each other node, in node order
 *
 * An area belongs to one sender, and nobody else writes there but its owner, who clears the words and cells
 * before he accepts a new epoch:
 *
 *     hello    who the sender is and how it stands with us; rewritten at every beat
 *     words    one line each: what is published after a hello, acknowledgements, arrived slots, freed slots
 *     cells    control messages, a ring of lines, each with its own word
 *     slots    bulk data: a header line and slot_bytes of data each
 *
 * Everything is little-endian and of fixed width. Everything is read by the owner of the memory as the work
 * of a stranger: copied out first, then checked, then used.
 *
 * Published words. A put carries its bytes and *one* word that becomes visible after them; nothing is
 * promised about the order of two puts. A word is tag << 16 | sequence: the tag comes from the sender's epoch
 * and is neither 0 nor 0xffff, so that neither cleared memory, nor the all-ones of a dead link, nor what an
 * earlier epoch left behind is ever taken for news. Sequences count modulo 2^16.
 *
 * Sums. Hellos, cells and headers of slots carry one, always: a bit that changes on the way must not become
 * another number of ranks, or another sum. The data of a slot have one if the job wants it (`verify`).
 */
#ifndef NTBM_LANDING_H
#define NTBM_LANDING_H

#include "utils/ut_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "landing memory is little-endian, without swapping");

#define NTBM_MAGIC 0x42544e4346424146ull /* "FABFCNTB" */
#define NTBM_VERSION 2u /* goes up with any change of what travels: here, ring.h, coll_wire.h, coll_net.c */
#define NTBM_LINE 64u
#define NTBM_HEADER_BYTES 4096u
#define NTBM_SLOTS_MAX 16u
#define NTBM_SLOT_BYTES_MAX (256u << 10)
#define NTBM_SLOT_BYTES_MIN 512u
#define NTBM_USER_BYTES 52u /* of a slot's header, for the layer above */
#define NTBM_CELL_BYTES 52u /* of a message in one cell */

/* How landing memory is cut; the same on all nodes of a fabric. */
struct ntbm_geometry {
    uint32_t area_bytes; /* of each sender, whole lines */
    uint32_t cell_count; /* a power of two */
    uint32_t slot_count; /* 2 .. NTBM_SLOTS_MAX */
    uint32_t slot_bytes; /* of data in a slot, whole lines */
};

/* Who somebody is. Magic, version and bytes keep their place in every version. */
struct ntbm_ident {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes;      /* of this struct */
    char fabric[32];     /* name, NUL-terminated and NUL-filled */
    uint32_t node;       /* own number */
    uint32_t node_count; /* of the fabric, this one included */
    struct ntbm_geometry geometry;
    uint8_t boot_id[16];  /* of the machine's kernel: changes with a reboot */
    uint64_t incarnation; /* random, of the daemon process */
    uint32_t pid;
    uint32_t reserved; /* 0 */
    char host[32];     /* NUL-terminated and NUL-filled */
};

/* Written by the owner of the memory, again at every beat; read by peers that greet it. */
struct ntbm_header {
    struct ntbm_ident ident;
    uint64_t landing_bytes;
    uint32_t beat;     /* goes on while the daemon runs: for eyes and tools */
    uint32_t reserved; /* 0 */
};

enum {
    NTBM_HELLO_LEAVING = 1, /* flag: the daemon stops on purpose */
    NTBM_HELLO_RIVALS = 2   /* flag: it refuses the receiver, of whose number there are two */
};

/* Written by the sender, read by the owner of the memory. */
struct ntbm_hello {
    struct ntbm_ident ident;
    uint32_t epoch;      /* the sender's, towards this node */
    uint32_t peer_epoch; /* this node's, as the sender has accepted it; 0: none */
    uint32_t beat;       /* one more with every hello of this incarnation to this node */
    uint32_t echo;       /* proof that the sender has read our pattern in its memory; 0: not yet */
    uint32_t slots_seen; /* how many filled slots of ours the sender has noticed in this epoch */
    uint32_t flags;
    uint32_t reserved[7]; /* 0 */
    uint32_t sum;         /* of all before: a hello is rewritten in place and may be read half done */
};

/* Written by the sender, read by the owner. Each word is published alone, or after the bytes it speaks of. */
struct ntbm_words {
    uint32_t hello; /* the beat of the hello; any change means news */
    uint32_t reserved;
    uint32_t
        cell_ack; /* cells of our messages that the sender has consumed, counted from the epoch's start */
    uint32_t reserved_ack[13];
    uint32_t
        slot[NTBM_SLOTS_MAX]; /* how often the slot was filled in this epoch, published after its bytes */
    uint32_t slot_ack[NTBM_SLOTS_MAX]; /* how often the sender has freed this slot of ours */
};

enum { NTBM_CELL_LAST = 1 }; /* flag: the message ends here */

/* Written by the sender, read by the owner: a piece of a control message. */
struct ntbm_cell {
    uint32_t word;  /* published after the rest; the sequence of the cell in the epoch, from 0 */
    uint32_t sum;   /* ntbm_cell_sum */
    uint16_t bytes; /* used of payload, 1 .. NTBM_CELL_BYTES; only a last one may be partly filled */
    uint16_t flags;
    uint8_t payload[NTBM_CELL_BYTES];
};

/* Written by the sender, read by the owner: stands before the data of a slot. */
struct ntbm_slot_header {
    uint32_t bytes;                /* of data that follow, at most slot_bytes */
    uint8_t user[NTBM_USER_BYTES]; /* the layer above's; checked there */
    uint32_t sum;                  /* of all before */
    uint32_t reserved;             /* 0 */
};

_Static_assert(sizeof(struct ntbm_geometry) == 16, "layout");
_Static_assert(sizeof(struct ntbm_ident) == 136, "layout");
_Static_assert(offsetof(struct ntbm_ident, fabric) == 16, "layout");
_Static_assert(offsetof(struct ntbm_ident, geometry) == 56, "layout");
_Static_assert(offsetof(struct ntbm_ident, boot_id) == 72, "layout");
_Static_assert(offsetof(struct ntbm_ident, incarnation) == 88, "layout");
_Static_assert(offsetof(struct ntbm_ident, host) == 104, "layout");
_Static_assert(sizeof(struct ntbm_header) == 152, "layout");
_Static_assert(sizeof(struct ntbm_hello) == 192, "layout");
_Static_assert(offsetof(struct ntbm_hello, epoch) == 136, "layout");
_Static_assert(offsetof(struct ntbm_hello, sum) == 188, "layout");
_Static_assert(sizeof(struct ntbm_words) == 3 * NTBM_LINE, "layout");
_Static_assert(offsetof(struct ntbm_words, cell_ack) == 8, "layout");
_Static_assert(offsetof(struct ntbm_words, slot) == NTBM_LINE, "layout");
_Static_assert(offsetof(struct ntbm_words, slot_ack) == 2 * NTBM_LINE, "layout");
_Static_assert(sizeof(struct ntbm_cell) == NTBM_LINE, "layout");
_Static_assert(offsetof(struct ntbm_cell, payload) == 12, "layout");
_Static_assert(sizeof(struct ntbm_slot_header) == NTBM_LINE, "layout");
_Static_assert(offsetof(struct ntbm_slot_header, sum) == 56, "layout");

#define NTBM_HELLO_OFFSET 0u
#define NTBM_WORDS_OFFSET ((uint32_t)sizeof(struct ntbm_hello))
#define NTBM_CELLS_OFFSET (NTBM_WORDS_OFFSET + (uint32_t)sizeof(struct ntbm_words))

/* Where parts of an area lie, counted from the area's start. */
static inline uint32_t ntbm_cell_offset(uint32_t cell_idx)
{
    return NTBM_CELLS_OFFSET + cell_idx * NTBM_LINE;
}

static inline uint32_t ntbm_slot_offset(const struct ntbm_geometry *geo, uint32_t slot_idx)
{
    return ntbm_cell_offset(geo->cell_count) + slot_idx * (NTBM_LINE + geo->slot_bytes);
}

/* Where the area of `sender` begins in the landing memory of `owner`; the two differ. */
static inline uint64_t ntbm_area_offset(const struct ntbm_geometry *geo, uint32_t owner, uint32_t sender)
{
    return NTBM_HEADER_BYTES + (uint64_t)geo->area_bytes * (sender < owner ? sender : sender - 1);
}

/* The tag of an epoch: 1 .. 0xfffe. */
static inline uint32_t ntbm_tag(uint32_t epoch)
{
    return 1 + epoch % 0xfffe;
}

static inline uint32_t ntbm_word(uint32_t epoch, uint16_t seq)
{
    return ntbm_tag(epoch) << 16 | seq;
}

/* The smallest landing memory for that many nodes, bytes. */
uint64_t ntbm_landing_min_bytes(uint32_t node_count);

/* What landing memory for that many nodes should have: four slots of full size for each sender. It grows by
 * about 1 MiB a node. Whole pages. */
uint64_t ntbm_landing_default_bytes(uint32_t node_count);

/* Cuts landing memory: for two nodes and 64 KiB as well as for many and much more. 0, or -EINVAL with a
 * sentence that names the bytes needed. node_count 2 .. 65536. */
int ntbm_landing_cut(uint64_t landing_bytes, uint32_t node_count, struct ntbm_geometry *out,
                     struct ut_err *err);

/* Why `theirs`, which should be node `node`, and we cannot work together. 0 when we can. -EPROTO, with a
 * sentence: no landing memory at all, version, fabric, node number (ours too), node count, geometry. -ENODEV:
 * reads as all ones, as a dead link does; -ENXIO: all zero, nobody uses this memory. */
int ntbm_ident_check(const struct ntbm_ident *ours, const struct ntbm_ident *theirs, uint32_t node,
                     struct ut_err *err);

/* FNV-1a over whole bytes: finds what is torn or random, and every change of a single byte; not a defence
 * against a forger. */
uint32_t ntbm_sum(const void *bytes, size_t len);

/* The sum of a cell's length, flags and used payload; bytes is at most NTBM_CELL_BYTES. */
uint32_t ntbm_cell_sum(const struct ntbm_cell *cell);

#endif
