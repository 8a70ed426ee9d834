"""The tests between virtual machines. Each boots the guests it needs; guest.py and cluster.py say what those are."""
import errno
import json
import os
import subprocess
import tempfile

import image
from cluster import MIB, MOUNT, WINDOW_MIB, Cluster, in_parallel


class Skip(Exception):
    """The test cannot run here; the text says why."""


def contains(text, *words):
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"


def equal(actual, wanted, what):
    assert actual == wanted, f"{what}: {actual!r}, not {wanted!r}"


def rank(node, number, what, job, world, count, last, seconds=120):
    """What the rank program printed; it must succeed."""
    return node.run(f"rank {what} {job} {number} {world} {count} {last}", seconds).strip()


def verify(cluster, job, count, rounds=2, seconds=120):
    """Runs every collective on every node, one rank each; each rank checks every element."""
    world = cluster.count
    said = in_parallel(lambda node: rank(node, node.number, "verify", job, world, count, rounds, seconds), cluster.nodes)
    equal(said, ["verified"] * world, "what the ranks say")


def remote_reads(node):
    return {number: node.values(f"{MOUNT}/nodes/{number}/stats")["remote_reads"] for number in node.others()}


def check_collectives(cluster):
    """All collectives, short, uneven and longer than all slots together, without a read across a window."""
    before = [remote_reads(node) for node in cluster.nodes]
    for job, count in (("short", 7), ("uneven", 100003), ("long", 3 * MIB // 2)):
        verify(cluster, job, count, rounds=1 if job == "long" else 2)
    equal([remote_reads(node) for node in cluster.nodes], before, "reads across the windows, after and before")


def check_windows(node, other, mapped, coherent=False):
    """nodes/N/window of `node` is the landing memory of `other`: read, written, and mapped where it can be."""
    window, own = f"{MOUNT}/nodes/{other.number}/window", f"{MOUNT}/nodes/{other.number}/window"
    head = "dd if={} bs=64 count=1 2>/dev/null | md5sum"
    equal(node.run(head.format(window)), other.run(head.format(own)), "the header page from both sides")
    size = int(node.run(f"stat -c %s {window}"))
    node.run(f"echo hello-from-{node.number} | dd of={window} bs=1 seek={size - 100} conv=notrunc 2>/dev/null")
    contains(other.run(f"tail -c 100 {own}"), f"hello-from-{node.number}")
    status, said = node.finish(node.begin(f"rank peek {window}"))
    told = node.link(other.number)["client_mmap"]
    if mapped:
        equal((status, said, told), (0, "FABFCNTB\n", "yes"), "the window through a mapping")
    else:
        contains(said, os.strerror(errno.ENODEV))
        contains(told, "no: buffers are not" if coherent else "no: the window begins at an offset")


# ---- the collectives ----


def test_two_nodes_with_landing_memory_in_bars_and_buffers_in_passthrough(images):
    with Cluster(images, "6.12") as cluster:
        contains(cluster[0].read(f"{MOUNT}/stats"), "buffer_mode passthrough")
        link = cluster[0].link(1)
        equal(link["mapping"], "write-combining", "mapping of the window")
        assert int(link["write_bytes_s"]) > 0, link
        equal(cluster[0].link(0)["mapping"], "uncached", "mapping of landing memory")
        check_collectives(cluster)
        check_windows(cluster[0], cluster[1], mapped=True)


def test_two_nodes_with_landing_memory_in_ram_and_buffers_in_passthrough(images):
    with Cluster(images, "6.12", layout="ram") as cluster:
        contains(cluster[0].read(f"{MOUNT}/nodes/0/link"), "dax:/dev/dax0.0", "mapping cached",
                 "client_mmap no: the kernel shows clients files")
        contains(cluster[0].read(f"{MOUNT}/nodes/1/link"), "pci:", "mapping write-combining")
        check_collectives(cluster)
        check_windows(cluster[0], cluster[1], mapped=False)


def test_two_nodes_with_landing_memory_in_ram_and_buffers_kept_coherent(images):
    with Cluster(images, "6.1", layout="ram") as cluster:
        contains(cluster[0].read(f"{MOUNT}/stats"), "buffer_mode coherent")
        check_collectives(cluster)
        check_windows(cluster[1], cluster[0], mapped=False, coherent=True)


def test_four_nodes_with_kernels_of_both_kinds_sum_right(images):
    with Cluster(images, ("6.12", "6.1"), count=4) as cluster:
        contains(cluster[0].read(f"{MOUNT}/stats"), "buffer_mode passthrough")
        contains(cluster[1].read(f"{MOUNT}/stats"), "buffer_mode coherent")
        verify(cluster, "four", 100003)


# ---- failures ----


def loop(node, number, job, world, count, seconds, what="loop"):
    return node.begin(f"rank {what} {job} {number} {world} {count} {seconds}")


def loop_result(node, number, seconds=60):
    """(rounds that went well, errno of the last, how many milliseconds that took)."""
    status, said = node.finish(number, seconds, "the loop")
    assert status == 0, said
    rounds, error, took_ms = said.split()
    return int(rounds), int(error), int(took_ms)


def rounds_done(node, job, kind):
    return int(node.run(f"sed -n 's/^{kind}_ops //p' {MOUNT}/jobs/{job}/stats") or 0)


def wait_round(node, job, rounds, kind="allreduce"):
    """Returns when so many sums of the job, or operations of another kind, are done."""
    node.run(f"until [ $(sed -n 's/^{kind}_ops //p' {MOUNT}/jobs/{job}/stats 2>/dev/null || echo 0) -ge {rounds} ]; "
             "do usleep 20000; done", 120)


def wait_line(node, path, *words):
    """Returns when a line of a text file has all these words."""
    pattern = ".*".join(words)
    node.run(f"until grep -q '{pattern}' {MOUNT}/{path}; do usleep 20000; done", 120)


def test_a_machine_that_loses_power_fails_the_others_and_comes_back_after_a_reboot(images):
    with Cluster(images, "6.12", heartbeat_ms=4000) as cluster:
        survivor, victim = cluster.nodes
        loops = [loop(node, node.number, "power", 2, 100003, 120) for node in cluster.nodes]
        wait_round(survivor, "power", 3)
        victim.kill()
        rounds, error, took_ms = loop_result(survivor, loops[0])
        contains((errno.EHOSTDOWN, errno.ENOLINK), error)
        assert rounds >= 3 and took_ms < 5 * cluster.heartbeat_ms, (rounds, took_ms)
        contains(survivor.read(f"{MOUNT}/events"), "down: host node1", "silent for")
        victim.start()
        victim.wait_booted()
        cluster.landings[1] = victim.make_landing()
        cluster.start_daemon(victim)
        cluster.wait_up()
        verify(cluster, "again", 100003)


def unplug_until_suspect(cluster):
    """Drops are forgotten with time: a machine that is slow takes more of them."""
    node = cluster[0]
    for _ in range(6):
        before = int(node.link(1)["drops"])
        node.unplug(1)
        wait_line(node, "nodes/1/link", f"^drops {before + 1}$")
        if "error nodes/1 suspect: its link flaps" in node.read(f"{MOUNT}/events"):
            return
        node.plug(1)
        cluster.wait_up()
    raise AssertionError(f"it does not flap: {node.read(f'{MOUNT}/events')}")


def test_a_window_unplugged_while_reducing_fails_the_operation_and_is_found_when_plugged_in_again(images):
    """Out again, it flaps, by the limit set here."""
    settings = ("drop_limit = 1", "drain = echo $FABRICFS_HOST is drained")
    with Cluster(images, "6.12", heartbeat_ms=4000, settings=settings) as cluster:
        node, other = cluster.nodes
        loops = [loop(each, each.number, "unplug", 2, 100003, 120) for each in cluster.nodes]
        wait_round(node, "unplug", 3)
        node.unplug(1)
        for each, number in zip(cluster.nodes, loops):
            error = loop_result(each, number)[1]
            contains((errno.EHOSTDOWN, errno.ENOLINK), error)
        node.run("until [ ! -e /sys/bus/pci/devices/0000:04:00.0 ]; do usleep 20000; done", 120)
        node.run(f"until grep -q 'no PCI device' {MOUNT}/nodes/1/link; do usleep 20000; done", 120)
        node.plug(1)
        cluster.wait_up()
        verify(cluster, "plugged", 100003)
        unplug_until_suspect(cluster)
        wait_line(node, "events", "nodes/1 drain command ended with status 0: node1 is drained")
        contains(node.read(f"{MOUNT}/health"), "error nodes/1 is suspect")


# ---- the kinds of memory ----


def own_memory_as_window(node):
    """Puts a device in place of the window to node 1 that shows this node's own memory; returns its URI."""
    address = node.find_windows()[1]
    node.unplug(1)
    node.run(f"until [ ! -e /sys/bus/pci/devices/{address} ]; do usleep 20000; done", 120)
    node.plug(1, memory=0)
    node.run(f"until [ -e /sys/bus/pci/devices/{address}/resource2_wc ]; do usleep 20000; done", 120)
    return f"pci:{address}/2"


def test_the_contract_of_memory_holds_for_bars_and_files(images):
    """One body, which the unit tests run as well; here the window is a BAR that shows what the landing BAR holds."""
    with Cluster(images, "6.12", up=False) as cluster:
        node = cluster[0]
        window = own_memory_as_window(node)
        landing, _ = node.make_landing()
        node.run("truncate -s 128K /tmp/memory; chmod 600 /tmp/memory")
        for pair in (f"{landing} {window}", "shm:contract shm:contract", "file:/tmp/memory file:/tmp/memory"):
            equal(node.run(f"contract {pair} 65536"), "kept\n", pair)


def test_the_contract_of_memory_holds_for_dax_devices(images):
    """Here the window is the device itself, or a BAR that shows all of the guest's RAM."""
    with Cluster(images, "6.12", layout="ram", up=False) as cluster:
        node = cluster[0]
        window = own_memory_as_window(node)
        landing, part = node.make_landing()
        start = part[1:].split(":")[0]
        equal(node.run(f"contract {landing} {landing} 2097152"), "kept\n", landing)
        equal(node.run(f"contract {landing} {window} 2097152 {start}"), "kept\n", window)


# ---- what is wrong with a BAR, in words ----


def refusal(node, landing):
    """What the daemon says when that should be its landing memory."""
    node.run(f"printf '[node 0]\\nlanding = {landing}\\n' >/etc/try.conf")
    status, said = node.finish(node.begin(f"fabricfs --fabric vm --node 0 --nodes 2 -c /etc/try.conf {MOUNT}"))
    assert status, f"{landing} is taken: {said}"
    return said


def test_bars_that_are_no_memory_for_us_are_refused_in_words(images):
    with Cluster(images, "6.12", count=2, up=False) as cluster:
        node = cluster[0]
        own = node.find_windows()["own"]
        contains(refusal(node, "pci:0000:00:03.0/4"), "0000:00:03.0", "driver virtio-pci", "unbind")
        contains(refusal(node, "pci:0000:00:1f.2/4"), "0000:00:1f.2", "BAR 4 is I/O ports")
        contains(refusal(node, "pci:0000:07:00.0/0"), "no PCI device 0000:07:00.0")
        contains(refusal(node, f"pci:{own}/0"), own, "256", "multiples of 4K")
        contains(refusal(node, f"pci:{own}/3"), own, "upper half of BAR 2")
        contains(refusal(node, f"pci:{own}/4"), own, "BAR 4 does not exist")
        contains(refusal(node, f"pci:{own}/2+100:1M"), own, "multiples of 4K")
        contains(refusal(node, f"pci:{own}/2+0:64M"), own, f"{WINDOW_MIB * MIB} bytes", "67108864 are needed")
        contains(refusal(node, f"pci:{own}/2+0:4K"), own, "4096", "at least 6144")


def test_an_unassigned_bar_is_refused_in_words(images):
    with Cluster(images, "6.12", up=False) as cluster:
        node = cluster[0]
        node.monitor.execute("object-add", **{"qom-type": "memory-backend-ram", "id": "large", "size": 256 * MIB})
        node.monitor.execute("device_del", id="own")
        node.run("until [ ! -e /sys/bus/pci/devices/0000:01:00.0 ]; do usleep 20000; done", 120)
        node.monitor.execute("device_add", driver="ivshmem-plain", id="large0", memdev="large", bus="rp0")
        node.run("until [ -e /sys/bus/pci/devices/0000:01:00.0/resource ]; do usleep 20000; done", 120)
        contains(refusal(node, "pci:0000:01:00.0/2"), "0000:01:00.0", "BAR 2 has no address", "Above 4G")


def test_a_locked_down_kernel_is_named_as_the_reason(images):
    with Cluster(images, "6.12", up=False, append="lockdown=integrity") as cluster:
        node = cluster[0]
        contains(refusal(node, f"pci:{node.find_windows()['own']}/2"), "locked down", "lockdown")


def test_memory_decoding_is_switched_on_where_no_driver_has_the_device(images):
    with Cluster(images, "6.12", up=False) as cluster:
        node = cluster[0]
        device = f"/sys/bus/pci/devices/{node.find_windows()['own']}"
        decodes = f"hexdump -s 4 -n 1 -e '1/1 \"%d\"' {device}/config"
        node.run(f"printf '\\0\\0' | dd of={device}/config bs=1 seek=4 conv=notrunc 2>/dev/null")  # as a reset does
        equal((node.run(decodes), node.read(f"{device}/enable")), ("0", "0\n"), "command register and enables before")
        node.configure([(f"pci:{node.find_windows()['own']}/2", "")] * 2)
        node.mount()
        equal((node.run(decodes), node.read(f"{device}/enable")), ("2", "1\n"), "the same with the daemon")
        contains(node.read(f"{MOUNT}/nodes/1/link"), "no daemon uses the memory of node 1")


# ---- health ----


def test_a_port_slowed_by_the_switch_below_it_is_no_fault_and_injected_errors_are_told(images):
    with Cluster(images, "6.12") as cluster:
        node = cluster[0]
        link = node.link(1)
        equal(link["hardware"], "ok", "the path to node 1")
        contains(node.read(f"{MOUNT}/nodes/1/link"), "0000:03:01.0 - 0000:04:00.0",
                 "0000:00:05.0 - 0000:02:00.0 runs at 2.5 GT/s x1 of 2.5 GT/s x1: limited")
        assert "nodes/1 link" not in node.read(f"{MOUNT}/health"), node.read(f"{MOUNT}/health")
        contains(node.run("fabricctl links"), "0000:00:05.0", "8 GT/s x4", "0 degraded")
        equal(link["aer_nonfatal"], "0", "errors before")
        inject(node, 1)
        contains(node.read(f"{MOUNT}/events"), "nodes/1 0 correctable, 1 nonfatal, 0 fatal", "0000:03:01.0")
        verify(cluster, "after", 100003)
        check_recording(images, node)


def check_recording(images, node):
    """What fabricctl says of the guest from its sysfs tree, copied to this machine, is what it says in there."""
    with tempfile.TemporaryDirectory() as directory:
        node.record(directory)
        for command in ("links", "topo", "doctor"):
            there = json.loads(node.finish(node.begin(f"fabricctl {command} --json"))[1])
            program = (f"{images.build_dir}/utils/fabricctl", command, "--json", "--sysfs", directory)
            here = json.loads(subprocess.run(program, capture_output=True, check=False).stdout)
            for key in {"links": ("links", "without_link", "degraded"), "topo": ("devices", "paths", "matrix"),
                        "doctor": ("devices",)}[command]:
                equal(nameless(here[key]), nameless(there[key]), f"{key} of {command}, as recorded")


def nameless(told):
    """Without the names of devices, which each machine has a list of its own for."""
    if isinstance(told, dict):
        return {key: nameless(value) for key, value in told.items() if key != "name"}
    return [nameless(value) for value in told] if isinstance(told, list) else told


def inject(node, number):
    """An error at the port above the window to a node; returns when it is counted."""
    before = int(node.link(number)["aer_nonfatal"])
    node.monitor.human(f"pcie_aer_inject_error dn{number} COMP_TIME")
    wait_line(node, f"nodes/{number}/link", f"^aer_nonfatal {before + 1}$")


def inject_until_suspect(node, number):
    """Errors are forgotten with time: a machine that is slow takes more of them."""
    for _ in range(30):
        inject(node, number)
        if f"error nodes/{number} suspect" in node.read(f"{MOUNT}/events"):
            return
    raise AssertionError(f"it is no storm: {node.read(f'{MOUNT}/events')}")


def test_a_storm_of_errors_drains_the_node_once_and_a_running_job_goes_on_without_it(images):
    drain = "drain = env | grep ^FABRICFS_ | sort >>/tmp/drained; echo drained"
    with Cluster(images, "6.12", settings=("error_limit = 1", "sample_ms = 100", drain)) as cluster:
        node, other = cluster.nodes
        loops = [loop(each, each.number, "storm", 2, 1003, 300, "send") for each in cluster.nodes]
        wait_round(node, "storm", 3, "broadcast")
        inject_until_suspect(node, 1)
        wait_line(node, "events", "error nodes/1 suspect", "more than 1 errors in 10 s", "0000:03:01.0")
        wait_line(node, "events", "nodes/1 drain command ended with status 0: drained")
        contains(node.read(f"{MOUNT}/jobs/storm/members"), "rank=1 node=1", "suspect=yes")
        node.run(f"echo drop=suspect >{MOUNT}/jobs/storm/members")
        equal(loop_result(other, loops[1])[1], errno.ESTALE, "what the dropped rank gets")
        wait_round(node, "storm", rounds_done(node, "storm", "broadcast") + 3, "broadcast")
        inject(node, 1)
        node.run("killall rank")
        node.finish(loops[0])
        told = node.read("/tmp/drained").splitlines()
        equal(len(told), 8, "lines of the one run of the command")
        equal([line for line in told if "REASON" not in line],
              ["FABRICFS_DEVICE=0000:04:00.0", "FABRICFS_FABRIC=vm", "FABRICFS_HOST=node1", "FABRICFS_JOBS=storm",
               "FABRICFS_NODE=1", "FABRICFS_SEEN_BY_HOST=node0", "FABRICFS_SEEN_BY_NODE=0"], "its environment")
        contains(next(line for line in told if "REASON" in line), "more than 1 errors in 10 s")


# ---- training ----

TRAIN = """
import functools, hashlib, json, sys
sys.path.insert(0, "/py")
import demo_train as demo
world, steps, ranks = 4, 20, {ranks}
train_set, test = demo.load("/py/digits.csv.gz", world)
begin = [functools.partial(demo.start, demo.run_rank, "/fabric", "digits", rank, world, steps, train_set, test)
         for rank in ranks]
assert demo.run_all(begin, 0) == 0, "a rank failed"
results = [demo.np.fromfile(f"/fabric/jobs/digits/ranks/{{rank}}/buffer", demo.np.float32) for rank in ranks]
hashes = [hashlib.sha256(result.tobytes()).hexdigest() for result in results]
alone = demo.train_alone(*train_set, steps) if 0 in ranks else results[0]
print(json.dumps(dict(hashes=hashes, accuracy=demo.accuracy(results[0], *test),
                      difference=float(abs(results[0] - alone).max()))))
"""


def test_a_training_run_of_the_demo_across_guests_learns_what_one_process_learns(images):
    if not os.path.exists(image.DIGITS):
        raise Skip("the digits are not there: utils/demo.sh fetches them")
    with Cluster(images, "6.12", python=True, memory_mib=384) as cluster:
        scripts = ["cat >/tmp/train.py <<'END'\n" + TRAIN.format(ranks=ranks) + "END\npython3 /tmp/train.py"
                   for ranks in ([0, 1], [2, 3])]
        said = in_parallel(lambda pair: pair[0].run(pair[1], 180), list(zip(cluster.nodes, scripts)))
        told = [json.loads(text.splitlines()[-1]) for text in said]
        equal(len(set(told[0]["hashes"] + told[1]["hashes"])), 1, "different weights on four ranks")
        assert told[0]["accuracy"] > 0.8, told
        assert told[0]["difference"] < 1e-4, told


# ---- figures ----


def bench(images):
    """A sum of 16 MiB over two BAR windows, beside one plain copy of as much into such a BAR, in the same guests. Both
    guests copy at the same time, as both sum: so whatever else runs on this machine weighs on both figures. The median
    and the mean are what they run at; the shortest is a copy that nothing disturbed in one guest, against a sum that
    nothing disturbed in both."""
    with Cluster(images, "6.12", memory_mib=384, window_mib=64, part="+0:32M") as cluster:
        def copy(node):
            window = node.find_windows()[1 - node.number]
            return node.run(f"rank copy /sys/bus/pci/devices/{window}/resource2_wc {32 * MIB} {16 * MIB} 60", 120)

        def worst(texts):
            return [max(float(text.split()[i]) for text in texts) for i in range(3)]
        copied = worst(in_parallel(copy, cluster.nodes))
        summed = worst(in_parallel(lambda node: rank(node, node.number, "bench", "bench", 2, 4 * MIB, 60, 120),
                                   cluster.nodes))
        print(f"{'16 MiB, milliseconds':34} shortest   median     mean")
        for what, us in (("copy into the BAR", copied), ("allreduce, two windows", summed)):
            print(f"{what:34} " + " ".join(f"{one / 1e3:8.1f}" for one in us))
        print(f"{'copy / allreduce, at least 0.33':34} " +
              " ".join(f"{one / other:8.2f}" for one, other in zip(copied, summed)))
