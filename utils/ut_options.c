#include "utils/ut_options.h"

#include "utils/ut_num.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX (1u << 20)

/* A value's place: the option, its block of fields, and where it is written down who set it. */
struct place {
    const struct ut_option *option;
    char *block;
    uint32_t *origin;
};

static struct place place_at(const struct ut_options *options, const struct ut_option_group *group,
                             unsigned block_idx, unsigned option_idx)
{
    char *block = (char *)options->settings + group->offset + block_idx * group->stride;
    return (struct place){&group->options[option_idx], block,
                          (uint32_t *)(block + group->origin) + option_idx};
}

static unsigned blocks(const struct ut_option_group *group)
{
    return group->block_count ? group->block_count : 1;
}

static const char *key_name(const struct ut_option *option)
{
    return option->key ? option->key : option->name;
}

static int parse_number(const struct ut_option *option, const char *word, int *out)
{
    uint64_t magnitude;
    bool negative = option->min < 0 && *word == '-';
    int rc = ut_num_u64(word + negative, INT32_MAX, &magnitude);
    if (rc)
        return rc;
    int64_t number = negative ? -(int64_t)magnitude : (int64_t)magnitude;
    if (number < option->min || number > option->max)
        return -ERANGE;
    *out = (int)number;
    return 0;
}

static int parse_bytes(const struct ut_option *option, const char *word, uint64_t *out)
{
    uint64_t bytes;
    int rc = ut_num_bytes(word, &bytes);
    if (rc)
        return rc;
    if (bytes < (uint64_t)option->min || bytes > (uint64_t)option->max)
        return -ERANGE;
    *out = bytes;
    return 0;
}

static int parse_choice(const struct ut_option *option, const char *word, int *out)
{
    for (int i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], word) == 0) {
            *out = i;
            return 0;
        }
    }
    return -EINVAL;
}

static int parse_text(const struct ut_option *option, const char *word, char *out)
{
    if (!*word && !(option->fallback && !*option->fallback))
        return -EINVAL;
    if (strlen(word) >= option->size)
        return -ERANGE;
    if (option->fits && *word && !option->fits(word))
        return -EINVAL;
    strcpy(out, word);
    return 0;
}

static int parse_flag(const char *word, bool *out)
{
    bool yes = strcmp(word, "yes") == 0;
    if (!yes && strcmp(word, "no") != 0)
        return -EINVAL;
    *out = yes;
    return 0;
}

static int parse_value(const struct place *place, const char *word)
{
    void *field = place->block + place->option->offset;
    switch (place->option->kind) {
    case UT_OPTION_FLAG:
        return parse_flag(word, field);
    case UT_OPTION_NUMBER:
        return parse_number(place->option, word, field);
    case UT_OPTION_BYTES:
        return parse_bytes(place->option, word, field);
    case UT_OPTION_CHOICE:
        return parse_choice(place->option, word, field);
    case UT_OPTION_TEXT:
        return parse_text(place->option, word, field);
    }
    abort();
}

/* Writes what a good value looks like: the second half of a refusal. */
static void describe_form(const struct ut_option *option, struct ut_text *out)
{
    char low[24], high[24];
    switch (option->kind) {
    case UT_OPTION_FLAG:
        ut_text_addf(out, "yes or no");
        return;
    case UT_OPTION_NUMBER:
        ut_text_addf(out, "a number from %lld to %lld", (long long)option->min, (long long)option->max);
        return;
    case UT_OPTION_BYTES:
        ut_num_show_bytes((uint64_t)option->min, low);
        ut_num_show_bytes((uint64_t)option->max, high);
        ut_text_addf(out, "bytes from %s to %s (K M G T accepted)", low, high);
        return;
    case UT_OPTION_CHOICE:
        for (unsigned i = 0; option->choices[i]; i++)
            ut_text_addf(out, "%s%s", !i ? "" : option->choices[i + 1] ? ", " : " or ", option->choices[i]);
        return;
    case UT_OPTION_TEXT:
        ut_text_addf(out, "%s", option->form ? option->form : "a word");
        return;
    }
}

/* Reads word into the place. where is how the user gave it ("--memory", "FILE:3: memory"). */
static int take_value(const struct place *place, const char *word, const char *where, struct ut_err *err)
{
    int rc = parse_value(place, word);
    if (!rc)
        return 0;
    struct ut_text form = {0};
    describe_form(place->option, &form);
    ut_err_set(err, -EINVAL, "%s: \"%.60s\" should be %s", where, word,
               form.bytes ? form.bytes : "different");
    ut_text_fini(&form);
    return -EINVAL;
}

