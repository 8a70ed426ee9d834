#include "utils/pci_addr.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads min to max hex digits and what must follow them; NULL when they are not there. */
static const char *hex(const char *p, int min, int max, char follow, uint32_t *out)
{
    uint32_t value = 0;
    int digits = 0;
    for (; digits < max && hex_digit(*p) >= 0; digits++)
        value = value << 4 | (uint32_t)hex_digit(*p++);
    if (digits < min || (follow && *p++ != follow))
        return NULL;
    *out = value;
    return p;
}

size_t ut_pci_addr_scan(const char *text, struct ut_pci_addr *out)
{
    uint32_t domain = 0, bus, dev, fn;
    const char *p = hex(text, 4, 8, ':', &domain);
    p = hex(p ? p : text, 2, 2, ':', &bus);
    p = p ? hex(p, 2, 2, '.', &dev) : NULL;
    p = p ? hex(p, 1, 1, 0, &fn) : NULL;
    if (!p || dev > 31 || fn > 7)
        return 0;
    *out = (struct ut_pci_addr){domain, (uint8_t)bus, (uint8_t)dev, (uint8_t)fn};
    return (size_t)(p - text);
}

int ut_pci_addr_parse(const char *word, struct ut_pci_addr *out)
{
    struct ut_pci_addr addr;
    size_t len = ut_pci_addr_scan(word, &addr);
    if (!len || word[len])
        return -EINVAL;
    *out = addr;
    return 0;
}

void ut_pci_addr_show(struct ut_pci_addr addr, char out[UT_PCI_ADDR_CHARS])
{
    snprintf(out, UT_PCI_ADDR_CHARS, "%04" PRIx32 ":%02x:%02x.%x", addr.domain, addr.bus, addr.dev, addr.fn);
}

static uint32_t within_domain(struct ut_pci_addr addr)
{
    return (uint32_t)addr.bus << 8 | (uint32_t)addr.dev << 3 | addr.fn;
}

int ut_pci_addr_cmp(struct ut_pci_addr a, struct ut_pci_addr b)
{
    if (a.domain != b.domain)
        return a.domain < b.domain ? -1 : 1;
    return (int)within_domain(a) - (int)within_domain(b);
}

bool ut_pci_addr_same_dev(struct ut_pci_addr a, struct ut_pci_addr b)
{
    return a.domain == b.domain && a.bus == b.bus && a.dev == b.dev;
}
