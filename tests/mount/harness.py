"""What the mount tests are written with: a mount of their own, processes that act as clients, jobs and ranks.

The test process itself opens nothing that makes a promise to a job: every rank's triggers are opened by an Actor,
a process that does what it is told, so that it can be stopped, killed and waited for. Nothing here sleeps to give
something time; `wait_until` asks for a condition until a deadline.
"""
import contextlib
import ctypes
import errno
import functools
import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import tempfile
import time

PATIENCE = float(os.environ.get("FABRIC_TEST_PATIENCE", "10"))  # seconds before something expected has failed
SOON = 10.0  # seconds for what must not wait for a timeout of 20 s or more: the machine may be away for a while
TRIGGERS = ("allreduce", "reduce_scatter", "allgather", "broadcast", "barrier")
NOBODY = 65534

# Where utils/setup.sh unpacks servers that are not installed.
os.environ["PATH"] += ":" + os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                          "../../subprojects/packagecache/tools/usr/bin"))


class Skip(Exception):
    """Raised by a test that cannot run here, with the reason."""


# --- how a test says what it needs -------------------------------------------------------------------------

def needs(**what):
    """Marks a test: mount=False (mounts by itself), nodes=N (gets a Fabric instead of a Mount), options=[...] for the
    daemon, modes=("passthrough",), seconds=N (more than the usual deadline), alone=True (measures: nothing runs
    beside it)."""
    def mark(function):
        function.needs = {**getattr(function, "needs", {}), **what}
        return function
    return mark


# --- conditions and errors ---------------------------------------------------------------------------------

def wait_until(condition, what, seconds=None):
    """Returns the first true value of condition(), asked every few milliseconds; fails after `seconds`."""
    end = time.monotonic() + (seconds or PATIENCE)
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds or PATIENCE:g} s: {what}"
        time.sleep(0.003)


def name_of(number):
    return errno.errorcode.get(number, str(number)) if number else "success"


def equal(actual, expected, what="value"):
    assert actual == expected, f"{what}: {actual!r}, expected {expected!r}"


def contains(text, *words):
    for word in words:
        assert str(word) in text, f"{word!r} is not in {text!r}"


def fails(expected, function, *args, **kwargs):
    """Calls; fails unless it raises OSError with this errno, or one of these."""
    expected = expected if isinstance(expected, (set, tuple)) else (expected,)
    try:
        value = function(*args, **kwargs)
    except OSError as error:
        got = error.errno
    else:
        got = 0
        with contextlib.suppress(Exception):
            if function in (os.open,):
                os.close(value)
    wanted = " or ".join(map(name_of, expected))
    assert got in expected, f"{getattr(function, '__name__', function)}{args}: {name_of(got)}, expected {wanted}"


def is_quick(attempt, seconds, what):
    """Fails unless one of five attempts, each of which returns how long something took, is so quick: the machine may be
    away for a while, but not each time."""
    took = []
    while not took or took[-1] > seconds:
        assert len(took) < 5, f"{what} took {took} s, at most {seconds:g} s expected"
        took.append(attempt())


def within(seconds, started, what):
    took = time.monotonic() - started
    assert took <= seconds, f"{what} took {took:.2f} s, at most {seconds:g} s expected"


# --- files -------------------------------------------------------------------------------------------------

def read(path):
    with open(path, "rb", buffering=0) as file:
        return file.readall().decode()


def read_bytes(path, count=-1, offset=0):
    """Bytes of a file by pread: all of it, or at most count."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, os.fstat(fd).st_size if count < 0 else count, offset)
    finally:
        os.close(fd)


def write(path, text, flags=os.O_WRONLY):
    """One write() of text, as `echo -n >` would do it without truncation."""
    fd = os.open(path, flags)
    try:
        data = text if isinstance(text, bytes) else text.encode()
        equal(os.write(fd, data), len(data), f"bytes written to {path}")
    finally:
        os.close(fd)


def sh(command, timeout=30, check=True, **kwargs):
    """Runs a shell command and returns what it printed; fails on a non-zero status."""
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout,
                          **kwargs)
    if check:
        assert done.returncode == 0, f"{command}: status {done.returncode}, {done.stderr.decode().strip()}"
        return done.stdout
    return done


def values(text):
    """`name value` or `name = value` lines as a dict."""
    pairs = (re.split(r"\s*=\s*|\s+", line.strip(), maxsplit=1) for line in text.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and not pair[0].startswith("#")}


def result_words(line):
    """The key=value words of one result line."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


