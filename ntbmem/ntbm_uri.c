#include "ntbmem/ntbm_uri.h"

#include "ntbmem/ntbm_mem.h"
#include "utils/ut_num.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int parse_size(const char *word, const char *what, uint64_t *out, struct ut_err *err)
{
    return ut_num_bytes(word, out) ? ut_err_set(err, -EINVAL, "\"%s\" is no %s in bytes", word, what) : 0;
}

/* The part's text is "OFFSET:LENGTH". */
static int parse_part(const char *text, struct ntbm_uri *uri, struct ut_err *err)
{
    char word[64];
    const char *colon = strchr(text, ':');
    if ((size_t)(colon - text) >= sizeof(word))
        return ut_err_set(err, -EINVAL, "the offset in \"+%.60s...\" is too long", text);
    memcpy(word, text, (size_t)(colon - text));
    word[colon - text] = '\0';
    int rc = parse_size(word, "offset", &uri->offset_bytes, err);
    if (!rc)
        rc = parse_size(colon + 1, "length", &uri->length_bytes, err);
    if (rc)
        return rc;
    if (!uri->length_bytes)
        return ut_err_set(err, -EINVAL, "the part \"+%s\" is empty", text);
    if (uri->offset_bytes > INT64_MAX - uri->length_bytes)
        return ut_err_set(err, -EINVAL, "the part \"+%s\" ends beyond every file", text);
    return 0;
}

/* The '+' that begins a part, or the end of the text: names may hold a '+' of their own. */
static const char *find_part(const char *text)
{
    const char *plus = strrchr(text, '+');
    bool is_part = plus && isdigit((unsigned char)plus[1]) && strchr(plus, ':');
    return is_part ? plus : text + strlen(text);
}

int ntbm_uri_parse(const char *text, struct ntbm_uri *out, struct ut_err *err)
{
    struct ntbm_uri uri = {0};
    const char *colon = strchr(text, ':');
    if (!colon)
        return ut_err_set(err, -EINVAL, "\"%s\" names no memory: KIND:NAME is wanted, as in shm:demo", text);
    uri.kind = ntbm_kind_find(text, (size_t)(colon - text));
    if (!uri.kind)
        return ut_err_set(err, -EINVAL, "\"%.*s\" is no kind of memory: there are %s", (int)(colon - text),
                          text, ntbm_kind_names());
    const char *name = colon + 1, *end = find_part(name);
    size_t len = (size_t)(end - name);
    if (len >= sizeof(uri.name))
        return ut_err_set(err, -EINVAL, "the name of %s memory is longer than %zu bytes", uri.kind->name,
                          sizeof(uri.name) - 1);
    memcpy(uri.name, name, len);
    const char *fault = uri.kind->name_fault(uri.name);
    if (fault)
        return ut_err_set(err, -EINVAL, "\"%s:%s\": %s", uri.kind->name, uri.name, fault);
    int rc = *end ? parse_part(end + 1, &uri, err) : 0;
    if (!rc)
        *out = uri;
    return rc;
}

void ntbm_uri_show(const struct ntbm_uri *uri, char *out, unsigned out_bytes)
{
    char offset[24], length[24];
    ut_num_show_bytes(uri->offset_bytes, offset);
    ut_num_show_bytes(uri->length_bytes, length);
    if (uri->length_bytes)
        snprintf(out, out_bytes, "%s:%s+%s:%s", uri->kind->name, uri->name, offset, length);
    else
        snprintf(out, out_bytes, "%s:%s", uri->kind->name, uri->name);
}
