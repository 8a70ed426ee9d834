#!/usr/bin/python3
"""Train a small classifier of handwritten digits on several processes that share their gradients
through a mounted fabric.

Everything a rank does with the fabric is in `join`, `Rank`, `synchronise` and `run_rank`: mkdir, open, write
and mmap. The rest is numpy, and the checks at the end.

    demo_train.py --data digits.csv.gz MOUNT [MOUNT ...]

With several mounts, each of them a node, the ranks are spread evenly over them. When a node goes down, the
ranks of the others wait for it; its own are started again, up to --restarts times, and get the weights from
one that has them, so that training goes on from the last step. The exit status is 0 only if every line of the
summary holds.
"""
import argparse
import errno
import functools
import os
import signal
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # four ranks share the cores; the matrices are small
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np  # noqa: E402

PIXELS, HIDDEN, DIGITS = 64, 80, 10
SHAPES = ((PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, DIGITS), (DIGITS,))
PARAMETERS = sum(int(np.prod(shape)) for shape in SHAPES)
PATIENCE = 60.0  # seconds that a rank waits for the others to be there again
# What a rank hears when another rank, or another node, is at fault; and when its own node is gone.
OTHERS_FAULT = {errno.EHOSTDOWN, errno.ENOLINK, errno.ECONNRESET, errno.ECANCELED, errno.ESTALE, errno.EPROTO,
                errno.ETIMEDOUT}
OWN_NODES_FAULT = {errno.ENOTCONN, errno.ECONNABORTED, errno.ESHUTDOWN, errno.ENODEV, errno.ENOENT, errno.EIO}
OWN_NODE_GONE = 3  # exit status
LEARNING_RATE, MOMENTUM = np.float32(0.2), np.float32(0.9)


# --- the fabric: files only -------------------------------------------------------------------------------

def mkdir(path):
    try:
        os.mkdir(path)
    except FileExistsError:
        pass  # another rank was first, or an earlier run of this one: both are fine


def wait_mounted(mount):
    """Returns when the node is there; it may just be starting again."""
    end = time.monotonic() + PATIENCE
    while not os.path.isdir(f"{mount}/jobs"):
        if time.monotonic() > end:
            raise TimeoutError(f"{mount} is not mounted")
        time.sleep(0.05)


def join(mount, job, rank, world):
    """Every rank says the same three things, in any order among the ranks; returns the rank's directory."""
    job_dir = f"{mount}/jobs/{job}"
    mkdir(job_dir)
    with open(f"{job_dir}/config", "w") as config:
        config.write(f"world={world}\ndtype=f32\nsize={4 * PARAMETERS}\n")
    mkdir(f"{job_dir}/ranks/{rank}")
    return f"{job_dir}/ranks/{rank}"


class Rank:
    """The gradient memory of one rank as a numpy array, and the trigger files that work on it."""

    def __init__(self, directory):
        self.gradient = np.memmap(f"{directory}/buffer", dtype=np.float32, mode="r+", shape=(PARAMETERS,))
        self.triggers = {name: os.open(f"{directory}/{name}", os.O_RDWR) for name in ("allreduce", "broadcast")}

    def average(self):
        """Returns when `gradient` holds the average over all ranks."""
        os.write(self.triggers["allreduce"], b"op=avg")

    def agree(self, op, number):
        """The min or max of every rank's number."""
        self.gradient[0] = number
        os.write(self.triggers["allreduce"], f"op={op} count=1".encode())
        return int(self.gradient[0])

    def broadcast(self, array, root):
        """Makes the array the root's on every rank."""
        self.gradient[:] = array
        os.write(self.triggers["broadcast"], f"root={root}".encode())
        array[:] = self.gradient

    def close(self):
        """Ends the promise to take part; ending without it is the loss of a rank."""
        for trigger in self.triggers.values():
            os.close(trigger)


def synchronise(me, rank, state, world):
    """Whoever is furthest gives its state to all: at the start, and after something went wrong."""
    furthest = me.agree("max", state.step)
    root = me.agree("min", rank if state.step == furthest else world)
    me.broadcast(state.weights, root)
    me.broadcast(state.velocity, root)
    state.step = furthest


# --- the model: two layers, tanh and softmax --------------------------------------------------------------

def views(flat):
    """The arrays of SHAPES inside one flat array, without copying."""
    ends = np.cumsum([int(np.prod(shape)) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), SHAPES)]


