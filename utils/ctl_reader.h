/*
 * Files of a mounted fabric, read by a process of their own.
 *
 * Who reads a file of a daemon that hangs waits for it, and once the daemon has taken the request not even
 * SIGKILL ends the wait. So a child reads and hands the files over through a pipe. When that takes too long
 * the child is killed and left behind: it holds none of our descriptors, and nothing of ours waits for it.
 *
 * A directory that holds copies of the files, such as a user may send, is read in the same way. Nothing in it
 * is trusted: what is not a regular file is not read, what is longer than the bounds is cut and said to be.
 */
#ifndef CTL_READER_H
#define CTL_READER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "utils/ut_err.h"
#include "utils/ut_text.h"

#define CTL_READER_NODES_MAX 512u /* as many as a ring has */
#define CTL_READER_JOBS_MAX 512u
#define CTL_READER_FILE_BYTES (8u << 20)
#define CTL_READER_BYTES (64u << 20) /* all files together */

/* What to read: version, stats, health, metrics, topology, link and stats of each node, stats and members of
 * each job; and of one job, if it is named, its trace, and its config with all events. */
struct ctl_want {
    const char *mount;
    const char *job; /* NULL: none */
    bool events;     /* config of that job, and events */
    uint64_t timeout_ns;
};

struct ctl_file {
    char *path; /* below the mount: "nodes/1/link" */
    int rc;     /* 0, or -errno of opening or reading it */
    char *text; /* ends with NUL; what is neither printable ASCII nor a line's end is '?' */
};

struct ctl_files {
    struct ctl_file *list; /* by path */
    size_t count;
    bool cut; /* there was more than the bounds allow */
};

struct ctl_reader {
    struct ctl_want want;
    pid_t pid;
    int fd; /* readable when there is something to pump; -1: none */
    uint64_t deadline_ns;
    char at[96]; /* the file that is being read */
    struct ut_text bytes;
    size_t used;       /* of bytes: taken over into files */
    size_t read_bytes; /* ever */
    struct ctl_files files;
};

/* Starts the child. want's strings stay the caller's. 0, or -errno with the reason in err. */
int ctl_reader_start(struct ctl_reader *reader, const struct ctl_want *want, struct ut_err *err);

/* Takes what has come; does not block. 1: all is there, and moves to *files, which the caller frees with
 * ctl_files_fini. 0: not yet. -ETIMEDOUT, -ENOENT (no fabric is mounted there), -ENOMEM, -EIO or the errno of
 * the mount with the reason in err. */
int ctl_reader_pump(struct ctl_reader *reader, struct ctl_files *files, struct ut_err *err);

/* Ends the child if it still reads, and frees all. Does not wait for a child that cannot end: gives its pid
 * then, for waitpid(); else 0. */
pid_t ctl_reader_end(struct ctl_reader *reader);

/* All of it, blocking until then or until the deadline. As ctl_reader_pump, but never 1: 0 is success. */
int ctl_reader_read(const struct ctl_want *want, struct ctl_files *files, struct ut_err *err);

/* The file, or NULL when it was not read. */
const struct ctl_file *ctl_files_find(const struct ctl_files *files, const char *path);

/* The text of a file; "" when it was not read or could not be. */
const char *ctl_files_text(const struct ctl_files *files, const char *path);

/* Frees them and leaves none. */
void ctl_files_fini(struct ctl_files *files);

#endif
