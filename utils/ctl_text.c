#include "utils/ctl_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_CHARS 96

bool ctl_text_wants_colour(enum ctl_colour colour)
{
    if (colour != CTL_COLOUR_AUTO)
        return colour == CTL_COLOUR_ALWAYS;
    const char *no_colour = getenv("NO_COLOR"); /* what users set for all programs (no-color.org) */
    return isatty(STDOUT_FILENO) && !(no_colour && *no_colour);
}

struct ctl_style ctl_style_of(enum ctl_colour colour)
{
    if (!ctl_text_wants_colour(colour))
        return (struct ctl_style){"", "", "", "", "", ""};
    return (struct ctl_style){"\033[1m", "\033[2m", "\033[31m", "\033[33m", "\033[32m", "\033[0m"};
}

int ctl_text_print(struct ut_text *text)
{
    int rc = ut_text_failed(text) ? -ENOMEM : 0;
    if (text->len && fwrite(text->bytes, 1, text->len, stdout) != text->len)
        rc = -EIO;
    if (fflush(stdout))
        rc = -EIO;
    ut_text_fini(text);
    return rc;
}

void ctl_text_wrap(struct ut_text *text, unsigned indent, const char *words)
{
    size_t column = 0;
    while (*words) {
        size_t len = strcspn(words, " ");
        if (column && column + 1 + len > LINE_CHARS) {
            ut_text_add(text, "\n", 1);
            column = 0;
        }
        if (!column) {
            ut_text_addf(text, "%*s%.*s", (int)indent, "", (int)len, words);
            column = indent + len;
        } else {
            ut_text_addf(text, " %.*s", (int)len, words);
            column += 1 + len;
        }
        words += len + strspn(words + len, " ");
    }
    ut_text_add(text, "\n", 1);
}
