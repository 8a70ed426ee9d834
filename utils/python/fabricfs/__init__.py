"""The files of a mounted fabric, from Python.

    from fabricfs import Fabric

    with Fabric("train") as fabric:             # rank and world come from torchrun, mpirun or srun
        grad = fabric.array(1000)               # memory of the fabric itself: nothing is copied
        grad[:] = fabric.rank
        fabric.allreduce(grad, "avg")

The interface is the files; this package opens, maps and writes them, and nothing else. It needs Python alone.
numpy arrays and torch tensors are taken where those are installed; `fabricfs.torch` makes a fabric a backend of
torch.distributed.
"""
from fabricfs.errors import Disagreement, FabricError, Member, NodeLost, RankLost, RanksMissing
from fabricfs.fabric import Fabric, Work

__all__ = ["Disagreement", "Fabric", "FabricError", "Member", "NodeLost", "RankLost", "RanksMissing", "Work"]
