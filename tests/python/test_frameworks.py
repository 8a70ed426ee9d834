"""utils/pages/frameworks.md: each of its programs is run by two ranks as it is printed, where its framework is installed."""
import os
import re
import subprocess

from harness import equal, needs
from ranks import PYTHON, TREE, module
from test_torch import free_port

PAGE = f"{TREE}/utils/pages/frameworks.md"
MODULES = {"ddp.py": "torch", "inplace.py": "torch", "with_tensorflow.py": "tensorflow", "with_jax.py": "jax",
           "with_horovod.py": "numpy"}


def programs():
    """What the page prints, by name."""
    with open(PAGE, encoding="utf-8") as file:
        return dict(re.findall(r"^```python file=(\S+)\n(.*?)^```", file.read(), re.S | re.M))


def run(mount, name):
    """The program by two ranks; what rank 0 prints is the gradient of both."""
    module("numpy")
    module(MODULES[name])
    directory = mount.env.directory
    for file, text in programs().items():
        with open(f"{directory}/{file}", "w", encoding="utf-8") as out:
            out.write(text)
    port = free_port()
    ranks = [subprocess.Popen([PYTHON, name], cwd=directory, stdout=subprocess.PIPE, env={
        **os.environ, "FABRIC_MOUNT": mount.path, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port, "LOCAL_RANK": str(rank)}, text=True) for rank in range(2)]
    printed = [rank.communicate(timeout=200)[0] for rank in ranks]
    equal([rank.returncode for rank in ranks], [0, 0], f"status, after {printed}")
    equal(printed, ["gradient [0.5, 0.5, 0.5] of 2 ranks\n", ""], "what the ranks print")
    equal(os.listdir(mount.file("jobs")), [], "jobs that are left")


def program_test(name):
    @needs(seconds=300)
    def test(mount):
        run(mount, name)
    return test


for _name in MODULES:
    globals()[f"test_the_page_s_{_name[:-3]}_runs"] = program_test(_name)


@needs(mount=False, modes=("coherent",))
def test_every_program_of_the_page_is_run(_):
    equal(sorted(set(programs()) - {"horovod_fabric.py"}), sorted(MODULES), "programs")
