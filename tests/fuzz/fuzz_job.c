/*
 * Any bytes as a write to a job's `config` (up to the first NUL) and then as a command. Must hold: no error
 * of memory or arithmetic; a refusal has a sentence and changes nothing; a configuration that was taken can
 * be shown, and what is shown means the same; a command that was taken lies inside the buffer.
 */
#include "tests/fuzz/fuzz.h"

#include "reduce/coll_cmd.h"
#include "reduce/coll_config.h"

#include <string.h>

#define MEMORY_BYTES (64ull << 20)
#define BUFFER_BYTES 4096ull

static void check_config(const char *text, size_t len, struct coll_config *config)
{
    struct ut_err err = {{0}};
    struct coll_config before = *config, again;
    if (coll_config_write(config, text, len, false, MEMORY_BYTES, &err)) {
        fuzz_must(err.text[0] && !strchr(err.text, '\n'));
        fuzz_must(memcmp(&before, config, sizeof(before)) == 0);
        return;
    }
    struct ut_text shown = {0};
    coll_config_render(config, &shown);
    coll_config_init(&again, MEMORY_BYTES);
    fuzz_must(coll_config_write(&again, shown.bytes, shown.len, false, MEMORY_BYTES, &err) == 0);
    fuzz_must(coll_config_write(config, shown.bytes, shown.len, true, MEMORY_BYTES, &err) == 0);
    ut_text_fini(&shown);
}

static void check_command(const char *text, size_t len, const struct coll_config *config)
{
    for (enum coll_kind kind = 0; kind < COLL_KIND_COUNT; kind++) {
        struct ut_err err = {{0}};
        struct coll_cmd command;
        if (coll_cmd_parse(kind, text, len, config, BUFFER_BYTES, &command, &err)) {
            fuzz_must(err.text[0] && !strchr(err.text, '\n'));
            continue;
        }
        size_t element = coll_dtype_bytes(command.dtype);
        fuzz_must(kind == COLL_BARRIER || command.offset % element == 0);
        fuzz_must(kind == COLL_BARRIER || (command.offset <= BUFFER_BYTES &&
                                           command.count <= (BUFFER_BYTES - command.offset) / element));
        fuzz_must(!coll_kind_reduces(kind) || coll_op_fits(command.op, command.dtype));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct coll_config config;
    const char *text = size ? (const char *)data : "";
    const char *nul = memchr(text, '\0', size);
    size_t config_len = nul ? (size_t)(nul - text) : size;
    coll_config_init(&config, MEMORY_BYTES);
    check_config(text, config_len, &config);
    if (nul)
        check_command(nul + 1, size - config_len - 1, &config);
    return 0;
}
