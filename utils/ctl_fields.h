/*
 * "name value" lines, the form of every stats file, put into the members of a struct by a table.
 */
#ifndef CTL_FIELDS_H
#define CTL_FIELDS_H

#include <stdbool.h>
#include <stddef.h>

struct ctl_field {
    const char *name;
    size_t offset;
    size_t size; /* 0: a double; else an array of so many chars */
};

#define CTL_FIELD_NUMBER(type, member)                    \
    {                                                     \
        .name = #member, .offset = offsetof(type, member) \
    }
#define CTL_FIELD_TEXT(type, member)                                                           \
    {                                                                                          \
        .name = #member, .offset = offsetof(type, member), .size = sizeof(((type *)0)->member) \
    }

/* Steps through a text: the next line in *line and *len without its end; false at the end of the text. */
bool ctl_fields_line(const char **text, const char **line, size_t *len);

/* A number that is not negative and not endless, and nothing behind it. False, and *out stays, when the word
 * is none. */
bool ctl_fields_number(const char *word, size_t len, double *out);

/* Copies a word, cut to size. */
void ctl_fields_copy(const char *word, size_t len, char *out, size_t size);

/* Puts the values of a text into *object; lines that are not in the table are left alone, as is the value "-"
 * of a number. */
void ctl_fields_take(const char *text, const struct ctl_field *table, size_t count, void *object);

#endif
