/*
 * A link to landing memory in the same process: what the simulated cluster, the fuzz target and the unit
 * tests join nodes with. Wrap it in ntbm_emu.h for time and faults.
 */
#ifndef SIM_LINK_H
#define SIM_LINK_H

#include "ntbmem/ntbm_copy.h"
#include "ntbmem/ntbm_link.h"
#include "utils/ut_list.h"

#include <errno.h>
#include <string.h>

struct sim_link {
    struct ntbm_link link;
    uint8_t *memory; /* the peer's; NULL: not there */
    uint64_t bytes;
};

static struct sim_link *sim_link_of(struct ntbm_link *link)
{
    return UT_CONTAINER(link, struct sim_link, link);
}

static int sim_link_attach(struct ntbm_link *link, struct ut_err *err)
{
    struct sim_link *self = sim_link_of(link);
    if (!self->memory)
        return ut_err_set(err, -ENOENT, "the peer's memory is not there");
    link->bytes = self->bytes;
    return 0;
}

static void sim_link_detach(struct ntbm_link *link)
{
    (void)link;
}

static void *sim_link_stage(struct ntbm_link *link, uint64_t offset)
{
    return sim_link_of(link)->memory + offset;
}

static void sim_link_put(struct ntbm_link *link, const struct ntbm_put *put)
{
    struct sim_link *self = sim_link_of(link);
    ntbm_copy_to_shared(self->memory + put->offset, put->bytes, put->len);
    if (put->word_offset != NTBM_NO_WORD)
        __atomic_store_n((uint32_t *)(self->memory + put->word_offset), put->word, __ATOMIC_RELEASE);
}

static int sim_link_read(struct ntbm_link *link, uint64_t offset, void *out, uint32_t len)
{
    ntbm_copy_from_shared(out, sim_link_of(link)->memory + offset, len);
    return 0;
}

static const struct ntbm_link_ops sim_link_ops = {.name = "simulated",
                                                  .attach = sim_link_attach,
                                                  .detach = sim_link_detach,
                                                  .stage = sim_link_stage,
                                                  .put = sim_link_put,
                                                  .read = sim_link_read};

static inline void sim_link_init(struct sim_link *self, uint8_t *memory, uint64_t bytes)
{
    *self = (struct sim_link){.link = {.ops = &sim_link_ops}, .memory = memory, .bytes = bytes};
}

#endif
