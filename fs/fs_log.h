/*
 * The daemon's log, for the operator: standard error in the foreground, the system's log (the socket of
 * syslog(3)) from the background.
 *
 * Who reads it may have stopped: a pipe is full, a terminal held, a log daemon hangs. The loop thread must
 * not wait for that, as stdio and syslog(3) would. A line that is not taken at once is left out, and the next
 * one that is taken comes after a word of how many were; `events` has them all.
 *
 * Threads: the loop thread only.
 */
#ifndef FS_LOG_H
#define FS_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fs_log {
    int fd; /* standard error, or a datagram socket; -1: neither */
    bool is_system;
    uint64_t left_out; /* lines, not told of yet */
};

/* Without a socket for the system's log nothing is logged. */
void fs_log_init(struct fs_log *log, bool foreground);
void fs_log_fini(struct fs_log *log);

/* Logs one line, which ends with a newline; priority: LOG_ERR and so on. */
void fs_log_line(struct fs_log *log, int priority, const char *line, size_t len);

#endif
