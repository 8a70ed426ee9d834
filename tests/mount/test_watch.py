"""Devices that are watched: a daemon on a made-up sysfs tree that the test changes under it."""
import os
import signal
import subprocess
import sys

from harness import (PATIENCE, Fabric, Mount, contains, equal, fails, needs, process_state, read, run_all, values,
                     wait_until, write)

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../pci"))
import make  # noqa: E402

PORT, SWITCH, DEVICE = "0000:00:01.0", "0000:02:00.0", "0000:03:00.0"
KINDS = {"correctable": "COR", "nonfatal": "NONFATAL", "fatal": "FATAL"}
LOOK = ("-o", "sample_ms=20")


class Tree:
    """A root port, a switch and behind it an NTB and a NIC, in files that change in place as the kernel's do."""

    def __init__(self, env, machine=None):
        self.machine = machine or make.switch("00:01.0", 1, [make.NTB, make.NIC])
        self.path = os.path.join(env.directory, "sysfs")
        for fn in self.machine:
            for kind, word in KINDS.items():
                fn.attrs.setdefault(f"aer_dev_{kind}", f"Any {5 if kind == 'correctable' else 0}\nTOTAL_ERR_{word} 5")
        make.sysfs(self.machine, self.path)

    def fn(self, address):
        return next(fn for fn in self.machine if make.full(fn.address) == address)

    def directory(self, address):
        return os.path.join(self.path, make.path_of(self.machine, self.fn(address)))

    def put(self, address, name, text):
        """In one write, so that no look finds half of it."""
        fd = os.open(os.path.join(self.directory(address), name), os.O_WRONLY)
        os.pwrite(fd, text.encode().ljust(200) if isinstance(text, str) else text, 0)
        os.close(fd)

    def run_at(self, speed, width, *addresses):
        """Both ends of a link, or what is given of it, run at that from now on."""
        for address in addresses:
            fn = self.fn(address)
            fn.now = (speed, width)
            self.put(address, "config", fn.config())
            self.put(address, "current_link_speed", f"{speed:.1f} GT/s PCIe\n")
            self.put(address, "current_link_width", f"{width}\n")

    def count(self, address, kind, total):
        self.put(address, f"aer_dev_{kind}", f"Any {total}\nTOTAL_ERR_{KINDS[kind]} {total}\n")

    def silence(self, address):
        self.put(address, "config", b"\xff" * 4096)

    def restore(self, address):
        self.put(address, "config", self.fn(address).config())


class Watching(Fabric):
    """Two nodes; node 0 reaches node 1 by the NTB of a tree."""

    def __init__(self, env, tree, *options, lines=""):
        self.tree = tree
        super().__init__(env, 2, start=())
        conf = f"{env.directory}/conf"
        with open(conf, "w", encoding="utf-8") as file:
            file.write(f"[fabric]\nname = {self.name}\nnodes = 2\nsysfs = {tree.path}\n{lines}"
                       f"[node 1]\ndevice = {DEVICE}\n")
        self.options = (*LOOK, "-o", "heartbeat_ms=5000", *options)
        self.mounts[0] = Mount(env, ("-c", conf, *self.options))
        self.wait_looks(2)

    def add_peer(self):
        self.add(1)
        self.wait_up()

    def watched(self):
        return self.link(0, 1)

    def metric(self, name, **labels):
        for line in self[0].read("metrics").splitlines():
            head, _, value = line.rpartition(" ")
            if head.startswith(f"fabricfs_{name}{{") and all(f'{key}="{word}"' in head for key, word in labels.items()):
                return float(value)
        raise AssertionError(f"no metric {name} {labels}")

    def looks(self):
        return self.metric("link_looks_total", node=1)

    def wait_looks(self, more):
        """Returns when the device was looked at so many more times."""
        before = 0 if more == 2 and "link_looks_total{" not in self[0].read("metrics") else self.looks()
        wait_until(lambda: self.looks() >= before + more, f"{more} looks")

    def events(self, *words):
        return [line for line in self[0].read("events").splitlines() if all(word in line for word in words)]

    def wait_said(self, *words):
        wait_until(lambda: self.events(*words), f"an event says {words}: {self[0].read('events')}")

    def findings(self):
        return [line for line in self[0].read("health").splitlines() if "is absent" not in line and line != "ok"]


