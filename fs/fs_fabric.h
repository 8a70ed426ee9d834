/*
 * This node's place in the fabric: its landing memory, its links to the others, and the jobs across them.
 * Nothing of it exists on a fabric of one node.
 *
 * Threads: the loop thread only.
 */
#ifndef FS_FABRIC_H
#define FS_FABRIC_H

#include "fs/fs.h"
#include "ntbmem/ntbm_emu.h"
#include "ntbmem/ntbm_node.h"
#include "reduce/coll_net.h"

/* One other node, as this one reaches it. */
struct fs_peer {
    struct fs_fabric *fabric;
    unsigned number;
    struct ntbm_mem_link memory;
    struct ntbm_emu emu; /* around memory, when it is slow by configuration, or may be broken */
    bool emulated;
    struct ntbm_peer *peer;
    uint64_t incarnation; /* of its daemon, when a session with it last ended by silence; 0: not so */
    bool is_down;         /* its session has ended, and the jobs have not been told yet */
    char down_reason[256];
    int down_loss; /* -EHOSTDOWN or -ENOLINK */
};

struct fs_fabric {
    struct fs *fs;
    struct ntbm_mem landing;
    struct ntbm_node node;
    struct coll_net net;
    char host[32];
    unsigned order[FS_NODE_MAX]; /* the ring */
    char order_why[160];
    unsigned downs;         /* peers with is_down */
    uint64_t active_ns;     /* when something last happened */
    uint64_t look_ns;       /* when landing memory is looked at: is it whole? */
    uint64_t restore_ns;    /* when landing memory that is gone is tried again; 0: it is there */
    struct fs_peer peers[]; /* [nodes]; the own entry is unused */
};

/* Opens this node's landing memory and begins to look for the others. 0 and *out NULL on one node; -errno
 * with a sentence. */
int fs_fabric_create(struct fs *fs, struct fs_fabric **out, struct ut_err *err);

/* Leaves: the others are told. Harmless on NULL. */
void fs_fabric_destroy(struct fs_fabric *fabric);

/* Does what is due; returns how long the loop may sleep, nanoseconds: nothing while data move, ever longer
 * when nothing happens, until heartbeats set the pace. */
uint64_t fs_fabric_poll(struct fs_fabric *fabric);

/* Something has been asked for here: answers from others are near. */
void fs_fabric_touch(struct fs_fabric *fabric);

/* The lowest bandwidth configured for a link, bytes a second; 0 when none is. */
uint64_t fs_fabric_slowest(const struct fs_fabric *fabric);

/* With the setting `faults`: the link to the peer does from now on what the words say (ntbm_emu.h). 0 or
 * -EINVAL. */
int fs_fabric_break_link(struct fs_peer *peer, const char *text, size_t len, struct ut_err *err);

/* The machine that the node is, or was when it was last up; NULL: it never was. */
const char *fs_fabric_machine(const struct fs_fabric *fabric, unsigned node);

/* Links to each peer, and the own landing memory, in words: for topology and nodes/N/link. */
void fs_fabric_show_landing(const struct fs_fabric *fabric, struct ut_text *out);
void fs_fabric_show_link(const struct fs_peer *peer, struct ut_text *out);
void fs_fabric_show_stats(const struct fs_peer *peer, struct ut_text *out);
void fs_fabric_show_topology(const struct fs_fabric *fabric, struct ut_text *out);

#endif
