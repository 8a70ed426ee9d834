/*
 * Memory that two daemons share: this node's landing memory, or the window onto a peer's. What a URI names is
 * opened, checked, mapped and, for landing memory, locked against a second daemon.
 *
 * A kind is one file with one struct ntbm_kind; the table is in ntbm_mem.c. A kind decides how its memory is
 * opened, how it must be aligned and how stores reach it; mapping and checking are the same for all.
 *
 * Nobody else may write here: memory of another user, or open to other users, is refused.
 *
 * Threads: any; the calls make system calls and may block as open(2) does.
 */
#ifndef NTBM_MEM_H
#define NTBM_MEM_H

#include "ntbmem/ntbm_uri.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ntbm_role {
    NTBM_LANDING, /* memory of this node that peers write into: made when the kind can, locked */
    NTBM_WINDOW,  /* a peer's landing memory as this node reaches it: must exist */
};

/* How a store travels: into the coherent cache; through write-combining buffers, which a fence must drain;
 * or by itself, one packet a store. */
enum ntbm_mapping { NTBM_CACHED, NTBM_COMBINED, NTBM_UNCACHED };

/* "cached", "write-combining", "uncached". */
const char *ntbm_mapping_name(enum ntbm_mapping mapping);

struct ntbm_opened {
    int fd;
    enum ntbm_mapping mapping; /* that mmap of fd makes */
    uint64_t bytes;            /* of the whole object */
    uint64_t align_bytes;      /* that offset and length of a part must keep; a power of two */
};

struct ntbm_kind {
    const char *name;
    const char *what; /* the memory is, in words for an operator */
    /* Why this name cannot be one of the kind, or NULL when it can. Looks at the text only. */
    const char *(*name_fault)(const char *name);
    /* Opens the object for reading and writing. want_bytes is how long landing memory must be; a kind that
     * can make memory makes it so. 0 or -errno with a sentence; the caller owns out->fd. */
    int (*open)(const char *name, enum ntbm_role role, uint64_t want_bytes, struct ntbm_opened *out,
                struct ut_err *err);
    /* Why mmap failed with this errno and what to do about it, where the kind knows more than strerror; may
     * return NULL. NULL itself when it never does. */
    const char *(*mmap_fault)(int error);
    /* Takes memory away that open made; NULL when it outlives the daemon. */
    void (*remove)(const char *name);
};

extern const struct ntbm_kind ntbm_kind_shm, ntbm_kind_file, ntbm_kind_dax, ntbm_kind_pci;

/* The kind of that name ("shm", len bytes), or NULL; and the names of all, for a sentence. */
const struct ntbm_kind *ntbm_kind_find(const char *name, size_t len);
const char *ntbm_kind_names(void);

struct ntbm_mem {
    struct ntbm_uri uri;
    int fd;         /* -1 when closed; holds the lock of landing memory */
    uint8_t *base;  /* first byte of the part */
    uint64_t bytes; /* of the part */
    enum ntbm_mapping mapping;
    uint64_t align_bytes; /* of any further mapping of fd */
};

/* Opens and maps. want_bytes: the length that landing memory gets when the URI gives no part; ignored for a
 * window. 0, or -errno with a sentence that says what would be right: -EINVAL misaligned or too short (names
 * the alignment or the size), -EPERM belongs to somebody else, -EBUSY another daemon has this landing memory,
 * -ENOENT not there (yet), or errno of the system. */
int ntbm_mem_open(const struct ntbm_uri *uri, enum ntbm_role role, uint64_t want_bytes, struct ntbm_mem *out,
                  struct ut_err *err);

/* False when somebody has shortened the file behind the memory. */
bool ntbm_mem_is_whole(const struct ntbm_mem *mem);

/* Makes landing memory whole again after somebody has shortened it: as long as it was, mapped where it was.
 * What it held is lost. 0 or -errno with a sentence. */
int ntbm_mem_restore(const struct ntbm_mem *mem, struct ut_err *err);

/* Unmaps, unlocks and closes; harmless on closed memory. */
void ntbm_mem_close(struct ntbm_mem *mem);

/* The same for landing memory at a clean end: memory that was made by opening is taken away too. */
void ntbm_mem_remove(struct ntbm_mem *mem);

/* For the kinds: refuses an open file that another user owns or may write, that is not of the wanted S_IFMT
 * type, or that is landing memory of another daemon; locks it when it is ours. Stores its size. 0, -EPERM or
 * -EBUSY with a sentence. */
int ntbm_mem_claim(int fd, enum ntbm_role role, unsigned type, const char *name, uint64_t *out_bytes,
                   struct ut_err *err);

/* What /dev/daxX.Y needs, from its directory in sysfs: bytes and alignment. 0 or -errno. For the dax kind
 * and its test. */
int ntbm_dax_limits(const char *sysfs_dir, uint64_t *out_bytes, uint64_t *out_align_bytes);

#endif
