#include "utils/ctl_units.h"

#include <math.h>
#include <stdio.h>

/* Three digits: as many behind the point as leave room for. */
static const char *three(double number, const char *unit, char out[CTL_UNITS_CHARS])
{
    int digits = number >= 99.95 || number == floor(number) ? 0 : number >= 9.995 ? 1 : 2;
    snprintf(out, CTL_UNITS_CHARS, "%.*f%s", digits, number, unit);
    return out;
}

/* The number in the first unit that leaves fewer than `step` of it. */
static const char *scaled(double number, double step, const char *const *units, int count,
                          char out[CTL_UNITS_CHARS])
{
    int unit = 0;
    for (; unit + 1 < count && number >= step - 0.5; unit++)
        number /= step;
    if (!(number >= 0)) {
        snprintf(out, CTL_UNITS_CHARS, "-");
        return out;
    }
    return three(number < 1e6 ? number : 999999, units[unit], out);
}

const char *ctl_units_us(double us, char out[CTL_UNITS_CHARS])
{
    static const char *const units[] = {"us", "ms", "s"};
    return scaled(us, 1000, units, 3, out);
}

const char *ctl_units_bytes(double bytes, char out[CTL_UNITS_CHARS])
{
    static const char *const units[] = {"", "K", "M", "G", "T", "P"};
    return scaled(bytes, 1024, units, 6, out);
}

const char *ctl_units_count(double count, char out[CTL_UNITS_CHARS])
{
    static const char *const units[] = {"k", "M", "G", "T"};
    if (count < 0 || count >= 9999.5)
        return scaled(count / 1000, 1000, units, 4, out);
    return three(count, "", out);
}

const char *ctl_units_span(double seconds, char out[CTL_UNITS_CHARS])
{
    unsigned s = seconds >= 0 && seconds < 4e9 ? (unsigned)seconds : 0;
    if (!(seconds >= 0))
        snprintf(out, CTL_UNITS_CHARS, "-");
    else if (s < 3600)
        snprintf(out, CTL_UNITS_CHARS, "%u:%02u", s / 60, s % 60);
    else if (s < 24 * 3600)
        snprintf(out, CTL_UNITS_CHARS, "%u:%02u:%02u", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, CTL_UNITS_CHARS, "%u d %u h", s / 86400, s / 3600 % 24);
    return out;
}
