/* Texts that grow. */
#include "utils/ut_clock.h"
#include "utils/ut_text.h"

#include <criterion/criterion.h>

static const char *number(uint64_t value, void (*add)(struct ut_text *, uint64_t))
{
    static struct ut_text text;
    ut_text_fini(&text);
    add(&text, value);
    return text.bytes;
}

Test(text, numbers_are_written_as_printf_writes_them)
{
    cr_assert_str_eq(number(0, ut_text_u64), "0");
    cr_assert_str_eq(number(1009, ut_text_u64), "1009");
    cr_assert_str_eq(number(UINT64_MAX, ut_text_u64), "18446744073709551615");
}

Test(text, seconds_have_nine_decimals)
{
    cr_assert_str_eq(number(0, ut_text_seconds), "0.000000000");
    cr_assert_str_eq(number(1, ut_text_seconds), "0.000000001");
    cr_assert_str_eq(number(12 * UT_NS_PER_S + 30 * UT_NS_PER_MS, ut_text_seconds), "12.030000000");
    cr_assert_str_eq(number(UINT64_MAX, ut_text_seconds), "18446744073.709551615");
}
