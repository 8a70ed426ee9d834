/*
 * The settings of the daemon: what the command line, the configuration file and the defaults come to.
 * fs_options.c holds the table of options that everything else about them is made from.
 *
 * Read at start, by main(); constant afterwards, so any thread may look.
 */
#ifndef FS_OPTIONS_H
#define FS_OPTIONS_H

#include "utils/ut_err.h"
#include "utils/ut_text.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#define FS_NODE_MAX 512
#define FS_OPTION_MAX 32
#define FS_NODE_OPTION_MAX 8

#define FS_CONFIG_FILE "/etc/fabricfs.conf"

/* How a buffer's pages reach the clients (fs_settings.buffer). */
enum fs_buffer_mode { FS_BUFFER_AUTO, FS_BUFFER_PASSTHROUGH, FS_BUFFER_COHERENT };

enum fs_awake_mode { FS_AWAKE_AUTO, FS_AWAKE_NEVER };

enum fs_log_level { FS_LOG_ERROR, FS_LOG_WARNING, FS_LOG_INFO, FS_LOG_DEBUG };

/* What the section [node N] says; a text that nobody set is empty, a number 0. */
struct fs_node_settings {
    char landing[256];                   /* memory that peers write into, as a URI */
    char window[256];                    /* how this node reaches node N, as a URI */
    char device[32];                     /* PCI address whose path is watched; empty: that of the window */
    char switch_name[64];                /* for the ring order */
    uint64_t bandwidth_bytes;            /* a second; 0: as the path allows */
    int latency_ns;                      /* added to each message */
    uint32_t origin[FS_NODE_OPTION_MAX]; /* of ut_options.h */
};

struct fs_settings {
    char mountpoint[PATH_MAX]; /* as given; main makes it absolute */
    char source[128];          /* first column of the mount table */
    char fsname[128];          /* of -o fsname=, which wins over the operand; "" for none */
    char mount_options[1024];  /* of -o, for FUSE, separated by commas; "" for none */

    char fabric[32];            /* as landing memory holds it */
    int node;                   /* this node, below nodes */
    int nodes;                  /* of the fabric */
    uint64_t memory_bytes;      /* limit of all buffers together */
    uint64_t memory_user_bytes; /* limit of the buffers of one user, at most memory_bytes */
    enum fs_buffer_mode buffer;
    int workers;          /* threads; 0: one for each core */
    char kernel[16];      /* name of an instruction set (red_kernel.h), or "auto" */
    uint64_t small_bytes; /* an operation of at most so many bytes a rank, and 8 times that in all, is done on
                             the loop thread */
    char numa[16];        /* node of memory and threads: "auto", "none" or a number */
    char huge[16];        /* tmpfs huge= of the buffers; "" is the kernel's default */
    enum fs_awake_mode awake;
    int heartbeat_ms;
    bool faults;          /* links are emulated, and can be broken */
    char sysfs[PATH_MAX]; /* where devices are looked up: /sys, or a recorded tree */
    int sample_ms;        /* between looks at them; 0: never */
    int error_limit;      /* errors in 10 s above which a device is suspect; 0: never */
    int drop_limit;       /* drops of its link in a minute; 0: never */
    int well_s;           /* after so long without trouble it is well again */
    char drain[PATH_MAX]; /* command of the shell for a node that has become suspect; "" for none */
    int drain_timeout;    /* seconds it may take */
    enum fs_log_level log_level;

    char config[PATH_MAX]; /* configuration file; the default one need not exist */
    bool foreground;
    bool help, version;

    uint32_t origin[FS_OPTION_MAX]; /* of ut_options.h */
    struct fs_node_settings node_list[FS_NODE_MAX];
};

/* Takes command line and configuration file. *out is complete unless help or version is asked for, which
 * the caller answers first. 0, or -errno with err set to one sentence that names the option, or file, line
 * and key; *out is then unusable. The structure is large (400 KiB): not for the stack of a thread. */
int fs_options_parse(int argc, char *const *argv, struct fs_settings *out, struct ut_err *err);

/* Appends what the mount's `config` file shows: the effective settings in the form of a configuration file,
 * with where each came from. */
void fs_options_render(const struct fs_settings *settings, struct ut_text *out);

/* Appends the answer to --help; the options and keys as sections of fabricfs(8), with man macros; and a
 * configuration file that changes nothing, to start from. */
void fs_options_help(struct ut_text *out);
void fs_options_man(struct ut_text *out);
void fs_options_example(struct ut_text *out);

#endif
