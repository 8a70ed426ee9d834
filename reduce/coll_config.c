#include "reduce/coll_config.h"

#include "utils/ut_clock.h"
#include "utils/ut_num.h"
#include "utils/ut_table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* One key: how its word is read into a configuration and shown again. */
struct key {
    const char *name;
    int (*parse)(struct coll_config *config, const char *word);
    void (*show)(const struct coll_config *config, char out[32]);
    const char *form; /* what a good value looks like, for the refusal */
};

static int parse_count(const char *word, uint64_t max, unsigned *out)
{
    uint64_t value;
    int rc = ut_num_u64(word, max, &value);
    if (rc || !value)
        return rc ? rc : -ERANGE;
    *out = (unsigned)value;
    return 0;
}

static int parse_world(struct coll_config *config, const char *word)
{
    return parse_count(word, COLL_WORLD_MAX, &config->world);
}

static void show_world(const struct coll_config *config, char out[32])
{
    snprintf(out, 32, "%u", config->world);
}

static int parse_dtype(struct coll_config *config, const char *word)
{
    return coll_dtype_parse(word, &config->dtype);
}

static void show_dtype(const struct coll_config *config, char out[32])
{
    snprintf(out, 32, "%s", coll_dtype_name(config->dtype));
}

static int parse_op(struct coll_config *config, const char *word)
{
    return coll_op_parse(word, &config->op);
}

static void show_op(const struct coll_config *config, char out[32])
{
    snprintf(out, 32, "%s", coll_op_name(config->op));
}

static int parse_timeout(struct coll_config *config, const char *word)
{
    uint64_t ns;
    int rc = ut_num_seconds(word, &ns);
    if (rc || ns < UT_NS_PER_MS)
        return rc ? rc : -ERANGE;
    config->timeout_ns = ns;
    return 0;
}

static void show_timeout(const struct coll_config *config, char out[32])
{
    ut_num_show_seconds(config->timeout_ns, out);
}

static int parse_size(struct coll_config *config, const char *word)
{
    return ut_num_bytes(word, &config->size_bytes);
}

static void show_size(const struct coll_config *config, char out[32])
{
    ut_num_show_bytes(config->size_bytes, out);
}

static int parse_depth(struct coll_config *config, const char *word)
{
    return parse_count(word, COLL_DEPTH_MAX, &config->depth);
}

static void show_depth(const struct coll_config *config, char out[32])
{
    snprintf(out, 32, "%u", config->depth);
}

static int parse_wire(struct coll_config *config, const char *word)
{
    enum coll_dtype wire;
    int rc = coll_dtype_parse(word, &wire);
    if (rc || (wire != COLL_F32 && wire != COLL_F16 && wire != COLL_BF16))
        return -EINVAL;
    config->wire = wire;
    return 0;
}

static void show_wire(const struct coll_config *config, char out[32])
{
    snprintf(out, 32, "%s", coll_dtype_name(config->wire));
}

static int parse_verify(struct coll_config *config, const char *word)
{
    if (strcmp(word, "none") == 0)
        config->verify = COLL_VERIFY_NONE;
    else if (strcmp(word, "crc32c") == 0)
        config->verify = COLL_VERIFY_CRC32C;
    else
        return -EINVAL;
    return 0;
}

static void show_verify(const struct coll_config *config, char out[32])
{
    snprintf(out, 32, "%s", config->verify == COLL_VERIFY_CRC32C ? "crc32c" : "none");
}

static int parse_memory(struct coll_config *config, const char *word)
{
    uint64_t bytes;
    int rc = ut_num_bytes(word, &bytes);
    if (rc || !bytes)
        return rc ? rc : -ERANGE;
    config->memory_bytes = bytes;
    return 0;
}

static void show_memory(const struct coll_config *config, char out[32])
{
    ut_num_show_bytes(config->memory_bytes, out);
}

static int parse_linger(struct coll_config *config, const char *word)
{
    uint64_t ns = COLL_LINGER_NEVER;
    int rc = strcmp(word, "never") == 0 ? 0 : ut_num_seconds(word, &ns);
    if (rc || ns < UT_NS_PER_MS)
        return rc ? rc : -ERANGE;
    config->linger_ns = ns;
    return 0;
}

static void show_linger(const struct coll_config *config, char out[32])
{
    if (config->linger_ns == COLL_LINGER_NEVER)
        snprintf(out, 32, "never");
    else
        ut_num_show_seconds(config->linger_ns, out);
}

