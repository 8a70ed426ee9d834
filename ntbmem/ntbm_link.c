#include "ntbmem/ntbm_link.h"

#include "ntbmem/ntbm_landing.h"

#include <assert.h>

/* What we put or read beyond the peer's memory is our own mistake. */
static void check_range(const struct ntbm_link *link, uint64_t offset, uint64_t len)
{
    assert(offset <= link->bytes && len <= link->bytes - offset);
}

int ntbm_link_attach(struct ntbm_link *link, struct ut_err *err)
{
    atomic_store_explicit(&link->broken, false, memory_order_relaxed);
    return link->ops->attach(link, err);
}

void ntbm_link_detach(struct ntbm_link *link)
{
    link->ops->detach(link);
    link->bytes = 0;
}

void *ntbm_link_stage(struct ntbm_link *link, uint64_t offset)
{
    check_range(link, offset, NTBM_LINE);
    return link->ops->stage(link, offset);
}

void ntbm_link_put(struct ntbm_link *link, const struct ntbm_put *put)
{
    assert(!((put->offset | put->len | put->staged_len) & (NTBM_LINE - 1)) && put->len <= NTBM_PUT_COPY);
    check_range(link, put->offset, (uint64_t)put->len + put->staged_len);
    if (put->word_offset != NTBM_NO_WORD) {
        assert(!(put->word_offset & 3));
        check_range(link, put->word_offset, 4);
    }
    atomic_fetch_add_explicit(&link->puts, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&link->put_bytes, (uint64_t)put->len + put->staged_len, memory_order_relaxed);
    link->ops->put(link, put);
}

int ntbm_link_read(struct ntbm_link *link, uint64_t offset, void *out, uint32_t len)
{
    check_range(link, offset, len);
    atomic_fetch_add_explicit(&link->reads, 1, memory_order_relaxed);
    return link->ops->read(link, offset, out, len);
}

void ntbm_link_measure(struct ntbm_link *link, uint64_t offset, uint32_t len)
{
    check_range(link, offset, len);
    if (link->ops->measure && !link->write_bytes_s)
        link->write_bytes_s = link->ops->measure(link, offset, len);
}

void ntbm_link_poll(struct ntbm_link *link, uint64_t now_ns)
{
    if (link->ops->poll)
        link->ops->poll(link, now_ns);
}
