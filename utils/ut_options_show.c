/*
 * What people read about options: help, manual page, effective settings.
 */
#include "utils/ut_options.h"

#include "utils/ut_num.h"

#include <inttypes.h>
#include <string.h>

static const char *key_name(const struct ut_option *option)
{
    return option->key ? option->key : option->name;
}

/* ---- values ---- */

static void show_value(const struct ut_option *option, const char *block, struct ut_text *out)
{
    const void *field = block + option->offset;
    char bytes[24];
    switch (option->kind) {
    case UT_OPTION_FLAG:
        ut_text_addf(out, "%s", *(const bool *)field ? "yes" : "no");
        return;
    case UT_OPTION_NUMBER:
        ut_text_addf(out, "%d", *(const int *)field);
        return;
    case UT_OPTION_BYTES:
        ut_num_show_bytes(*(const uint64_t *)field, bytes);
        ut_text_addf(out, "%s", bytes);
        return;
    case UT_OPTION_CHOICE:
        ut_text_addf(out, "%s", option->choices[*(const int *)field]);
        return;
    case UT_OPTION_TEXT:
        ut_text_addf(out, "%s", (const char *)field);
        return;
    }
}

static void show_origin(uint32_t origin, const char *file, struct ut_text *out)
{
    if (origin == UT_OPTION_DEFAULT)
        ut_text_addf(out, "default");
    else if (origin == UT_OPTION_COMMAND)
        ut_text_addf(out, "command line");
    else
        ut_text_addf(out, "%s:%" PRIu32, file, origin);
}

static void show_setting(const struct ut_option *option, const char *block, uint32_t origin, const char *file,
                         struct ut_text *out)
{
    size_t start = out->len;
    ut_text_addf(out, "%s = ", key_name(option));
    show_value(option, block, out);
    size_t width = out->len - start;
    ut_text_addf(out, "%*s ; ", width < 31 ? (int)(31 - width) : 0, "");
    show_origin(origin, file, out);
    ut_text_addf(out, "\n");
}

static bool anything_set(const struct ut_option_group *group, const uint32_t *origin)
{
    for (unsigned i = 0; i < group->option_count; i++) {
        if (origin[i] != UT_OPTION_DEFAULT)
            return true;
    }
    return false;
}

static void show_block(const struct ut_option_group *group, const char *block, const char *file,
                       struct ut_text *out)
{
    const uint32_t *origin = (const uint32_t *)(block + group->origin);
    for (unsigned i = 0; i < group->option_count; i++) {
        bool wanted = !group->block_count || origin[i] != UT_OPTION_DEFAULT;
        if (wanted && !group->options[i].only_command)
            show_setting(&group->options[i], block, origin[i], file, out);
    }
}

void ut_options_show(const struct ut_options *options, const char *file, struct ut_text *out)
{
    for (unsigned g = 0; g < options->group_count; g++) {
        const struct ut_option_group *group = &options->groups[g];
        const char *block = (const char *)options->settings + group->offset;
        if (!group->block_count) {
            ut_text_addf(out, "[%s]\n", group->section);
            show_block(group, block, file, out);
        }
        for (unsigned b = 0; b < group->block_count; b++, block += group->stride) {
            if (!anything_set(group, (const uint32_t *)(block + group->origin)))
                continue;
            ut_text_addf(out, "[%s %u]\n", group->section, b);
            show_block(group, block, file, out);
        }
    }
}

/* ---- the options themselves ---- */

static void describe_default(const struct ut_option *option, struct ut_text *out)
{
    const char *says = option->fallback_says ? option->fallback_says : option->fallback;
    if (option->kind != UT_OPTION_FLAG && says && *says)
        ut_text_addf(out, " (default: %s)", says);
}

static void describe_choices(const struct ut_option *option, struct ut_text *out)
{
    if (option->kind != UT_OPTION_CHOICE)
        return;
    ut_text_addf(out, ": ");
    for (unsigned i = 0; option->choices[i]; i++)
        ut_text_addf(out, "%s%s", !i ? "" : option->choices[i + 1] ? ", " : " or ", option->choices[i]);
}

