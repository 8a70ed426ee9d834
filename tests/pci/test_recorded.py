"""Machines recorded by others, where they lie beside the project: each fact that is known of them, and no fault that
is not there."""
import json
import os
import random

from control import Run, findings, function, link_of, look, recorded, write

DUMPS = ("PCI-X-bridges-and-domains", "bridge-ctl-vga16", "broken-ecaps", "cap-aer-log", "cap-aer-root", "cap-atomicops",
         "cap-dpc", "cap-dvsec-cxl", "cap-ea-1", "cap-multicast", "cap-phy32", "cap-vc-and-rcl", "tree-asus-p6t6",
         "tree-fsl-p2020")

# Every function with link registers: what it can do, what its status says (None: unknown or no lanes), the verdict.
LINKS = """
bridge-ctl-vga16 00:1c.0 8x1 5x1 undecided
bridge-ctl-vga16 00:1c.2 8x1 2.5x1 undecided
cap-phy32 2e:00.0 32x2 16x2 undecided
tree-asus-p6t6 00:00.0 2.5x4 2.5x4 full
tree-asus-p6t6 00:01.0 5x4 2.5x0 empty
tree-asus-p6t6 00:03.0 5x16 5x16 full
tree-asus-p6t6 00:07.0 5x16 2.5x16 limited
tree-asus-p6t6 00:1c.0 2.5x1 2.5x0 empty
tree-asus-p6t6 00:1c.1 2.5x1 2.5x1 full
tree-asus-p6t6 00:1c.2 2.5x1 2.5x1 full
tree-asus-p6t6 02:00.0 5x16 5x16 full
tree-asus-p6t6 03:00.0 5x16 5x8 limited
tree-asus-p6t6 03:02.0 5x16 2.5x16 empty
tree-asus-p6t6 04:00.0 5x8 5x8 full
tree-asus-p6t6 06:00.0 2.5x16 2.5x16 full
tree-asus-p6t6 06:00.1 2.5x16 2.5x16 full
tree-asus-p6t6 07:00.0 2.5x1 2.5x1 full
tree-asus-p6t6 08:00.0 2.5x1 2.5x1 full
tree-fsl-p2020 0000:04:00.0 2.5x4 2.5x1 limited
tree-fsl-p2020 0000:05:00.0 2.5x1 2.5x1 full
tree-fsl-p2020 0001:02:00.0 2.5x4 2.5x1 limited
tree-fsl-p2020 0001:03:00.0 2.5x1 2.5x1 full
tree-fsl-p2020 0002:00:00.0 2.5x4 2.5x1 limited
tree-fsl-p2020 0002:01:00.0 5x1 2.5x1 limited
cap-aer-root 00:02.0 8x8 8x8 full
cap-aer-root 03:00.0 8x8 8x8 full
cap-aer-log 00:1c.0 8x1 5x1 undecided
cap-multicast 07:00.0 8x16 8x16 full
cap-dpc 05:01.0 8x4 8x4 full
cap-vc-and-rcl 00:1c.0 2.5x1 2.5x1 full
cap-vc-and-rcl 00:1c.1 2.5x1 2.5x1 full
cap-vc-and-rcl 00:1c.2 2.5x1 2.5x0 empty
cap-vc-and-rcl 00:1c.3 2.5x1 2.5x0 empty
cap-vc-and-rcl 01:00.0 2.5x1 2.5x1 full
cap-vc-and-rcl 02:00.0 2.5x1 2.5x1 full
cap-ea-1 0002:01:00.0 0x0 0x0 unknown
cap-atomicops 00:00.0 5x4 0x0 unused
"""


def doctor(name):
    return look("doctor", "--dump", recorded(name))


def rate(text):
    speed, width = text.split("x")
    return float(speed) or None, int(width) or None


def test_every_function_with_a_link_has_its_rates_and_verdict(directory):
    answers = {}
    lines = LINKS.split("\n")[1:-1]
    assert len(lines) == 37
    for line in lines:
        name, address, cap, now, verdict = line.split()
        if name not in answers:
            answers[name] = doctor(name)[0]
        fn = function(answers[name], address)
        assert (fn["max"]["gts"], fn["max"]["width"]) == rate(cap), line
        assert (fn["current"]["gts"], fn["current"]["width"]) == rate(now), line
        assert fn["link_verdict"] == verdict, (line, fn["link_verdict"])
    others = sum(fn["link_verdict"] != "n/a" for name in DUMPS for fn in doctor(name)[0]["devices"])
    assert others == 37, f"{others} functions with a link"


