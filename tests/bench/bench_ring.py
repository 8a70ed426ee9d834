#!/usr/bin/python3
"""Figures of several nodes, emulated on this machine, through real mounts.

    bench_ring.py [--build DIR] [bound|gloo|latency|idle|memory ...]

bound    2, 4 and 8 nodes of one rank, 64 MiB f32, links throttled so far that the processors are not the limit: time
         over 2(n-1)/n of the bytes at the links' bandwidth
gloo     2 and 4 nodes of one rank, 256 MiB f32, links as fast as memory, beside PyTorch's Gloo over loopback with as
         many processes, the two in turns
latency  8 bytes on 2, 4 and 16 nodes of one rank
idle     processor time of 16 daemons that have nothing to do
memory   resident and shared memory of a daemon, and what it sends when nothing happens, by the number of peers

These are figures, not tests; a line says "OVER" where one misses its aim, and the exit status does not tell. Medians,
because the machine does other things as well.
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
from harness import Environment, Fabric  # noqa: E402

MIB = 1 << 20


def report(what, figure, aim, holds):
    print(f"{what:44} {figure:>32}   aim {aim:22} {'holds' if holds else 'OVER'}", flush=True)


def timed(directory, command, times):
    """For a rank's process: the seconds of each of so many operations, after a barrier each."""
    barrier = os.open(f"{directory}/barrier", os.O_RDWR)
    trigger = os.open(f"{directory}/allreduce", os.O_RDWR)
    took = []
    for _ in range(times + 1):
        os.write(barrier, b"\n")
        start = time.monotonic()
        os.write(trigger, command)
        took.append(time.monotonic() - start)
    os.close(trigger)
    os.close(barrier)
    return took[1:]


def fill(directory):
    np.memmap(f"{directory}/buffer", np.uint8, "r+")[:] = 0


def median_of(job, ranks, times, command=b"\n"):
    calls = [rank.actor.begin(timed, rank.path, command, times) for rank in ranks]
    return np.median([call.result(600) for call in calls])


def one_each(fabric, nodes, size, **config):
    job = fabric.job(list(range(nodes)), size=size, timeout=120, **config)
    ranks = job.ranks()
    for rank in ranks:
        rank.actor.call(fill, rank.path)
    return job, ranks


def throttled(env, nodes, bandwidth):
    """A fabric whose links carry so many bytes a second."""
    path = os.path.join(env.directory, f"throttled{nodes}.conf")
    with open(path, "w") as out:
        for node in range(nodes):
            out.write(f"[node {node}]\nbandwidth = {bandwidth}\n")
    return Fabric(env, nodes, options=("-o", f"config={path}", *Fabric.PATIENT))


def bound(env):
    size = 64 * MIB
    for nodes, bandwidth in ((2, 128 * MIB), (4, 64 * MIB), (8, 32 * MIB)):
        fabric = throttled(env, nodes, bandwidth)
        fabric.wait_up()
        job, ranks = one_each(fabric, nodes, size)
        took = median_of(job, ranks, 3)
        least = 2 * (nodes - 1) / nodes * size / bandwidth
        report(f"{nodes} nodes, 64 MiB at {bandwidth // MIB} MiB/s",
               f"{took * 1e3:.0f} ms, {took / least:.3f} of the bound", "1.1 of the bound", took <= 1.1 * least)
        fabric.finish()


GLOO = """
import sys, time, torch, torch.distributed as dist
rank, world, port, times = map(int, sys.argv[1:5])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
data = torch.zeros(64 << 20)
took = []
for _ in range(times + 1):
    dist.barrier()
    start = time.monotonic()
    dist.all_reduce(data)
    took.append(time.monotonic() - start)
print(*took[1:])
"""


def gloo_times(world, times, port):
    processes = [subprocess.Popen(["/usr/bin/python3", "-c", GLOO, str(rank), str(world), str(port), str(times)],
                                  stdout=subprocess.PIPE) for rank in range(world)]
    return [float(word) for process in processes for word in process.communicate(timeout=600)[0].split()]


