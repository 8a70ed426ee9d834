#!/usr/bin/python3
"""What PyTorch's Gloo takes for an all_reduce, measured as fabricctl perf measures: f32 sums in place, known data
stored before and every element compared after each operation, an iteration as long as at the rank where it took
longest, all ranks together before and after it above 256 KiB; each rank bound to a core of its own where there are as many.

    peer_gloo.py PORT WORLD BYTES:ITERATIONS...

Prints for each size: BYTES WRONG P50 P99 P99.9 (microseconds).
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

PERIOD = 1021  # as fabricctl perf has it
TOGETHER_BYTES = 256 << 10


def pattern(rank, count):
    return (1 + (torch.arange(PERIOD) + rank) % 3).float().repeat(count // PERIOD + 1)[:count]


def meet(came, rank):
    """All come, and go on together: they look for each other, as fabricctl perf and MPI's barrier do. Gloo's own
    barrier would wake one after the other."""
    came[rank] += 1
    while min(came) < came[rank]:
        os.sched_yield()


def measure(came, rank, world, bytes_, iterations):
    count = bytes_ // 4
    stored, total = pattern(rank, count), sum(pattern(other, count) for other in range(world))
    data, took, wrong = torch.zeros(count), torch.zeros(iterations, dtype=torch.float64), 0
    warm_ups = iterations // 10 + 2
    for i in range(warm_ups + iterations):
        data.copy_(stored)
        if bytes_ > TOGETHER_BYTES:
            meet(came, rank)
        start = time.monotonic()
        dist.all_reduce(data)
        seconds = time.monotonic() - start
        if bytes_ > TOGETHER_BYTES:
            meet(came, rank)
        if i >= warm_ups:
            took[i - warm_ups] = seconds
        if not torch.equal(data, total):
            wrong += int((data != total).sum())
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    wrong = torch.tensor([wrong])
    dist.all_reduce(wrong)
    if rank == 0:
        took = sorted((took * 1e6).tolist())
        print(bytes_, wrong.item(), *(f"{took[(iterations - 1) * part // 1000]:.2f}" for part in (500, 990, 999)),
              flush=True)


def live(rank, world, port, works, came):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    cpus = sorted(os.sched_getaffinity(0))
    if world <= len(cpus):
        os.sched_setaffinity(0, {cpus[rank]})  # this thread only; those of Gloo may go where they want
    for bytes_, iterations in works:
        measure(came, rank, world, bytes_, iterations)


if __name__ == "__main__":
    port, world = map(int, sys.argv[1:3])
    works = [tuple(map(int, word.split(":"))) for word in sys.argv[3:]]
    processes.spawn(live, (world, port, works, processes.get_context("spawn").Array("q", world, lock=False)), nprocs=world)