def test_no_dump_has_a_fault_or_a_warning(directory):
    for name in DUMPS:
        answer, status = doctor(name)
        assert status == 0, name
        assert not findings(answer, severity="fault") and not findings(answer, severity="warning"), name
        answer, status = look("links", "--dump", recorded(name))
        assert status == 0 and answer["degraded"] == 0 and answer["complete"], name


def test_functions_domains_and_root_buses_are_counted(directory):
    for name, count in (("PCI-X-bridges-and-domains", 31), ("tree-asus-p6t6", 53), ("tree-fsl-p2020", 6),
                        ("cap-vc-and-rcl", 16), ("broken-ecaps", 1), ("cap-dvsec-cxl", 2)):
        answer, _ = doctor(name)
        assert answer["functions"] == count, name
    text = Run("doctor", "--dump", recorded("tree-asus-p6t6")).out
    assert "1 domain; root buses: 0000:00 0000:ff\n" in text
    assert "5 domains" in Run("doctor", "--dump", recorded("PCI-X-bridges-and-domains")).out
    asus = doctor("tree-asus-p6t6")[0]["devices"]
    assert sum(fn["address"].startswith("0000:00:") for fn in asus) == 26
    assert sum(fn["address"].startswith("0000:ff:") for fn in asus) == 19


def present(answer, key):
    return {fn["address"][5:] for fn in answer["devices"] if fn[key]["present"] == "yes"}


def test_aer_and_acs_are_found_where_they_are(directory):
    asus = doctor("tree-asus-p6t6")[0]
    assert present(asus, "aer") == {"00:00.0", "00:01.0", "00:03.0", "00:07.0", "04:00.0", "07:00.0", "08:00.0"}
    assert present(asus, "acs") == {"00:00.0", "00:01.0", "00:03.0", "00:07.0"}
    for fn in asus["devices"]:
        if fn["acs"]["present"] == "yes":
            assert fn["acs"]["ctl"] == "0x0000"
        if fn["aer"]["present"] == "yes":
            assert not fn["aer"]["uncorrectable"] and not fn["aer"]["correctable"]
    for name, aer, acs in (("tree-fsl-p2020", 6, 0), ("cap-aer-root", 2, 1), ("cap-aer-log", 1, 1),
                           ("cap-dvsec-cxl", 2, 0), ("cap-multicast", 1, 0), ("cap-ea-1", 0, 0), ("cap-vc-and-rcl", 2, 0),
                           ("cap-phy32", 1, 0)):
        answer, _ = doctor(name)
        assert (len(present(answer, "aer")), len(present(answer, "acs"))) == (aer, acs), name


def test_what_was_not_recorded_is_not_zero(directory):
    for name, address in (("cap-dpc", "05:01.0"), ("cap-atomicops", "00:00.0"), ("bridge-ctl-vga16", "00:1c.0")):
        fn = function(doctor(name)[0], address)
        for key in ("aer", "acs", "dpc"):
            assert fn[key]["present"] == "not recorded", (name, key)
    for name in ("PCI-X-bridges-and-domains", "broken-ecaps"):
        for fn in doctor(name)[0]["devices"]:
            assert fn["aer"]["present"] == fn["acs"]["present"] == "n/a" and fn["link_verdict"] == "n/a", name


def test_the_asus_path_is_held_by_its_device(directory):
    answer, status = look("topo", "--dump", recorded("tree-asus-p6t6"))
    path = next(path for path in answer["paths"] if path["device"] == "0000:04:00.0")
    assert path["path"] == ["0000:00:03.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"] and path["complete"]
    neck = path["bottleneck"]
    assert neck["below"]["address"] == "0000:04:00.0" and neck["limited_by"] == "below"
    assert (neck["current"]["gts"], neck["current"]["width"]) == (5, 8) and status == 0


