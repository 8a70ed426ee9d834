"""What the tests of the Python package are written with: bodies that every rank runs in a process of its own."""
import contextlib
import multiprocessing
import os
import pickle
import signal
import sys

import harness
from harness import PATIENCE, Skip

PYTHON = "/usr/bin/python3"
TREE = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))


def module(name):
    """An optional module, or the test is skipped."""
    try:
        return __import__(name, fromlist=["x"])
    except ImportError as missing:
        raise Skip(f"{missing.name} is not installed") from None


class Process:
    """A process that runs body(*args) and sends back what it returns or raises."""

    def __init__(self, body, *args):
        self.pipe, theirs = multiprocessing.Pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            theirs.close()
            return
        harness.die_with_parent()
        try:
            answer = (True, body(*args))
        except BaseException as error:
            answer = (False, error)
        try:
            theirs.send(answer)
        except (pickle.PicklingError, TypeError):
            theirs.send((False, AssertionError(repr(answer[1]))))
        os._exit(0)

    def result(self, seconds=None):
        ok, value = self.outcome(seconds)
        if not ok:
            raise value
        return value

    def outcome(self, seconds=None):
        """(True, what it returned) or (False, what it raised); (False, None) when it died."""
        assert self.pipe.poll(seconds or 3 * PATIENCE), f"process {self.pid} has not ended"
        try:
            answer = self.pipe.recv()
        except EOFError:
            answer = (False, None)
        os.waitpid(self.pid, 0)
        return answer

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


def begin(mount, body, world=2, job="job", placement=None, **config):
    """Starts body(fabric) in each rank. mount: a Mount, or a Fabric of the harness with placement[rank], its node."""
    from fabricfs import Fabric

    def rank_body(rank):
        at = mount if placement is None else mount[placement[rank]]
        with Fabric(job, rank, world, mount=at.path, **config) as fabric:
            return body(fabric)

    return [Process(rank_body, rank) for rank in range(world)]


def together(mount, body, world=2, **more):
    """What body(fabric) returns in each rank."""
    return [process.result() for process in begin(mount, body, world, **more)]


@contextlib.contextmanager
def raises(kind, *said):
    """The block raises this kind of exception, whose text has these words."""
    try:
        yield
    except kind as error:
        harness.contains(str(error), *said)
    else:
        raise AssertionError(f"{kind.__name__} was expected, nothing was raised")
