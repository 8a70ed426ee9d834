/* How landing memory is cut, and who is refused at its door. */
#include "ntbmem/ntbm_landing.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

static struct ntbm_geometry cut(uint64_t landing_bytes, uint32_t node_count)
{
    struct ntbm_geometry geo;
    struct ut_err err = {""};
    cr_assert_eq(ntbm_landing_cut(landing_bytes, node_count, &geo, &err), 0, "%s", err.text);
    return geo;
}

/* Everything inside, nothing overlapping, all in whole lines. */
static void check_cut(const struct ntbm_geometry *geo, uint64_t landing_bytes, uint32_t node_count)
{
    uint64_t last = ntbm_area_offset(geo, 0, node_count - 1);
    cr_assert_leq(last + geo->area_bytes, landing_bytes);
    cr_assert_leq(ntbm_slot_offset(geo, geo->slot_count), geo->area_bytes);
    cr_assert_eq(geo->area_bytes % NTBM_LINE, 0);
    cr_assert_eq(geo->slot_bytes % NTBM_LINE, 0);
    cr_assert_geq(geo->slot_count, 2);
    cr_assert_leq(geo->slot_count, NTBM_SLOTS_MAX);
    cr_assert_geq(geo->slot_bytes, NTBM_SLOT_BYTES_MIN);
    cr_assert_leq(geo->slot_bytes, NTBM_SLOT_BYTES_MAX);
    cr_assert_geq(geo->cell_count, 8);
    cr_assert_eq(geo->cell_count & (geo->cell_count - 1), 0);
}

Test(landing, every_size_from_the_smallest_on_is_cut_soundly)
{
    for (uint32_t nodes = 2; nodes < 300; nodes += nodes < 20 ? 1 : 37)
        for (uint64_t bytes = ntbm_landing_min_bytes(nodes); bytes < 1ull << 31; bytes = bytes * 5 / 4 + 13) {
            struct ntbm_geometry geo = cut(bytes, nodes);
            check_cut(&geo, bytes, nodes);
        }
}

Test(landing, sixty_four_kib_serve_thirty_nodes)
{
    cut(65536, 30);
    cr_assert_leq(ntbm_landing_min_bytes(30), 65536);
}

Test(landing, large_memory_gives_many_slots_of_full_size)
{
    struct ntbm_geometry geo = cut(16ull << 20, 3);
    cr_assert_eq(geo.slot_bytes, NTBM_SLOT_BYTES_MAX);
    cr_assert_eq(geo.slot_count, NTBM_SLOTS_MAX);
    geo = cut(2ull << 20, 2);
    cr_assert_geq(geo.slot_count, 4);
    cr_assert_geq(geo.slot_bytes, 200u << 10);
}

Test(landing, the_default_gives_four_slots_of_full_size_and_grows_linearly)
{
    for (uint32_t nodes = 2; nodes < 300; nodes += 17) {
        struct ntbm_geometry geo = cut(ntbm_landing_default_bytes(nodes), nodes);
        cr_assert_eq(geo.slot_count, 4);
        cr_assert_eq(geo.slot_bytes, NTBM_SLOT_BYTES_MAX);
        cr_assert_leq(ntbm_landing_default_bytes(nodes), (uint64_t)nodes * 1100000);
    }
}

Test(landing, too_small_memory_is_refused_with_the_size_needed)
{
    struct ntbm_geometry geo;
    struct ut_err err = {""};
    cr_assert_eq(ntbm_landing_cut(65536, 300, &geo, &err), -EINVAL);
    cr_assert(strstr(err.text, "616448"), "%s", err.text);
    cr_assert_eq(ntbm_landing_min_bytes(300), 616448);
    cr_assert_eq(ntbm_landing_cut(0, 2, &geo, &err), -EINVAL);
    cr_assert_eq(ntbm_landing_cut(1 << 20, 1, &geo, &err), -EINVAL);
}

Test(landing, each_sender_has_an_area_of_its_own)
{
    struct ntbm_geometry geo = cut(1 << 20, 5);
    uint64_t next = NTBM_HEADER_BYTES;
    for (uint32_t sender = 0; sender < 5; sender++) {
        if (sender == 2)
            continue;
        cr_assert_eq(ntbm_area_offset(&geo, 2, sender), next);
        next += geo.area_bytes;
    }
}

Test(landing, no_tag_is_zero_or_all_ones)
{
    for (uint64_t epoch = 0; epoch < 1ull << 32; epoch += 12345) {
        uint32_t tag = ntbm_tag((uint32_t)epoch);
        cr_assert(tag > 0 && tag < 0xffff);
    }
    cr_assert_neq(ntbm_tag(7), ntbm_tag(8));
    cr_assert_eq(ntbm_word(7, 9) & 0xffff, 9);
}

/* ---- who is refused ---- */

static struct ntbm_ident ident(uint32_t node)
{
    struct ntbm_ident ident = {.magic = NTBM_MAGIC,
                               .version = NTBM_VERSION,
                               .bytes = sizeof(ident),
                               .fabric = "demo",
                               .node = node,
                               .node_count = 3,
                               .geometry = cut(65536, 3),
                               .incarnation = 11,
                               .pid = 4711,
                               .host = "one.example"};
    return ident;
}

static void refused(const struct ntbm_ident *theirs, int rc, const char *because)
{
    struct ntbm_ident ours = ident(0);
    struct ut_err err = {""};
    cr_assert_eq(ntbm_ident_check(&ours, theirs, 1, &err), rc, "%s", err.text);
    cr_assert(strstr(err.text, because), "refused with: %s", err.text);
}

Test(landing, a_fitting_peer_is_welcome)
{
    struct ntbm_ident ours = ident(0), theirs = ident(1);
    cr_assert_eq(ntbm_ident_check(&ours, &theirs, 1, NULL), 0);
}

Test(landing, strangers_are_refused_in_words)
{
    struct ntbm_ident theirs = ident(1);
    theirs.magic ^= 1;
    refused(&theirs, -EPROTO, "not landing memory");

    theirs = ident(1);
    theirs.version = 1;
    refused(&theirs, -EPROTO, "node 1 speaks version 1 of the fabric, this daemon version 2");

    theirs = ident(1);
    strcpy(theirs.fabric, "other");
    refused(&theirs, -EPROTO, "\"other\"");

    theirs = ident(0);
    refused(&theirs, -EPROTO, "node number 0 is used twice: here, and by process 4711 on one.example");

    theirs = ident(2);
    refused(&theirs, -EPROTO, "is that of node 2 (process 4711 on one.example)");

    theirs = ident(1);
    theirs.node_count = 4;
    refused(&theirs, -EPROTO, "counts 4 nodes in the fabric, this daemon 3");

    theirs = ident(1);
    theirs.geometry = cut(1 << 20, 3);
    refused(&theirs, -EPROTO, "same length");
}

Test(landing, all_ones_are_a_dead_link_and_zeros_are_nobody)
{
    struct ntbm_ident theirs;
    memset(&theirs, 0xff, sizeof(theirs));
    refused(&theirs, -ENODEV, "link is down");
    memset(&theirs, 0, sizeof(theirs));
    refused(&theirs, -ENXIO, "no daemon");
}

Test(landing, names_without_an_end_are_harmless)
{
    struct ntbm_ident theirs = ident(0);
    memset(theirs.host, 'h', sizeof(theirs.host));
    refused(&theirs, -EPROTO, "on hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh,");
    theirs = ident(1);
    memset(theirs.fabric, 'f', sizeof(theirs.fabric));
    refused(&theirs, -EPROTO, "\"fffffffffffffffffffffffffffffff\"");
}
