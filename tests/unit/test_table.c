/* Looking names up in tables. */
#include "utils/ut_table.h"

#include <criterion/criterion.h>

static const struct {
    const char *name;
    int value;
} entries[] = {{"one", 1}, {"two", 2}, {"", 3}, {"two", 4}};

static const char *const words[] = {"one", "two"};

Test(table, the_first_entry_of_a_name_is_found)
{
    cr_assert_eq(UT_TABLE_FIND(entries, "one"), 0);
    cr_assert_eq(UT_TABLE_FIND(entries, "two"), 1);
    cr_assert_eq(UT_TABLE_FIND(entries, ""), 2);
    cr_assert_eq(UT_TABLE_FIND(words, "two"), 1);
}

Test(table, no_entry_is_the_count)
{
    cr_assert_eq(UT_TABLE_COUNT(entries), 4);
    cr_assert_eq(UT_TABLE_FIND(entries, "on"), 4);
    cr_assert_eq(UT_TABLE_FIND(words, "twofold"), 2);
    cr_assert_eq(ut_table_find(words, 0, sizeof(words[0]), "one"), 0);
}
