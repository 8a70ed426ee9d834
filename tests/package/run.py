#!/usr/bin/python3
"""The Debian packages, in a bare Debian that is made for it: they install, run, upgrade and leave nothing, and who has
nothing else gets from there to a training run.

    run.py [--packages DIRECTORY] [PATTERN ...]

Makes the packages (utils/package.sh) unless they are given. Every test has a copy of the bare system to itself, in
mount and process namespaces of its own. One line a test, the last one is the count.
"""
import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
DIGITS = f"{TREE}/subprojects/packagecache/digits.csv.gz"  # utils/demo.sh fetches them
# What changes whenever packages come and go, and belongs to the package manager.
ITS_OWN = ("/var/lib/dpkg/", "/var/lib/apt/", "/var/cache/", "/var/log/", "/etc/ld.so.cache", "/tmp/", "/run/",
           "/__pycache__", "/etc/resolv.conf")
# Enters a root directory that is a mount point: devices of its own, among them FUSE's.
ENTER = r"""
root=$1
shift
mount -t tmpfs -o mode=755 dev "$root/dev"
for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 fuse:10:229; do
    IFS=: read -r name major minor <<<"$device"
    mknod -m 666 "$root/dev/$name" c "$major" "$minor"
done
mkdir "$root/dev/shm"
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mount --rbind /sys "$root/sys"
mount -t proc proc "$root/proc"
exec chroot "$root" /usr/bin/env -i HOME=/root TERM=dumb LC_ALL=C DEBIAN_FRONTEND=noninteractive \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /bin/bash -c "$1"
"""


class Skip(Exception):
    pass


def output(*command, **more):
    """What a command prints on both, when it succeeds."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
    assert not done.returncode, f"{command[:2]} ended with {done.returncode}: {done.stdout[-3000:]}"
    return done.stdout


def contains(text, *parts):
    for part in parts:
        assert part in text, f"no {part!r} in: {text[-3000:]}"


# --- the bare system ---------------------------------------------------------------------------------------------

def sources():
    """A source list with the archive that this machine's own packages come from."""
    with open("/etc/os-release", encoding="utf-8") as file:
        codename = re.search(r"^VERSION_CODENAME=(\w+)", file.read(), re.M)[1]
    listed = output("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages",
                    "Origin: Debian")
    for line in listed.splitlines():
        if line.startswith(f"{codename} "):
            return codename, f"deb {line.split()[1]} {codename} main\n"
    raise Skip("the package lists of this machine name no Debian archive")


