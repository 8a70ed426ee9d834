/* The line that a client writes to a trigger file. */
#include "reduce/coll_cmd.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct coll_config config;
static struct coll_cmd cmd;
static struct ut_err err;

static void set_up(void)
{
    coll_config_init(&config, 1 << 30);
    config.world = 4;
}

TestSuite(cmd, .init = set_up);

/* The bytes are on the heap and end where the write ends, so that a sanitizer sees a read beyond it. */
static int parse_bytes(enum coll_kind kind, const void *bytes, size_t len, uint64_t buf_bytes)
{
    struct coll_cmd before = cmd;
    char *copy = malloc(len ? len : 1);
    memcpy(copy, bytes, len);
    err.text[0] = '\0';
    int rc = coll_cmd_parse(kind, copy, len, &config, buf_bytes, &cmd, &err);
    free(copy);
    cr_assert_eq(rc == 0, err.text[0] == '\0', "a refusal has a sentence, a success none");
    cr_assert(!rc || memcmp(&before, &cmd, sizeof(cmd)) == 0, "untouched on failure");
    return rc;
}

static int parse_for(enum coll_kind kind, const char *line, uint64_t buf_bytes)
{
    return parse_bytes(kind, line, strlen(line), buf_bytes);
}

static int parse(const char *line)
{
    return parse_for(COLL_ALLREDUCE, line, 4096);
}

#define assert_says(part) cr_assert(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text)

Test(cmd, an_empty_line_is_the_whole_buffer_with_the_job_s_dtype_and_op)
{
    static const char *const lines[] = {"", "\n", " ", " \t \n", "\r\n"};
    config.dtype = COLL_I64;
    config.op = COLL_MAX;
    for (unsigned i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        cr_assert_eq(parse(lines[i]), 0);
        cr_assert(cmd.kind == COLL_ALLREDUCE && cmd.dtype == COLL_I64 && cmd.op == COLL_MAX);
        cr_assert(cmd.offset == 0 && cmd.count == 512 && cmd.root == 0 && !cmd.tag[0]);
        cr_assert_eq(coll_cmd_bytes(&cmd), 4096u);
    }
}

Test(cmd, words_come_in_any_order_between_any_blanks)
{
    cr_assert_eq(
        parse_for(COLL_BROADCAST, "\t tag=layer.1_a-B  root=3 count=5\top=min offset=16 dtype=bf16 \n", 4096),
        0);
    cr_assert(cmd.kind == COLL_BROADCAST && cmd.dtype == COLL_BF16 && cmd.op == COLL_MIN);
    cr_assert(cmd.offset == 16 && cmd.count == 5 && cmd.root == 3);
    cr_assert_str_eq(cmd.tag, "layer.1_a-B");
}

Test(cmd, every_dtype_and_op_has_its_word)
{
    for (unsigned i = 0; i < COLL_DTYPE_COUNT; i++) {
        char line[32];
        snprintf(line, sizeof(line), "dtype=%s", coll_dtype_name((enum coll_dtype)i));
        cr_assert_eq(parse(line), 0);
        cr_assert_eq(cmd.dtype, i);
    }
    for (unsigned i = 0; i < COLL_OP_COUNT; i++) {
        char line[32];
        snprintf(line, sizeof(line), "dtype=u8 op=%s", coll_op_name((enum coll_op)i));
        cr_assert_eq(parse(line), 0);
        cr_assert_eq(cmd.op, i);
    }
}

Test(cmd, what_is_no_command_is_einval)
{
    static const char *const bad[] = {
        "count",
        "=",
        "=4",
        "count=",
        "count=4 4",
        "Count=4",
        "count =4",
        "count= 4",
        "count=-1",
        "count=+1",
        "count=0x10",
        "count=4K",
        "count=1e3",
        "count=4,",
        "count=4;",
        "count=4 count=4",
        "op=sum op=sum",
        "tag=a tag=b",
        "op=SUM",
        "op=mean",
        "op=",
        "dtype=float",
        "dtype=F32",
        "dtype=",
        "offset=",
        "offset=-4",
        "tag=",
        "tag=a/b",
        "tag=a=b",
        "tag=\xc3\xa4",
        "tag=123456789012345678901234567890123",
        "size=4",
        "world=2",
        "count=4\n\n",
        "\n\n",
        "count=4\ncount=8",
        "\ncount=4",
        "count=4\r\n8",
        "count=\xff",
        "\x01",
        "\x7f",
        "caf\xc3\xa9=1",
        "#",
    };
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(parse(bad[i]), -EINVAL, "\"%s\"", bad[i]);
}

Test(cmd, a_nul_byte_is_no_text)
{
    cr_assert_eq(parse_bytes(COLL_ALLREDUCE, "count=4\0", 8, 4096), -EINVAL);
    cr_assert_eq(parse_bytes(COLL_ALLREDUCE, "\0", 1, 4096), -EINVAL);
}

