#include "reduce/coll_cmd.h"

#include "utils/ut_num.h"
#include "utils/ut_table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { HAS_DTYPE = 1, HAS_OP = 2, HAS_OFFSET = 4, HAS_COUNT = 8, HAS_ROOT = 16, HAS_TAG = 32 };

/* What the words of a line have said so far. */
struct draft {
    struct coll_cmd cmd;
    unsigned has;
    unsigned world;
};

bool coll_cmd_is_tag(const char *word)
{
    size_t len = strlen(word);
    return len && len < COLL_TAG_BYTES &&
           strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == len;
}

static int take_tag(struct draft *draft, const char *word)
{
    if (!coll_cmd_is_tag(word))
        return -EINVAL;
    memcpy(draft->cmd.tag, word, strlen(word) + 1);
    return 0;
}

static int take_root(struct draft *draft, const char *word)
{
    uint64_t root;
    int rc = ut_num_u64(word, COLL_WORLD_MAX, &root);
    if (rc || root >= draft->world || draft->cmd.kind != COLL_BROADCAST)
        return -EINVAL;
    draft->cmd.root = (unsigned)root;
    return 0;
}

static int take_dtype(struct draft *draft, const char *word)
{
    return coll_dtype_parse(word, &draft->cmd.dtype);
}

static int take_op(struct draft *draft, const char *word)
{
    return coll_op_parse(word, &draft->cmd.op);
}

/* A number beyond 64 bits is outside every buffer, so -ERANGE stays what it is. */
static int take_offset(struct draft *draft, const char *word)
{
    return draft->cmd.kind == COLL_BARRIER ? -EINVAL : ut_num_u64(word, UINT64_MAX, &draft->cmd.offset);
}

static int take_count(struct draft *draft, const char *word)
{
    return draft->cmd.kind == COLL_BARRIER ? -EINVAL : ut_num_u64(word, UINT64_MAX, &draft->cmd.count);
}

static const struct {
    const char *name;
    unsigned bit;
    int (*take)(struct draft *draft, const char *word);
    const char *form;
} keys[] = {
    {"dtype", HAS_DTYPE, take_dtype, "one of f32 f64 f16 bf16 i8 u8 i32 u32 i64 u64"},
    {"op", HAS_OP, take_op, "one of sum avg min max prod band bor bxor"},
    {"offset", HAS_OFFSET, take_offset, "a number of bytes (and has no place in a barrier)"},
    {"count", HAS_COUNT, take_count, "a number of elements (and has no place in a barrier)"},
    {"root", HAS_ROOT, take_root, "a rank below world (and belongs to broadcast)"},
    {"tag", HAS_TAG, take_tag, "1 to 32 of A-Z a-z 0-9 . _ -"},
};

static int take_word(struct draft *draft, char *word, struct ut_err *err)
{
    char *equals = strchr(word, '=');
    if (!equals)
        return ut_err_set(err, -EINVAL, "\"%.60s\" is not key=value", word);
    *equals = '\0';
    size_t idx = UT_TABLE_FIND(keys, word);
    if (idx == UT_TABLE_COUNT(keys))
        return ut_err_set(err, -EINVAL, "unknown key \"%.60s\"; there are dtype op offset count root tag",
                          word);
    if (draft->has & keys[idx].bit)
        return ut_err_set(err, -EINVAL, "%s is given twice", word);
    int rc = keys[idx].take(draft, equals + 1);
    if (rc)
        return ut_err_set(err, rc, "%s=\"%.60s\" should be %s", word, equals + 1, keys[idx].form);
    draft->has |= keys[idx].bit;
    return 0;
}