# --- processes ---------------------------------------------------------------------------------------------

def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def process_state(pid):
    """The letter of /proc/PID/stat, or "" when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(") ", 1)[1][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Pending:
    """A call that an actor is busy with."""

    def __init__(self, actor):
        self.actor = actor

    def done(self):
        return self.actor.pipe.poll(0)

    def outcome(self, seconds=None):
        assert self.actor.pipe.poll(seconds or PATIENCE), \
            f"the call of process {self.actor.pid} did not return within {seconds or PATIENCE:g} s"
        return self.actor.pipe.recv()

    def result(self, seconds=None):
        ok, value = self.outcome(seconds)
        if not ok:
            raise value
        return value

    def error(self, seconds=None):
        """The errno it failed with; 0 when it succeeded."""
        ok, value = self.outcome(seconds)
        if ok:
            return 0
        if not isinstance(value, OSError):
            raise value
        return value.errno

    def fails(self, expected, seconds=None):
        got = self.error(seconds)
        expected = expected if isinstance(expected, (set, tuple)) else (expected,)
        assert got in expected, f"the call returned {name_of(got)}, expected {' or '.join(map(name_of, expected))}"


class Actor:
    """A client process. It runs functions it is sent, one at a time, until it is killed or let go."""

    def __init__(self, uid=None, gid=None):
        self.pipe, theirs = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._live(theirs, uid, gid)
        theirs.close()
        self.status = None
        self.call(os.getpid)

    @staticmethod
    def _live(pipe, uid, gid):
        try:
            die_with_parent()
            os.closerange(3, pipe.fileno())
            os.closerange(pipe.fileno() + 1, 4096)
            type(pipe).__del__ = lambda _: None  # copies of other actors' pipes: closed just now
            if uid is not None:
                os.setgroups([])
                os.setgid(uid if gid is None else gid)
                os.setuid(uid)
                die_with_parent()
            while True:
                function, args, kwargs = pipe.recv()
                try:
                    pipe.send((True, function(*args, **kwargs)))
                except Exception as error:  # the test shall see it, whatever it is
                    pipe.send((False, error))
        except BaseException:
            os._exit(0)

    def begin(self, function, *args, **kwargs):
        self.pipe.send((function, args, kwargs))
        return Pending(self)

    def call(self, function, *args, **kwargs):
        return self.begin(function, *args, **kwargs).result()

    def kill(self, number=signal.SIGKILL):
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.wait()

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: process_state(self.pid) == "T", f"process {self.pid} is stopped")

    def wait(self, seconds=None):
        """Its wait status, once it has ended."""
        def ended():
            if self.status is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.status = status if pid else None
            return self.status is not None
        wait_until(ended, f"process {self.pid} has ended", seconds)
        return self.status


def fork_sleeper():
    """For an actor: forks a process that holds copies of all its descriptors and does nothing; its pid."""
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    return pid


# --- the mount ---------------------------------------------------------------------------------------------

MODE_OPTIONS = {"passthrough": (), "coherent": ("-o", "buffer=coherent")}


@functools.lru_cache(None)
def connections():
    """Where the kernel shows its FUSE connections; mounted for the tests if the system has not done so."""
    path = "/sys/fs/fuse/connections"
    if not os.path.ismount(path):
        subprocess.run(["mount", "-t", "fusectl", "fusectl", path], check=True)
    return path


def mounts_below(directory):
    """(mount point, connection number) of each mount below directory, innermost first."""
    found = []
    with open("/proc/self/mountinfo") as table:
        for line in table:
            words = line.split()
            if words[4].startswith(directory + "/"):
                found.append((words[4], int(words[2].split(":")[1])))
    return found[::-1]


class Mount:
    """A daemon of its own on a directory of its own, running in the foreground as a child of the test."""

    counter = itertools.count()

    def __init__(self, env, options=(), uid=None, path=None, mode=None):
        self.env, self.uid, self.mode = env, uid, mode or env.mode
        self.path = path or os.path.join(env.directory, f"m{next(Mount.counter)}")
        self.options = (*MODE_OPTIONS[self.mode], *options)
        if not os.path.ismount(self.path):
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path)
                if uid is not None:
                    os.chown(self.path, uid, uid)
        self.process = None
        self.log = os.path.join(env.directory, f"log{next(Mount.counter)}")
        self.start()

    def start(self):
        def become():
            die_with_parent()
            if self.uid is not None:
                os.setgroups([])
                os.setgid(self.uid)
                os.setuid(self.uid)
                die_with_parent()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([self.env.program, "-f", *self.options, self.path], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, preexec_fn=become)
        wait_until(lambda: self.answers() or self.process.poll() is not None, "the mount answers")
        assert self.process.poll() is None, f"the daemon ended with {self.process.returncode}: {self.said()}"

    def answers(self):
        if not any(path == self.path for path, _ in mounts_below(self.env.directory)):
            return False
        version = f"{self.path}/version"
        return os.path.exists(version) if self.uid is None else Actor(self.uid).call(os.path.exists, version)

    def said(self):
        """What the daemon wrote to stderr."""
        with open(self.log, errors="replace") as log:
            return log.read()

    @property
    def pid(self):
        return self.process.pid

    def file(self, *parts):
        return os.path.join(self.path, *map(str, parts))

    def read(self, *parts):
        return read(self.file(*parts))

    def stats(self):
        return values(self.read("stats"))

    def connection(self):
        return next(number for path, number in mounts_below(self.env.directory) if path == self.path)

    def waiting(self):
        """Requests the kernel has no answer to yet."""
        with open(f"{connections()}/{self.connection()}/waiting") as waiting:
            return int(waiting.read())

    def wait_parked(self, count=1):
        """Returns when at least `count` reads and writes of triggers wait in the daemon. What the kernel counts as
        waiting would not do: a file's written-back pages and its release may be on their way long after its close."""
        wait_until(lambda: int(self.stats()["requests_parked"]) >= count, f"{count} requests are parked")

    def needs_parallel_writes(self):
        """For tests in which two processes wait on one trigger: each parked write holds the file's lock."""
        if tuple(map(int, self.stats()["libfuse"].split(".")[:2])) < (3, 17):
            raise Skip("libfuse before 3.17 has no parallel direct writes")

    def wait_idle(self, seconds=None):
        wait_until(lambda: self.waiting() == 0, "no request waits", seconds)

    def threads(self):
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def rss_kib(self):
        """Resident memory of the daemon that is not client buffers."""
        with open(f"/proc/{self.pid}/status") as status:
            fields = values(status.read().replace(":", " "))
        return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssFile"))

    def sanitized(self):
        """Whether a sanitizer is in the daemon, which then keeps what it frees."""
        with open(f"/proc/{self.pid}/maps") as maps:
            return bool(re.search("lib[at]san", maps.read()))

    def alive(self):
        return self.process.poll() is None

    def stop(self, seconds=10):
        """SIGTERM; returns the exit status, and fails when the daemon takes longer."""
        if self.alive():
            self.process.terminate()
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the daemon runs {seconds} s after SIGTERM") from None
        return status

    def finish(self):
        """What holds after every test: the daemon lives, owes no answer, goes when asked and leaves no mount."""
        if self.process is None:
            return
        assert self.alive(), f"the daemon died with status {self.process.returncode}: {self.said()[-2000:]}"
        self.wait_idle()
        status = self.stop()
        self.process = None
        assert status == 0, f"the daemon ended with {status}: {self.said()[-2000:]}"
        assert not os.path.ismount(self.path), "the mount is still there"

    def job(self, world=2, **config):
        return Job(self, world, **config)


