/* The configuration of a job: what a write to `config` may say. */
#include "reduce/coll_config.h"
#include "utils/ut_clock.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT (UINT64_C(8) << 30)

static struct coll_config config;
static struct ut_err err;

static void set_up(void)
{
    coll_config_init(&config, LIMIT);
}

TestSuite(config, .init = set_up);

static int write_bytes(const void *bytes, size_t len, bool frozen)
{
    struct coll_config before = config;
    char *copy = malloc(len ? len : 1);
    memcpy(copy, bytes, len);
    err.text[0] = '\0';
    int rc = coll_config_write(&config, copy, len, frozen, LIMIT, &err);
    free(copy);
    cr_assert_eq(rc == 0, err.text[0] == '\0', "a refusal has a sentence, a success none");
    cr_assert(!rc || memcmp(&before, &config, sizeof(config)) == 0, "untouched on failure");
    return rc;
}

static int write_text(const char *text)
{
    return write_bytes(text, strlen(text), false);
}

static int write_frozen(const char *text)
{
    return write_bytes(text, strlen(text), true);
}

#define assert_says(part) cr_assert(strstr(err.text, part), "\"%s\" is not in \"%s\"", part, err.text)

Test(config, has_the_defaults_of_the_interface)
{
    cr_assert(config.world == 0 && config.dtype == COLL_F32 && config.op == COLL_SUM);
    cr_assert(config.timeout_ns == 30 * UT_NS_PER_S && config.size_bytes == 0 && config.depth == 64);
    cr_assert(config.wire == COLL_F32 && config.verify == COLL_VERIFY_NONE && config.memory_bytes == LIMIT);
    cr_assert_eq(config.linger_ns, 3600 * UT_NS_PER_S);
}

Test(config, takes_every_key)
{
    cr_assert_eq(write_text("world=4\ndtype=bf16\nop=avg\ntimeout=0.5\nsize=64M\ndepth=8\nwire=bf16\n"
                            "verify=crc32c\nmemory=1G\nlinger=never\n"),
                 0);
    cr_assert(config.world == 4 && config.dtype == COLL_BF16 && config.op == COLL_AVG && config.depth == 8);
    cr_assert(config.timeout_ns == UT_NS_PER_S / 2 && config.size_bytes == 64 << 20);
    cr_assert(config.wire == COLL_BF16 && config.verify == COLL_VERIFY_CRC32C);
    cr_assert(config.memory_bytes == 1 << 30 && config.linger_ns == COLL_LINGER_NEVER);
}

Test(config, assigns_and_never_replaces)
{
    cr_assert_eq(write_text("world=4\n"), 0);
    cr_assert_eq(write_text("op=max"), 0);
    cr_assert_eq(write_text(""), 0);
    cr_assert(config.world == 4 && config.op == COLL_MAX);
}

Test(config, blanks_blank_lines_and_comments_do_not_matter)
{
    cr_assert_eq(write_text("\n  world  =\t4  \r\n\n# world = 5\n   # \xc3\xa4\n\top =max\n\n"), 0);
    cr_assert(config.world == 4 && config.op == COLL_MAX);
}

Test(config, a_write_is_taken_whole_or_not_at_all)
{
    cr_assert_eq(write_text("world=4\nop=max\ndepth=none\n"), -EINVAL);
    cr_assert_str_eq(err.text, "line 3: depth = \"none\" should be a number of operations from 1 to 4096");
    cr_assert(config.world == 0 && config.op == COLL_SUM);
}

Test(config, what_is_no_assignment_is_einval)
{
    static const char *const bad[] = {
        "world",
        "=",
        "=4",
        "world=",
        "World=4",
        "worlds=4",
        "world 4",
        "world=four",
        "world=-1",
        "world=4 5",
        "world==4",
        "dtype=f8",
        "op=mean",
        "timeout=",
        "timeout=-1",
        "timeout=x",
        "timeout=1s",
        "timeout=.5",
        "timeout=1.2.3",
        "timeout=inf",
        "timeout=nan",
        "size=1X",
        "size=-1",
        "size=1.5G",
        "size=K",
        "size=1KK",
        "depth=",
        "wire=f64",
        "wire=i32",
        "verify=md5",
        "verify=",
        "linger=",
        "linger=Never",
        "linger=-1",
        "world=4;op=max",
        "\x01=1",
        "world=\xff",
        "caf\xc3\xa9=1",
    };
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(write_text(bad[i]), -EINVAL, "\"%s\"", bad[i]);
    cr_assert_eq(write_bytes("world=4\0", 8, false), -EINVAL);
}

