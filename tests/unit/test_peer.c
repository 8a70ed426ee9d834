/* Two peers in virtual time: how they find, check, keep and lose each other. Cluster-wide chaos: tests/sim.
 */
#include "ntbmem/ntbm_pattern.h"
#include "tests/sim/sim_pair.h"

#include <criterion/criterion.h>
#include <errno.h>

static struct sim_pair pair;

static struct ntbm_peer *peer(int idx)
{
    return pair.side[idx].peer;
}

static void start_both(void)
{
    sim_pair_init(&pair, 65536);
    sim_pair_restart(&pair, 0, 1000);
    sim_pair_restart(&pair, 1, 2000);
}

static void both_up(void)
{
    start_both();
    sim_pair_run(&pair, 300);
    cr_assert(sim_pair_is_up(&pair), "%s / %s", peer(0)->reason, peer(1)->reason);
}

static void says(const char *text, const char *part)
{
    cr_assert(strstr(text, part), "\"%s\" was said, \"%s\" expected", text, part);
}

/* ---- coming up ---- */

Test(peer, both_come_up_within_a_few_polls)
{
    start_both();
    sim_pair_run(&pair, 60);
    cr_assert(sim_pair_is_up(&pair));
    cr_assert_eq(pair.side[0].ups, 1);
    cr_assert_eq(pair.side[1].ups, 1);
    cr_assert_str_eq(peer(0)->reason, "");
    sim_pair_fini(&pair);
}

Test(peer, the_order_and_time_of_starts_do_not_matter)
{
    for (int first = 0; first < 2; first++)
        for (uint64_t wait_ms = 0; wait_ms < 5000; wait_ms = wait_ms * 3 + 7) {
            sim_pair_init(&pair, 65536);
            sim_pair_restart(&pair, first, 1000);
            sim_pair_run(&pair, wait_ms);
            cr_assert_eq(peer(first)->state, NTBM_ABSENT);
            sim_pair_restart(&pair, 1 - first, 2000);
            sim_pair_run(&pair, 300);
            cr_assert(sim_pair_is_up(&pair));
            sim_pair_fini(&pair);
        }
}

Test(peer, memory_that_is_not_there_yet_is_waited_for)
{
    start_both();
    uint8_t *memory = pair.side[0].link.memory;
    pair.side[0].link.memory = NULL;
    sim_pair_run(&pair, 3000);
    cr_assert_eq(peer(0)->state, NTBM_ABSENT);
    says(peer(0)->reason, "not there");
    cr_assert_eq(pair.side[0].events, 0);
    pair.side[0].link.memory = memory;
    sim_pair_run(&pair, 1500);
    cr_assert(sim_pair_is_up(&pair));
    sim_pair_fini(&pair);
}

Test(peer, up_is_not_reached_before_the_pattern_was_read_on_both_sides)
{
    start_both();
    while (!peer(0)->link_up || !peer(1)->link_up)
        sim_pair_run(&pair, 5);
    cr_assert(peer(0)->state == NTBM_GREETING || peer(0)->verified_in);
    sim_pair_run(&pair, 100);
    cr_assert(peer(0)->verified_in && peer(0)->verified_out);
    cr_assert(sim_pair_is_up(&pair));
    sim_pair_fini(&pair);
}

Test(peer, a_window_that_leads_elsewhere_behind_its_first_pages_is_found_out)
{
    start_both();
    /* What side 1 writes behind the first 32 KiB of side 0's memory never comes there. */
    uint8_t *end = pair.side[0].landing + 65536 - NTBM_LINE;
    for (int i = 0; i < 600; i++) {
        sim_pair_run(&pair, 5);
        memset(end - 4096, 0, 4096 + NTBM_LINE);
        cr_assert_not(ntbm_peer_is_open(peer(0)));
    }
    says(pair.side[0].event, "does not arrive at byte 6");
    says(pair.side[1].event, "does not arrive whole at node 0 (process 100 on zero)");
    cr_assert_eq(pair.side[0].events, 1, "told once, not at every try");
    sim_pair_run(&pair, 3000);
    cr_assert(sim_pair_is_up(&pair), "and it works once the cause is gone");
    sim_pair_fini(&pair);
}

Test(peer, a_window_shorter_than_our_area_is_refused_with_the_size)
{
    start_both();
    pair.side[0].link.bytes = 32768;
    sim_pair_run(&pair, 500);
    says(pair.side[0].event, "is 32768 bytes long, 65536 are needed");
    sim_pair_fini(&pair);
}

/* ---- refusals ---- */

/* Side 1 starts as attr says, and both must stay apart for the reason that side `who` gives. */
static void refuse_each_other(const struct ntbm_node_attr *attr, uint32_t peer_node, int who,
                              const char *reason)
{
    sim_pair_restart(&pair, 0, 1000);
    sim_pair_start(&pair, 1, attr, peer_node);
    sim_pair_run(&pair, 3000);
    cr_assert_not(ntbm_peer_is_open(peer(0)));
    cr_assert_not(ntbm_peer_is_open(peer(1)));
    says(pair.side[who].event, reason);
    cr_assert_eq(pair.side[who].events, 1);
    sim_pair_fini(&pair);
}

