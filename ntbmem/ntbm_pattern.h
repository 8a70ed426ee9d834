/*
 * The proof that a link carries data to where it should: lines spread over the slots of an area, first and
 * last line included, whose contents follow from both epochs and their own place. A window that is too short,
 * wraps around, or leads into other memory cannot show them.
 *
 * Each line is put once in an epoch, never again: a late copy could fall into data.
 */
#ifndef NTBM_PATTERN_H
#define NTBM_PATTERN_H

#include "ntbmem/ntbm_session.h"

#include <stdbool.h>

/* Puts our lines into the peer's memory. */
void ntbm_pattern_put(const struct ntbm_session *session);

/* True when all lines of the peer's are in our memory; else *missing is the offset of the first that is not,
 * counted from the start of the area. */
bool ntbm_pattern_is_there(const struct ntbm_session *session, uint32_t *missing);

/* What the reader of the lines sends back; never 0. The second is what our own lines must bring back. */
uint32_t ntbm_pattern_proof(const struct ntbm_session *session);
uint32_t ntbm_pattern_expected_proof(const struct ntbm_session *session);

#endif
