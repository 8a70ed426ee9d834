"""Machines made up for the tests: functions with their configuration space, written as lspci hex or as a sysfs tree.

A machine is a list of Fn. Registers that a test does not set have plausible values: an endpoint that decodes memory,
a port with buses, a full slot and an active link.
"""
import os

ENDPOINT, ROOT_PORT, UPSTREAM, DOWNSTREAM, RC_ENDPOINT = 0, 4, 5, 6, 9
SPEED = {0: 0, 2.5: 1, 5: 2, 8: 3, 16: 4, 32: 5, 64: 6}
GPU, NIC, NVME, NTB, BRIDGE, HOST = 0x030200, 0x020000, 0x010802, 0x068000, 0x060400, 0x060000
EXP, AER, ACS, DPC = 0x40, 0x100, 0x150, 0x160  # where this machine keeps its capabilities


class Fn:
    def __init__(self, address, cls, kind=None, cap=(8, 16), now=None, **more):
        self.address, self.cls, self.kind = address, cls, kind
        self.cap, self.now = cap, now or cap
        self.vendor, self.device = more.pop("vendor", 0x8086), more.pop("device", 0x1234)
        self.buses = more.pop("buses", None)  # primary, secondary, subordinate
        self.command = more.pop("command", 6)
        self.slot = more.pop("slot", None)  # None: no slot; True: full; False: empty
        self.active = more.pop("active", True)  # None: the port does not report it
        self.acs = more.pop("acs", None)
        self.aer = more.pop("aer", {})  # ue, ue_mask, ue_severity, ce, ce_mask; None: no AER
        self.dpc = more.pop("dpc", None)
        self.bars = more.pop("bars", [0xe0000000 | 0xc, 0] if kind == ENDPOINT else [])
        self.target = more.pop("target", None)
        self.status = more.pop("status", 0)  # bits of LnkSta: 0x4000, 0x8000
        self.mps = more.pop("mps", 1)
        self.attrs = more.pop("attrs", {})  # sysfs files, or None to leave one out
        assert not more, more

    def port(self):
        return self.kind in (ROOT_PORT, DOWNSTREAM)

    def config(self):
        c = bytearray(4096)

        def put(at, value, size):
            c[at:at + size] = value.to_bytes(size, "little")

        put(0, self.vendor, 2)
        put(2, self.device, 2)
        put(4, self.command, 2)
        put(6, 0x10 if self.kind is not None else 0, 2)
        put(8, self.cls << 8, 4)
        put(0x0e, 1 if self.buses else 0, 1)
        for i, bar in enumerate(self.bars):
            put(0x10 + 4 * i, bar, 4)
        if self.buses:
            for i, bus in enumerate(self.buses):
                put(0x18 + i, bus, 1)
        if self.kind is None:
            return bytes(c)
        put(0x34, EXP, 1)
        self.express(put)
        self.extended(put)
        return bytes(c)

    def express(self, put):
        put(EXP, 0x10, 2)
        put(EXP + 2, 2 | self.kind << 4 | (0x100 if self.slot is not None else 0), 2)
        put(EXP + 4, 2, 4)
        put(EXP + 8, self.mps << 5, 2)
        if self.kind == RC_ENDPOINT:
            return
        reports = self.port() and self.active is not None
        put(EXP + 12, SPEED[self.cap[0]] | self.cap[1] << 4 | (0x100000 if reports else 0), 4)
        put(EXP + 18, SPEED[self.now[0]] | self.now[1] << 4 | (0x2000 if reports and self.active else 0) | self.status, 2)
        if self.slot is not None:
            put(EXP + 20, 0x40, 4)
            put(EXP + 26, 0x40 if self.slot else 0, 2)
        put(EXP + 48, SPEED[self.target or self.cap[0]], 2)

    def extended(self, put):
        """Chains those that are there: each header names the next one."""
        there = [AER] * (self.aer is not None) + [ACS] * (self.acs is not None) + [DPC] * (self.dpc is not None)
        if there and there[0] != 0x100:
            there.insert(0, 0x100)
            put(0x100, 0xb | 1 << 16 | there[1] << 20, 4)  # a vendor's own
        for at, following in zip(there, there[1:] + [0]):
            number = {AER: 1 if self.aer is not None else 0xb, ACS: 0xd, DPC: 0x1d}[at]
            put(at, number | 1 << 16 | following << 20, 4)
        if self.aer is not None:
            for name, at in (("ue", 4), ("ue_mask", 8), ("ue_severity", 12), ("ce", 16), ("ce_mask", 20)):
                put(AER + at, self.aer.get(name, 0), 4)
            put(AER + 44, 7, 4)
        if self.acs is not None:
            put(ACS + 4, 0x1f, 2)
            put(ACS + 6, self.acs, 2)
        if self.dpc is not None:
            put(DPC + 8, self.dpc, 2)

    def hex(self, length=4096):
        c = self.config()[:length]
        rows = [f"{at:02x}: " + " ".join(f"{byte:02x}" for byte in c[at:at + 16]) for at in range(0, length, 16)]
        return f"{self.address} something in words\n" + "\n".join(rows) + "\n"


