#!/usr/bin/python3
"""A recorded sysfs tree of PCI devices as one text file, and back.

    tree.py DIR >FILE    packs DIR, where DIR/bus/pci/devices/ADDRESS are links to the devices' directories

A line "device PATH" begins a device, "file NAME TEXT" is a small file of it (newlines as \\n), "config LENGTH" and
"OFFSET: hh hh ..." its configuration space; rows of zeros are left out. What begins with # is a comment.
"""
import os
import sys

ROW = 16


def pack_config(data):
    rows = [f"config {len(data)}"]
    for at in range(0, len(data), ROW):
        if any(data[at:at + ROW]):
            rows.append(f"{at:03x}: {data[at:at + ROW].hex(' ')}")
    return rows


def pack_device(root, path):
    lines = [f"device {path}"]
    for name in sorted(os.listdir(os.path.join(root, path))):
        where = os.path.join(root, path, name)
        if not os.path.isfile(where):
            continue
        with open(where, "rb") as file:
            data = file.read()
        lines += pack_config(data) if name == "config" else [f"file {name} " + data.decode().replace("\n", "\\n")]
    return lines


def pack(root):
    listing = os.path.join(root, "bus/pci/devices")
    lines = []
    for address in sorted(os.listdir(listing)):
        lines += pack_device(root, os.path.relpath(os.path.realpath(os.path.join(listing, address)), os.path.realpath(root)))
    return "\n".join(lines) + "\n"


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def unpack(text, root):
    """Makes the tree in the directory root; returns root."""
    listing = os.path.join(root, "bus/pci/devices")
    os.makedirs(listing)
    where, config = None, None
    for line in text.splitlines() + ["device "]:
        word, _, rest = line.partition(" ")
        if word in ("device", "config") and config:
            write(os.path.join(where, "config"), config)
            config = None
        if word == "device" and rest:
            where = os.path.join(root, rest)
            os.makedirs(where)
            os.symlink(os.path.join("../../..", rest), os.path.join(listing, os.path.basename(rest)))
        elif word == "file":
            name, _, content = rest.partition(" ")
            write(os.path.join(where, name), content.replace("\\n", "\n").encode())
        elif word == "config":
            config = bytearray(int(rest))
        elif word.endswith(":"):
            at = int(word[:-1], 16)
            config[at:at + ROW] = bytes.fromhex(rest)
    return root


if __name__ == "__main__":
    sys.stdout.write(pack(sys.argv[1]))
