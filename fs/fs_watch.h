/*
 * Watching the devices this node reaches the others by: for each node whose window is a PCI BAR, or that is
 * given a `device`, the links from that device up to its root port. Nodes may share a device: then what is
 * wrong with it is this node's trouble, not theirs.
 *
 *     loop: tick ──submit──▶ worker: looks at every device ──post──▶ loop: judges, tells, drains
 *
 * Where no device shows that a link flaps, the sessions with that node do (fs_watch_lost).
 *
 * A look may be held up by a device that does not answer, so that worker does nothing else; while it is out,
 * no other look begins, and `health` says so when that takes too long.
 *
 * Threads: the functions here on the loop thread. A device's watch is the worker's; the report that it made
 * is copied when the look is over.
 */
#ifndef FS_WATCH_H
#define FS_WATCH_H

#include "fs/fs.h"
#include "utils/pci_trend.h"

struct fs_watch;

/* One device, as the loop thread knows it. */
struct fs_watched {
    struct fs_watch *all;
    struct ut_pci_addr addr;
    unsigned blamed;           /* the node its trouble is put down to: who is behind it, or this one */
    unsigned peers;            /* other nodes that are reached by it */
    struct ut_pci_report now;  /* the last look */
    struct ut_pci_trend trend; /* of all looks */
    double data_gbytes;        /* GB/s put through it between the last two looks */
    uint64_t put_bytes;        /* at the last one */
    /* the worker's, while a look is out */
    struct ut_pci_watch *watch;
    struct ut_pci_report fresh;
};

/* Begins to watch. 0, or -errno with a sentence. */
int fs_watch_create(struct fs *fs, struct fs_watch **out, struct ut_err *err);

/* Waits for the look that is out, for two seconds. False: it has not returned, and its thread is left behind
 * with all that it uses; exit handlers of libraries had better not run then. Harmless on NULL. */
bool fs_watch_destroy(struct fs_watch *watch);

/* Begins a look if one is due, and says when to come again. Harmless on NULL. */
void fs_watch_tick(struct fs_watch *watch, uint64_t now_ns);

/* The device that the settings name for a node: its `device`, or that of its window, or landing memory,
 * "pci:ADDRESS/BAR". False when there is none. */
bool fs_watch_device_of(const struct fs_node_settings *node, struct ut_pci_addr *out);

/* The device watched for a node, or NULL; and the devices, by number from 0 on, NULL at the end. */
const struct fs_watched *fs_watch_of(const struct fs_watch *watch, unsigned node);
const struct fs_watched *fs_watch_at(const struct fs_watch *watch, unsigned idx);

/* Nanoseconds that the look which is out has taken beyond what it may; 0 when none is late. */
uint64_t fs_watch_late_ns(const struct fs_watch *watch, uint64_t now_ns);

/* The session with a node was lost although that node lives: its link was gone, which no device of this
 * machine need show. Counts as a drop. Harmless on NULL. */
void fs_watch_lost(struct fs_watch *watch, unsigned node, uint64_t now_ns);

/* Why the sessions with a node make it suspect, and since when; NULL while they do not. */
const char *fs_watch_session_why(const struct fs_watch *watch, unsigned node, uint64_t *since_ns);

/* True while errors or a flapping link are put down to the node. For coll_host.suspect. */
bool fs_watch_is_suspect(void *fs, unsigned node);

/* What there is to say: in nodes/N/link, in `topology` (after a line's begin, without newline), in `health`,
 * in `metrics`; fs_watch_show.c. */
void fs_watch_show_link(const struct fs *fs, unsigned node, struct ut_text *out);
void fs_watch_show_topology(const struct fs *fs, unsigned node, struct ut_text *out);
void fs_watch_show_health(const struct fs *fs, struct ut_text *out);
void fs_watch_show_metrics(const struct fs *fs, struct ut_text *out);

#endif