def has_torch():
    return subprocess.run(["/usr/bin/python3", "-c", "import torch.distributed"], stderr=subprocess.DEVNULL,
                          check=False).returncode == 0


def gloo(env):
    compare = has_torch()
    if not compare:
        print("gloo: skipped, the package python3-torch is not installed")
    for nodes in (2, 4):
        fabric = Fabric(env, nodes)
        fabric.wait_up()
        job, ranks = one_each(fabric, nodes, 256 * MIB)
        ours, theirs = [], []
        for turn in range(3):
            ours.append(median_of(job, ranks, 3))
            if compare:
                theirs.extend(gloo_times(nodes, 3, 29600 + 10 * nodes + turn))
        took, other = np.median(ours), np.median(theirs) if compare else float("nan")
        report(f"{nodes} nodes, 256 MiB", f"{took * 1e3:.0f} ms, Gloo {other * 1e3:.0f} ms, {other / took:.2f} x",
               "3 x as fast as Gloo", other >= 3 * took)
        fabric.finish()


def latency(env):
    for nodes in (2, 4, 16):
        fabric = Fabric(env, nodes)
        fabric.wait_up(seconds=60)
        job, ranks = one_each(fabric, nodes, 8, dtype="f64")
        calls = [rank.actor.begin(timed, rank.path, b"\n", 300) for rank in ranks]
        took = np.concatenate([call.result(600) for call in calls])
        report(f"{nodes} nodes, 8 bytes", f"p50 {np.median(took) * 1e6:.0f} us, p99 {np.quantile(took, .99) * 1e6:.0f} us",
               "it works", True)
        fabric.finish()


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        words = stat.read().rsplit(") ", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def idle(env):
    fabric = Fabric(env, 16, options=())
    fabric.wait_up(seconds=60)
    job, ranks = one_each(fabric, 16, 8, dtype="f64")
    median_of(job, ranks, 3)
    time.sleep(1)
    pids = [mount.pid for mount in fabric]
    before, start = sum(map(cpu_seconds, pids)), time.monotonic()
    time.sleep(20)
    share = (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - start)
    report("16 daemons idle, together", f"{share:.2%} of a core", "under 2 %", share < 0.02)
    fabric.finish()


def sums(fabric, node, names):
    """Of figures in the stats of all links of a node."""
    links = [other for other in range(fabric.count) if other != node]
    lines = [line.split() for other in links for line in fabric[node].read("nodes", other, "stats").splitlines()]
    return {name: sum(int(words[1]) for words in lines if words[0] == name) for name in names}


def memory(env):
    for nodes in (2, 4, 8, 16):
        fabric = Fabric(env, nodes, options=())
        fabric.wait_up(seconds=60)
        before, start = sums(fabric, 0, ("puts", "put_bytes")), time.monotonic()
        time.sleep(5)
        after, took = sums(fabric, 0, ("puts", "put_bytes")), time.monotonic() - start
        landing = sum(os.stat(f"/dev/shm/{name}").st_blocks for name in os.listdir("/dev/shm")
                      if fabric.name in name) * 512 / nodes
        puts, put_bytes = ((after[name] - before[name]) / took for name in ("puts", "put_bytes"))
        print(f"{nodes:2} nodes: resident {fabric[0].rss_kib() / 1024:.1f} MiB, landing memory {landing / MIB:.1f} MiB a "
              f"node; idle {puts:.0f} puts/s, {put_bytes / 1024:.1f} KiB/s from a node", flush=True)
        fabric.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(HERE, "../../build"))
    parser.add_argument("what", nargs="*")
    args = parser.parse_args()
    known = {"bound": bound, "gloo": gloo, "latency": latency, "idle": idle, "memory": memory}
    for name in args.what:
        if name not in known:
            parser.error(f"no figure is called {name}")
    for name in args.what or known:
        with Environment(os.path.abspath(args.build), "passthrough") as env:
            known[name](env)


if __name__ == "__main__":
    main()