Test(cmd, a_line_may_have_4095_bytes_and_no_more)
{
    char line[4097];
    memset(line, ' ', sizeof(line));
    memcpy(line, "count=4", 7);
    cr_assert_eq(parse_bytes(COLL_ALLREDUCE, line, 4095, 4096), 0);
    cr_assert_eq(cmd.count, 4u);
    cr_assert_eq(parse_bytes(COLL_ALLREDUCE, line, 4096, 4096), -EINVAL);
    assert_says("4095");
    line[4095] = '\n';
    cr_assert_eq(parse_bytes(COLL_ALLREDUCE, line, 4096, 4096), -EINVAL);
}

Test(cmd, a_tag_has_at_most_32_characters)
{
    cr_assert_eq(parse("tag=abcdefghijklmnopqrstuvwxyz012345"), 0);
    cr_assert_eq(strlen(cmd.tag), 32u);
    cr_assert_eq(parse("tag=abcdefghijklmnopqrstuvwxyz0123456"), -EINVAL);
}

Test(cmd, a_count_without_a_number_goes_from_the_offset_to_the_end)
{
    cr_assert_eq(parse("offset=4092"), 0);
    cr_assert_eq(cmd.count, 1u);
    cr_assert_eq(parse("offset=4096"), 0);
    cr_assert_eq(cmd.count, 0u);
}

Test(cmd, a_buffer_that_is_no_multiple_of_the_element_needs_a_count)
{
    cr_assert_eq(parse_for(COLL_ALLREDUCE, "", 4095), -EINVAL);
    cr_assert_eq(parse_for(COLL_ALLREDUCE, "offset=8", 10), -EINVAL);
    cr_assert_eq(parse_for(COLL_ALLREDUCE, "count=1023", 4095), 0);
    cr_assert_eq(parse_for(COLL_ALLREDUCE, "count=1024", 4095), -ERANGE);
    cr_assert_eq(parse_for(COLL_ALLREDUCE, "dtype=u8", 4095), 0);
}

Test(cmd, an_offset_is_a_multiple_of_the_element)
{
    cr_assert_eq(parse("offset=2 count=1"), -EINVAL);
    assert_says("no multiple of f32's 4 bytes");
    cr_assert_eq(parse("offset=2 count=1 dtype=f16"), 0);
    cr_assert_eq(parse("offset=4 count=1 dtype=f64"), -EINVAL);
}

Test(cmd, what_lies_outside_the_buffer_is_erange)
{
    static const char *const outside[] = {
        "offset=4100",
        "offset=4100 count=0",
        "count=1025",
        "offset=4096 count=1",
        "offset=8 count=1023",
        "count=18446744073709551615",
        "count=4611686018427387905", /* times 4 is 4 in 64 bits */
        "offset=18446744073709551612",
        "offset=18446744073709551612 count=2",
        "count=18446744073709551616",
        "offset=99999999999999999999999999",
    };
    for (unsigned i = 0; i < sizeof(outside) / sizeof(outside[0]); i++)
        cr_assert_eq(parse(outside[i]), -ERANGE, "\"%s\"", outside[i]);
    cr_assert_eq(parse("offset=8 count=1022"), 0);
    cr_assert_eq(parse("offset=4096 count=0"), 0);
    cr_assert_eq(parse_for(COLL_ALLREDUCE, "", 0), 0);
    cr_assert_eq(cmd.count, 0u);
}

Test(cmd, a_root_is_a_rank_and_belongs_to_broadcast)
{
    cr_assert_eq(parse_for(COLL_BROADCAST, "root=3", 4096), 0);
    cr_assert_eq(parse_for(COLL_BROADCAST, "root=4", 4096), -EINVAL);
    cr_assert_eq(parse_for(COLL_BROADCAST, "root=4294967296", 4096), -EINVAL);
    cr_assert_eq(parse_for(COLL_BROADCAST, "root=x", 4096), -EINVAL);
    cr_assert_eq(parse_for(COLL_ALLREDUCE, "root=0", 4096), -EINVAL);
    assert_says("belongs to broadcast");
}

Test(cmd, a_barrier_has_no_range)
{
    cr_assert_eq(parse_for(COLL_BARRIER, "tag=x", 4095), 0);
    cr_assert(cmd.count == 0 && coll_cmd_bytes(&cmd) == 0);
    cr_assert_eq(parse_for(COLL_BARRIER, "count=0", 4096), -EINVAL);
    cr_assert_eq(parse_for(COLL_BARRIER, "offset=0", 4096), -EINVAL);
}

