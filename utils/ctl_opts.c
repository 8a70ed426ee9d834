#include "utils/ctl_opts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utils/ut_num.h"

#define READERS (CTL_DOCTOR | CTL_TOPO | CTL_LINKS)
#define LOOKERS (CTL_STATUS | CTL_TOP | CTL_REPORT)
#define PRINTERS (READERS | CTL_PLAN | CTL_PERF | CTL_STATUS)
#define ALL (PRINTERS | LOOKERS)

struct command {
    const char *name;
    enum ctl_command command;
    const char *does;
    const char *text;
};

static const struct command COMMANDS[] = {
    {"doctor", CTL_DOCTOR, "says in words what is wrong with this machine's PCIe set-up",
     "Checks devices, links, errors, windows, ACS, IOMMU, memory and the kernel, and prints for each "
     "finding\n"
     "what it is, where, the evidence, why it matters and what to do next. It never changes anything."},
    {"topo", CTL_TOPO, "draws the tree, its links and bottlenecks, and how devices reach each other",
     "Draws the tree with the speed of each link, then a matrix of the chosen devices: how far apart they "
     "are\n"
     "(PIX PXB PHB NODE SYS) and what peer-to-peer traffic meets on the way."},
    {"links", CTL_LINKS, "lists all links, worst first",
     "Lists all links with what they run at and what both ends can do, worst first."},
    {"plan", CTL_PLAN, "computes what a fabric would reach",
     "Bandwidth by generation, width and payload, the time of an allreduce over PCIe and over Ethernet, and "
     "the\n"
     "cables of a fabric with and without a switch."},
    {"perf", CTL_PERF, "measures collectives through a mounted fabric",
     "Starts one process a rank, each with a buffer of its own, has them run a collective again and again, "
     "and\n"
     "prints what it took and whether every element was right. An iteration counts as long as at the rank "
     "where\n"
     "it took longest. --limit adds what one pass over as much memory takes inside one process. Needs only a "
     "mount."},
    {"status", CTL_STATUS, "says how a mounted fabric is: nodes, links, jobs, findings",
     "Prints a line for the fabric, for each node with its link, for each job with the rank that keeps the "
     "others\n"
     "waiting, and for each finding of the mount's health. A daemon that does not answer is an error, in "
     "time."},
    {"top", CTL_TOP, "shows a mounted fabric in the terminal, as it goes",
     "Shows nodes, links, health and jobs: operations a second, latency with its course, the rank that keeps "
     "the\n"
     "others waiting. The last line has the keys: pick a job and see its ranks, sort, turn to nodes and "
     "findings."},
    {"report", CTL_REPORT, "writes a job into one HTML file that can be mailed",
     "Writes what the job is, its ranks and who is late, where the time goes, its last operations, nodes and "
     "links,\n"
     "findings and events: one file of HTML with pictures in it, which fetches nothing and runs nothing."},
};

static const struct command *command_of(const char *name)
{
    for (size_t i = 0; i < sizeof COMMANDS / sizeof COMMANDS[0]; i++)
        if (!strcmp(COMMANDS[i].name, name))
            return &COMMANDS[i];
    return NULL;
}

/* ---- options ---- */

/* Sets one option; value is NULL for those without. 0 or -EINVAL. */
typedef int set_fn(struct ctl_opts *opts, const char *value);

static int set_help(struct ctl_opts *opts, const char *value)
{
    (void)value;
    opts->help = true;
    return 0;
}

static int set_json(struct ctl_opts *opts, const char *value)
{
    (void)value;
    opts->json = true;
    return 0;
}

static int set_colour(struct ctl_opts *opts, const char *value)
{
    static const char *const WORDS[] = {"auto", "always", "never"};
    for (int i = 0; i < 3; i++) {
        if (!strcmp(value, WORDS[i])) {
            opts->colour = (enum ctl_colour)i;
            return 0;
        }
    }
    return -EINVAL;
}

