/* Emulated links: time and faults, exactly as asked for. */
#include "ntbmem/ntbm_emu.h"
#include "tests/sim/sim_link.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define MIB (1u << 20)
#define US 1000ull
#define MS 1000000ull

static uint8_t *memory;
static struct sim_link inner;
static struct ntbm_emu emu;
static uint64_t now_ns;

static uint64_t clock_of_test(void *ctx)
{
    (void)ctx;
    return now_ns;
}

static void begin(uint64_t bandwidth, uint64_t latency_ns)
{
    struct ntbm_emu_attr attr = {.bandwidth = bandwidth, .latency_ns = latency_ns};
    now_ns = 1000 * MS;
    memory = aligned_alloc(4096, MIB);
    memset(memory, 0, MIB);
    sim_link_init(&inner, memory, MIB);
    ntbm_emu_init(&emu, &inner.link, &attr, clock_of_test, NULL, 1);
    cr_assert_eq(ntbm_link_attach(&emu.link, NULL), 0);
}

static void end(void)
{
    ntbm_link_detach(&emu.link);
    ntbm_emu_fini(&emu);
    free(memory);
}

/* Puts word idx with so many staged bytes. */
static void put(uint32_t idx, uint32_t staged_len)
{
    ntbm_link_put(&emu.link,
                  &(struct ntbm_put){
                      .offset = 65536, .staged_len = staged_len, .word_offset = 4 * idx, .word = idx + 1});
}

static bool has_come(uint32_t idx)
{
    ntbm_link_poll(&emu.link, now_ns);
    return ((uint32_t *)memory)[idx] == idx + 1;
}

/* When the word comes, counted from now. */
static uint64_t arrival_ns(uint32_t idx)
{
    uint64_t begin_ns = now_ns;
    while (!has_come(idx))
        now_ns = ntbm_emu_due_ns(&emu);
    return now_ns - begin_ns;
}

Test(emu, without_limits_a_put_is_there_at_once)
{
    begin(0, 0);
    put(0, 0);
    cr_assert_eq(((uint32_t *)memory)[0], 1);
    cr_assert_eq(ntbm_emu_due_ns(&emu), UINT64_MAX);
    end();
}

Test(emu, latency_delays_each_put_and_keeps_their_order)
{
    begin(0, 30 * US);
    put(0, 0);
    now_ns += 10 * US;
    put(1, 0);
    cr_assert_not(has_come(0));
    cr_assert_eq(arrival_ns(0), 20 * US);
    cr_assert_not(has_come(1));
    cr_assert_eq(arrival_ns(1), 10 * US);
    end();
}

Test(emu, bandwidth_counts_bytes_and_puts_queue_behind_each_other)
{
    begin(1000000000, 0); /* 1 byte a ns */
    put(0, 64000);
    put(1, 64000);
    uint64_t first_ns = arrival_ns(0), second_ns = arrival_ns(1);
    cr_assert(first_ns >= 64000 && first_ns < 64100, "%lu", first_ns);
    cr_assert(second_ns >= 64000 && second_ns < 64100, "%lu", second_ns);
    end();
}

Test(emu, an_idle_link_saves_no_bandwidth)
{
    begin(1000000000, 0);
    now_ns += 1000 * MS;
    put(0, 64000);
    cr_assert_geq(arrival_ns(0), 64000);
    end();
}

Test(emu, bytes_of_a_small_put_are_kept_until_they_arrive)
{
    uint8_t line[64] = {7};
    begin(0, 1 * MS);
    ntbm_link_put(&emu.link,
                  &(struct ntbm_put){.offset = 4096, .bytes = line, .len = 64, .word_offset = 0, .word = 1});
    line[0] = 9;
    cr_assert_eq(memory[4096], 0);
    arrival_ns(0);
    cr_assert_eq(memory[4096], 7);
    end();
}

Test(emu, a_lost_link_drops_what_is_under_way_and_reads_as_all_ones)
{
    uint64_t value = 0;
    begin(0, 1 * MS);
    put(0, 0);
    emu.faults.lost = true;
    put(1, 0);
    now_ns += 10 * MS;
    cr_assert_not(has_come(0));
    emu.faults.lost = false;
    cr_assert_not(has_come(0));
    cr_assert_not(has_come(1));
    emu.faults.lost = true;
    cr_assert_eq(ntbm_link_read(&emu.link, 0, &value, 8), 0);
    cr_assert_eq(value, UINT64_MAX);
    end();
}

Test(emu, a_stuck_link_delivers_all_when_it_comes_loose)
{
    begin(0, 0);
    emu.faults.stuck = true;
    put(0, 0);
    put(1, 0);
    now_ns += 1000 * MS;
    cr_assert_not(has_come(0));
    emu.faults.stuck = false;
    cr_assert(has_come(0));
    cr_assert(has_come(1));
    end();
}

