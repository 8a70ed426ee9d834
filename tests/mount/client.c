/*
 * A C client for the mount tests, as small as a C program can use the fabric.
 *
 *   client sum RANKDIR VALUE COUNT
 *       fills its buffer with COUNT floats through a mapping, sums, prints the first after checking that all
 *       are equal
 *
 *   client hold RANKDIR COMMAND
 *       one command; writes it again after each EINTR; prints "ERRNO TRIES"
 *
 *   client once RANKDIR COMMAND
 *       one command, not repeated; prints "ERRNO TRIES"
 *
 *   client submit RANKDIR COUNT
 *       COUNT operations by AIO; prints how many were submitted, and at their end how many have ended
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int open_in(const char *dir, const char *name, int flags)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, flags);
    if (fd < 0) {
        perror(path);
        exit(1);
    }
    return fd;
}

static int sum(const char *dir, float value, size_t count)
{
    int buffer = open_in(dir, "buffer", O_RDWR), trigger = open_in(dir, "allreduce", O_RDWR);
    float *x = mmap(NULL, count * sizeof(*x), PROT_READ | PROT_WRITE, MAP_SHARED, buffer, 0);
    if (x == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    for (size_t i = 0; i < count; i++)
        x[i] = value;
    char command[64];
    int len = snprintf(command, sizeof(command), "op=sum dtype=f32 count=%zu\n", count);
    if (write(trigger, command, (size_t)len) != len) {
        perror("allreduce");
        return 1;
    }
    for (size_t i = 1; i < count; i++) {
        if (x[i] != x[0]) {
            fprintf(stderr, "element %zu is %g, the first %g\n", i, (double)x[i], (double)x[0]);
            return 1;
        }
    }
    printf("%g\n", (double)x[0]);
    return 0;
}

static void ignore(int number)
{
    (void)number;
}

static int command(const char *dir, const char *text, bool again)
{
    struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    int trigger = open_in(dir, "allreduce", O_RDWR), tries = 0;
    ssize_t n;
    do {
        tries++;
        n = write(trigger, text, strlen(text));
    } while (again && n < 0 && errno == EINTR);
    printf("%d %d\n", n < 0 ? errno : 0, tries);
    return 0;
}

/* Asks for count operations, each of a tag of its own, without waiting for any; then waits for all. */
static int submit(const char *dir, size_t count)
{
    int trigger = open_in(dir, "allreduce", O_RDWR);
    aio_context_t context = 0;
    struct iocb iocb[64], *all[64];
    struct io_event events[64];
    char text[64][32];
    if (count > 64 || syscall(SYS_io_setup, count, &context) < 0)
        return 1;
    for (size_t i = 0; i < count; i++) {
        int len = snprintf(text[i], sizeof(text[i]), "count=1 tag=t%zu\n", i);
        iocb[i] = (struct iocb){.aio_lio_opcode = IOCB_CMD_PWRITE,
                                .aio_fildes = (uint32_t)trigger,
                                .aio_buf = (uint64_t)(uintptr_t)text[i],
                                .aio_nbytes = (uint64_t)len};
        all[i] = &iocb[i];
    }
    printf("%ld\n", syscall(SYS_io_submit, context, count, all));
    fflush(stdout);
    printf("%ld\n", syscall(SYS_io_getevents, context, count, count, events, NULL));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "sum") == 0)
        return sum(argv[2], strtof(argv[3], NULL), strtoul(argv[4], NULL, 10));
    if (argc == 4 && strcmp(argv[1], "hold") == 0)
        return command(argv[2], argv[3], true);
    if (argc == 4 && strcmp(argv[1], "once") == 0)
        return command(argv[2], argv[3], false);
    if (argc == 4 && strcmp(argv[1], "submit") == 0)
        return submit(argv[2], strtoul(argv[3], NULL, 10));
    fprintf(stderr,
            "usage: client sum RANKDIR VALUE COUNT | hold|once RANKDIR COMMAND | submit RANKDIR COUNT\n");
    return 2;
}
