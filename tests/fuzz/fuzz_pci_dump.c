/*
 * Any bytes as a recording of lspci: read, modelled, judged and drawn.
 */
#include "tests/fuzz/fuzz.h"
#include "tests/pci/judge.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ut_pci_snap *snap;
    if (!ut_pci_snap_dump_text((const char *)data, size, &snap))
        judge_snap(snap);
    return 0;
}
