"""Queued operations: O_NONBLOCK writes, poll, result lines, depth, order, and the errors that time brings."""
import errno
import os
import re
import select
import signal
import time

import numpy as np

from harness import (SOON, Actor, Skip, contains, equal, fails, needs, process_state, read, result_words, run_all,
                     values, wait_until, within)

NONBLOCK = os.O_RDWR | os.O_NONBLOCK


class Queue:
    """A non-blocking descriptor of a rank's trigger in a process of its own."""

    def __init__(self, rank, trigger="allreduce", actor=None):
        self.rank, self.actor = rank, actor or rank.actor
        self.fd = self.actor.call(os.open, rank.file(trigger), NONBLOCK)

    def add(self, command=""):
        self.actor.call(os.write, self.fd, command.encode() + b"\n")

    def line(self):
        """The words of one finished operation; EAGAIN and end of file as they come."""
        return result_words(self.actor.call(os.read, self.fd, 4096).decode())

    def ready(self, seconds=0.0):
        """The poll events, waited for at most so long."""
        return self.actor.begin(poll_once, self.fd, seconds).result(seconds + 10)

    def wait_line(self):
        assert self.ready(10) & select.POLLIN, "poll gives no POLLIN"
        return self.line()

    def close(self):
        self.actor.call(os.close, self.fd)


def poll_once(fd, seconds, events=select.POLLIN):
    poll = select.poll()
    poll.register(fd, events)
    found = poll.poll(int(seconds * 1000))
    return found[0][1] if found else 0


def blocking(fd):
    os.set_blocking(fd, True)


def pair(mount, **config):
    job = mount.job(2, **{"size": 4096, **config})
    ranks = job.ranks()
    return ranks, [Queue(rank) for rank in ranks]


# --- queue, poll, read ---------------------------------------------------------------------------------------

def test_a_nonblocking_write_returns_at_once_and_the_line_comes_when_done(mount):
    ranks, (one, two) = pair(mount)
    for rank in ranks:
        rank.put(np.ones(1024, np.float32).tobytes())
    started = time.monotonic()
    one.add("op=sum count=1024")
    within(SOON, started, "a queued write")
    equal(one.ready(), 0, "poll before it is done")
    fails(errno.EAGAIN, one.line)
    two.add("op=sum count=1024")
    for queue in (one, two):
        line = queue.wait_line()
        equal([line[key] for key in ("seq", "op", "dtype", "count", "result")], ["1", "sum", "f32", "1024", "ok"],
              "line")
        assert re.fullmatch(r"\d+", line["time_us"]), line
        equal(queue.line(), {}, "a read with nothing queued is end of file")
    equal(ranks[0].get(4), np.float32(2).tobytes(), "sum")


def test_each_read_returns_one_line_in_the_order_of_finishing(mount):
    ranks, (one, two) = pair(mount)
    for number in range(10):
        one.add(f"count={number + 1}")
    for number in range(10):
        two.add(f"count={number + 1}")
    for queue in (one, two):
        lines = [queue.wait_line() for _ in range(10)]
        equal([int(line["seq"]) for line in lines], list(range(1, 11)), "numbers")
        equal([int(line["count"]) for line in lines], list(range(1, 11)), "counts")


def test_a_short_read_does_not_lose_the_rest_of_a_line(mount):
    """The manual says a read returns one line; a reader with a small buffer gets it in pieces."""
    ranks, (one, two) = pair(mount)
    one.add("count=1")
    two.add("count=1")
    assert one.ready(10)
    text = b""
    while not text.endswith(b"\n"):
        piece = one.actor.call(os.read, one.fd, 5)
        assert piece, f"end of file after {text!r}"
        text += piece
    contains(text.decode(), "seq=1", "result=ok")