def bounce(fabric):
    """The device's link degrades and recovers, each seen by a look."""
    fabric.tree.run_at(16, 8, SWITCH, DEVICE)
    wait_until(lambda: fabric.metric("link_degraded", node=1) == 1, "the drop is seen")
    fabric.tree.run_at(16, 16, SWITCH, DEVICE)
    wait_until(lambda: fabric.metric("link_degraded", node=1) == 0, "the recovery is seen")


def bounce_until_suspect(fabric):
    """Drops are forgotten with time: a machine that is slow takes more of them."""
    before = len(fabric.events("error nodes/1 suspect: its link flaps"))

    def is_suspect():
        bounce(fabric)
        return len(fabric.events("error nodes/1 suspect: its link flaps")) > before
    wait_until(is_suspect, "its link flaps", 4 * PATIENCE)


@needs(mount=False)
def test_link_shows_the_whole_path_both_ends_and_what_it_can_carry(env):
    tree = Tree(env)
    tree.put("0000:00:01.0", "numa_node", "1\n")
    fabric = Watching(env, tree)
    link = fabric.watched()
    equal(link["device"], DEVICE)
    equal(link["hardware"], "ok")
    contains(link["hop0"], f"{SWITCH} - {DEVICE} runs at 16 GT/s x16 of 16 GT/s x16: full")
    contains(link["hop1"], f"{PORT} - 0000:01:00.0 runs at 16 GT/s x16 of 16 GT/s x16: full")
    equal((link["gbytes_s"], link["possible_gbytes_s"], link["practical_gbytes_s"]), ("31.508", "31.508", "22.915"))
    equal([link[f"aer_{kind}"] for kind in KINDS], ["0", "0", "0"], "errors from before the daemon")
    equal((link["acs_redirect"], link["dpc"], link["iommu_group"]), ("no ACS", "no", "-"))
    equal(fabric.findings(), [])
    contains(fabric[0].read("topology"), f"device={DEVICE} gbytes_s=31.51")
    fabric.finish()


@needs(mount=False)
def test_a_drop_is_an_event_a_metric_and_a_finding_within_two_looks_and_so_is_its_end(env):
    fabric = Watching(env, Tree(env))
    fabric.tree.run_at(8, 16, SWITCH, DEVICE)
    fabric.wait_looks(2)
    contains(fabric.events("warn nodes/1 link dropped")[0], f"{SWITCH} - {DEVICE}", "8 GT/s x16 of 16 GT/s x16", "15.75")
    equal((fabric.metric("link_degraded", node=1), fabric.metric("link_drops_total", node=1)), (1.0, 1.0))
    contains(fabric.findings()[0], "warn nodes/1 link", "15.75 of 31.51 GB/s", "next:")
    contains(fabric.watched()["bottleneck"], SWITCH)
    fabric.tree.run_at(16, 16, SWITCH, DEVICE)
    fabric.wait_looks(2)
    equal(len(fabric.events("info nodes/1 link is back")), 1)
    equal(fabric.findings(), [])
    equal(fabric.watched()["hardware"], "ok")
    fabric.finish()


@needs(mount=False)
def test_the_narrowest_hop_is_named_wherever_it_is(env):
    fabric = Watching(env, Tree(env))
    fabric.tree.run_at(16, 4, PORT, "0000:01:00.0")
    fabric.wait_looks(2)
    contains(fabric.watched()["bottleneck"], f"{PORT} - 0000:01:00.0 runs at 16 GT/s x4")
    contains(fabric.findings()[0], PORT, "7.88 of 31.51")
    fabric.finish()