class Job:
    """A job directory with its configuration. owner: the Actor that makes it, the test itself by default."""

    counter = itertools.count()

    def __init__(self, mount, world=2, name=None, owner=None, **config):
        self.mount, self.world = mount, world
        self.name = name or f"job{next(Job.counter)}"
        self.path = mount.file("jobs", self.name)
        self.owner = owner
        self._do(os.mkdir, self.path)
        lines = "".join(f"{key}={value}\n" for key, value in {"world": world, **config}.items() if value is not None)
        if lines:
            self.configure(lines)

    def _do(self, function, *args):
        return self.owner.call(function, *args) if self.owner else function(*args)

    def configure(self, lines):
        self._do(write, f"{self.path}/config", lines)

    def read(self, name):
        return self._do(read, f"{self.path}/{name}")

    def config(self):
        return values(self.read("config"))

    def wait_asking(self, count=1):
        """Returns when so many ranks wait for an operation of this job."""
        wait_until(lambda: int(values(self.read("stats"))["ranks_waiting"]) >= count, f"{count} ranks ask")

    def rank(self, number, actor=None):
        """Joins: a process, or the given one, makes the rank's directory."""
        return Rank(self, number, actor or Actor())

    def ranks(self):
        return [self.rank(number) for number in range(self.world)]