def test_depth_operations_are_queued_and_the_next_is_eagain(mount):
    ranks, (one, two) = pair(mount, depth=4)
    for _ in range(4):
        one.add("count=1")
    fails(errno.EAGAIN, one.add, "count=1")
    for _ in range(4):
        two.add("count=1")
    assert one.ready(10)
    fails(errno.EAGAIN, one.add, "count=1")  # lines count until they are read
    equal(one.line()["seq"], "1", "first line")
    one.add("count=1")
    two.wait_line()
    two.add("count=1")
    equal([one.wait_line()["seq"] for _ in range(4)], ["2", "3", "4", "5"], "the other lines")


def test_the_default_depth_is_64(mount):
    ranks, (one, two) = pair(mount)
    for _ in range(64):
        one.add("count=1")
    fails(errno.EAGAIN, one.add, "count=1")
    for _ in range(64):
        two.add("count=1")
    equal([one.wait_line()["result"] for _ in range(64)], ["ok"] * 64, "results")


def test_eagain_uses_no_number(mount):
    ranks, (one, two) = pair(mount, depth=1)
    one.add("count=1")
    for _ in range(3):
        fails(errno.EAGAIN, one.add, "count=2")
    two.add("count=1")
    equal(one.wait_line()["seq"], "1", "first")
    two.wait_line()
    one.add("count=3")
    two.add("count=3")
    line = one.wait_line()
    equal((line["seq"], line["count"], line["result"]), ("2", "3", "ok"), "second")


def test_who_polls_for_room_is_woken_when_a_line_is_read(mount):
    ranks, (one, two) = pair(mount, depth=1)
    other = Queue(ranks[0], actor=Actor())
    one.add("count=1")
    two.add("count=1")
    assert one.ready(10)
    waiting = other.actor.begin(poll_once, other.fd, 60, select.POLLOUT)
    wait_until(lambda: "poll" in read(f"/proc/{other.actor.pid}/wchan"), "it polls")
    one.line()
    equal(waiting.result(), select.POLLOUT, "events")


def test_a_blocking_read_waits_for_a_queued_operation(mount):
    ranks, (one, two) = pair(mount)
    one.add("count=1")
    one.actor.call(blocking, one.fd)
    waiting = one.actor.begin(os.read, one.fd, 4096)
    mount.wait_parked()
    assert not waiting.done()
    two.add("count=1")
    contains(waiting.result().decode(), "seq=1", "result=ok")
    equal(one.actor.call(os.read, one.fd, 4096), b"", "with nothing queued")


def read_beside(fd):
    """For an actor: a process that reads from its descriptor, too, and ends; its pid."""
    pid = os.fork()
    if pid == 0:
        os.pread(fd, 4096, 0)
        os._exit(0)
    return pid


def test_of_two_who_read_for_one_result_the_other_gets_the_end_of_the_file(mount):
    """By pread: read() waits in the kernel, for the position in the file that both have."""
    ranks, (one, two) = pair(mount)
    one.add("count=1")
    one.actor.call(blocking, one.fd)
    beside = one.actor.call(read_beside, one.fd)
    waiting = one.actor.begin(os.pread, one.fd, 4096, 0)
    mount.wait_parked(2)
    two.add("count=1")
    waiting.result()
    wait_until(lambda: process_state(beside) in ("", "Z"), "the other has read")


def test_lines_belong_to_the_open_that_queued_the_operation(mount):
    ranks, (one, two) = pair(mount)
    other = Queue(ranks[0], "allreduce", Actor())
    one.add("count=1")
    two.add("count=1")
    assert one.ready(10)
    equal(other.line(), {}, "another open of the same file")
    equal(one.line()["result"], "ok", "its own")


def test_blocking_writes_make_no_lines(mount):
    job = mount.job(2, size=64)
    ranks = job.ranks()
    run_all(ranks)
    equal(ranks[0].actor.call(os.read, ranks[0].open(), 4096), b"", "read after a blocking write")


