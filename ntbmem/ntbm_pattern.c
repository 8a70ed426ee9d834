#include "ntbmem/ntbm_pattern.h"

#include "ntbmem/ntbm_copy.h"
#include "ntbmem/ntbm_random.h"

#include <string.h>

#define LINES 64u

struct line {
    uint64_t word[NTBM_LINE / 8];
};

/* Where line idx < LINES lies in the area: evenly over the slots, the last in the last line. */
static uint32_t line_offset(const struct ntbm_geometry *geo, uint32_t idx)
{
    uint32_t first = ntbm_slot_offset(geo, 0), last = ntbm_slot_offset(geo, geo->slot_count) - NTBM_LINE;
    uint64_t step = (uint64_t)(last - first) / NTBM_LINE * idx / (LINES - 1);
    return first + (uint32_t)step * NTBM_LINE;
}

static struct line line_at(uint32_t writer_epoch, uint32_t reader_epoch, uint32_t offset)
{
    struct line line;
    uint64_t state = ((uint64_t)writer_epoch << 32 | reader_epoch) ^ (uint64_t)offset << 16;
    for (uint32_t i = 0; i < NTBM_LINE / 8; i++)
        line.word[i] = ntbm_random(&state);
    return line;
}

void ntbm_pattern_put(const struct ntbm_session *session)
{
    for (uint32_t i = 0; i < LINES; i++) {
        uint32_t offset = line_offset(&session->geo, i);
        struct line line = line_at(session->epoch, session->peer_epoch, offset);
        ntbm_link_put(session->link, &(struct ntbm_put){.offset = session->out + offset,
                                                        .bytes = &line,
                                                        .len = sizeof(line),
                                                        .word_offset = NTBM_NO_WORD});
    }
}

bool ntbm_pattern_is_there(const struct ntbm_session *session, uint32_t *missing)
{
    for (uint32_t i = 0; i < LINES; i++) {
        uint32_t offset = line_offset(&session->geo, i);
        struct line line = line_at(session->peer_epoch, session->epoch, offset), seen;
        ntbm_copy_from_shared(&seen, session->in + offset, sizeof(seen));
        if (memcmp(&line, &seen, sizeof(line))) {
            *missing = offset;
            return false;
        }
    }
    return true;
}

static uint32_t proof(uint32_t writer_epoch, uint32_t reader_epoch)
{
    uint32_t epochs[] = {writer_epoch, reader_epoch};
    return ntbm_sum(epochs, sizeof(epochs)) | 1;
}

uint32_t ntbm_pattern_proof(const struct ntbm_session *session)
{
    return proof(session->peer_epoch, session->epoch);
}

uint32_t ntbm_pattern_expected_proof(const struct ntbm_session *session)
{
    return proof(session->epoch, session->peer_epoch);
}
