"""Signals end the wait, not the operation: EINTR and resume; death is ECONNRESET or ECANCELED for the others."""
import errno
import mmap
import os
import signal
import subprocess
import time

import numpy as np

from harness import PATIENCE, SOON, contains, equal, is_quick, needs, process_state, run_all, wait_until, within


class Interrupted(Exception):
    pass


def raise_interrupted(*_):
    raise Interrupted


def handle(number, action):
    """For an actor: from now on this signal raises Interrupted, or comes and goes."""
    signal.signal(number, {"raise": raise_interrupted, "return": lambda *_: None}[action])


def write_or_interrupted(fd, command):
    """For an actor: one os.write; "interrupted" when a handler raised."""
    try:
        return os.write(fd, command)
    except Interrupted:
        return "interrupted"


ticks_seen = bytearray(8)  # memory that a test and its actors share, where they do


def write_with_timer(fd, command, seconds):
    """For an actor: a write while SIGALRM comes every `seconds`; Python resumes it by itself."""
    count = 0

    def tick(*_):
        nonlocal count
        count += 1
        ticks_seen[:8] = count.to_bytes(8, "little")
    signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        os.write(fd, command)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return count


def default_action(number):
    signal.signal(number, signal.SIG_DFL)


def pair(mount, **config):
    ranks = mount.job(2, **{"size": 64, **config}).ranks()
    for rank in ranks:
        rank.put(np.ones(16, np.float32).tobytes())
        rank.open()
    return ranks


def expect_sum(ranks, value=2):
    for rank in ranks:
        equal(rank.get(), np.full(16, value, np.float32).tobytes(), f"buffer of rank {rank.number}")


def test_a_handler_that_raises_ends_the_wait_and_the_same_write_resumes_it(mount):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1):
        ranks = pair(mount)
        ranks[0].actor.call(handle, number, "raise")
        call = ranks[0].actor.begin(write_or_interrupted, ranks[0].open(), b"\n")
        mount.wait_parked()
        os.kill(ranks[0].pid, number)
        equal(call.result(), "interrupted", "the write")
        run_all(ranks)
        expect_sum(ranks)
        equal(ranks[0].status().count("result=ok"), 1, "operations done")


def test_python_resumes_an_interrupted_write_by_itself(mount):
    ranks = pair(mount)
    ranks[0].actor.call(handle, signal.SIGUSR1, "return")
    call = ranks[0].actor.begin(write_or_interrupted, ranks[0].open(), b"\n")
    mount.wait_parked()
    for _ in range(50):
        os.kill(ranks[0].pid, signal.SIGUSR1)
    ranks[1].run()
    equal(call.result(), 1, "bytes written")
    expect_sum(ranks)


def test_a_timer_in_both_ranks_changes_nothing(mount):
    ranks = pair(mount)
    for _ in range(100):
        calls = [rank.actor.begin(write_with_timer, rank.open(), b"op=avg\n", 0.0005) for rank in ranks]
        for call in calls:
            call.result()
    expect_sum(ranks, 1)
    for rank in ranks:
        assert "EINTR" not in rank.status() or "result=ok" in rank.status()
    numbers = [line.split()[0] for line in ranks[0].status().splitlines() if "result=ok" in line]
    equal(numbers[-1], "seq=100", "the last number")


def test_a_c_client_with_sa_restart_sees_eintr_and_resumes(mount):
    """FUSE answers EINTR itself, so SA_RESTART does not restart; the program writes the same again."""
    program = mount.env.compile("client.c")
    job = mount.job(2, size=64)
    rank = job.rank(0)
    os.mkdir(f"{job.path}/ranks/1")
    with subprocess.Popen([program, "hold", f"{job.path}/ranks/1", "count=1"], stdout=subprocess.PIPE) as client:
        job.wait_asking()
        os.kill(client.pid, signal.SIGALRM)
        wait_until(lambda: process_state(client.pid) in "SD", "it sleeps again")
        mount.wait_parked()
        rank.run("count=1")
        result, tries = client.communicate(timeout=20)[0].split()
    equal(int(result), 0, "errno")
    assert int(tries) in (1, 2), tries


