#include "utils/pci_speed.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

static const uint32_t SPEEDS[] = {2500, 5000, 8000, 16000, 32000, 64000, 128000};
#define SPEED_COUNT (sizeof SPEEDS / sizeof SPEEDS[0])

uint32_t ut_pci_speed_of_code(unsigned code)
{
    return ut_pci_speed_of_gen(code);
}

uint32_t ut_pci_speed_of_gen(unsigned gen)
{
    return gen >= 1 && gen <= SPEED_COUNT ? SPEEDS[gen - 1] : 0;
}

unsigned ut_pci_gen_of_speed(uint32_t mts)
{
    for (unsigned i = 0; i < SPEED_COUNT; i++)
        if (SPEEDS[i] == mts)
            return i + 1;
    return 0;
}

uint32_t ut_pci_speed_of_text(const char *text)
{
    char *end;
    if (*text < '0' || *text > '9')
        return 0;
    double gts = strtod(text, &end);
    if (end == text || !(gts >= 0 && gts < 1000) || *end != ' ' || end[1] != 'G' || end[2] != 'T')
        return 0;
    uint32_t mts = (uint32_t)(gts * 1000 + 0.5);
    return ut_pci_gen_of_speed(mts) ? mts : 0;
}

uint32_t ut_pci_width_of(uint64_t lanes)
{
    bool known = lanes == 12 || (lanes >= 1 && lanes <= 32 && !(lanes & (lanes - 1)));
    return known ? (uint32_t)lanes : 0;
}

double ut_pci_encoding(uint32_t mts)
{
    if (mts <= 5000)
        return 0.8;
    return mts < 64000 ? 128.0 / 130.0 : 236.0 / 256.0;
}

double ut_pci_gbytes(struct ut_pci_rate rate)
{
    return rate.mts / 1000.0 * rate.width * ut_pci_encoding(rate.mts) / 8;
}

double ut_pci_payload_share(unsigned payload_bytes)
{
    return (double)payload_bytes / (payload_bytes + UT_PCI_TLP_OVERHEAD_BYTES);
}

void ut_pci_rate_show(struct ut_pci_rate rate, char out[UT_PCI_RATE_CHARS])
{
    if (rate.mts && rate.width)
        snprintf(out, UT_PCI_RATE_CHARS, "%g GT/s x%u", rate.mts / 1000.0, rate.width);
    else if (rate.mts)
        snprintf(out, UT_PCI_RATE_CHARS, "%g GT/s x?", rate.mts / 1000.0);
    else if (rate.width)
        snprintf(out, UT_PCI_RATE_CHARS, "? x%u", rate.width);
    else
        snprintf(out, UT_PCI_RATE_CHARS, "unknown");
}
