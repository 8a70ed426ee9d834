"""Links that break between daemons that live: who is told, by which name, and that all goes on once they are whole."""
import errno
import os
import signal
import time

import numpy as np

from harness import SOON, contains, equal, fails, needs, result_words, wait_until, within, write
from test_fabric_failures import ON_TIME, check_sum, floats, go_on, spread
from test_fabric_nodes import stats_of

BREAKABLE = ("-o", "faults", *ON_TIME)
PATIENT = ("-o", "faults", "-o", "heartbeat_ms=5000")
HASTY = ("-o", "faults")  # the default heartbeat limit, 1 s


def set_faults(fabric, node, to, words):
    """What node's link to another does from now on."""
    write(fabric[node].file("nodes", str(to), "link"), f"{words}\n")


def cut(fabric, a, b):
    set_faults(fabric, a, b, "lost")
    set_faults(fabric, b, a, "lost")


def mend(fabric, a, b):
    set_faults(fabric, a, b, "none")
    set_faults(fabric, b, a, "none")


@needs(nodes=3, options=BREAKABLE)
def test_a_cut_link_is_enolink_at_all_ranks_at_once_also_where_both_ends_are_in_reach(fabric):
    fabric.wait_up()
    job, ranks = spread(fabric, [0, 1, 2])
    check_sum(ranks)
    pending = ranks[2].begin()  # it reaches both ends and knows of no fault
    fabric[2].wait_parked(1)
    cut(fabric, 0, 1)
    started = time.monotonic()
    pending.fails(errno.ENOLINK)
    within(SOON, started, "the third node's answer")
    contains(ranks[2].status().splitlines()[-1], "ENOLINK", "link node", "is down", "missing=")
    for rank in ranks:
        started = time.monotonic()
        rank.fails(errno.ENOLINK)
        within(SOON, started, f"the later operation of rank {rank.number}")
    contains(ranks[0].status().splitlines()[-1], "the link node 0 - node 1 is down")
    contains(ranks[1].status().splitlines()[-1], "the link node 0 - node 1 is down")
    equal(fabric.link(2, 0)["state"], "up", "the link that is whole")
    fabric.wait_event("nodes/1", "link down", "another node hears it", nodes=[0])
    fabric.wait_event(job.name, "ENOLINK", "link node", "last operation 1")
    mend(fabric, 0, 1)
    go_on(job, ranks)


@needs(nodes=3, options=BREAKABLE)
def test_a_link_cut_one_way_is_enolink_and_a_dead_node_beside_it_ehostdown(fabric):
    fabric.wait_up()
    job, ranks = spread(fabric, [0, 1, 2])
    check_sum(ranks)
    set_faults(fabric, 0, 1, "lost")
    for rank in ranks:
        rank.fails(errno.ENOLINK)
    set_faults(fabric, 0, 1, "none")
    go_on(job, ranks)
    os.kill(fabric[1].pid, signal.SIGSTOP)
    for r in (0, 2):
        ranks[r].fails(errno.EHOSTDOWN)
    os.kill(fabric[1].pid, signal.SIGCONT)
    fabric.wait_up()


@needs(nodes=2, options=BREAKABLE)
def test_a_link_between_two_nodes_alone_that_loses_all_is_found_within_the_limit(fabric):
    fabric.wait_up()
    job, ranks = spread(fabric, [0, 1])
    check_sum(ranks)
    call = ranks[0].begin()
    fabric[0].wait_parked(1)
    started = time.monotonic()
    cut(fabric, 0, 1)
    call.fails({errno.EHOSTDOWN, errno.ENOLINK})  # nobody else could say which
    within(SOON, started, "the answer")
    mend(fabric, 0, 1)
    go_on(job, ranks)


@needs(nodes=2, options=BREAKABLE)
def test_changed_data_are_ebadmsg_and_the_link_is_named(fabric):
    fabric.wait_up()
    job, ranks = spread(fabric, [0, 1], size="1M", verify="crc32c")
    for rank in ranks:
        rank.put(np.full(1 << 18, rank.number + 1, np.float32).tobytes())
    set_faults(fabric, 0, 1, "flip=1000")
    calls = [rank.begin() for rank in ranks]
    for call in calls:
        call.fails(errno.EBADMSG)
    contains(ranks[0].status().splitlines()[-1], "EBADMSG", "data from node 0 arrived damaged at node 1")
    fabric.wait_event(job.name, "EBADMSG", "node 0", "node 1")
    set_faults(fabric, 0, 1, "none")
    go_on(job, ranks)