Test(config, what_is_out_of_bounds_is_erange)
{
    static const char *const bad[] = {
        "world=0",
        "world=1025",
        "depth=0",
        "depth=4097",
        "timeout=0",
        "timeout=0.0009",
        "linger=0",
        "timeout=1000000001",
        "memory=0",
        "memory=9G",
        "world=4294967297",
        "size=9G",
        "size=16E",
        "memory=8G\nsize=8193M",
        "world=99999999999999999999",
        "size=99999999999999999999",
        "size=16777216T",
        "memory=1M\nsize=2M",
    };
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int expected = strstr(bad[i], "16E") ? -EINVAL : -ERANGE; /* E is no unit of ours */
        cr_assert_eq(write_text(bad[i]), expected, "\"%s\"", bad[i]);
    }
    cr_assert_eq(write_text("world=1024\ndepth=4096\ntimeout=0.001\nlinger=0.001\nmemory=8G\nsize=8G"), 0);
    cr_assert_eq(write_text("world=1\ndepth=1\ntimeout=1000000000\n"), 0);
}

Test(config, size_and_memory_are_compared_after_the_whole_write)
{
    cr_assert_eq(write_text("size=2M\nmemory=1M"), -ERANGE);
    cr_assert_eq(write_text("size=2M\nmemory=2M"), 0);
    cr_assert_eq(write_text("memory=1M"), -ERANGE);
    assert_says("above the job's memory");
    cr_assert_eq(write_text("memory=1M\nsize=0"), 0);
}

Test(config, sizes_take_units)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"size=7", 7},        {"size=1K", 1 << 10},   {"size=1k", 1 << 10},  {"size=3M", 3 << 20},
                 {"size=1G", 1 << 30}, {"size=1GiB", 1 << 30}, {"size=1KB", 1 << 10}, {"size=12B", 12}};
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        cr_assert_eq(write_text(sizes[i].text), 0, "%s", sizes[i].text);
        cr_assert_eq(config.size_bytes, sizes[i].bytes, "%s", sizes[i].text);
    }
}

Test(config, a_write_may_have_4095_bytes_and_no_more)
{
    char text[4096];
    memset(text, '\n', sizeof(text));
    memcpy(text, "world=4", 7);
    cr_assert_eq(write_bytes(text, 4095, false), 0);
    cr_assert_eq(config.world, 4u);
    cr_assert_eq(write_bytes(text, 4096, false), -EINVAL);
}

Test(config, frozen_equal_values_succeed_and_different_ones_are_ebusy)
{
    cr_assert_eq(write_text("world=4\ntimeout=1.5\nsize=1024\nlinger=never"), 0);
    cr_assert_eq(write_frozen("world = 4\ntimeout=1.500\nsize=1K\nlinger=never\n"), 0);
    cr_assert_eq(write_frozen("world=4\nop=max"), -EBUSY);
    cr_assert_str_eq(err.text, "line 2: op is sum and fixed since a rank has joined");
    cr_assert_eq(write_frozen("linger=30"), -EBUSY);
    cr_assert_eq(write_frozen("timeout=1.501"), -EBUSY);
    cr_assert_eq(write_frozen("world=four"), -EINVAL);
    cr_assert_eq(write_frozen(""), 0);
}

Test(config, three_lines_of_every_rank_of_a_script_succeed_after_the_first)
{
    static const char script[] = "world=4\ndtype=f32\nsize=1M\n";
    cr_assert_eq(write_text(script), 0);
    cr_assert_eq(write_frozen(script), 0);
}

Test(config, what_is_shown_is_taken_back_and_means_the_same)
{
    struct ut_text shown = {0}, again = {0};
    cr_assert_eq(write_text("world=7\ndtype=i8\nop=bxor\ntimeout=0.125\nsize=1537\nlinger=never\nmemory=3M"),
                 0);
    struct coll_config before = config;
    coll_config_render(&config, &shown);
    coll_config_init(&config, LIMIT);
    cr_assert_eq(write_text(shown.bytes), 0);
    cr_assert(memcmp(&before, &config, sizeof(config)) == 0);
    coll_config_render(&config, &again);
    cr_assert_str_eq(shown.bytes, again.bytes);
    ut_text_fini(&shown);
    ut_text_fini(&again);
}

Test(config, a_world_that_nobody_has_set_is_shown_as_a_comment)
{
    struct ut_text shown = {0};
    coll_config_render(&config, &shown);
    cr_assert(strstr(shown.bytes, "# world = ") == shown.bytes);
    cr_assert_eq(write_text(shown.bytes), 0);
    cr_assert_eq(config.world, 0u);
    ut_text_fini(&shown);
}

Test(config, a_refusal_is_plain_text_whatever_was_written)
{
    char line[4] = "";
    for (unsigned byte = 1; byte < 256; byte++) {
        if (byte == '\n' || byte == '#')
            continue;
        line[0] = (char)byte;
        line[1] = 'x';
        line[2] = '=';
        cr_assert_neq(write_text(line), 0);
        for (const char *c = err.text; *c; c++)
            cr_assert(*c >= ' ' && *c < 0x7f, "byte %u", byte);
    }
}
