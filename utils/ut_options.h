/*
 * Options: one table says everything about them, and everything that has to do with options is made from it:
 * the command line, the configuration file, defaults, help, the manual page, and the listing of effective
 * settings with where each came from.
 *
 * An option is a field of the caller's settings structure. It is set from, weakest first, its default, the
 * configuration file, the command line (--name value, --name=value, -x, or -o name=value,...). Options come
 * in groups; a group is a section of the file, and a numbered group ("[node 3]") has one block of fields for
 * each number and no place on the command line.
 *
 * Used at start, by one thread.
 */
#ifndef UT_OPTIONS_H
#define UT_OPTIONS_H

#include "utils/ut_err.h"
#include "utils/ut_text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ut_option_kind {
    UT_OPTION_FLAG,   /* bool; on the command line without a value, in the file yes or no */
    UT_OPTION_NUMBER, /* int, from min to max */
    UT_OPTION_BYTES,  /* uint64_t, from min to max; K M G T accepted */
    UT_OPTION_CHOICE, /* int or enum, an index into choices */
    UT_OPTION_TEXT,   /* char[size], not empty unless that is the default */
};

struct ut_option {
    const char *name;  /* --name, -o name= */
    const char *key;   /* in the file, when it is called otherwise there; NULL: name */
    char letter;       /* -x; 0 for none */
    bool only_command; /* not a key of the file, not shown among the settings */
    enum ut_option_kind kind;
    size_t offset; /* of the field in its block */
    size_t size;   /* of a text field, with its NUL */
    int64_t min, max;
    const char *const *choices;     /* ends with NULL */
    bool (*fits)(const char *word); /* further demand on a text; NULL for none */
    const char *form;               /* what a good text looks like; for other kinds it is known */
    const char *fallback; /* the default as one would write it; NULL: zero, or what the caller puts there */
    const char *fallback_says; /* how help describes a default that the caller works out; NULL: fallback */
    const char *value;         /* what help calls the value ("BYTES"); NULL for flags */
    const char *help;          /* a sentence without a full stop */
};

struct ut_option_group {
    const char *section;   /* name of the section */
    unsigned block_count;  /* 0: "[section]", one block; else "[section 0]" to "[section block_count-1]" */
    size_t offset, stride; /* of the first block in the settings, and from one block to the next */
    size_t origin;         /* offset in the block of uint32_t[option_count]: where each value came from */
    const struct ut_option *options;
    unsigned option_count;
};

/* Where a value came from; anything else is a line of the configuration file. */
#define UT_OPTION_DEFAULT 0u
#define UT_OPTION_COMMAND UINT32_MAX

struct ut_options {
    const struct ut_option_group *groups; /* the first one is that of the command line */
    unsigned group_count;
    void *settings;
    /* Takes a word of the command line that is no option. 0, or -EINVAL with err set. */
    int (*operand)(void *settings, const char *word, struct ut_err *err);
    /* Takes an item of -o that is in no table. 0, or -EINVAL with err set. */
    int (*foreign)(void *settings, const char *item, struct ut_err *err);
};

/* Gives every field its default. Cannot fail: a default that does not parse is our mistake and aborts. */
void ut_options_init(const struct ut_options *options);

/* Takes the command line. 0, or -EINVAL with err naming the option; then some fields may have been set. */
int ut_options_command(const struct ut_options *options, int argc, char *const *argv, struct ut_err *err);

/* Takes the text of a configuration file called name, leaving alone what the command line has set. 0, or
 * -EINVAL with err naming file, line and key; then some fields may have been set. */
int ut_options_text(const struct ut_options *options, const char *name, const char *text, size_t len,
                    struct ut_err *err);

/* The same for a file. Also -errno, with err set, when it cannot be read (-ENOENT when there is none), and
 * -EFBIG over 1 MiB. */
int ut_options_file(const struct ut_options *options, const char *path, struct ut_err *err);

/* The option called name ("--name") of the first group was set by the command line or the file. */
bool ut_options_given(const struct ut_options *options, const char *name);

/* Writes how the user knows that option: "FILE:3: memory" when the file set it, else "--memory". For the
 * refusal of a value that is good by itself. */
void ut_options_where(const struct ut_options *options, const char *name, const char *file, char out[256]);

/* Appends the options of the command line, a paragraph each, for --help. */
void ut_options_help(const struct ut_options *options, struct ut_text *out);

/* Appends them, and then the keys of each section of the file, as paragraphs of a manual page (man macros).
 */
void ut_options_man(const struct ut_options *options, struct ut_text *out);

/* Appends a configuration file that changes nothing: every key, explained, with its default, commented out.
 */
void ut_options_example(const struct ut_options *options, struct ut_text *out);

/* Appends the effective settings in the form of a configuration file, each with its origin as a comment:
 * "default", "command line" or file:line. Numbered blocks show only what was set. */
void ut_options_show(const struct ut_options *options, const char *file, struct ut_text *out);

#endif
