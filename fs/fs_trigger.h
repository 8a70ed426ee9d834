/*
 * Trigger files: a write is a command, and the request waits until the operation is over, or is queued and
 * its result read back as a line.
 *
 * Threads: the loop thread only. A waiting request is parked here and answered by whoever ends the operation.
 */
#ifndef FS_TRIGGER_H
#define FS_TRIGGER_H

#include "fs/fs_rank.h"

/* Tells everybody who polls the rank's triggers to look again. */
void fs_trigger_wake(struct fs_rank *rank);

/* coll_host.answer: the request that `ask` stands for is over. */
void fs_trigger_answer(void *ctx, struct coll_ask *ask, const struct coll_why *why, uint64_t now);

/* Whether a process of the rank that asked waits now, for this or another result; else it goes on with its
 * own work. */
bool fs_trigger_waits(const struct coll_ask *ask);

/* Answers the requests whose wait a signal has interrupted. After each batch of requests. */
void fs_trigger_settle_interrupted(struct fs *fs);

/* The rank is gone: readers that wait are told so. */
void fs_trigger_gone(struct fs_rank *rank, int rc);

/* Frees open triggers that nobody has closed, when the rank is freed, and what was kept for reuse. */
void fs_trigger_free_handles(struct fs_rank *rank);
void fs_trigger_fini(struct fs *fs);

extern const struct fs_kind fs_trigger_kind;

#endif
