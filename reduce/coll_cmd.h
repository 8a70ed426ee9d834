/*
 * A command: the line that a client writes to a trigger file.
 */
#ifndef COLL_CMD_H
#define COLL_CMD_H

#include "reduce/coll_config.h"

#define COLL_CMD_BYTES_MAX 4095u
#define COLL_TAG_BYTES 33u /* 32 characters and the NUL */

struct coll_cmd {
    enum coll_kind kind;
    enum coll_dtype dtype;
    enum coll_op op;
    uint64_t offset; /* bytes into this rank's own buffer */
    uint64_t count;  /* elements */
    unsigned root;   /* broadcast: the rank */
    char tag[COLL_TAG_BYTES];
};

/*
 * Reads the line written to the trigger of `kind`. What it leaves out comes from the job's config; no count
 * means up to the end of the buffer of buf_bytes.
 * 0; -EINVAL (not a command: key, value, several lines, too long, not a multiple of the element); -ERANGE
 * (outside the buffer). err has the sentence; out is untouched on failure.
 */
int coll_cmd_parse(enum coll_kind kind, const char *text, size_t len, const struct coll_config *config,
                   uint64_t buf_bytes, struct coll_cmd *out, struct ut_err *err);

/* True when the word can name a tag: 1 to 32 of A-Z a-z 0-9 . _ -. */
bool coll_cmd_is_tag(const char *word);

/* Bytes of the range the command works on. */
uint64_t coll_cmd_bytes(const struct coll_cmd *cmd);

/* True when two ranks ask for the same operation: collective, dtype, op, count and root, as far as they
 * matter to the collective. */
bool coll_cmd_agree(const struct coll_cmd *a, const struct coll_cmd *b);

/* True when one rank asks for the very same again, its own offset included. */
bool coll_cmd_same(const struct coll_cmd *a, const struct coll_cmd *b);

/* What the operation does, in the words of a result line: "sum", or the collective's name where no
 * operation takes part. */
const char *coll_cmd_op_word(const struct coll_cmd *cmd);

/* Writes the fingerprint in words ("allreduce f32 sum count=1024"), at most len bytes with the NUL. */
void coll_cmd_describe(const struct coll_cmd *cmd, char *out, size_t len);

#endif
