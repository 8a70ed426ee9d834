"""Kill -9 at random moments, many times: survivors are answered, nothing leaks, the job goes on."""
import errno
import os
import random
import signal
import time

import numpy as np

from harness import SOON, Actor, contains, equal, needs, read, run_all, wait_until, within

ERRORS = (errno.ECONNRESET, errno.ECANCELED)


def loop(trigger):
    """For an actor: operations until one fails because a rank is lost; how often each errno came."""
    outcomes = {}
    while errno.ECONNRESET not in outcomes:
        try:
            os.write(trigger, b"op=avg\n")
            outcomes[0] = outcomes.get(0, 0) + 1
        except OSError as error:
            outcomes[error.errno] = outcomes.get(error.errno, 0) + 1
    return outcomes


def start_loops(ranks, function=loop):
    """All have promised to take part before the first of them begins."""
    triggers = [rank.open() for rank in ranks]
    return [rank.actor.begin(function, trigger) for rank, trigger in zip(ranks, triggers)]


@needs(seconds=900)
def test_a_rank_killed_at_any_moment_fails_the_others_at_once_and_the_job_goes_on(mount):
    job = mount.job(3, size="256K", timeout=20)
    ranks = job.ranks()
    for rank in ranks:
        rank.put(np.ones(65536, np.float32).tobytes())
    dice = random.Random(1)
    rss = 0
    for number in range(mount.env.storms):
        calls = start_loops(ranks)
        victim = dice.choice(ranks)
        pause(dice.uniform(0, 0.02))
        os.kill(victim.pid, signal.SIGKILL)
        killed = time.monotonic()
        for rank in ranks:
            if rank is not victim:
                outcomes = calls[rank.number].result()
                assert set(outcomes) <= {0, *ERRORS}, outcomes
        within(SOON, killed, f"the survivors' answers in round {number}")
        victim.actor.wait()
        victim.actor, victim.descriptors = Actor(), {}
        bring_back(ranks)
        if number == 10:
            rss = mount.rss_kib()
    run_all(ranks, "op=avg")
    equal(ranks[0].get(), np.ones(65536, np.float32).tobytes(), "the average of ones after the storm")
    if rss:
        assert mount.rss_kib() < rss + 4096, f"resident memory grew from {rss} to {mount.rss_kib()} KiB"


