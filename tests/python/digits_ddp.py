"""What each process of the PyTorch tests and of bench_ddp.py runs: a small network learns handwritten digits.

    digits_ddp.py HOW DIGITS OUT [--steps N] [--hidden N] [--die STEP] [--state FILE]

HOW is how gradients are averaged: gloo, fabric (the backend), hook (DDP of Gloo with our hook) or inplace (no DDP). Rank
and world come from the environment. Rank 0 writes the loss of each step and its time to OUT. With --die, rank 1 kills
itself before that step when it runs for the first time; --state keeps what is learned, so that training goes on.
"""
import argparse
import json
import os
import signal
import sys
import time

import numpy
import torch
import torch.distributed as dist

import fabricfs.torch
from fabricfs import Fabric


def load(path, rank, world):
    """This rank's part of the digits."""
    table = torch.from_numpy(numpy.loadtxt(path, delimiter=",", dtype=numpy.float32))
    part = table[:len(table) // world * world][rank::world]
    return part[:, :64] / 16 - 0.5, part[:, 64].long()


def network(hidden):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, hidden),
                               torch.nn.Tanh(), torch.nn.Linear(hidden, 10))


class Trainer:
    """A model and what averages its gradients and losses."""

    def __init__(self, how, hidden):
        self.fabric = self.flat = None
        self.model = self.net = network(hidden)
        if how != "inplace":
            dist.init_process_group("fabric" if how == "fabric" else "gloo")
            self.model = torch.nn.parallel.DistributedDataParallel(self.net, bucket_cap_mb=0.02)
        if how in ("inplace", "hook"):
            self.fabric = Fabric()
        if how == "hook":
            self.model.register_comm_hook(None, fabricfs.torch.averaging(self.fabric))
        if how == "inplace":
            self.flat = fabricfs.torch.gradients(self.net, self.fabric)
        self.descent = torch.optim.SGD(self.net.parameters(), 0.2, 0.9)

    def mean(self, loss):
        x = loss.detach().clone()
        if self.fabric:
            self.fabric.allreduce(x, "avg")
        else:
            dist.all_reduce(x)
            x /= dist.get_world_size()
        return x.item()

    def step(self, x, y):
        self.descent.zero_grad(set_to_none=False)
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        if self.flat is not None:
            self.fabric.allreduce(self.flat, "avg")
        self.descent.step()
        return loss

    def close(self):
        if self.fabric:
            self.fabric.close()
        if dist.is_initialized() and dist.get_backend() == "gloo":
            dist.barrier()
            os._exit(0)  # the end of Gloo's group waits for threads that wait for the interpreter: it may never come
        if dist.is_initialized():
            dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("how")
    parser.add_argument("digits")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--hidden", type=int, default=80)
    parser.add_argument("--die", type=int, default=-1)
    parser.add_argument("--state", default="")
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    x, y = load(args.digits, rank, world)
    trainer = Trainer(args.how, args.hidden)
    first, losses, times = 0, [], []
    if args.state and os.path.exists(args.state):
        saved = torch.load(args.state)
        first, losses = saved["step"], saved["losses"]
        trainer.net.load_state_dict(saved["net"])
        trainer.descent.load_state_dict(saved["descent"])
    for step in range(first, args.steps):
        if step == args.die and rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.perf_counter()
        loss = trainer.step(x, y)
        times.append(time.perf_counter() - began)
        losses.append(trainer.mean(loss))
        if args.state and rank == 0:
            torch.save({"step": step + 1, "losses": losses, "net": trainer.net.state_dict(),
                        "descent": trainer.descent.state_dict()}, f"{args.state}.part")
            os.replace(f"{args.state}.part", args.state)
    if rank == 0:
        with open(args.out, "w") as out:
            json.dump({"losses": losses, "times": times, "world": world, "began_at": first}, out)
    trainer.close()


if __name__ == "__main__":
    sys.exit(main())