def test_close_drops_lines_and_frees_their_places(mount):
    ranks, (one, two) = pair(mount, depth=2)
    for queue in (one, two):
        queue.add("count=1")
        queue.add("count=1")
    assert one.ready(10) and two.ready(10)
    one.close()
    one = Queue(ranks[0])
    equal(one.line(), {}, "lines of a new open")
    two.wait_line(), two.wait_line()  # both operations are over now, for both
    for queue in (one, two):
        queue.add("count=1")
        queue.add("count=1")
    equal([one.wait_line()["seq"] for _ in range(2)], ["3", "4"], "lines")


def test_a_closed_queue_still_takes_part(mount):
    """The operation was accepted; close drops the line, not the contribution."""
    job = mount.job(2, size=64)
    ranks = job.ranks()
    for rank in ranks:
        rank.put(np.ones(16, np.float32).tobytes())
        rank.open("barrier")  # keeps its promise while the queue closes
    queue = Queue(ranks[0])
    queue.add("op=sum")
    queue.close()
    ranks[1].run("op=sum")
    wait_until(lambda: ranks[0].get(4) == np.float32(2).tobytes(), "the sum is in the closed rank's buffer")


def test_queued_and_blocking_operations_share_the_sequence(mount):
    ranks, (one, two) = pair(mount)
    one.add("count=1")
    two.add("count=1")
    one.wait_line(), two.wait_line()
    run_all(ranks, "count=2")
    one.add("count=3")
    two.add("count=3")
    equal([one.wait_line()["seq"], two.wait_line()["seq"]], ["3", "3"], "numbers")


def test_operations_on_disjoint_ranges_are_all_accepted_and_right(mount):
    """How a framework hides communication: every layer is queued as soon as its gradient is there."""
    ranks, queues = pair(mount, size=64 * 1024)
    random = np.random.default_rng(1)
    data = [random.normal(size=16384).astype(np.float32) for _ in ranks]
    for rank, array in zip(ranks, data):
        rank.put(array.tobytes())
    for layer in range(16):
        for queue in queues:
            queue.add(f"op=avg offset={layer * 4096} count=1024")
    for queue in queues:
        lines = [queue.wait_line() for _ in range(16)]
        equal({line["result"] for line in lines}, {"ok"}, "results")
        equal(sorted(int(line["seq"]) for line in lines), list(range(1, 17)), "numbers")
    expected = ((data[0] + data[1]) / np.float32(2)).tobytes()
    for rank in ranks:
        equal(rank.get(), expected, "averages")


def test_poll_wakes_a_sleeper(mount):
    ranks, (one, two) = pair(mount)
    one.add("count=1")
    sleeping = one.actor.begin(poll_once, one.fd, 30)
    two.add("count=1")
    equal(sleeping.result(), select.POLLIN, "events")


def test_epoll_and_select_see_a_finished_operation(mount):
    ranks, (one, two) = pair(mount)
    for function in (epoll_once, select_once):
        one.add("count=1")
        sleeping = one.actor.begin(function, one.fd)
        two.add("count=1")
        assert sleeping.result(), function.__name__
        one.line(), two.wait_line()


def epoll_once(fd):
    with select.epoll() as poll:
        poll.register(fd, select.EPOLLIN | select.EPOLLET)
        return bool(poll.poll(20))


def select_once(fd):
    return bool(select.select([fd], [], [], 20)[0])


def test_poll_says_out_when_there_is_room(mount):
    """POLLOUT is not in the manual; a user of O_NONBLOCK writes expects it to mean that a write is accepted."""
    ranks, (one, two) = pair(mount, depth=1)
    assert one.actor.call(poll_once, one.fd, 0, select.POLLOUT) & select.POLLOUT, "no room in an empty queue"


def test_bad_commands_are_refused_at_once_on_a_queue_too(mount):
    ranks, (one, two) = pair(mount)
    fails(errno.EINVAL, one.add, "op=mean")
    fails(errno.ERANGE, one.add, "count=99999")
    equal(one.line(), {}, "nothing is queued")