Test(peer, the_same_node_number_is_refused_on_both_sides)
{
    sim_pair_init(&pair, 65536);
    struct ntbm_node_attr attr = sim_pair_attr(&pair, 1, 2000);
    attr.node = 0;
    refuse_each_other(&attr, 1, 0, "node number 0 is used twice: here, and by process 101 on one");
    sim_pair_init(&pair, 65536);
    attr.landing = pair.side[1].landing;
    refuse_each_other(&attr, 1, 1, "node number 0 is used twice: here, and by process 100 on zero");
}

Test(peer, another_fabric_is_refused)
{
    sim_pair_init(&pair, 65536);
    struct ntbm_node_attr attr = sim_pair_attr(&pair, 1, 2000);
    attr.fabric = "other";
    refuse_each_other(&attr, 0, 0,
                      "node 1 (process 101 on one) belongs to fabric \"other\", this daemon to \"pair\"");
}

Test(peer, another_geometry_is_refused)
{
    sim_pair_init(&pair, 65536);
    struct ntbm_node_attr attr = sim_pair_attr(&pair, 1, 2000);
    attr.landing_bytes = 32768;
    refuse_each_other(&attr, 0, 0, "node 1 (process 101 on one) has ");
    sim_pair_init(&pair, 65536);
    attr = sim_pair_attr(&pair, 1, 2000);
    attr.landing_bytes = 32768;
    refuse_each_other(&attr, 0, 0, "give both landing memories the same length");
}

Test(peer, another_number_of_nodes_is_said_although_the_window_is_too_short_for_it)
{
    sim_pair_init(&pair, 65536);
    struct ntbm_node_attr attr = sim_pair_attr(&pair, 1, 2000);
    attr.node_count = 3;
    sim_pair_restart(&pair, 0, 1000);
    sim_pair_start(&pair, 1, &attr, 0);
    pair.side[1].link.bytes = 8192;
    sim_pair_run(&pair, 500);
    says(pair.side[1].event, "node 0 (process 100 on zero) counts 2 nodes in the fabric, this daemon 3");
    sim_pair_fini(&pair);
}

Test(peer, another_version_is_refused)
{
    start_both();
    pair.side[1].node.self.ident.version = 7;
    sim_pair_run(&pair, 3000);
    says(pair.side[0].event, "node 1 speaks version 7 of the fabric, this daemon version 2");
    cr_assert_not(ntbm_peer_is_open(peer(0)));
    sim_pair_fini(&pair);
}

Test(peer, a_daemon_that_runs_but_is_not_heard_is_told_from_one_that_does_not_run)
{
    start_both();
    pair.side[1].emu.faults.lost = true;
    sim_pair_run(&pair, 1500);
    says(pair.side[0].event,
         "the daemon of node 1 runs (process 101 on one), but nothing of it arrives here");
    sim_pair_kill(&pair, 1);
    sim_pair_run(&pair, 2500);
    says(peer(0)->reason, "node 1");
    cr_assert_null(strstr(peer(0)->reason, "runs"));
    sim_pair_fini(&pair);
}

/* A second daemon writes hellos as node 1 between those of the first. */
Test(peer, two_daemons_with_one_number_are_both_kept_out_and_named)
{
    both_up();
    struct ntbm_hello *place = (struct ntbm_hello *)peer(0)->session.in;
    struct ntbm_hello rival = *place;
    rival.ident.incarnation = 3000;
    rival.ident.pid = 333;
    strcpy(rival.ident.host, "two");
    for (int i = 0; i < 20; i++) {
        sim_pair_run(&pair, 105);
        struct ntbm_hello kept = *place;
        uint32_t kept_word = ((struct ntbm_words *)(place + 1))->hello;
        rival.beat++;
        rival.sum = ntbm_sum(&rival, offsetof(struct ntbm_hello, sum));
        *place = rival;
        ((struct ntbm_words *)(place + 1))->hello = rival.beat + 5000;
        ntbm_node_poll(&pair.side[0].node, pair.now_ns);
        *place = kept;
        ((struct ntbm_words *)(place + 1))->hello = kept_word;
    }
    says(pair.side[0].event, "two daemons claim to be node 1: process 101 on one and process 333 on two");
    says(pair.side[1].event,
         "node 0 (process 100 on zero) refuses this node: another daemon claims to be node 1, too");
    cr_assert_not(ntbm_peer_is_open(peer(0)));
    sim_pair_run(&pair, 15000);
    cr_assert(sim_pair_is_up(&pair), "and it works once one of them has gone: %s", peer(0)->reason);
    sim_pair_fini(&pair);
}

/* A daemon of that fabric writes a hello into the area of node 1 in the memory of side 0. */
static void intrude(const char *fabric, uint32_t beat)
{
    struct ntbm_hello *place = (struct ntbm_hello *)peer(0)->session.in, hello = *place;
    memset(hello.ident.fabric, 0, sizeof(hello.ident.fabric));
    snprintf(hello.ident.fabric, sizeof(hello.ident.fabric), "%s", fabric);
    hello.sum = ntbm_sum(&hello, offsetof(struct ntbm_hello, sum));
    *place = hello;
    ((struct ntbm_words *)(place + 1))->hello = beat;
    sim_pair_run(&pair, 100);
}

Test(peer, daemons_of_which_none_belongs_here_are_each_told_of_once)
{
    static const char *const names[] = {"red", "green", "blue"};
    both_up();
    sim_pair_kill(&pair, 1);
    for (unsigned i = 0; i < 300; i++)
        intrude(names[i % 3], 10000 + i);
    cr_assert_eq(pair.side[0].events, 3, "%u events", pair.side[0].events);
    says(pair.side[0].event, "blue");
    sim_pair_fini(&pair);
}