void ut_options_init(const struct ut_options *options)
{
    for (unsigned g = 0; g < options->group_count; g++) {
        const struct ut_option_group *group = &options->groups[g];
        for (unsigned b = 0; b < blocks(group); b++) {
            for (unsigned i = 0; i < group->option_count; i++) {
                struct place place = place_at(options, group, b, i);
                *place.origin = UT_OPTION_DEFAULT;
                int rc = place.option->fallback ? parse_value(&place, place.option->fallback) : 0;
                assert(rc == 0);
                (void)rc;
            }
        }
    }
}

/* What is not text would break the lines of whatever shows the settings. */
static bool is_text(const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        if ((byte < ' ' && byte != '\t' && byte != '\r') || byte == 0x7f)
            return false;
    }
    return true;
}

/* ---- command line ---- */

static bool find_command(const struct ut_options *options, const char *name, size_t len, struct place *out)
{
    const struct ut_option_group *group = &options->groups[0];
    for (unsigned i = 0; i < group->option_count; i++) {
        const char *known = group->options[i].name;
        if (strlen(known) == len && memcmp(known, name, len) == 0) {
            *out = place_at(options, group, 0, i);
            return true;
        }
    }
    return false;
}

static bool find_letter(const struct ut_options *options, char letter, struct place *out)
{
    const struct ut_option_group *group = &options->groups[0];
    for (unsigned i = 0; i < group->option_count; i++) {
        if (letter && group->options[i].letter == letter) {
            *out = place_at(options, group, 0, i);
            return true;
        }
    }
    return false;
}

/* Sets an option from the command line; word is NULL when none was given with it. */
static int set_from_command(const struct place *place, const char *word, const char *where,
                            struct ut_err *err)
{
    if (!word && place->option->kind != UT_OPTION_FLAG)
        return ut_err_set(err, -EINVAL, "%s needs a value", where);
    int rc = take_value(place, word ? word : "yes", where, err);
    if (!rc)
        *place->origin = UT_OPTION_COMMAND;
    return rc;
}

/* Takes one item of -o. A flag's name may collide with nothing of FUSE's, so ours come first. */
static int take_item(const struct ut_options *options, const char *item, struct ut_err *err)
{
    const char *equals = strchr(item, '=');
    size_t len = equals ? (size_t)(equals - item) : strlen(item);
    struct place place;
    if (!len)
        return 0;
    if (!find_command(options, item, len, &place))
        return options->foreign(options->settings, item, err);
    char where[64];
    snprintf(where, sizeof(where), "-o %s", place.option->name);
    return set_from_command(&place, equals ? equals + 1 : NULL, where, err);
}

static int take_items(const struct ut_options *options, const char *list, struct ut_err *err)
{
    char *copy = strdup(list), *rest = copy;
    if (!copy)
        return ut_err_set(err, -ENOMEM, "-o: out of memory");
    int rc = 0;
    while (!rc && rest)
        rc = take_item(options, strsep(&rest, ","), err);
    free(copy);
    return rc;
}

/* Takes "--name", "--name=value" or "--name value"; *idx moves on over the value. */
static int take_long(const struct ut_options *options, int argc, char *const *argv, int *idx,
                     struct ut_err *err)
{
    const char *name = argv[*idx] + 2, *word = strchr(name, '=');
    struct place place;
    if (!find_command(options, name, word ? (size_t)(word - name) : strlen(name), &place))
        return ut_err_set(err, -EINVAL, "unknown option \"%.60s\"; --help lists them", argv[*idx]);
    if (word)
        word++;
    else if (place.option->kind != UT_OPTION_FLAG && *idx + 1 < argc)
        word = argv[++*idx];
    char where[64];
    snprintf(where, sizeof(where), "--%s", place.option->name);
    return set_from_command(&place, word, where, err);
}

