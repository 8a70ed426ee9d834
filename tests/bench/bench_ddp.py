#!/usr/bin/python3
"""Time of a training step with PyTorch: Gloo, the fabric as backend, as hook, and with gradients in place.

    bench_ddp.py [--build DIR] [--world N] [--steps N] [--rounds N] [--hidden N,N ...] DIGITS

The same script (tests/python/digits_ddp.py), the same data and the same network for all, in turns in the same run on a
mount of its own, so that whatever else the machine does falls on each. The figure is the median of rank 0's steps, and
beside it the same network without anybody to share with. DIGITS is the file that utils/demo.sh fetches.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path.insert(0, f"{TREE}/tests/mount")
import harness  # noqa: E402

TRAIN = f"{TREE}/tests/python/digits_ddp.py"
HOWS = ("gloo", "fabric", "hook", "inplace")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def step_times(mount, how, world, args, hidden):
    """Seconds of each step of rank 0, the first few left out."""
    out, port = f"{mount.env.directory}/out.json", free_port()
    running = [subprocess.Popen(
        ["/usr/bin/python3", TRAIN, how, os.path.abspath(args.digits), out, "--steps", str(args.steps + 5),
         "--hidden", str(hidden)],
        env={**os.environ, "FABRIC_MOUNT": mount.path, "RANK": str(rank), "WORLD_SIZE": str(world),
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
             "PYTHONPATH": f"{TREE}/utils/python", "PYTHONDONTWRITEBYTECODE": "1"}) for rank in range(world)]
    for process in running:
        if process.wait(300):
            raise SystemExit(f"bench_ddp: {how} failed")
    with open(out, encoding="utf-8") as file:
        return json.load(file)["times"][5:]


def parameters(hidden):
    return 64 * hidden + hidden + hidden * hidden + hidden + hidden * 10 + 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default=f"{TREE}/build")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--hidden", default="80,1024", help="widths of the network")
    parser.add_argument("digits", metavar="DIGITS")
    args = parser.parse_args()
    with harness.Environment(os.path.abspath(args.build), "passthrough") as env:
        mount = harness.Mount(env)
        for hidden in map(int, args.hidden.split(",")):
            times = {how: [] for how in HOWS}
            for _ in range(args.rounds):
                for how in HOWS:
                    times[how] += step_times(mount, how, args.world, args, hidden)
            alone = statistics.median(step_times(mount, "inplace", 1, args, hidden))
            gloo = statistics.median(times["gloo"])
            print(f"{parameters(hidden)} parameters, {args.world} ranks: alone {alone * 1e3:.2f} ms a step")
            for how in HOWS:
                median, p90 = statistics.median(times[how]), statistics.quantiles(times[how], n=10)[-1]
                print(f"  {how:8} {median * 1e3:8.2f} ms   p90 {p90 * 1e3:8.2f} ms   {median / gloo:5.2f} of gloo")
        mount.finish()


if __name__ == "__main__":
    main()