Test(peer, what_was_over_for_ten_limits_is_news_when_it_is_so_again)
{
    both_up();
    sim_pair_kill(&pair, 1);
    intrude("red", 10000);
    sim_pair_run(&pair, 9000);
    intrude("red", 10001);
    cr_assert_eq(pair.side[0].events, 1);
    sim_pair_run(&pair, 10500);
    intrude("red", 10002);
    cr_assert_eq(pair.side[0].events, 2);
    sim_pair_fini(&pair);
}

Test(peer, whoever_writes_ever_new_nonsense_is_told_of_now_and_then)
{
    char name[16];
    both_up();
    sim_pair_kill(&pair, 1);
    for (unsigned i = 0; i < 600; i++) {
        snprintf(name, sizeof(name), "red%u", i);
        intrude(name, 10000 + i);
    }
    cr_assert_leq(pair.side[0].events, NTBM_TOLD * 6, "%u events in a minute", pair.side[0].events);
    says(peer(0)->reason, "red599");
    sim_pair_fini(&pair);
}

/* ---- going down ---- */

Test(peer, silence_makes_suspect_and_then_down_within_the_limit)
{
    both_up();
    sim_pair_run(&pair, 50);
    sim_pair_kill(&pair, 1);
    sim_pair_run(&pair, 700);
    cr_assert_eq(peer(0)->state, NTBM_SUSPECT);
    cr_assert_eq(ntbm_peer_send(peer(0), "x", 1), 0);
    sim_pair_run(&pair, 310);
    cr_assert_eq(pair.side[0].downs, 1);
    says(pair.side[0].reason, "node 1 (one) has been silent for 10");
    cr_assert_eq(peer(0)->figures.dropped, 0, "the message was in a cell already");
    cr_assert_eq(ntbm_peer_send(peer(0), "x", 1), -ENOTCONN);
    sim_pair_fini(&pair);
}

Test(peer, a_suspect_that_speaks_again_is_up_as_if_nothing_had_been)
{
    both_up();
    pair.side[1].emu.faults.stuck = true;
    sim_pair_run(&pair, 700);
    cr_assert_eq(peer(0)->state, NTBM_SUSPECT);
    pair.side[1].emu.faults.stuck = false;
    sim_pair_run(&pair, 100);
    cr_assert_eq(peer(0)->state, NTBM_UP);
    cr_assert_eq(pair.side[0].downs, 0);
    sim_pair_fini(&pair);
}

Test(peer, a_killed_daemon_comes_back_by_itself)
{
    both_up();
    sim_pair_kill(&pair, 1);
    sim_pair_restart(&pair, 1, 2001);
    sim_pair_run(&pair, 1000);
    says(pair.side[0].reason, "the daemon of node 1 on one was restarted: process 101, before 101");
    cr_assert(sim_pair_is_up(&pair));
    cr_assert_eq(pair.side[0].ups, 2);
    sim_pair_fini(&pair);
}

Test(peer, a_rebooted_node_is_called_so)
{
    both_up();
    sim_pair_kill(&pair, 1);
    memset(pair.side[1].landing, 0x5a, 65536);
    struct ntbm_node_attr attr = sim_pair_attr(&pair, 1, 2001);
    attr.boot_id[0] = 1;
    sim_pair_start(&pair, 1, &attr, 0);
    sim_pair_run(&pair, 1000);
    says(pair.side[0].reason, "node 1 (one) was rebooted");
    cr_assert(sim_pair_is_up(&pair));
    sim_pair_fini(&pair);
}

Test(peer, a_daemon_that_stops_says_so_and_the_other_knows_at_once)
{
    both_up();
    sim_pair_stop(&pair, 1);
    cr_assert_str_eq(pair.side[1].reason, "this daemon stops");
    sim_pair_run(&pair, 5);
    cr_assert_eq(pair.side[0].downs, 1);
    says(pair.side[0].reason, "the daemon of node 1 on one stops");
    sim_pair_run(&pair, 3000);
    says(peer(0)->reason, "no daemon uses the memory of node 1");
    cr_assert_eq(pair.side[0].events, 0, "a node that is not there is no event");
    sim_pair_fini(&pair);
}

Test(peer, a_daemon_that_stops_is_told_so_whenever_the_other_looks)
{
    both_up();
    pair.side[1].other_looks = true;
    sim_pair_stop(&pair, 1);
    cr_assert_eq(pair.side[0].downs, 1);
    says(pair.side[0].reason, "the daemon of node 1 on one stops");
    sim_pair_fini(&pair);
}

Test(peer, a_link_that_dies_reads_as_all_ones_and_comes_back)
{
    both_up();
    pair.side[0].emu.faults.lost = pair.side[1].emu.faults.lost = true;
    sim_pair_run(&pair, 3000);
    cr_assert_eq(pair.side[0].downs, 1);
    cr_assert_eq(pair.side[1].downs, 1);
    says(pair.side[0].event, "all ones: its link is down");
    pair.side[0].emu.faults.lost = pair.side[1].emu.faults.lost = false;
    sim_pair_run(&pair, 2000);
    cr_assert(sim_pair_is_up(&pair));
    sim_pair_fini(&pair);
}

