/*
 * What MPI_Allreduce takes, measured as fabricctl perf measures: f32 sums, known data stored before
 * and every element compared after each operation, an iteration as long as at the rank where it took longest,
 * all ranks together before and after it above 256 KiB.
 *
 *   mpirun -n RANKS peer_mpi BYTES:ITERATIONS...
 *
 * Rank 0 prints for each size: BYTES WRONG P50 P99 P99.9 (microseconds).
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "utils/ut_clock.h"
#include "utils/ut_order.h"

#define PERIOD 1021u /* as fabricctl perf has it */
#define TOGETHER_BYTES (256u << 10)

static int rank, world;
static float stored[PERIOD], sum[PERIOD];

static void make_pattern(void)
{
    for (unsigned i = 0; i < PERIOD; i++) {
        stored[i] = (float)(1 + (i + (unsigned)rank) % 3);
        for (unsigned r = 0; r < (unsigned)world; r++)
            sum[i] += (float)(1 + (i + r) % 3);
    }
}

static void fill(float *data, size_t count)
{
    for (size_t at = 0; at < count; at += PERIOD)
        memcpy(data + at, stored, (count - at < PERIOD ? count - at : PERIOD) * sizeof *data);
}

static size_t count_wrong(const float *data, size_t count)
{
    size_t wrong = 0;
    for (size_t at = 0; at < count; at += PERIOD) {
        size_t run = count - at < PERIOD ? count - at : PERIOD;
        if (memcmp(data + at, sum, run * sizeof *data))
            for (size_t i = 0; i < run; i++)
                wrong += data[at + i] != sum[i];
    }
    return wrong;
}

static void meet(size_t count)
{
    if (count * sizeof(float) > TOGETHER_BYTES)
        MPI_Barrier(MPI_COMM_WORLD);
}

/* From one buffer to another: in place, an MPI that copies first would pay for new memory each time. */
static uint64_t iterate(float *input, float *data, size_t count, size_t *wrong)
{
    fill(input, count);
    meet(count);
    const uint64_t start = ut_clock_ns();
    MPI_Allreduce(input, data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const uint64_t took = ut_clock_ns() - start;
    meet(count);
    *wrong += count_wrong(data, count);
    return took;
}

static double us(const uint64_t *sorted, size_t count, unsigned permille)
{
    return (double)ut_order_permille(sorted, count, permille) / 1e3;
}

static void measure(float *input, float *data, size_t bytes, size_t iterations)
{
    uint64_t *took = malloc(2 * iterations * sizeof *took), *longest = took + iterations;
    size_t wrong = 0, all_wrong = 0;
    for (size_t i = 0; i < iterations / 10 + 2; i++)
        iterate(input, data, bytes / sizeof *data, &wrong);
    for (size_t i = 0; i < iterations; i++)
        took[i] = iterate(input, data, bytes / sizeof *data, &wrong);
    MPI_Reduce(took, longest, (int)iterations, MPI_UINT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_UNSIGNED_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    ut_order_sort(longest, iterations);
    if (rank == 0)
        printf("%zu %zu %.2f %.2f %.2f\n", bytes, all_wrong, us(longest, iterations, 500),
               us(longest, iterations, 990), us(longest, iterations, 999));
    fflush(stdout);
    free(took);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    make_pattern();
    for (int i = 1; i < argc; i++) {
        size_t bytes = 0, iterations = 0;
        if (sscanf(argv[i], "%zu:%zu", &bytes, &iterations) != 2 || !bytes || bytes % sizeof(float) ||
            !iterations)
            MPI_Abort(MPI_COMM_WORLD, 2);
        char *both = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (both == MAP_FAILED)
            MPI_Abort(MPI_COMM_WORLD, 1);
        memset(both, 0, 2 * bytes);
        measure((float *)both, (float *)(both + bytes), bytes, iterations);
        munmap(both, 2 * bytes);
    }
    MPI_Finalize();
    return 0;
}