Test(cmd, bits_combine_integers_only_where_something_is_combined)
{
    cr_assert_eq(parse("op=band dtype=f32"), -EINVAL);
    assert_says("band combines integers, not f32");
    cr_assert_eq(parse("op=bxor dtype=bf16"), -EINVAL);
    cr_assert_eq(parse("op=bor dtype=i32"), 0);
    cr_assert_eq(parse_for(COLL_REDUCE_SCATTER, "op=bor", 4096), -EINVAL);
    cr_assert_eq(parse_for(COLL_ALLGATHER, "op=bor", 4096), 0);
    config.op = COLL_BAND;
    config.dtype = COLL_U64;
    cr_assert_eq(parse(""), 0);
    cr_assert_eq(parse("dtype=f64"), -EINVAL);
}

Test(cmd, a_refusal_names_the_word_and_what_would_be_right)
{
    cr_assert_eq(parse("op=mean"), -EINVAL);
    cr_assert_str_eq(err.text, "op=\"mean\" should be one of sum avg min max prod band bor bxor");
    cr_assert_eq(parse("colour=red"), -EINVAL);
    cr_assert_str_eq(err.text, "unknown key \"colour\"; there are dtype op offset count root tag");
    cr_assert_eq(parse("hello"), -EINVAL);
    cr_assert_str_eq(err.text, "\"hello\" is not key=value");
    cr_assert_eq(parse("count=1 count=2"), -EINVAL);
    cr_assert_str_eq(err.text, "count is given twice");
}

Test(cmd, a_refusal_is_plain_text_whatever_was_written)
{
    char line[3] = "=";
    for (unsigned byte = 1; byte < 256; byte++) {
        line[0] = 'a';
        line[1] = (char)byte;
        line[2] = '\0';
        cr_assert_eq(parse(line), -EINVAL);
        for (const char *c = err.text; *c; c++)
            cr_assert(*c >= ' ' && *c < 0x7f, "byte %u", byte);
    }
}

static bool agree(enum coll_kind kind_a, const char *a, enum coll_kind kind_b, const char *b)
{
    struct coll_cmd first;
    cr_assert_eq(parse_for(kind_a, a, 4096), 0);
    first = cmd;
    cr_assert_eq(parse_for(kind_b, b, 4096), 0);
    cr_assert_eq(coll_cmd_agree(&first, &cmd), coll_cmd_agree(&cmd, &first));
    return coll_cmd_agree(&first, &cmd);
}

Test(cmd, commands_agree_in_what_matters_to_their_collective)
{
    cr_assert(agree(COLL_ALLREDUCE, "offset=0 count=4", COLL_ALLREDUCE, "offset=64 count=4"));
    cr_assert(!agree(COLL_ALLREDUCE, "count=4", COLL_ALLREDUCE, "count=5"));
    cr_assert(!agree(COLL_ALLREDUCE, "dtype=u32", COLL_ALLREDUCE, "dtype=i32"));
    cr_assert(!agree(COLL_ALLREDUCE, "op=sum", COLL_ALLREDUCE, "op=avg"));
    cr_assert(!agree(COLL_ALLREDUCE, "", COLL_REDUCE_SCATTER, ""));
    cr_assert(!agree(COLL_BROADCAST, "root=1", COLL_BROADCAST, "root=2"));
    cr_assert(agree(COLL_BROADCAST, "op=sum", COLL_BROADCAST, "op=avg"));
    cr_assert(agree(COLL_BARRIER, "dtype=u8", COLL_BARRIER, "dtype=f64"));
}

Test(cmd, the_same_command_has_the_same_offset_and_tag)
{
    cr_assert_eq(parse("offset=4 count=4 tag=a"), 0);
    struct coll_cmd first = cmd;
    cr_assert(coll_cmd_same(&first, &cmd));
    cr_assert_eq(parse("offset=8 count=4 tag=a"), 0);
    cr_assert(!coll_cmd_same(&first, &cmd));
    cr_assert_eq(parse("offset=4 count=4"), 0);
    cr_assert(!coll_cmd_same(&first, &cmd));
}

static const char *describe(enum coll_kind kind, const char *line, char out[96])
{
    cr_assert_eq(parse_for(kind, line, 4096), 0);
    coll_cmd_describe(&cmd, out, 96);
    return out;
}

Test(cmd, is_described_in_words)
{
    char out[96];
    cr_assert_str_eq(describe(COLL_ALLREDUCE, "count=8", out), "allreduce f32 sum count=8");
    cr_assert_str_eq(describe(COLL_BROADCAST, "count=8 root=2", out), "broadcast f32 count=8 root=2");
    cr_assert_str_eq(describe(COLL_ALLGATHER, "count=8", out), "allgather f32 count=8");
    cr_assert_str_eq(describe(COLL_BARRIER, "", out), "barrier");
    cr_assert_str_eq(coll_cmd_op_word(&cmd), "barrier");
    char small[8];
    coll_cmd_describe(&cmd, small, 4);
    cr_assert_str_eq(small, "bar");
}