static int take_line(struct draft *draft, const char *text, size_t len, struct ut_err *err)
{
    char line[COLL_CMD_BYTES_MAX + 1];
    if (len > COLL_CMD_BYTES_MAX)
        return ut_err_set(err, -EINVAL, "a command has at most %u bytes, this write has %zu",
                          COLL_CMD_BYTES_MAX, len);
    if (len && text[len - 1] == '\n')
        len--;
    if (memchr(text, '\n', len) || memchr(text, '\0', len))
        return ut_err_set(err, -EINVAL, "a write holds one command: one line of text");
    memcpy(line, text, len);
    line[len] = '\0';
    if (!ut_text_is_plain(line))
        return ut_err_set(err, -EINVAL, "a command is plain ASCII text");
    char *rest = line;
    for (char *word; (word = strsep(&rest, " \t\r"));) {
        int rc = *word ? take_word(draft, word, err) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

/* Fills in the count and holds the range against the buffer. */
static int place(struct draft *draft, uint64_t buf_bytes, struct ut_err *err)
{
    struct coll_cmd *cmd = &draft->cmd;
    size_t bytes = coll_dtype_bytes(cmd->dtype);
    const char *dtype = coll_dtype_name(cmd->dtype);
    if (cmd->offset % bytes)
        return ut_err_set(err, -EINVAL, "offset %" PRIu64 " is no multiple of %s's %zu bytes", cmd->offset,
                          dtype, bytes);
    if (cmd->offset > buf_bytes)
        return ut_err_set(err, -ERANGE, "offset %" PRIu64 " is outside the buffer of %" PRIu64 " bytes",
                          cmd->offset, buf_bytes);
    uint64_t room = buf_bytes - cmd->offset;
    if (!(draft->has & HAS_COUNT)) {
        if (room % bytes)
            return ut_err_set(err, -EINVAL, "the buffer's %" PRIu64 " bytes are no multiple of %s's %zu",
                              buf_bytes, dtype, bytes);
        cmd->count = room / bytes;
    }
    if (cmd->count > room / bytes)
        return ut_err_set(err, -ERANGE,
                          "count %" PRIu64 " of %s from offset %" PRIu64
                          " ends outside the buffer of %" PRIu64 " bytes",
                          cmd->count, dtype, cmd->offset, buf_bytes);
    return 0;
}

int coll_cmd_parse(enum coll_kind kind, const char *text, size_t len, const struct coll_config *config,
                   uint64_t buf_bytes, struct coll_cmd *out, struct ut_err *err)
{
    struct draft draft = {.cmd = {.kind = kind, .dtype = config->dtype, .op = config->op},
                          .world = config->world};
    int rc = take_line(&draft, text, len, err);
    if (rc)
        return rc;
    if (coll_kind_reduces(kind) && !coll_op_fits(draft.cmd.op, draft.cmd.dtype))
        return ut_err_set(err, -EINVAL, "%s combines integers, not %s", coll_op_name(draft.cmd.op),
                          coll_dtype_name(draft.cmd.dtype));
    if (kind != COLL_BARRIER) {
        rc = place(&draft, buf_bytes, err);
        if (rc)
            return rc;
    }
    *out = draft.cmd;
    return 0;
}

uint64_t coll_cmd_bytes(const struct coll_cmd *cmd)
{
    return cmd->count * coll_dtype_bytes(cmd->dtype);
}

bool coll_cmd_agree(const struct coll_cmd *a, const struct coll_cmd *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == COLL_BARRIER)
        return true;
    return a->dtype == b->dtype && a->count == b->count && a->root == b->root &&
           (!coll_kind_reduces(a->kind) || a->op == b->op);
}

bool coll_cmd_same(const struct coll_cmd *a, const struct coll_cmd *b)
{
    return coll_cmd_agree(a, b) && a->offset == b->offset && strcmp(a->tag, b->tag) == 0;
}

const char *coll_cmd_op_word(const struct coll_cmd *cmd)
{
    return coll_kind_reduces(cmd->kind) ? coll_op_name(cmd->op) : coll_kind_name(cmd->kind);
}

void coll_cmd_describe(const struct coll_cmd *cmd, char *out, size_t len)
{
    int used = snprintf(out, len, "%s", coll_kind_name(cmd->kind));
    if (cmd->kind == COLL_BARRIER || used < 0 || (size_t)used >= len)
        return;
    char root[24] = "";
    if (cmd->kind == COLL_BROADCAST)
        snprintf(root, sizeof(root), " root=%u", cmd->root);
    snprintf(out + used, len - (size_t)used, " %s%s%s count=%" PRIu64 "%s", coll_dtype_name(cmd->dtype),
             coll_kind_reduces(cmd->kind) ? " " : "",
             coll_kind_reduces(cmd->kind) ? coll_op_name(cmd->op) : "", cmd->count, root);
}