@needs(mount=False)
def test_links_that_are_slow_on_purpose_raise_nothing(env):
    machine = make.switch("00:01.0", 1, [make.GPU, make.NIC])
    machine[3].cap = machine[3].now = (16, 8)  # a narrow device in a wide port
    machine[2].now = (16, 8)
    fabric = Watching(env, Tree(env, machine))
    equal(fabric.findings(), [])
    fabric.tree.run_at(2.5, 8, SWITCH, DEVICE)  # an idle GPU
    fabric.wait_looks(2)
    contains(fabric.watched()["hop0"], "idle")
    equal((fabric.findings(), fabric.events("nodes/1 link")), ([], []))
    fabric.tree.run_at(8, 8, SWITCH, DEVICE)
    fabric.tree.put(DEVICE, "enable", "0\n")
    fabric.wait_looks(2)
    fabric.tree.run_at(5, 4, SWITCH, DEVICE)
    fabric.wait_looks(2)
    contains(fabric.watched()["hop0"], "disabled")
    equal(fabric.findings(), [])
    fabric.finish()


@needs(mount=False)
def test_error_counters_of_all_functions_are_summed_and_may_restart(env):
    fabric = Watching(env, Tree(env))
    fabric.tree.count(PORT, "correctable", 25)
    fabric.tree.count(DEVICE, "correctable", 12)
    wait_until(lambda: fabric.watched()["aer_correctable"] == "27", "both are counted")
    fabric.tree.count(DEVICE, "correctable", 3)  # the device was reset
    fabric.tree.count(SWITCH, "nonfatal", 6)
    wait_until(lambda: fabric.watched()["aer_correctable"] == "30", "what was counted since the restart")
    wait_until(lambda: fabric.metric("link_errors_total", node=1, kind="nonfatal") == 1, "the other kind is counted")
    equal(len(fabric.events("errors")), 1, "events, however many errors in a minute")
    equal(fabric.findings(), [])
    fabric.finish()


@needs(mount=False)
def test_a_storm_of_errors_makes_the_node_suspect_and_drains_it_once(env):
    told = f"{env.directory}/told"
    fabric = Watching(env, Tree(env), lines=f"error_limit = 50\nwell_s = 1\ndrain = printf '%s\\n' "
                      f"\"$FABRICFS_NODE $FABRICFS_JOBS $FABRICFS_REASON\" >> {told}; echo drained\n")
    fabric.add_peer()
    ranks = fabric.job([0, 1], name="storm").ranks()
    run_all(ranks, "count=0")
    fabric.tree.count(DEVICE, "correctable", 1000)
    fabric.wait_said("error nodes/1 suspect", "more than 50 errors in 10 s", "995 correctable", DEVICE)
    fabric.wait_said("nodes/1 drain command ended with status 0: drained")
    equal(fabric.metric("node_suspect", node=1), 1.0)
    equal(fabric.watched()["hardware"], "suspect")
    contains(fabric.findings()[0], "error nodes/1 is suspect", "drop=suspect")
    fabric.tree.count(DEVICE, "correctable", 2000)
    fabric.wait_looks(3)
    contains(read(told), "1 storm more than 50 errors")
    equal(read(told).count("\n"), 1, "runs of the command")
    members = [line for line in fabric[0].read("jobs", "storm", "members").splitlines()]
    assert members[1].endswith("suspect=yes") and "suspect" not in members[0], members
    write(fabric[0].file("jobs/storm/members"), "drop=suspect\n")
    contains(fabric[0].read("jobs", "storm", "members"), "rank=1 node=1", "state=dropped")
    run_all(ranks[:1], "count=0")
    fabric.finish()


@needs(mount=False, seconds=200)
def test_a_flapping_link_makes_the_node_suspect_until_it_was_well_for_a_while(env):
    told = f"{env.directory}/told"
    fabric = Watching(env, Tree(env), lines=f"drop_limit = 20\nwell_s = 1\ndrain = echo $FABRICFS_DEVICE >> {told}\n")
    bounce(fabric)
    equal(fabric.events("suspect"), [])
    bounce_until_suspect(fabric)
    wait_until(lambda: fabric.events("info nodes/1 well again"), "it is well again", 20)
    equal(fabric.watched()["hardware"], "ok")
    fabric.wait_said("nodes/1 drain command ended with status 0")
    equal(read(told), f"{DEVICE}\n")
    bounce_until_suspect(fabric)
    wait_until(lambda: read(told) == f"{DEVICE}\n" * 2, "the command is run again for the next time")
    fabric.finish()