# --- time -------------------------------------------------------------------------------------------------------

def test_a_missing_rank_is_etimedout_after_the_timeout_and_named(mount):
    job = mount.job(4, size=64, timeout=2)
    ranks = job.ranks()
    started = time.monotonic()
    pending = [ranks[rank].begin() for rank in (0, 2)]
    for call in pending:
        call.fails(errno.ETIMEDOUT)
    took = time.monotonic() - started
    assert took > 1.95, f"it took {took:.2f} s"
    for rank in (0, 2):
        contains(ranks[rank].status().splitlines()[-1], "ETIMEDOUT", "missing=1,3")
    contains(mount.read("events"), "ETIMEDOUT", job.name)
    line = next(line for line in mount.read("events").splitlines() if "ETIMEDOUT" in line)
    for rank in (1, 3):
        contains(line, f"rank {rank}", str(ranks[rank].pid))


def test_a_queued_operation_that_times_out_says_so_in_its_line(mount):
    ranks, (one, _) = pair(mount, timeout=0.3)
    one.add("count=1")
    line = one.wait_line()
    equal((line["result"], line["missing"], line["seq"]), ("ETIMEDOUT", "1", "1"), "line")


def test_the_clock_starts_with_the_first_rank(mount):
    ranks = mount.job(3, size=64, timeout=4).ranks()
    started = time.monotonic()
    first = ranks[0].begin()
    wait_until(lambda: time.monotonic() > started + 3, "most of the time is over")
    second = ranks[1].begin()
    first.fails(errno.ETIMEDOUT)
    second.fails(errno.ETIMEDOUT)
    within(3 + 4, started, "both timeouts")  # what the clock of the second would take


def test_a_late_rank_gets_the_same_error_at_once_and_the_next_operation_works(mount):
    job = mount.job(2, size=64, timeout=3)
    ranks = job.ranks()
    ranks[0].fails(errno.ETIMEDOUT)
    started = time.monotonic()
    ranks[1].fails(errno.ETIMEDOUT)
    within(3, started, "the late rank's answer")
    ranks[0].put(np.ones(16, np.float32).tobytes())
    ranks[1].put(np.ones(16, np.float32).tobytes())
    run_all(ranks)
    equal(ranks[0].get(4), np.float32(2).tobytes(), "the next sum")
    contains(ranks[1].status(), "seq=1", "seq=2", "result=ok")


def test_a_rank_two_operations_late_gets_both_errors_and_catches_up(mount):
    ranks = mount.job(2, size=64, timeout=2).ranks()
    ranks[0].fails(errno.ETIMEDOUT)
    ranks[0].fails(errno.ETIMEDOUT)
    ranks[1].fails(errno.ETIMEDOUT)
    ranks[1].fails(errno.ETIMEDOUT)
    run_all(ranks)


def test_a_timed_out_buffer_is_untouched(mount):
    ranks = mount.job(2, size=64, timeout=0.2).ranks()
    ranks[0].put(b"\5" * 64)
    ranks[0].fails(errno.ETIMEDOUT)
    equal(ranks[0].get(), b"\5" * 64, "buffer")


def test_ranks_that_never_joined_count_as_missing(mount):
    job = mount.job(3, size=64, timeout=0.3)
    rank = job.rank(1)
    rank.fails(errno.ETIMEDOUT)
    contains(rank.status().splitlines()[-1], "missing=0,2")


def test_every_collective_has_the_timeout(mount):
    job = mount.job(2, size=64, timeout=0.2)
    ranks = job.ranks()
    for trigger in ("allreduce", "reduce_scatter", "allgather", "broadcast", "barrier"):
        command = "root=1" if trigger == "broadcast" else ""
        ranks[0].fails(errno.ETIMEDOUT, command, trigger)
        ranks[1].fails(errno.ETIMEDOUT, command, trigger)