def pause(seconds):
    """A random moment is what this test is about; it waits for nothing."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def bring_back(ranks):
    """All open again and run until an operation is done by all: whoever is behind catches up with errors."""
    for rank in ranks:
        rank.open()

    def all_done():
        calls = [rank.begin("op=avg") for rank in ranks]
        return [call.error() for call in calls] == [0] * len(ranks)
    wait_until(all_done, "the job goes on")


@needs(seconds=900)
def test_clients_killed_in_any_call_leave_nothing(mount):
    """Readers, writers, pollers, openers: whatever they were doing, the daemon forgets them."""
    job = mount.job(8, size="64K", timeout=20)
    ranks = job.ranks()
    dice = random.Random(2)
    rss = 0
    for number in range(mount.env.storms):
        actor = Actor()
        actor.begin(wander, mount.path, job.path, number % 8, number)
        pause(dice.uniform(0, 0.01))
        actor.kill()
        if number == 10:
            rss = mount.rss_kib()
    mount.wait_idle()
    run_all(ranks, "count=0")
    equal(len(os.listdir(f"/proc/{mount.pid}/fd")) < 200, True, "descriptors are bounded")
    if rss:
        assert mount.rss_kib() < rss + 4096, f"resident memory grew from {rss} to {mount.rss_kib()} KiB"


def wander(root, job, rank, seed):
    """For an actor: random use of everything, until it is killed."""
    dice = random.Random(seed)
    directory = f"{job}/ranks/{rank}"

    def look():
        read(dice.choice([f"{root}/stats", f"{root}/events", f"{job}/trace", f"{job}/members", f"{directory}/status"]))

    def store():
        fd = os.open(f"{directory}/buffer", os.O_RDWR)
        os.pwrite(fd, b"x" * dice.randrange(1, 60000), dice.randrange(0, 4000))
        os.close(fd)

    def map_it():
        view = np.memmap(f"{directory}/buffer", np.uint8, "r+")
        view[dice.randrange(len(view))] = 1

    def queue():
        fd = os.open(f"{directory}/allreduce", os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b"tag=w%d count=0\n" % dice.randrange(5))
        os.close(fd)

    def come_and_go():
        path = f"{root}/jobs/w{seed}"
        os.mkdir(path)
        os.rmdir(path)

    while True:
        try:
            dice.choice([look, store, map_it, queue, come_and_go])()
        except OSError:
            pass


@needs(seconds=300)
def test_jobs_made_used_and_killed_in_parallel_all_end(mount):
    """Many short jobs at once, each with a death in it; the tree is empty afterwards."""
    rounds = max(4, mount.env.storms // 10)
    for number in range(rounds):
        jobs = [mount.job(2, size=4096, timeout=10) for _ in range(4)]
        crews = [job.ranks() for job in jobs]
        calls = [start_loops(crew)[0] for crew in crews]
        for crew in crews:
            os.kill(crew[1].pid, signal.SIGKILL)
        for call in calls:
            outcomes = call.result()
            assert set(outcomes) <= {0, *ERRORS}, outcomes
        for job, crew in zip(jobs, crews):
            for rank in crew:
                rank.actor.kill()
                os.rmdir(rank.path)
            os.rmdir(job.path)
    equal(os.listdir(mount.file("jobs")), [], "jobs left")


@needs(seconds=300)
def test_a_storm_of_signals_and_deaths_leaves_no_request(mount):
    job = mount.job(4, size=4096, timeout=20)
    ranks = job.ranks()
    dice = random.Random(3)
    for number in range(max(5, mount.env.storms // 5)):
        calls = start_loops(ranks, loop_with_timer)
        pause(dice.uniform(0.001, 0.03))
        victim = dice.choice(ranks)
        os.kill(victim.pid, signal.SIGKILL)
        for rank, call in zip(ranks, calls):
            if rank is not victim:
                call.result()
        victim.actor.wait()
        victim.actor, victim.descriptors = Actor(), {}
        bring_back(ranks)
    mount.wait_idle()


def loop_with_timer(trigger):
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        return loop(trigger)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@needs(seconds=300)
def test_a_write_only_rank_that_dies_costs_the_timeout_and_no_more(mount):
    job = mount.job(2, size=64, timeout=2)
    ranks = job.ranks()
    for _ in range(max(3, mount.env.storms // 30)):
        ranks[1].open("allreduce", os.O_WRONLY)
        ranks[1].actor.kill()
        ranks[0].fails((errno.ETIMEDOUT,))
        ranks[1].actor, ranks[1].descriptors = Actor(), {}
        ranks[1].fails(errno.ETIMEDOUT)
        ranks[1].close()
    run_all(ranks)


@needs(seconds=120)
def test_opening_and_closing_thousands_of_times_leaks_nothing(mount):
    job = mount.job(2, size=4096)
    rank = job.rank(0)
    paths = [rank.file("buffer"), rank.file("allreduce"), rank.file("status"), mount.file("stats")]
    for path in paths * 500:
        os.close(os.open(path, os.O_RDONLY))
    rss, fds = mount.rss_kib(), len(os.listdir(f"/proc/{mount.pid}/fd"))
    for path in paths * (25 * mount.env.storms // 2):
        os.close(os.open(path, os.O_RDONLY))
    assert mount.rss_kib() < rss + 2048, f"resident memory grew from {rss} to {mount.rss_kib()} KiB"
    assert len(os.listdir(f"/proc/{mount.pid}/fd")) <= fds + 2, "descriptors leak"


def test_sixty_four_ranks_in_one_operation_get_the_same_sum(mount):
    job = mount.job(64, size=4096, dtype="i32")
    ranks = job.ranks()
    for rank in ranks:
        rank.put(np.arange(1024, dtype=np.int32).tobytes())
        rank.open()
    for turn in range(3):
        run_all(ranks)
    expected = (np.arange(1024, dtype=np.int64) * 64 ** 3).astype(np.int32).tobytes()
    for rank in ranks:
        equal(rank.get(), expected, f"sum at rank {rank.number}")
    contains(job.read("stats"), "allreduce_ops 3")
