"""What fabricctl doctor finds, and what it keeps quiet about, on machines made up here."""
import os

import make
from control import Run, findings, function, look, write
from make import BRIDGE, ENDPOINT, GPU, NIC, NTB, NVME, RC_ENDPOINT, ROOT_PORT, Fn


def diagnose(directory, machine, *words, length=4096):
    return look("doctor", "--dump", write(directory, make.dump(machine, length)), *words)


def test_a_healthy_machine_has_no_findings(directory):
    answer, status = diagnose(directory, make.pair())
    assert status == 0 and not answer["findings"], answer["findings"]


def test_every_finding_says_what_where_evidence_why_and_next(directory):
    machine = make.pair(now=(5, 8), device={"aer": {"ue": 1 << 18, "ue_severity": 1 << 18, "ce": 1}})
    answer, status = diagnose(directory, machine)
    assert status == 1 and len(answer["findings"]) >= 2
    for finding in answer["findings"]:
        for key in ("severity", "check", "what", "address", "path", "evidence", "why", "next"):
            assert finding[key], (key, finding)
    text = Run("doctor", "--dump", os.path.join(directory, "machine")).out
    for word in ("fault: ", "where", "evidence", "why", "next", "0000:00:01.0 > 0000:01:00.0"):
        assert word in text, text


def test_a_degraded_link_is_a_fault_at_the_device_with_both_rates(directory):
    answer, status = diagnose(directory, make.pair(now=(5, 8)))
    found = findings(answer, "link-degraded")
    assert status == 1 and len(found) == 1 and found[0]["address"] == "0000:01:00.0"
    assert "5 GT/s x8" in found[0]["what"] and "8 GT/s x16" in found[0]["what"]


def test_a_link_in_training_is_unknown_when_its_port_says_so(directory):
    answer, status = diagnose(directory, make.pair(now=(2.5, 16), port={"status": 0x0800}))
    assert status == 0 and not findings(answer, "link-degraded"), answer["findings"]
    assert function(answer, "01:00.0")["link_verdict"] == "unknown"
    answer, status = diagnose(directory, make.pair(now=(2.5, 16), device={"status": 0x0800}))
    assert status == 1 and findings(answer, "link-degraded"), "the bit means nothing on a device"


def test_limited_idle_disabled_and_empty_are_no_faults(directory):
    machine = [Fn("00:01.0", BRIDGE, ROOT_PORT, (16, 16), (8, 4), buses=(0, 1, 1), slot=True),
               Fn("01:00.0", NVME, ENDPOINT, (8, 4)),
               Fn("00:02.0", BRIDGE, ROOT_PORT, (16, 16), (2.5, 16), buses=(0, 2, 2), slot=True),
               Fn("02:00.0", GPU, ENDPOINT, (16, 16), (2.5, 16)),
               Fn("00:03.0", BRIDGE, ROOT_PORT, (16, 16), (8, 2), buses=(0, 3, 3), slot=True),
               Fn("03:00.0", 0x058000, ENDPOINT, (16, 4), (8, 2), command=0),
               Fn("00:04.0", BRIDGE, ROOT_PORT, (16, 16), (2.5, 16), buses=(0, 4, 4), slot=False, active=False)]
    answer, status = diagnose(directory, machine)
    assert status == 0 and not findings(answer, severity="fault") and not findings(answer, severity="warning")
    assert {f["check"] for f in answer["findings"]} == {"link-idle", "link-disabled"}


def test_devices_that_share_a_switch_are_named(directory):
    answer, status = diagnose(directory, make.switch("00:01.0", 1, [GPU, GPU, NIC]))
    found = findings(answer, "switch-shared")
    assert status == 0 and "94.5 GB/s behind 31.5 GB/s" in found[0]["what"] and found[0]["address"] == "0000:01:00.0"
    for word in ("3.0 to 1", "gpu 0000:03:00.0", "gpu 0000:04:00.0", "nic 0000:05:00.0"):
        assert word in found[0]["evidence"]


def test_a_slow_nic_beside_a_fast_gpu_is_named(directory):
    machine = make.switch("00:01.0", 1, [GPU, NIC])
    for fn in machine[4:6]:
        fn.now = (8, 8)
    machine[5].cap = (8, 8)
    answer, status = diagnose(directory, machine)
    found = findings(answer, "link-asymmetry")
    assert status == 1 and len(found) == 1 and "7.88 GB/s" in found[0]["what"] and "31.51 GB/s" in found[0]["what"]


def test_a_management_nic_beside_a_gpu_is_no_asymmetry(directory):
    machine = make.switch("00:01.0", 1, [GPU, NIC])
    for fn in machine[4:6]:
        fn.now = (2.5, 1)
    machine[5].cap = (2.5, 1)
    answer, status = diagnose(directory, machine)
    assert status == 0 and not findings(answer, "link-asymmetry")


