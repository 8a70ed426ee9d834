#include "fs/fs_options.h"

#include "ntbmem/ntbm_uri.h"
#include "utils/pci_addr.h"
#include "utils/ut_memory.h"
#include "utils/ut_num.h"
#include "utils/ut_options.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Operations above this are always worth the hand-over to a worker (measured: it costs some 10 us). */
#define SMALL_BYTES_MAX (64ll << 20)

#define FIELD(name) .offset = offsetof(struct fs_settings, name)
#define TEXT_FIELD(name) FIELD(name), .size = sizeof(((struct fs_settings *)NULL)->name)
#define NODE_FIELD(name) .offset = offsetof(struct fs_node_settings, name)
#define NODE_TEXT(name) NODE_FIELD(name), .size = sizeof(((struct fs_node_settings *)NULL)->name)

static const char *const buffer_modes[] = {"auto", "passthrough", "coherent", NULL};
static const char *const awake_modes[] = {"auto", "never", NULL};
static const char *const huge_modes[] = {"never", "always", "within_size", "advise", NULL};
static const char *const kernels[] = {"auto", "portable", "avx2", "avx512", NULL};
static const char *const log_levels[] = {"error", "warning", "info", "debug", NULL};

static bool is_name(const char *word)
{
    return word[strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")] == '\0' &&
           strcmp(word, ".") != 0 && strcmp(word, "..") != 0;
}

static bool is_one_of(const char *word, const char *const *words)
{
    for (; *words; words++) {
        if (strcmp(word, *words) == 0)
            return true;
    }
    return false;
}

static bool is_huge_mode(const char *word)
{
    return is_one_of(word, huge_modes);
}

/* Of any machine; whether this one has it is seen when the kernels are chosen. */
static bool is_kernel(const char *word)
{
    return is_one_of(word, kernels);
}

static bool is_uri(const char *word)
{
    struct ntbm_uri uri;
    struct ut_err err = {0};
    return ntbm_uri_parse(word, &uri, &err) == 0;
}

static bool is_numa(const char *word)
{
    uint64_t node;
    return strcmp(word, "auto") == 0 || strcmp(word, "none") == 0 || ut_num_u64(word, 1023, &node) == 0;
}

static bool is_path(const char *word)
{
    return *word == '/';
}

static bool is_device(const char *word)
{
    struct ut_pci_addr addr;
    return ut_pci_addr_parse(word, &addr) == 0;
}

static const struct ut_option options[] = {
    {.name = "config",
     .letter = 'c',
     .only_command = true,
     .kind = UT_OPTION_TEXT,
     TEXT_FIELD(config),
     .fallback = FS_CONFIG_FILE,
     .value = "FILE",
     .form = "the path of a file",
     .help = "Configuration file; the default one may be missing"},
    {.name = "foreground",
     .letter = 'f',
     .only_command = true,
     .kind = UT_OPTION_FLAG,
     FIELD(foreground),
     .help = "Stay in the foreground and log to standard error"},
    {.name = "fabric",
     .key = "name",
     .kind = UT_OPTION_TEXT,
     TEXT_FIELD(fabric),
     .fallback = "fabric",
     .value = "NAME",
     .fits = is_name,
     .form = "a name of letters, digits, dot, dash and underscore, at most 31",
     .help = "Name of the fabric: nodes of one name belong together"},
    {.name = "node",
     .kind = UT_OPTION_NUMBER,
     FIELD(node),
     .max = FS_NODE_MAX - 1,
     .fallback = "0",
     .value = "N",
     .help = "Number of this node"},
    {.name = "nodes",
     .kind = UT_OPTION_NUMBER,
     FIELD(nodes),
     .min = 1,
     .max = FS_NODE_MAX,
     .value = "N",
     .fallback_says = "as many as the configuration file describes, or 1",
     .help = "How many nodes the fabric has"},
    {.name = "memory",
     .kind = UT_OPTION_BYTES,
     FIELD(memory_bytes),
     .min = 1 << 20,
     .max = 1ll << 60,
     .value = "BYTES",
     .fallback_says = "half of RAM, or of the container's limit",
     .help = "Limit of all buffers together; K M G T are powers of 1024"},
    {.name = "memory_user",
     .kind = UT_OPTION_BYTES,
     FIELD(memory_user_bytes),
     .min = 1 << 20,
     .max = 1ll << 60,
     .value = "BYTES",
     .fallback_says = "as memory",
     .help = "Limit of the buffers of one user"},
    {.name = "buffer",
     .kind = UT_OPTION_CHOICE,
     FIELD(buffer),
     .choices = buffer_modes,
     .fallback = "auto",
     .value = "MODE",
     .help = "How mapped buffers reach the programs"},
    {.name = "workers",
     .kind = UT_OPTION_NUMBER,
     FIELD(workers),
     .max = 1024,
     .fallback = "0",
     .value = "N",
     .fallback_says = "0, one for each core",
     .help = "Threads that reduce"},
    {.name = "kernel",
     .kind = UT_OPTION_TEXT,
     TEXT_FIELD(kernel),
     .fallback = "auto",
     .value = "NAME",
     .fits = is_kernel,
     .form = "auto, portable, avx2 or avx512",
     .help = "Instruction set of the reduction kernels: auto, portable, avx2 or avx512"},
    {.name = "small",
     .kind = UT_OPTION_BYTES,
     FIELD(small_bytes),
     .max = SMALL_BYTES_MAX,
     .fallback = "64K",
     .value = "BYTES",
     .help = "Largest operation that is not handed to a worker, in bytes a rank; all ranks together, 8 times "
             "that"},
    {.name = "numa",
     .kind = UT_OPTION_TEXT,
     TEXT_FIELD(numa),
     .fallback = "auto",
     .value = "NODE",
     .fits = is_numa,
     .form = "auto, none, or the number of a NUMA node",
     .help = "NUMA node for landing memory, buffers and threads: auto (that of the devices), none, or its "
             "number"},
    {.name = "huge",
     .kind = UT_OPTION_TEXT,
     TEXT_FIELD(huge),
     .fallback = "",
     .value = "MODE",
     .fits = is_huge_mode,
     .form = "never, always, within_size or advise",
     .help = "Huge pages for buffers, as huge= of tmpfs: never, always, within_size or advise"},
    {.name = "awake",
     .kind = UT_OPTION_CHOICE,
     FIELD(awake),
     .choices = awake_modes,
     .fallback = "auto",
     .value = "MODE",
     .help = "Whether idle processors are kept from sleeping while operations follow one another within a "
             "millisecond"},
    {.name = "heartbeat_ms",
     .kind = UT_OPTION_NUMBER,
     FIELD(heartbeat_ms),
     .min = 10,
     .max = 60000,
     .fallback = "1000",
     .value = "N",
     .help = "Milliseconds of silence after which a peer is lost; after half of them it is suspect"},
    {.name = "faults",
     .kind = UT_OPTION_FLAG,
     FIELD(faults),
     .help = "For tests: root breaks emulated links by writing to nodes/N/link"},
    {.name = "sample_ms",
     .kind = UT_OPTION_NUMBER,
     FIELD(sample_ms),
     .max = 3600000,
     .fallback = "1000",
     .value = "N",
     .help = "Milliseconds between looks at the PCIe path of each node's device; 0: they are not watched"},
    {.name = "error_limit",
     .kind = UT_OPTION_NUMBER,
     FIELD(error_limit),
     .max = 1000000000,
     .fallback = "100",
     .value = "N",
     .help = "Errors (AER) on a path in 10 seconds above which its node is suspect; 0: never"},
    {.name = "drop_limit",
     .kind = UT_OPTION_NUMBER,
     FIELD(drop_limit),
     .max = 1000,
     .fallback = "3",
     .value = "N",
     .help = "Drops of a link, or lost sessions, in a minute above which its node is suspect; 0: never"},
    {.name = "well_s",
     .kind = UT_OPTION_NUMBER,
     FIELD(well_s),
     .max = 1000000,
     .fallback = "600",
     .value = "N",
     .help = "Seconds without trouble after which a suspect node is well again"},
    {.name = "drain",
     .kind = UT_OPTION_TEXT,
     TEXT_FIELD(drain),
     .fallback = "",
     .value = "COMMAND",
     .fallback_says = "none",
     .help = "Shell command to run once when a node becomes suspect; it finds node, reason and jobs in "
             "FABRICFS_NODE, FABRICFS_HOST, FABRICFS_REASON and FABRICFS_JOBS"},
    {.name = "drain_timeout",
     .kind = UT_OPTION_NUMBER,
     FIELD(drain_timeout),
     .min = 1,
     .max = 3600,
     .fallback = "30",
     .value = "SECONDS",
     .help = "How long that command may take before it is killed"},
    {.name = "sysfs",
     .kind = UT_OPTION_TEXT,
     TEXT_FIELD(sysfs),
     .fallback = "/sys",
     .value = "DIR",
     .fits = is_path,
     .form = "the absolute path of a directory",
     .help = "Where devices are looked up: sysfs, or a recorded copy of it"},
    {.name = "log",
     .kind = UT_OPTION_CHOICE,
     FIELD(log_level),
     .choices = log_levels,
     .fallback = "info",
     .value = "LEVEL",
     .help = "How much is logged"},
    {.name = "help",
     .letter = 'h',
     .only_command = true,
     .kind = UT_OPTION_FLAG,
     FIELD(help),
     .help = "Print this and exit"},
    {.name = "version",
     .letter = 'V',
     .only_command = true,
     .kind = UT_OPTION_FLAG,
     FIELD(version),
     .help = "Print the version and exit"},
};

#define URI_FORM \
    "shm:NAME, file:/PATH, dax:/dev/daxN.M or pci:BDF/BAR, with +OFFSET:LENGTH for a part of that memory"

static const struct ut_option node_options[] = {
    {.name = "landing",
     .kind = UT_OPTION_TEXT,
     NODE_TEXT(landing),
     .fallback = "",
     .value = "URI",
     .fits = is_uri,
     .form = URI_FORM,
     .fallback_says = "shared memory of this machine",
     .help = "Memory that peers write into: shm:NAME, file:PATH, dax:DEVICE, pci:BDF/BAR; +OFFSET:LENGTH"},
    {.name = "window",
     .kind = UT_OPTION_TEXT,
     NODE_TEXT(window),
     .fallback = "",
     .value = "URI",
     .fits = is_uri,
     .form = URI_FORM,
     .fallback_says = "shared memory of this machine",
     .help = "How this node reaches node N's landing memory: the same kinds, above all pci:BDF/BAR"},
    {.name = "device",
     .kind = UT_OPTION_TEXT,
     NODE_TEXT(device),
     .fallback = "",
     .value = "ADDRESS",
     .fits = is_device,
     .form = "the address of a PCI device, such as 0000:05:00.0",
     .fallback_says = "that of a pci: window",
     .help = "PCI device by which this node reaches node N: the links on its way to the root are watched"},
    {.name = "switch",
     .kind = UT_OPTION_TEXT,
     NODE_TEXT(switch_name),
     .fallback = "",
     .value = "NAME",
     .fits = is_name,
     .form = "a name of letters, digits, dot, dash and underscore",
     .help = "Switch that node N is attached to: neighbours in the ring share one where they can"},
    {.name = "bandwidth",
     .kind = UT_OPTION_BYTES,
     NODE_FIELD(bandwidth_bytes),
     .max = 1ll << 50,
     .fallback = "0",
     .fallback_says = "0, as the path allows",
     .value = "BYTES",
     .help = "Bytes a second that emulation lets through to node N"},
    {.name = "latency",
     .kind = UT_OPTION_NUMBER,
     NODE_FIELD(latency_ns),
     .max = 1000000000,
     .fallback = "0",
     .value = "NS",
     .help = "Nanoseconds that emulation adds to each message to node N"},
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static_assert(COUNT(options) <= FS_OPTION_MAX, "origin of each option");
static_assert(COUNT(node_options) <= FS_NODE_OPTION_MAX, "origin of each option of a node");

static const struct ut_option_group groups[] = {
    {.section = "fabric",
     .origin = offsetof(struct fs_settings, origin),
     .options = options,
     .option_count = COUNT(options)},
    {.section = "node",
     .block_count = FS_NODE_MAX,
     .offset = offsetof(struct fs_settings, node_list),
     .stride = sizeof(struct fs_node_settings),
     .origin = offsetof(struct fs_node_settings, origin),
     .options = node_options,
     .option_count = COUNT(node_options)},
};

/* ---- operands and mount options ---- */

/* MOUNTPOINT alone, or SOURCE MOUNTPOINT as mount(8) calls us: the last one is the mount point. */
static int take_operand(void *target, const char *word, struct ut_err *err)
{
    struct fs_settings *settings = target;
    if (*settings->source)
        return ut_err_set(err, -EINVAL, "\"%.60s\": there is one mount point already", word);
    if (strlen(word) >= sizeof(settings->mountpoint) || !*word)
        return ut_err_set(err, -EINVAL, "\"%.60s\" cannot be a mount point", word);
    if (*settings->mountpoint)
        snprintf(settings->source, sizeof(settings->source), "%.*s", (int)sizeof(settings->source) - 1,
                 settings->mountpoint);
    strcpy(settings->mountpoint, word);
    return 0;
}

/* Words of an fstab line that are for mount(8), systemd or a human being, those we decide ourselves, and
 * those of access times, which this tree has none of. */
static const char *const ignored[] = {"rw",
                                      "dev",
                                      "nodev",
                                      "suid",
                                      "nosuid",
                                      "exec",
                                      "noexec",
                                      "auto",
                                      "noauto",
                                      "user",
                                      "nouser",
                                      "users",
                                      "nousers",
                                      "owner",
                                      "group",
                                      "nofail",
                                      "_netdev",
                                      "atime",
                                      "noatime",
                                      "diratime",
                                      "nodiratime",
                                      "relatime",
                                      "norelatime",
                                      "strictatime",
                                      "async",
                                      "silent",
                                      "loud",
                                      "defaults",
                                      "default_permissions",
                                      "lazytime",
                                      "nolazytime",
                                      NULL};
static const char *const ignored_prefixes[] = {
    "x-", "X-", "comment=", "user=", "helper=", "uhelper=", "subtype=", NULL};

/* Words that FUSE or the kernel's mount call understands. */
static const char *const passed[] = {"ro",         "sync",         "dirsync", "allow_other",
                                     "allow_root", "auto_unmount", NULL};
static const char *const passed_prefixes[] = {
    "context=", "fscontext=", "defcontext=", "rootcontext=", "max_read=", NULL};

static bool begins_with_one_of(const char *word, const char *const *prefixes)
{
    for (; *prefixes; prefixes++) {
        if (strncmp(word, *prefixes, strlen(*prefixes)) == 0)
            return true;
    }
    return false;
}

static int take_mount_option(void *target, const char *item, struct ut_err *err)
{
    struct fs_settings *settings = target;
    if (is_one_of(item, ignored) || begins_with_one_of(item, ignored_prefixes))
        return 0;
    if (strncmp(item, "fsname=", 7) == 0) {
        snprintf(settings->fsname, sizeof(settings->fsname), "%s", item + 7);
        return 0;
    }
    if (!is_one_of(item, passed) && !begins_with_one_of(item, passed_prefixes))
        return ut_err_set(err, -EINVAL, "-o: unknown option \"%.60s\"", item);
    size_t used = strlen(settings->mount_options), left = sizeof(settings->mount_options) - used;
    int len = snprintf(settings->mount_options + used, left, "%s%s", used ? "," : "", item);
    if (len < 0 || (size_t)len >= left)
        return ut_err_set(err, -EINVAL, "-o: too many options for FUSE");
    return 0;
}

static struct ut_options bind(struct fs_settings *settings)
{
    return (struct ut_options){.groups = groups,
                               .group_count = COUNT(groups),
                               .settings = settings,
                               .operand = take_operand,
                               .foreign = take_mount_option};
}

/* ---- what depends on several of them ---- */

static int nodes_described(const struct fs_settings *settings)
{
    static const uint32_t nothing[FS_NODE_OPTION_MAX];
    int nodes = FS_NODE_MAX;
    while (nodes > 1 && memcmp(settings->node_list[nodes - 1].origin, nothing, sizeof(nothing)) == 0)
        nodes--;
    return nodes;
}

static void work_out_defaults(const struct ut_options *all, struct fs_settings *settings)
{
    if (!ut_options_given(all, "memory"))
        settings->memory_bytes = ut_memory_bytes() / 2;
    if (!ut_options_given(all, "memory_user"))
        settings->memory_user_bytes = settings->memory_bytes;
    if (!ut_options_given(all, "nodes"))
        settings->nodes = nodes_described(settings);
    if (*settings->fsname || !*settings->source)
        strcpy(settings->source, *settings->fsname ? settings->fsname : "fabricfs");
}

/* Refuses a value that only the others make wrong, where the user will find it. */
static int refuse(const struct ut_options *all, const char *name, const char *why, struct ut_err *err)
{
    const struct fs_settings *settings = all->settings;
    char where[256];
    ut_options_where(all, name, settings->config, where);
    return ut_err_set(err, -EINVAL, "%s: %s", where, why);
}

static int check_together(const struct ut_options *all, struct ut_err *err)
{
    const struct fs_settings *settings = all->settings;
    if (!*settings->mountpoint)
        return ut_err_set(err, -EINVAL, "no mount point given; --help shows how");
    if (settings->node >= settings->nodes)
        return refuse(all, "node", "must be below the number of nodes", err);
    if (settings->memory_user_bytes > settings->memory_bytes)
        return refuse(all, "memory_user", "must not be above memory", err);
    return 0;
}

int fs_options_parse(int argc, char *const *argv, struct fs_settings *out, struct ut_err *err)
{
    struct ut_options all = bind(out);
    memset(out, 0, sizeof(*out));
    ut_options_init(&all);
    int rc = ut_options_command(&all, argc, argv, err);
    if (rc || out->help || out->version)
        return rc;
    rc = ut_options_file(&all, out->config, err);
    if (rc && (rc != -ENOENT || ut_options_given(&all, "config")))
        return rc;
    work_out_defaults(&all, out);
    return check_together(&all, err);
}

void fs_options_render(const struct fs_settings *settings, struct ut_text *out)
{
    struct ut_options all = bind((struct fs_settings *)settings);
    ut_text_addf(out, "; effective settings: key = value ; where it came from\n");
    ut_text_addf(out, "; mountpoint %s\n; mount options %s\n", settings->mountpoint,
                 *settings->mount_options ? settings->mount_options : "(none)");
    ut_options_show(&all, settings->config, out);
}

void fs_options_help(struct ut_text *out)
{
    struct ut_options all = bind(NULL);
    ut_text_addf(out,
                 "usage: fabricfs [options] MOUNTPOINT\n"
                 "       fabricfs SOURCE MOUNTPOINT -o option,...   (as mount(8) calls it)\n\n"
                 "Mounts a file system whose files are gradient buffers and triggers of collectives.\n\n"
                 "Every option can be given as --name=value, as -o name=value, or, but for -c -f -h -V,\n"
                 "as a line name = value in the configuration file. FUSE's own options go behind -o.\n\n");
    ut_options_help(&all, out);
}

void fs_options_man(struct ut_text *out)
{
    struct ut_options all = bind(NULL);
    ut_options_man(&all, out);
}

void fs_options_example(struct ut_text *out)
{
    struct ut_options all = bind(NULL);
    ut_text_addf(
        out,
        "; Configuration of fabricfs(8). Lines that begin with ; are comments: this file changes nothing.\n"
        "; The command line wins over it.\n\n");
    ut_options_example(&all, out);
}
