#include "utils/ut_table.h"

#include <string.h>

size_t ut_table_find(const void *table, size_t count, size_t stride, const char *name)
{
    size_t idx = 0;
    while (idx < count) {
        const char *const *entry = (const void *)((const char *)table + idx * stride);
        if (strcmp(*entry, name) == 0)
            break;
        idx++;
    }
    return idx;
}
