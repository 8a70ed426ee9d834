"""Where memory and threads are put: a machine with one NUMA node is enough to see what was asked of the kernel."""
import os
import re
import subprocess

from harness import Mount, contains, equal, needs, read, wait_until
from test_watch import DEVICE, Tree


def start(env, *nodes, options=()):
    """Alone, with devices of a tree for a few other nodes; nodes: the NUMA node of each."""
    tree = Tree(env)
    devices = (DEVICE, "0000:04:00.0")
    for device, node in zip(devices, nodes):
        tree.put(device, "numa_node", f"{node}\n")
    conf = f"{env.directory}/conf"
    with open(conf, "w", encoding="utf-8") as file:
        file.write(f"[fabric]\nname = {env.memory_name()}\nsysfs = {tree.path}\n[node 0]\nswitch = A\n")
        file.writelines(f"[node {i}]\ndevice = {device}\n" for i, (device, _) in enumerate(zip(devices, nodes), 1))
    return Mount(env, ("-c", conf, *options))


def placed(mount):
    return [line for line in mount.read("topology").splitlines() if line.startswith("numa ")]


def policies(mount, what):
    """Of the daemon's mappings whose name has `what`."""
    return {line.split()[1] for line in read(f"/proc/{mount.pid}/numa_maps").splitlines() if what in line}


def cpus_of(text):
    ranges = [list(map(int, word.split("-"))) for word in text.strip().split(",")]
    return {cpu for first, *last in ranges for cpu in range(first, (last or [first])[0] + 1)}


def wait_policy(mount, what, policy):
    """The kernel may leave lines out of the list while mappings come and go."""
    wait_until(lambda: policies(mount, what) == {policy}, f"mappings of {what} are {policy}: {policies(mount, what)}")


@needs(mount=False)
def test_memory_and_threads_are_put_beside_the_devices(env):
    mount = start(env, 0, 0)
    equal(placed(mount), ["numa 0 (that of device 0000:04:00.0)"])
    contains(mount.read("config"), "; in force: numa 0 (", "numa = auto")
    wait_policy(mount, f"fabricfs.{env.memory_name()}", "prefer:0")
    job = mount.job(1, size=65536)
    rank = job.rank(0)
    rank.run("op=sum")
    wait_policy(mount, "file=/#", "prefer:0")  # a buffer is a file without a name
    on_node = cpus_of(read("/sys/devices/system/node/node0/cpulist"))

    def threads():  # each binds itself when it begins
        return [cpus_of(re.search("Cpus_allowed_list:(.*)", read(f"/proc/{mount.pid}/task/{task}/status"))[1])
                for task in os.listdir(f"/proc/{mount.pid}/task")]
    wait_until(lambda: all({cpu} in threads() for cpu in on_node), "each processor has a worker of its own")
    wait_until(lambda: set().union(*threads()) == on_node, "no thread runs elsewhere")
    mount.finish()


@needs(mount=False)
def test_devices_on_different_nodes_leave_it_to_the_kernel_and_so_does_none(env):
    mount = start(env, 0, 1)
    equal(placed(mount), ["numa none (the devices are on different nodes)"])
    wait_policy(mount, f"fabricfs.{env.memory_name()}", "default")
    mount.finish()


@needs(mount=False)
def test_a_device_that_does_not_know_its_node_is_passed_over(env):
    mount = start(env, -1, 0, options=("--numa", "auto"))
    equal(placed(mount), ["numa 0 (that of device 0000:04:00.0)"])
    mount.finish()


@needs(mount=False)
def test_the_option_wins_over_the_devices(env):
    mount = start(env, 0, 0, options=("--numa", "none"))
    equal(placed(mount), ["numa none (asked for by the numa option)"])
    mount.finish()


@needs(mount=False)
def test_a_node_that_the_machine_lacks_is_left_or_refused_when_it_was_asked_for(env):
    mount = start(env, 999, 999)
    equal(placed(mount), ["numa none (node 999 has no CPUs and memory that may be used)"])
    mount.finish()
    point = f"{env.directory}/point"
    os.mkdir(point)
    done = subprocess.run([env.program, "--numa", "999", point], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=20, check=False)
    equal((done.returncode, done.stderr.count("\n")), (1, 1), f"status and lines of {done.stderr!r}")
    contains(done.stderr, "numa = 999: this machine has no such node")
