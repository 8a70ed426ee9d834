"""A fabric for torch.distributed: a backend, a communication hook of DistributedDataParallel, and gradients in place.

    import fabricfs.torch
    torch.distributed.init_process_group("fabric")     # then DDP, all_reduce, all_gather and so on, as with Gloo

    model.register_comm_hook(None, fabricfs.torch.averaging(fabric))    # DDP of any backend, gradients by a fabric

    flat = fabricfs.torch.gradients(model, fabric)     # without DDP: backward() itself writes to the buffer
"""
import atexit
import collections
import datetime
import queue
import sys
import threading
import uuid
import weakref
from typing import Any, Callable, List, Sequence

import torch
import torch.distributed as dist

from fabricfs import launch
from fabricfs.fabric import Fabric, Work

Tensor = torch.Tensor
OPS = {"SUM": "sum", "AVG": "avg", "MIN": "min", "MAX": "max", "PRODUCT": "prod", "BAND": "band", "BOR": "bor",
       "BXOR": "bxor"}
LINGER_SECONDS = 60  # of a job whose processes were all killed: its name is its own, nobody can come back to it
GOODBYE_SECONDS = 10  # for the others to destroy a group as well
WORKS_KEPT = 256


# --- the end of an operation, for those who do not wait but want to be told ---------------------------------------