Test(emu, drops_about_as_many_as_asked_for)
{
    unsigned came = 0;
    begin(0, 0);
    emu.faults.drop_permille = 250;
    for (uint32_t i = 0; i < 4000; i++) {
        put(i, 0);
        came += has_come(i);
    }
    cr_assert(came > 2850 && came < 3150, "%u of 4000", came);
    end();
}

Test(emu, reordering_lets_puts_overtake_but_loses_none)
{
    unsigned overtaken = 0;
    begin(0, 0);
    emu.faults.reorder_ns = 1 * MS;
    for (uint32_t i = 0; i < 100; i++)
        put(i, 0);
    for (; ntbm_emu_due_ns(&emu) != UINT64_MAX; now_ns = ntbm_emu_due_ns(&emu))
        for (uint32_t i = 0; i + 1 < 100; i++)
            overtaken += !has_come(i) && has_come(i + 1);
    for (uint32_t i = 0; i < 100; i++)
        cr_assert(has_come(i));
    cr_assert_gt(overtaken, 0);
    end();
}

Test(emu, a_flipped_bit_is_one_bit_of_the_data)
{
    unsigned bits = 0;
    begin(0, 0);
    emu.faults.flip_permille = 1000;
    put(0, 4096);
    for (uint32_t i = 0; i < MIB; i++)
        bits += i >= 64 ? (unsigned)__builtin_popcount(memory[i]) : 0;
    cr_assert_eq(bits, 1);
    end();
}

Test(emu, a_garbled_message_has_one_bit_changed_and_the_senders_own_bytes_none)
{
    uint8_t line[64] = {0};
    unsigned bits = 0;
    begin(0, 0);
    emu.faults.garble_permille = 1000;
    ntbm_link_put(&emu.link,
                  &(struct ntbm_put){.offset = 0, .bytes = line, .len = 64, .word_offset = NTBM_NO_WORD});
    for (uint32_t i = 0; i < 64; i++) {
        bits += (unsigned)__builtin_popcount(memory[i]);
        cr_assert_eq(line[i], 0);
    }
    cr_assert_eq(bits, 1);
    end();
}

Test(emu, nothing_arrives_after_detach)
{
    begin(0, 1 * MS);
    put(0, 0);
    ntbm_link_detach(&emu.link);
    now_ns += 10 * MS;
    cr_assert_eq(ntbm_link_attach(&emu.link, NULL), 0);
    cr_assert_not(has_come(0));
    end();
}

Test(emu, the_same_seed_does_the_same)
{
    uint32_t lost[2] = {0};
    for (int run = 0; run < 2; run++) {
        begin(0, 0);
        emu.faults.drop_permille = 500;
        for (uint32_t i = 0; i < 32; i++) {
            put(i, 0);
            lost[run] |= (uint32_t)!has_come(i) << i;
        }
        end();
    }
    cr_assert_eq(lost[0], lost[1]);
}

Test(emu, faults_are_said_and_taken_in_the_same_words)
{
    struct ntbm_emu_faults faults = {.stuck = true};
    struct ut_err err;
    char words[128];
    const char *all = "lost stuck ones drop=1000 flip=1 garble=3 reorder=1000000000";
    cr_assert_eq(ntbm_emu_faults_parse(all, strlen(all), &faults, &err), 0);
    cr_assert(faults.lost && faults.stuck && faults.all_ones && faults.drop_permille == 1000);
    cr_assert(faults.flip_permille == 1 && faults.garble_permille == 3 && faults.reorder_ns == 1000000000);
    ntbm_emu_faults_show(&faults, words, sizeof(words));
    cr_assert_str_eq(words, all);
    cr_assert_eq(ntbm_emu_faults_parse(" none\n", 6, &faults, &err), 0);
    ntbm_emu_faults_show(&faults, words, sizeof(words));
    cr_assert_str_eq(words, "none");
}

Test(emu, a_wrong_fault_changes_nothing_and_is_named)
{
    static const char *const wrong[] = {
        "broken", "drop=1001", "drop=", "drop=x", "flip=-1", "reorder=1000000001"};
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct ntbm_emu_faults faults = {.lost = true};
        struct ut_err err;
        cr_assert_eq(ntbm_emu_faults_parse(wrong[i], strlen(wrong[i]), &faults, &err), -EINVAL);
        cr_assert(faults.lost && strstr(err.text, wrong[i]), "%s", err.text);
    }
    struct ut_err err;
    struct ntbm_emu_faults faults;
    cr_assert_eq(ntbm_emu_faults_parse("lost\0", 5, &faults, &err), -EINVAL);
}
