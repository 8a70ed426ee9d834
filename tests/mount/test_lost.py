"""Lost ranks: whose death counts, what it brings, coming back, and going on without."""
import ctypes
import errno
import os
import resource
import signal
import subprocess
import time

import numpy as np

from harness import (SOON, Actor, all_fail, contains, equal, fails, fork_sleeper, needs, process_state, read, result_words,
                      run_all, wait_until, within, write)


def trio(mount, **config):
    job = mount.job(3, **{"size": 64, **config})
    ranks = job.ranks()
    for rank in ranks:
        rank.put(np.full(16, rank.number + 1, np.float32).tobytes())
        rank.open()
    return job, ranks


def floats(rank):
    return np.frombuffer(rank.get(), np.float32)


# --- who is lost ---------------------------------------------------------------------------------------------

def test_a_dead_rank_fails_pending_and_later_operations_at_once(mount):
    job, ranks = trio(mount)
    pending = [rank.begin() for rank in ranks[:2]]
    mount.wait_parked(2)
    started = time.monotonic()
    ranks[2].actor.kill()
    for call in pending:
        call.fails(errno.ECONNRESET)
    within(SOON, started, "the survivors' answers")
    for rank in ranks[:2]:
        line = rank.status().splitlines()[-1]
        contains(line, "ECONNRESET", str(ranks[2].pid), "2")
    for _ in range(3):
        started = time.monotonic()
        ranks[0].fails(errno.ECONNRESET)
        within(SOON, started, "a later operation's answer")
    contains(mount.read("events"), str(ranks[2].pid), job.name)
    contains(job.read("members"), "lost")


def test_a_rank_that_exits_normally_is_lost_too(mount):
    job, ranks = trio(mount)
    ranks[2].actor.pipe.close()  # it ends by itself
    ranks[2].actor.wait()
    pending = [rank.begin() for rank in ranks[:2]]
    for call in pending:
        call.fails(errno.ECONNRESET)


def test_a_forked_worker_that_holds_the_descriptor_does_not_hide_a_death(mount):
    job, ranks = trio(mount)
    worker = ranks[2].actor.call(fork_sleeper)
    try:
        pending = [rank.begin() for rank in ranks[:2]]
        mount.wait_parked(2)
        started = time.monotonic()
        ranks[2].actor.kill()
        assert process_state(worker) not in ("", "Z"), "the worker is gone as well"
        for call in pending:
            call.fails(errno.ECONNRESET)
        within(SOON, started, "the survivors' answers")
    finally:
        os.kill(worker, signal.SIGKILL)


def test_the_death_of_a_forked_worker_is_no_loss(mount):
    job, ranks = trio(mount)
    worker = ranks[2].actor.call(fork_sleeper)
    os.kill(worker, signal.SIGKILL)
    run_all(ranks)
    equal(float(floats(ranks[0])[0]), 6.0, "sum")


def test_closing_while_alive_only_ends_the_promise(mount):
    job, ranks = trio(mount, timeout=20)
    ranks[2].close()
    pending = [rank.begin() for rank in ranks[:2]]
    mount.wait_parked(2)
    assert not any(call.done() for call in pending), "a close made operations fail"
    ranks[2].run()
    for call in pending:
        call.result()
    equal(float(floats(ranks[0])[0]), 6.0, "sum")


def test_a_death_after_close_counts_as_missing_not_lost(mount):
    job, ranks = trio(mount, timeout=0.5)
    ranks[2].close()
    ranks[2].actor.kill()
    pending = [rank.begin() for rank in ranks[:2]]
    for call in pending:
        call.fails(errno.ETIMEDOUT)


def test_closing_and_ending_at_once_is_no_loss(mount):
    """The end of a process overtakes the release of the file it has just closed; the close still counts."""
    job = mount.job(2, size=64, timeout=0.02)
    rank = job.rank(0)
    os.mkdir(f"{job.path}/ranks/1")
    for _ in range(100):
        actor = Actor()
        actor.begin(open_close_and_end, f"{job.path}/ranks/1/allreduce")
        actor.wait()
        rank.fails(errno.ETIMEDOUT)
    assert "lost" not in mount.read("events"), mount.read("events").splitlines()[-5:]


def open_close_and_end(path):
    os.close(os.open(path, os.O_RDWR))
    os._exit(0)


