/*
 * The configuration of a job: the keys of its `config` file, one table for parsing, defaults and display.
 */
#ifndef COLL_CONFIG_H
#define COLL_CONFIG_H

#include "reduce/coll_types.h"
#include "utils/ut_err.h"
#include "utils/ut_text.h"

#include <stdint.h>

#define COLL_WORLD_MAX 1024u
#define COLL_DEPTH_MAX 4096u
#define COLL_LINGER_NEVER UINT64_MAX

enum coll_verify { COLL_VERIFY_NONE, COLL_VERIFY_CRC32C };

struct coll_config {
    unsigned world; /* ranks; 0 while nobody has said */
    enum coll_dtype dtype;
    enum coll_op op;
    uint64_t timeout_ns;
    uint64_t size_bytes;  /* initial length of a buffer */
    unsigned depth;       /* queued operations a rank */
    enum coll_dtype wire; /* what f16 and bf16 travel as between nodes: COLL_F32, or one of themselves */
    enum coll_verify verify;
    uint64_t memory_bytes; /* quota of the job's buffers */
    uint64_t linger_ns;    /* COLL_LINGER_NEVER: kept for ever */
};

/* The defaults of the design; memory_bytes is the daemon's own limit. */
void coll_config_init(struct coll_config *config, uint64_t memory_bytes);

/*
 * Takes what one write() to `config` holds: lines "key=value" or "key = value"; blank lines and lines that
 * begin with '#' are skipped. All lines are taken or none. frozen: values may be repeated, not changed.
 * 0; -EINVAL (line not of the form, unknown key, bad value); -ERANGE (value out of bounds); -EBUSY (frozen
 * and different). err names line and key. config is untouched on failure.
 */
int coll_config_write(struct coll_config *config, const char *text, size_t len, bool frozen,
                      uint64_t memory_limit, struct ut_err *err);

/* Appends every key as a line that coll_config_write takes back; an unset world is a comment. */
void coll_config_render(const struct coll_config *config, struct ut_text *out);

#endif
