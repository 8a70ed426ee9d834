/*
 * What simulations in virtual time share: options, the clock, chance, and the way a check fails. The command
 * that does the same again is printed first, and once more where a check fails.
 */
#ifndef SIM_H
#define SIM_H

#include "ntbmem/ntbm_random.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MS 1000000ull
#define S (1000 * MS)

#define CHECK(cond, ...)                  \
    do {                                  \
        if (!(cond))                      \
            sim_fail(#cond, __VA_ARGS__); \
    } while (0)

/* An option without a value, "--gentle", of one simulation. */
struct sim_flag {
    const char *name;
    bool *on;
};

/* This run. The simulation gives what is not an option, and the defaults of what is, before sim_options. */
static struct {
    const char *program;
    const struct sim_flag *flags;
    unsigned flag_count;
    uint32_t node_max;
    uint64_t seed;
    uint32_t node_count, seconds;
    bool trace;
    uint64_t random, now_ns;
} virt;

static void sim_print_command(FILE *to)
{
    fprintf(to, "%s --seed %" PRIu64 " --nodes %u --seconds %u", virt.program, virt.seed, virt.node_count,
            virt.seconds);
    for (unsigned i = 0; i < virt.flag_count; i++)
        if (*virt.flags[i].on)
            fprintf(to, " %s", virt.flags[i].name);
    fputc('\n', to);
}

__attribute__((format(printf, 2, 3), noreturn)) static void sim_fail(const char *cond, const char *fmt, ...)
{
    va_list args;
    fflush(stdout);
    fprintf(stderr, "at %" PRIu64 " us: not true: %s: ", virt.now_ns / 1000, cond);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "\nagain with: ");
    sim_print_command(stderr);
    abort();
}

/* A line of the story, with --trace. */
__attribute__((format(printf, 1, 2))) static void trace(const char *fmt, ...)
{
    if (!virt.trace)
        return;
    va_list args;
    printf("%10" PRIu64 " us  ", virt.now_ns / 1000);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
}

static uint32_t pick(uint32_t below)
{
    return (uint32_t)(ntbm_random(&virt.random) % below);
}

static bool chance(uint32_t one_in)
{
    return pick(one_in) == 0;
}

static uint64_t sim_clock(void *ctx)
{
    (void)ctx;
    return virt.now_ns;
}

static void sim_usage(void)
{
    fprintf(stderr, "usage: %s [--nodes N] [--seconds S] [--seed X] [--trace]", virt.program);
    for (unsigned i = 0; i < virt.flag_count; i++)
        fprintf(stderr, " [%s]", virt.flags[i].name);
    fputc('\n', stderr);
    exit(2);
}

static bool sim_take_flag(const char *word)
{
    for (unsigned i = 0; i < virt.flag_count; i++) {
        if (strcmp(word, virt.flags[i].name) == 0)
            return *virt.flags[i].on = true;
    }
    return strcmp(word, "--trace") == 0 && (virt.trace = true);
}

/* Reads the command line, starts clock and chance, and prints the command. */
static void sim_options(int argc, char **argv)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    virt.seed = (uint64_t)ts.tv_nsec ^ (uint64_t)ts.tv_sec << 20;
    for (int i = 1; i < argc; i++) {
        uint64_t value = i + 1 < argc ? strtoull(argv[i + 1], NULL, 10) : 0;
        if (sim_take_flag(argv[i]))
            continue;
        if (!strcmp(argv[i], "--seed") && ++i < argc)
            virt.seed = value;
        else if (!strcmp(argv[i], "--nodes") && ++i < argc && value >= 2 && value <= virt.node_max)
            virt.node_count = (uint32_t)value;
        else if (!strcmp(argv[i], "--seconds") && ++i < argc)
            virt.seconds = (uint32_t)value;
        else
            sim_usage();
    }
    virt.random = virt.seed;
    virt.now_ns = S;
    setvbuf(stdout, NULL, _IOLBF, 0);
    sim_print_command(stdout);
}

#endif
