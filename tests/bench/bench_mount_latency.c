/*
 * Latency through a mount, as a client sees it.
 *
 *   bench_mount_latency JOBDIR WORLD OPERATIONS
 *
 * Prints "trip P50 P99" for a bare request, fstat() of an open trigger, which the kernel sends to the daemon
 * and back, and "allreduce P50 P99 P999" for 8 bytes by WORLD processes that all wait for each other; in
 * microseconds. The job has world = WORLD and dtype = f64; this program joins all its ranks.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double permille(const double *sorted, size_t count, unsigned n)
{
    return sorted[(count - 1) * n / 1000];
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int open_trigger(const char *job, unsigned rank)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/ranks/%u/allreduce", job, rank);
    int fd = open(path, O_RDWR);
    if (fd < 0)
        fail(path);
    return fd;
}

static void join(const char *job, unsigned rank)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/ranks/%u", job, rank);
    if (mkdir(path, 0777))
        fail(path);
}

static void measure_trip(int fd, double *took, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct stat st;
        double start = now_us();
        if (fstat(fd, &st))
            fail("fstat");
        took[i] = now_us() - start;
    }
    qsort(took, count, sizeof(*took), by_value);
    printf("trip %.2f %.2f\n", permille(took, count, 500), permille(took, count, 990));
}

/* Every rank runs this; the first tenth warms up and is not counted. */
static void reduce(int fd, double *took, size_t count)
{
    static const char command[] = "count=1\n";
    for (size_t i = 0; i < count + count / 10; i++) {
        double start = now_us();
        if (write(fd, command, sizeof(command) - 1) < 0)
            fail("allreduce");
        if (i >= count / 10)
            took[i - count / 10] = now_us() - start;
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: bench_mount_latency JOBDIR WORLD OPERATIONS\n");
        return 2;
    }
    const char *job = argv[1];
    unsigned world = (unsigned)atoi(argv[2]);
    size_t count = strtoul(argv[3], NULL, 10);
    double *took = malloc(count * sizeof(*took));
    if (!took || !count || !world)
        fail("arguments");
    for (unsigned rank = 0; rank < world; rank++)
        join(job, rank);
    int fd = open_trigger(job, 0);
    measure_trip(fd, took, count);
    fflush(stdout);
    for (unsigned rank = 1; rank < world; rank++) {
        if (fork() == 0) {
            close(fd);
            reduce(open_trigger(job, rank), took, count);
            _exit(0);
        }
    }
    reduce(fd, took, count);
    qsort(took, count, sizeof(*took), by_value);
    printf("allreduce %.2f %.2f %.2f\n", permille(took, count, 500), permille(took, count, 990),
           permille(took, count, 999));
    int bad = 0, status;
    while (wait(&status) > 0)
        bad |= status;
    return bad ? 1 : 0;
}
