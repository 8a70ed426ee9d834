#include "reduce/coll_wire.h"

#include <string.h>

void coll_put_bytes(struct coll_out *out, const void *bytes, uint32_t len)
{
    if (len > sizeof(out->bytes) - out->len) {
        out->full = true;
        return;
    }
    memcpy(out->bytes + out->len, bytes, len);
    out->len += len;
}

void coll_put(struct coll_out *out, uint64_t value, unsigned size)
{
    coll_put_bytes(out, &value, size); /* little-endian machines only: ntbm_landing.h asserts it */
}

void coll_put_text(struct coll_out *out, const char *text)
{
    size_t len = strnlen(text, 255);
    coll_put(out, len, 1);
    coll_put_bytes(out, text, (uint32_t)len);
}

static const uint8_t *take(struct coll_in *in, size_t len)
{
    if ((size_t)(in->end - in->at) < len) {
        in->short_ = true;
        in->at = in->end;
        return NULL;
    }
    in->at += len;
    return in->at - len;
}

uint64_t coll_get(struct coll_in *in, unsigned size)
{
    uint64_t value = 0;
    const uint8_t *bytes = take(in, size);
    if (bytes)
        memcpy(&value, bytes, size);
    return value;
}

void coll_get_text(struct coll_in *in, char *out, size_t size)
{
    size_t len = (size_t)coll_get(in, 1), kept = 0;
    const uint8_t *bytes = take(in, len);
    for (; bytes && kept < len && kept + 1 < size; kept++)
        out[kept] = bytes[kept] >= ' ' && bytes[kept] < 0x7f ? (char)bytes[kept] : '?';
    out[kept] = '\0';
}