def initial_weights():
    random = np.random.default_rng(1)
    weights = np.zeros(PARAMETERS, np.float32)
    for matrix in views(weights)[::2]:
        matrix[:] = random.normal(size=matrix.shape) / np.sqrt(matrix.shape[0])
    return weights


def forward(weights, x):
    w1, b1, w2, b2 = views(weights)
    hidden = np.tanh(x @ w1 + b1)
    scores = hidden @ w2 + b2
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, p / p.sum(axis=1, keepdims=True)


def gradient_into(out, weights, x, y):
    """Writes the gradient of the mean loss over (x, y) to `out`; returns the loss."""
    hidden, p = forward(weights, x)
    rows = np.arange(len(y))
    loss = -np.log(p[rows, y]).mean()
    p[rows, y] -= 1
    p /= np.float32(len(y))
    g_w1, g_b1, g_w2, g_b2 = views(out)
    np.dot(hidden.T, p, out=g_w2)
    p.sum(axis=0, out=g_b2)
    back = (p @ views(weights)[2].T) * (1 - hidden * hidden)
    np.dot(x.T, back, out=g_w1)
    back.sum(axis=0, out=g_b1)
    return loss


def accuracy(weights, x, y):
    return float((forward(weights, x)[1].argmax(axis=1) == y).mean())


class State:
    """How far gradient descent with momentum is."""

    def __init__(self):
        self.step, self.weights, self.velocity = 0, initial_weights(), np.zeros(PARAMETERS, np.float32)

    def descend(self, gradient):
        self.velocity *= MOMENTUM
        self.velocity -= LEARNING_RATE * gradient
        self.weights += self.velocity
        self.step += 1


def train_alone(x, y, steps):
    state, gradient = State(), np.empty(PARAMETERS, np.float32)
    while state.step < steps:
        gradient_into(gradient, state.weights, x, y)
        state.descend(gradient)
    return state.weights


# --- the data ---------------------------------------------------------------------------------------------

def load(path, world):
    """8x8 grey pixels and a digit a line. Every fifth is held out; the rest is cut to equal shards."""
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    x, y = table[:, :PIXELS] / 16 - 0.5, table[:, PIXELS].astype(np.int64)
    held_out = np.arange(len(y)) % 5 == 4
    usable = (~held_out).sum() // world * world
    return (x[~held_out][:usable], y[~held_out][:usable]), (x[held_out], y[held_out])


# --- running the ranks ------------------------------------------------------------------------------------

def progress_line(started, steps, test):
    """A callback for `train` that tells how far it is, on one line of a terminal, on a few lines of a log."""
    def tell(step, loss, weights):
        if step % 25 and step != steps:
            return
        now = time.monotonic() - started
        line = (f"step {step:4d}/{steps}  loss {loss:.4f}  held-out {accuracy(weights, *test):6.2%}"
                f"  {now / step * 1e3:6.2f} ms/step")
        if sys.stdout.isatty():
            print(f"\r{line}", end="\n" if step == steps else "", flush=True)
        elif step % 100 == 0 or step == steps:
            print(line, flush=True)
    return tell


def train(me, rank, world, steps, shard, tell):
    """Trains with the others until `steps`; what goes wrong with another rank or node is waited for."""
    state, in_step, last_well = State(), False, time.monotonic()
    while state.step < steps:
        try:
            if not in_step:
                synchronise(me, rank, state, world)
            loss = gradient_into(me.gradient, state.weights, *shard)
            me.average()
        except OSError as error:
            if error.errno not in OTHERS_FAULT or time.monotonic() - last_well > PATIENCE:
                raise
            if in_step and rank == 0:
                print(f"rank 0 waits at step {state.step}: {error.strerror}", flush=True)
            in_step = False
            time.sleep(0.02)
            continue
        if not in_step and state.step and rank == 0:
            print(f"rank 0 goes on from step {state.step}", flush=True)
        in_step, last_well = True, time.monotonic()
        state.descend(me.gradient)
        tell(state.step, loss, state.weights)
    return state.weights


