"""One rank of a job: its directory in the mount, its buffer, its triggers.

Every method is a few operations on files; `utils/pages/scripts.md` says what those mean. An operation is one write to
a trigger. One that is waited for is a blocking write. One that is not (`async_op`) is a write to a descriptor with
O_NONBLOCK, and `Work` reads the result from the same descriptor, which belongs to that operation alone until then.
"""
import collections
import contextlib
import errno
import mmap
import os
import select
import threading
import time
import warnings
import weakref
from typing import Any, Callable, Optional, Tuple, Union

from fabricfs import launch
from fabricfs.arrays import ELEMENT_BYTES, FORMATS, LONG_NAMES, View, address_of, name_of, view_of
from fabricfs.errors import FabricError, Member, failure, members, words
from fabricfs.memory import Memory, close

Shape = Union[int, Tuple[int, ...]]
Over = Callable[[bool], None]  # called once with whether it succeeded: moves the data back
NOTHING = View("", 0, 0, lambda _: None, lambda _: None)  # what a barrier works on
COMES_BACK = {errno.ECONNRESET, errno.EHOSTDOWN, errno.ENOLINK, errno.ECANCELED}  # when whoever is lost starts again
LOOK_AGAIN_SECONDS = 0.02
TAKE_OVER_SECONDS = 2.0  # for the end of the process that had this rank before


class Work:
    """An operation that has been asked for. Its arrays are neither read nor written until `wait` has returned."""

    def __init__(self, fabric: "Fabric", what: str, over: Over = lambda _: None,
                 trigger: "Optional[tuple[str, int]]" = None):
        self._fabric, self._what, self._over = fabric, what, over
        self._trigger = trigger  # kind and descriptor; None when the result has been read
        self._error: Optional[Exception] = None
        self._lock = threading.Lock()

    def done(self) -> bool:
        """Whether `wait` returns at once."""
        trigger = self._trigger
        return not trigger or not self._lock.locked() and _is_readable(trigger[1], 0)

    def wait(self, timeout: Optional[float] = None) -> None:
        """Returns when the result is there; raises the FabricError when there is none. After `timeout` seconds it
        raises TimeoutError, and the operation goes on. Any thread may wait, and again."""
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError(f"{self._what} is not over within {timeout:g} s")
        try:
            if self._trigger and timeout is not None and not _is_readable(self._trigger[1], timeout):
                raise TimeoutError(f"{self._what} is not over within {timeout:g} s")
            if self._trigger:
                self._settle(*self._trigger)
        finally:
            self._lock.release()
        if self._error:
            raise self._error

    def _settle(self, kind: str, fd: int) -> None:
        os.set_blocking(fd, True)
        try:
            said = words(os.read(fd, 4096).decode())
            if said["result"] != "ok":
                self._error = self._fabric._failure(getattr(errno, said["result"], errno.EIO), self._what, said)
        except OSError as error:
            self._error = self._fabric._failure(error.errno, self._what)
        self._trigger = None
        self._fabric._put_back(kind, fd, self)
        self._over(not self._error)


