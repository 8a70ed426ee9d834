/*
 * Runs a fuzz target without a fuzzer: fuzz_NAME RUNS DIRECTORY feeds it every file of the directory, and
 * then RUNS inputs that are pieces of two files put together with a few bytes changed. The same arguments
 * always give the same inputs; the number of the one that fails is on standard output.
 */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FILES_MAX 256
#define BYTES_MAX 8192

struct input {
    uint8_t bytes[BYTES_MAX];
    size_t len;
};

static struct input corpus[FILES_MAX];
static unsigned corpus_count;

/* xorshift64: the same on every machine. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Runs the target on a copy of exactly the input's size, so that a sanitizer sees a read past its end. */
static void run(const struct input *input)
{
    uint8_t *copy = malloc(input->len ? input->len : 1);
    fuzz_must(copy);
    memcpy(copy, input->bytes, input->len);
    LLVMFuzzerTestOneInput(copy, input->len);
    free(copy);
}

static int load_file(int directory, const char *name)
{
    struct input *input = &corpus[corpus_count];
    int file = openat(directory, name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    ssize_t len = read(file, input->bytes, BYTES_MAX);
    close(file);
    if (len < 0)
        return -1;
    input->len = (size_t)len;
    corpus_count++;
    return 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int load(const char *path)
{
    struct dirent **entries;
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), failed = 0;
    int count = directory < 0 ? -1 : scandirat(directory, ".", &entries, NULL, by_name);
    if (count < 0)
        return -1;
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.' && corpus_count < FILES_MAX)
            failed |= load_file(directory, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    close(directory);
    return failed;
}

/* The head of one recorded input, the tail of another, some bytes changed. */
static void mutate(uint64_t *random, struct input *out)
{
    const struct input *a = &corpus[next_random(random) % corpus_count];
    const struct input *b = &corpus[next_random(random) % corpus_count];
    size_t head = next_random(random) % (a->len + 1), from = next_random(random) % (b->len + 1);
    size_t tail = b->len - from < BYTES_MAX - head ? b->len - from : BYTES_MAX - head;
    memcpy(out->bytes, a->bytes, head);
    memcpy(out->bytes + head, b->bytes + from, tail);
    out->len = head + tail;
    for (unsigned changes = next_random(random) % 4; changes && out->len; changes--)
        out->bytes[next_random(random) % out->len] = (uint8_t)next_random(random);
}

int main(int argc, char **argv)
{
    static struct input input;
    if (argc != 3 || load(argv[2]) || !corpus_count) {
        fprintf(stderr, "usage: %s RUNS DIRECTORY, which holds files\n", argv[0]);
        return 2;
    }
    for (unsigned i = 0; i < corpus_count; i++)
        run(&corpus[i]);
    unsigned long runs = strtoul(argv[1], NULL, 10);
    uint64_t random = 0x9e3779b97f4a7c15u;
    for (unsigned long i = 0; i < runs; i++) {
        mutate(&random, &input);
        printf("\r%lu", i);
        run(&input);
    }
    printf("\r%u files and %lu mutations\n", corpus_count, runs);
    return 0;
}
