/*
 * What a fuzz target is: one function that takes any bytes. Built by clang it becomes a libFuzzer program;
 * with any compiler, together with fuzz_driver.c, one that runs recorded inputs and simple mutations of them.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Returns 0, or never. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the program where a promise is broken, whatever the build. */
#define fuzz_must(condition) \
    ((condition) ? (void)0 : (fprintf(stderr, "\n%s:%d: not %s\n", __FILE__, __LINE__, #condition), abort()))

#endif