def test_a_broken_job_shows_pollerr(mount):
    ranks, (one, two) = pair(mount)
    one.add("count=1")
    ranks[1].actor.kill()
    events = one.ready(10)
    assert events & select.POLLIN and events & select.POLLERR, f"events {events:#x}"
    equal(one.line()["result"], "ECONNRESET", "result")


def test_a_mismatch_comes_as_a_line(mount):
    ranks, (one, two) = pair(mount)
    one.add("count=1")
    two.add("count=2")
    for queue in (one, two):
        equal(queue.wait_line()["result"], "EPROTO", "result")


def test_removing_nothing_while_a_queue_waits(mount):
    ranks, (one, _) = pair(mount)
    one.add("count=1")
    fails(errno.EBUSY, os.rmdir, ranks[0].path)


def test_a_stopped_reader_does_not_stop_the_others(mount):
    """A rank that queues and never reads its lines holds up nobody until its depth is used."""
    ranks, (one, two) = pair(mount, depth=8)
    for _ in range(8):
        one.add("count=1")
    for _ in range(8):
        two.add("count=1")
        equal(two.wait_line()["result"], "ok", "result")
    fails(errno.EAGAIN, one.add, "count=1")


def test_asyncio_waits_for_a_result(mount):
    ranks, (one, two) = pair(mount)
    call = one.actor.begin(with_asyncio, one.fd)
    two.add("count=1")
    contains(call.result(), "result=ok")


def with_asyncio(fd):
    import asyncio

    async def main():
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(fd, done.set)
        os.write(fd, b"count=1\n")
        await asyncio.wait_for(done.wait(), 20)
        return os.read(fd, 4096).decode()
    return asyncio.run(main())


def test_one_process_may_act_for_all_ranks(mount):
    job = mount.job(4, size=64)
    actor = Actor()
    ranks = [job.rank(number, actor) for number in range(4)]
    queues = [Queue(rank) for rank in ranks]
    for rank in ranks:
        rank.put(np.ones(16, np.float32).tobytes())
    for queue in queues:
        queue.add("op=sum")
    equal([queue.wait_line()["result"] for queue in queues], ["ok"] * 4, "results")
    equal(ranks[3].get(4), np.float32(4).tobytes(), "sum")


def worker_wakings(mount):
    """How often workers have gone to sleep."""
    count = 0
    for task in os.listdir(f"/proc/{mount.pid}/task"):
        about = read(f"/proc/{mount.pid}/task/{task}/status")
        if "red-worker" in about:
            count += int(values(about.replace(":", " "))["voluntary_ctxt_switches"])
    return count


@needs(modes=("passthrough",))
def test_what_is_little_for_each_of_many_ranks_is_left_to_the_workers(mount):
    """All else would have to wait while the thread that answers did it."""
    actor = Actor()
    job = mount.job(128, size="64K", dtype="i32")
    ranks = [job.rank(number, actor) for number in range(128)]
    queues = [Queue(rank) for rank in ranks]
    for expected in (0, 128):
        before = worker_wakings(mount)
        for queue in queues:
            queue.add("op=sum")
        equal({queue.wait_line()["result"] for queue in queues}, {"ok"}, "results")
        for rank in ranks:
            equal(rank.get(), np.full(16384, expected, np.int32).tobytes(), f"sum at rank {rank.number}")
            rank.put(np.ones(16384, np.int32).tobytes())
    wait_until(lambda: worker_wakings(mount) > before, "workers have done the second sum")


def test_waiting_and_queued_ranks_meet_in_one_operation(mount):
    ranks = mount.job(2, size=64).ranks()
    queue = Queue(ranks[0])
    for _ in range(3):
        queue.add("op=max")
        ranks[1].run("op=max")
        equal(queue.wait_line()["result"], "ok", "result")


