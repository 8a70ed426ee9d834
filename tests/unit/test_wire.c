/* Control messages as bytes. */
#include "reduce/coll_wire.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static struct coll_out out;

static struct coll_in reading(void)
{
    return (struct coll_in){.at = out.bytes, .end = out.bytes + out.len};
}

static void set_up(void)
{
    out = (struct coll_out){.len = 0};
}

TestSuite(wire, .init = set_up);

Test(wire, what_is_written_is_read_again)
{
    char text[20];
    coll_put(&out, 0xfe, 1);
    coll_put(&out, 0xfedc, 2);
    coll_put(&out, 0xfedcba98, 4);
    coll_put(&out, UINT64_MAX - 1, 8);
    coll_put_text(&out, "tag.1");
    coll_put_text(&out, "");
    struct coll_in in = reading();
    cr_assert_eq(coll_get(&in, 1), 0xfeu);
    cr_assert_eq(coll_get(&in, 2), 0xfedcu);
    cr_assert_eq(coll_get(&in, 4), 0xfedcba98u);
    cr_assert_eq(coll_get(&in, 8), UINT64_MAX - 1);
    coll_get_text(&in, text, sizeof(text));
    cr_assert_str_eq(text, "tag.1");
    coll_get_text(&in, text, sizeof(text));
    cr_assert_str_eq(text, "");
    cr_assert(!in.short_ && in.at == in.end && !out.full);
}

Test(wire, numbers_are_little_endian_and_packed)
{
    coll_put(&out, 0x0102, 2);
    coll_put(&out, 0x03, 1);
    cr_assert_eq(out.len, 3u);
    cr_assert(out.bytes[0] == 2 && out.bytes[1] == 1 && out.bytes[2] == 3);
}

/* The bytes are on the heap and end where the message ends, so that a sanitizer sees a read beyond it. */
Test(wire, a_message_cut_anywhere_is_short_and_gives_zeros_or_what_was_whole)
{
    coll_put(&out, 7, 8);
    coll_put_text(&out, "abcdef");
    coll_put(&out, 9, 4);
    for (uint32_t len = 0; len < out.len; len++) {
        uint8_t *copy = malloc(len ? len : 1);
        char text[8] = "garbage";
        memcpy(copy, out.bytes, len);
        struct coll_in in = {.at = copy, .end = copy + len};
        uint64_t first = coll_get(&in, 8);
        cr_assert_eq(first, len >= 8 ? 7u : 0u);
        coll_get_text(&in, text, sizeof(text));
        cr_assert_str_eq(text, len >= 15 ? "abcdef" : "");
        cr_assert_eq(coll_get(&in, 4), 0u);
        cr_assert(in.short_ && in.at == in.end);
        free(copy);
    }
}

Test(wire, a_length_that_lies_reads_nothing)
{
    char text[300];
    coll_put(&out, 255, 1);
    coll_put_bytes(&out, "abc", 3);
    struct coll_in in = reading();
    coll_get_text(&in, text, sizeof(text));
    cr_assert_str_eq(text, "");
    cr_assert(in.short_);
}

Test(wire, a_text_is_cut_to_its_place_and_the_rest_is_passed_over)
{
    char text[4];
    coll_put_text(&out, "abcdef");
    coll_put(&out, 5, 1);
    struct coll_in in = reading();
    coll_get_text(&in, text, sizeof(text));
    cr_assert_str_eq(text, "abc");
    cr_assert_eq(coll_get(&in, 1), 5u);
    cr_assert(!in.short_);
}

Test(wire, what_a_terminal_would_obey_becomes_question_marks)
{
    char text[16];
    coll_put(&out, 6, 1);
    coll_put_bytes(&out, "a\n\x1b\0\xff~", 6);
    struct coll_in in = reading();
    coll_get_text(&in, text, sizeof(text));
    cr_assert_str_eq(text, "a????~");
}

Test(wire, a_full_message_says_so_and_stays_within_its_bytes)
{
    static const uint8_t block[1000];
    for (int i = 0; i < 4; i++)
        coll_put_bytes(&out, block, sizeof(block));
    cr_assert(!out.full);
    coll_put_bytes(&out, block, 97);
    cr_assert(out.full && out.len == 4000);
}

Test(wire, a_text_over_255_bytes_is_cut_when_written)
{
    char long_text[400], text[400];
    memset(long_text, 'x', sizeof(long_text));
    long_text[399] = '\0';
    coll_put_text(&out, long_text);
    struct coll_in in = reading();
    coll_get_text(&in, text, sizeof(text));
    cr_assert_eq(strlen(text), 255u);
}
