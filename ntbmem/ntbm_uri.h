/*
 * How memory is named in the configuration: "shm:NAME", "file:PATH", "dax:DEV", "pci:BDF/BAR", each with an
 * optional part "+OFFSET:LENGTH" (sizes with K M G). Parsing only looks at the text; ntbm_mem.h opens what it
 * names.
 */
#ifndef NTBM_URI_H
#define NTBM_URI_H

#include "utils/ut_err.h"

#include <stdint.h>

struct ntbm_kind;

struct ntbm_uri {
    const struct ntbm_kind *kind;
    char name[200];        /* what follows the colon, without the part */
    uint64_t offset_bytes; /* of the part; 0 when none was given */
    uint64_t length_bytes; /* of the part; 0 when none was given: all of it */
};

/* Takes the text apart. A suffix that is not "+DIGITS…:…" belongs to the name. 0, or -EINVAL with a sentence:
 * unknown kind, a name the kind does not take, a bad or empty part. */
int ntbm_uri_parse(const char *text, struct ntbm_uri *out, struct ut_err *err);

/* Writes the shortest text that parses to the same. Truncates like snprintf; out_bytes 256 always suffices.
 */
void ntbm_uri_show(const struct ntbm_uri *uri, char *out, unsigned out_bytes);

#endif