@needs(mount=False)
def test_a_device_that_several_nodes_share_is_this_nodes_trouble(env):
    tree, told = Tree(env), f"{env.directory}/told"
    conf = f"{env.directory}/conf"
    with open(conf, "w", encoding="utf-8") as file:
        file.write(f"[fabric]\nname = {env.memory_name()}\nsysfs = {tree.path}\nerror_limit = 10\n"
                   f"drain = echo $FABRICFS_NODE >> {told}\n")
        file.writelines(f"[node {node}]\ndevice = {DEVICE}\n" for node in (1, 2))
    mount = Mount(env, ("-c", conf, *LOOK))
    wait_until(lambda: all(values(mount.read("nodes", node, "link")).get("hardware") == "ok" for node in (1, 2)), "seen")
    tree.count(DEVICE, "correctable", 1000)
    wait_until(lambda: os.path.exists(told) and "ended with status 0" in mount.read("events"), "the command was run")
    equal(read(told), "0\n")
    equal([line.split()[1] for line in mount.read("health").splitlines() if "suspect" in line], ["nodes/0"])
    mount.finish()


@needs(mount=False)
def test_a_drain_command_that_hangs_is_killed_with_all_it_started(env):
    pid = f"{env.directory}/pid"
    fabric = Watching(env, Tree(env), lines=f"drain_timeout = 3\ndrain = sleep 1000 & echo $! > {pid}; wait\n")
    fabric.tree.count(PORT, "fatal", 1000)
    fabric.wait_said("error nodes/1 drain command was killed after 3 s")
    wait_until(lambda: process_state(int(read(pid))) in ("", "Z"), "what it started has ended")
    fabric.finish()


@needs(mount=False)
def test_a_drain_command_that_runs_does_not_keep_the_daemon(env):
    pid = f"{env.directory}/pid"
    fabric = Watching(env, Tree(env), lines=f"drain = echo $$ > {pid}; exec sleep 1000\n")
    fabric.tree.count(PORT, "fatal", 1000)
    wait_until(lambda: os.path.exists(pid) and read(pid), "it runs")
    fabric.finish()
    assert process_state(int(read(pid))) not in ("", "Z"), "the command ended with the daemon"
    os.kill(int(read(pid)), signal.SIGKILL)


@needs(mount=False)
def test_a_device_that_vanishes_is_gone_and_one_that_returns_is_watched_again(env):
    fabric = Watching(env, Tree(env))
    tree, listed = fabric.tree, os.path.join(fabric.tree.path, "bus/pci/devices", DEVICE)
    tree.silence(DEVICE)
    fabric.wait_said("warn nodes/1 device", DEVICE, "does not answer")
    equal(fabric.watched()["hardware"], "gone")
    contains(fabric.findings()[0], "error nodes/1", DEVICE, "does not answer")
    tree.restore(DEVICE)
    wait_until(lambda: fabric.watched()["hardware"] == "ok", "it answers again")
    target = os.readlink(listed)
    os.unlink(listed)
    wait_until(lambda: fabric.watched()["hardware"] == "gone", "it is not listed")
    fabric.wait_looks(2)
    os.symlink(target, listed)
    wait_until(lambda: fabric.watched()["hardware"] == "ok", "it is listed again")
    tree.run_at(8, 16, SWITCH, DEVICE)
    wait_until(lambda: fabric.watched()["hardware"] == "degraded", "and watched")
    fabric.finish()


@needs(mount=False)
def test_a_look_that_does_not_return_is_told_and_does_not_keep_the_daemon(env):
    """The file of a daemon that is stopped lies over a counter: who reads it waits."""
    fabric, other = Watching(env, Tree(env)), Mount(env)
    counter = os.path.join(fabric.tree.directory(DEVICE), "aer_dev_fatal")
    subprocess.run(("mount", "--bind", other.file("nodes", 0, "window"), counter), check=True)
    os.unlink(listed := os.path.join(fabric.tree.path, "bus/pci/devices", DEVICE))
    wait_until(lambda: fabric.watched()["hardware"] == "gone", "it is not listed")
    os.kill(other.pid, signal.SIGSTOP)
    try:
        os.symlink("../../../" + make.path_of(fabric.tree.machine, fabric.tree.fn(DEVICE)), listed)
        wait_until(lambda: other.waiting() > 0, "a look waits for the file")
        wait_until(lambda: "has not ended" in fabric[0].read("health"), "health tells of it")
        equal(fabric[0].stop(), 0)
        contains(fabric[0].said(), "left behind")
        assert not os.path.ismount(fabric[0].path), "the mount is still there"
        fabric[0].process = None
    finally:
        os.kill(other.pid, signal.SIGCONT)
    subprocess.run(("umount", counter), check=True)
    other.finish()


