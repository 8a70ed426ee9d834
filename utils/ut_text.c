#include "utils/ut_text.h"

#include "utils/ut_clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(struct ut_text *text, size_t more)
{
    size_t need = text->len + more + 1;
    if (need <= text->cap)
        return true;
    size_t cap = text->cap ? text->cap : 256;
    while (cap < need)
        cap *= 2;
    char *bytes = realloc(text->bytes, cap);
    if (!bytes) {
        text->failed = true;
        return false;
    }
    text->bytes = bytes;
    text->cap = cap;
    return true;
}

void ut_text_add(struct ut_text *text, const void *bytes, size_t len)
{
    if (!reserve(text, len))
        return;
    memcpy(text->bytes + text->len, bytes, len);
    text->len += len;
    text->bytes[text->len] = '\0';
}

/* Writes at least `least` digits. */
static void add_digits(struct ut_text *text, uint64_t value, unsigned least)
{
    char digits[20];
    unsigned at = sizeof(digits);
    for (; value || at > sizeof(digits) - least; value /= 10)
        digits[--at] = (char)('0' + value % 10);
    ut_text_add(text, digits + at, sizeof(digits) - at);
}

void ut_text_u64(struct ut_text *text, uint64_t value)
{
    add_digits(text, value, 1);
}

void ut_text_seconds(struct ut_text *text, uint64_t ns)
{
    add_digits(text, ns / UT_NS_PER_S, 1);
    ut_text_add(text, ".", 1);
    add_digits(text, ns % UT_NS_PER_S, 9);
}

void ut_text_addf(struct ut_text *text, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    size_t room = text->cap - text->len;
    int len = vsnprintf(room ? text->bytes + text->len : NULL, room, fmt, args);
    va_end(args);
    bool fits = len >= 0 && ((size_t)len < room || reserve(text, (size_t)len));
    if (fits && (size_t)len >= room)
        vsnprintf(text->bytes + text->len, (size_t)len + 1, fmt, again);
    if (fits)
        text->len += (size_t)len;
    else if (room)
        text->bytes[text->len] = '\0';
    va_end(again);
}

void ut_text_stat(struct ut_text *text, const char *name, unsigned long long value)
{
    ut_text_addf(text, "%s %llu\n", name, value);
}

bool ut_text_failed(const struct ut_text *text)
{
    return text->failed;
}

bool ut_text_is_plain(const char *string)
{
    for (; *string; string++) {
        if ((*string < ' ' || *string > '~') && *string != '\t' && *string != '\r')
            return false;
    }
    return true;
}

void ut_text_fini(struct ut_text *text)
{
    free(text->bytes);
    *text = (struct ut_text){0};
}