class Fabric:
    """This process as one rank of a job. Use it in `with`, or call `close()` at the end: a process that ends without
    is a rank that was lost, and the others are told so.

    job, rank, world: taken from torchrun, mpirun or srun when not given. mount: FABRIC_MOUNT, or /fabric. wait: come
    back when all ranks are there. What else is given goes to the job's config: timeout=60, wire="bf16"."""

    def __init__(self, job: Optional[str] = None, rank: Optional[int] = None, world: Optional[int] = None, *,
                 mount: Optional[str] = None, wait: bool = True, **config: object):
        self.job, self.rank, self.world, self.local_rank, self.local_world = launch.place(job, rank, world)
        self.mount = mount or os.environ.get("FABRIC_MOUNT") or "/fabric"
        self.path = f"{self.mount}/jobs/{self.job}"
        self.pinned = False  # whether tensors are pinned for CUDA
        in_force = self._join({"world": self.world, **config})
        self.timeout = float(in_force["timeout"])  # seconds that an operation waits for its ranks
        self._depth = int(in_force["depth"])       # operations that may be queued
        self._open: "set[int]" = set()                                      # triggers
        self._idle: "dict[str, list[int]]" = collections.defaultdict(list)  # those that nobody waits on, by kind
        self._works: "list[Work]" = []                                      # that are not over, oldest first
        self._lock = threading.Lock()                                       # of these three
        self._pid = os.getpid()
        self._memory = Memory(self._file("buffer"))
        self._put_back("allreduce", self._trigger("allreduce"))  # from here on it takes part
        self._finalizer = weakref.finalize(self, _leave, self._pid, self._open, self._memory, self._file())
        self._finalizer.atexit = False
        if wait:
            self.rendezvous()

    # --- memory that lives in the buffer ---------------------------------------------------------------------

    def memory(self, count: int, dtype: str = "f32") -> memoryview:
        """`count` zeros in the buffer, for those who have no numpy."""
        if dtype not in FORMATS:
            raise TypeError(f"Python itself has no elements of {dtype}; it has {', '.join(FORMATS)}")
        return memoryview(self._memory.take(count * ELEMENT_BYTES[dtype])).cast("B")[
            :count * ELEMENT_BYTES[dtype]].cast(FORMATS[dtype])

    def array(self, shape: Shape, dtype: Any = "f32") -> Any:
        """A numpy array of zeros that lives in the buffer: operations on it, or on dense parts of it, copy nothing."""
        import numpy
        dtype = numpy.dtype(LONG_NAMES.get(dtype, dtype) if isinstance(dtype, str) else dtype)
        name_of(dtype)
        return numpy.ndarray(shape, dtype, self._memory.take(dtype.itemsize * _count(shape)))

    def tensor(self, shape: Shape, dtype: Any = "f32") -> Any:
        """A torch tensor of zeros that lives in the buffer, pinned when there is CUDA (`pinned` says so)."""
        import torch
        dtype = getattr(torch, LONG_NAMES.get(dtype, dtype)) if isinstance(dtype, str) else dtype
        count = _count(shape)
        piece = self._memory.take(count * ELEMENT_BYTES[name_of(dtype)])
        cuda: Any = torch.cuda
        if cuda.is_available():
            self._pin(cuda.cudart(), piece)
        flat = torch.frombuffer(piece, dtype=dtype, count=count) if count else torch.zeros(0, dtype=dtype)
        return flat.view(shape)

    def _pin(self, cuda: Any, piece: mmap.mmap) -> None:
        """Page-locks a piece, so that the GPU reads and writes it by itself."""
        if self._buffer_mode() != "passthrough":
            warnings.warn("memory of a fabric in coherent mode cannot be pinned; copies to and from the GPU are slower")
            return
        address = address_of(piece)
        result = int(cuda.cudaHostRegister(address, len(piece), 0))
        if result:
            warnings.warn(f"CUDA did not pin memory of the fabric (error {result}); copies are slower")
            return
        self.pinned = True
        weakref.finalize(piece, cuda.cudaHostUnregister, address).atexit = False

    def _buffer_mode(self) -> str:
        with open(f"{self.mount}/stats") as stats:
            return next(line.split()[1] for line in stats if line.startswith("buffer_mode "))

    # --- operations --------------------------------------------------------------------------------------------

    def allreduce(self, x: Any, op: str = "sum", async_op: bool = False, *, tag: str = "") -> Work:
        """Every rank's x becomes the combination of all: sum, avg, min, max, prod, and band, bor, bxor of integers.

        x is an array, tensor or buffer, and is changed in place. What lies in the buffer is not copied; the rest is
        moved through it. The Work is over unless async_op."""
        return self._run("allreduce", f" op={op}", view_of(x), async_op, tag)

    def reduce_scatter(self, x: Any, op: str = "sum", async_op: bool = False, *, tag: str = "") -> Work:
        """The elements `part(count)` of this rank's x become the combination of all; the others stay."""
        return self._run("reduce_scatter", f" op={op}", view_of(x), async_op, tag)

    def allgather(self, x: Any, async_op: bool = False, *, tag: str = "") -> Work:
        """Every rank's x becomes all parts, each from the rank whose part it is."""
        return self._run("allgather", "", view_of(x), async_op, tag)

    def broadcast(self, x: Any, root: int = 0, async_op: bool = False, *, tag: str = "") -> Work:
        """Every rank's x becomes the root's."""
        return self._run("broadcast", f" root={root}", view_of(x), async_op, tag)

    def barrier(self, async_op: bool = False, *, tag: str = "") -> Work:
        """All ranks have come."""
        return self._run("barrier", "", NOTHING, async_op, tag)

    def part(self, count: int, rank: Optional[int] = None) -> slice:
        """Which of `count` elements, in row order, are this rank's, or another's."""
        rank = self.rank if rank is None else rank
        return slice(rank * count // self.world, (rank + 1) * count // self.world)

    def _run(self, kind: str, words: str, view: View, async_op: bool, tag: str) -> Work:
        piece, offset = self._locate(view)
        if view is not NOTHING:
            words += f" dtype={view.dtype} count={view.count} offset={offset}"
        words += f" tag={tag}" if tag else ""
        if piece:
            view.load(piece)

        def over(succeeded: bool) -> None:
            if piece and succeeded:
                view.store(piece)
            if piece:
                self._memory.give(piece)

        what = f"{kind}{words} of rank {self.rank} in job {self.job}"
        return (self._queue if async_op else self._wait)(kind, what, (words or "\n").encode(), over)

    def _locate(self, view: View) -> "tuple[Optional[mmap.mmap], int]":
        """A piece to move the elements through when they are not in the buffer, and where in it they are then."""
        size = view.count * ELEMENT_BYTES.get(view.dtype, 0)
        offset = self._memory.find(view.address, size) if view.address else None
        if not size or (offset is not None and offset % ELEMENT_BYTES[view.dtype] == 0):
            return None, offset or 0
        piece = self._memory.borrow(size)
        return piece, self._memory.find(address_of(piece), size) or 0

    def _wait(self, kind: str, what: str, command: bytes, over: Over) -> Work:
        fd, succeeded = self._trigger(kind), False
        try:
            os.set_blocking(fd, True)
            os.write(fd, command)
            succeeded = True
        except OSError as error:
            raise self._failure(error.errno, what) from None
        finally:
            self._put_back(kind, fd)
            over(succeeded)
        return Work(self, what)

    def _queue(self, kind: str, what: str, command: bytes, over: Over) -> Work:
        fd = self._trigger(kind)
        os.set_blocking(fd, False)
        work = Work(self, what, over, (kind, fd))
        while len(self._works) >= self._depth:
            with contextlib.suppress(FabricError):  # its own wait() raises it
                self._works[0].wait()
        try:
            os.write(fd, command)
        except OSError as error:
            self._put_back(kind, fd)
            over(False)
            raise self._failure(error.errno, what) from None
        with self._lock:
            self._works.append(work)
        return work

    # --- triggers ----------------------------------------------------------------------------------------------

    def _file(self, name: str = "") -> str:
        return f"{self.path}/ranks/{self.rank}/{name}".rstrip("/")

    def _trigger(self, kind: str) -> int:
        """An open trigger that nobody else waits on."""
        if os.getpid() != self._pid or (self._open and not self._finalizer.alive):
            raise ValueError(f"this Fabric was closed, or is another process's (rank {self.rank} is {self._pid})")
        with self._lock:
            if not self._idle[kind]:
                self._idle[kind].append(os.open(self._file(kind), os.O_RDWR))
                self._open.add(self._idle[kind][-1])
            return self._idle[kind].pop()

    def _put_back(self, kind: str, fd: int, work: Optional[Work] = None) -> None:
        with self._lock:
            self._idle[kind].append(fd)
            if work:
                self._works.remove(work)

    # --- the others --------------------------------------------------------------------------------------------

    def members(self) -> "list[Member]":
        """Every rank: where it is, and how far."""
        with open(f"{self.path}/members") as file:
            return members(file.read())

    def rendezvous(self, timeout: Optional[float] = None) -> None:
        """Returns when all ranks are there and have called this: at the start, and again after a rank or node was lost
        and started anew. Waits as long as the job's timeout, for each that is yet to come back."""
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            try:
                self.barrier()
                return
            except FabricError as error:
                if error.errno not in COMES_BACK or time.monotonic() > end:
                    raise
            time.sleep(LOOK_AGAIN_SECONDS)

    def _failure(self, number: Optional[int], what: str, said: "Optional[dict[str, str]]" = None) -> FabricError:
        """The exception, with the line of `status` that belongs to it. said: the words of a queued one's result."""
        number = number or errno.EIO
        mark = f"result={errno.errorcode.get(number, number)} "
        if said:
            mark = f"seq={said['seq']} {'tag=' + said['tag'] + ' ' if 'tag' in said else ''}op="
        lines: "list[str]" = []
        now: "list[Member]" = []
        with contextlib.suppress(OSError):
            with open(self._file("status")) as file:
                lines = [line.strip() for line in file if mark in line]
            now = self.members()
        return failure(number, what, lines[-1] if lines else "", now)

    # --- coming and going ----------------------------------------------------------------------------------------

    def _join(self, config: "dict[str, object]") -> "dict[str, str]":
        """The same three steps for every rank, whoever is first. Returns the job's config."""
        while os.path.isfile(f"{self.mount}/version"):  # a bare directory may have jobs/, too
            try:
                _mkdir(self.path)
                self._configure("".join(f"{key}={value}\n" for key, value in config.items()))
                if not _mkdir(self._file()):
                    self._take_over()
                with open(f"{self.path}/config") as file:
                    return dict(line.strip().split(" = ", 1) for line in file)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise  # else the last rank of an earlier run has just removed the job
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.stat(f"{self.mount}/version")  # a mount whose daemon has ended says so
        raise FileNotFoundError(errno.ENOENT, f"no fabric is mounted at {self.mount}")

    def _configure(self, lines: str) -> None:
        with open(f"{self.path}/config", "wb", buffering=0) as file:
            try:
                file.write(lines.encode())
            except OSError as error:
                with open(f"{self.mount}/events") as events:
                    why = [line for line in events if f" jobs/{self.job} config: " in line]
                raise FabricError(error.errno, f"job {self.job}: {why[-1].split(' config: ')[1].strip()}" if why
                                  else error.strerror) from None

    def _take_over(self) -> None:
        """The rank's directory exists: it is ours when no process takes part with it any more."""
        end = time.monotonic() + TAKE_OVER_SECONDS
        while (mine := self.members()[self.rank]).state == "present":
            if time.monotonic() > end:
                raise FileExistsError(errno.EEXIST, f"rank {self.rank} of job {self.job} is process {mine.pid} on node "
                                                    f"{mine.node}; another run with this name needs another job=")
            time.sleep(LOOK_AGAIN_SECONDS)

    def close(self, wait: float = threading.TIMEOUT_MAX) -> None:
        """Leaves the job after the operations that are under way, and together with the others: it asks for a barrier, so
        that a rank that goes on instead, and would wait for this one, hears at once that they disagree. The last to leave
        removes the job. Copy before what is still needed: memory of the fabric may end with it. wait: the seconds that it
        stays at most; the job's timeout ends that, too."""
        if self._finalizer.alive and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                self._say_goodbye(time.monotonic() + wait)
        self._finalizer()

    def _say_goodbye(self, end: float) -> None:
        for work in list(self._works):
            with contextlib.suppress(FabricError, TimeoutError):
                work.wait(max(0.0, end - time.monotonic()))
        barrier = self._trigger("barrier")
        os.set_blocking(barrier, False)
        while all(member.state != "absent" for member in self.members()):  # who has left, or never came, is not waited for
            os.write(barrier, b"\n")
            if not _is_readable(barrier, end - time.monotonic()) or b"result=EPROTO" not in os.read(barrier, 4096):
                return  # else a rank goes on, and shall hear it each time until it leaves as well

    def __enter__(self) -> "Fabric":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:  # else the others shall hear of the loss when this process ends
            self.close()


def _leave(pid: int, triggers: "set[int]", memory: Memory, directory: str) -> None:
    for fd in triggers:
        close(fd)
    memory.close()
    if os.getpid() == pid:  # a forked process has copies, and is no rank
        with contextlib.suppress(OSError):
            os.rmdir(directory)
            os.rmdir(os.path.dirname(os.path.dirname(directory)))


def _mkdir(path: str) -> bool:
    """False when it exists."""
    try:
        os.mkdir(path)
        return True
    except FileExistsError:
        return False


def _is_readable(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    end = time.monotonic() + seconds
    while not any(events & select.POLLIN for _, events in poll.poll(min(max(0.0, end - time.monotonic()), 1e6) * 1000)):
        if time.monotonic() >= end:
            return False
        time.sleep(0.001)  # a rank of the job is lost, which poll says at once, each time
    return True


def _count(shape: Shape) -> int:
    count = 1
    for length in (shape,) if isinstance(shape, int) else shape:
        count *= length
    return count