def test_closing_counts_after_the_first_thread_of_the_process_has_ended(mount):
    job = mount.job(2, size=64, timeout=0.02)
    rank = job.rank(0)
    os.mkdir(f"{job.path}/ranks/1")
    actor = Actor()
    actor.begin(close_after_the_first_thread, f"{job.path}/ranks/1/allreduce")
    actor.wait()
    rank.fails(errno.ETIMEDOUT)


def close_after_the_first_thread(path):
    import threading
    fd = os.open(path, os.O_RDWR)
    first = os.getpid()

    def close_and_end():
        wait_until(lambda: process_state(first) == "Z", "the first thread has ended")
        os.close(fd)
        os._exit(0)
    threading.Thread(target=close_and_end).start()
    ctypes.CDLL(None).syscall(60, 0)  # exit, of this thread


def test_a_write_only_descriptor_makes_no_promise(mount):
    job = mount.job(2, size=64, timeout=0.6)
    ranks = job.ranks()
    ranks[1].open("allreduce", os.O_WRONLY)
    ranks[1].actor.kill()
    started = time.monotonic()
    ranks[0].fails(errno.ETIMEDOUT)
    assert time.monotonic() - started > 0.5, "it did not wait for the timeout"


def test_a_promise_lasts_while_one_of_several_descriptors_is_open(mount):
    job, ranks = trio(mount)
    ranks[2].open("barrier")
    ranks[2].close("allreduce")
    pending = ranks[0].begin()
    mount.wait_parked()
    ranks[2].actor.kill()
    pending.fails(errno.ECONNRESET)


def test_a_death_in_one_job_is_nothing_to_another(mount):
    job, ranks = trio(mount)
    other = mount.job(2, size=64).ranks()
    waiting = other[0].begin()
    mount.wait_parked()
    ranks[2].actor.kill()
    ranks[0].fails(errno.ECONNRESET)
    assert not waiting.done()
    other[1].run()
    waiting.result()


def test_a_thread_that_ends_is_no_loss(mount):
    """The process counts, not the thread that opened the file."""
    job, ranks = trio(mount)
    fd = ranks[2].actor.call(open_in_a_thread, ranks[2].file("barrier"))
    run_all(ranks)
    ranks[2].actor.call(os.close, fd)


def open_in_a_thread(path):
    import threading
    found = []
    thread = threading.Thread(target=lambda: found.append(os.open(path, os.O_RDWR)))
    thread.start()
    thread.join()
    return found[0]


# --- coming back ----------------------------------------------------------------------------------------------

def test_a_lost_rank_comes_back_by_opening_a_trigger(mount):
    job, ranks = trio(mount)
    run_all(ranks)
    ranks[2].actor.kill()
    for _ in range(2):
        all_fail(ranks[:2], errno.ECONNRESET)
    heir = Actor()
    fails(errno.EEXIST, heir.call, os.mkdir, ranks[2].path)
    ranks[2].actor, ranks[2].descriptors = heir, {}
    ranks[2].open()
    for rank in ranks:
        rank.put(np.ones(16, np.float32).tobytes())
    run_all(ranks)
    equal(float(floats(ranks[1])[0]), 3.0, "sum")
    numbers = [result_words(rank.status().splitlines()[-1])["seq"] for rank in ranks]
    equal(len(set(numbers)), 1, f"numbers {numbers} after coming back")


def test_the_buffer_of_a_lost_rank_is_still_there_for_its_successor(mount):
    job, ranks = trio(mount)
    ranks[2].actor.kill()
    equal(float(floats(ranks[2])[0]), 3.0, "buffer of the dead")
    ranks[2].actor, ranks[2].descriptors = Actor(), {}
    ranks[2].open()
    run_all(ranks)
    equal(float(floats(ranks[0])[0]), 6.0, "sum")


def test_the_same_rank_may_be_lost_and_come_back_many_times(mount):
    job, ranks = trio(mount)
    for _ in range(20):
        ranks[2].actor.kill()
        all_fail(ranks[:2], errno.ECONNRESET)
        ranks[2].actor, ranks[2].descriptors = Actor(), {}
        ranks[2].open()
        run_all(ranks, "op=max")
    equal(float(floats(ranks[0])[0]), 3.0, "maximum")


