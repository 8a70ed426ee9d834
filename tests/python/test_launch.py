"""Who a process is, by what torchrun, Open MPI and Slurm say in its environment."""
import importlib.util
import os
import subprocess
import tempfile

from harness import Skip, equal, needs
from ranks import PYTHON, TREE, Process, raises

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "r 1",
            "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "PMIX_NAMESPACE": "1234@x"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "9", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "2",
         "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}


def place(environment, *given):
    """In a process of its own with this environment alone."""
    def body():
        from fabricfs import launch
        os.environ.clear()
        os.environ.update(environment)
        return tuple(launch.place(*given))
    return Process(body).result()


@needs(mount=False, modes=("coherent",))
def test_each_launcher_says_who_a_process_is(_):
    equal(place(TORCHRUN), ("r_1", 3, 4, 1, 2))
    equal(place({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}), ("torch-localhost-29500", 3, 4, 1, 2))
    equal(place(OPEN_MPI), ("mpi-1234_x", 1, 2, 0, 1))
    equal(place(SLURM), ("slurm-77.0", 5, 8, 2, None))
    older = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_NUM_TASKS"}
    equal(place(older), ("slurm-77.0", 5, 9, 2, None))


@needs(mount=False, modes=("coherent",))
def test_a_launcher_inside_another_ones_allocation_counts(_):
    equal(place({**SLURM, **OPEN_MPI})[1:], (1, 2, 0, 1))
    equal(place({**SLURM, **OPEN_MPI, **TORCHRUN})[1:], (3, 4, 1, 2))
    equal(place({**SLURM, "RANK": "0"})[1:3], (5, 8))  # half of torchrun's is none of it


@needs(mount=False, modes=("coherent",))
def test_what_is_given_wins_over_the_environment(_):
    equal(place(TORCHRUN, "mine", 0, 2)[:3], ("mine", 0, 2))
    equal(place({}, "mine", 1, 2), ("mine", 1, 2, None, None))


@needs(mount=False, modes=("coherent",))
def test_what_nobody_says_or_what_is_wrong_is_an_error(_):
    with raises(ValueError, "rank is not given, and no launcher (torchrun, mpirun, srun) says it"):
        place({}, "mine")
    with raises(ValueError, "job is not given"):
        place({}, None, 0, 1)
    with raises(ValueError, "RANK='x'"):
        place({**TORCHRUN, "RANK": "x"})
    with raises(ValueError, "rank 4 is not one of a world of 4"):
        place({**TORCHRUN, "RANK": "4"})
    for name in ("lr/0.1", "a b", "x" * 65, "", ".", ".."):
        with raises(ValueError, f"job {name!r}: a name is 1 to 64 of A-Z a-z 0-9 . _ -, and not . or .."):
            place({}, name, 0, 1)
    with raises(ValueError, "rank -1"):
        place({}, "mine", -1, 4)


def test_processes_of_a_launcher_meet_without_an_argument(mount):
    script = "import fabricfs\nwith fabricfs.Fabric() as f:\n x = bytearray([f.rank]); f.allreduce(x); print(f.job, x[0])"
    running = [subprocess.Popen([PYTHON, "-c", script], stdout=subprocess.PIPE, env={
        **os.environ, **TORCHRUN, "WORLD_SIZE": "3", "RANK": str(rank), "FABRIC_MOUNT": mount.path}) for rank in range(3)]
    for process in running:
        equal(process.communicate(timeout=30)[0], b"r_1 3\n")


@needs(mount=False, modes=("coherent",))
def test_pip_installs_the_package_without_a_network(_):
    for name in ("pip", "setuptools", "wheel"):
        if not importlib.util.find_spec(name):
            raise Skip(f"{name} is not installed")
    with tempfile.TemporaryDirectory() as directory:
        source = f"{directory}/source"
        subprocess.run(["cp", "-r", f"{TREE}/utils/python", source], check=True)
        done = subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-index",
                               "--no-deps", "--target", f"{directory}/installed", source], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        said = subprocess.run([PYTHON, "-c", "import fabricfs; print(fabricfs.__file__)"], check=True, cwd="/",
                              capture_output=True, env={**os.environ, "PYTHONPATH": f"{directory}/installed"}).stdout
        equal(said.decode().strip(), f"{directory}/installed/fabricfs/__init__.py")
        assert os.path.exists(f"{directory}/installed/fabricfs/py.typed")