def run_rank(mount, job, rank, world, steps, train_set, test):
    x, y = train_set
    shard = slice(rank * len(y) // world, (rank + 1) * len(y) // world)
    wait_mounted(mount)
    me = Rank(join(mount, job, rank, world))
    tell = progress_line(time.monotonic(), steps, test) if rank == 0 else lambda *_: None
    weights = train(me, rank, world, steps, (x[shard], y[shard]), tell)
    me.close()
    me.gradient[:] = weights  # left in the buffer, where whoever may read the job finds them


def start(function, *args):
    """Runs function(*args) in a process of its own; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        function(*args)
        sys.stdout.flush()
        os._exit(0)
    except KeyboardInterrupt:
        os._exit(130)
    except OSError as error:
        print(f"demo_train: rank {args[2]}: {error}", file=sys.stderr, flush=True)
        os._exit(OWN_NODE_GONE if error.errno in OWN_NODES_FAULT else 1)
    except BaseException as error:
        print(f"demo_train: rank {args[2]}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def is_own_node_gone(status):
    """A mapping of memory whose daemon was killed may end the process as well."""
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == OWN_NODE_GONE or \
        os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGBUS


def run_all(ranks, restarts):
    """Runs functions of no argument that start a rank each and return its pid. One whose node is gone is started
    again, `restarts` times in all. Returns how often that was, or None when a rank failed and all were ended."""
    running, done = {begin(): begin for begin in ranks}, 0
    try:
        while running:
            pid, status = os.wait()
            begin = running.pop(pid)
            if status == 0:
                continue
            if done == restarts or not is_own_node_gone(status):
                return None
            done += 1
            running[begin()] = begin
    finally:
        for pid in running:
            os.kill(pid, signal.SIGTERM)
        for pid in running:
            os.waitpid(pid, 0)
    return done


def leave(job_dir):
    """rmdir every rank, then the job; on another node's mount it may be gone already."""
    try:
        for rank in os.listdir(f"{job_dir}/ranks"):
            os.rmdir(f"{job_dir}/ranks/{rank}")
        os.rmdir(job_dir)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def stats_of(job_dir):
    """The `name value` lines of a job's stats."""
    with open(f"{job_dir}/stats") as lines:
        return dict(line.split(None, 1) for line in lines.read().splitlines() if " " in line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("mounts", metavar="MOUNT", nargs="+")
    parser.add_argument("--data", required=True, help="digits.csv.gz")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--restarts", type=int, default=0,
                        help="how often ranks of a node that went down are started again")
    parser.add_argument("--job", default="digits")
    args = parser.parse_args()

    world, steps = args.ranks, args.steps
    mounts = [args.mounts[rank * len(args.mounts) // world] for rank in range(world)]
    train_set, test = load(args.data, world)
    print(f"{len(train_set[1])} digits to learn from, {len(test[1])} held out, {PARAMETERS} weights, "
          f"{world} processes on {len(args.mounts)} mount(s)", flush=True)

    began = time.monotonic()
    ranks = [functools.partial(start, run_rank, mounts[rank], args.job, rank, world, steps, train_set, test)
             for rank in range(world)]
    restarts = run_all(ranks, args.restarts)
    if restarts is None:
        return 1
    step_ms = (time.monotonic() - began) / steps * 1e3

    results = [np.fromfile(f"{mounts[rank]}/jobs/{args.job}/ranks/{rank}/buffer", np.float32)
               for rank in range(world)]
    stats = stats_of(f"{mounts[0]}/jobs/{args.job}")
    for mount in args.mounts:
        leave(f"{mount}/jobs/{args.job}")

    print("the same training in one process ...", flush=True)
    alone = train_alone(*train_set, steps)

    learned = accuracy(results[0], *test)
    difference = max(float(np.abs(result - alone).max()) for result in results)
    identical = all(result.tobytes() == results[0].tobytes() for result in results)
    latency = [float(stats[f"latency_{p}_us"]) for p in ("p50", "p99", "p99.9")]
    checks = (
        (f"accuracy on held-out digits          {learned:.2%} (at least 95 %)", learned >= 0.95),
        (f"largest difference to one process    {difference:.1e} (at most 1e-4)", difference <= 1e-4),
        (f"weights of all ranks bit-identical   {'yes' if identical else 'no'}", identical),
        (f"step time                            {step_ms:.2f} ms", True),
        *([(f"ranks that were started again        {restarts} (at least 1)", restarts > 0)] if args.restarts else []),
        ("allreduce p50 / p99 / p99.9          {:.0f} / {:.0f} / {:.0f} us".format(*latency),
         0 < latency[0] <= latency[1] <= latency[2]),
    )
    for line, holds in checks:
        print(("ok    " if holds else "FALSE ") + line)
    return 0 if all(holds for _, holds in checks) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
