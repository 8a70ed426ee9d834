#!/usr/bin/python3
"""Runs the tests between virtual machines: the real daemon and real clients, each node with a kernel of its own,
joined by PCI BARs behind emulated switches.

    run.py [--build DIR] [--list] [--bench] [PATTERN ...]

A PATTERN selects the tests whose name contains it. With --bench the figures are taken instead. The processors are
emulated, so it runs anywhere; it wants QEMU, a static busybox, root, and Debian's kernels, which it fetches as packages
without installing them. One line a test, the last one is the count.
"""
import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import guest  # noqa: E402
import image  # noqa: E402
import kernels  # noqa: E402
import test_vm  # noqa: E402


def collect(patterns):
    """(title, function) of each test, in the order of the source."""
    for name, function in list(vars(test_vm).items()):
        title = name[5:].replace("_", " ")
        if name.startswith("test_") and (not patterns or any(pattern in title for pattern in patterns)):
            yield title, function


def missing():
    """Why no guest can be run here, or nothing."""
    if os.geteuid() != 0:
        return "only root may download packages with apt, and read the memory of guests"
    if not shutil.which(guest.QEMU):
        return f"{guest.QEMU} is not installed"
    return "" if os.path.exists("/bin/busybox") else "busybox-static is not installed"


def perform(function, images):
    """(outcome, text) of one test."""
    try:
        function(images)
    except test_vm.Skip as reason:
        return "skipped", str(reason)
    except kernels.Unavailable as reason:
        return "skipped", f"a kernel cannot be had: {reason}"
    except Exception as error:
        where = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(HERE)]
        trail = " < ".join(f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in where[:0:-1])
        return "failed", f"{type(error).__name__}: {error} [{trail}]"
    return "passed", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(HERE, "../../build"), help="where meson built (build)")
    parser.add_argument("--list", action="store_true", help="only show the names")
    parser.add_argument("--bench", action="store_true", help="take figures instead")
    parser.add_argument("patterns", metavar="PATTERN", nargs="*")
    args = parser.parse_args()
    tests = list(collect(args.patterns))
    if args.list:
        print("\n".join(title for title, _ in tests))
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # guests and their memory are given up on the way out
    reason = missing()
    if args.bench:
        tests = [("bench", test_vm.bench)]
    count = {"passed": 0, "failed": 0, "skipped": 0}
    with tempfile.TemporaryDirectory(prefix="fabricfs-vm.") as directory:
        images = image.Images(directory, os.path.abspath(args.build))
        for title, function in tests:
            started = time.monotonic()
            outcome, text = ("skipped", reason) if reason else perform(function, images)
            count[outcome] += 1
            took = f"({time.monotonic() - started:.1f} s)" if outcome != "skipped" else ""
            print(f"{outcome:8} {title} {took}" + (f"\n         {text}" if text else ""), flush=True)
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] or not sum(count.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
