#!/usr/bin/python3
"""How much of a reduction hides behind computation when a training loop queues its buckets.

    bench_overlap.py [--build DIR] [--mode passthrough|coherent] [--buckets N] [--rounds N]

Two ranks compute the gradients of one bucket of 25 MiB after the other, as a backward pass does, and queue the sum of
each bucket as soon as it is there (O_NONBLOCK). In the same run they also only compute, and only reduce. What is hidden
is (computing + reducing - both together) / the smaller of the two; medians over the rounds.

Where a processor computes, it is an amount of work, so that what takes the processor away shows.

device   computing is waiting for an accelerator: processors are free
one      rank 0 computes on one processor, rank 1 waits for its accelerator: one of two processors is free
long     the same, and computing takes 2.5 times as long as reducing, else 1.2 times
cpu      both ranks compute on a processor each: on two cores nothing is free

Beside it stands what can be hidden at most: the last bucket is reduced after all computing, and a reduction keeps all
processors busy for as long as it takes alone, wherever that time is found. (Reducing waits for memory, too, so a little
more may be seen where processors are what is short.)
"""
import argparse
import os
import select
import statistics
import sys
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../mount"))
sys.dont_write_bytecode = True
from harness import Environment, Mount  # noqa: E402

BUCKET = 25 << 20
# name, which ranks compute on a processor, time of computing over that of reducing
CASES = (("device", (False, False), 1.2), ("one", (True, False), 1.2), ("long", (True, False), 2.5),
         ("cpu", (True, True), 1.2))


def compute(turns):
    work = np.ones(4096, np.float32)
    for _ in range(turns):
        np.sqrt(work, out=work)


def turns_per_second():
    """As a processor does it that nobody else uses."""
    def took(turns):
        start = time.monotonic()
        compute(turns)
        return time.monotonic() - start
    return 10000 / min(took(10000) for _ in range(10))


def computing(seconds, rate):
    """As long as the gradients of one bucket take: an amount of work where a processor does it."""
    if rate:
        compute(int(seconds * rate))
    else:
        time.sleep(seconds)


def loop(directory, buckets, seconds, rate, reduces):
    """For a rank's process: one step; how long it took. seconds 0: computes nothing; rate 0: not on a processor."""
    barrier = os.open(f"{directory}/barrier", os.O_RDWR)
    trigger = os.open(f"{directory}/allreduce", os.O_RDWR | os.O_NONBLOCK)
    os.write(barrier, b"\n")
    start, results = time.monotonic(), b""
    for bucket in range(buckets):
        computing(seconds, rate)
        if reduces:
            os.write(trigger, b"op=avg offset=%d count=%d\n" % (bucket * BUCKET, BUCKET // 4))
    while reduces and results.count(b"\n") < buckets:
        select.select([trigger], [], [])
        results += os.read(trigger, 65536)
    took = time.monotonic() - start
    assert results.count(b" result=ok ") == (buckets if reduces else 0), results
    os.close(trigger)
    os.close(barrier)
    return took


def step(ranks, buckets, seconds, rates, reduces):
    calls = [rank.actor.begin(loop, rank.path, buckets, seconds, rate, reduces) for rank, rate in zip(ranks, rates)]
    return max(call.result(300) for call in calls)


def most_hidden(processors, computers, buckets, reducing, alone):
    """Of the smaller time, if processors are all that is short, and never idle."""
    both = max(alone + reducing / buckets, (computers * alone + processors * reducing) / processors)
    return max(0, reducing + alone - both) / min(reducing, alone)


def store(directory):
    """Gradients, on pages that are there; the mapping ends with the call."""
    buffer = np.memmap(f"{directory}/buffer", np.float32, "r+")
    buffer[:] = 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(HERE, "../../build"))
    parser.add_argument("--mode", choices=("passthrough", "coherent"), default="passthrough")
    parser.add_argument("--buckets", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with Environment(os.path.abspath(args.build), args.mode) as env:
        mount = Mount(env)
        ranks = mount.job(2, size=args.buckets * BUCKET).ranks()
        for rank in ranks:
            rank.actor.begin(store, rank.path).result(120)
        rate = turns_per_second()
        for name, on_cpu, ratio in CASES:
            figures, rates = [], [rate * there for there in on_cpu]
            for _ in range(args.rounds):
                reducing = step(ranks, args.buckets, 0, rates, True)
                each = ratio * reducing / args.buckets
                alone = step(ranks, args.buckets, each, rates, False)
                both = step(ranks, args.buckets, each, rates, True)
                figures.append((reducing, alone, both, (reducing + alone - both) / min(reducing, alone)))
            reducing, alone, both, hidden = (statistics.median(column) for column in zip(*figures))
            most = most_hidden(len(os.sched_getaffinity(0)), sum(on_cpu), args.buckets, reducing, alone)
            print(f"{name:7} reducing {reducing * 1e3:6.1f} ms, computing {alone * 1e3:6.1f} ms, both {both * 1e3:6.1f} ms: "
                  f"{hidden:4.0%} hidden, at most {most:4.0%}"
                  f"{'' if most < 0.8 else '   aim 80% holds' if hidden >= 0.8 else '   aim 80% OVER'}", flush=True)
        mount.finish()


if __name__ == "__main__":
    main()
