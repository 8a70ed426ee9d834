/*
 * The log that operators follow: events, one a line. It keeps the last FS_EVENTS_BYTES; offsets count from
 * the beginning of time, so that the file only ever grows and `tail -f` works.
 *
 * Threads: the loop thread only.
 */
#ifndef FS_EVENTS_H
#define FS_EVENTS_H

#include "utils/ut_list.h"

#include <stdint.h>
#include <sys/types.h>

#define FS_EVENTS_BYTES (UINT64_C(1) << 20)

struct fs;
struct fs_node;

/* How many users whose jobs have lately had events are told apart; more share the places. */
#define FS_EVENTS_USERS 16u

/* Whose jobs' events are counted. */
struct fs_events_user {
    uid_t uid;
    uint64_t even_ns;  /* when what was added has been spread as thin as is let through for long */
    uint64_t left_out; /* lines, not told of yet */
    uint64_t tell_ns;  /* when they are */
};

struct fs_events {
    struct fs_events_user users[FS_EVENTS_USERS];
    char *bytes;          /* ring of FS_EVENTS_BYTES */
    uint64_t total;       /* bytes ever written */
    uint64_t first;       /* offset of the oldest line that is still whole */
    struct ut_list opens; /* struct fs_events_open.link */
};

/* 0 or -ENOMEM. */
int fs_events_init(struct fs_events *events);
void fs_events_fini(struct fs_events *events);

/* Adds a line "TIME SEVERITY OBJECT TEXT" and wakes who polls for it. */
void fs_events_add(struct fs *fs, const char *severity, const char *object, const char *text);

/* The same about a job of the user, who could add lines without end and push out everybody else's: some
 * thousand at once, and some in a second for ever, are let through; then a line says how many were not. */
void fs_events_add_for(struct fs *fs, uid_t uid, const char *severity, const char *object, const char *text);

/* Tells of lines that were left out. */
void fs_events_tick(struct fs *fs, uint64_t now);

extern const struct fs_kind fs_events_kind;

#endif
