"""PyTorch over a fabric: the backend's collectives, training that is Gloo's step for step, torchrun, elastic launches."""
import contextlib
import json
import os
import signal
import socket
import subprocess

from harness import PATIENCE, Skip, equal, needs, wait_until
from ranks import PYTHON, TREE, Process, module, raises

TRAIN = f"{TREE}/tests/python/digits_ddp.py"
DIGITS = f"{TREE}/subprojects/packagecache/digits.csv.gz"
STEPS = 30
# Without an explicit choice of streams, torch 1.13 (Debian 12) fails under Python 3.11, whose enum.Flag hides zero.
TORCHRUN = ("-m", "torch.distributed.run", "--redirects", "1", "--tee", "1")


def torchrun():
    """Its first words. That of torch 2.6 as Debian 13 builds it asks for libuv, and starts nothing."""
    dist = module("torch.distributed")
    try:
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        raise Skip(f"torchrun cannot run here: {error}")
    return TORCHRUN


def digits():
    """The digits file that utils/demo.sh fetches as well: it lies in a package, which is opened and not installed."""
    module("torch")
    module("numpy")
    if not os.path.exists(DIGITS):
        os.makedirs(os.path.dirname(DIGITS), exist_ok=True)
        done = subprocess.run(["sh", "-c", """
            cd "$(mktemp -d)" && apt-get -qq download python3-sklearn && dpkg-deb --fsys-tarfile python3-sklearn_*.deb |
            tar -xOf - --wildcards '*/datasets/data/digits.csv.gz' >"$1.part" && mv "$1.part" "$1" && rm -r "$PWD"
            """, "sh", DIGITS], capture_output=True, check=False)
        if done.returncode:
            raise Skip("the digits could not be downloaded")
    return DIGITS


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start(words, mount, **environment):
    return subprocess.Popen([PYTHON, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={
        **os.environ, "FABRIC_MOUNT": mount.path, "PYTHONWARNINGS": "ignore", **environment})


def finish(processes, seconds=200):
    """What they printed, when all ended well."""
    printed = [process.communicate(timeout=seconds)[0] for process in processes]
    for process, text in zip(processes, printed):
        equal(process.returncode, 0, f"exit status, after {text[-3000:]}")
    return printed


def losses(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)["losses"]


def check_learned(found, expected):
    """The same losses, step for step, within what rounding does to them; and something has been learned."""
    equal(len(found), len(expected), "steps")
    worst = max(abs(a - b) / b for a, b in zip(found, expected))
    assert worst < 1e-4, f"losses differ by {worst:.1e}: {found} and {expected}"
    assert expected[-1] < expected[0] / 3, f"nothing was learned: {expected}"


# --- training ------------------------------------------------------------------------------------------------------

def train(mount, how, world=2):
    """Losses of a training in plain processes."""
    out, port = f"{mount.env.directory}/{how}.json", free_port()
    finish([start([TRAIN, how, digits(), out, "--steps", str(STEPS)], mount, RANK=str(rank), WORLD_SIZE=str(world),
                  MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for rank in range(world)])
    return losses(out)


@needs(seconds=600)
def test_the_backend_the_hook_and_gradients_in_place_learn_what_gloo_learns(mount):
    gloo = train(mount, "gloo")
    for how in ("fabric", "hook", "inplace"):
        check_learned(train(mount, how), gloo)
    equal(os.listdir(mount.file("jobs")), [], "jobs that are left")


@needs(nodes=2, seconds=600)
def test_torchrun_trains_on_two_nodes_what_gloo_learns(fabric):
    launcher = torchrun()
    fabric.wait_up()
    expected, out, port = train(fabric[0], "gloo", 4), f"{fabric.env.directory}/fabric.json", free_port()
    finish([start([*launcher, "--log_dir", f"{fabric.env.directory}/torchrun{node}", "--nnodes", "2",
                   "--node_rank", str(node), "--nproc_per_node", "2", "--master_addr", "127.0.0.1", "--master_port", port,
                   TRAIN, "fabric", digits(), out, "--steps", str(STEPS)], fabric[node]) for node in range(2)])
    check_learned(losses(out), expected)
    for node in range(2):
        equal(os.listdir(fabric[node].file("jobs")), [], "jobs that are left")


@needs(seconds=600)
def test_a_worker_that_is_killed_is_started_again_by_torchrun_and_training_goes_on(mount):
    launcher = torchrun()
    out, state = f"{mount.env.directory}/out.json", f"{mount.env.directory}/state"
    expected = train(mount, "gloo")
    (text,) = finish([start([*launcher, "--log_dir", f"{state}-log", "--standalone", "--nproc_per_node", "2",
                             "--max_restarts", "2", TRAIN, "fabric", digits(), out, "--steps", str(STEPS),
                             "--die", "12", "--state", state], mount)])
    with open(out, encoding="utf-8") as file:
        said = json.load(file)
    assert 0 < said["began_at"] <= 12, f"training began at step {said['began_at']} when it was started again: {text}"
    check_learned(said["losses"], expected)


# --- the backend ---------------------------------------------------------------------------------------------------

def grouped(mount, body, world=2, seconds=60):
    """What body(dist, torch, rank) returns in each process of a group of the backend."""
    module("torch")
    meeting = f"{mount.env.directory}/meeting{os.urandom(4).hex()}"

    def process(rank):
        import datetime
        import torch
        import torch.distributed as dist
        import fabricfs.torch
        os.environ["FABRIC_MOUNT"] = mount.path
        dist.init_process_group("fabric", init_method=f"file://{meeting}", rank=rank, world_size=world,
                                timeout=datetime.timedelta(seconds=seconds))
        assert fabricfs.torch.Group
        result = body(dist, torch, rank)
        dist.destroy_process_group()
        return result

    return [Process(process, rank) for rank in range(world)]


def results(processes):
    return [process.result(40) for process in processes]


def test_the_backend_has_the_collectives_that_training_needs(mount):
    def body(dist, torch, rank):
        mine, found = torch.arange(4.0) + rank, {}
        for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"):
            x = mine.clone()
            dist.all_reduce(x, getattr(dist.ReduceOp, name))
            found[name] = x.tolist()
        x = (torch.arange(4) + rank).int()
        dist.all_reduce(x, dist.ReduceOp.BXOR)
        found["BXOR"] = x.tolist()
        x = torch.tensor([True, False]) if rank else torch.tensor([False, True])
        dist.broadcast(x, 1)
        found["broadcast"] = x.tolist()
        x = torch.arange(6.0).view(2, 3).t() * rank
        dist.broadcast(x, 1)
        found["broadcast gaps"] = x.tolist()
        x = mine.clone()
        dist.reduce(x, 0)
        found["reduce"] = x.tolist()
        rows = [torch.zeros(4) for _ in range(2)]
        dist.all_gather(rows, mine)
        found["all_gather"] = [row.tolist() for row in rows]
        into = torch.zeros(8)
        dist.all_gather_into_tensor(into, mine)
        found["all_gather_into"] = into.tolist()
        rows = [torch.zeros(4) for _ in range(2)] if rank == 1 else None
        dist.gather(mine, rows, 1)
        found["gather"] = [row.tolist() for row in rows or []]
        part = torch.zeros(2)
        dist.scatter(part, [torch.ones(2), 2 * torch.ones(2)] if rank == 0 else None, 0)
        found["scatter"] = part.tolist()
        dist.reduce_scatter(part, [mine[:2].clone(), mine[2:].clone()])
        found["reduce_scatter"] = part.tolist()
        dist.reduce_scatter_tensor(part, mine)
        found["reduce_scatter_tensor"] = part.tolist()
        things = [None, None]
        dist.all_gather_object(things, {"rank": rank, "text": "x" * (1 + 50 * rank)})
        found["objects"] = [thing["rank"] for thing in things]
        dist.barrier()
        return found

    common = {"SUM": [1, 3, 5, 7], "AVG": [0.5, 1.5, 2.5, 3.5], "MIN": [0, 1, 2, 3], "MAX": [1, 2, 3, 4],
              "PRODUCT": [0, 2, 6, 12], "BXOR": [1, 3, 1, 7], "broadcast": [True, False],
              "broadcast gaps": [[0, 3], [1, 4], [2, 5]], "all_gather": [[0, 1, 2, 3], [1, 2, 3, 4]],
              "all_gather_into": [0, 1, 2, 3, 1, 2, 3, 4], "objects": [0, 1]}
    own = [{"reduce": [1, 3, 5, 7], "gather": [], "scatter": [1, 1], "reduce_scatter": [1, 3],
            "reduce_scatter_tensor": [1, 3]},
           {"reduce": [1, 2, 3, 4], "gather": [[0, 1, 2, 3], [1, 2, 3, 4]], "scatter": [2, 2], "reduce_scatter": [5, 7],
            "reduce_scatter_tensor": [5, 7]}]
    for found, mine in zip(results(grouped(mount, body)), own):
        equal(found, {**common, **mine})
    equal(os.listdir(mount.file("jobs")), [], "jobs that are left")


def test_asynchronous_work_is_waited_for_or_heard_of_as_a_future(mount):
    def body(dist, torch, rank):
        things = [torch.full((100,), float(rank + i)) for i in range(5)]
        works = [dist.all_reduce(x, async_op=True) for x in things]
        futures = [work.get_future() for work in works[:2]]
        for work in works:
            assert work.wait()
        assert all(work.is_completed() for work in works)
        return [x[99].item() for x in things], [future.wait()[0][0].item() for future in futures]
    equal(results(grouped(mount, body)), [([1, 3, 5, 7, 9], [1, 3])] * 2)


def test_groups_of_some_ranks_are_jobs_of_their_own(mount):
    def body(dist, torch, rank):
        groups = [dist.new_group([0, 2]), dist.new_group([1, 2])]
        found = []
        for group, ranks in zip(groups, ([0, 2], [1, 2])):
            if rank in ranks:
                x = torch.tensor([float(rank)])
                dist.all_reduce(x, group=group)
                found.append(x.item())
        dist.barrier()
        return found
    equal(results(grouped(mount, body, 3)), [[2], [3], [2, 3]])


def test_a_store_serves_one_group_after_another(mount):
    module("torch")
    port = free_port()

    def process(rank):
        import datetime
        import torch.distributed as dist
        import fabricfs.torch
        os.environ["FABRIC_MOUNT"] = mount.path
        store, jobs = dist.TCPStore("127.0.0.1", int(port), 2, rank == 0), set()
        for _ in range(20):  # now one is ahead, now the other
            fabric = fabricfs.torch.Group(store, rank, 2, datetime.timedelta(minutes=10)).fabric
            jobs.add(fabric.job)
            fabric.close()
        return jobs

    first, second = results([Process(process, rank) for rank in range(2)])
    equal((len(first), second), (20, first), "jobs")


def test_what_a_fabric_has_not_is_an_error(mount):
    def body(dist, torch, rank):
        with raises((RuntimeError, NotImplementedError)):
            dist.send(torch.ones(1), 1 - rank)
        with raises(TypeError, "f32"):
            dist.all_reduce(torch.ones(1, dtype=torch.int16))
        x = torch.ones(1)
        dist.all_reduce(x)
        return x.item()
    equal(results(grouped(mount, body)), [2, 2])


def test_a_group_that_one_process_destroys_is_an_error_for_the_others_at_once(mount):
    def body(dist, torch, rank):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
        if rank == 1:
            del model  # it holds the group
            try:
                raise ValueError("a mistake of the script")
            except ValueError:
                dist.destroy_process_group()
            signal.pause()
        with raises(OSError, "rank 1 asked barrier (as a rank that leaves does)"):
            dist.all_reduce(torch.ones(1))
        return "heard"
    first, second = grouped(mount, body, seconds=600)
    equal(first.result(), "heard")
    second.kill()
    second.outcome()


def test_a_group_that_all_destroy_is_gone_though_others_are_there(mount):
    def body(dist, torch, rank):
        group = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=group)
        dist.destroy_process_group(group)
        del group
        dist.barrier()
        return len(os.listdir(mount.file("jobs")))
    equal(results(grouped(mount, body)), [1, 1], "jobs")


def test_a_process_that_dies_is_named_where_python_or_torch_itself_waits(mount):
    def body(dist, torch, rank):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
        model(torch.ones(1, 10)).sum().backward()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        said = []
        with contextlib.suppress(ConnectionResetError):
            dist.all_reduce(torch.ones(1))
            said.append("no error from all_reduce")
        try:
            model(torch.ones(1, 10)).sum().backward()
            said.append("no error from backward")
        except Exception as error:
            said.append("lost: its process" if "is lost: its process" in str(error) else repr(error))
        return said
    first, second = grouped(mount, body)
    equal(second.outcome(40), (False, None))
    equal(first.result(3 * PATIENCE), ["lost: its process"])
    wait_until(lambda: all("present" not in mount.read("jobs", job, "members") for job in os.listdir(mount.file("jobs"))),
               "nobody takes part any more")
