"""A guest: one QEMU process with an emulated processor, told what to do over a virtio port, and its devices over QEMU's
monitor.
"""
import base64
import ctypes
import io
import json
import os
import re
import signal
import socket
import subprocess
import tarfile
import threading
import time

QEMU = "qemu-system-x86_64"
PR_SET_PDEATHSIG = 1

# Copies what sysfs has of each PCI device, links as links, and prints it as an archive.
RECORD = """
cd /sys/bus/pci/devices
mkdir -p /tmp/recorded/bus/pci/devices
for link in *; do
    to=/tmp/recorded/$(readlink -f $link | cut -c6-)
    mkdir -p $to
    ln -s $(readlink $link) /tmp/recorded/bus/pci/devices/$link
    cd /sys/bus/pci/devices/$link
    for file in vendor device class config resource enable uevent power_state numa_node local_cpulist aer_dev_* \\
        max_link_* current_link_* *_bus_number; do
        [ ! -f $file ] || cat $file >$to/$file 2>/dev/null
    done
    cd ..
done
tar -C /tmp/recorded -c . 2>/dev/null | gzip | base64
"""


class GuestError(AssertionError):
    """A guest does not do what it should."""


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Line:
    """A connection to a UNIX socket of QEMU's, read by lines."""

    def __init__(self, path, deadline):
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(path)
                break
            except OSError as error:
                self.socket.close()
                if time.monotonic() > deadline:
                    raise GuestError(f"QEMU does not listen: {error}") from error
                time.sleep(0.02)
        self.file = self.socket.makefile("rb")

    def send(self, text):
        self.socket.sendall(text.encode() + b"\n")

    def close(self):
        self.socket.close()


class Monitor:
    """QEMU's own control connection."""

    def __init__(self, path, deadline):
        self.line = Line(path, deadline)
        self.line.file.readline()
        self.execute("qmp_capabilities")

    def execute(self, command, **arguments):
        self.line.send(json.dumps({"execute": command, "arguments": arguments}))
        while True:
            answer = json.loads(self.line.file.readline() or b'{"error": "QEMU has ended"}')
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise GuestError(f"{command}: {answer['error']}")

    def human(self, command):
        return self.execute("human-monitor-command", **{"command-line": command})


class Guest:
    """`devices` are QEMU options for what it has beside memory, console and agent. The firmware of newer QEMUs gives BARs
    addresses that it also calls reserved; pci=no_e820 is so that the kernel plugs devices in there all the same."""

    BOOT_SECONDS = 180

    def __init__(self, directory, name, kernel, initrd, devices, memory_mib=384, memory_file=None, append=""):
        self.directory, self.name = directory, name
        self.command = [
            QEMU, "-nodefaults", "-nic", "none", "-display", "none", "-no-reboot", "-accel", "tcg,thread=multi",
            "-M", "q35" + (",memory-backend=ram" if memory_file else ""), "-cpu", "max", "-smp", "1",
            "-m", str(memory_mib), "-kernel", kernel.image, "-initrd", initrd,
            "-append", f"console=ttyS0 quiet panic=-1 no_timer_check pci=no_e820 fabric.host={name} {append}",
            "-serial", f"file:{directory}/{name}.console",
            "-chardev", f"socket,id=agent,path={directory}/{name}.agent,server=on,wait=off",
            "-device", "virtio-serial-pci,bus=pcie.0,addr=3", "-device", "virtserialport,chardev=agent,nr=1",
            "-qmp", f"unix:{directory}/{name}.qmp,server=on,wait=off"]
        if memory_file:
            self.command += ["-object", f"memory-backend-file,id=ram,size={memory_mib}M,mem-path={memory_file},share=on"]
        self.command += devices
        self.process = None

    # ---- life ----

    def start(self):
        """Begins to boot; wait_booted says when it has."""
        for suffix in ("agent", "qmp"):
            if os.path.exists(f"{self.directory}/{self.name}.{suffix}"):
                os.unlink(f"{self.directory}/{self.name}.{suffix}")
        self.errors = open(f"{self.directory}/{self.name}.qemu", "wb")
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors,
                                        preexec_fn=end_with_parent)
        deadline = time.monotonic() + self.BOOT_SECONDS
        self.agent = Line(f"{self.directory}/{self.name}.agent", deadline)
        self.monitor = Monitor(f"{self.directory}/{self.name}.qmp", deadline)
        self.answers, self.changed, self.scripts = {}, threading.Condition(), 0
        threading.Thread(target=self._listen, args=(self.agent, self.answers), daemon=True).start()

    def _listen(self, agent, answers):
        """Files what the guest says under the number of the script that it answers."""
        for line in agent.file:
            words = line.decode(errors="replace").split()
            if "@" not in words:
                continue
            words = words[words.index("@") + 1:]
            with self.changed:
                answers[words[0]] = words[1:]
                self.changed.notify_all()
        with self.changed:
            answers["gone"] = []
            self.changed.notify_all()

    def _wait(self, key, seconds, what):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.answers or "gone" in self.answers, seconds):
                raise GuestError(f"{self.name}: {what} did not end within {seconds:.0f} s\n{self.console()}")
            if key not in self.answers:
                raise GuestError(f"{self.name}: {what}: the guest has ended\n{self.console()}")
            return self.answers.pop(key)

    def wait_booted(self):
        self._wait("ready", self.BOOT_SECONDS, "booting")

    def kill(self):
        """Ends the process: for the others, a machine that lost power."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.agent.close()
            self.monitor.line.close()
            self.errors.close()
            self.process = None

    def console(self):
        """The last lines that the guest's kernel and QEMU wrote."""
        text = ""
        for suffix in ("qemu", "console"):
            with open(f"{self.directory}/{self.name}.{suffix}", errors="replace") as file:
                text += "".join(file.readlines()[-15:])
        return text

    # ---- scripts ----

    def begin(self, script):
        """Starts a shell script in the guest; returns what finish() wants."""
        with self.changed:
            self.scripts += 1
            number = str(self.scripts)
        self.agent.send(f"{number} {base64.b64encode(script.encode()).decode()}")
        return number

    def finish(self, number, seconds=90, what="a script"):
        """(status, output) of a script that was begun."""
        status, *output = self._wait(number, seconds, what)
        return int(status), base64.b64decode(output[0] if output else "").decode(errors="replace")

    def run(self, script, seconds=90):
        """The output of a script, which must succeed."""
        status, output = self.finish(self.begin(script), seconds, script[:60])
        if status:
            raise GuestError(f"{self.name}: status {status} of: {script[:200]}\n{output[-1500:]}")
        return output

    def read(self, path):
        return self.run(f"cat {path}")

    def values(self, path):
        """A text file of "name value" lines."""
        return dict(line.split(" ", 1) for line in self.read(path).splitlines() if " " in line)

    # ---- PCI ----

    def record(self, directory):
        """Copies the sysfs tree of the guest's PCI devices to a directory here, as fabricctl --sysfs reads it."""
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(self.run(RECORD)))) as archive:
            archive.extractall(directory)

    def devices(self):
        """Addresses of the shared memory devices, with the addresses of the bridges above each, topmost first."""
        listed = self.run("for d in /sys/bus/pci/devices/*; do [ $(cat $d/vendor)$(cat $d/device) = 0x1af40x1110 ] && "
                          "readlink -f $d; done; true")
        paths = [re.findall(r"0000:[0-9a-f:.]+", line) for line in listed.split()]
        return {tuple(path[:-1]): path[-1] for path in paths}