@needs(mount=False)
def test_a_device_that_is_not_there_yet_is_waited_for(env):
    tree = Tree(env)
    listed = os.path.join(tree.path, "bus/pci/devices", DEVICE)
    target = os.readlink(listed)
    os.unlink(listed)
    conf = f"{env.directory}/conf"
    with open(conf, "w", encoding="utf-8") as file:
        file.write(f"[fabric]\nsysfs = {tree.path}\n[node 0]\ndevice = {DEVICE}\n")
    mount = Mount(env, ("-c", conf, *LOOK))
    wait_until(lambda: "there is no device" in mount.read("health"), "health names it")
    equal(values(mount.read("nodes", 0, "link"))["hardware"], "absent")
    os.symlink(target, listed)
    wait_until(lambda: values(mount.read("nodes", 0, "link"))["hardware"] == "ok", "it is found")
    equal(mount.read("health"), "ok\n")
    mount.finish()


@needs(mount=False)
def test_nonsense_in_the_tree_is_unknown_and_no_finding(env):
    fabric = Watching(env, Tree(env))
    for text in ("Unknown\n", "0\n", "255\n", "", "\0\xff\n", "-1 GT/s\n"):
        for address in (PORT, SWITCH, DEVICE):
            for name in ("current_link_speed", "current_link_width"):
                fabric.tree.put(address, name, text)
            for kind in KINDS:
                fabric.tree.put(address, f"aer_dev_{kind}", text)
        fabric.wait_looks(2)
    for address in (PORT, SWITCH, DEVICE):
        fabric.tree.put(address, "config", os.urandom(4096))
    fabric.wait_looks(3)
    equal(fabric.metric("node_suspect", node=1), 0.0)
    fabric.finish()


@needs(mount=False)
def test_a_domain_of_more_than_16_bits_is_one_like_others(env):
    tree = Tree(env, make.switch("00:01.0", 1, [make.NTB], domain="10000"))
    conf = f"{env.directory}/conf"
    with open(conf, "w", encoding="utf-8") as file:
        file.write(f"[fabric]\nsysfs = {tree.path}\n[node 0]\ndevice = 10000:03:00.0\n")
    mount = Mount(env, ("-c", conf, *LOOK))
    wait_until(lambda: values(mount.read("nodes", 0, "link"))["hardware"] == "ok", "it was looked at")
    contains(values(mount.read("nodes", 0, "link"))["hop1"], "10000:00:01.0 - 10000:01:00.0 runs at 16 GT/s x16")
    tree.run_at(8, 16, "10000:00:01.0", "10000:01:00.0")
    wait_until(lambda: "10000:00:01.0" in mount.read("health"), "the drop is a finding")
    mount.finish()


@needs(mount=False)
def test_a_device_without_express_has_no_figures_that_nobody_measured(env):
    machine = [make.Fn("00:03.0", make.NTB, None, aer=None, attrs={f"aer_dev_{kind}": None for kind in KINDS})]
    tree = Tree(env, machine)
    conf = f"{env.directory}/conf"
    with open(conf, "w", encoding="utf-8") as file:
        file.write(f"[fabric]\nsysfs = {tree.path}\n[node 0]\ndevice = 0000:00:03.0\n")
    mount = Mount(env, ("-c", conf, *LOOK))
    wait_until(lambda: values(mount.read("nodes", 0, "link"))["hardware"] == "ok", "it was looked at")
    link = values(mount.read("nodes", 0, "link"))
    equal([link[name] for name in ("bottleneck", "gbytes_s", "possible_gbytes_s", "practical_gbytes_s", "aer_fatal",
                                   "aer_sticky", "acs_redirect", "dpc")], ["n/a", "-", "-", "-", "-", "n/a", "n/a", "n/a"])
    assert "fabricfs_link_gbytes_per_second{" not in mount.read("metrics"), "a rate that is not known"
    equal(mount.read("health"), "ok\n")
    mount.finish()


