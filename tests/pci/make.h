/*
 * Functions made up for unit tests: configuration space with the registers a test names, written as lspci
 * hex. (make.py does the same for whole machines.)
 */
#ifndef MAKE_H
#define MAKE_H

#include <stddef.h>
#include <stdint.h>

#include "utils/pci_caps.h"
#include "utils/ut_text.h"

#define MAKE_EXP 0x40u
#define MAKE_AER 0x100u
#define MAKE_ACS 0x150u

struct make_fn {
    const char *address;
    uint32_t class_code;
    unsigned type;                 /* UT_PCI_ENDPOINT ...; UT_PCI_TYPE_UNKNOWN: no Express capability */
    unsigned cap_speed, cap_width; /* speed as its code: 3 is 8 GT/s */
    unsigned now_speed, now_width;
    unsigned secondary, subordinate; /* a bridge when secondary is not 0 */
    int active;   /* data link layer active: 1, 0, or -1 for a port that does not report it */
    int slot;     /* a card is present: 1, 0, or -1 for no slot */
    uint16_t acs; /* control register; 0: no ACS capability */
    uint32_t ue_status, ue_mask, ue_severity, ce_status; /* of an AER capability that is always there */
    uint16_t link_status;                                /* more bits of LnkSta */
    uint16_t command;                                    /* 0: memory and bus master */
};

/* Writes the 4096 bytes of a function. */
void make_config(const struct make_fn *fn, uint8_t cfg[4096]);

/* Appends a function as lspci -x (64), -xxx (256) or -xxxx (4096) writes it. */
void make_hex(struct ut_text *text, const struct make_fn *fn, size_t len);

/* Appends bytes as such hex, for those that no make_fn gives. */
void make_hex_bytes(struct ut_text *text, const char *address, const uint8_t *cfg, size_t len);

#endif
