#!/usr/bin/python3
"""Runs the tests of the Python package and of the examples in other languages, as tests/mount/run.py runs its own:
real mounts, real processes, the same options, the same last line.

    run.py [--build DIR] [--mode passthrough|coherent|both] [--jobs N] [PATTERN ...]
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path[:0] = [HERE, f"{TREE}/utils/python", f"{TREE}/tests/mount"]
os.environ["PYTHONPATH"] = f"{TREE}/utils/python"
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("USE_LIBUV", "0")  # the torch of Debian 13 is built without

from importlib.machinery import SourceFileLoader  # noqa: E402
from importlib.util import module_from_spec, spec_from_loader  # noqa: E402

loader = SourceFileLoader("mount_runner", f"{TREE}/tests/mount/run.py")
runner = module_from_spec(spec_from_loader("mount_runner", loader))
sys.modules["mount_runner"] = runner
loader.exec_module(runner)
runner.HERE = HERE  # the tests to collect
sys.path.insert(0, HERE)

if __name__ == "__main__":
    sys.exit(runner.main())