def test_acs_redirection_matters_between_neighbours_and_not_at_endpoints(directory):
    answer, status = diagnose(directory, make.switch("00:01.0", 1, [GPU, NIC], acs=0x1d))
    assert status == 1 and {f["address"] for f in findings(answer, "acs-redirect")} == {"0000:02:00.0", "0000:02:01.0"}
    answer, status = diagnose(directory, make.switch("00:01.0", 1, [GPU, NIC], acs=0x01))
    assert status == 0 and not findings(answer, "acs-redirect")
    alone = make.pair(port={"acs": 0x1f}, device={"acs": 0x1d})
    answer, status = diagnose(directory, alone)
    assert status == 0 and [f["severity"] for f in findings(answer, "acs-redirect")] == ["note"]


def test_unassigned_windows_are_named_by_number(directory):
    machine = make.pair(device={"bars": [0xf0000000, 0x0000000c, 0]})
    answer, status = diagnose(directory, machine)
    found = findings(answer, "bar-unassigned")
    assert status == 1 and "BAR 1 (64-bit, prefetchable)" in found[0]["evidence"] and "BAR 0" not in found[0]["evidence"]


def test_sysfs_knows_better_whether_a_window_is_assigned(directory):
    zero, good = "0x0 0x0 0x0\n", "0x00000000e0000000 0x00000000e0ffffff 0x000000000014220c\n"
    machine = make.pair(device={"attrs": {"resource": good + zero * 12}})
    answer, status = look("doctor", "--sysfs", make.sysfs(machine, directory + "/good"))
    assert status == 0 and not findings(answer, "bar-unassigned")
    machine = make.pair(device={"attrs": {"resource": zero * 13}})
    answer, status = look("doctor", "--sysfs", make.sysfs(machine, directory + "/zero"))
    assert status == 1 and findings(answer, "bar-unassigned")


def test_a_misaligned_window_of_an_ntb_is_a_fault(directory):
    crooked = "0x00000000e0080000 0x00000000e017ffff 0x000000000014220c\n" + "0x0 0x0 0x0\n" * 5
    machine = make.pair(cls=NTB, device={"vendor": 0x10b5, "device": 0x87b0, "bars": [],
                                         "attrs": {"resource": crooked}})
    answer, status = look("doctor", "--sysfs", make.sysfs(machine, directory + "/tree"))
    assert status == 1 and findings(answer, "window-misaligned", "fault")


def test_only_known_bridges_are_called_non_transparent(directory):
    machine = make.pair(cls=NTB, device={"vendor": 0x8086, "device": 0x0001})
    assert function(diagnose(directory, machine)[0], "01:00.0")["kind"] == "other"
    machine = make.pair(cls=NTB, device={"vendor": 0x11f8, "device": 0x8531})
    assert function(diagnose(directory, machine)[0], "01:00.0")["kind"] == "ntb"


def test_counters_of_both_ends_are_added(directory):
    machine = make.pair(port={"attrs": {"aer_dev_correctable": "RxErr 40\nTOTAL_ERR_COR 40"}},
                        device={"attrs": {"aer_dev_correctable": "Bad TLP 2\nTOTAL_ERR_COR 2",
                                          "aer_dev_nonfatal": "CmpltTO 1\nTOTAL_ERR_NONFATAL 1"}})
    answer, status = look("doctor", "--sysfs", make.sysfs(machine, directory + "/tree"))
    found = {f["address"]: f for f in findings(answer, "aer-counters")}
    assert status == 1 and set(found) == {"0000:00:01.0", "0000:01:00.0"}
    assert found["0000:01:00.0"]["severity"] == "warning" and found["0000:00:01.0"]["severity"] == "note"
    assert "42 correctable, 1 nonfatal" in found["0000:00:01.0"]["evidence"]
    assert "Bad TLP 2" in found["0000:01:00.0"]["evidence"]


def test_masked_and_sticky_bits_are_history(directory):
    device = {"aer": {"ue": 1 << 20, "ce": 0x2001, "ce_mask": 0x2000}}
    answer, status = diagnose(directory, make.pair(device=device))
    evidence = findings(answer, "aer-status")[0]["evidence"]
    assert status == 0 and "UnsupReq (non-fatal, unmasked)" in evidence
    assert "RxErr (unmasked)" in evidence and "AdvNonFatalErr (masked)" in evidence


def test_containment_is_a_fault_told_once(directory):
    machine = make.pair(port={"dpc": 0x1 | 2 << 1, "active": False})
    answer, status = diagnose(directory, machine)
    assert status == 1 and [f["check"] for f in findings(answer, severity="fault")] == ["dpc-triggered"]


def test_not_recorded_needs_root_and_not_responding_differ(directory):
    words = {}
    for name, machine, length in (("short", make.pair(), 256), ("root", make.pair(), 64)):
        answer, status = look("doctor", "--dump", write(directory, make.dump(machine, length)))
        words[name] = function(answer, "01:00.0")["aer"]["present"]
        assert status == 0, (name, answer["findings"])
    silent = make.dump(make.pair()[:1]) + "\n01:00.0 gone\n" + "".join(
        f"{at:02x}: {' '.join(['ff'] * 16)}\n" for at in range(0, 256, 16))
    answer, status = look("doctor", "--dump", write(directory, silent))
    words["silent"] = function(answer, "01:00.0")["aer"]["present"]
    assert status == 1 and findings(answer, "not-responding")[0]["address"] == "0000:01:00.0"
    assert words == {"short": "not recorded", "root": "needs root", "silent": "not responding"}


