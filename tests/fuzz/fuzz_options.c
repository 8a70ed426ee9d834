/*
 * Any bytes as a configuration file and command line of the daemon: everything up to the first NUL is the
 * file, what follows are the words of the command line, each ended by a NUL. Must hold: no error of memory or
 * arithmetic; a refusal has a sentence of one line; settings that were taken can be written as a file, and
 * that file means the same.
 */
#include "tests/fuzz/fuzz.h"

#include "fs/fs_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WORDS_MAX 32

static struct fs_settings settings;

/* Parses with text as the configuration file, and words, which hold `len` bytes, before the mount point. */
static int parse(const void *text, size_t text_len, char *words, size_t len, struct ut_err *err)
{
    char path[64];
    char *argv[WORDS_MAX + 4] = {(char *)"fabricfs"};
    int argc = 1, file = memfd_create("fuzz", MFD_CLOEXEC);
    fuzz_must(file >= 0 && write(file, text, text_len) == (ssize_t)text_len);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    for (char *word = words; word < words + len && argc < WORDS_MAX; word += strlen(word) + 1)
        argv[argc++] = word;
    argv[argc++] = (char *)"--config";
    argv[argc++] = path;
    argv[argc++] = (char *)"/mnt";
    int rc = fs_options_parse(argc, argv, &settings, err);
    close(file);
    return rc;
}

/* Writes the settings as a file, without the comments that say where each came from. */
static void render(struct ut_text *out)
{
    struct ut_text full = {0};
    fs_options_render(&settings, &full);
    fuzz_must(!ut_text_failed(&full));
    char *rest = full.bytes;
    for (char *line; (line = strsep(&rest, "\n"));) {
        char *comment = strstr(line, " ; ");
        if (*line != ';')
            ut_text_addf(out, "%.*s\n", comment ? (int)(comment - line) : (int)strlen(line), line);
    }
    ut_text_fini(&full);
}

static void check_round_trip(void)
{
    struct ut_text first = {0}, second = {0};
    struct ut_err err;
    render(&first);
    fuzz_must(parse(first.bytes, first.len, NULL, 0, &err) == 0);
    render(&second);
    fuzz_must(first.len == second.len && memcmp(first.bytes, second.bytes, first.len) == 0);
    ut_text_fini(&first);
    ut_text_fini(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ut_err err = {{0}};
    const uint8_t *nul = size ? memchr(data, '\0', size) : NULL;
    size_t text_len = nul ? (size_t)(nul - data) : size, words_len = nul ? size - text_len - 1 : 0;
    char *words = calloc(1, words_len + 1);
    fuzz_must(words);
    if (words_len)
        memcpy(words, nul + 1, words_len);
    int rc = parse(data, text_len, words, words_len, &err);
    if (rc)
        fuzz_must(err.text[0] && !strchr(err.text, '\n'));
    else if (!settings.help && !settings.version)
        check_round_trip();
    free(words);
    return 0;
}