def test_two_deaths_at_once(mount):
    job, ranks = trio(mount)
    pending = ranks[0].begin()
    mount.wait_parked()
    os.kill(ranks[1].pid, signal.SIGKILL)
    os.kill(ranks[2].pid, signal.SIGKILL)
    pending.fails(errno.ECONNRESET)
    for rank in ranks[1:]:
        rank.actor.wait()
        rank.actor, rank.descriptors = Actor(), {}
    ranks[1].open()
    ranks[0].fails(errno.ECONNRESET)  # one is still away
    # Rank 1 was back when that operation was refused to rank 0: it comes to it and gets the same.
    ranks[2].open()
    wait_until(lambda: not_refused(ranks), "the next operation works")


def not_refused(ranks):
    """Runs operations until one is done by all; whoever is behind gets the errors it missed first."""
    pending = [rank.begin("op=max") for rank in ranks]
    return [call.error() for call in pending] == [0] * len(ranks)


def test_rmdir_of_a_lost_rank_and_a_new_mkdir_works(mount):
    job, ranks = trio(mount)
    ranks[2].actor.kill()
    all_fail(ranks[:2], errno.ECONNRESET)
    os.rmdir(ranks[2].path)
    ranks[2] = job.rank(2)
    ranks[2].put(np.full(16, 3, np.float32).tobytes())
    ranks[2].open()
    run_all(ranks)
    equal(float(floats(ranks[0])[0]), 6.0, "sum")


def test_leaving_by_rmdir_is_no_loss_but_is_missed(mount):
    job, ranks = trio(mount, timeout=2)
    ranks[2].close()
    os.rmdir(ranks[2].path)
    all_fail(ranks[:2], errno.ETIMEDOUT)
    contains(ranks[0].status().splitlines()[-1], "missing=2")


# --- descriptors of the daemon ------------------------------------------------------------------------------------

def catch(number):
    signal.signal(number, lambda *_: None)


def test_a_daemon_without_descriptors_says_so_and_takes_nobody_for_lost(mount):
    job = mount.job(2, size=64)
    ranks = job.ranks()
    for rank in ranks:
        rank.open()
        rank.actor.call(catch, signal.SIGUSR1)
    pending = ranks[0].begin("count=16")
    mount.wait_parked()
    late = Actor()
    before = resource.prlimit(mount.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{mount.pid}/fd")), before[1]))
    try:
        fails(errno.EMFILE, late.call, os.open, ranks[1].file("barrier"), os.O_RDWR)
        for _ in range(5):
            os.kill(ranks[0].pid, signal.SIGUSR1)  # the write is interrupted, and made again by Python
        ranks[1].run("count=16")
        pending.result()
    finally:
        resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, before)
    late.call(os.open, ranks[1].file("barrier"), os.O_RDWR)
    run_all(ranks, "count=16")


@needs(mount=False)
def test_a_process_that_the_daemon_cannot_see_is_refused_in_words(env):
    """As from the host, when the daemon is in a container with PIDs of its own."""
    point = f"{env.directory}/point"
    os.mkdir(point)
    daemon = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", env.program, "-f", point],
                              stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: os.path.exists(f"{point}/version"), "the mount answers")
        job = f"{point}/jobs/outside"
        os.mkdir(job)
        write(f"{job}/config", "world=1\nsize=64\n")
        os.mkdir(f"{job}/ranks/0")
        fails(errno.ESRCH, os.open, f"{job}/ranks/0/allreduce", os.O_RDWR)
        contains(read(f"{job}/ranks/0/status"), "ESRCH", "PID namespace")
        write(f"{job}/ranks/0/allreduce", "op=sum\n")  # no promise is needed for this
    finally:
        subprocess.run(["umount", point], check=True)
        equal(daemon.wait(), 0, "status of the daemon")


# --- going on without --------------------------------------------------------------------------------------------

def drop(job, what):
    write(f"{job.path}/members", f"drop={what}\n")


def test_drop_lost_lets_the_others_go_on(mount):
    job, ranks = trio(mount)
    ranks[1].actor.kill()
    all_fail([ranks[0], ranks[2]], errno.ECONNRESET)
    drop(job, "lost")
    run_all([ranks[0], ranks[2]], "op=avg")
    for rank in (ranks[0], ranks[2]):
        equal(float(floats(rank)[0]), 2.0, "average of 1 and 3 over the two members")
    contains(mount.read("events"), "drop")


def test_drop_of_a_living_rank_gives_it_estale_until_it_joins_again(mount):
    job, ranks = trio(mount)
    run_all(ranks, "op=max")
    drop(job, 2)
    ranks[2].fails(errno.ESTALE)
    run_all(ranks[:2], "op=max")
    ranks[2].fails(errno.ESTALE)
    rejoin(job, ranks)
    run_all(ranks, "op=max")
    equal(len({result_words(rank.status().splitlines()[-1])["seq"] for rank in ranks}), 1, "numbers")


