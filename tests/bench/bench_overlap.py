#!/usr/bin/python3
"""How much of a reduction hides behind computation when a training loop queues its buckets.

    bench_overlap.py [--build DIR] [--mode passthrough|coherent] [--buckets N] [--rounds N]

Two ranks compute the gradients of one bucket of 25 MiB after the other, as a backward pass does, and queue the sum of
each bucket as soon as it is there (O_NONBLOCK). In the same run they also only compute, and only reduce. What is hidden
is (computing + reducing - both together) / the smaller of the two; medians over the rounds.

device   computing is waiting for an accelerator: processors are free
one      rank 0 computes on one processor, rank 1 waits for its accelerator: one of two processors is free
cpu      both ranks compute on a processor each: on two cores nothing is free, and what is hidden is what computing
         leaves of the memory's bandwidth and of waiting
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


def computing(seconds, on_cpu):
    """As long as the gradients of one bucket take."""
    if not on_cpu:
        time.sleep(seconds)
        return
    work, end = np.ones(4096, np.float32), time.monotonic() + seconds
    while time.monotonic() < end:
        np.sqrt(work, out=work)


def loop(directory, buckets, seconds, on_cpu, reduces):
    """For a rank's process: one step; how long it took. seconds 0: computes nothing."""
    barrier = os.open(f"{directory}/barrier", os.O_RDWR)
    trigger = os.open(f"{directory}/allreduce", os.O_RDWR | os.O_NONBLOCK)
    os.write(barrier, b"\n")
    start, results = time.monotonic(), b""
    for bucket in range(buckets):
        computing(seconds, on_cpu)
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


def step(ranks, buckets, seconds, on_cpu, reduces):
    calls = [rank.actor.begin(loop, rank.path, buckets, seconds, there, reduces) for rank, there in zip(ranks, on_cpu)]
    return max(call.result(300) for call in calls)


def store(directory):
    """Gradients, on pages that are there; the mapping ends with the call."""
    buffer = np.memmap(f"{directory}/buffer", np.float32, "r+")
    buffer[:] = 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(HERE, "../../build"))
    parser.add_argument("--mode", choices=("passthrough", "coherent"), default="passthrough")
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with Environment(os.path.abspath(args.build), args.mode) as env:
        mount = Mount(env)
        ranks = mount.job(2, size=args.buckets * BUCKET).ranks()
        for rank in ranks:
            rank.actor.begin(store, rank.path).result(120)
        for name, on_cpu in (("device", (False, False)), ("one", (True, False)), ("cpu", (True, True))):
            figures = []
            for _ in range(args.rounds):
                reducing = step(ranks, args.buckets, 0, on_cpu, True)
                each = 1.2 * reducing / args.buckets
                alone = step(ranks, args.buckets, each, on_cpu, False)
                both = step(ranks, args.buckets, each, on_cpu, True)
                figures.append((reducing, alone, both, (reducing + alone - both) / min(reducing, alone)))
            reducing, alone, both, hidden = (statistics.median(column) for column in zip(*figures))
            print(f"{name:7} reducing {reducing * 1e3:6.1f} ms, computing {alone * 1e3:6.1f} ms, both {both * 1e3:6.1f} ms: "
                  f"{hidden:4.0%} hidden   aim 80% {'holds' if hidden >= 0.8 else 'OVER'}", flush=True)
        mount.finish()


if __name__ == "__main__":
    main()
