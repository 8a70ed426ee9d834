/*
 * A growing text: what every generated file of the mount is rendered into.
 *
 * Appending never fails visibly; when memory runs out the text remembers it, and the one caller that hands
 * the text on asks ut_text_failed(). Not thread safe: a text belongs to whoever holds it.
 */
#ifndef UT_TEXT_H
#define UT_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct ut_text {
    char *bytes; /* NUL-terminated when not NULL; owned */
    size_t len;  /* without the NUL */
    size_t cap;
    bool failed; /* an append found no memory; the text is incomplete */
};

/* Appends printf-formatted text. */
void ut_text_addf(struct ut_text *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Appends len bytes. */
void ut_text_add(struct ut_text *text, const void *bytes, size_t len);

/* Appends a string. This and the next two are several times as fast as printf: for texts of very many lines.
 */
static inline void ut_text_puts(struct ut_text *text, const char *string)
{
    ut_text_add(text, string, strlen(string));
}

/* Appends a number. */
void ut_text_u64(struct ut_text *text, uint64_t value);

/* Appends nanoseconds as seconds, with nine decimals. */
void ut_text_seconds(struct ut_text *text, uint64_t ns);

/* Appends one "name value" line, the form of every stats file. */
void ut_text_stat(struct ut_text *text, const char *name, unsigned long long value);

/* True when an append was lost: the text must not be shown as whole. */
bool ut_text_failed(const struct ut_text *text);

/* True when a string has printable ASCII characters and blanks only, so that a refusal can quote it. */
bool ut_text_is_plain(const char *string);

/* Frees the bytes and makes the text empty again. */
void ut_text_fini(struct ut_text *text);

#endif
