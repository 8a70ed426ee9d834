#!/bin/sh
# shellcheck disable=SC2046,SC2059
# One rank of the job "mean" in the shell: adds two integers to those of the other ranks.
#   mean.sh MOUNT RANK WORLD
set -eu
job=$1/jobs/mean rank=$1/jobs/mean/ranks/$2

mkdir "$job" 2>/dev/null || true            # the job; another rank may have been first
printf 'world=%s\ndtype=i32\n' "$3" >"$job/config"
mkdir "$rank"                               # join
printf "\\$(printf %o "$2")\0\0\0\12\0\0\0" >"$rank/buffer"   # the rank and 10, little-endian
echo op=sum >"$rank/allreduce"              # returns when all ranks have written
echo rank "$2:" $(od -An -td4 "$rank/buffer")