static int set_dump(struct ctl_opts *opts, const char *value)
{
    opts->dump = value;
    return 0;
}

static int set_sysfs(struct ctl_opts *opts, const char *value)
{
    opts->sysfs = value;
    return 0;
}

static int set_proc(struct ctl_opts *opts, const char *value)
{
    opts->proc = value;
    return 0;
}

static int set_watch(struct ctl_opts *opts, const char *value)
{
    (void)value;
    opts->watch = true;
    return 0;
}

static int set_interval(struct ctl_opts *opts, const char *value)
{
    uint64_t ns;
    if (ut_num_seconds(value, &ns) || ns < 10000000)
        return -EINVAL;
    opts->interval_ns = ns;
    return 0;
}

static int set_samples(struct ctl_opts *opts, const char *value)
{
    return ut_num_u64(value, UINT32_MAX, &opts->samples);
}

static int set_dot(struct ctl_opts *opts, const char *value)
{
    (void)value;
    opts->graph = CTL_GRAPH_DOT;
    return 0;
}

static int set_svg(struct ctl_opts *opts, const char *value)
{
    (void)value;
    opts->graph = CTL_GRAPH_SVG;
    return 0;
}

static int set_devices(struct ctl_opts *opts, const char *value)
{
    opts->devices = value;
    return 0;
}

static int set_mounted(struct ctl_opts *opts, const char *value)
{
    opts->mount = value;
    return 0;
}

static int set_timeout(struct ctl_opts *opts, const char *value)
{
    uint64_t ns;
    if (ut_num_seconds(value, &ns) || !ns)
        return -EINVAL;
    opts->timeout_ns = ns;
    return 0;
}

static int set_output(struct ctl_opts *opts, const char *value)
{
    opts->output = value;
    return 0;
}

/* A whole number from min to max. */
static int set_number(const char *value, uint64_t min, uint64_t max, uint64_t *out)
{
    uint64_t number;
    if (ut_num_u64(value, max, &number) || number < min)
        return -EINVAL;
    *out = number;
    return 0;
}

static int set_nodes(struct ctl_opts *opts, const char *value)
{
    return set_number(value, 1, 4096, &opts->nodes);
}

static int set_devices_a_node(struct ctl_opts *opts, const char *value)
{
    return set_number(value, 1, 64, &opts->devices_a_node);
}

static int set_size(struct ctl_opts *opts, const char *value)
{
    uint64_t bytes;
    if (ut_num_bytes(value, &bytes) || !bytes || bytes > 1ull << 50)
        return -EINVAL;
    opts->size_bytes = bytes;
    return 0;
}

static int set_gen(struct ctl_opts *opts, const char *value)
{
    return set_number(value, 1, 6, &opts->gen);
}

static int set_width(struct ctl_opts *opts, const char *value)
{
    uint64_t width;
    if (set_number(value[0] == 'x' ? value + 1 : value, 1, 32, &width) ||
        (width & (width - 1) && width != 12))
        return -EINVAL;
    opts->width = width;
    return 0;
}

static int set_payload(struct ctl_opts *opts, const char *value)
{
    return set_number(value, 4, 4096, &opts->payload_bytes);
}

/* A number above 0 with a fraction, up to max. */
static int set_real(const char *value, double max, double *out)
{
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end || !(number > 0 && number <= max))
        return -EINVAL;
    *out = number;
    return 0;
}

static int set_gbytes(struct ctl_opts *opts, const char *value)
{
    return set_real(value, 10000, &opts->gbytes);
}

static int set_efficiency(struct ctl_opts *opts, const char *value)
{
    double percent;
    if (set_real(value, 100, &percent))
        return -EINVAL;
    opts->efficiency = percent / 100;
    return 0;
}

static int set_seed(struct ctl_opts *opts, const char *value)
{
    (void)value;
    opts->seed = true;
    return 0;
}