@needs(nodes=2, options=BREAKABLE)
def test_messages_that_arrive_damaged_are_enolink_and_change_no_sum_however_small(fabric):
    fabric.wait_up()
    job, ranks = spread(fabric, [0, 1], timeout=3)
    failed = good = 0
    for turn in range(2000):
        for rank in ranks:
            rank.put(np.full(16, rank.number + 1 + turn, np.float32).tobytes())
        if turn == 5:
            set_faults(fabric, 0, 1, "garble=100")
        for rank, call in [(rank, rank.begin()) for rank in ranks]:
            error = call.error(20)
            if not error:
                equal(set(floats(rank).tolist()), {3.0 + 2 * turn}, f"sum {turn}")
            good += not error
            failed += bool(error)
            assert error in (0, errno.ENOLINK, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ECANCELED), error
        if failed:
            break
    assert failed and good > 5, f"{good} successes and {failed} failures"
    fabric.wait_event("nodes/0", "arrived damaged", nodes=[1])
    mend(fabric, 0, 1)
    go_on(job, ranks)


@needs(nodes=3, options=PATIENT)
def test_puts_that_overtake_each_other_change_no_sum(fabric):
    fabric.wait_up()
    _, ranks = spread(fabric, [0, 1, 2], size="256K")
    for a in range(3):
        for b in range(3):
            if a != b:
                set_faults(fabric, a, b, "reorder=3000000")
    for turn in range(5):
        for rank in ranks:
            rank.put(np.full(1 << 16, rank.number + 1 + turn, np.float32).tobytes())
        calls = [rank.begin() for rank in ranks]
        for call in calls:
            call.result(20)
        for rank in ranks:
            equal(set(np.unique(np.frombuffer(rank.get(), np.float32)).tolist()), {6.0 + 3 * turn}, f"sum {turn}")
    equal(result_words(ranks[0].status().splitlines()[-1])["seq"], "5", "number")


@needs(nodes=2, options=BREAKABLE)
def test_a_link_that_reads_as_all_ones_is_said_so_and_used_again_when_it_does_not(fabric):
    fabric.wait_up()
    set_faults(fabric, 0, 1, "ones")
    fabric[1].process.kill()
    fabric[1].process.wait()
    fabric.wait_event("nodes/1", "down", nodes=[0])
    fabric[1].start()
    fabric.wait_event("nodes/1", "ones", nodes=[0])
    set_faults(fabric, 0, 1, "none")
    fabric.wait_up()


@needs(nodes=2, options=BREAKABLE)
def test_links_take_words_from_root_only_and_say_what_is_wrong_with_them(fabric):
    link = fabric[0].file("nodes", "1", "link")
    fails(errno.EINVAL, write, link, "broken\n")
    equal(fabric.link(0, 1)["faults"], "none", "faults")
    write(link, "drop=5 reorder=10\n")
    contains(fabric[0].read("nodes/1/link"), "faults drop=5 reorder=10\n")
    write(link, "none\n")
    equal(os.stat(link).st_mode & 0o777, 0o644, "mode")
    equal(os.stat(fabric[0].file("nodes", "0", "link")).st_mode & 0o777, 0o444, "mode of the own link")


@needs(nodes=3, options=BREAKABLE)
def test_a_job_goes_on_without_the_far_end_of_a_broken_link_though_a_third_node_reaches_it(fabric):
    fabric.wait_up()
    job, ranks = spread(fabric, [0, 1, 2])
    check_sum(ranks)
    cut(fabric, 0, 1)
    for rank in ranks:
        rank.fails(errno.ENOLINK)
    write(f"{job.on[0].path}/members", "drop=lost\n")
    for node in (1, 2):
        wait_until(lambda node=node: "rank=1 node=1" in job.on[node].read("members") and
                   "state=dropped" in job.on[node].read("members"), f"node {node} has heard that rank 1 was dropped")
    for _ in range(3):
        check_sum([ranks[0], ranks[2]])
    ranks[1].fails({errno.ESTALE, errno.ENODEV})
    mend(fabric, 0, 1)
    fabric.wait_up()
    ranks[1].close()
    ranks[1] = job.rank(1)
    ranks[1].open()
    go_on(job, ranks)


