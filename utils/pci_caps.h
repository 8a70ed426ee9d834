/*
 * Configuration space of one function, decoded: header, Express capability, and the extended capabilities
 * that matter here (AER, ACS, DPC, SR-IOV, multicast, secondary Express, DVSEC, DOE).
 *
 * The bytes may be cut anywhere and may be noise. Lists are walked with every offset visited once; a register
 * that was not recorded makes its capability "not recorded", never zero. Pure functions, any thread.
 */
#ifndef UT_PCI_CAPS_H
#define UT_PCI_CAPS_H

#include <stdbool.h>
#include <stdint.h>

#include "utils/pci_snap.h"

/* Whether a capability is there. */
enum ut_pci_have {
    UT_PCI_ABSENT, /* the list was read to its end without it */
    UT_PCI_PRESENT,
    UT_PCI_NA,           /* cannot be there: no Express capability, so no extended ones */
    UT_PCI_NOT_RECORDED, /* the bytes that would tell were not recorded */
    UT_PCI_NEEDS_ROOT,   /* the bytes that would tell are shown to root only */
    UT_PCI_SILENCE,      /* the function does not respond */
};

/* The word for it: "yes", "no", "n/a", "not recorded", "needs root", "not responding". */
const char *ut_pci_have_word(enum ut_pci_have have);

/* Device and port types of the Express capability. */
enum ut_pci_type {
    UT_PCI_ENDPOINT = 0,
    UT_PCI_LEGACY_ENDPOINT = 1,
    UT_PCI_ROOT_PORT = 4,
    UT_PCI_UPSTREAM = 5,
    UT_PCI_DOWNSTREAM = 6,
    UT_PCI_TO_PCI_BRIDGE = 7,   /* Express above, PCI below */
    UT_PCI_FROM_PCI_BRIDGE = 8, /* PCI above, Express below */
    UT_PCI_RC_ENDPOINT = 9,
    UT_PCI_RC_EVENT_COLLECTOR = 10,
    UT_PCI_TYPE_UNKNOWN = 255,
};

/* "root port", "switch upstream port", ...; never NULL. */
const char *ut_pci_type_name(unsigned type);

struct ut_pci_express {
    enum ut_pci_have have;
    unsigned at;            /* where it begins; 0 unless have is UT_PCI_PRESENT, as in those below */
    unsigned type, version; /* type is UT_PCI_TYPE_UNKNOWN unless have is UT_PCI_PRESENT */
    bool has_link;          /* the type has link registers and they were recorded */
    bool has_slot;          /* a slot is implemented and its registers were recorded */
    bool has_link2;         /* the second set of link registers was recorded */
    uint32_t devcap, lnkcap, sltcap, lnkcap2;
    uint16_t devctl, devsta, lnkctl, lnksta, sltctl, sltsta, lnkctl2;
};

struct ut_pci_aer {
    enum ut_pci_have have;
    unsigned at;
    uint32_t ue_status, ue_mask, ue_severity, ce_status, ce_mask;
    uint32_t header_log[4];
    unsigned first_error;
    bool has_root; /* root command and status are this type's and were recorded */
    uint32_t root_command, root_status;
};

struct ut_pci_acs {
    enum ut_pci_have have;
    uint16_t cap, ctl;
};

struct ut_pci_dpc {
    enum ut_pci_have have;
    unsigned at;
    uint16_t ctl, status;
};

struct ut_pci_sriov {
    enum ut_pci_have have;
    bool enabled;
    unsigned total_vfs, num_vfs;
};

#define UT_PCI_MAX_DVSECS 8

struct ut_pci_bar {
    bool implemented; /* some register bit says what kind of BAR this is */
    bool is_io, is_64bit, is_prefetchable;
    uint64_t address; /* 0: none assigned */
};

struct ut_pci_caps {
    bool has_header;      /* at least the first 16 bytes, and they are no silence */
    unsigned header_type; /* 0 device, 1 bridge, 2 CardBus */
    uint16_t command, status;
    bool has_buses; /* a bridge whose bus numbers were recorded */
    uint8_t primary, secondary, subordinate;
    bool list_damaged;                  /* a capability list loops or points outside */
    struct ut_pci_bar bar[UT_PCI_BARS]; /* of 64-bit ones the second register's entry stays empty */
    struct ut_pci_express express;
    struct ut_pci_aer aer;
    struct ut_pci_acs acs;
    struct ut_pci_dpc dpc;
    struct ut_pci_sriov sriov;
    enum ut_pci_have lane_errors_have;
    uint32_t lane_errors; /* a sticky bit a lane */
    enum ut_pci_have multicast_have;
    bool multicast_enabled;
    unsigned multicast_groups; /* in use */
    enum ut_pci_have doe_have;
    uint32_t doe_status;
    unsigned dvsec_count;
    struct {
        uint16_t vendor, id;
    } dvsec[UT_PCI_MAX_DVSECS];
};

/* Decodes the bytes of one function. */
void ut_pci_caps_read(const struct ut_pci_fn *fn, struct ut_pci_caps *caps);

/* True when the port says by its data-link-layer bit that the link is down; only ports that report the bit
 * can. */
bool ut_pci_express_link_down(const struct ut_pci_express *express);

/* True when the port says that the link is up. */
bool ut_pci_express_link_up(const struct ut_pci_express *express);

/* The short name of bit number bit, as the kernel's counters have it ("RxErr", "UnsupReq"); NULL for bits
 * nobody has defined. */
const char *ut_pci_aer_ce_name(unsigned bit);
const char *ut_pci_aer_ue_name(unsigned bit);

#endif