def dump(machine, length=4096):
    return "\n".join(fn.hex(length) for fn in machine)


# ---- sysfs ----

def full(address):
    return address if address.count(":") == 2 else "0000:" + address


def bridge_above(machine, fn):
    domain, bus = full(fn.address).split(":")[:2]
    for other in machine:
        if other.buses and full(other.address).split(":")[0] == domain and other.buses[1] == int(bus, 16):
            return other
    return None


def path_of(machine, fn):
    above = bridge_above(machine, fn)
    if above:
        return path_of(machine, above) + "/" + full(fn.address)
    domain, bus = full(fn.address).split(":")[:2]
    return f"devices/pci{domain}:{bus}/{full(fn.address)}"


def attributes(fn):
    files = {"vendor": f"0x{fn.vendor:04x}", "device": f"0x{fn.device:04x}", "class": f"0x{fn.cls:06x}",
             "enable": "1", "numa_node": "-1"}
    if fn.kind is not None and fn.kind != RC_ENDPOINT:
        files.update({"max_link_speed": f"{fn.cap[0]:.1f} GT/s PCIe", "max_link_width": str(fn.cap[1]),
                      "current_link_speed": f"{fn.now[0]:.1f} GT/s PCIe", "current_link_width": str(fn.now[1])})
    if fn.buses:
        files.update({"secondary_bus_number": str(fn.buses[1]), "subordinate_bus_number": str(fn.buses[2])})
    files.update(fn.attrs)
    return {name: text for name, text in files.items() if text is not None}


def sysfs(machine, root, config=4096, links="links"):
    """Writes the tree. config: bytes of each config file, 0 for none. links: links, text or directories."""
    listing = os.path.join(root, "bus/pci/devices")
    os.makedirs(listing)
    for fn in machine:
        path = path_of(machine, fn) if links != "directories" else f"bus/pci/devices/{full(fn.address)}"
        os.makedirs(os.path.join(root, path), exist_ok=True)
        for name, text in attributes(fn).items():
            os.makedirs(os.path.dirname(os.path.join(root, path, name)), exist_ok=True)
            with open(os.path.join(root, path, name), "w", encoding="utf-8") as file:
                file.write(text + "\n")
        if config:
            with open(os.path.join(root, path, "config"), "wb") as file:
                file.write(fn.config()[:config])
        entry = os.path.join(listing, full(fn.address))
        if links == "links":
            os.symlink("../../../" + path, entry)
        elif links == "text":
            with open(entry, "w", encoding="utf-8") as file:
                file.write("../../../" + path)
    return root


# ---- machines ----

def pair(port_cap=(8, 16), device_cap=(8, 16), now=(8, 16), cls=NIC, port=None, device=None):
    """A root port and one device."""
    return [Fn("00:01.0", BRIDGE, ROOT_PORT, port_cap, now, buses=(0, 1, 1), slot=True, **(port or {})),
            Fn("01:00.0", cls, ENDPOINT, device_cap, now, **(device or {}))]


def switch(root, first_bus, devices, cap=(16, 16), acs=None, domain="0000", numa=None):
    """A root port, a switch below it, and a device behind each of its ports. devices: class codes."""
    attrs = {} if numa is None else {"numa_node": str(numa)}
    last = first_bus + 1 + len(devices)
    bus = int(root.split(":")[0], 16)
    fns = [Fn(f"{domain}:{root}", BRIDGE, ROOT_PORT, cap, buses=(bus, first_bus, last), slot=True, attrs=attrs),
           Fn(f"{domain}:{first_bus:02x}:00.0", BRIDGE, UPSTREAM, cap, buses=(first_bus, first_bus + 1, last), attrs=attrs)]
    for i, cls in enumerate(devices):
        below = first_bus + 2 + i
        fns.append(Fn(f"{domain}:{first_bus + 1:02x}:{i:02x}.0", BRIDGE, DOWNSTREAM, cap, acs=acs, slot=True,
                      buses=(first_bus + 1, below, below), attrs=attrs))
        fns.append(Fn(f"{domain}:{below:02x}:00.0", cls, ENDPOINT, cap, attrs=attrs))
    return fns


def server():
    """137 functions: two sockets with four switches each, of GPUs, NICs and NVMe drives, and what a board adds."""
    fns = []
    for socket in (0, 1):
        base = 0x80 * socket
        for i in range(4):
            root = base + 0x18 * i
            fns.append(Fn(f"0000:{root:02x}:00.0", HOST))
            fns += switch(f"{root:02x}:01.0", root + 1, [GPU, GPU, NIC, NVME, NVME], numa=socket)
    board = 137 - len(fns)
    fns += [Fn(f"0000:7f:{i // 8:02x}.{i % 8}", 0x088000, RC_ENDPOINT) for i in range(board)]
    return fns
