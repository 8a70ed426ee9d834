#!/usr/bin/python3
"""Figures of a mounted fabric, each beside what the machine itself can do, measured in the same run.

    bench_mount.py [--build DIR] [--mode passthrough|coherent] [latency|bandwidth|idle|scraped|parked ...]

latency     2 ranks, 8 bytes, waiting included, beside a bare request through the same mount
bandwidth   f32 sums of 256 MiB by 2 and 4 ranks with mapped buffers, beside one pass over as much memory inside
            one process with as many threads
idle        CPU over 30 s, and resident memory without buffers
scraped     processor time of the daemon, and time of sums of 1 MiB, when `metrics` and all `stats` are read ten times a
            second; with and without in turns
parked      with 64 ranks waiting in a trigger: what looking around takes, and how many threads there are

These are figures, not tests; a line says "over" where one misses its aim, and the exit status does not tell.
"""
import argparse
import os
import subprocess
import sys
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../mount"))
sys.dont_write_bytecode = True
from harness import Actor, Environment, Mount, sh, wait_until  # noqa: E402

MIB = 1 << 20


def report(what, figure, limit, aim, holds):
    verdict = {True: "holds", False: "OVER", None: "-"}[holds]
    print(f"{what:38} {figure:>14}   machine {limit:>12}   aim {aim:24} {verdict}", flush=True)


def compiled(env, name):
    program = f"{env.directory}/{name}"
    subprocess.run(["cc", "-O2", "-o", program, f"{HERE}/{name}.c"], check=True)
    return program


def latency(env, mount):
    program = compiled(env, "bench_mount_latency")
    for world in (2, 4):
        job = mount.job(world, size=8, dtype="f64")
        lines = sh(f"{program} {job.path} {world} 20000", timeout=300).decode().splitlines()
        figures = {words[0]: list(map(float, words[1:])) for words in map(str.split, lines)}
        trip, (p50, p99, p999) = figures["trip"][0], figures["allreduce"]
        aim = "6 trips" if world == 2 else "none"
        report(f"{world} ranks, 8 bytes: p50", f"{p50:.1f} us", f"{trip:.1f} us", f"{aim} ({p50 / trip:.1f} trips)",
               bool(p50 <= 6 * trip) if world == 2 else None)
        print(f"{'':38} p99 {p99:.1f} us, p99.9 {p999:.1f} us")


def timed_sums(directory, count, times):
    """For an actor: maps its buffer, sums `times` + 1 times; the durations after the first, in seconds."""
    buffer = np.memmap(f"{directory}/buffer", np.float32, "r+")
    buffer[:] = 1
    trigger = os.open(f"{directory}/allreduce", os.O_RDWR)
    took = []
    for _ in range(times + 1):
        os.write(trigger, b"op=max\n")  # a barrier that also warms: both start the clock together
        start = time.monotonic()
        os.write(trigger, b"op=sum\n")
        took.append(time.monotonic() - start)
        assert buffer[0] == buffer[count - 1]
    os.close(trigger)
    return took[1:]


def one_pass(env, world, kernel):
    """Median seconds of one pass over 256 MiB a rank inside one process, by the same kernel and workers."""
    for line in sh(f"{env.build}/tests/bench/bench_pass 256 0 {world}", timeout=300).decode().splitlines():
        words = line.split()
        if words[1:3] == ["ranks", kernel]:
            return float(words[3]) / 1e3
    raise LookupError(f"bench_pass says nothing of {kernel}")