Test(peer, puts_lost_in_one_direction_end_the_session_on_both_sides)
{
    both_up();
    pair.side[0].emu.faults.drop_permille = 1000;
    sim_pair_run(&pair, 1300);
    cr_assert_eq(pair.side[1].downs, 1);
    cr_assert_eq(pair.side[0].downs, 1);
    says(pair.side[0].reason, "ended the session");
    sim_pair_fini(&pair);
}

Test(peer, memory_that_goes_away_ends_the_session_at_once)
{
    both_up();
    atomic_store(&pair.side[0].link.link.broken, true);
    sim_pair_run(&pair, 5);
    cr_assert_eq(pair.side[0].downs, 1);
    says(pair.side[0].reason, "memory of node 1 is gone");
    sim_pair_run(&pair, 1000);
    cr_assert(sim_pair_is_up(&pair));
    sim_pair_fini(&pair);
}

Test(peer, our_own_standstill_is_not_taken_for_the_peers_silence)
{
    both_up();
    /* Side 0 is not polled for 700 ms: short enough for side 1, but all of it before side 0 hears a beat. */
    for (int i = 0; i < 140; i++) {
        pair.now_ns += 5 * SIM_MS;
        ntbm_node_poll(&pair.side[1].node, pair.now_ns);
    }
    sim_pair_run(&pair, 1);
    cr_assert_eq(peer(0)->state, NTBM_UP);
    cr_assert_eq(pair.side[0].downs, 0);
    sim_pair_fini(&pair);
}

Test(peer, in_steady_state_nothing_is_read_across_the_link)
{
    both_up();
    uint64_t reads = atomic_load(&pair.side[0].emu.link.reads);
    cr_assert_gt(reads, 0);
    for (int i = 0; i < 500; i++) {
        ntbm_peer_send(peer(0), "hello", 5);
        sim_pair_run(&pair, 10);
    }
    cr_assert_eq(atomic_load(&pair.side[0].emu.link.reads), reads);
    cr_assert_eq(pair.side[1].messages, 500);
    sim_pair_fini(&pair);
}

/* ---- what it carries ---- */

Test(peer, messages_arrive_whole_from_one_byte_to_the_largest)
{
    uint8_t bytes[NTBM_MSG_BYTES];
    both_up();
    for (uint32_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7);
    for (uint32_t len = 1; len <= NTBM_MSG_BYTES; len = len < 120 ? len + 1 : len * 2) {
        cr_assert_eq(ntbm_peer_send(peer(0), bytes, len), 0);
        sim_pair_run(&pair, 200);
        cr_assert_eq(pair.side[1].message_len, len);
        cr_assert_arr_eq(pair.side[1].message, bytes, len);
    }
    cr_assert_eq(ntbm_peer_send(peer(0), bytes, 0), -EMSGSIZE);
    cr_assert_eq(ntbm_peer_send(peer(0), bytes, NTBM_MSG_BYTES + 1), -EMSGSIZE);
    sim_pair_fini(&pair);
}

Test(peer, a_full_outbox_says_so_and_drains)
{
    uint8_t bytes[NTBM_MSG_BYTES] = {1};
    unsigned sent = 0;
    both_up();
    while (ntbm_peer_send(peer(0), bytes, sizeof(bytes)) == 0)
        sent++;
    cr_assert_eq(sent, NTBM_OUTBOX_BYTES / NTBM_MSG_BYTES);
    cr_assert_eq(ntbm_peer_send(peer(0), bytes, sizeof(bytes)), -EAGAIN);
    for (int i = 0; i < 100 && pair.side[1].messages < sent; i++)
        sim_pair_run(&pair, 1000);
    cr_assert_eq(pair.side[1].messages, sent);
    cr_assert_eq(pair.side[0].downs, 0);
    sim_pair_fini(&pair);
}

Test(peer, messages_that_did_not_leave_are_dropped_with_the_session)
{
    uint8_t bytes[NTBM_MSG_BYTES] = {1};
    both_up();
    for (int i = 0; i < 10; i++)
        ntbm_peer_send(peer(0), bytes, sizeof(bytes));
    ntbm_peer_close(peer(0), "for the test");
    cr_assert_str_eq(pair.side[0].reason, "for the test");
    cr_assert_eq(peer(0)->figures.dropped, 10);
    sim_pair_run(&pair, 1000);
    cr_assert(sim_pair_is_up(&pair));
    cr_assert_eq(pair.side[1].messages, 0);
    sim_pair_fini(&pair);
}

Test(peer, closing_inside_a_callback_waits_until_it_returns)
{
    both_up();
    pair.side[1].close_on_message = true;
    ntbm_peer_send(peer(0), "a", 1);
    ntbm_peer_send(peer(0), "b", 1);
    sim_pair_run(&pair, 50);
    cr_assert_eq(pair.side[1].messages, 1, "the second is dropped with the session");
    cr_assert_eq(pair.side[1].downs, 1);
    cr_assert_str_eq(pair.side[1].reason, "not understood");
    cr_assert_eq(pair.side[0].downs, 1);
    sim_pair_run(&pair, 1000);
    cr_assert(sim_pair_is_up(&pair));
    sim_pair_fini(&pair);
}

Test(peer, closing_on_up_closes)
{
    start_both();
    pair.side[0].close_on_up = true;
    sim_pair_run(&pair, 100);
    cr_assert_eq(pair.side[0].ups, 1);
    cr_assert_eq(pair.side[0].downs, 1);
    cr_assert_str_eq(pair.side[0].reason, "not wanted");
    sim_pair_fini(&pair);
}