def rejoin(job, ranks):
    """A dropped rank joins by mkdir; when its directory is still there, it leaves first."""
    try:
        os.rmdir(ranks[2].path)
    except FileNotFoundError:
        pass
    actor = ranks[2].actor if ranks[2].actor.status is None else Actor()
    ranks[2] = job.rank(2, actor)
    ranks[2].put(np.full(16, 3, np.float32).tobytes())


def test_a_dropped_rank_has_no_path_at_once_and_a_new_one_when_it_joins_again(mount):
    job, ranks = trio(mount)
    names = ["", "buffer", "allreduce", "status"]
    before = [os.stat(ranks[2].file(name)).st_ino for name in names]
    drop(job, 2)
    for name in names:
        fails(errno.ENOENT, os.stat, ranks[2].file(name))
    rejoin(job, ranks)
    after = [os.stat(ranks[2].file(name)).st_ino for name in names]
    assert not set(before) & set(after), f"{before} and then {after}"


def test_a_drop_releases_those_who_wait_for_the_dropped(mount):
    """Operations need the remaining ones only; what waits is done or fails with ESTALE, and does not hang."""
    job, ranks = trio(mount, timeout=30)
    pending = [rank.begin("op=max") for rank in ranks[:2]]
    mount.wait_parked(2)
    drop(job, 2)
    outcomes = {call.error() for call in pending}
    assert outcomes in ({0}, {errno.ESTALE}, {errno.ECANCELED}), outcomes
    run_all(ranks[:2], "op=max")
    equal(float(floats(ranks[0])[0]), 2.0, "maximum of the two")


def test_parts_count_the_members_in_rank_order_after_a_drop(mount):
    job = mount.job(4, size=4 * 100, dtype="i32")
    ranks = job.ranks()
    drop(job, 1)
    members = [ranks[0], ranks[2], ranks[3]]
    for rank in members:
        rank.put(np.full(100, rank.number, np.int32).tobytes())
    run_all(members, "", "allgather")
    expected = np.r_[np.full(33, 0), np.full(33, 2), np.full(34, 3)].astype(np.int32)
    for rank in members:
        equal(rank.get(), expected.tobytes(), f"gathered at rank {rank.number}")


def test_members_shows_who_was_dropped(mount):
    job, ranks = trio(mount)
    drop(job, 2)
    line = next(line for line in job.read("members").splitlines() if line.replace("=", " ").split()[:2][-1:] == ["2"]
                or line.split()[0] == "2")
    contains(line, "dropped")


def test_bad_drops_are_refused(mount):
    job, ranks = trio(mount)
    for text in ("drop=7", "drop=x", "drop=", "drop", "drop=-1", "drop=0 drop=1", "take=lost", "lost", "drop=everybody"):
        fails((errno.EINVAL, errno.ERANGE, errno.ENOENT), write, f"{job.path}/members", text + "\n")
    run_all(ranks, "op=max")


def test_drop_lost_with_nobody_lost_changes_nothing(mount):
    job, ranks = trio(mount)
    try:
        drop(job, "lost")
    except OSError as error:
        equal(error.errno, errno.ENOENT, "refusal")
    run_all(ranks, "op=max")


def test_only_the_owner_may_drop(mount):
    actor = Actor(1001)
    job, ranks = trio(mount)
    os.chmod(job.path, 0o777)
    fails((errno.EACCES, errno.EPERM), actor.call, write, f"{job.path}/members", "drop=2\n")
    run_all(ranks, "op=max")


def test_a_job_shrinks_and_grows_again_with_right_sums(mount):
    job, ranks = trio(mount)
    for _ in range(5):
        ranks[2].actor.kill()
        all_fail(ranks[:2], errno.ECONNRESET)
        drop(job, "lost")
        for rank in ranks[:2]:
            rank.put(np.ones(16, np.float32).tobytes())
        run_all(ranks[:2])
        equal(float(floats(ranks[0])[0]), 2.0, "sum of two")
        rejoin(job, ranks)
        for rank in ranks:
            rank.put(np.ones(16, np.float32).tobytes())
        run_all(ranks)
        equal(float(floats(ranks[0])[0]), 3.0, "sum of three")
