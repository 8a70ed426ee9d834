#include "tests/pci/make.h"

#include <string.h>

static void put16(uint8_t *cfg, unsigned at, unsigned value)
{
    cfg[at] = (uint8_t)value;
    cfg[at + 1] = (uint8_t)(value >> 8);
}

static void put32(uint8_t *cfg, unsigned at, uint32_t value)
{
    put16(cfg, at, value & 0xffff);
    put16(cfg, at + 2, value >> 16);
}

static void express(const struct make_fn *fn, uint8_t *cfg)
{
    bool port = fn->type == UT_PCI_ROOT_PORT || fn->type == UT_PCI_DOWNSTREAM,
         reports = port && fn->active >= 0;
    bool has_slot = port && fn->slot >= 0;
    put16(cfg, MAKE_EXP, 0x10);
    put16(cfg, MAKE_EXP + 2, 2 | fn->type << 4 | (has_slot ? 0x100u : 0));
    put32(cfg, MAKE_EXP + 12, fn->cap_speed | fn->cap_width << 4 | (reports ? 0x100000u : 0));
    put16(cfg, MAKE_EXP + 18,
          fn->now_speed | fn->now_width << 4 | (reports && fn->active ? 0x2000u : 0) | fn->link_status);
    put16(cfg, MAKE_EXP + 26, has_slot && fn->slot ? 0x40 : 0);
    put16(cfg, MAKE_EXP + 48, fn->cap_speed);
}

static void extended(const struct make_fn *fn, uint8_t *cfg)
{
    put32(cfg, MAKE_AER, 0x10001 | (fn->acs ? MAKE_ACS << 20 : 0));
    put32(cfg, MAKE_AER + 4, fn->ue_status);
    put32(cfg, MAKE_AER + 8, fn->ue_mask);
    put32(cfg, MAKE_AER + 12, fn->ue_severity);
    put32(cfg, MAKE_AER + 16, fn->ce_status);
    if (!fn->acs)
        return;
    put32(cfg, MAKE_ACS, 0x1000d);
    put16(cfg, MAKE_ACS + 4, 0x1f);
    put16(cfg, MAKE_ACS + 6, fn->acs);
}

void make_config(const struct make_fn *fn, uint8_t cfg[4096])
{
    memset(cfg, 0, 4096);
    put32(cfg, 0, 0x12348086);
    put16(cfg, 4, fn->command ? fn->command : 6);
    put32(cfg, 8, fn->class_code << 8);
    if (fn->secondary) {
        cfg[0x0e] = 1;
        cfg[0x19] = (uint8_t)fn->secondary;
        cfg[0x1a] = (uint8_t)fn->subordinate;
    }
    if (fn->type == UT_PCI_TYPE_UNKNOWN)
        return;
    put16(cfg, 6, 0x10);
    cfg[0x34] = MAKE_EXP;
    express(fn, cfg);
    extended(fn, cfg);
}

void make_hex_bytes(struct ut_text *text, const char *address, const uint8_t *cfg, size_t len)
{
    ut_text_addf(text, "%s made up\n", address);
    for (size_t at = 0; at < len; at++) {
        if (at % 16 == 0)
            ut_text_addf(text, "%02zx:", at);
        ut_text_addf(text, " %02x%s", cfg[at], at % 16 == 15 || at + 1 == len ? "\n" : "");
    }
    ut_text_add(text, "\n", 1);
}

void make_hex(struct ut_text *text, const struct make_fn *fn, size_t len)
{
    uint8_t cfg[4096];
    make_config(fn, cfg);
    make_hex_bytes(text, fn->address, cfg, len);
}
