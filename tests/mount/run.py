#!/usr/bin/python3
"""Runs the mount tests: real mounts, real processes.

    run.py [--build DIR] [--mode passthrough|coherent|both] [--storms N] [--jobs N] [--without PATTERN]
           [PATTERN ...]

A PATTERN selects the tests whose "file: name" contains it, or leaves them out. Each test runs in a process and on a mount
of its own; whatever it leaves behind is ended and counts as a failure. One line a test, the last one is the count.
"""
import argparse
import contextlib
import importlib
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import harness  # noqa: E402

DEADLINE = max(60.0, 4 * harness.PATIENCE)


def collect(patterns, without=()):
    """(title, function) of each test, in the order of the source."""
    def is_among(title, name, some):
        return any(pattern in title or pattern in name for pattern in some)
    for name in sorted(os.listdir(HERE)):
        if not (name.startswith("test_") and name.endswith(".py")):
            continue
        module = importlib.import_module(name[:-3])
        for attribute, function in list(vars(module).items()):
            if attribute.startswith("test_") and getattr(function, "__module__", "") == module.__name__:
                title = f"{name[5:-3]}: {attribute[5:].replace('_', ' ')}"
                where = f"{name}:{attribute}"
                if (not patterns or is_among(title, where, patterns)) and not is_among(title, where, without):
                    yield title, function


def perform(function, env):
    """In the test's process: runs it; returns (outcome, text)."""
    needs = getattr(function, "needs", {})
    os.environ["TMPDIR"] = env.directory  # what libraries leave in files goes with the test
    tempfile.tempdir = None
    try:
        if "nodes" in needs:
            fabric = harness.Fabric(env, needs["nodes"], needs.get("options", harness.Fabric.PATIENT))
            function(fabric)
            fabric.finish()
        elif needs.get("mount", True):
            mount = harness.Mount(env, needs.get("options", ()))
            function(mount)
            mount.finish()
        else:
            function(env)
    except harness.Skip as reason:
        return "skipped", str(reason)
    except BaseException as error:
        where = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(HERE)]
        trail = " < ".join(f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in where[:0:-1])
        return "failed", f"{type(error).__name__}: {error} [{trail}]"
    return "passed", ""