class Rank:
    """One rank and the process that acts for it."""

    def __init__(self, job, number, actor):
        self.job, self.number, self.actor = job, number, actor
        self.path = f"{job.path}/ranks/{number}"
        self.descriptors = {}
        actor.call(os.mkdir, self.path)

    @property
    def pid(self):
        return self.actor.pid

    def file(self, name):
        return f"{self.path}/{name}"

    def open(self, trigger="allreduce", flags=os.O_RDWR):
        """Its process's descriptor of a trigger, opened at first use."""
        if trigger not in self.descriptors:
            self.descriptors[trigger] = self.actor.call(os.open, self.file(trigger), flags)
        return self.descriptors[trigger]

    def close(self, trigger="allreduce"):
        self.actor.call(os.close, self.descriptors.pop(trigger))

    def begin(self, command="", trigger="allreduce"):
        """Starts the write that asks for an operation."""
        line = command if isinstance(command, bytes) else command.encode() + b"\n"
        return self.actor.begin(os.write, self.open(trigger), line)

    def run(self, command="", trigger="allreduce", seconds=None):
        return self.begin(command, trigger).result(seconds)

    def fails(self, expected, command="", trigger="allreduce", seconds=None):
        self.begin(command, trigger).fails(expected, seconds)

    def put(self, array, offset=0):
        """Stores an array (or bytes) in the buffer by write()."""
        fd = os.open(self.file("buffer"), os.O_RDWR)
        try:
            data = memoryview(array).cast("B") if not isinstance(array, bytes) else array
            equal(os.pwrite(fd, data, offset), len(data), "bytes put")
        finally:
            os.close(fd)

    def get(self, length=-1, offset=0):
        """Bytes of the buffer by read()."""
        return read_bytes(self.file("buffer"), length, offset)

    def status(self):
        return read(self.file("status"))


def run_all(ranks, command="", trigger="allreduce", seconds=None):
    """One operation by all ranks; command may be a list with one for each."""
    commands = command if isinstance(command, (list, tuple)) else [command] * len(ranks)
    pending = [rank.begin(text, trigger) for rank, text in zip(ranks, commands)]
    for call in pending:
        call.result(seconds)


def all_fail(ranks, expected, command="", trigger="allreduce", seconds=None):
    commands = command if isinstance(command, (list, tuple)) else [command] * len(ranks)
    pending = [rank.begin(text, trigger) for rank, text in zip(ranks, commands)]
    for call in pending:
        call.fails(expected, seconds)


def write_until_done(fd, command, seconds=20):
    """In a rank's process: asks again after each failure; the errors it got on the way."""
    seen, end = [], time.monotonic() + seconds
    while True:
        try:
            os.write(fd, command)
            return seen
        except OSError as error:
            seen.append(error.errno)
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def work_again(ranks, command="", seconds=25):
    """All ranks ask until an operation succeeds."""
    line = command.encode() + b"\n"
    pending = [rank.actor.begin(write_until_done, rank.open(), line) for rank in ranks]
    return [call.result(seconds) for call in pending]


# --- several nodes -----------------------------------------------------------------------------------------