/* Sends one slot from side 0 with bytes of value, as a worker would. */
static void send_slot(uint32_t bytes, uint8_t value)
{
    struct ntbm_slot_out out;
    uint8_t user[NTBM_USER_BYTES];
    memset(user, value, sizeof(user));
    cr_assert_eq(ntbm_peer_take(peer(0), &out), 0);
    memset(out.data, value, bytes);
    ntbm_slot_send(&out, bytes, user);
}

Test(peer, a_slot_carries_its_bytes_and_the_layers_own_header)
{
    struct ntbm_slot_in in;
    both_up();
    cr_assert_eq(ntbm_peer_next(peer(1), &in), -EAGAIN);
    send_slot(1000, 7);
    sim_pair_run(&pair, 10);
    cr_assert_eq(ntbm_peer_next(peer(1), &in), 0);
    cr_assert_eq(in.bytes, 1000);
    cr_assert_eq(in.user[NTBM_USER_BYTES - 1], 7);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(((const uint8_t *)in.data)[i], 7);
    cr_assert_eq(ntbm_peer_next(peer(1), &in), -EAGAIN);
    ntbm_slot_done(&in);
    sim_pair_fini(&pair);
}

Test(peer, slots_run_out_and_come_back_one_by_one_in_any_order)
{
    struct ntbm_slot_in in[NTBM_SLOTS_MAX];
    struct ntbm_slot_out out;
    both_up();
    uint32_t count = peer(0)->session.geo.slot_count;
    for (uint32_t i = 0; i < count; i++)
        send_slot(1, (uint8_t)i);
    sim_pair_run(&pair, 10);
    cr_assert_eq(ntbm_peer_take(peer(0), &out), -EAGAIN);
    for (uint32_t i = 0; i < count; i++)
        cr_assert_eq(ntbm_peer_next(peer(1), &in[i]), 0);
    ntbm_slot_done(&in[count - 1]);
    sim_pair_run(&pair, 10);
    cr_assert_eq(ntbm_peer_take(peer(0), &out), 0);
    cr_assert_eq(out.idx, in[count - 1].idx);
    ntbm_slot_cancel(&out);
    for (uint32_t i = 0; i + 1 < count; i++)
        ntbm_slot_done(&in[i]);
    sim_pair_run(&pair, 5000);
    cr_assert_eq(pair.side[0].downs, 0, "held for long is not lost: %s", pair.side[0].reason);
    sim_pair_fini(&pair);
}

Test(peer, a_slot_held_for_long_ends_no_session)
{
    struct ntbm_slot_in in;
    both_up();
    send_slot(1, 1);
    sim_pair_run(&pair, 10);
    cr_assert_eq(ntbm_peer_next(peer(1), &in), 0);
    sim_pair_run(&pair, 10000);
    cr_assert_eq(pair.side[0].downs, 0);
    ntbm_slot_done(&in);
    sim_pair_fini(&pair);
}

Test(peer, a_slot_that_gets_lost_ends_the_session_within_the_limit)
{
    both_up();
    pair.side[0].emu.faults.drop_permille = 1000;
    send_slot(100, 1);
    pair.side[0].emu.faults.drop_permille = 0;
    sim_pair_run(&pair, 1300);
    cr_assert_eq(pair.side[0].downs, 1);
    says(pair.side[0].reason, "gets lost on the way to node 1");
    sim_pair_fini(&pair);
}

Test(peer, a_message_that_gets_lost_ends_the_session_within_the_limit)
{
    both_up();
    ntbm_peer_send(peer(0), "a", 1);
    pair.side[0].emu.faults.drop_permille = 1000;
    ntbm_node_poll(&pair.side[0].node, pair.now_ns);
    pair.side[0].emu.faults.drop_permille = 0;
    sim_pair_run(&pair, 1300);
    cr_assert_eq(pair.side[0].downs, 1);
    says(pair.side[0].reason, "gets lost on the way to node 1");
    cr_assert_eq(pair.side[1].messages, 0);
    sim_pair_fini(&pair);
}

Test(peer, a_credit_that_gets_lost_comes_with_the_next_beat)
{
    struct ntbm_slot_in in;
    struct ntbm_slot_out out[NTBM_SLOTS_MAX];
    both_up();
    send_slot(100, 1);
    sim_pair_run(&pair, 10);
    cr_assert_eq(ntbm_peer_next(peer(1), &in), 0);
    pair.side[1].emu.faults.drop_permille = 1000;
    ntbm_slot_done(&in);
    pair.side[1].emu.faults.drop_permille = 0;
    sim_pair_run(&pair, 200);
    for (uint32_t i = 0; i < peer(0)->session.geo.slot_count; i++)
        cr_assert_eq(ntbm_peer_take(peer(0), &out[i]), 0);
    for (uint32_t i = 0; i < peer(0)->session.geo.slot_count; i++)
        ntbm_slot_cancel(&out[i]);
    sim_pair_fini(&pair);
}

Test(peer, an_acknowledgement_that_gets_lost_comes_with_the_next_beat)
{
    both_up();
    ntbm_peer_send(peer(0), "a", 1);
    ntbm_node_poll(&pair.side[0].node, pair.now_ns);
    ntbm_node_poll(&pair.side[0].node, pair.now_ns);
    pair.side[1].emu.faults.drop_permille = 1000;
    ntbm_node_poll(&pair.side[1].node, pair.now_ns);
    cr_assert_eq(pair.side[1].messages, 1);
    pair.side[1].emu.faults.drop_permille = 0;
    sim_pair_run(&pair, 3000);
    cr_assert_eq(pair.side[0].downs, 0);
    cr_assert_eq(peer(0)->mail.waiting_ns, 0);
    sim_pair_fini(&pair);
}

