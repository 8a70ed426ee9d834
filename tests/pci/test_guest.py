"""A machine recorded here: a QEMU guest with a switch, whose ports call their links down although they work."""
import os

import tree
from control import Run, findings, function, link_of, look

HERE = os.path.dirname(os.path.abspath(__file__))
SWITCH, PORT = "0000:02:00.0", "0000:00:05.0"


def guest(directory):
    with open(os.path.join(HERE, "guest.tree"), encoding="utf-8") as file:
        return tree.unpack(file.read(), os.path.join(directory, "sysfs"))


def patch(root, address, change):
    """Changes configuration space of one function; `change` gets the bytes and where its Express capability is."""
    path = os.path.join(root, "bus/pci/devices", address, "config")
    with open(path, "rb") as file:
        config = bytearray(file.read())
    at = config[0x34]
    while config[at] != 0x10:
        at = config[at + 1]
    with open(path, "wb") as file:
        file.write(change(config, at) or config)


def test_links_whose_devices_answer_are_up_whatever_their_ports_say(directory):
    answer, status = look("links", "--sysfs", guest(directory))
    verdicts = {(link["above"] or link["below"])["address"]: link["verdict"] for link in answer["links"]}
    assert verdicts == {"0000:00:04.0": "full", PORT: "limited", "0000:03:01.0": "unknown", "0000:03:02.0": "empty"}
    link = link_of(answer, SWITCH)
    assert (link["current"]["gts"], link["current"]["width"]) == (2.5, 1)
    assert (link["above"]["max"]["gts"], link["above"]["max"]["width"]) == (8, 4)
    assert status == 0 and answer["degraded"] == 0 and answer["functions"] == 12


def test_no_slot_with_a_device_in_it_is_drawn_as_empty(directory):
    said = {line.lstrip(" │├└─").split()[0]: line for line in Run("topo", "--sysfs", guest(directory)).out.splitlines()
            if ", slot " in line}
    assert set(said) == {"0000:00:04.0", PORT, "0000:03:01.0", "0000:03:02.0"}, said
    empty = {address for address, line in said.items() if "slot empty" in line}
    assert empty == {"0000:03:02.0"}, said
    assert "slot calls itself empty" in said[PORT], said


def test_a_device_that_is_silent_behind_such_a_port_is_lost(directory):
    root = guest(directory)
    patch(root, SWITCH, lambda config, at: b"\xff" * len(config))
    answer, status = look("links", "--sysfs", root)
    assert link_of(answer, SWITCH)["verdict"] == "down" and status == 1


def test_with_a_switch_that_could_do_more_the_same_link_is_degraded(directory):
    def widen(config, at):
        config[at + 12:at + 14] = (3 | 4 << 4).to_bytes(2, "little")  # LnkCap: 8 GT/s x4
    root = guest(directory)
    patch(root, SWITCH, widen)
    os.unlink(os.path.join(root, "bus/pci/devices", SWITCH, "max_link_speed"))
    os.unlink(os.path.join(root, "bus/pci/devices", SWITCH, "max_link_width"))
    answer, status = look("links", "--sysfs", root)
    link = link_of(answer, SWITCH)
    assert link["verdict"] == "degraded" and status == 1, link
    assert (link["expected"]["gts"], link["expected"]["width"]) == (8, 4)


def test_the_injected_error_is_told_and_nothing_is_called_broken(directory):
    answer, status = look("doctor", "--sysfs", guest(directory))
    assert status == 1 and not findings(answer, severity="fault"), answer["findings"]
    counters = function(answer, "03:01.0")["aer_counters"]
    assert counters["nonfatal"]["total"] == 1 and counters["nonfatal"]["lines"]["CmpltTO"] == 1
    assert function(answer, "03:01.0")["aer"]["uncorrectable"] == [{"name": "CmpltTO", "masked": False, "fatal": False}]
    assert {f["address"] for f in findings(answer, severity="warning")} == {"0000:03:01.0"}


def test_the_windows_are_told_from_their_ports_and_the_slow_hop_between_them_counts(directory):
    answer, _ = look("topo", "--sysfs", guest(directory))
    parent = {fn["address"]: fn["parent"] for fn in answer["devices"]}
    assert (parent["0000:04:00.0"], parent["0000:03:01.0"], parent[SWITCH]) == ("0000:03:01.0", SWITCH, PORT)
    pair = answer["matrix"]["pairs"][0]
    assert (pair["a"], pair["b"], pair["class"]) == ("0000:01:00.0", "0000:04:00.0", "PHB")
    assert pair["gbytes"] == 0.25


def test_what_it_was_packed_from_comes_out_of_it_again(directory):
    first = guest(directory)
    again = tree.unpack(tree.pack(first), os.path.join(directory, "again"))
    assert tree.pack(again) == tree.pack(first)
    assert look("links", "--sysfs", again)[0]["links"] == look("links", "--sysfs", first)[0]["links"]
