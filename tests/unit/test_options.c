/* Command line and configuration file of the daemon, and what is made from the table of options. */
#include "fs/fs_options.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS_MAX 16

static struct fs_settings settings;
static struct ut_err refusal;

/* Parses a command line given as one text, blanks between the words; "fabricfs" is put before it. */
static int parse(const char *line)
{
    static char copy[1024];
    char *argv[WORDS_MAX] = {(char *)"fabricfs"}, *rest = copy;
    int argc = 1;
    snprintf(copy, sizeof(copy), "%s", line);
    for (char *word; (word = strsep(&rest, " ")) && argc < WORDS_MAX;)
        argv[argc++] = word;
    refusal.text[0] = '\0';
    return fs_options_parse(argc, argv, &settings, &refusal);
}

/* Writes a configuration file that the test's process removes; its path is good until the next call. */
static const char *config_file(const char *text)
{
    static char path[64];
    snprintf(path, sizeof(path), "/tmp/test_options.XXXXXX");
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

/* Parses "--config FILE more", with FILE holding text. */
static int parse_file(const char *text, const char *more)
{
    char line[512];
    const char *path = config_file(text);
    snprintf(line, sizeof(line), "--config %s %s", path, more);
    int rc = parse(line);
    unlink(path);
    return rc;
}

static void refused(const char *line, const char *part)
{
    cr_assert_eq(parse(line), -EINVAL, "%s was taken", line);
    cr_assert(strstr(refusal.text, part), "\"%s\" lacks \"%s\"", refusal.text, part);
    cr_assert_not(strchr(refusal.text, '\n'));
}

static void file_refused(const char *text, const char *part)
{
    cr_assert_eq(parse_file(text, "/mnt"), -EINVAL, "taken:\n%s", text);
    cr_assert(strstr(refusal.text, part), "\"%s\" lacks \"%s\"", refusal.text, part);
    cr_assert_not(strchr(refusal.text, '\n'));
}

static bool rendered(const char *part)
{
    struct ut_text text = {0};
    fs_options_render(&settings, &text);
    bool found = strstr(text.bytes, part);
    ut_text_fini(&text);
    return found;
}

Test(options, a_mount_point_is_all_that_is_needed)
{
    cr_assert_eq(parse_file("", "/fabric"), 0);
    cr_assert_str_eq(settings.mountpoint, "/fabric");
    cr_assert_str_eq(settings.source, "fabricfs");
    cr_assert_str_eq(settings.fabric, "fabric");
    cr_assert_eq(settings.node, 0);
    cr_assert_eq(settings.nodes, 1);
    cr_assert_eq(settings.buffer, FS_BUFFER_AUTO);
    cr_assert_eq(settings.small_bytes, 65536);
    cr_assert_str_eq(settings.numa, "auto");
    cr_assert_gt(settings.memory_bytes, 0);
    cr_assert_eq(settings.memory_user_bytes, settings.memory_bytes);
}

Test(options, a_value_may_stand_behind_an_equals_sign_or_a_blank)
{
    cr_assert_eq(parse_file("", "--buffer=coherent --memory 64M -f /fabric"), 0);
    cr_assert_eq(settings.buffer, FS_BUFFER_COHERENT);
    cr_assert_eq(settings.memory_bytes, 64 << 20);
    cr_assert(settings.foreground);
}

Test(options, mount_calls_with_a_source_and_options_for_everybody)
{
    cr_assert_eq(
        parse_file(
            "",
            "tank /fabric -o rw,dev,suid,_netdev,x-systemd.automount,noatime,allow_other,buffer=coherent"),
        0);
    cr_assert_str_eq(settings.source, "tank");
    cr_assert_str_eq(settings.mountpoint, "/fabric");
    cr_assert_str_eq(settings.mount_options, "allow_other");
    cr_assert_eq(settings.buffer, FS_BUFFER_COHERENT);
}

Test(options, fsname_wins_over_the_source_wherever_it_stands)
{
    cr_assert_eq(parse_file("", "-o fsname=pool /fabric"), 0, "%s", refusal.text);
    cr_assert_str_eq(settings.source, "pool");
    cr_assert_str_eq(settings.mountpoint, "/fabric");
    cr_assert_eq(parse_file("", "-o fsname=pool tank /fabric"), 0, "%s", refusal.text);
    cr_assert_str_eq(settings.source, "pool");
    cr_assert_eq(parse_file("", "tank /fabric -o fsname=pool"), 0, "%s", refusal.text);
    cr_assert_str_eq(settings.source, "pool");
}

Test(options, a_configuration_file_can_be_named_behind_o)
{
    const char *path = config_file("[fabric]\nname = rack1\n");
    char line[256];
    snprintf(line, sizeof(line), "fabricfs /fabric -oconfig=%s,_netdev", path);
    int rc = parse(line);
    unlink(path);
    cr_assert_eq(rc, 0, "%s", refusal.text);
    cr_assert_str_eq(settings.fabric, "rack1");
}

Test(options, the_command_line_wins_over_the_file)
{
    cr_assert_eq(parse_file("[fabric]\nmemory = 2M\nsmall = 4K\n", "--memory 8M /mnt"), 0);
    cr_assert_eq(settings.memory_bytes, 8 << 20);
    cr_assert_eq(settings.small_bytes, 4096);
}

Test(options, a_bad_value_in_the_file_is_refused_although_the_command_line_wins)
{
    cr_assert_eq(parse_file("[fabric]\nmemory = lots\n", "--memory 8M /mnt"), -EINVAL);
    cr_assert(strstr(refusal.text, ":2: memory"));
}

Test(options, unknown_options_and_bad_values_are_named)
{
    refused("--memroy 2M /mnt", "--memroy");
    refused("-x /mnt", "-x");
    refused("-o frobnicate /mnt", "frobnicate");
    refused("--memory 2X /mnt", "--memory: \"2X\"");
    refused("--buffer fast /mnt", "auto, passthrough or coherent");
    refused("--awake=always /mnt", "auto or never");
    refused("--memory", "--memory needs a value");
    refused("--foreground=perhaps /mnt", "yes or no");
    refused("--numa=-2 /mnt", "auto, none, or the number");
    refused("--huge=age /mnt", "--huge");
    refused("-o memory=1 /mnt", "-o memory");
    refused("--fabric=a/b /mnt", "--fabric");
    refused("--fabric=fabric-fabric-fabric-fabric-fabr /mnt", "at most 31");
    refused("-o", "-o needs a value");
    refused("-o fscontext=a\n[fabric] /mnt", "control characters");
}

Test(options, there_is_exactly_one_mount_point)
{
    refused("", "mount point");
    refused("a b c", "\"c\"");
}

Test(options, a_node_has_a_number_below_the_number_of_nodes)
{
    refused("--node 2 --nodes 2 /mnt", "below the number of nodes");
    refused("--nodes 513 /mnt", "--nodes");
}

Test(options, values_that_contradict_each_other_are_refused_where_they_were_given)
{
    refused("--node 1 /mnt", "--node:");
    file_refused("[fabric]\nmemory = 8M\nmemory_user = 9M\n", ":3: memory_user:");
}

Test(options, the_file_is_refused_with_line_and_key)
{
    file_refused("[fabric]\n\n; comment\nmemroy = 2M\n", ":4: unknown key \"memroy\"");
    file_refused("[fabric]\nmemory = 2X\n", ":2: memory: \"2X\"");
    file_refused("[fabrik]\nmemory = 2M\n", ":1: unknown section \"fabrik\"");
    file_refused("[node 512]\nwindow = shm:a\n", "unknown section \"node 512\"");
    file_refused("[nothing here]\n", ":1: unknown section \"nothing here\"");
    file_refused("[node x]\nwindow = shm:a\n", "unknown section \"node x\"");
    file_refused("memory = 2M\n", ":1: this key stands before any [section]: \"memory\"");
    file_refused("[fabric]\nmemory\n", ":2: \"memory\" is neither [section] nor key = value");
    file_refused("[fabric]\nmemory = 2M\nmemory = 3M\n", ":3: second value for \"memory\"");
    file_refused("[fabric]\nforeground = yes\n", "unknown key \"foreground\"");
    file_refused("[node 0]\nwindow = nowhere\n", ":2: window");
}

Test(options, an_indented_line_is_a_line_of_its_own)
{
    cr_assert_eq(parse_file("[fabric]\n  name = rack1\n  small = 1K\n", "/mnt"), 0, "%s", refusal.text);
    cr_assert_str_eq(settings.fabric, "rack1");
    cr_assert_eq(settings.small_bytes, 1024);
}

Test(options, a_line_too_long_for_the_reader_is_refused)
{
    char text[600] = "[fabric]\nname = ";
    memset(text + strlen(text), 'a', 500);
    file_refused(text, ":2: line of more than");
}

Test(options, an_unreadable_file_is_refused_by_name)
{
    cr_assert_eq(parse("--config /nonexistent/fabricfs.conf /mnt"), -ENOENT);
    cr_assert(strstr(refusal.text, "/nonexistent/fabricfs.conf"));
    cr_assert_eq(parse("--config / /mnt"), -EISDIR);
}

Test(options, sections_of_nodes_keep_what_they_say)
{
    cr_assert_eq(
        parse_file("[node 0]\nlanding = dax:/dev/dax0.0 ; reserved\nswitch = A\nbandwidth = 4G\n", "/mnt"), 0,
        "%s", refusal.text);
    cr_assert_str_eq(settings.node_list[0].landing, "dax:/dev/dax0.0");
    cr_assert_str_eq(settings.node_list[0].switch_name, "A");
    cr_assert_eq(settings.node_list[0].bandwidth_bytes, 4ull << 30);
}

Test(options, the_listing_says_where_each_value_came_from)
{
    cr_assert_eq(parse_file("[fabric]\nname = rack1\n[node 0]\nswitch = A\n", "--workers=3 /mnt"), 0);
    char line[256];
    snprintf(line, sizeof(line), "; %.200s:2\n", settings.config);
    cr_assert(rendered("name = rack1"));
    cr_assert(rendered(line));
    cr_assert(rendered("workers = 3"));
    cr_assert(rendered("; command line\n"));
    cr_assert(rendered("[node 0]\nswitch = A"));
    cr_assert_not(rendered("[node 1]"));
    cr_assert_not(rendered("landing"));
}

Test(options, the_listing_is_a_configuration_file_with_the_same_meaning)
{
    static struct fs_settings before;
    struct ut_text text = {0};
    cr_assert_eq(parse_file("[node 0]\nlatency = 500\n", "--memory 12M --huge always --kernel avx2 /mnt"), 0);
    before = settings;
    fs_options_render(&settings, &text);
    cr_assert_eq(parse_file(text.bytes, "/mnt"), 0, "%s\n%s", refusal.text, text.bytes);
    ut_text_fini(&text);
    cr_assert_eq(settings.memory_bytes, before.memory_bytes);
    cr_assert_str_eq(settings.huge, "always");
    cr_assert_str_eq(settings.kernel, "avx2");
    cr_assert_eq(settings.node_list[0].latency_ns, 500);
}

Test(options, a_device_is_a_pci_address)
{
    cr_assert_eq(parse_file("[node 0]\ndevice = 10000:05:00.0\n", "/mnt"), 0, "%s", refusal.text);
    cr_assert_str_eq(settings.node_list[0].device, "10000:05:00.0");
    cr_assert_eq(parse_file("[node 0]\ndevice = eth0\n", "/mnt"), -EINVAL);
    cr_assert(strstr(refusal.text, "0000:05:00.0"), "%s", refusal.text);
    cr_assert_eq(parse_file("[fabric]\nsysfs = sys\n", "/mnt"), -EINVAL, "not absolute");
}

Test(options, help_and_manual_page_know_every_option)
{
    static const char *const names[] = {"config", "foreground", "memory", "buffer", "nodes", "version"};
    struct ut_text help = {0}, man = {0};
    fs_options_help(&help);
    fs_options_man(&man);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char option[32], roff[32];
        snprintf(option, sizeof(option), "--%s", names[i]);
        snprintf(roff, sizeof(roff), "\\-\\-%s", names[i]);
        cr_assert(strstr(help.bytes, option), "%s", option);
        cr_assert(strstr(man.bytes, roff), "%s", roff);
    }
    ut_text_fini(&help);
    ut_text_fini(&man);
}

Test(options, help_needs_no_mount_point)
{
    cr_assert_eq(parse("--help"), 0);
    cr_assert(settings.help);
    cr_assert_eq(parse("-V"), 0);
    cr_assert(settings.version);
}

Test(options, the_example_file_with_every_default_uncommented_changes_nothing)
{
    static struct fs_settings before;
    struct ut_text text = {0};
    cr_assert_eq(parse_file("", "/mnt"), 0);
    before = settings;
    fs_options_example(&text);
    for (char *line = text.bytes; (line = strstr(line, "\n;")); line++) {
        const char *value = strstr(line, " = ");
        if (line[2] != ' ' && value[3] != '\n')
            line[1] = ' ';
    }
    cr_assert_eq(parse_file(text.bytes, "/mnt"), 0, "%s", refusal.text);
    ut_text_fini(&text);
    cr_assert_neq(settings.origin[2], 0, "nothing was uncommented");
    cr_assert_eq(settings.memory_bytes, before.memory_bytes);
    cr_assert_eq(settings.small_bytes, before.small_bytes);
    cr_assert_eq(settings.heartbeat_ms, before.heartbeat_ms);
    cr_assert_eq(settings.log_level, before.log_level);
    cr_assert_str_eq(settings.kernel, before.kernel);
}