/* Takes "-x", "-xvalue" or "-x value". -o is the one letter that is not in the table. */
static int take_short(const struct ut_options *options, int argc, char *const *argv, int *idx,
                      struct ut_err *err)
{
    const char *word = argv[*idx][2] ? argv[*idx] + 2 : NULL;
    char where[3] = {'-', argv[*idx][1]};
    struct place place = {0};
    if (where[1] != 'o' && !find_letter(options, where[1], &place))
        return ut_err_set(err, -EINVAL, "unknown option \"%.60s\"; --help lists them", argv[*idx]);
    if (!word && *idx + 1 < argc && (where[1] == 'o' || place.option->kind != UT_OPTION_FLAG))
        word = argv[++*idx];
    if (where[1] != 'o')
        return set_from_command(&place, word, where, err);
    return word ? take_items(options, word, err) : ut_err_set(err, -EINVAL, "-o needs a value");
}

int ut_options_command(const struct ut_options *options, int argc, char *const *argv, struct ut_err *err)
{
    bool only_operands = false;
    for (int i = 1; i < argc; i++) {
        if (!is_text(argv[i], strlen(argv[i])))
            return ut_err_set(err, -EINVAL, "\"%.60s\" holds control characters", argv[i]);
    }
    for (int i = 1; i < argc; i++) {
        int rc;
        if (!only_operands && strcmp(argv[i], "--") == 0) {
            only_operands = true;
            continue;
        }
        if (!only_operands && strncmp(argv[i], "--", 2) == 0)
            rc = take_long(options, argc, argv, &i, err);
        else if (!only_operands && argv[i][0] == '-' && argv[i][1])
            rc = take_short(options, argc, argv, &i, err);
        else
            rc = options->operand(options->settings, argv[i], err);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- configuration file ---- */

/* inih's reader and handler share this; line is that of the text last read, which inih is looking at. */
struct reading {
    const struct ut_options *options;
    const char *name;
    const char *text, *end;
    unsigned line;
    int rc; /* the first refusal; nothing is taken after it */
    struct ut_err *err;
};

static int refuse(struct reading *reading, const char *what, const char *object)
{
    reading->rc =
        ut_err_set(reading->err, -EINVAL, "%s:%u: %s \"%.60s\"", reading->name, reading->line, what, object);
    return 0; /* inih's word for failure */
}

/* Finds the block that "[section]" or "[section 3]" names. */
static bool find_block(const struct ut_options *options, const char *section,
                       const struct ut_option_group **out_group, unsigned *out_idx)
{
    for (unsigned g = 0; g < options->group_count; g++) {
        const struct ut_option_group *group = &options->groups[g];
        size_t len = strlen(group->section);
        uint64_t idx = 0;
        if (strncmp(section, group->section, len) != 0)
            continue;
        if (group->block_count
                ? section[len] != ' ' || ut_num_u64(section + len + 1, group->block_count - 1, &idx)
                : section[len] != '\0')
            continue;
        *out_group = group;
        *out_idx = (unsigned)idx;
        return true;
    }
    return false;
}

/* Refuses a section nobody knows where it stands, keys in it or not. What is no section is left to inih. */
static void check_section(struct reading *reading, const char *line, size_t len)
{
    char section[64];
    const struct ut_option_group *group;
    unsigned block_idx;
    const char *close = len ? memchr(line, ']', len) : NULL;
    if (!close || *line != '[')
        return;
    snprintf(section, sizeof(section), "%.*s", (int)(close - line - 1), line + 1);
    if (!find_block(reading->options, section, &group, &block_idx))
        refuse(reading, "unknown section", section);
}

/* Hands inih one line, like fgets. Blanks before it go: an indented line means no continuation here. */
static char *read_line(char *out, int size, void *ctx)
{
    struct reading *reading = ctx;
    if (reading->text == reading->end || reading->rc)
        return NULL;
    const char *newline = memchr(reading->text, '\n', (size_t)(reading->end - reading->text));
    const char *end = newline ? newline : reading->end, *begin = reading->text;
    reading->line++;
    reading->text = newline ? newline + 1 : end;
    while (begin < end && (*begin == ' ' || *begin == '\t'))
        begin++;
    size_t len = (size_t)(end - begin);
    if (len + 2 > (size_t)size || !is_text(begin, len)) {
        reading->rc = ut_err_set(reading->err, -EINVAL, "%s:%u: line of more than %d bytes, or no text",
                                 reading->name, reading->line, size - 2);
        return NULL;
    }
    check_section(reading, begin, len);
    memcpy(out, begin, len);
    strcpy(out + len, "\n");
    return reading->rc ? NULL : out;
}

static bool find_key(const struct ut_options *options, const struct ut_option_group *group,
                     unsigned block_idx, const char *key, struct place *out)
{
    for (unsigned i = 0; i < group->option_count; i++) {
        if (!group->options[i].only_command && strcmp(key_name(&group->options[i]), key) == 0) {
            *out = place_at(options, group, block_idx, i);
            return true;
        }
    }
    return false;
}

/* A value that the command line has set already is checked all the same, in a field nobody looks at. */
static int take_overridden(const struct place *place, const char *value, const char *where,
                           struct ut_err *err)
{
    char *scratch = calloc(1, place->option->offset + sizeof(uint64_t) + place->option->size);
    if (!scratch)
        return ut_err_set(err, -ENOMEM, "%s: out of memory", where);
    int rc = take_value(&(struct place){place->option, scratch, NULL}, value, where, err);
    free(scratch);
    return rc;
}

static int take_entry(void *ctx, const char *section, const char *key, const char *value)
{
    struct reading *reading = ctx;
    const struct ut_option_group *group;
    unsigned block_idx;
    struct place place;
    if (reading->rc)
        return 0;
    if (!find_block(reading->options, section, &group, &block_idx))
        return refuse(reading, "this key stands before any [section]:", key);
    if (!find_key(reading->options, group, block_idx, key, &place))
        return refuse(reading, "unknown key", key);
    char where[sizeof(reading->err->text)];
    snprintf(where, sizeof(where), "%s:%u: %s", reading->name, reading->line, key);
    if (*place.origin == UT_OPTION_COMMAND) {
        reading->rc = take_overridden(&place, value, where, reading->err);
    } else if (*place.origin != UT_OPTION_DEFAULT) {
        return refuse(reading, "second value for", key);
    } else {
        reading->rc = take_value(&place, value, where, reading->err);
        *place.origin = reading->line;
    }
    return !reading->rc;
}

/* inih stumbled over a line, by its number. */
static int refuse_form(const struct reading *reading, const char *text, int number)
{
    for (int line = 1; line < number && (text = memchr(text, '\n', (size_t)(reading->end - text))); line++)
        text++;
    assert(text);
    const char *newline = memchr(text, '\n', (size_t)(reading->end - text));
    int len = (int)((newline ? newline : reading->end) - text);
    return ut_err_set(reading->err, -EINVAL, "%s:%d: \"%.*s\" is neither [section] nor key = value",
                      reading->name, number, len < 60 ? len : 60, text);
}

int ut_options_text(const struct ut_options *options, const char *name, const char *text, size_t len,
                    struct ut_err *err)
{
    struct reading reading = {.options = options, .name = name, .text = text, .end = text + len, .err = err};
    int bad_line = ini_parse_stream(read_line, &reading, take_entry, &reading);
    if (!reading.rc && bad_line)
        reading.rc = refuse_form(&reading, text, bad_line);
    return reading.rc;
}

static int read_whole(int fd, struct ut_text *out)
{
    char chunk[4096];
    ssize_t got;
    while ((got = read(fd, chunk, sizeof(chunk))) > 0) {
        ut_text_add(out, chunk, (size_t)got);
        if (out->len > FILE_BYTES_MAX)
            return -EFBIG;
    }
    return got < 0 ? -errno : ut_text_failed(out) ? -ENOMEM : 0;
}

int ut_options_file(const struct ut_options *options, const char *path, struct ut_err *err)
{
    struct ut_text text = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int rc = fd < 0 ? -errno : read_whole(fd, &text);
    if (rc)
        ut_err_set(err, rc, "%s: %s", path, strerror(-rc));
    else
        rc = ut_options_text(options, path, text.bytes ? text.bytes : "", text.len, err);
    ut_text_fini(&text);
    if (fd >= 0)
        close(fd);
    return rc;
}

static struct place must_find(const struct ut_options *options, const char *name)
{
    struct place place = {0};
    bool known = find_command(options, name, strlen(name), &place);
    assert(known);
    (void)known;
    return place;
}

bool ut_options_given(const struct ut_options *options, const char *name)
{
    return *must_find(options, name).origin != UT_OPTION_DEFAULT;
}

void ut_options_where(const struct ut_options *options, const char *name, const char *file, char out[256])
{
    struct place place = must_find(options, name);
    if (*place.origin == UT_OPTION_DEFAULT || *place.origin == UT_OPTION_COMMAND)
        snprintf(out, 256, "--%s", name);
    else
        snprintf(out, 256, "%.200s:%u: %s", file, *place.origin, key_name(place.option));
}
