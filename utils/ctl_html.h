/*
 * HTML and SVG, the parts that more than one place writes. What comes from a fabric goes through ctl_html_add
 * and nothing else.
 */
#ifndef CTL_HTML_H
#define CTL_HTML_H

#include "utils/ut_text.h"

/* Appends words as text or inside a quoted attribute: & < > " ' are written so that they stay themselves. */
void ctl_html_add(struct ut_text *out, const char *words);

/* The same, formatted, cut at 1 KiB. */
void ctl_html_addf(struct ut_text *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Appends <TAG>words</TAG>. */
void ctl_html_tag(struct ut_text *out, const char *tag, const char *words);

#endif