static int set_mount(struct ctl_opts *opts, const char *value)
{
    opts->perf.mount = value;
    return 0;
}

static int set_ranks(struct ctl_opts *opts, const char *value)
{
    return set_number(value, 1, 1024, &opts->perf.ranks);
}

static int set_sizes(struct ctl_opts *opts, const char *value)
{
    opts->perf.sizes = value;
    return 0;
}

static int set_collective(struct ctl_opts *opts, const char *value)
{
    opts->perf.collective = value;
    return 0;
}

static int set_dtype(struct ctl_opts *opts, const char *value)
{
    opts->perf.dtype = value;
    return 0;
}

static int set_op(struct ctl_opts *opts, const char *value)
{
    opts->perf.op = value;
    return 0;
}

static int set_io(struct ctl_opts *opts, const char *value)
{
    opts->perf.rw = !strcmp(value, "rw");
    return opts->perf.rw || !strcmp(value, "mmap") ? 0 : -EINVAL;
}

static int set_queue(struct ctl_opts *opts, const char *value)
{
    return set_number(value, 1, 64, &opts->perf.queue);
}

static int set_iters(struct ctl_opts *opts, const char *value)
{
    return set_number(value, 1, 1000000, &opts->perf.iters);
}

static int set_bind(struct ctl_opts *opts, const char *value)
{
    (void)value;
    opts->perf.bind = true;
    return 0;
}

static int set_limit(struct ctl_opts *opts, const char *value)
{
    (void)value;
    opts->perf.limit = true;
    return 0;
}

static const struct option {
    const char *name;
    const char *value; /* its name in help; NULL without */
    unsigned commands;
    set_fn *set;
    const char *help;
} OPTIONS[] = {
    {"dump", "FILE", READERS, set_dump, "read a machine recorded with lspci -xxxx; - is standard input"},
    {"sysfs", "DIR", READERS, set_sysfs, "read a machine recorded as a sysfs tree (DIR/bus/pci/devices)"},
    {"proc", "DIR", CTL_DOCTOR, set_proc, "with --sysfs: that machine's /proc, for what the kernel says"},
    {"devices", "LIST", CTL_TOPO, set_devices,
     "devices of the matrix: gpu, nic, ntb, nvme, all, or addresses (default gpu,nic,ntb,nvme)"},
    {"dot", NULL, CTL_TOPO, set_dot, "write the tree for Graphviz"},
    {"svg", NULL, CTL_TOPO, set_svg, "write the tree as a picture"},
    {"watch", NULL, CTL_LINKS, set_watch, "show them again and again, and say what changed"},
    {"interval", "SECONDS", CTL_LINKS | CTL_TOP, set_interval,
     "time between two looks, of --watch or of top (default 1)"},
    {"samples", "N", CTL_LINKS, set_samples, "end --watch after N looks (default: when interrupted)"},
    {"nodes", "N", CTL_PLAN, set_nodes, "nodes in the ring (default 4)"},
    {"per-node", "N", CTL_PLAN, set_devices_a_node,
     "devices in a node whose buffers are reduced (default 2)"},
    {"size", "BYTES", CTL_PLAN, set_size, "bytes of one buffer, K M G accepted (default 256M)"},
    {"gen", "1..6", CTL_PLAN, set_gen, "PCIe generation (default 3)"},
    {"width", "xN", CTL_PLAN, set_width, "lanes (default x16)"},
    {"payload", "BYTES", CTL_PLAN, set_payload, "data bytes in a packet (default 256)"},
    {"efficiency", "PERCENT", CTL_PLAN, set_efficiency, "share of the raw rate that is reached (default 76)"},
    {"gbytes", "GB/s", CTL_PLAN, set_gbytes, "rate of a link, in place of generation, width and efficiency"},
    {"seed", NULL, CTL_PLAN, set_seed, "compare with the figures of the article this project started from"},
    {"mount", "DIR[,DIR...]", CTL_PERF, set_mount,
     "where the fabric is mounted; ranks are spread over several in turn (default /fabric)"},
    {"ranks", "N", CTL_PERF, set_ranks, "processes (default 2)"},
    {"sizes", "LIST", CTL_PERF, set_sizes,
     "bytes of one operation, K M G accepted (default 8,1K,64K,1M,16M,256M)"},
    {"collective", "NAME", CTL_PERF, set_collective,
     "allreduce (default), reduce_scatter, allgather, broadcast or barrier"},
    {"dtype", "TYPE", CTL_PERF, set_dtype, "f32 (default), f64 f16 bf16 i8 u8 i32 u32 i64 u64"},
    {"op", "OP", CTL_PERF, set_op, "sum (default), avg min max prod, and band bor bxor for whole numbers"},
    {"io", "mmap|rw", CTL_PERF, set_io,
     "map the buffer (default), or write the input and read the result each time"},
    {"queue", "N", CTL_PERF, set_queue, "operations in flight, on ranges side by side (default 1: blocking)"},
    {"iters", "N", CTL_PERF, set_iters, "measured operations a size (default 10 to 2000, by size)"},
    {"bind", NULL, CTL_PERF, set_bind, "keep each rank to a processor of its own, as mpirun does"},
    {"limit", NULL, CTL_PERF, set_limit, "add the machine's own time for one pass over as much memory"},
    {"mount", "DIR", LOOKERS, set_mounted, "where the fabric is mounted (default /fabric)"},
    {"timeout", "SECONDS", LOOKERS, set_timeout, "how long the daemon may take to answer (default 5)"},
    {"output", "FILE", CTL_REPORT, set_output, "the file to write (default standard output); also -o FILE"},
    {"json", NULL, PRINTERS, set_json, "print JSON"},
    {"color", "WHEN", PRINTERS | CTL_TOP, set_colour, "auto (on a terminal), always or never"},
    {"help", NULL, ALL, set_help, "show this help"},
};

