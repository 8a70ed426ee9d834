"""The tree, paths and matrix of fabricctl topo."""
import xml.dom.minidom

import make
from control import Run, look, write
from make import GPU, NIC, NVME


def cell(answer, a, b):
    for pair in answer["matrix"]["pairs"]:
        if {pair["a"], pair["b"]} == {a, b}:
            return pair
    raise AssertionError(f"no pair {a} {b}")


def two_levels():
    """A switch whose first port leads to another switch."""
    machine = make.switch("00:01.0", 1, [GPU, NIC])
    inner = make.switch("02:00.0", 3, [GPU, GPU])
    return [machine[0], machine[1], *inner, machine[4], machine[5]]


def test_classes_from_pix_to_sys(directory):
    machine = make.switch("00:01.0", 1, [GPU, NIC], numa=0) + make.switch("00:02.0", 0x11, [GPU], numa=0)
    machine += make.switch("40:01.0", 0x41, [GPU], numa=0) + make.switch("80:01.0", 0x81, [NIC], numa=1)
    answer, status = look("topo", "--sysfs", make.sysfs(machine, directory + "/tree"))
    assert status == 0
    for other, cls, p2p in (("0000:04:00.0", "PIX", "direct"), ("0000:13:00.0", "PHB", "host"),
                            ("0000:43:00.0", "NODE", "host"), ("0000:83:00.0", "SYS", "across-sockets")):
        pair = cell(answer, "0000:03:00.0", other)
        assert (pair["class"], pair["p2p"]) == (cls, p2p), (other, pair)


def test_several_switches_are_pxb_and_the_bottleneck_is_named(directory):
    machine = two_levels()
    for fn in machine:
        if fn.address in ("0000:00:01.0", "0000:01:00.0"):
            fn.buses = (fn.buses[0], fn.buses[1], 9)
        if fn.address == "0000:02:00.0":
            fn.kind, fn.buses = make.DOWNSTREAM, (2, 3, 6)
        if fn.address in ("0000:02:01.0",):
            fn.buses = (2, 7, 7)
        if fn.address == "0000:04:00.0" and fn.cls == NIC:
            fn.address = "0000:07:00.0"
        if fn.address in ("0000:02:00.0", "0000:03:00.0"):
            fn.now = (8, 16)
    answer, status = look("topo", "--dump", write(directory, make.dump(machine)))
    pair = cell(answer, "0000:05:00.0", "0000:07:00.0")
    assert pair["class"] == "PXB" and pair["common"] == "0000:01:00.0", pair
    assert cell(answer, "0000:05:00.0", "0000:06:00.0")["class"] == "PIX"
    path = next(path for path in answer["paths"] if path["device"] == "0000:05:00.0")
    assert path["bottleneck"]["above"]["address"] == "0000:02:00.0" and status == 1
    assert round(path["gbytes"], 2) == 15.75 and round(path["possible_gbytes"], 2) == 31.51
    assert len(path["path"]) == 6


def test_numa_of_a_dump_is_not_guessed(directory):
    machine = make.switch("00:01.0", 1, [GPU]) + make.switch("80:01.0", 0x81, [GPU])
    answer, _ = look("topo", "--dump", write(directory, make.dump(machine)))
    assert cell(answer, "0000:03:00.0", "0000:83:00.0")["class"] == "NODE|SYS"


def test_domains_do_not_mix(directory):
    machine = make.switch("00:01.0", 1, [GPU]) + make.switch("00:01.0", 1, [GPU], domain="10000")
    answer, status = look("topo", "--dump", write(directory, make.dump(machine)))
    assert status == 0 and {d["address"] for d in answer["matrix"]["devices"]} == {"0000:03:00.0", "10000:03:00.0"}
    assert next(d for d in answer["devices"] if d["address"] == "10000:03:00.0")["parent"] == "10000:02:00.0"


def test_devices_are_chosen_by_kind_and_address(directory):
    path = write(directory, make.dump(make.switch("00:01.0", 1, [GPU, NIC, NVME])))
    answer, _ = look("topo", "--dump", path, "--devices", "nvme,0000:03:00.0")
    assert [d["name"] for d in answer["matrix"]["devices"]] == ["NVME0", "GPU0"]
    for wrong in ("gpus", "0000:77:00.0", "x" * 100):
        assert Run("topo", "--dump", path, "--devices", wrong).status == 2, wrong


def test_the_drawing_shows_links_and_slots(directory):
    machine = make.switch("00:01.0", 1, [GPU, NIC])
    machine[3].now = machine[2].now = (8, 16)
    text = Run("topo", "--dump", write(directory, make.dump(machine))).out
    assert "root bus 0000:00" in text and "DEGRADED, should be 16 GT/s x16" in text and "slot full" in text
    assert "0000:00:01.0 > 0000:01:00.0 > 0000:02:00.0 > 0000:03:00.0" in text


def test_the_picture_is_well_formed_and_complete(directory):
    path = write(directory, make.dump(make.server()))
    run = Run("topo", "--dump", path, "--svg")
    picture = xml.dom.minidom.parseString(run.out)
    words = [node.firstChild.data for node in picture.getElementsByTagName("text") if node.firstChild]
    for socket in (0, 0x80):
        assert f"0000:{socket + 3:02x}:00.0" in words
    dot = Run("topo", "--dump", path, "--dot").out
    assert dot.startswith("graph ") and dot.rstrip().endswith("}") and '"0000:03:00.0"' in dot
