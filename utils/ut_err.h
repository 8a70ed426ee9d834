/*
 * A sentence that goes with an error code: who is at fault, where, and what would be right.
 */
#ifndef UT_ERR_H
#define UT_ERR_H

struct ut_err {
    char text[256]; /* one line, no newline; empty when nothing was said */
};

/* Writes the sentence and returns rc, so that a refusal is one line: return ut_err_set(err, -EINVAL, ...).
 * Control characters that came from a client are shown as '?'. err may be NULL. */
int ut_err_set(struct ut_err *err, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The symbol of an error code, positive or negative ("ETIMEDOUT"); "ok" for 0. Never NULL. */
const char *ut_err_name(int rc);

#endif