static const struct key keys[] = {
    {"world", parse_world, show_world, "a number of ranks from 1 to 1024"},
    {"dtype", parse_dtype, show_dtype, "f32 f64 f16 bf16 i8 u8 i32 u32 i64 or u64"},
    {"op", parse_op, show_op, "sum avg min max prod band bor or bxor"},
    {"timeout", parse_timeout, show_timeout, "seconds from 0.001 to 1000000000"},
    {"size", parse_size, show_size, "bytes, K M G accepted, within memory"},
    {"depth", parse_depth, show_depth, "a number of operations from 1 to 4096"},
    {"wire", parse_wire, show_wire, "f32 f16 or bf16"},
    {"verify", parse_verify, show_verify, "none or crc32c"},
    {"memory", parse_memory, show_memory, "bytes, K M G accepted, within the daemon's memory"},
    {"linger", parse_linger, show_linger, "seconds from 0.001, or never"},
};

void coll_config_init(struct coll_config *config, uint64_t memory_bytes)
{
    *config = (struct coll_config){
        .dtype = COLL_F32,
        .op = COLL_SUM,
        .timeout_ns = 30 * UT_NS_PER_S,
        .depth = 64,
        .wire = COLL_F32,
        .memory_bytes = memory_bytes,
        .linger_ns = 3600 * UT_NS_PER_S,
    };
}

static char *trim(char *text)
{
    text += strspn(text, " \t\r");
    size_t len = strlen(text);
    while (len && strchr(" \t\r", text[len - 1]))
        text[--len] = '\0';
    return text;
}

static bool same_value(const struct key *key, const struct coll_config *a, const struct coll_config *b)
{
    char shown_a[32], shown_b[32];
    key->show(a, shown_a);
    key->show(b, shown_b);
    return strcmp(shown_a, shown_b) == 0;
}

/* Takes one line into config. */
static int take_line(struct coll_config *config, char *line, unsigned number, bool frozen, struct ut_err *err)
{
    line = trim(line);
    if (!*line || *line == '#')
        return 0;
    if (!ut_text_is_plain(line))
        return ut_err_set(err, -EINVAL, "line %u: a setting is plain ASCII text", number);
    char *equals = strchr(line, '=');
    if (!equals)
        return ut_err_set(err, -EINVAL, "line %u: \"%.60s\" is not key = value", number, line);
    *equals = '\0';
    const char *name = trim(line), *value = trim(equals + 1);
    size_t idx = UT_TABLE_FIND(keys, name);
    if (idx == UT_TABLE_COUNT(keys))
        return ut_err_set(err, -EINVAL, "line %u: unknown key \"%.60s\"", number, name);
    const struct key *key = &keys[idx];
    struct coll_config next = *config;
    int rc = key->parse(&next, value);
    if (rc)
        return ut_err_set(err, rc, "line %u: %s = \"%.60s\" should be %s", number, name, value, key->form);
    if (frozen && !same_value(key, config, &next)) {
        char now[32];
        key->show(config, now);
        return ut_err_set(err, -EBUSY, "line %u: %s is %s and fixed since a rank has joined", number, name,
                          config->world ? now : "unset");
    }
    *config = next;
    return 0;
}

static int check_memory(const struct coll_config *config, uint64_t memory_limit, struct ut_err *err)
{
    char limit[24], asked[24];
    ut_num_show_bytes(memory_limit, limit);
    ut_num_show_bytes(config->memory_bytes, asked);
    if (config->memory_bytes > memory_limit)
        return ut_err_set(err, -ERANGE, "memory = %s is above the daemon's limit of %s", asked, limit);
    if (config->size_bytes > config->memory_bytes)
        return ut_err_set(err, -ERANGE, "size = %" PRIu64 " bytes is above the job's memory of %s",
                          config->size_bytes, asked);
    return 0;
}

int coll_config_write(struct coll_config *config, const char *text, size_t len, bool frozen,
                      uint64_t memory_limit, struct ut_err *err)
{
    char copy[4096];
    if (len >= sizeof(copy))
        return ut_err_set(err, -EINVAL, "a write of %zu bytes is longer than 4095", len);
    if (memchr(text, '\0', len))
        return ut_err_set(err, -EINVAL, "a NUL byte is not text");
    memcpy(copy, text, len);
    copy[len] = '\0';
    struct coll_config next = *config;
    unsigned number = 0;
    char *rest = copy;
    for (char *line; (line = strsep(&rest, "\n"));) {
        int rc = take_line(&next, line, ++number, frozen, err);
        if (rc)
            return rc;
    }
    int rc = check_memory(&next, memory_limit, err);
    if (rc)
        return rc;
    *config = next;
    return 0;
}

void coll_config_render(const struct coll_config *config, struct ut_text *out)
{
    for (size_t i = 0; i < UT_TABLE_COUNT(keys); i++) {
        char value[32];
        keys[i].show(config, value);
        if (keys[i].parse == parse_world && !config->world)
            ut_text_addf(out, "# world = (ranks; to be set before the first joins)\n");
        else
            ut_text_addf(out, "%s = %s\n", keys[i].name, value);
    }
}
