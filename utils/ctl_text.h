/*
 * Text for people: colours where a terminal shows them, and output that notices a full disk.
 */
#ifndef CTL_TEXT_H
#define CTL_TEXT_H

#include "utils/ctl_opts.h"
#include "utils/ut_text.h"

/* Escape sequences, or empty strings. */
struct ctl_style {
    const char *bold, *dim, *red, *yellow, *green, *off;
};

/* Whether standard output gets colours: when asked for, or on a terminal whose user has not set NO_COLOR. */
bool ctl_text_wants_colour(enum ctl_colour colour);

/* The style for standard output. */
struct ctl_style ctl_style_of(enum ctl_colour colour);

/* Writes the text to standard output and frees it. 0, -ENOMEM when the text is incomplete, or -EIO. */
int ctl_text_print(struct ut_text *text);

/* Appends words broken into lines of at most 96 characters, each behind indent blanks. */
void ctl_text_wrap(struct ut_text *text, unsigned indent, const char *words);

#endif