class Completer:
    """A thread that waits in their place. One for all: operations end about in the order they were asked for."""

    def __init__(self) -> None:
        self._futures: "queue.SimpleQueue[torch.futures.Future[None]]" = queue.SimpleQueue()
        threading.Thread(target=self._run, name="fabricfs", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._futures.get().set_result(None)

    def future(self, wait: Callable[[], Any], devices: "Sequence[torch.device]" = ()) -> "torch.futures.Future[Any]":
        """A future of what wait() returns. It is called in a callback, since only an exception that leaves one is an
        error to torch's own code as well."""
        begun: "torch.futures.Future[None]" = torch.futures.Future(devices=list(devices))
        future = begun.then(lambda _: wait())
        self._futures.put(begun)
        return future


# --- the hook -----------------------------------------------------------------------------------------------------

def averaging(fabric: Fabric) -> "Callable[[Any, dist.GradBucket], torch.futures.Future[Tensor]]":
    """A hook for register_comm_hook: buckets are averaged over the ranks of the fabric while backward() goes on."""
    completer = Completer()
    mine: "dict[int, Tensor]" = {}  # memory in the buffer, for each bucket

    def hook(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        given, index = bucket.buffer(), bucket.index()
        if index not in mine or mine[index].shape != given.shape or mine[index].dtype != given.dtype:
            mine[index] = fabric.tensor(tuple(given.shape), given.dtype)
        mean = mine[index].copy_(given)
        work = fabric.allreduce(mean, "avg", async_op=True)

        def wait() -> Tensor:
            work.wait()
            return mean if given.device.type == "cpu" else given.copy_(mean)

        return completer.future(wait, () if given.device.type == "cpu" else [given.device])
    return hook


def gradients(model: torch.nn.Module, fabric: Fabric) -> Tensor:
    """Puts the gradients of a model into the buffer: one flat tensor, of which every `grad` is a view. Zero it before
    each backward(); never set a grad to None (zero_grad(set_to_none=False))."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if len({parameter.dtype for parameter in parameters}) != 1 or any(p.device.type != "cpu" for p in parameters):
        raise TypeError("the parameters must be of one dtype, and on the host")
    flat: Tensor = fabric.tensor(sum(parameter.numel() for parameter in parameters), parameters[0].dtype)
    for parameter, view in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
        parameter.grad = view.view(parameter.shape)
    return flat


# --- the backend --------------------------------------------------------------------------------------------------

class _Work(dist._Work):
    """An operation as torch knows it. finish(): called once after success, moves the result to where it belongs."""

    def __init__(self, work: Work, completer: Completer, tensors: "List[Tensor]", finish: Callable[[], Any]):
        super().__init__()
        self._work, self._completer, self._tensors, self._finish = work, completer, tensors, finish
        self._lock = threading.Lock()

    def wait(self, timeout: Any = None) -> bool:
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else 0
        self._work.wait(seconds or None)
        with self._lock:
            finish, self._finish = self._finish, _nothing
            finish()
        return True

    def is_completed(self) -> bool:
        return self._work.done()

    def result(self) -> "List[Tensor]":
        self.wait()
        return self._tensors

    def get_future(self) -> "torch.futures.Future[List[Tensor]]":
        return self._completer.future(self.result)


def _nothing() -> None:
    pass


def _leave(fabric: Fabric) -> None:
    """After destroy_process_group(). The others may let go of the group later or never, and a process that ends for an
    exception must not be held up: so it does not stay for long."""
    failed = sys.exc_info()[1] or getattr(sys, "last_value", None)
    fabric.close(wait=0 if failed else GOODBYE_SECONDS)


def _leave_at_exit(group: "weakref.ref[Group]") -> None:
    """A model may hold a destroyed group until the process ends. One that was not destroyed is a lost rank."""
    here = group()
    if here is not None and not dist.is_initialized():
        _leave(here.fabric)


def _bytes(x: Tensor) -> Tensor:
    """The elements in row order as bytes; the tensor's own memory when it is dense."""
    return x.detach().reshape(-1).view(torch.uint8)


def _from_bytes(x: Tensor, flat: Tensor) -> None:
    if x.numel():
        x.detach().copy_(flat.view(x.dtype).view(x.shape))


class Group(dist.ProcessGroup):
    """A process group whose processes are the ranks of a job of their own; `fabric` is this one's.

    send, recv and alltoall are not there: a fabric has collectives."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta):
        super().__init__(rank, size)
        key = f"fabricfs group {store.add(f'fabricfs rank {rank}', 1)}"  # the same store may have served groups before
        if rank == 0:  # the same launch may have other groups
            store.set(key, f"{(launch.job_name() or 'torch')[:50]}-{uuid.uuid4().hex[:12]}")
        self.fabric = Fabric(store.get(key).decode(), rank, size, timeout=timeout.total_seconds(),
                             linger=LINGER_SECONDS)
        weakref.finalize(self, _leave, self.fabric).atexit = False
        atexit.register(_leave_at_exit, weakref.ref(self))
        self._completer = Completer()
        # torch's C++ code holds the C++ half of a Work only; ours must be there until that has been waited for.
        self._works: "collections.deque[_Work]" = collections.deque(maxlen=WORKS_KEPT)

    def getBackendName(self) -> str:
        return "fabric"

    name = getBackendName

    def _begun(self, work: Work, tensors: "List[Tensor]", finish: Callable[[], Any] = _nothing) -> _Work:
        self._works.append(_Work(work, self._completer, tensors, finish))
        return self._works[-1]

    @staticmethod
    def _op(opts: Any) -> str:
        for name, op in OPS.items():
            if not opts or opts.reduceOp == getattr(dist.ReduceOp, name):
                return op
        raise ValueError(f"a fabric has no such operation; it has {', '.join(OPS)}")

    def allreduce(self, tensors: "List[Tensor]", opts: Any = None) -> _Work:
        (x,) = tensors
        return self._begun(self.fabric.allreduce(x, self._op(opts), async_op=True), tensors)

    def allreduce_coalesced(self, tensors: "List[Tensor]", opts: Any = None) -> _Work:
        for x in tensors[:-1]:
            self.allreduce([x], opts).wait()
        return self._begun(self.allreduce(tensors[-1:], opts)._work, tensors)

    def reduce(self, tensors: "List[Tensor]", opts: Any) -> _Work:
        (x,) = tensors
        if self.rank() != opts.rootRank:
            x = x.detach().clone()  # only the root's is to change
        return self._begun(self.fabric.allreduce(x, self._op(opts), async_op=True), tensors)

    def broadcast(self, tensors: "List[Tensor]", opts: Any) -> _Work:
        (x,) = tensors
        flat = _bytes(x)
        return self._begun(self.fabric.broadcast(flat, opts.rootRank, async_op=True), tensors,
                           _nothing if flat.data_ptr() == x.data_ptr() else lambda: _from_bytes(x, flat))

    def _gathered(self, x: Tensor, finish: "Callable[[List[Tensor]], Any]", tensors: "List[Tensor]") -> _Work:
        """All ranks' x, as rows of bytes, for finish."""
        mine = _bytes(x)
        rows = self.fabric.tensor((self.size(), mine.numel()), torch.uint8)
        rows[self.rank()] = mine
        return self._begun(self.fabric.allgather(rows, async_op=True), tensors, lambda: finish(list(rows)))

    def allgather(self, outputs: "List[List[Tensor]]", inputs: "List[Tensor]", opts: Any = None) -> _Work:
        (into,), (x,) = outputs, inputs
        return self._gathered(x, lambda rows: [_from_bytes(*pair) for pair in zip(into, rows)], into)

    def _allgather_base(self, output: Tensor, x: Tensor, opts: Any = None) -> _Work:
        return self._gathered(x, lambda rows: _from_bytes(output, torch.cat(rows)), [output])

    def gather(self, outputs: "List[List[Tensor]]", inputs: "List[Tensor]", opts: Any) -> _Work:
        (x,), into = inputs, outputs[0] if self.rank() == opts.rootRank else []
        return self._gathered(x, lambda rows: [_from_bytes(*pair) for pair in zip(into, rows)], into)

    def scatter(self, outputs: "List[Tensor]", inputs: "List[List[Tensor]]", opts: Any) -> _Work:
        (x,) = outputs
        rows = self.fabric.tensor((self.size(), x.numel() * x.element_size()), torch.uint8)
        if self.rank() == opts.rootRank:
            for row, part in zip(rows, inputs[0]):
                row.copy_(_bytes(part))
        return self._begun(self.fabric.broadcast(rows, opts.rootRank, async_op=True), outputs,
                           lambda: _from_bytes(x, rows[self.rank()]))

    def _scattered(self, rows: Tensor, output: Tensor, opts: Any) -> _Work:
        mine = rows.view(-1)[self.fabric.part(rows.numel())]
        return self._begun(self.fabric.reduce_scatter(rows, self._op(opts), async_op=True), [output],
                           lambda: output.copy_(mine.view(output.shape)))

    def reduce_scatter(self, outputs: "List[Tensor]", inputs: "List[List[Tensor]]", opts: Any = None) -> _Work:
        (output,), (parts,) = outputs, inputs
        rows = self.fabric.tensor((self.size(), output.numel()), output.dtype)
        for row, part in zip(rows, parts):
            row.copy_(part.reshape(-1))
        return self._scattered(rows, output, opts)

    def _reduce_scatter_base(self, output: Tensor, x: Tensor, opts: Any = None) -> _Work:
        rows = self.fabric.tensor(x.numel(), x.dtype).copy_(x.detach().reshape(-1))
        return self._scattered(rows, output, opts)

    def barrier(self, opts: Any = None) -> _Work:
        return self._begun(self.fabric.barrier(async_op=True), [])


# torch 2 asks which tensors it takes; those of a GPU go through the host's memory.
_devices = {} if torch.__version__ < "2" else {"devices": ["cpu", "cuda"]}
dist.Backend.register_backend("fabric", Group, **_devices)
