#include "utils/ctl_fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ctl_fields_line(const char **text, const char **line, size_t *len)
{
    if (!**text)
        return false;
    *line = *text;
    *len = strcspn(*text, "\n");
    *text += *len + ((*text)[*len] == '\n');
    return true;
}

bool ctl_fields_number(const char *word, size_t len, double *out)
{
    char copy[40], *end;
    if (!len || len >= sizeof copy || word[0] < '0' || word[0] > '9')
        return false;
    memcpy(copy, word, len);
    copy[len] = '\0';
    double number = strtod(copy, &end);
    if (*end || copy[strspn(copy, "0123456789.e+-")] || !isfinite(number))
        return false;
    *out = number;
    return true;
}

void ctl_fields_copy(const char *word, size_t len, char *out, size_t size)
{
    snprintf(out, size, "%.*s", (int)(len < size ? len : size), word);
}

void ctl_fields_take(const char *text, const struct ctl_field *table, size_t count, void *object)
{
    const char *line;
    for (size_t len; ctl_fields_line(&text, &line, &len);) {
        size_t name_len = strcspn(line, " \n");
        const char *value = line + name_len + (name_len < len);
        size_t value_len = len - (size_t)(value - line);
        for (size_t i = 0; i < count; i++) {
            char *at = (char *)object + table[i].offset;
            if (strlen(table[i].name) != name_len || strncmp(table[i].name, line, name_len))
                continue;
            if (table[i].size)
                ctl_fields_copy(value, value_len, at, table[i].size);
            else
                ctl_fields_number(value, value_len, (double *)(void *)at);
        }
    }
}