Test(peer, no_new_session_begins_before_borrowed_slots_are_back)
{
    struct ntbm_slot_out out;
    both_up();
    cr_assert_eq(ntbm_peer_take(peer(0), &out), 0);
    ntbm_peer_close(peer(0), "for the test");
    sim_pair_run(&pair, 3000);
    cr_assert_eq(peer(0)->state, NTBM_DOWN);
    memset(out.data, 1, out.max_bytes); /* still mapped */
    ntbm_slot_send(&out, 10, (uint8_t[NTBM_USER_BYTES]){0});
    sim_pair_run(&pair, 2000);
    cr_assert(sim_pair_is_up(&pair));
    struct ntbm_slot_in in;
    cr_assert_eq(ntbm_peer_next(peer(1), &in), -EAGAIN, "what was sent after the end is not delivered");
    sim_pair_fini(&pair);
}

/* ---- nonsense in our landing memory ---- */

static struct ntbm_words *words_of_peer(int idx)
{
    return (struct ntbm_words *)(peer(idx)->session.in + NTBM_WORDS_OFFSET);
}

static void closed_for(int idx, const char *reason)
{
    sim_pair_run(&pair, 5);
    cr_assert_eq(pair.side[idx].downs, 1);
    says(pair.side[idx].reason, reason);
    sim_pair_run(&pair, 2000);
    cr_assert(sim_pair_is_up(&pair), "and comes back: %s", peer(idx)->reason);
    sim_pair_fini(&pair);
}

static uint32_t peers_word(int idx, uint16_t seq)
{
    return ntbm_word(peer(idx)->session.peer_epoch, seq);
}

static struct ntbm_cell *first_cell(int idx)
{
    return (struct ntbm_cell *)(peer(idx)->session.in + ntbm_cell_offset(0));
}

static void write_cell(struct ntbm_cell *at, struct ntbm_cell cell)
{
    cell.sum = ntbm_cell_sum(&cell);
    *at = cell;
}

Test(peer, acknowledging_what_was_never_sent_is_nonsense)
{
    both_up();
    words_of_peer(0)->cell_ack = peers_word(0, 3);
    closed_for(0, "node 1 writes nonsense: it acknowledged 3 cells of messages, 0 are under way");
}

Test(peer, a_cell_out_of_sequence_is_nonsense)
{
    both_up();
    first_cell(0)->word = peers_word(0, 5);
    closed_for(0, "cell 5 of its messages came where 0 was due");
}

Test(peer, a_cell_of_impossible_length_is_nonsense)
{
    both_up();
    *first_cell(0) = (struct ntbm_cell){.word = peers_word(0, 0), .bytes = 53, .flags = NTBM_CELL_LAST};
    closed_for(0, "a cell of its messages claims 53 bytes");
}

Test(peer, a_message_of_which_a_bit_has_changed_is_nonsense)
{
    both_up();
    struct ntbm_cell cell = {.word = peers_word(0, 0), .bytes = 9, .flags = NTBM_CELL_LAST};
    cell.sum = ntbm_cell_sum(&cell);
    cell.payload[8] ^= 1;
    *first_cell(0) = cell;
    closed_for(0, "cell 0 of its messages arrived damaged");
}

Test(peer, a_short_cell_in_the_middle_is_nonsense)
{
    both_up();
    *first_cell(0) = (struct ntbm_cell){.word = peers_word(0, 0), .bytes = 10};
    closed_for(0, "a cell of its messages claims 10 bytes");
}

Test(peer, unknown_flags_of_a_cell_are_nonsense)
{
    both_up();
    *first_cell(0) = (struct ntbm_cell){.word = peers_word(0, 0), .bytes = 1, .flags = 0x8001};
    closed_for(0, "unknown flags 0x8001");
}

Test(peer, a_message_without_an_end_is_nonsense)
{
    both_up();
    uint32_t count = peer(0)->session.geo.cell_count;
    for (uint16_t seq = 0; pair.side[0].downs == 0 && seq < 200; seq++) {
        struct ntbm_cell *cell = first_cell(0) + seq % count;
        write_cell(cell, (struct ntbm_cell){.word = peers_word(0, seq), .bytes = NTBM_CELL_BYTES});
        ntbm_node_poll(&pair.side[0].node, pair.now_ns); /* side 1 must not see how it is acknowledged */
    }
    says(pair.side[0].reason, "longer than 4096 bytes");
    sim_pair_fini(&pair);
}

/* A peer that writes its next message while the last one is delivered, and waits for no acknowledgement. */
static void on_message_write_another(void *ctx, struct ntbm_peer *peer, const uint8_t *bytes, uint32_t len)
{
    struct sim_side *side = ctx;
    uint32_t count = peer->session.geo.cell_count;
    struct ntbm_cell *cell = first_cell(0) + peer->mail.received % count;
    (void)bytes, (void)len;
    if (++side->messages < 10 * count)
        write_cell(cell, (struct ntbm_cell){.word = peers_word(0, peer->mail.received),
                                            .bytes = 1,
                                            .flags = NTBM_CELL_LAST});
}

