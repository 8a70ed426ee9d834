#!/bin/sh
# An example of a drain command for fabricfs: takes a node out of Slurm when its link is suspect.
#
#     [fabric]
#     drain = /usr/share/doc/fabricfs/drain-slurm.sh
#
# Jobs that run there go on; Slurm gives the node no new ones. Put it back with
# scontrol update NodeName=NODE State=RESUME when the hardware is right again.
#
# FABRICFS_HOST is the host name of the suspect node, as its daemon states it; where Slurm knows it by another name,
# translate it here. FABRICFS_REASON says why, FABRICFS_JOBS names the fabricfs jobs with ranks there, and
# FABRICFS_SEEN_BY_HOST who noticed: between the two the fault may be on either side.
set -eu

if [ -z "$FABRICFS_HOST" ]; then
    echo "node $FABRICFS_NODE was never heard of, so its host name is not known" >&2
    exit 1
fi
reason="fabricfs on $FABRICFS_SEEN_BY_HOST: $FABRICFS_REASON (jobs: ${FABRICFS_JOBS:-none})"
exec scontrol update NodeName="${FABRICFS_HOST%%.*}" State=DRAIN Reason="$reason"