def test_a_stopped_rank_costs_the_timeout_and_gets_the_same_error_when_it_goes_on(mount):
    """Alive and stuck is not lost: its descriptor stays open, and nothing is known but that it does not come."""
    job = mount.job(2, size=64, timeout=2)
    ranks = job.ranks()
    run_all(ranks)
    ranks[1].actor.stop()
    ranks[0].fails(errno.ETIMEDOUT)
    contains(ranks[0].status().splitlines()[-1], "missing=1", str(ranks[1].pid))
    ranks[1].actor.kill(signal.SIGCONT)
    ranks[1].fails(errno.ETIMEDOUT)
    run_all(ranks)


def test_stats_say_who_arrives_last_and_how_late(mount):
    job = mount.job(3, size=64)
    ranks = job.ranks()
    for _ in range(10):
        first = [ranks[number].begin() for number in (0, 2)]
        mount.wait_parked(2)
        ranks[1].run()
        for call in first:
            call.result()
    stats = values(job.read("stats"))
    equal([stats[f"rank{number}_arrived_last"] for number in range(3)], ["0", "10", "0"], "arrived last")
    assert int(stats["rank1_late_sum_us"]) > 0, stats


def test_a_second_blocking_open_of_one_trigger_may_wait_too(mount):
    """Two processes of one rank, tagged: with parallel direct writes neither waits for the other's lock."""
    mount.needs_parallel_writes()
    job = mount.job(2, size=64)
    ranks = job.ranks()
    helper = Actor()
    fd = helper.call(os.open, ranks[0].file("allreduce"), os.O_WRONLY)
    first = ranks[0].begin("tag=a count=1")
    second = helper.begin(os.write, fd, b"tag=b count=1\n")
    mount.wait_parked(2)
    ranks[1].run("tag=b count=1")
    second.result()
    ranks[1].run("tag=a count=1")
    first.result()


def compute():
    """For an actor: takes a processor until it is killed."""
    while True:
        pass


@needs(modes=("passthrough",), alone=True)
def test_an_operation_is_done_where_others_take_all_processors(mount):
    """It gives way to them for a moment only: for as long as it took, it would get a seven hundredth of the time."""
    if mount.sanitized():
        raise Skip("a sanitizer takes its time")
    computing = [Actor() for _ in range(2 * len(os.sched_getaffinity(0)))]
    ranks, queues = pair(mount, size=256 << 20)
    for rank in ranks:
        rank.actor.call(os.truncate, rank.file("buffer"), 256 << 20)
    run_all(ranks)  # there is memory
    for actor in computing:
        actor.begin(compute)
    started = time.monotonic()
    for queue in queues:
        queue.add()
    wait_until(lambda: ranks[0].status().count("result=ok") == 2, "it is done")  # nobody polls or reads
    took = time.monotonic() - started
    for actor in computing:
        actor.kill()
    assert took < 4, f"it took {took:.1f} s"


def test_what_is_kept_for_the_next_operations_does_not_grow_with_them(mount):
    """Two operations of a small job at once, whose memory is kept for later, then one of a large job, and again."""
    if mount.sanitized():
        raise Skip("a sanitizer keeps what is freed")

    def queues(world, size):
        job = mount.job(world, size=size)
        for number in range(world):
            os.mkdir(f"{job.path}/ranks/{number}")
        return [os.open(f"{job.path}/ranks/{number}/allreduce", NONBLOCK) for number in range(world)]

    def perform(fds, *commands):
        for command in commands:
            for fd in fds:
                os.write(fd, command)
        for _ in commands:
            for fd in fds:
                assert poll_once(fd, 10) & select.POLLIN and b"result=ok" in os.read(fd, 4096)

    large, small = queues(512, 64), queues(2, "32M")
    seen = []
    for _ in range(40):
        perform(large, b"\n")
        perform(small, b"count=4194304\n", b"offset=16777216 count=4194304\n")
        seen.append(mount.rss_kib())
    for fd in large + small:
        os.close(fd)
    assert seen[-1] - seen[4] < 200, f"resident memory grew by {seen[-1] - seen[4]} KiB in 35 rounds"
