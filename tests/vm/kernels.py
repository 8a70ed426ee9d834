"""Debian's kernels for the guests, from the packages of the distribution, which are not installed.

The packages come from the mirror that this machine's own come from, through package lists of our own; of each the
kernel and the modules that guests load are kept in subprojects/packagecache/vm (not under version control).
"""
import glob
import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.path.join(HERE, "../../subprojects/packagecache/vm")
SUITES = {"6.1": "bookworm", "6.12": "trixie"}
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# In the order in which they are to be loaded; what is built in is not in the package.
MODULES = ("virtio", "virtio_ring", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_console",
           "fuse", "libnvdimm", "nd_btt", "nd_pmem", "nd_e820", "dax_pmem", "device_dax")


class Unavailable(Exception):
    """The kernel cannot be had here; the text says why."""


class Kernel:
    """One version: its image and its modules, in the order in which they are to be loaded."""

    def __init__(self, version):
        self.version = version
        self.directory = os.path.join(CACHE, version)
        self.image = os.path.join(self.directory, "vmlinuz")

    def modules(self):
        paths = [os.path.join(self.directory, f"{name}.ko") for name in MODULES]
        return [path for path in paths if os.path.exists(path)]


def run(*command, **more):
    result = subprocess.run(command, capture_output=True, text=True, **more)
    if result.returncode:
        raise Unavailable(f"{' '.join(command[:2])}: {(result.stderr or result.stdout).strip()[-200:]}")
    return result.stdout


def mirror():
    """Where the packages of this machine's distribution come from."""
    with open("/etc/os-release") as file:
        names = dict(line.strip().split("=", 1) for line in file if "=" in line)
    listed = run("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages",
                 "Origin: Debian")
    for line in listed.splitlines():
        codename, uri = line.split()
        if codename == names.get("VERSION_CODENAME"):
            return uri
    raise Unavailable("apt has no package lists of Debian: run apt-get update")


def download(suite, directory):
    """Fetches the package of the suite's kernel; returns its path. apt checks the archive's signature."""
    for name in ("lists/partial", "archives/partial"):
        os.makedirs(f"{directory}/{name}")
    with open(f"{directory}/sources.list", "w") as file:
        file.write(f"deb [signed-by={KEYRING} arch=amd64] {mirror()} {suite} main\n")
    options = ["-qq", "-o", f"Dir::Etc::SourceList={directory}/sources.list", "-o", "Dir::Etc::SourceParts=/dev/null",
               "-o", f"Dir::State::Lists={directory}/lists", "-o", f"Dir::Cache={directory}",
               "-o", "Acquire::Languages=none", "-o", "APT::Sandbox::User=root"]
    run("apt-get", *options, "update", timeout=120)
    depends = run("apt-cache", *options, "depends", "linux-image-amd64")
    package = next(line.split()[1] for line in depends.splitlines() if line.strip().startswith("Depends: linux-image"))
    run("apt-get", *options, "download", package, cwd=directory, timeout=300)
    return glob.glob(f"{directory}/linux-image-*.deb")[0]


def unpack(package, directory):
    """Keeps the kernel and the modules of MODULES."""
    wanted = {f"{name}.ko{ending}": f"{name}.ko" for name in MODULES for ending in ("", ".xz")}
    with subprocess.Popen(("dpkg-deb", "--fsys-tarfile", package), stdout=subprocess.PIPE) as stream:
        with tarfile.open(fileobj=stream.stdout, mode="r|") as archive:
            for member in archive:
                name = os.path.basename(member.name)
                if not member.isfile() or not (name in wanted or name.startswith("vmlinuz-")):
                    continue
                content = archive.extractfile(member).read()
                if name.endswith(".xz"):
                    content = lzma.decompress(content)
                with open(os.path.join(directory, wanted.get(name, "vmlinuz")), "wb") as file:
                    file.write(content)


def get(version):
    """The kernel, fetched when it is not there yet. Raises Unavailable."""
    kernel = Kernel(version)
    if os.path.exists(kernel.image):
        return kernel
    os.makedirs(CACHE, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:
        try:
            unpacked = f"{directory}/unpacked"
            os.mkdir(unpacked)
            unpack(download(SUITES[version], directory), unpacked)
        except (OSError, StopIteration, IndexError, subprocess.TimeoutExpired, tarfile.TarError) as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from error
        if not os.path.exists(f"{unpacked}/vmlinuz"):
            raise Unavailable("the package holds no kernel")
        shutil.rmtree(kernel.directory, ignore_errors=True)
        os.rename(unpacked, kernel.directory)
    return kernel