def test_a_c_client_that_gives_up_gets_eintr(mount):
    program = mount.env.compile("client.c")
    job = mount.job(2, size=64, timeout=30)
    rank = job.rank(0)
    os.mkdir(f"{job.path}/ranks/1")
    with subprocess.Popen([program, "once", f"{job.path}/ranks/1", "count=1"], stdout=subprocess.PIPE) as client:
        job.wait_asking()
        os.kill(client.pid, signal.SIGALRM)
        equal(client.communicate(timeout=20)[0].split(), [str(errno.EINTR).encode(), b"1"], "errno and tries")
    del rank


def test_sigstop_and_sigcont_do_not_disturb_an_operation(mount):
    program = mount.env.compile("client.c")
    job = mount.job(2, size=64)
    rank = job.rank(0)
    os.mkdir(f"{job.path}/ranks/1")
    with subprocess.Popen([program, "hold", f"{job.path}/ranks/1", "count=1"], stdout=subprocess.PIPE) as client:
        for _ in range(5):
            mount.wait_parked()
            os.kill(client.pid, signal.SIGSTOP)
            wait_until(lambda: process_state(client.pid) == "T", "the client is stopped")
            os.kill(client.pid, signal.SIGCONT)
            wait_until(lambda: process_state(client.pid) in "SD", "the client sleeps again")
            mount.wait_parked()
        rank.run("count=1")
        equal(client.communicate(timeout=20)[0].split()[0], b"0", "errno")


def test_a_stopped_rank_of_python_goes_on_after_sigcont(mount):
    ranks = pair(mount)
    call = ranks[0].begin()
    mount.wait_parked()
    ranks[0].actor.stop()
    other = ranks[1].begin()
    ranks[0].actor.kill(signal.SIGCONT)
    call.result()
    other.result()
    expect_sum(ranks)


def test_a_request_that_was_interrupted_is_as_if_never_made(mount):
    """Nobody else waits, so nobody is told; both ranks begin again and it works."""
    ranks = pair(mount, timeout=30)
    ranks[0].actor.call(handle, signal.SIGUSR1, "raise")
    call = ranks[0].actor.begin(write_or_interrupted, ranks[0].open(), b"\n")
    mount.wait_parked()
    os.kill(ranks[0].pid, signal.SIGUSR1)
    equal(call.result(), "interrupted", "the write")
    run_all(ranks)
    expect_sum(ranks)


@needs(seconds=60)
def test_waiting_ranks_get_ecanceled_naming_the_rank_that_was_interrupted(mount):
    job = mount.job(3, size=64, timeout=30)
    ranks = job.ranks()
    ranks[0].actor.call(handle, signal.SIGUSR1, "raise")
    call = ranks[0].actor.begin(write_or_interrupted, ranks[0].open(), b"\n")
    other = ranks[1].begin()
    mount.wait_parked(2)
    started = time.monotonic()
    os.kill(ranks[0].pid, signal.SIGUSR1)
    equal(call.result(), "interrupted", "the write")
    other.fails(errno.ECANCELED)
    took = time.monotonic() - started
    assert 1.5 <= took <= SOON, f"cancelled after {took:.1f} s"
    contains(ranks[1].status().splitlines()[-1], "ECANCELED", str(ranks[0].pid))
    started = time.monotonic()
    ranks[2].fails(errno.ECANCELED)
    within(SOON, started, "the late rank's answer")


def test_sigkill_of_a_parked_rank_fails_the_others_within_a_second(mount):
    def answered():
        ranks = mount.job(3, size=64).ranks()
        ranks[0].begin()
        other = ranks[1].begin()
        mount.wait_parked(2)
        started = time.monotonic()
        ranks[0].actor.kill()
        other.fails((errno.ECANCELED, errno.ECONNRESET))
        took = time.monotonic() - started
        line = ranks[1].status().splitlines()[-1]
        contains(line, str(ranks[0].pid))
        assert "rank 0" in line or "rank=0" in line or "lost=0" in line, line
        return took
    is_quick(answered, 1, "the survivor's answer")