def test_what_the_kernel_says_is_judged_when_recorded(directory):
    proc = directory + "/proc"
    os.makedirs(proc + "/sys/fs/fuse")
    for name, text in (("cmdline", "quiet pci=noaer,nommconf memmap=1000M!4G pcie_acs_override=downstream"),
                       ("sys/fs/fuse/max_request_timeout", "30"), ("sys/fs/fuse/max_pages_limit", "32"),
                       ("filesystems", "nodev\ttmpfs")):
        write(proc, text + "\n", name)
    os.makedirs(proc + "/sys/kernel")
    write(proc, "6.1.0-1-amd64\n", "sys/kernel/osrelease")
    tree = make.sysfs(make.pair(), directory + "/tree")
    answer, status = look("doctor", "--sysfs", tree, "--proc", proc)
    checks = {f["check"] for f in answer["findings"]}
    assert status == 1 and checks == {"cmdline-noaer", "cmdline-nommconf", "cmdline-acs-override", "fuse-timeout",
                                      "fuse-pages", "fuse-missing"}, checks
    assert answer["host"]["kernel"] == "6.1.0-1-amd64" and "passthrough not in this kernel" in answer["host"]["fuse"]
    write(proc, "memmap=1001M!4G\n", "cmdline")
    assert findings(look("doctor", "--sysfs", tree, "--proc", proc)[0], "reserved-misaligned")


def test_groups_and_numa_are_told_as_notes(directory):
    machine = make.switch("00:01.0", 1, [GPU, NIC], numa=0)
    machine[3].attrs = {"numa_node": "1", "iommu_group": "../../kernel/iommu_groups/7"}
    machine[5].attrs = {"numa_node": "0", "iommu_group": "../../kernel/iommu_groups/7"}
    tree = make.sysfs(machine, directory + "/tree")
    os.makedirs(tree + "/kernel/iommu_groups/7")
    write(tree, "DMA-FQ\n", "kernel/iommu_groups/7/type")
    for node in (0, 1):
        os.makedirs(f"{tree}/devices/system/node/node{node}")
    answer, status = look("doctor", "--sysfs", tree)
    assert status == 0 and {f["check"] for f in answer["findings"]} == {
        "iommu-group-shared", "iommu-translates", "numa-far", "switch-shared"}, answer["findings"]


def test_a_bridge_far_from_every_gpu_and_a_node_without_memory_are_notes(directory):
    machine = make.switch("00:01.0", 1, [GPU, NTB], numa=0)
    machine[5].attrs, machine[5].vendor = {"numa_node": "1"}, 0x11f8
    tree = make.sysfs(machine, directory + "/tree")
    for node, cpus, memory in ((0, "0-7", 1024), (1, "", 0)):
        os.makedirs(f"{tree}/devices/system/node/node{node}")
        write(tree, cpus + "\n", f"devices/system/node/node{node}/cpulist")
        write(tree, f"Node {node} MemTotal:  {memory} kB\n", f"devices/system/node/node{node}/meminfo")
        write(tree, "21 10\n", f"devices/system/node/node{node}/distance")
    answer, status = look("doctor", "--sysfs", tree)
    far, = findings(answer, "numa-far")
    empty, = findings(answer, "numa-empty")
    assert status == 0 and "this bridge" in far["what"] and far["address"] == "0000:04:00.0", far
    assert "neither CPUs nor memory" in empty["what"] and "node 1, distances 21 10" in str(empty["evidence"]), empty
    write(tree, "Node 1 MemTotal:  1024 kB\n", "devices/system/node/node1/meminfo")
    assert "has no CPUs" in findings(look("doctor", "--sysfs", tree)[0], "numa-empty")[0]["what"]
    write(tree, "8-15\n", "devices/system/node/node1/cpulist")
    assert not findings(look("doctor", "--sysfs", tree)[0], "numa-empty")


def test_a_large_machine_takes_less_than_a_fifth_of_a_second(directory):
    path = write(directory, make.dump(make.server()))
    tree = make.sysfs(make.server(), directory + "/tree")
    for words in (["--dump", path], ["--sysfs", tree]):
        answer, status = look("doctor", *words)
        assert answer["functions"] == 137 and status == 0
        best = min(elapsed("doctor", *words) for _ in range(5))
        assert best < 0.2, f"{best:.3f} s for {words}"


def elapsed(*words):
    before = os.times()
    Run(*words)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_integrated_endpoints_have_no_link(directory):
    answer, status = look("links", "--dump", write(directory, make.dump([Fn("00:14.0", 0x088000, RC_ENDPOINT)])))
    assert status == 0 and not answer["links"] and answer["without_link"] == [{"address": "0000:00:14.0", "link": "n/a"}]
