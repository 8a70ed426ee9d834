#!/usr/bin/python3
"""Runs fabricctl on machines made up here, and on recorded ones where they lie beside the project.

    run.py [--build DIR] [--recorded DIR] [--list] [PATTERN ...]

A test is a function whose name is the sentence it checks; a PATTERN selects those whose name contains it. The last
line is "N passed, N failed, N skipped"; a skipped test says why.
"""
import argparse
import inspect
import os
import sys
import tempfile
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)

import control  # noqa: E402
import test_command  # noqa: E402
import test_doctor  # noqa: E402
import test_guest  # noqa: E402
import test_hostile  # noqa: E402
import test_recorded  # noqa: E402
import test_topo  # noqa: E402


def tests():
    for module in (test_command, test_doctor, test_topo, test_hostile, test_guest, test_recorded):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_") and function.__module__ == module.__name__:
                yield module.__name__[5:] + ": " + name[5:].replace("_", " "), function


def run_one(name, function):
    with tempfile.TemporaryDirectory(prefix="fabric-pci.") as directory:
        try:
            function(directory)
            print("passed", name)
            return "passed"
        except control.Skip as reason:
            print(f"skipped {name}: {reason}")
            return "skipped"
        except Exception:
            print("FAILED", name)
            traceback.print_exc(file=sys.stdout)
            return "failed"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--recorded", default=os.path.join(ROOT, "..", "shared", "pci-dumps"))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("patterns", nargs="*")
    options = parser.parse_args()
    control.PROGRAM = os.path.join(options.build, "utils", "fabricctl")
    control.RECORDED = options.recorded
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name, function in tests():
        if options.patterns and not any(pattern in name for pattern in options.patterns):
            continue
        if options.list:
            print(name)
            continue
        counts[run_one(name, function)] += 1
        sys.stdout.flush()
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