static const struct option *option_of(const char *name, size_t len, enum ctl_command command)
{
    for (size_t i = 0; i < sizeof OPTIONS / sizeof OPTIONS[0]; i++)
        if (OPTIONS[i].commands & command && strlen(OPTIONS[i].name) == len &&
            !strncmp(OPTIONS[i].name, name, len))
            return &OPTIONS[i];
    return NULL;
}

/* Takes the one word that may stand beside options. */
static int take_operand(struct ctl_opts *opts, const char *word, struct ut_err *err)
{
    if (opts->command != CTL_REPORT || opts->job)
        return ut_err_set(err, -EINVAL, "unexpected word: %s", word);
    opts->job = word;
    return 0;
}

/* Reads the option at argv[*i], with its value in the same word or the next. */
static int parse_one(int argc, char **argv, int *i, struct ctl_opts *opts, struct ut_err *err)
{
    const char *word = strcmp(argv[*i], "-o") ? argv[*i] : "--output";
    if (strncmp(word, "--", 2))
        return take_operand(opts, word, err);
    const char *name = word + 2;
    size_t len = strcspn(name, "=");
    const char *equals = name[len] ? name + len : NULL;
    const struct option *option = option_of(name, len, opts->command);
    if (!option)
        return ut_err_set(err, -EINVAL, "no such option for this command: %s", word);
    if (!option->value && equals)
        return ut_err_set(err, -EINVAL, "--%s takes no value", option->name);
    const char *value = equals ? equals + 1 : NULL;
    if (option->value && !value && *i + 1 < argc)
        value = argv[++*i];
    if (option->value && (!value || !*value))
        return ut_err_set(err, -EINVAL, "--%s needs a value: %s", option->name, option->value);
    if (option->set(opts, value))
        return ut_err_set(err, -EINVAL, "--%s does not take %s: %s", option->name, value, option->help);
    return 0;
}

