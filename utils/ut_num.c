#include "utils/ut_num.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define NS_PER_S UINT64_C(1000000000)

/* Reads digits up to the first non-digit and leaves *word there. */
static int digits(const char **word, uint64_t max, uint64_t *out)
{
    const char *p = *word;
    uint64_t value = 0;
    if (*p < '0' || *p > '9')
        return -EINVAL;
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (value > (max - digit) / 10 || digit > max)
            return -ERANGE;
        value = value * 10 + digit;
    }
    *word = p;
    *out = value;
    return 0;
}

int ut_num_u64(const char *word, uint64_t max, uint64_t *out)
{
    uint64_t value;
    int rc = digits(&word, max, &value);
    if (rc)
        return rc;
    if (*word)
        return -EINVAL;
    *out = value;
    return 0;
}

int ut_num_bytes(const char *word, uint64_t *out)
{
    uint64_t value;
    unsigned shift = 0;
    int rc = digits(&word, UINT64_MAX, &value);
    if (rc)
        return rc;
    if (*word) {
        const char *units = "kmgt", *unit = strchr(units, *word | 0x20);
        if (unit) {
            shift = 10 * (unsigned)(unit - units + 1);
            word++;
        }
        if (*word && strcasecmp(word, "b") != 0 && (!shift || strcasecmp(word, "ib") != 0))
            return -EINVAL;
    }
    if (value > (UINT64_MAX >> 1) >> shift)
        return -ERANGE;
    *out = value << shift;
    return 0;
}

int ut_num_seconds(const char *word, uint64_t *out_ns)
{
    uint64_t whole, part = 0;
    int rc = digits(&word, 1000000000, &whole);
    if (rc)
        return rc;
    if (*word == '.') {
        uint64_t unit = NS_PER_S;
        for (word++; *word >= '0' && *word <= '9'; word++) {
            unit /= 10;
            part += unit * (uint64_t)(*word - '0');
        }
    }
    if (*word)
        return -EINVAL;
    *out_ns = whole * NS_PER_S + part;
    return 0;
}

void ut_num_show_bytes(uint64_t bytes, char out[24])
{
    static const char units[] = {0, 'K', 'M', 'G', 'T'};
    unsigned unit = 0;
    while (bytes && bytes % 1024 == 0 && unit + 1 < sizeof(units)) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, 24, "%" PRIu64 "%c", bytes, units[unit]);
}

void ut_num_show_seconds(uint64_t ns, char out[24])
{
    int len = snprintf(out, 24, "%" PRIu64 ".%09" PRIu64, ns / NS_PER_S, ns % NS_PER_S);
    while (out[len - 1] == '0')
        out[--len] = '\0';
    if (out[len - 1] == '.')
        out[len - 1] = '\0';
}