def make_bare(directory):
    """What a minimal installation has, numpy, and the package lists."""
    if not shutil.which("mmdebstrap"):
        raise Skip("mmdebstrap is not installed")
    codename, deb = sources()
    ways = f"{directory}/apt.conf"  # how this machine reaches it
    with open(ways, "w", encoding="utf-8") as file:
        file.writelines(line for line in output("apt-config", "dump", "--format", '%f "%v";%n', "Acquire")
                        .splitlines(keepends=True) if re.match(r"Acquire::(Check|https?)", line))
    made = subprocess.run(("mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--format=directory",
                           "--include=python3-numpy", "--skip=cleanup/apt/lists", f"--aptopt={ways}", codename,
                           f"{directory}/bare", "-"), input=deb, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    if made.returncode:
        raise Skip(f"no bare Debian can be had: {made.stdout[-300:].strip()}")
    shutil.copy("/etc/resolv.conf", f"{directory}/bare/etc/resolv.conf")


class Machine:
    """A copy of the bare system; what is done in it is forgotten."""

    def __init__(self, directory, packages):
        self.directory, self.packages = tempfile.mkdtemp(dir=directory), packages
        self.root = f"{self.directory}/root"
        for name in ("root", "upper", "work"):
            os.mkdir(f"{self.directory}/{name}")
        output("mount", "-t", "overlay", "-o", f"lowerdir={directory}/bare,upperdir={self.directory}/upper,"
               f"workdir={self.directory}/work", "machine", self.root)

    def close(self):
        output("umount", self.root)

    def put(self, path):
        shutil.copy(path, f"{self.root}/tmp")

    def run(self, script):
        """What a shell in it prints. Its processes and mounts end with it."""
        return output("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "bash", "-ec",
                      ENTER, "enter", self.root, f"set -e; cd /tmp\n{script}", stdin=subprocess.DEVNULL, timeout=300)


# --- tests -------------------------------------------------------------------------------------------------------

INSTALL = "apt-get -qq -y -o Dpkg::Use-Pty=0 --no-install-recommends install"
FILES = "find / -xdev -not -type d -o -xdev -type d -empty; dpkg-query -W"


def listed(text):
    return {line for line in text.splitlines() if not any(part in line for part in ITS_OWN)}


def newer(packages, directory):
    """The package again, under a higher version."""
    output("dpkg-deb", "-R", packages["fabricfs"], f"{directory}/newer")
    control = f"{directory}/newer/DEBIAN/control"
    output("sed", "-i", "s/^Version: .*/&+1/", control)
    output("dpkg-deb", "-b", f"{directory}/newer", f"{directory}/newer.deb")
    return f"{directory}/newer.deb"


def test_it_installs_runs_is_upgraded_under_a_job_and_leaves_nothing(machine):
    machine.put(machine.packages["fabricfs"])
    machine.put(newer(machine.packages, machine.directory))
    machine.run(f"{INSTALL} fuse3")  # which brings an adduser that stays, in Debian 13
    before = listed(machine.run(FILES))
    said = machine.run(f"""
        {INSTALL} ./fabricfs_*.deb
        fabricctl --help | head -n 1
        bash -c '. /usr/share/bash-completion/completions/fabricctl; complete -p fabricctl'
        ls /usr/share/man/man8/fabricfs.8.gz /usr/share/man/man1/fabricctl.1.gz
        ls /usr/share/doc/fabricfs/utils/pages/operator.md /usr/share/fabricfs/prometheus/fabricfs.rules.yml
        ls /*/systemd/system/multi-user.target.wants/fabricfs.service || true
        mkdir /fabric
        fabricfs -c /usr/share/doc/fabricfs/fabricfs.conf /fabric
        mkdir /fabric/jobs/kept
        echo world=1 >/fabric/jobs/kept/config
        mkdir /fabric/jobs/kept/ranks/0
        echo alive >/fabric/jobs/kept/ranks/0/buffer
        pid=$(sed -n 's/^pid //p' /fabric/stats)
        {INSTALL} ./newer.deb
        dpkg-query -W fabricfs
        [ "$pid" = "$(sed -n 's/^pid //p' /fabric/stats)" ] && cat /fabric/jobs/kept/ranks/0/buffer
        apt-get -qq -y purge --auto-remove fabricfs
        ls -d /fabric
        umount /fabric
        """)
    contains(said, "\ncomplete ", "/fabricfs.8.gz", "/fabricctl.1.gz", "/operator.md", "+1\n", "\nalive\n", "\n/fabric\n")
    machine.run(f"{INSTALL} ./newer.deb; mkdir -p /fabric; apt-get -qq -y purge --auto-remove fabricfs")
    after = listed(machine.run(FILES))
    assert after == before, f"left behind {sorted(after - before)}, taken away {sorted(before - after)}"


def printed_block(name):
    """What README.md prints as the file `name`."""
    with open(f"{TREE}/README.md", encoding="utf-8") as file:
        return re.search(rf"^```python file={name}\n(.*?)^```", file.read(), re.M | re.S)[1]


def test_a_newcomer_gets_from_a_bare_system_to_a_training_run(machine):
    if not os.path.exists(DIGITS):
        raise Skip("the digits are not here: utils/demo.sh fetches them")
    for path in (machine.packages["fabricfs"], machine.packages["python3-fabricfs"], DIGITS):
        machine.put(path)
    with open(f"{machine.root}/tmp/mean.py", "w", encoding="utf-8") as file:
        file.write(printed_block("mean.py"))
    said = machine.run(f"""
        {INSTALL} ./fabricfs_*.deb ./python3-fabricfs_*.deb
        mkdir -p /fabric
        fabricfs /fabric
        mkdir /fabric/jobs/mean
        echo world=2 >/fabric/jobs/mean/config
        python3 mean.py 0 &
        python3 mean.py 1
        wait
        for rank in 0 1; do
            RANK=$rank WORLD_SIZE=2 python3 -c '
import numpy as np
from fabricfs import Fabric
with Fabric("package") as fabric:
    x = np.full(2, fabric.rank + 1.0)
    fabric.allreduce(x)
    print("the package says", x.tolist())
' &
        done
        wait
        python3 /usr/share/doc/fabricfs/utils/demo_train.py --data digits.csv.gz --steps 200 /fabric
        umount /fabric
        """)
    contains(said, "[0.5 0.5 0.5]\n[0.5 0.5 0.5]\n", "the package says [3.0, 3.0]\nthe package says [3.0, 3.0]\n",
             "\nok    accuracy", "\nok    weights of all ranks bit-identical   yes")


def test_lintian_has_nothing_to_say(machine):
    if not shutil.which("lintian"):
        raise Skip("lintian is not installed")
    # It leaves files behind where it works.
    said = output("lintian", "--allow-root", *machine.packages.values(), env={**os.environ, "TMPDIR": machine.directory})
    assert not said, said


# --- running them ------------------------------------------------------------------------------------------------

def perform(function, directory, packages):
    machine = Machine(directory, packages)
    try:
        function(machine)
    except Skip as reason:
        return "skipped", f": {reason}"
    except Exception as error:
        return "failed", f"\n         {type(error).__name__}: {error}"
    finally:
        machine.close()
    return "passed", ""


def prepared(directory, packages):
    """The packages by name, and a bare system in the directory; both at once."""
    made = None
    if not packages:
        packages = f"{directory}/packages"
        made = subprocess.Popen((f"{TREE}/utils/package.sh", packages), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, env={**os.environ, "DEB_BUILD_OPTIONS": "noautodbgsym"})
    try:
        make_bare(directory)
    finally:
        said = made.communicate()[0] if made else ""
    assert not made or not made.returncode, f"the packages cannot be made: {said[-3000:]}"
    return {name.split("_")[0]: f"{packages}/{name}" for name in os.listdir(packages)
            if name.endswith(".deb") and "-dbgsym" not in name}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--packages", metavar="DIRECTORY")
    parser.add_argument("patterns", metavar="PATTERN", nargs="*")
    args = parser.parse_args()
    tests = [(name[5:].replace("_", " "), function) for name, function in globals().items() if name.startswith("test_")]
    tests = [(title, function) for title, function in tests
             if not args.patterns or any(pattern in title for pattern in args.patterns)]
    count = {"passed": 0, "failed": 0, "skipped": 0}
    with contextlib.ExitStack() as stack:
        directory = tempfile.mkdtemp(prefix="fabricfs-package.")
        stack.callback(os.rmdir, directory)
        output("mount", "-t", "tmpfs", "-o", "mode=755", "machine", directory)  # thousands of small files
        stack.callback(output, "umount", directory)
        started = time.monotonic()
        try:
            packages = prepared(directory, args.packages)
            print(f"a bare system and the packages were made in {time.monotonic() - started:.0f} s")
        except (Skip, AssertionError) as reason:
            outcome = "skipped" if isinstance(reason, Skip) else "failed"
            print(f"{outcome:8} all: {reason}")
            count[outcome], tests = len(tests), []
        for title, function in tests:
            started = time.monotonic()
            outcome, text = perform(function, directory, packages)
            count[outcome] += 1
            print(f"{outcome:8} {title} ({time.monotonic() - started:.0f} s){text}", flush=True)
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
