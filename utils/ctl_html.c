#include "utils/ctl_html.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ctl_html_add(struct ut_text *out, const char *words)
{
    static const struct {
        char character;
        const char *written;
    } special[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    while (*words) {
        size_t plain = strcspn(words, "&<>\"'");
        ut_text_add(out, words, plain);
        words += plain;
        for (size_t i = 0; *words && i < sizeof special / sizeof special[0]; i++) {
            if (*words == special[i].character) {
                ut_text_addf(out, "%s", special[i].written);
                words++;
                break;
            }
        }
    }
}

void ctl_html_addf(struct ut_text *out, const char *fmt, ...)
{
    char words[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    ctl_html_add(out, words);
}

void ctl_html_tag(struct ut_text *out, const char *tag, const char *words)
{
    ut_text_addf(out, "<%s>", tag);
    ctl_html_add(out, words);
    ut_text_addf(out, "</%s>", tag);
}