@needs(nodes=3, options=("-o", "faults", "-o", "heartbeat_ms=10000"))
def test_a_rank_taken_over_while_its_last_operation_still_runs_is_known_when_that_is_over(fabric):
    """Node 0 waits for what node 2 has said long ago, when node 1 drops a rank of it and takes it over."""
    fabric.wait_up(seconds=30)
    job, ranks = spread(fabric, [0, 0, 1, 2])
    job.wait_known()
    last = ranks[3].begin()
    wait_until(lambda: "ranks_waiting 1\n" in job.on[0].read("stats"), "node 0 knows that rank 3 waits")
    set_faults(fabric, 2, 0, "stuck")
    here, rest = [rank.begin() for rank in ranks[:2]], [ranks[2].begin(), last]
    for call in rest:
        call.result()
    equal([call.done() for call in here], [False, False], "whether node 0 is through")
    write(f"{job.on[1].path}/members", "drop=1\n")
    moved = job.on[1].rank(1)
    moved.open()
    wait_until(lambda: stats_of(fabric, 0, 1)["messages_received"] == stats_of(fabric, 1, 0)["messages_sent"],
               "node 0 has heard all of it")
    set_faults(fabric, 2, 0, "none")
    for call in here:
        call.result()
    wait_until(lambda: f"rank=1 node=1 pid={moved.pid} state=present" in job.on[0].read("members"),
               "node 0 knows where rank 1 is")
    check_sum([ranks[0], moved, *ranks[2:]])


@needs(nodes=2, options=BREAKABLE)
def test_halves_of_a_cut_fabric_that_dropped_each_other_grow_together_again(fabric):
    fabric.wait_up()
    job, ranks = spread(fabric, [0, 1])
    check_sum(ranks)
    cut(fabric, 0, 1)
    for node in (0, 1):
        wait_until(lambda node=node: "state=lost" in job.on[node].read("members"), "the other half is lost")
        write(f"{job.on[node].path}/members", "drop=lost\n")
    for rank in ranks:
        check_sum([rank])
    mend(fabric, 0, 1)
    fabric.wait_up()
    wait_until(lambda: job.on[1].read("members").count("state=dropped") == 1 and
               "rank=0 node=0" in job.on[1].read("members"), "the higher node gives way")
    check_sum([ranks[0]])
    ranks[1].fails({errno.ESTALE, errno.ENODEV})
    ranks[1].close()
    ranks[1] = job.rank(1)
    ranks[1].open()
    go_on(job, ranks)


@needs(nodes=2, options=HASTY, seconds=90)
def test_a_link_that_loses_some_writes_gives_right_sums_or_errors_and_works_again_when_whole(fabric):
    fabric.wait_up()
    job, ranks = spread(fabric, [0, 1], size="256K", timeout=3)
    for node in (0, 1):
        set_faults(fabric, node, 1 - node, "drop=3")
    good = failed = 0
    for turn in range(300):
        for rank in ranks:
            rank.put(np.full(1 << 16, rank.number + 1 + turn, np.float32).tobytes())
        calls = [rank.begin("op=sum") for rank in ranks]
        for rank, call in zip(ranks, calls):
            error = call.error(20)
            if error:
                failed += 1
                assert error in (errno.ENOLINK, errno.EHOSTDOWN, errno.ETIMEDOUT, errno.ECANCELED, errno.ESTALE), error
                continue
            good += 1
            equal(set(np.unique(np.frombuffer(rank.get(), np.float32)).tolist()), {3.0 + 2 * turn}, f"sum {turn}")
        if failed > 4 and good > 4:
            break
        wait_until(lambda: fabric.is_up() and all(there.read("members").count("present") == 2
                                                  for there in job.on.values()), "both are back", 20)
    assert failed and good, f"{good} successes and {failed} failures: nothing was lost, or all was"
    mend(fabric, 0, 1)
    go_on(job, ranks)