/* What one option alone cannot see. */
static int check_together(const struct ctl_opts *opts, struct ut_err *err)
{
    if (opts->dump && opts->sysfs)
        return ut_err_set(err, -EINVAL, "--dump and --sysfs are two machines: give one");
    if (opts->proc && !opts->sysfs)
        return ut_err_set(err, -EINVAL, "--proc goes with --sysfs");
    if (opts->json && opts->graph != CTL_GRAPH_NONE)
        return ut_err_set(err, -EINVAL, "--json and --dot or --svg are two outputs: give one");
    if (opts->watch && (opts->dump || opts->sysfs))
        return ut_err_set(err, -EINVAL, "--watch is for this machine: a recorded one does not change");
    if (opts->command == CTL_REPORT && !opts->job && !opts->help)
        return ut_err_set(err, -EINVAL, "report which job? fabricctl status lists them");
    return 0;
}

int ctl_opts_parse(int argc, char **argv, struct ctl_opts *opts, struct ut_err *err)
{
    *opts = (struct ctl_opts){.mount = "/fabric",
                              .timeout_ns = 5000000000,
                              .interval_ns = 1000000000,
                              .nodes = 4,
                              .devices_a_node = 2,
                              .size_bytes = 256 << 20,
                              .gen = 3,
                              .width = 16,
                              .payload_bytes = 256,
                              .efficiency = 0.76,
                              .perf = {.mount = "/fabric",
                                       .sizes = "8,1K,64K,1M,16M,256M",
                                       .collective = "allreduce",
                                       .dtype = "f32",
                                       .op = "sum",
                                       .ranks = 2,
                                       .queue = 1}};
    if (argc >= 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help"))) {
        opts->help = true;
        return 0;
    }
    const struct command *command = argc >= 2 ? command_of(argv[1]) : NULL;
    if (!command)
        return ut_err_set(err, -EINVAL, "%s%s",
                          argc >= 2 ? "no such command: "
                                    : "which command? doctor, topo, links, plan, perf, status, top or report",
                          argc >= 2 ? argv[1] : "");
    opts->command = command->command;
    for (int i = 2; i < argc; i++)
        if (parse_one(argc, argv, &i, opts, err))
            return -EINVAL;
    return check_together(opts, err);
}

/* ---- help ---- */

static void help_options(enum ctl_command command)
{
    puts("\nOptions:");
    for (size_t i = 0; i < sizeof OPTIONS / sizeof OPTIONS[0]; i++) {
        char left[40];
        if (!(OPTIONS[i].commands & command))
            continue;
        snprintf(left, sizeof left, "--%s%s%s", OPTIONS[i].name, OPTIONS[i].value ? " " : "",
                 OPTIONS[i].value ? OPTIONS[i].value : "");
        printf("  %-22s %s\n", left, OPTIONS[i].help);
    }
}

static void help_program(void)
{
    puts("fabricctl: looks at the PCI Express fabric of this machine, or of a recorded one, and at a mounted "
         "fabric.\n\n"
         "Usage: fabricctl COMMAND [OPTION...]\n\nCommands:");
    for (size_t i = 0; i < sizeof COMMANDS / sizeof COMMANDS[0]; i++)
        printf("  %-8s %s\n", COMMANDS[i].name, COMMANDS[i].does);
    puts(
        "\nfabricctl COMMAND --help shows the options of a command. Exit status: 0 all is well, 1 there are\n"
        "findings, 2 the command line or the input is at fault.");
}

void ctl_opts_help(enum ctl_command command)
{
    for (size_t i = 0; i < sizeof COMMANDS / sizeof COMMANDS[0]; i++) {
        if (COMMANDS[i].command == command) {
            printf("Usage: fabricctl %s%s [OPTION...]\n\n%s\n", COMMANDS[i].name,
                   command == CTL_REPORT ? " JOB" : "", COMMANDS[i].text);
            help_options(command);
            return;
        }
    }
    help_program();
}
