#include "utils/ut_err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ut_err_set(struct ut_err *err, int rc, const char *fmt, ...)
{
    if (!err)
        return rc;
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->text, sizeof(err->text), fmt, args);
    va_end(args);
    for (char *c = err->text; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    }
    return rc;
}

const char *ut_err_name(int rc)
{
    const char *name = rc ? strerrorname_np(abs(rc)) : "ok";
    return name ? name : "EUNKNOWN";
}
