/*
 * A rank of a job on a guest's mount: joins, runs collectives on its mapped buffer, and compares every
 * element with what it must be. Linked statically, for guests that have nothing else.
 *
 *   rank verify JOB RANK WORLD COUNT ROUNDS    every collective, ROUNDS times
 *   rank loop JOB RANK WORLD COUNT SECONDS     sums until something fails or the time is up; prints
 *                                              "ROUNDS ERRNO MS": of those that went well, of the last one
 *   rank send JOB RANK WORLD COUNT SECONDS     the same with broadcasts from rank 0, until two in a row fail
 *   rank bench JOB RANK WORLD COUNT ROUNDS     prints microseconds of a sum: shortest, median, mean
 *   rank copy FILE OFFSET BYTES ROUNDS         the same of one plain copy into the file's mapping
 *   rank peek FILE                             prints the first 8 bytes of the file's mapping
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct rank {
    char dir[200];
    uint32_t number, world, count;
    int buffer;     /* open */
    uint32_t *data; /* its mapping */
};

static void die(const char *what)
{
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static int open_in(const char *dir, const char *name, int flags)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    int fd = open(path, flags);
    if (fd < 0)
        die(path);
    return fd;
}

static void make_dir(const char *path)
{
    if (mkdir(path, 0755) && errno != EEXIST)
        die(path);
}

static void join(struct rank *rank, char **args)
{
    char job[100], config[160];
    rank->number = (uint32_t)atoi(args[1]);
    rank->world = (uint32_t)atoi(args[2]);
    rank->count = (uint32_t)atoi(args[3]);
    snprintf(job, sizeof(job), "/fabric/jobs/%s", args[0]);
    snprintf(rank->dir, sizeof(rank->dir), "%s/ranks/%u", job, rank->number);
    make_dir(job);
    int fd = open_in(job, "config", O_WRONLY), len = 0;
    len = snprintf(config, sizeof(config), "world=%u\ndtype=u32\nsize=%u\ntimeout=60\n", rank->world,
                   4 * rank->count);
    if (write(fd, config, (size_t)len) != len)
        die("config");
    close(fd);
    make_dir(rank->dir);
    rank->buffer = open_in(rank->dir, "buffer", O_RDWR);
    rank->data = mmap(NULL, 4ul * rank->count, PROT_READ | PROT_WRITE, MAP_SHARED, rank->buffer, 0);
    if (rank->data == MAP_FAILED)
        die("buffer");
}

/* Writes one command to an open trigger; its errno. */
static int ask_open(int fd, const char *command)
{
    return write(fd, command, strlen(command)) < 0 ? errno : 0;
}

static int ask(const struct rank *rank, const char *trigger, const char *command)
{
    int fd = open_in(rank->dir, trigger, O_RDWR);
    int error = ask_open(fd, command);
    close(fd);
    return error;
}

/* What rank r puts into element i, in each round another thing. */
static uint32_t input(uint32_t r, uint32_t i, uint32_t round)
{
    return (r + 1) * (i % 1000 + 1) + round * 7919;
}

static uint32_t sum_of_inputs(const struct rank *rank, uint32_t i, uint32_t round)
{
    uint32_t sum = 0;
    for (uint32_t r = 0; r < rank->world; r++)
        sum += input(r, i, round);
    return sum;
}

static void fill(const struct rank *rank, uint32_t round)
{
    for (uint32_t i = 0; i < rank->count; i++)
        rank->data[i] = input(rank->number, i, round);
}

/* Part r is [r * count / world, (r + 1) * count / world). */
static uint32_t owner_of(const struct rank *rank, uint32_t i)
{
    uint32_t r = (uint32_t)((uint64_t)i * rank->world / rank->count);
    while ((uint64_t)(r + 1) * rank->count / rank->world <= i)
        r++;
    return r;
}

enum { ALLREDUCE, REDUCE_SCATTER, ALLGATHER, BROADCAST, BARRIER, COLLECTIVES };

static const char *const triggers[] = {"allreduce", "reduce_scatter", "allgather", "broadcast", "barrier"};

static uint32_t expected(const struct rank *rank, int collective, uint32_t i, uint32_t round)
{
    switch (collective) {
    case ALLREDUCE:
        return sum_of_inputs(rank, i, round);
    case REDUCE_SCATTER:
        return owner_of(rank, i) == rank->number ? sum_of_inputs(rank, i, round)
                                                 : input(rank->number, i, round);
    case ALLGATHER:
        return input(owner_of(rank, i), i, round);
    case BROADCAST:
        return input(round % rank->world, i, round);
    default:
        return input(rank->number, i, round);
    }
}

/* A wrong element ends the program. */
static void check(const struct rank *rank, int collective, uint32_t round)
{
    for (uint32_t i = 0; i < rank->count; i++) {
        uint32_t want = expected(rank, collective, i, round);
        if (rank->data[i] == want)
            continue;
        printf("WRONG: %s, round %u, element %u is %u, not %u\n", triggers[collective], round, i,
               rank->data[i], want);
        exit(1);
    }
}