Test(peer, a_peer_that_never_stops_writing_messages_is_left_alone_between_polls)
{
    static const struct ntbm_peer_ops ops = {.on_down = sim_pair_on_down,
                                             .on_message = on_message_write_another};
    both_up();
    peer(0)->ops = &ops;
    write_cell(first_cell(0),
               (struct ntbm_cell){.word = peers_word(0, 0), .bytes = 1, .flags = NTBM_CELL_LAST});
    ntbm_node_poll(&pair.side[0].node, pair.now_ns);
    cr_assert_eq(pair.side[0].messages, peer(0)->session.geo.cell_count,
                 "%u messages in one poll: no more than %u may be under way", pair.side[0].messages,
                 peer(0)->session.geo.cell_count);
    sim_pair_fini(&pair);
}

Test(peer, a_slot_out_of_sequence_is_nonsense)
{
    both_up();
    words_of_peer(0)->slot[1] = peers_word(0, 9);
    closed_for(0, "slot 1 came with sequence 9 where 1 was due");
}

Test(peer, a_slot_that_claims_more_than_it_holds_is_nonsense)
{
    struct ntbm_slot_in in;
    both_up();
    const struct ntbm_geometry *geo = &peer(0)->session.geo;
    struct ntbm_slot_header header = {.bytes = geo->slot_bytes + 1};
    header.sum = ntbm_sum(&header, offsetof(struct ntbm_slot_header, sum));
    memcpy(peer(0)->session.in + ntbm_slot_offset(geo, 0), &header, sizeof(header));
    words_of_peer(0)->slot[0] = peers_word(0, 1);
    sim_pair_run(&pair, 5);
    cr_assert_eq(ntbm_peer_next(peer(0), &in), -ENOTCONN);
    closed_for(0, "node 1 writes nonsense: slot 0 claims");
}

Test(peer, a_slot_whose_header_has_changed_is_nonsense)
{
    struct ntbm_slot_in in;
    both_up();
    send_slot(1, 1);
    sim_pair_run(&pair, 5);
    peer(1)->session.in[ntbm_slot_offset(&peer(1)->session.geo, 0) + 20] ^= 4;
    cr_assert_eq(ntbm_peer_next(peer(1), &in), -ENOTCONN);
    closed_for(1, "node 0 writes nonsense: the header of slot 0 arrived damaged");
}

Test(peer, freeing_a_slot_that_was_not_sent_is_nonsense)
{
    struct ntbm_slot_out out[NTBM_SLOTS_MAX];
    both_up();
    uint32_t count = peer(0)->session.geo.slot_count;
    for (uint32_t i = 0; i < count; i++)
        send_slot(1, 1);
    words_of_peer(0)->slot_ack[0] = peers_word(0, 4);
    cr_assert_eq(ntbm_peer_take(peer(0), &out[0]), -ENOTCONN);
    closed_for(0, "it freed slot 0 4 times, it was sent 1 times");
}

Test(peer, a_hello_that_has_seen_more_slots_than_were_sent_is_nonsense)
{
    both_up();
    pair.side[1].peer->slots.seen = 5;
    sim_pair_run(&pair, 110);
    says(pair.side[0].reason, "it has seen 5 slots of 0");
    sim_pair_fini(&pair);
}

Test(peer, words_of_other_epochs_zeros_and_all_ones_are_no_news)
{
    const uint32_t others[] = {0, 0xffffffff, 0xffff0001, 0x0000ffff};
    both_up();
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct ntbm_words *words = words_of_peer(0);
        words->cell_ack = words->slot[0] = words->slot[1] = words->slot_ack[0] = first_cell(0)->word =
            others[i];
        words->slot[1] = ntbm_word(peer(0)->session.peer_epoch - 1, 1);
        first_cell(0)->word = ntbm_word(peer(0)->session.peer_epoch + 1, 0);
        sim_pair_run(&pair, 300);
        cr_assert_eq(pair.side[0].downs, 0, "%s", pair.side[0].reason);
        cr_assert_eq(pair.side[0].messages, 0);
    }
    sim_pair_fini(&pair);
}

Test(peer, what_lay_there_before_a_session_is_not_believed_even_with_its_tag)
{
    start_both();
    uint32_t epoch = peer(1)->session.epoch;
    words_of_peer(0)->slot[0] = ntbm_word(epoch, 1);
    words_of_peer(0)->cell_ack = ntbm_word(epoch, 9);
    write_cell(first_cell(0),
               (struct ntbm_cell){.word = ntbm_word(epoch, 0), .bytes = 1, .flags = NTBM_CELL_LAST});
    sim_pair_run(&pair, 300);
    cr_assert(sim_pair_is_up(&pair));
    cr_assert_eq(peer(1)->session.epoch, epoch);
    struct ntbm_slot_in in;
    cr_assert_eq(ntbm_peer_next(peer(0), &in), -EAGAIN);
    cr_assert_eq(pair.side[0].messages, 0);
    cr_assert_eq(pair.side[0].downs, 0);
    sim_pair_fini(&pair);
}

Test(peer, a_torn_hello_is_passed_over)
{
    both_up();
    for (int i = 0; i < 300; i++) {
        struct ntbm_hello *hello = (struct ntbm_hello *)peer(0)->session.in;
        hello->epoch ^= 0x10;
        words_of_peer(0)->hello++;
        sim_pair_run(&pair, 5);
    }
    cr_assert_eq(pair.side[0].downs, 0);
    cr_assert_gt(peer(0)->figures.hellos_bad, 0);
    sim_pair_fini(&pair);
}