static void describe(const struct ut_option *option, struct ut_text *out)
{
    ut_text_addf(out, "%s", option->help);
    describe_choices(option, out);
    describe_default(option, out);
}

static void help_option(const struct ut_option *option, struct ut_text *out)
{
    size_t start = out->len;
    if (option->letter)
        ut_text_addf(out, "  -%c, ", option->letter);
    else
        ut_text_addf(out, "      ");
    ut_text_addf(out, "--%s%s%s", option->name, option->value ? "=" : "", option->value ? option->value : "");
    size_t width = out->len - start;
    ut_text_addf(out, "%*s", width < 25 ? (int)(26 - width) : 1, "");
    describe(option, out);
    ut_text_addf(out, "\n");
}

void ut_options_help(const struct ut_options *options, struct ut_text *out)
{
    const struct ut_option_group *group = &options->groups[0];
    for (unsigned i = 0; i < group->option_count; i++)
        help_option(&group->options[i], out);
}

static void example_key(const struct ut_option *option, struct ut_text *out)
{
    ut_text_addf(out, "\n; ");
    describe(option, out);
    ut_text_addf(out, ".\n;%s = %s\n", key_name(option), option->fallback ? option->fallback : "");
}

void ut_options_example(const struct ut_options *options, struct ut_text *out)
{
    for (unsigned g = 0; g < options->group_count; g++) {
        const struct ut_option_group *group = &options->groups[g];
        ut_text_addf(out, "%s[%s%s]\n", g ? "\n" : "", group->section, group->block_count ? " 0" : "");
        for (unsigned i = 0; i < group->option_count; i++) {
            if (!group->options[i].only_command)
                example_key(&group->options[i], out);
        }
    }
}

/* ---- manual page ---- */

/* Appends text with a hyphen that can be copied, and no control line by accident. */
static void roff_text(const char *text, struct ut_text *out)
{
    if (*text == '.' || *text == '\'')
        ut_text_addf(out, "\\&");
    for (; *text; text++) {
        if (*text == '-')
            ut_text_addf(out, "\\-");
        else if (*text == '\\')
            ut_text_addf(out, "\\e");
        else
            ut_text_add(out, text, 1);
    }
}

static void man_sentence(const struct ut_option *option, struct ut_text *out)
{
    struct ut_text plain = {0};
    describe(option, &plain);
    roff_text(plain.bytes ? plain.bytes : "", out);
    ut_text_addf(out, ".\n");
    ut_text_fini(&plain);
}

static void man_option(const struct ut_option *option, struct ut_text *out)
{
    ut_text_addf(out, ".TP\n");
    if (option->letter)
        ut_text_addf(out, ".BR \\-%c \", \" ", option->letter);
    else
        ut_text_addf(out, ".BR ");
    ut_text_addf(out, "\\-\\-");
    roff_text(option->name, out);
    ut_text_addf(out, option->value ? "=\\fI%s\\fR\n" : "\n", option->value);
    man_sentence(option, out);
}

static void man_key(const struct ut_option *option, struct ut_text *out)
{
    ut_text_addf(out, ".TP\n.BR ");
    roff_text(key_name(option), out);
    ut_text_addf(out, " \" = \\fI%s\\fR\"\n", option->value ? option->value : "yes|no");
    man_sentence(option, out);
}

void ut_options_man(const struct ut_options *options, struct ut_text *out)
{
    ut_text_addf(out, ".SH OPTIONS\n");
    for (unsigned i = 0; i < options->groups[0].option_count; i++)
        man_option(&options->groups[0].options[i], out);
    ut_text_addf(out, ".SH CONFIGURATION FILE\n");
    for (unsigned g = 0; g < options->group_count; g++) {
        const struct ut_option_group *group = &options->groups[g];
        ut_text_addf(out, ".SS [%s%s]\n", group->section, group->block_count ? " \\fIN\\fR" : "");
        for (unsigned i = 0; i < group->option_count; i++) {
            if (!group->options[i].only_command)
                man_key(&group->options[i], out);
        }
    }
}