/* Runs one collective and checks every element; its errno. */
static int run_once(const struct rank *rank, int collective, uint32_t round)
{
    char command[40] = "";
    fill(rank, round);
    sync_file_range(rank->buffer, 0, 0,
                    SYNC_FILE_RANGE_WRITE); /* as the kernel may at any time; it goes on */
    if (collective == BROADCAST)
        snprintf(command, sizeof(command), "root=%u", round % rank->world);
    int error = ask(rank, triggers[collective], command[0] ? command : "\n");
    if (!error)
        check(rank, collective, round);
    return error;
}

static int verify(struct rank *rank, uint32_t rounds)
{
    for (uint32_t round = 0; round < rounds; round++) {
        for (int collective = 0; collective < COLLECTIVES; collective++) {
            int error = run_once(rank, collective, round);
            if (!error)
                continue;
            printf("%s, round %u: %s\n", triggers[collective], round, strerror(error));
            return 1;
        }
    }
    printf("verified\n");
    return 0;
}

static int loop(struct rank *rank, double seconds)
{
    double end = now_us() + seconds * 1e6, begin = 0;
    uint32_t round = 0;
    int error = 0;
    while (!error && now_us() < end) {
        begin = now_us();
        error = run_once(rank, ALLREDUCE, round);
        round += !error;
    }
    printf("%u %d %.0f\n", round, error, (now_us() - begin) / 1e3);
    return 0;
}

/* One failure may be the last of an operation that was under way when others were dropped. */
static int send_on(struct rank *rank, double seconds)
{
    double end = now_us() + seconds * 1e6, begin = 0;
    uint32_t round = 0, good = 0, failures = 0;
    int error = 0, broadcast = open_in(rank->dir, triggers[BROADCAST], O_RDWR);
    while (failures < 2 && now_us() < end) {
        fill(rank, round);
        begin = now_us();
        error = ask_open(broadcast, "root=0\n");
        failures = error ? failures + 1 : 0;
        if (!error)
            check(rank, BROADCAST, round);
        good += !error;
        round += rank->world; /* so that rank 0 is the one that check() takes for the root */
    }
    printf("%u %d %.0f\n", good, error, (now_us() - begin) / 1e3);
    return 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(double *us, uint32_t rounds)
{
    double total = 0;
    for (uint32_t round = 0; round < rounds; round++)
        total += us[round];
    qsort(us, rounds, sizeof(us[0]), compare);
    printf("%.0f %.0f %.0f\n", us[0], us[rounds / 2], total / rounds);
}

/* As a training loop does: the triggers stay open. */
static int bench(struct rank *rank, uint32_t rounds)
{
    double *us = calloc(rounds, sizeof(us[0]));
    int barrier = open_in(rank->dir, "barrier", O_RDWR), allreduce = open_in(rank->dir, "allreduce", O_RDWR);
    fill(rank, 0);
    for (uint32_t round = 0; round < rounds; round++) {
        int error = ask_open(barrier, "\n");
        double begin = now_us();
        error = error ? error : ask_open(allreduce, "\n");
        us[round] = now_us() - begin;
        if (error)
            return error;
    }
    print_times(us, rounds);
    return 0;
}

static void *map_file(const char *path, off_t offset, size_t bytes)
{
    int fd = open(path, O_RDWR);
    void *base = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    if (base == MAP_FAILED)
        die(path);
    return base;
}

static int copy(const char *path, off_t offset, size_t bytes, uint32_t rounds)
{
    double *us = calloc(rounds, sizeof(us[0]));
    void *to = map_file(path, offset, bytes), *from = malloc(bytes);
    memset(from, 1, bytes);
    for (uint32_t round = 0; round < rounds; round++) {
        double begin = now_us();
        memcpy(to, from, bytes);
        __sync_synchronize();
        us[round] = now_us() - begin;
    }
    print_times(us, rounds);
    return 0;
}

int main(int argc, char **argv)
{
    struct rank rank;
    if (argc == 3 && strcmp(argv[1], "peek") == 0)
        return printf("%.8s\n", (char *)map_file(argv[2], 0, 4096)) < 0;
    if (argc == 6 && strcmp(argv[1], "copy") == 0)
        return copy(argv[2], atol(argv[3]), (size_t)atol(argv[4]), (uint32_t)atoi(argv[5]));
    if (argc != 7)
        return 2;
    join(&rank, argv + 2);
    if (strcmp(argv[1], "verify") == 0)
        return verify(&rank, (uint32_t)atoi(argv[6]));
    if (strcmp(argv[1], "loop") == 0)
        return loop(&rank, atof(argv[6]));
    if (strcmp(argv[1], "send") == 0)
        return send_on(&rank, atof(argv[6]));
    return strcmp(argv[1], "bench") == 0 ? bench(&rank, (uint32_t)atoi(argv[6])) : 2;
}
