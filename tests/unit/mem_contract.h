/*
 * What every kind of memory promises, as one body over a landing memory and a window onto it, which may be
 * two URIs: the unit tests run it over the kinds that any machine has, contract.c of tests/vm in a guest over
 * PCI BARs and DAX devices. Whoever includes it defines CHECK(condition, text).
 */
#ifndef MEM_CONTRACT_H
#define MEM_CONTRACT_H

#include "ntbmem/ntbm_link.h"
#include "ntbmem/ntbm_mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct contract {
    const char *landing, *window; /* URIs without a part */
    unsigned long unit;           /* bytes: a multiple of the alignment, at least 64 KiB */
    unsigned long window_at;      /* where in the window's memory the landing memory begins */
};

static int contract_open(const char *uri, unsigned long offset, unsigned long length, enum ntbm_role role,
                         struct ntbm_mem *mem, struct ut_err *err)
{
    struct ntbm_uri parsed;
    char text[256];
    snprintf(text, sizeof(text), "%s+%lu:%lu", uri, offset, length);
    int rc = ntbm_uri_parse(text, &parsed, err);
    return rc ? rc : ntbm_mem_open(&parsed, role, length, mem, err);
}

static struct ntbm_mem contract_opened(const char *uri, unsigned long offset, unsigned long length,
                                       enum ntbm_role role)
{
    struct ntbm_mem mem = {.fd = -1};
    struct ut_err err = {""};
    int rc = contract_open(uri, offset, length, role, &mem, &err);
    CHECK(rc == 0, err.text);
    return mem;
}

static void contract_a_window_shows_the_same_bytes(const struct contract *c)
{
    struct ntbm_mem landing = contract_opened(c->landing, 0, c->unit, NTBM_LANDING);
    struct ntbm_mem window = contract_opened(c->window, c->window_at, c->unit, NTBM_WINDOW);
    CHECK(window.bytes == c->unit && landing.bytes == c->unit, "lengths");
    window.base[0] = 1;
    window.base[c->unit - 1] = 2;
    CHECK(landing.base[0] == 1 && landing.base[c->unit - 1] == 2, "what was stored through the window");
    ntbm_mem_close(&window);
    ntbm_mem_close(&landing);
}

static void contract_a_part_begins_at_its_offset(const struct contract *c)
{
    struct ntbm_mem landing = contract_opened(c->landing, c->unit, c->unit, NTBM_LANDING);
    struct ntbm_mem whole = contract_opened(c->window, c->window_at, 2 * c->unit, NTBM_WINDOW);
    landing.base[0] = 9;
    CHECK(whole.base[c->unit] == 9, "the part's first byte in the whole");
    ntbm_mem_close(&whole);
    ntbm_mem_close(&landing);
}

static void contract_misaligned_parts_and_second_daemons_are_refused(const struct contract *c)
{
    struct ntbm_mem landing = contract_opened(c->landing, 0, c->unit, NTBM_LANDING), other;
    struct ut_err err = {""};
    CHECK(contract_open(c->window, c->window_at + 100, c->unit, NTBM_WINDOW, &other, &err) == -EINVAL,
          "a misaligned offset");
    CHECK(strstr(err.text, "multiples of"), err.text);
    CHECK(contract_open(c->landing, 0, c->unit, NTBM_LANDING, &other, &err) == -EBUSY, "a second daemon");
    CHECK(strstr(err.text, "another daemon"), err.text);
    ntbm_mem_close(&landing);
}

struct contract_pair {
    struct ntbm_mem landing;
    struct ntbm_mem_link link;
};

/* Landing memory, cleared, and a link into it. */
static void contract_join(const struct contract *c, struct contract_pair *pair)
{
    struct ntbm_uri uri;
    struct ut_err err = {""};
    char text[256];
    pair->landing = contract_opened(c->landing, 0, c->unit, NTBM_LANDING);
    memset(pair->landing.base, 0, 8192);
    snprintf(text, sizeof(text), "%s+%lu:%lu", c->window, c->window_at, c->unit);
    CHECK(ntbm_uri_parse(text, &uri, &err) == 0, err.text);
    ntbm_mem_link_init(&pair->link, &uri);
    CHECK(ntbm_link_attach(&pair->link.link, &err) == 0, err.text);
}

static void contract_part(struct contract_pair *pair)
{
    ntbm_link_detach(&pair->link.link);
    ntbm_mem_close(&pair->landing);
}

static void contract_a_put_brings_bytes_staged_bytes_and_the_word(const struct contract *c)
{
    struct contract_pair pair;
    uint8_t line[64];
    contract_join(c, &pair);
    const uint8_t *base = pair.landing.base;
    memset(line, 5, sizeof(line));
    memset(ntbm_link_stage(&pair.link.link, 4096 + 64), 6, 128);
    ntbm_link_put(&pair.link.link, &(struct ntbm_put){.offset = 4096,
                                                      .bytes = line,
                                                      .len = 64,
                                                      .staged_len = 128,
                                                      .word_offset = 512,
                                                      .word = 0xabcd0001});
    CHECK(base[4096] == 5 && base[4096 + 63] == 5, "the bytes");
    CHECK(base[4096 + 64] == 6 && base[4096 + 191] == 6, "the staged bytes");
    CHECK(*(const uint32_t *)(base + 512) == 0xabcd0001, "the word");
    CHECK(atomic_load(&pair.link.link.puts) == 1 && atomic_load(&pair.link.link.put_bytes) == 192,
          "the figures");
    contract_part(&pair);
}

static void contract_a_put_without_word_writes_its_lines_only(const struct contract *c)
{
    struct contract_pair pair;
    uint8_t line[64] = {1};
    contract_join(c, &pair);
    ntbm_link_put(&pair.link.link,
                  &(struct ntbm_put){.offset = 128, .bytes = line, .len = 64, .word_offset = NTBM_NO_WORD});
    for (int i = 0; i < 4096; i++)
        CHECK(pair.landing.base[i] == (i == 128), "a byte beside the lines");
    contract_part(&pair);
}

static void contract_remote_reads_are_counted_and_stores_measured(const struct contract *c)
{
    struct contract_pair pair;
    uint64_t value = 0;
    contract_join(c, &pair);
    pair.landing.base[104] = 42;
    CHECK(ntbm_link_read(&pair.link.link, 104, &value, 8) == 0 && value == 42, "what was read");
    CHECK(atomic_load(&pair.link.link.reads) == 1, "the count of reads");
    ntbm_link_measure(&pair.link.link, 8192, (uint32_t)c->unit - 8192);
    CHECK(pair.link.link.write_bytes_s > 0, "the speed of stores");
    CHECK(pair.landing.base[104] == 42, "a byte beside what was measured");
    contract_part(&pair);
}

static inline void contract_check(const struct contract *c)
{
    contract_a_window_shows_the_same_bytes(c);
    contract_a_part_begins_at_its_offset(c);
    contract_misaligned_parts_and_second_daemons_are_refused(c);
    contract_a_put_brings_bytes_staged_bytes_and_the_word(c);
    contract_a_put_without_word_writes_its_lines_only(c);
    contract_remote_reads_are_counted_and_stores_measured(c);
}

#endif