def test_a_fatal_signal_without_handler_is_a_death_too(mount):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        def answered():
            ranks = mount.job(2, size=64).ranks()
            ranks[0].actor.call(default_action, number)
            ranks[0].begin()
            other = ranks[1].begin("tag=x")  # another operation, which needs the dying rank as well
            mount.wait_parked(2)
            started = time.monotonic()
            os.kill(ranks[0].pid, number)
            ranks[0].actor.wait()
            other.fails((errno.ECANCELED, errno.ECONNRESET))
            return time.monotonic() - started
        is_quick(answered, 1, f"the survivor's answer after signal {number}")


def test_a_rank_that_was_killed_leaves_no_half_sum(mount):
    job = mount.job(3, size=64)
    ranks = job.ranks()
    for rank in ranks:
        rank.put(np.full(16, rank.number + 1, np.float32).tobytes())
        rank.open()
    ranks[0].begin()
    mount.wait_parked()
    ranks[0].actor.kill()
    for rank in ranks[1:]:
        rank.fails((errno.ECANCELED, errno.ECONNRESET))
        equal(rank.get(), np.full(16, rank.number + 1, np.float32).tobytes(), "buffer")


def test_thousands_of_interrupts_leave_nothing_behind(mount):
    """Each is withdrawn and resumed; at the end exactly one operation was done (the runner checks `waiting`)."""
    global ticks_seen
    ticks_seen = mmap.mmap(-1, mmap.PAGESIZE)
    ranks = pair(mount)
    call = ranks[0].actor.begin(write_with_timer, ranks[0].open(), b"op=avg\n", 0.0002)
    wait_until(lambda: int.from_bytes(ticks_seen[:8], "little") > 2000, "thousands of interrupts", 3 * PATIENCE)
    ranks[1].run("op=avg")
    call.result()
    equal(ranks[0].status().count("result=ok"), 1, "operations")
    equal(mount.stats()["requests_parked"], "0", "requests parked")
    expect_sum(ranks, 1)


def test_a_blocked_read_of_results_can_be_interrupted(mount):
    ranks = pair(mount)
    fd = ranks[0].actor.call(os.open, ranks[0].file("allreduce"), os.O_RDWR | os.O_NONBLOCK)
    ranks[0].actor.call(os.write, fd, b"\n")
    ranks[0].actor.call(os.set_blocking, fd, True)
    ranks[0].actor.call(handle, signal.SIGUSR1, "raise")
    call = ranks[0].actor.begin(read_or_interrupted, fd)
    mount.wait_parked()
    os.kill(ranks[0].pid, signal.SIGUSR1)
    equal(call.result(), "interrupted", "the read")
    ranks[1].run()
    contains(ranks[0].actor.call(os.read, fd, 4096).decode(), "result=ok")


def read_or_interrupted(fd):
    try:
        return os.read(fd, 4096)
    except Interrupted:
        return "interrupted"


def test_another_command_after_eintr_takes_the_place_of_the_first(mount):
    """"Withdrawn as if never made": the rank may ask for something else, and its number is the same."""
    ranks = pair(mount)
    ranks[0].actor.call(handle, signal.SIGUSR1, "raise")
    call = ranks[0].actor.begin(write_or_interrupted, ranks[0].open(), b"op=max\n")
    mount.wait_parked()
    os.kill(ranks[0].pid, signal.SIGUSR1)
    equal(call.result(), "interrupted", "the write")
    run_all(ranks, "op=sum")
    expect_sum(ranks)
    contains(ranks[0].status(), "seq=1 ", "op=sum")


def test_ctrl_c_ends_a_shell_script_that_waits(mount):
    job = mount.job(2)
    job.ranks()
    with subprocess.Popen(["sh", "-c", f"echo > {job.path}/ranks/0/allreduce"], preexec_fn=os.setpgrp) as shell:
        mount.wait_parked()
        started = time.monotonic()
        os.killpg(shell.pid, signal.SIGINT)
        shell.wait(PATIENCE)
        within(SOON, started, "Ctrl-C")
