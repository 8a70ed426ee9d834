"""Several guests that are the nodes of one fabric, joined by PCI BARs.

Each guest has two root ports: its own landing memory, or an empty slot, behind the first, and behind the second a
switch with one downstream port for each other node, through whose BAR that node's landing memory is reached.

layout "bar": every node's landing memory is a BAR of its own, and the others' windows show the same memory.
layout "ram": every node's landing memory is RAM that its kernel has set aside (a DAX device), and the others' windows
show all of that guest's RAM, as a non-transparent bridge does; so the window names a part of the BAR.
"""
import tempfile
import threading

import guest

MIB = 1 << 20
WINDOW_MIB = 16
RAM_MIB = 512
RESERVED = 0x10000000  # where the part of a guest's RAM begins that its kernel leaves alone, in layout "ram"
MOUNT = "/fabric"

# Turns the pmem region over the reserved RAM into a DAX device, as ndctl would, and says what is usable of it. The kernel
# finds such regions in its own time.
MAKE_DAX = """
nd=/sys/bus/nd
until [ -e $nd/drivers/nd_pmem/namespace0.0 ] && [ -e $nd/devices/dax0.0/uuid ]; do usleep 20000; done
echo namespace0.0 >$nd/drivers/nd_pmem/unbind
cat /proc/sys/kernel/random/uuid >$nd/devices/dax0.0/uuid
echo 2097152 >$nd/devices/dax0.0/align
echo ram >$nd/devices/dax0.0/mode
echo namespace0.0 >$nd/devices/dax0.0/namespace
echo dax0.0 >$nd/drivers/dax_pmem/bind
until [ -e /sys/bus/dax/devices/dax0.0/size ]; do usleep 20000; done
cd /sys/bus/dax/devices/dax0.0
echo $(cat resource) $(cat size)
"""


def in_parallel(function, items):
    """Calls the function with each item at the same time; returns the results. The first failure is raised."""
    results, errors = [None] * len(items), []

    def call(idx, item):
        try:
            results[idx] = function(item)
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=call, args=pair) for pair in enumerate(items)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class Node(guest.Guest):
    """A guest with its place in the fabric."""

    def __init__(self, cluster, number):
        self.cluster, self.number, self.plugs = cluster, number, 0
        memory = {"memory_mib": cluster.memory_mib}
        append = cluster.append
        if cluster.layout == "ram":
            memory = {"memory_mib": RAM_MIB, "memory_file": cluster.memory(number)}
            append += f" memmap={WINDOW_MIB}M!{RESERVED:#x}"
        super().__init__(cluster.directory, f"node{number}", *cluster.systems[number], self._devices(), append=append,
                         **memory)

    def others(self):
        return [number for number in range(self.cluster.count) if number != self.number]

    def _devices(self):
        size = self.cluster.bar_mib
        reserve = f"pref64-reserve={2 * size * self.cluster.count}M"
        options = ["-device", f"pcie-root-port,id=rp0,bus=pcie.0,addr=4,chassis=1,slot=1,{reserve}",
                   "-device", f"pcie-root-port,id=rp1,bus=pcie.0,addr=5,chassis=2,slot=2,x-speed=8,x-width=4,{reserve}",
                   "-device", "x3130-upstream,id=up,bus=rp1"]
        if self.cluster.layout == "bar":
            options += self._memory(self.number) + ["-device", f"ivshmem-plain,id=own,memdev=m{self.number},bus=rp0"]
        for number in self.others():
            options += ["-device", f"xio3130-downstream,id=dn{number},bus=up,addr={number},chassis={10 + number},"
                        f"slot={10 + number}"]
            options += self._memory(number)
            options += ["-device", f"ivshmem-plain,id=w{number},memdev=m{number},bus=dn{number}"]
        return options

    def _memory(self, number):
        return ["-object", f"memory-backend-file,id=m{number},share=on,mem-path={self.cluster.memory(number)},"
                f"size={self.cluster.bar_mib}M"]

    def unplug(self, number):
        """Pulls the device out by which this node reaches another."""
        self.monitor.execute("device_del", id=f"w{number}")

    def plug(self, number, memory=None):
        """Plugs one in there again, with the same memory or that of another node. QEMU wants a memory object that no
        device has had before."""
        self.plugs += 1
        self.monitor.execute("object-add", **{
            "qom-type": "memory-backend-file", "id": f"again{self.plugs}", "share": True, "size": self.cluster.bar_mib * MIB,
            "mem-path": self.cluster.memory(number if memory is None else memory)})
        self.monitor.execute("device_add", driver="ivshmem-plain", id=f"w{number}", memdev=f"again{self.plugs}",
                             bus=f"dn{number}")

    # ---- the daemon ----

    def find_windows(self):
        """The address of the device behind each port: {"own": ..., number of a node: ...}."""
        found = {}
        for path, address in self.devices().items():
            if path[1] == "0000:00:04.0":
                found["own"] = address
            else:
                found[int(path[-1].split(":")[2].split(".")[0], 16)] = address
        return found

    def make_landing(self):
        """The URI of this node's landing memory, and which part of its window the others find it in."""
        if self.cluster.layout == "bar":
            return f"pci:{self.find_windows()['own']}/2{self.cluster.part}", self.cluster.part
        start, size = (int(word, 0) for word in self.run(MAKE_DAX).split())
        return "dax:/dev/dax0.0", f"+{start}:{size}"

    def configure(self, landings):
        """Writes the daemon's configuration; `landings` are the results of make_landing of all nodes."""
        windows = self.find_windows()
        lines = ["[fabric]", "name = vm", f"node = {self.number}", f"nodes = {self.cluster.count}",
                 f"heartbeat_ms = {self.cluster.heartbeat_ms}", *self.cluster.settings]
        for number, (uri, part) in enumerate(landings):
            lines.append(f"[node {number}]")
            lines.append(f"landing = {uri}" if number == self.number else f"window = pci:{windows[number]}/2{part}")
        text = "\n".join(lines)
        self.run(f"cat >/etc/fabricfs.conf <<'END'\n{text}\nEND\n")

    def mount(self):
        self.run(f"fabricfs {MOUNT}")

    def link(self, number):
        return self.values(f"{MOUNT}/nodes/{number}/link")

    def wait_link(self, number, state="up", seconds=90):
        """Waits until the link to a node is in that state; returns what its file says."""
        try:
            self.run(f"until grep -q '^state {state}$' {MOUNT}/nodes/{number}/link; do usleep 20000; done", seconds)
        except guest.GuestError as error:
            raise guest.GuestError(f"{error}\n{self.read(f'{MOUNT}/nodes/{number}/link')}") from error
        return self.link(number)


