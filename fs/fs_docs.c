/*
 * Writes what is installed beside the program, while it is built: "fs_docs man" the page fabricfs(8), and
 * "fs_docs example" a configuration file to start from. Options and keys come from the table of fs_options.c.
 */
#include "fs/fs_options.h"

#include <stdio.h>
#include <string.h>

static const char before_options[] =
    ".TH FABRICFS 8 \"\" \"fabricfs " FS_VERSION "\" \"System administration\"\n"
    ".SH NAME\n"
    "fabricfs \\- shared gradient memory and collectives as files\n"
    ".SH SYNOPSIS\n"
    ".B fabricfs\n"
    "[\\fIoptions\\fR] \\fIMOUNTPOINT\\fR\n"
    ".br\n"
    ".B fabricfs\n"
    "\\fISOURCE\\fR \\fIMOUNTPOINT\\fR \\fB\\-o\\fR \\fIoption\\fR[,\\fIoption\\fR...]\n"
    ".SH DESCRIPTION\n"
    ".B fabricfs\n"
    "mounts a file system in which a training job keeps its gradients. A job is a directory under\n"
    ".IR jobs ;\n"
    "a rank of it has a\n"
    ".I buffer\n"
    "file to map or write, and trigger files such as\n"
    ".IR allreduce :\n"
    "writing to one combines the buffers of all ranks in place, and the write returns when it is done.\n"
    "The file\n"
    ".I README\n"
    "in the mounted tree shows how.\n"
    ".PP\n"
    "The daemon goes to the background once the mount answers. A mount left behind by a daemon that was\n"
    "killed is replaced; one that is alive is left alone and the start refused. SIGTERM and SIGINT unmount\n"
    "and end the daemon.\n"
    ".PP\n"
    "Mounted by root, every user may use the tree; directories of jobs keep them apart. Mounted by another\n"
    "user, through fusermount3, it is that user's.\n";

static const char after_options[] =
    ".SH MOUNT OPTIONS\n"
    "Behind\n"
    ".B \\-o\n"
    "stand, separated by commas, the options above as \\fIname\\fR=\\fIvalue\\fR, the options of FUSE, and "
    "those\n"
    "that only mount(8) and systemd read.\n"
    ".BR nosuid ,\n"
    ".BR nodev ,\n"
    ".B noexec\n"
    "and\n"
    ".B default_permissions\n"
    "are always set, and\n"
    ".B allow_other\n"
    "when root mounts.\n"
    ".SH FILES\n"
    ".TP\n"
    ".I " FS_CONFIG_FILE "\n"
    "Read at start when it is there. What the command line says wins over it.\n"
    ".SH EXIT STATUS\n"
    ".TP\n"
    ".B 0\n"
    "The mount answers (in the background), or was ended as asked (in the foreground).\n"
    ".TP\n"
    ".B 1\n"
    "The mount could not be made or kept; one line on standard error says why.\n"
    ".TP\n"
    ".B 2\n"
    "An option or the configuration file is wrong; one line names the option, or file, line and key.\n"
    ".SH EXAMPLES\n"
    "One node, nothing to configure:\n"
    ".PP\n"
    ".RS\n"
    "fabricfs /fabric\n"
    ".RE\n"
    ".PP\n"
    "A line of\n"
    ".IR /etc/fstab :\n"
    ".PP\n"
    ".RS\n"
    "fabricfs /fabric fuse.fabricfs config=/etc/fabricfs.conf,_netdev 0 0\n"
    ".RE\n"
    ".SH SEE ALSO\n"
    ".BR fabricctl (1),\n"
    ".BR fusermount3 (1),\n"
    ".BR mount.fuse3 (8),\n"
    ".BR fuse (4)\n";

static void man_page(struct ut_text *out)
{
    ut_text_addf(out, "%s", before_options);
    fs_options_man(out);
    ut_text_addf(out, "%s", after_options);
}

int main(int argc, char **argv)
{
    struct ut_text text = {0};
    if (argc == 2 && strcmp(argv[1], "man") == 0)
        man_page(&text);
    else if (argc == 2 && strcmp(argv[1], "example") == 0)
        fs_options_example(&text);
    else
        return 2;
    if (ut_text_failed(&text) || fwrite(text.bytes, 1, text.len, stdout) != text.len || fflush(stdout))
        return 1;
    ut_text_fini(&text);
    return 0;
}