def test_history_is_told_with_its_mask(directory):
    phy = function(doctor("cap-phy32")[0], "2e:00.0")["aer"]
    assert phy["correctable"] == [{"name": "AdvNonFatalErr", "masked": True}] and not phy["uncorrectable"]
    vc, _ = doctor("cap-vc-and-rcl")
    assert function(vc, "01:00.0")["aer"]["correctable"] == [{"name": "RxErr", "masked": False},
                                                             {"name": "AdvNonFatalErr", "masked": True}]
    wireless = function(vc, "02:00.0")["aer"]
    assert wireless["uncorrectable"] == [{"name": "UnsupReq", "masked": False, "fatal": False}]
    assert wireless["first_error"] == 0x14 and wireless["header_log"][0] == "0x04000001"
    asus, _ = doctor("tree-asus-p6t6")
    stale = function(asus, "04:00.0")["aer"]
    assert stale["header_log"][3] == "0xe7209dce" and not stale["header_log_valid"]
    history = findings(asus, "error-history")
    assert len(history) == 1 and history[0]["evidence"].count("DevSta CorrErr+ UnsupReq+, AER all status bits 0") == 3
    assert all(f"0000:{address}: DevSta" in history[0]["evidence"] for address in ("04:00.0", "07:00.0", "08:00.0"))
    plx = findings(doctor("cap-multicast")[0], "error-history")[0]["evidence"]
    for word in ("CorrErr+", "NonFatalErr+", "UnsupReq+", ">SERR+", ">TAbort+", "all status bits 0"):
        assert word in plx, plx


def test_redirection_and_lane_errors_are_notes(directory):
    answer, _ = doctor("cap-aer-root")
    found = findings(answer, "acs-redirect")
    assert [f["address"] for f in found] == ["0000:00:02.0"] and "0x001f" in found[0]["evidence"]
    assert "lanes 0 to 7" in findings(answer, "lane-errors")[0]["evidence"]
    assert function(answer, "03:00.0")["lane_errors"] == "0x00000000"
    assert not findings(doctor("cap-aer-log")[0], "acs-redirect")


def test_registers_that_are_no_error_by_themselves_are_shown_as_they_are(directory):
    port = doctor("cap-aer-root")[0]
    root = function(port, "00:02.0")["aer"]
    assert (root["root_command"], root["root_status"]) == ("0x00000000", "0x00000000")
    assert "0000:00:02.0: root command 0" in findings(port, "aer-reporting-off")[0]["evidence"]
    log = function(doctor("cap-aer-log")[0], "00:1c.0")["aer"]
    assert (log["uncorrectable_mask"], log["root_command"]) == ("0x00010000", "0x00000000")
    assert not log["uncorrectable"] and not log["correctable"]
    cxl, _ = doctor("cap-dvsec-cxl")
    assert function(cxl, "6b:00.0")["aer"]["uncorrectable_mask"] == "0x00100000"
    assert not any(function(cxl, address)["aer"]["uncorrectable"] for address in ("6b:00.0", "7f:00.0"))
    # The interrupt bit and no other: lspci 3.9.0 takes the error bit for 3, so that it prints "Error+" here as well.
    assert function(cxl, "7f:00.0")["doe_status"] == "0x00000002"
    # lspci's regions 1 and 3, "<unassigned>", are the upper halves of two BARs of 64 bits.
    bars = {bar["bar"]: (bar["64bit"], bar["address"]) for bar in function(cxl, "7f:00.0")["bars"]}
    assert bars == {0: (True, "0x380b0000000"), 2: (True, "0x380b0100000")}, bars
    assert not findings(cxl)


def test_trees_of_several_domains_are_kept_apart(directory):
    answer, _ = doctor("PCI-X-bridges-and-domains")
    parent = {fn["address"]: fn["parent"] for fn in answer["devices"]}
    assert parent["0001:62:00.0"] == "0001:61:01.0" and parent["0001:61:01.0"] == "0001:00:02.6"
    assert [parent[f"0002:42:0{i}.0"] for i in range(4)] == ["0002:41:01.0"] * 4
    assert parent["0002:41:01.0"] == "0002:00:02.4"
    assert sum(fn["kind"] == "bridge" for fn in answer["devices"]) == 17
    assert not any(fn["kind"] == "ntb" for fn in answer["devices"])
    p2020, _ = doctor("tree-fsl-p2020")
    for below, above in (("0000:05:00.0", "0000:04:00.0"), ("0001:03:00.0", "0001:02:00.0"),
                         ("0002:01:00.0", "0002:00:00.0")):
        assert function(p2020, below)["parent"] == above