def processes_of(directory, group):
    """Processes that belong to a test: of its group, or daemons with its directory in their arguments."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read()
            with open(f"/proc/{pid}/stat") as file:
                state, _, its_group = file.read().rsplit(") ", 1)[1].split()[:3]
            if int(pid) != group and state != "Z" and (directory.encode() in command or int(its_group) == group):
                yield int(pid), command.replace(b"\0", b" ").decode(errors="replace").strip()


def sweep(directory, group):
    """Ends and unmounts what is left of a test; returns what there was."""
    left = []
    for mountpoint, number in harness.mounts_below(directory):
        left.append(f"mount {mountpoint}")
        with contextlib.suppress(OSError), open(f"{harness.connections()}/{number}/abort", "w") as abort:
            abort.write("1")
        os.system(f"umount -l '{mountpoint}'")
    for pid, command in list(processes_of(directory, group)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            left.append(f"process {pid} ({command[:60]})")
    return left


def sweep_memory(env):
    """Removes the shared memory that a test has left; returns what there was."""
    left = sorted(name for name in os.listdir("/dev/shm") if env.memory_name() in name)
    for name in left:
        os.unlink(f"/dev/shm/{name}")
    return [f"memory {name}" for name in left]


def run(function, env):
    """Runs one test in a process of its own; returns (outcome, text)."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.close(receive)
        outcome = perform(function, env)
        if outcome[0] == "passed":  # actors end with their parent; give nothing else the excuse
            os.write(send, pickle.dumps(outcome))
        else:
            os.write(send, pickle.dumps((outcome[0], outcome[1][:3000])))
        os._exit(0)
    os.close(send)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    deadline = time.monotonic() + getattr(function, "needs", {}).get("seconds", DEADLINE)
    result = ("failed", "the test's process died")
    ended = False
    while not ended and time.monotonic() < deadline:
        ended = os.waitpid(pid, os.WNOHANG)[0] != 0
        if not ended:
            time.sleep(0.005)
    if not ended:
        sweep(env.directory, pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        sweep_memory(env)
        result = ("failed", "did not end in time")
    else:
        with os.fdopen(receive, "rb", closefd=False) as pipe:
            answer = pipe.read()
        if answer:
            result = pickle.loads(answer)
    os.close(receive)
    with contextlib.suppress(AssertionError):  # children of the test go with it, in their own time
        harness.wait_until(lambda: not list(processes_of(env.directory, pid)), "all processes have ended",
                           harness.PATIENCE if result[0] == "passed" else 0.05)
    left = sweep(env.directory, pid) + sweep_memory(env)
    if left and result[0] == "passed":
        result = ("failed", "left behind: " + ", ".join(left))
    return result


def reason_to_skip(function, mode):
    needs = getattr(function, "needs", {})
    modes = needs.get("modes")
    if modes and mode not in modes:
        return f"only in {' and '.join(modes)} mode"
    for tool in needs.get("tools", ()):
        if not shutil.which(tool):
            return f"{tool} is not installed"
    return ""


def available(mode, build, storms):
    """"" if the build can mount in this mode here, or why it cannot."""
    with harness.Environment(build, mode, storms) as env:
        def probe(mount):
            shown = mount.stats().get("buffer_mode", "")
            if not shown.startswith(mode):
                raise harness.Skip(f"stats says buffer_mode {shown}")
        outcome, text = run(probe, env)
        return "" if outcome == "passed" else text


class Plan:
    """What to run: (mode, title, function, why it is skipped) of each test, and what they run with."""

    def __init__(self, args):
        self.build, self.storms = os.path.abspath(args.build), args.storms
        tests = list(collect(args.patterns, args.without))
        self.tests = []
        for mode in ("passthrough", "coherent") if args.mode == "both" else (args.mode,):
            missing = available(mode, self.build, self.storms)
            if missing and mode == "coherent":
                self.tests.append((mode, "the daemon cannot be mounted", fail_with(missing), ""))
            else:
                self.tests += [(mode, title, function, missing or reason_to_skip(function, mode))
                               for title, function in tests]

    def perform(self, number):
        """Runs one; returns (outcome, the lines that tell)."""
        mode, title, function, reason = self.tests[number]
        if reason:
            return "skipped", f"{'skipped':8} {mode:11} {title}: {reason}"
        started = time.monotonic()
        with harness.Environment(self.build, mode, self.storms) as env:
            outcome, text = run(function, env)
        took = "" if outcome == "skipped" else f" ({time.monotonic() - started:.2f} s)"
        said = f": {text}" if outcome == "skipped" else f"\n         {text}" if text else ""
        return outcome, f"{outcome:8} {mode:11} {title}{took}{said}"

    def outcomes(self, jobs):
        """Of all, in an order of their own: those that measure come last, with nothing beside them."""
        numbers = range(len(self.tests))
        alone = [number for number in numbers if getattr(self.tests[number][2], "needs", {}).get("alone")]
        others = sorted(set(numbers) - set(alone))
        with multiprocessing.get_context("fork").Pool(jobs, self.settle) as workers:
            yield from workers.imap(in_worker, others)
        yield from map(self.perform, alone)

    def settle(self):
        """In a process that shall run tests: makes this what it runs."""
        global plan
        plan = self
        harness.die_with_parent()


plan = None  # of this worker


def in_worker(number):
    return plan.perform(number)


def fail_with(text):
    def test(_):
        raise AssertionError(text)
    return harness.needs(mount=False)(test)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(HERE, "../../build"), help="where meson built (build)")
    parser.add_argument("--mode", choices=("passthrough", "coherent", "both"), default="both")
    parser.add_argument("--storms", type=int, default=100, help="how often the kill storms kill (100)")
    parser.add_argument("--jobs", type=int, default=1, help="how many tests run side by side (1)")
    parser.add_argument("--without", metavar="PATTERN", action="append", default=[], help="leave these tests out")
    parser.add_argument("--list", action="store_true", help="only show the names")
    parser.add_argument("patterns", metavar="PATTERN", nargs="*")
    args = parser.parse_args()
    if args.list:
        print("\n".join(title for title, _ in collect(args.patterns, args.without)))
        return 0
    if os.geteuid() != 0:
        parser.error("the tests mount and change users: run them as root")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell has started this with "&"
    harness.connections()  # mounted before anything runs side by side
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for outcome, lines in Plan(args).outcomes(args.jobs):
        count[outcome] += 1
        print(lines, flush=True)
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