Test(peer, an_old_hello_that_arrives_late_is_passed_over)
{
    both_up();
    struct ntbm_hello *place = (struct ntbm_hello *)peer(0)->session.in, old = *place;
    old.beat -= 2;
    old.epoch--;
    old.sum = ntbm_sum(&old, offsetof(struct ntbm_hello, sum));
    *place = old;
    words_of_peer(0)->hello = old.beat;
    sim_pair_run(&pair, 300);
    cr_assert_eq(pair.side[0].downs, 0, "%s", pair.side[0].reason);
    sim_pair_fini(&pair);
}

Test(peer, garbage_over_our_header_page_is_mended)
{
    both_up();
    memset(pair.side[1].landing, 0x77, NTBM_HEADER_BYTES);
    ntbm_peer_close(peer(0), "for the test");
    sim_pair_run(&pair, 2000);
    cr_assert(sim_pair_is_up(&pair));
    sim_pair_fini(&pair);
}

/* ---- node or link ---- */

Test(peer, silence_is_the_nodes_unless_another_node_hears_it)
{
    both_up();
    pair.side[1].emu.faults.lost = true;
    ntbm_peer_vouch(peer(0));
    cr_assert(!peer(0)->vouched, "nobody suspects it yet");
    sim_pair_run(&pair, 1500);
    cr_assert_eq(pair.side[0].downs, 1);
    cr_assert_eq(peer(0)->loss, -EHOSTDOWN);
    sim_pair_fini(&pair);
}

Test(peer, silence_of_a_node_that_another_hears_is_the_links)
{
    both_up();
    pair.side[1].emu.faults.lost = true;
    sim_pair_run(&pair, 700);
    cr_assert_eq(peer(0)->state, NTBM_SUSPECT);
    ntbm_peer_vouch(peer(0));
    sim_pair_run(&pair, 600);
    cr_assert_eq(pair.side[0].downs, 1);
    cr_assert_eq(peer(0)->loss, -ENOLINK);
    says(pair.side[0].reason, "another node hears it");
    sim_pair_fini(&pair);
}

Test(peer, who_hears_a_suspect_again_forgets_what_was_said_for_it)
{
    both_up();
    pair.side[1].emu.faults.lost = true;
    sim_pair_run(&pair, 700);
    ntbm_peer_vouch(peer(0));
    pair.side[1].emu.faults.lost = false;
    sim_pair_run(&pair, 200);
    cr_assert(peer(0)->state == NTBM_UP && !peer(0)->vouched);
    sim_pair_fini(&pair);
}

Test(peer, the_end_that_is_heard_no_more_learns_from_the_other_that_the_link_is_to_blame)
{
    both_up();
    pair.side[0].emu.faults.lost = true;
    sim_pair_run(&pair, 1500);
    cr_assert_eq(pair.side[0].downs, 1);
    cr_assert_eq(peer(0)->loss, -ENOLINK);
    says(pair.side[0].reason, "lives and has ended the session");
    sim_pair_fini(&pair);
}

/* ---- a judge that is late himself ---- */

/* Only side 0 gets any time, and that only every 400 ms. */
static void run_starved(unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        ntbm_node_poll(&pair.side[0].node, pair.now_ns += 400 * SIM_MS);
}

Test(peer, time_in_which_we_did_not_look_is_not_held_against_a_peer)
{
    both_up();
    run_starved(4); /* silent for 1.6 s, of which we looked for 0.4 s */
    cr_assert_eq(pair.side[0].downs, 0, "%s", pair.side[0].reason);
    sim_pair_run(&pair, 20);
    cr_assert_eq(peer(0)->state, NTBM_UP);
    sim_pair_fini(&pair);
}

Test(peer, a_message_under_way_while_both_stood_still_is_not_taken_for_lost)
{
    both_up();
    cr_assert_eq(ntbm_peer_send(peer(0), "a", 1), 0);
    ntbm_node_poll(&pair.side[0].node, ++pair.now_ns);
    pair.now_ns += 1500 * SIM_MS; /* both are stopped, as when their host is */
    sim_pair_run(&pair, 20);
    cr_assert_eq(pair.side[0].downs, 0, "%s", pair.side[0].reason);
    cr_assert_eq(pair.side[1].messages, 1);
    sim_pair_fini(&pair);
}

Test(peer, a_judge_that_never_gets_time_enough_judges_after_another_limit)
{
    both_up();
    run_starved(6);
    cr_assert_eq(pair.side[0].downs, 1);
    says(pair.side[0].reason, "has been silent for 20");
    sim_pair_fini(&pair);
}

Test(peer, a_daemon_that_stood_still_does_not_blame_the_link)
{
    both_up();
    for (int i = 0; i < 400; i++) /* side 0 is stopped for 2 s */
        ntbm_node_poll(&pair.side[1].node, pair.now_ns += 5 * SIM_MS);
    cr_assert_eq(pair.side[1].downs, 1);
    sim_pair_run(&pair, 20);
    cr_assert_eq(pair.side[0].downs, 1);
    cr_assert_eq(peer(0)->loss, -EHOSTDOWN);
    says(pair.side[0].reason, "stood still for");
    sim_pair_fini(&pair);
}
