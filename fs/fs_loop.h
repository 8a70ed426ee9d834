/*
 * The loop thread's event loop: file descriptors with a callback each, work handed over by other threads, and
 * one deadline. Everything runs on the thread that calls fs_loop_run, except fs_loop_post.
 */
#ifndef FS_LOOP_H
#define FS_LOOP_H

#include "utils/ut_list.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A descriptor that is watched for input. Embedded in its owner. */
struct fs_source {
    int fd;
    void (*ready)(struct fs_source *source); /* may remove the source and free its owner */
};

/* Something another thread wants done on the loop thread. Embedded in its owner. */
struct fs_post {
    struct ut_list link;
    void (*run)(struct fs_post *post);
};

struct fs_loop {
    int epoll_fd;
    struct fs_source wake; /* an eventfd */
    pthread_mutex_t lock;  /* guards posts; a leaf: nothing is taken or called under it */
    struct ut_list posts;
    bool stopping;
    uint64_t deadline_ns; /* when `tick` is due; UINT64_MAX: never */
    void (*tick)(void *ctx, uint64_t now_ns);
    void (*settle)(void *ctx); /* after each batch of callbacks, before sleeping */
    /* Looks at what no descriptor tells of, every turn; returns how long the loop may sleep, nanoseconds.
     * NULL: there is nothing of the kind. */
    uint64_t (*poll)(void *ctx);
    void *ctx;
};

/* 0 or -errno. */
int fs_loop_init(struct fs_loop *loop);

/* 0 or -errno. The source must stay where it is until removed. */
int fs_loop_add(struct fs_loop *loop, struct fs_source *source);
void fs_loop_remove(struct fs_loop *loop, struct fs_source *source);

/* Any thread: runs the post on the loop thread, soon and once. */
void fs_loop_post(struct fs_loop *loop, struct fs_post *post);

/* `tick` is to be called no later than `when`. Earlier calls are harmless: tick says when to come again. */
void fs_loop_wake_at(struct fs_loop *loop, uint64_t when_ns);

/* Makes fs_loop_run return after the callbacks under way. */
void fs_loop_stop(struct fs_loop *loop);

/* Turns until stopped. */
void fs_loop_run(struct fs_loop *loop);

/* Waits for one event, or the deadline, and handles it. */
void fs_loop_turn(struct fs_loop *loop);

/* Runs what has been posted, without waiting. */
void fs_loop_drain(struct fs_loop *loop);

/* Closes what init opened. Nothing may be posted any more. */
void fs_loop_fini(struct fs_loop *loop);

#endif
