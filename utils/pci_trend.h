/*
 * What a row of looks at one device comes to: drops and recoveries as they happen, how many errors there
 * were, and whether the device is to be trusted.
 *
 *                 errors or drops come faster than their limits
 *          WELL ------------------------------------------------> SUSPECT
 *            ^                                                       |
 *            `---- for well_ns neither came faster than that, <------'
 *                  and the path is as good as it can be
 *
 * A rate is measured by a bucket that each error or drop fills and that empties evenly, the limit's worth in
 * the limit's time: it overflows for a burst above the limit and for a stream that is faster for long.
 *
 * Links that are slow on purpose (idle, narrow partner, function not in use) are no drops; pci_model.h tells
 * them apart. A look that caught a link in the middle of a change is passed over.
 *
 * Threads: belongs to one thread. Time is handed in, so that tests need none.
 */
#ifndef UT_PCI_TREND_H
#define UT_PCI_TREND_H

#include "utils/pci_report.h"

#define UT_PCI_ERRORS_WINDOW_NS UINT64_C(10000000000) /* the time of an error limit, and of a drop limit */
#define UT_PCI_DROPS_WINDOW_NS UINT64_C(60000000000)

/* Limits; 0: never. */
struct ut_pci_limits {
    unsigned errors;  /* of all kinds in UT_PCI_ERRORS_WINDOW_NS */
    unsigned drops;   /* in UT_PCI_DROPS_WINDOW_NS */
    uint64_t well_ns; /* after so long a suspect device is well again */
};

struct ut_pci_bucket {
    double level;
    uint64_t at_ns;
};

/* Pours into a bucket that empties `limit` in window_ns. True when it overflows: more than limit has come in
 * such a time. A limit of 0 never does. */
bool ut_pci_pour(struct ut_pci_bucket *bucket, double more, unsigned limit, uint64_t window_ns,
                 uint64_t now_ns);

struct ut_pci_trend {
    const struct ut_pci_limits *limits;
    bool seen;                                                     /* there was a look at the device */
    bool bad;                                                      /* at the last look that counted */
    double gbytes;                                                 /* of the path when that was last known */
    uint64_t looks, looks_failed, drops, errors[UT_PCI_AER_KINDS]; /* ever */
    uint64_t untold[UT_PCI_AER_KINDS];                             /* errors no event has told of yet */
    uint64_t told_ns; /* of the last such event; 0: there was none */
    struct ut_pci_bucket error_bucket, drop_bucket;
    bool suspect;
    uint64_t suspect_ns; /* since when */
    uint64_t trouble_ns; /* when it was last as bad as that */
    char why[240];       /* the reason for the suspicion; empty while well */
    void (*say)(void *ctx, const char *severity, const char *text); /* "info", "warn" or "error" */
    void *ctx;
};

/* Begins; limits must outlive it. say tells each change in a sentence, from ut_pci_trend_look. */
void ut_pci_trend_init(struct ut_pci_trend *trend, const struct ut_pci_limits *limits,
                       void (*say)(void *ctx, const char *severity, const char *text), void *ctx);

/* Takes the next look. True when the device has become suspect by it. */
bool ut_pci_trend_look(struct ut_pci_trend *trend, const struct ut_pci_report *report, uint64_t now_ns);

#endif
