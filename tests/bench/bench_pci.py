#!/usr/bin/python3
"""What looking at PCI devices costs.

    bench_pci.py [--build DIR] [watch|doctor ...]

watch       CPU that a daemon spends on watching 10 devices behind switches (4 functions, 2 links each), in a made-up
            sysfs tree, and one device of this machine for each it has, up to 10. Measured at 100 looks a second against
            the same daemon that does not look, and given for one look a second.
doctor      fabricctl doctor, topo and links on a made-up machine of 137 functions, as sysfs tree and as lspci hex

Figures, not tests; a line says "OVER" where one misses its aim.
"""
import argparse
import glob
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../mount"), os.path.join(HERE, "../pci")]
sys.dont_write_bytecode = True
import make  # noqa: E402
from harness import Environment, Mount, wait_until  # noqa: E402

LOOK_MS, SECONDS, DEVICES = 10, 4, 10


def report(what, figure, aim, holds):
    print(f"{what:58} {figure:>12}   aim {aim:14} {'holds' if holds else 'OVER'}", flush=True)


def cpu_ns(pid):
    """Of all threads, by the scheduler's own count."""
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with open(path, encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total


def looks(mount):
    return sum(float(line.split()[-1]) for line in mount.read("metrics").splitlines()
               if line.startswith("fabricfs_link_looks_total{"))


def spent(env, sysfs, devices, sample_ms):
    """(CPU seconds, looks at a device) of a daemon in SECONDS."""
    conf = os.path.join(env.directory, "conf")
    with open(conf, "w", encoding="utf-8") as file:
        file.write(f"[fabric]\nname = {env.memory_name()}\nsysfs = {sysfs}\nsample_ms = {sample_ms}\n")
        file.writelines(f"[node {node}]\ndevice = {device}\n" for node, device in enumerate(devices, 1))
    mount = Mount(env, ("-c", conf))
    try:
        if sample_ms:
            wait_until(lambda: looks(mount) >= len(devices), "all were looked at")
        before, seen = cpu_ns(mount.pid), looks(mount)
        time.sleep(SECONDS)
        return (cpu_ns(mount.pid) - before) / 1e9, looks(mount) - seen
    finally:
        mount.stop()


def cost(env, what, sysfs, devices):
    base, _ = spent(env, sysfs, devices, 0)
    busy, seen = spent(env, sysfs, devices, LOOK_MS)
    one = max(busy - base, 0) / seen
    report(f"{what}: one look at one device", f"{one * 1e6:.1f} us", "-", True)
    share = one * DEVICES * 100
    report(f"{what}: 10 devices, each looked at once a second", f"{share:.4f} %", "under 0.1 %", share < 0.1)


COUNTERS = {  # as the kernel writes them
    "correctable": "RxErr BadTLP BadDLLP Rollover Timeout NonFatalErr CorrIntErr HeaderOF TOTAL_ERR_COR",
    "nonfatal": "Undefined DLP SDES TLP FCP CmpltTO CmpltAbrt UnxCmplt RxOF MalfTLP ECRC UnsupReq ACSViol UncorrIntErr "
                "BlockedTLP AtomicOpBlocked TLPBlockedErr PoisonTLPBlocked TOTAL_ERR_NONFATAL"}
COUNTERS["fatal"] = COUNTERS["nonfatal"].replace("NONFATAL", "FATAL")


def counting_server():
    machine = make.server()
    for fn in machine:
        fn.attrs = {**fn.attrs, **{f"aer_dev_{kind}": "".join(f"{name} 0\n" for name in names.split())
                                   for kind, names in COUNTERS.items()}}
    return machine


def watch(env):
    tree = make.sysfs(counting_server(), os.path.join(env.directory, "server"))
    names = [f"{base + 0x18 * i + 3 + slot:02x}" for base in (0, 0x80) for i in range(4) for slot in range(2)]
    cost(env, "made-up tree", tree, [f"0000:{name}:00.0" for name in names[:DEVICES]])
    here = sorted(os.path.basename(path) for path in glob.glob("/sys/bus/pci/devices/*"))
    if here:
        cost(env, "this machine", "/sys", (here * DEVICES)[:DEVICES])


def doctor(env):
    machine, times = make.server(), 20
    tree = make.sysfs(machine, os.path.join(env.directory, "server"))
    dump = os.path.join(env.directory, "dump")
    with open(dump, "w", encoding="ascii") as file:
        file.write(make.dump(machine))
    program = os.path.join(env.build, "utils", "fabricctl")
    for source, path in (("--sysfs", tree), ("--dump", dump)):
        for command in ("doctor", "topo", "links"):
            took, cpu = [], []
            for _ in range(times):
                start = time.monotonic()
                process = subprocess.Popen([program, command, source, path], stdout=subprocess.DEVNULL)
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                took.append(time.monotonic() - start)
                cpu.append(usage.ru_utime + usage.ru_stime)
                assert process.returncode in (0, 1), f"{command}: status {process.returncode}"
            report(f"{command} {source}, {len(machine)} functions: median of {times}",
                   f"{statistics.median(took) * 1e3:.1f} ms", "under 200 ms", statistics.median(took) < 0.2)
            report(f"{command} {source}: CPU time of it", f"{statistics.median(cpu) * 1e3:.1f} ms", "-", True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(HERE, "../../build"))
    parser.add_argument("what", nargs="*")
    args = parser.parse_args()
    known = {"watch": watch, "doctor": doctor}
    for name in args.what or known:
        if name not in known:
            parser.error(f"no figure is called {name}")
    for name in args.what or known:
        with Environment(os.path.abspath(args.build), "passthrough") as env:
            known[name](env)
    return 0


if __name__ == "__main__":
    sys.exit(main())