def bandwidth(env, mount):
    size = 256 * MIB
    for world in (2, 4):
        job = mount.job(world, size=size)
        calls = [rank.actor.begin(timed_sums, rank.path, size // 4, 10) for rank in job.ranks()]
        took = np.median([call.result(300) for call in calls])
        limit = one_pass(env, world, mount.stats()["kernel"])
        report(f"{world} ranks, 256 MiB f32 sum", f"{took * 1e3:.1f} ms", f"{limit * 1e3:.1f} ms",
               f"1.5 passes ({took / limit:.2f})", bool(took <= 1.5 * limit))


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        words = stat.read().rsplit(") ", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def idle(env, mount):
    job = mount.job(2, size=MIB)
    ranks = job.ranks()
    for rank in ranks:
        rank.open()
    before, start = cpu_seconds(mount.pid), time.monotonic()
    time.sleep(30)
    share = (cpu_seconds(mount.pid) - before) / (time.monotonic() - start)
    report("idle with a job of 2 ranks, 30 s", f"{share:.2%} CPU", "0", "under 0.5 %", share < 0.005)
    report("resident memory without buffers", f"{mount.rss_kib() / 1024:.1f} MiB", "-", "under 32 MiB",
           mount.rss_kib() < 32 * 1024)


def scrape(directory, seconds):
    """For an actor: reads all figures ten times a second."""
    names = [f"{directory}/{name}" for name in ("metrics", "stats", "nodes/0/stats")]
    names += [f"{directory}/jobs/{job}/stats" for job in os.listdir(f"{directory}/jobs")]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name in names:
            with open(name, "rb") as file:
                file.read()
        time.sleep(0.1)


def sums_for(directory, seconds):
    """For an actor: how many sums it took part in until rank 0 ended, and the median of what they took."""
    rank0, took = directory.endswith("/0"), []
    trigger = os.open(f"{directory}/allreduce", os.O_RDWR)
    end = time.monotonic() + seconds
    tell = os.open(f"{directory}/broadcast", os.O_RDWR)
    buffer = np.memmap(f"{directory}/buffer", np.uint8, "r+")
    while True:
        buffer[-4:] = rank0 and time.monotonic() > end
        os.write(tell, b"dtype=u8 root=0 count=4 offset=%d" % (len(buffer) - 4))
        if buffer[-1]:
            break
        start = time.monotonic()
        os.write(trigger, b"count=%d" % (MIB // 4))
        took.append(time.monotonic() - start)
    os.close(trigger)
    os.close(tell)
    return np.median(took)


def scraped(env, mount):
    ranks = mount.job(2, size=MIB + 4).ranks()
    reader = Actor()
    figures = {False: [], True: []}
    for turn in range(16):
        reads = turn % 2 == 1
        reading = reader.begin(scrape, mount.path, 2) if reads else None
        calls = [rank.actor.begin(sums_for, rank.path, 2) for rank in ranks]
        figures[reads].append(max(call.result(60) for call in calls))
        if reads:
            reading.result(60)
    without, withal = (np.median(figures[reads]) for reads in (False, True))
    before, start = cpu_seconds(mount.pid), time.monotonic()
    reader.begin(scrape, mount.path, 20).result(60)
    share = (cpu_seconds(mount.pid) - before) / (time.monotonic() - start)
    report("scraped at 10 Hz: daemon", f"{share:.2%} of a core", "-", "under 1 %", share < 0.01)
    report("scraped at 10 Hz: sums of 1 MiB", f"{withal * 1e6:.1f} us", f"{without * 1e6:.1f} us",
           f"1.01 ({withal / without:.3f})", bool(withal <= 1.01 * without))


def parked(env, mount):
    job = mount.job(65, timeout=300)
    ranks = [job.rank(number) for number in range(64)]
    for rank in ranks:
        rank.open()
    threads = mount.threads()
    calls = [rank.begin("count=0") for rank in ranks]
    mount.wait_parked(64)
    elsewhere = "/proc/self"
    for what, command in (("ls -lR", "ls -lR {}"), ("cat stats", "cat {}/stats"), ("df", "df {}"), ("stat", "stat {}")):
        ours = min(duration(command.format(mount.path)) for _ in range(5))
        other = min(duration(command.format(elsewhere).replace("/stats", "/status")) for _ in range(5)) \
            if what != "ls -lR" else min(duration("ls -lR /sys/kernel/mm") for _ in range(5))
        report(f"64 parked: {what}", f"{ours * 1e3:.1f} ms", f"{other * 1e3:.1f} ms", "under 100 ms", ours < 0.1)
    start = time.monotonic()
    for _ in range(100):
        os.close(os.open(f"{mount.path}/stats", os.O_RDONLY))
    took = (time.monotonic() - start) / 100
    report("64 parked: open and close", f"{took * 1e6:.0f} us", "-", "under 100 ms", took < 0.1)
    report("64 parked: threads", str(mount.threads()), str(threads), "none more", mount.threads() <= threads)
    job.rank(64).run("count=0")
    for call in calls:
        call.result()


def duration(command):
    start = time.monotonic()
    subprocess.run(["sh", "-c", command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(HERE, "../../build"))
    parser.add_argument("--mode", choices=("passthrough", "coherent"), default="passthrough")
    parser.add_argument("what", nargs="*")
    args = parser.parse_args()
    known = {"latency": latency, "bandwidth": bandwidth, "idle": idle, "scraped": scraped, "parked": parked}
    for name in args.what or known:
        if name not in known:
            parser.error(f"no figure is called {name}")
    for name in args.what or known:
        with Environment(os.path.abspath(args.build), args.mode) as env:
            mount = Mount(env)
            try:
                known[name](env, mount)
            finally:
                mount.process.terminate()
                mount.process.wait(20)
                wait_until(lambda: not os.path.ismount(mount.path), "the mount is gone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
