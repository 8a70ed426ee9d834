"""The guests' root file system: cpio archives that the kernel unpacks into memory.

In them are this build's programs, a static busybox, python3 with numpy where it is wanted, and every shared library
they need, from this machine. They are not compressed: the guests' processors are emulated, and unpacking would cost more
than it saves.
"""
import importlib.util
import os
import py_compile
import re
import shutil
import stat
import subprocess
import tempfile

import kernels

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
PYTHON = "/usr/bin/python3"
DIGITS = os.path.join(ROOT, "subprojects/packagecache/digits.csv.gz")  # utils/demo.sh fetches them
# What scripts in the guests import; whatever that loads goes along.
IMPORTS = """
import argparse, base64, csv, ctypes, errno, functools, gzip, json, mmap, os, select, shutil, signal, subprocess, sys
import threading, time, traceback, urllib.parse
import numpy, numpy.random, numpy.linalg
"""


def libraries(program):
    """The shared libraries of a program, with the dynamic linker."""
    listed = subprocess.run(("ldd", program), capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", listed)


def python_files():
    """Every file that python3 opens for IMPORTS."""
    show = IMPORTS + """
files = {module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)}
files |= {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
import encodings.idna, encodings.latin_1, encodings.ascii
files |= {encodings.idna.__file__, encodings.latin_1.__file__, encodings.ascii.__file__}
print("\\n".join(name for name in files if name.startswith("/") and os.path.isfile(name)))
"""
    listed = subprocess.run((PYTHON, "-I", "-c", show), capture_output=True, text=True, check=True).stdout
    return listed.split("\n")[:-1]


class Archive:
    """A cpio archive ("newc") under construction."""

    def __init__(self, path):
        self.file = open(path, "wb")
        self.number = 0
        self.known = set()

    def _entry(self, name, mode, content=b"", device=(0, 0)):
        self.number += 1
        fields = (self.number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name) + 1, 0)
        header = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        self.file.write(header + b"\0" * (-len(header) % 4) + content + b"\0" * (-len(content) % 4))

    def directory(self, name):
        if name and name not in self.known:
            self.directory(os.path.dirname(name))
            self.known.add(name)
            self._entry(name, stat.S_IFDIR | 0o755)

    def put(self, name, content, mode=0o644):
        name = name.strip("/")
        if name in self.known:
            return
        self.directory(os.path.dirname(name))
        self.known.add(name)
        self._entry(name, stat.S_IFREG | mode, content)

    def link(self, name, target):
        self.directory(os.path.dirname(name))
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def copy(self, path, name=None, mode=None):
        with open(path, "rb") as file:
            content = file.read()
        self.put(name or path, content, mode or os.stat(path).st_mode & 0o777)

    def copy_python(self, path):
        """A module with its compiled form, which counts as valid whatever the times of the files."""
        self.copy(path)
        with tempfile.NamedTemporaryFile() as compiled:
            py_compile.compile(path, compiled.name, doraise=True,
                               invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
            with open(compiled.name, "rb") as file:
                self.put(importlib.util.cache_from_source(path), file.read())

    def device(self, name, major, minor):
        self.directory(os.path.dirname(name))
        self._entry(name, stat.S_IFCHR | 0o600, device=(major, minor))

    def finish(self):
        self._entry("TRAILER!!!", 0)
        self.file.close()


def add_program(archive, path, name=None):
    archive.copy(path, name)
    for library in libraries(path):
        archive.copy(os.path.realpath(library), library)


def write_base(path, build_dir):
    """This build's programs, and a shell to run them from."""
    archive = Archive(path)
    for name in ("dev", "proc", "sys", "tmp", "run", "fabric", "etc"):
        archive.directory(name)
    archive.device("dev/console", 5, 1)
    archive.copy("/bin/busybox", "bin/busybox")
    archive.link("bin/sh", "busybox")
    archive.copy(f"{HERE}/init.sh", "init", 0o755)
    add_program(archive, f"{build_dir}/fs/fabricfs", "bin/fabricfs")
    add_program(archive, f"{build_dir}/utils/fabricctl", "bin/fabricctl")
    add_program(archive, f"{build_dir}/tests/vm/contract", "bin/contract")
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(("cc", "-static", "-O2", "-D_GNU_SOURCE", "-o", f"{directory}/rank", f"{HERE}/rank.c"), check=True)
        archive.copy(f"{directory}/rank", "bin/rank")
    archive.finish()


def write_modules(path, kernel):
    archive = Archive(path)
    for module in kernel.modules():
        archive.copy(module, f"modules/{os.path.basename(module)}")
    archive.put("modules/order", "".join(os.path.basename(path) + "\n" for path in kernel.modules()).encode())
    archive.finish()


def write_python(path):
    """python3 with numpy, and the demo."""
    archive = Archive(path)
    add_program(archive, os.path.realpath(PYTHON), "bin/python3")
    for name in python_files():
        if ".so" in name:
            add_program(archive, name)
        elif name.endswith(".py"):
            archive.copy_python(name)
        else:
            archive.copy(name)
    archive.copy(f"{ROOT}/utils/demo_train.py", "py/demo_train.py")
    if os.path.exists(DIGITS):
        archive.copy(DIGITS, "py/digits.csv.gz")
    archive.finish()


class Images:
    """Makes what is asked for, once, in `directory`. A root file system is some archives, one after the other."""

    def __init__(self, directory, build_dir):
        self.directory, self.build_dir = directory, build_dir

    def _part(self, name, write, *args):
        path = f"{self.directory}/{name}.cpio"
        if not os.path.exists(path):
            write(path, *args)
        return path

    def _join(self, path, parts):
        with open(path, "wb") as out:
            for part in parts:
                with open(part, "rb") as file:
                    shutil.copyfileobj(file, out)

    def get(self, version, python=False):
        """(kernel, path of the root file system). Raises kernels.Unavailable."""
        kernel = kernels.get(version)
        parts = [self._part("base", write_base, self.build_dir), self._part(f"modules-{version}", write_modules, kernel)]
        if python:
            parts.append(self._part("python", write_python))
        return kernel, self._part(f"root-{version}{'-python' if python else ''}", self._join, parts)
