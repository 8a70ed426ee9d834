/*
 * Figures as people read them: three digits and a unit. One that is negative is not known, and is "-".
 */
#ifndef CTL_UNITS_H
#define CTL_UNITS_H

#define CTL_UNITS_CHARS 16

/* A duration in microseconds: "0.8us", "83us", "1.25ms", "12.5s". */
const char *ctl_units_us(double us, char out[CTL_UNITS_CHARS]);

/* Bytes: "512", "2.0K", "11.8G", powers of 1024. */
const char *ctl_units_bytes(double bytes, char out[CTL_UNITS_CHARS]);

/* A number: "7", "0.25", "1234", "12.3k", "1.25M". */
const char *ctl_units_count(double count, char out[CTL_UNITS_CHARS]);

/* How long something has run, seconds: "0:07", "1:02:03", "3 d 4 h". */
const char *ctl_units_span(double seconds, char out[CTL_UNITS_CHARS]);

#endif