def test_what_is_special_about_single_devices(directory):
    ea = function(doctor("cap-ea-1")[0], "0002:01:00.0")
    assert ea["sriov"] == {"present": "yes", "enabled": True, "total_vfs": 128, "num_vfs": 128}
    cxl, _ = doctor("cap-dvsec-cxl")
    assert sorted(d["id"] for d in function(cxl, "7f:00.0")["dvsecs"] if d["vendor"] == "0x1e98") == [0, 5, 7, 8]
    assert [d["id"] for d in function(cxl, "6b:00.0")["dvsecs"] if d["vendor"] == "0x1e98"] == [0]
    vfs = function(cxl, "6b:00.0")["sriov"]
    assert vfs["total_vfs"] == 6 and not vfs["enabled"] and vfs["num_vfs"] == 0
    assert function(doctor("cap-multicast")[0], "07:00.0")["multicast"] == {"enabled": True, "groups": 64}
    slot = function(doctor("cap-dpc")[0], "05:01.0")["express"]["slot"]
    assert slot["present"] and slot["hotplug"] and slot["surprise"]
    assert "bus 08-13 behind it not recorded" in Run("topo", "--dump", recorded("cap-multicast")).out
    broken = function(doctor("broken-ecaps")[0], "00:00.0")
    assert broken["express"]["present"] == "no" and not broken["dvsecs"]


def test_a_degraded_copy_is_degraded(directory):
    with open(recorded("cap-aer-root"), encoding="utf-8") as file:
        text = file.read()
    text = text.replace("\na0: 40 00 83 70", "\na0: 40 00 42 70").replace("\n70: 40 00 83 10", "\n70: 40 00 42 10")
    answer, status = look("links", "--dump", write(directory, text))
    link = link_of(answer, "03:00.0")
    assert status == 1 and answer["degraded"] == 1 and link["verdict"] == "degraded"
    assert (link["current"]["gts"], link["current"]["width"]) == (5, 4)
    assert (link["expected"]["gts"], link["expected"]["width"]) == (8, 8)


def test_the_sysfs_tree_has_no_degraded_link(directory):
    tree = recorded("sysfs-procfs")
    answer, status = look("links", "--sysfs", tree)
    assert status == 0 and answer["degraded"] == 0 and answer["functions"] == 6
    for address, verdict in (("00:02.1", "limited"), ("01:00.0", "limited"), ("00:03.0", "limited"),
                             ("03:00.0", "limited"), ("a2:00.0", "full")):
        assert link_of(answer, address)["verdict"] == verdict, address
    assert link_of(answer, "01:00.0")["above"]["address"] == "0000:00:02.1"
    assert answer["without_link"] == [{"address": "0000:00:1f.6", "link": "n/a"}]
    full = look("doctor", "--sysfs", tree)[0]
    for address in ("01:00.0", "03:00.0", "a2:00.0"):
        assert function(full, address)["link_verdict"] == "full"


def test_the_sysfs_tree_keeps_counters_as_they_are(directory):
    answer, status = look("doctor", "--sysfs", recorded("sysfs-procfs"))
    assert status == 1 and [f["check"] for f in findings(answer)] == ["aer-counters"]
    counters = function(answer, "00:1f.6")["aer_counters"]
    assert counters["correctable"]["total"] == 9 and counters["correctable"]["lines"]["HeaderOF"] == 8
    assert counters["fatal"]["total"] == 28 and counters["nonfatal"]["total"] == 48
    assert counters["nonfatal"]["lines"]["PoisonTLPBlocked"] == 47
    assert function(answer, "00:02.1")["aer_counters"] is None
    nic = function(answer, "a2:00.0")
    assert nic["numa_node"] == 1 and nic["sriov"]["total_vfs"] == 128 and nic["sriov"]["num_vfs"] == 0
    assert function(answer, "01:00.0")["numa_node"] is None


def test_dumps_cut_anywhere_have_no_invented_fault(directory):
    source = random.Random(3)
    for name in DUMPS:
        with open(recorded(name), encoding="utf-8") as file:
            text = file.read()
        for _ in range(8):
            run = Run("doctor", "--json", "--dump", write(directory, text[:source.randrange(len(text))]))
            if run.out:
                assert not findings(json.loads(run.out), severity="fault"), name


def test_dumps_with_flipped_bytes_are_survived(directory):
    source = random.Random(5)
    for name in DUMPS:
        with open(recorded(name), "rb") as file:
            text = bytearray(file.read())
        for _ in range(3):
            for _ in range(20):
                text[source.randrange(len(text))] = source.randrange(256)
            path = os.path.join(directory, "flipped")
            with open(path, "wb") as file:
                file.write(text)
            for command in ("doctor", "links", "topo"):
                Run(command, "--dump", path)