@needs(mount=False)
def test_without_registers_the_daemon_says_so_and_watches_what_sysfs_shows(env):
    tree = Tree(env)
    for address in (PORT, "0000:01:00.0", SWITCH, DEVICE):
        os.truncate(f"{tree.directory(address)}/config", 64)
    fabric = Watching(env, tree)
    contains(fabric.watched()["registers"], "not root")
    equal(fabric.watched()["acs_redirect"], "needs root")
    for address in (SWITCH, DEVICE):
        fabric.tree.put(address, "current_link_width", "4\n")
    fabric.wait_looks(2)
    contains(fabric.findings()[0], "16 GT/s x4 of 16 GT/s x16")
    fabric.finish()


@needs(nodes=2)
def test_a_window_of_this_machines_memory_has_no_device(fabric):
    equal(fabric.link(0, 1)["device"], "none")
    assert "fabricfs_link_gbytes_per_second{" not in fabric[0].read("metrics"), "a sample of no device"
    ranks = fabric.job([0, 1]).ranks()
    fails(2, write, fabric[0].file(f"jobs/{ranks[0].job.name}/members"), "drop=suspect\n")


@needs(mount=False)
def test_sessions_that_come_and_go_while_the_daemon_lives_make_a_node_suspect(env):
    told = f"{env.directory}/told"
    fabric = Fabric(env, 2, options=("-o", "faults", "-o", "heartbeat_ms=2000", "-o", "drop_limit=2", "-o", "well_s=1",
                                     "-o", f"drain=echo $FABRICFS_NODE $FABRICFS_HOST >> {told}"))
    fabric.wait_up()
    for cut in range(3):
        assert "suspect" not in fabric[0].read("health"), f"suspect after {cut} losses"
        for node in (0, 1):
            write(fabric[node].file("nodes", 1 - node, "link"), "lost")
        for node in (0, 1):
            fabric.wait_link(node, 1 - node, "absent")
        for node in (0, 1):
            write(fabric[node].file("nodes", 1 - node, "link"), "none")
        fabric.wait_up()
    fabric.wait_event("error nodes/1 suspect: its link flaps: sessions were lost more than 2 times", nodes=[0])
    fabric.wait_event("info nodes/1 well again", nodes=[0])
    fabric.wait_event("nodes/1 drain command ended with status 0", nodes=[0])
    contains(read(told), f"1 {os.uname().nodename}\n")
    fabric.finish()


@needs(mount=False)
def test_a_daemon_that_is_started_again_and_again_is_not_a_flapping_link(env):
    fabric = Fabric(env, 2, options=("-o", "heartbeat_ms=2000", "-o", "drop_limit=1"))
    for _ in range(4):
        fabric.wait_up()
        fabric[1].process.kill()
        fabric[1].process.wait()
        wait_until(lambda: fabric.link(0, 1)["state"] not in ("up", "suspect"), "node 0 misses it")
        fabric[1].start()
    fabric.wait_up()
    equal([line for line in fabric[0].read("events").splitlines() if "suspect:" in line], [])
    fabric.finish()


@needs(mount=False)
def test_the_example_for_slurm_drains_the_host_with_the_reason(env):
    told, bin_dir = f"{env.directory}/told", f"{env.directory}/bin"
    os.mkdir(bin_dir)
    with open(f"{bin_dir}/scontrol", "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\nprintf '<%s>' \"$@\" > {told}\n")
    os.chmod(f"{bin_dir}/scontrol", 0o755)
    script = os.path.join(HERE, "../../utils/drain-slurm.sh")
    fabric = Watching(env, Tree(env), lines=f"drain = PATH={bin_dir}:$PATH {script}\n")
    fabric.add_peer()
    fabric.tree.count(DEVICE, "correctable", 1000)
    fabric.wait_said("nodes/1 drain command ended with status 0")
    host = os.uname().nodename.split(".")[0]
    contains(read(told), f"<update><NodeName={host}><State=DRAIN><Reason=fabricfs on {host}: more than 100 errors in 10 s",
             "(jobs: none)>")
    fabric.finish()
