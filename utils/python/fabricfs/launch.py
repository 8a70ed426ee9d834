"""Who this process is among those that were started with it, as launchers say it in the environment.

The variables of one launcher are taken together and never mixed with another's: a job that mpirun or torchrun starts
inside an allocation of Slurm sees Slurm's as well.
"""
import os
import re
from typing import NamedTuple, Optional, Tuple

Names = Tuple[str, ...]


class Place(NamedTuple):
    """Of a process in its job; the local numbers are those on its node, None when nobody says them."""
    job: str
    rank: int
    world: int
    local_rank: Optional[int]
    local_world: Optional[int]


# Names of rank, world, local rank and local world; the first that is set counts.
TORCHRUN = (("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",))
OPEN_MPI = (("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_LOCAL_RANK",),
            ("OMPI_COMM_WORLD_LOCAL_SIZE",))
SLURM = (("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",), ())


def _number(names: Names) -> Optional[int]:
    for name in names:
        text = os.environ.get(name)
        if text is not None:
            if not text.isdecimal():
                raise ValueError(f"the environment says {name}={text!r}, which is no number")
            return int(text)
    return None


def _launcher() -> Tuple[Names, ...]:
    return next((names for names in (TORCHRUN, OPEN_MPI, SLURM)
                 if _number(names[0]) is not None and _number(names[1]) is not None), ((),) * 4)


def job_name() -> Optional[str]:
    """A name that the processes of one launch have in common and others have not, or None."""
    said = os.environ
    if said.get("TORCHELASTIC_RUN_ID", "none") != "none":  # what torchrun says when nobody named the run
        name = said["TORCHELASTIC_RUN_ID"]
    elif "MASTER_PORT" in said and _launcher() is TORCHRUN:
        name = f"torch-{said.get('MASTER_ADDR')}-{said['MASTER_PORT']}"
    elif "PMIX_NAMESPACE" in said:
        name = f"mpi-{said['PMIX_NAMESPACE']}"
    elif "SLURM_JOB_ID" in said:
        name = f"slurm-{said['SLURM_JOB_ID']}.{said.get('SLURM_STEP_ID', 'batch')}"
    else:
        return None
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:64]


def place(job: Optional[str] = None, rank: Optional[int] = None, world: Optional[int] = None) -> Place:
    """What is given, and for what is not, what the launcher says. ValueError when neither says it."""
    names = _launcher()
    rank = _number(names[0]) if rank is None else rank
    world = _number(names[1]) if world is None else world
    job = job_name() if job is None else job
    if job is None or rank is None or world is None:
        what = "job" if job is None else "rank" if rank is None else "world"
        raise ValueError(f"{what} is not given, and no launcher (torchrun, mpirun, srun) says it")
    if not re.fullmatch("[A-Za-z0-9._-]{1,64}", str(job)) or job in (".", ".."):
        raise ValueError(f"job {job!r}: a name is 1 to 64 of A-Z a-z 0-9 . _ -, and not . or ..")
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not one of a world of {world}")
    return Place(job, rank, world, _number(names[2]), _number(names[3]))