class Fabric:
    """Daemons that are the nodes of one fabric, emulated on this machine; each has a mount of its own.

    Its name is the test's own, so that nothing is shared with other tests that run. A loaded machine may keep a
    daemon from its heartbeats for a while: unless a test is about time, it gets `PATIENT` of it."""

    PATIENT = ("-o", "heartbeat_ms=5000")

    def __init__(self, env, nodes=2, options=PATIENT, start=None, **mount):
        self.env, self.count, self.options, self.extra = env, nodes, tuple(options), mount
        self.name = env.memory_name()
        self.mounts = {}
        for node in range(nodes) if start is None else start:
            self.add(node)

    def add(self, node, *options):
        """Starts the daemon of a node that has none yet."""
        where = ("--fabric", self.name, "--node", str(node), "--nodes", str(self.count))
        self.mounts[node] = Mount(self.env, (*where, *self.options, *options), **self.extra)
        return self.mounts[node]

    def __getitem__(self, node):
        return self.mounts[node]

    def __iter__(self):
        return iter([self.mounts[node] for node in sorted(self.mounts)])

    def link(self, node, to):
        """What a node says of its link to another."""
        return values(self[node].read("nodes", to, "link"))

    def is_up(self, nodes=None):
        among = sorted(self.mounts) if nodes is None else nodes
        return all(self.link(a, b)["state"] == "up" for a in among for b in among if a != b)

    def wait_up(self, nodes=None, seconds=None):
        wait_until(lambda: self.is_up(nodes), "all nodes see each other", seconds)

    def wait_link(self, node, to, state, seconds=None):
        wait_until(lambda: self.link(node, to)["state"] == state, f"node {node} sees node {to} {state}", seconds)

    def wait_event(self, *words, nodes=None, seconds=None):
        """Returns when one line of `events` on each node (of those given) has all the words."""
        for node in sorted(self.mounts) if nodes is None else nodes:
            wait_until(lambda node=node: any(all(str(word) in line for word in words)
                                             for line in self[node].read("events").splitlines()),
                       f"an event on node {node} says {words}", seconds)

    def job(self, placement, **config):
        return FabricJob(self, placement, **config)

    def finish(self):
        for mount in self:
            mount.wait_idle()
        for mount in self:
            mount.finish()


class FabricJob:
    """A job whose ranks are spread over nodes: placement[r] is the node of rank r. uneven: {node: config} for lines
    that differ there."""

    def __init__(self, fabric, placement, name=None, uneven=None, **config):
        self.fabric, self.placement, self.world = fabric, list(placement), len(placement)
        self.name = name or f"job{next(Job.counter)}"
        self.on = {node: Job(fabric[node], name=self.name,
                             **{"world": self.world, **config, **(uneven or {}).get(node, {})})
                   for node in sorted(set(self.placement))}

    def rank(self, number, actor=None):
        return self.on[self.placement[number]].rank(number, actor)

    def ranks(self):
        return [self.rank(number) for number in range(self.world)]

    def wait_back(self):
        """Returns when all nodes are up, and each knows that the processes of all ranks take part."""
        self.fabric.wait_up(seconds=2 * PATIENCE)
        for node, job in self.on.items():
            wait_until(lambda job=job: job.read("members").count("state=present") == self.world,
                       f"node {node} knows that all ranks are back")

    def wait_known(self):
        """Returns when each node knows that all ranks are in."""
        for node, job in self.on.items():
            wait_until(lambda job=job: "state=absent" not in job.read("members"), f"node {node} knows all ranks")


# --- what a test runs in -----------------------------------------------------------------------------------

class Environment:
    """What the runner hands to each test."""

    def __init__(self, build, mode, storms=100):
        self.build, self.mode, self.storms = build, mode, storms
        self.program = os.path.join(build, "fs", "fabricfs")
        self.directory = None

    def memory_name(self):
        """Part of the name of all shared memory that this test's daemons make."""
        return os.path.basename(self.directory)

    def __enter__(self):
        self.directory = tempfile.mkdtemp(prefix="fabricfs-test-")
        os.chmod(self.directory, 0o755)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            subprocess.run(["rm", "-rf", "--one-file-system", self.directory], check=False)

    def compile(self, source):
        """Compiles a C client that lies beside the tests; returns the program."""
        program = os.path.join(self.directory, os.path.basename(source)[:-2])
        here = os.path.dirname(os.path.abspath(__file__))
        subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, os.path.join(here, source)], check=True)
        return program