class Cluster:
    """A context: boots the nodes and mounts the fabric on each; ends every guest. With `up` false only the
    first is booted, and no daemon started. Several versions of the kernel take turns. With
    `python` the guests have python3 with numpy. `settings` are more lines of the daemons' configuration."""

    def __init__(self, images, version, count=2, layout="bar", up=True, append="", memory_mib=192,
                 heartbeat_ms=5000, python=False, window_mib=WINDOW_MIB, part="", settings=()):
        versions = (version,) if isinstance(version, str) else version
        self.systems = [images.get(versions[number % len(versions)], python) for number in range(count)]
        self.count, self.layout, self.up = count, layout, up
        self.append, self.memory_mib, self.heartbeat_ms = append, memory_mib, heartbeat_ms
        self.settings = settings
        self.bar_mib, self.part = RAM_MIB if layout == "ram" else window_mib, part

    def memory(self, number):
        return f"{self.shared.name}/memory{number}"

    def __enter__(self):
        self.shared = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="fabricfs-vm.")
        self.directory = self.shared.name
        for number in range(self.count):
            with open(self.memory(number), "wb") as file:
                file.truncate(self.bar_mib * MIB)
        self.nodes = [Node(self, number) for number in range(self.count)]
        try:
            self.boot(self.nodes if self.up else self.nodes[:1])
            if self.up:
                self.landings = in_parallel(Node.make_landing, self.nodes)
                in_parallel(self.start_daemon, self.nodes)
                self.wait_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def boot(self, nodes):
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait_booted()

    def start_daemon(self, node):
        node.configure(self.landings)
        node.mount()

    def wait_up(self):
        in_parallel(lambda node: [node.wait_link(number) for number in node.others()], self.nodes)

    def __exit__(self, *_):
        for node in self.nodes:
            node.kill()
        self.shared.cleanup()

    def __getitem__(self, number):
        return self.nodes[number]
