/*
 * The contract of memory (tests/unit/mem_contract.h) over the two URIs given, in a guest:
 *
 *   contract LANDING WINDOW UNIT [WINDOW_AT]
 */
#include "ntbmem/ntbm_guard.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition, text)                                            \
    do {                                                                  \
        if (!(condition)) {                                               \
            printf("%s: not so: %s: %s\n", __func__, #condition, (text)); \
            exit(1);                                                      \
        }                                                                 \
    } while (0)

#include "tests/unit/mem_contract.h"

int main(int argc, char **argv)
{
    if (argc < 4 || ntbm_guard_init())
        return 2;
    contract_check(&(struct contract){.landing = argv[1],
                                      .window = argv[2],
                                      .unit = strtoul(argv[3], NULL, 0),
                                      .window_at = argc > 4 ? strtoul(argv[4], NULL, 0) : 0});
    printf("kept\n");
    return 0;
}
