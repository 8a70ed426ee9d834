/*
 * Tables of things that have names: arrays whose entries begin with a `const char *`.
 */
#ifndef UT_TABLE_H
#define UT_TABLE_H

#include <stddef.h>

/* The index of the entry called `name` among `count` entries of `stride` bytes; `count` when there is none.
 */
size_t ut_table_find(const void *table, size_t count, size_t stride, const char *name);

#define UT_TABLE_COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* The same in an array: UT_TABLE_COUNT(table) when there is none. */
#define UT_TABLE_FIND(table, name) ut_table_find((table), UT_TABLE_COUNT(table), sizeof((table)[0]), (name))

#endif
