#!/bin/sh
# The main job, from nothing: installs what is missing, builds, mounts two emulated nodes of a fabric in a
# temporary directory, trains a classifier of handwritten digits with two processes on each that share gradients
# through it, while one node is killed and comes back, and adds two arrays with nothing but shell tools. Ends
# with status 0 only if every printed check holds, and leaves no mount, process, memory or file behind, also when
# it is interrupted.
#
#   utils/demo.sh [BUILD]   with a build that is there already
set -eu
build=$(realpath -m "${1:-$(dirname "$0")/../build-demo}")
cd "$(dirname "$0")/.."

digits=subprojects/packagecache/digits.csv.gz
python=/usr/bin/python3
work='' fabric='' daemon0='' daemon1='' trainer=''

die() { echo "demo: $*" >&2; exit 1; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

is_mounted() { grep -qF " $work/node$1 " /proc/self/mounts; }

# Ends a node that was mounted, and says so when its daemon did not end well.
unmount_node() {
    if is_mounted "$1"; then
        as_root umount "$work/node$1" 2>/dev/null || as_root umount -l "$work/node$1" || status=1
    fi
    [ -n "$2" ] || return 0
    wait "$2" || { echo "demo: the daemon of node $1 ended with status $?" >&2; status=1; }
    [ "$status" != 1 ] || tail -n 20 "$work/daemon$1" >&2
}

clean_up() {
    status=$?
    trap - EXIT
    trap '' HUP INT TERM
    if [ -n "$trainer" ]; then
        kill "$trainer" 2>/dev/null || true
        wait "$trainer" || true
    fi
    if [ -n "$work" ]; then
        unmount_node 0 "$daemon0"
        unmount_node 1 "$daemon1"
        rmdir "$work/node0" "$work/node1" 2>/dev/null || true
        rm -rf --one-file-system "$work"
    fi
    exit "$status"
}

# The digits are a file inside a Debian package, which is downloaded, opened and not installed.
fetch_digits() {
    [ -s "$digits" ] && return
    (cd "$work" && apt-get -qq download python3-sklearn) >"$work/log" 2>&1 ||
        { as_root apt-get -qq update && (cd "$work" && apt-get -qq download python3-sklearn); } >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; die "the package python3-sklearn could not be downloaded"; }
    mkdir -p "$(dirname "$digits")"
    dpkg-deb --fsys-tarfile "$work"/python3-sklearn_*.deb |
        tar -xOf - --wildcards '*/datasets/data/digits.csv.gz' >"$work/digits" ||
        die "python3-sklearn holds no digits.csv.gz"
    mv "$work/digits" "$digits"
}

build_it() {
    echo "building in $build"
    [ -e "$build/build.ninja" ] ||
        meson setup "$build" --buildtype=release -Dwerror=false -Dtests=false >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; die "meson failed"; }
    ninja -C "$build" >"$work/log" 2>&1 || { cat "$work/log" >&2; die "the build failed"; }
}

# Starts the daemon of a node in the background; its process is $!.
start_node() {
    as_root "$build/fs/fabricfs" -f --fabric "$fabric" --node "$1" --nodes 2 "$work/node$1" >>"$work/daemon$1" 2>&1 &
}

wait_mounted() {
    while ! is_mounted "$1" || [ ! -e "$work/node$1/version" ]; do
        kill -0 "$2" 2>/dev/null || die "the daemon of node $1 did not start"
        sleep 0.05
    done
}

mount_nodes() {
    fabric=demo-$$
    mkdir "$work/node0" "$work/node1"
    chmod 755 "$work"
    start_node 0
    daemon0=$!
    start_node 1
    daemon1=$!
    wait_mounted 0 "$daemon0"
    wait_mounted 1 "$daemon1"
    for node in 0 1; do
        echo "node $node: $(head -n 1 "$work/node$node/version"), $(grep -m 1 '^buffer_mode' "$work/node$node/stats")"
    done
}

# How many steps node 0 has seen; none before the job is there.
steps_done() { sed -n 's/^allreduce_ops //p' "$work/node0/jobs/digits/stats" 2>/dev/null || true; }

# The daemon that node 0 says node 1 is; under sudo it is not the process that was started.
kill_and_restart_node_1() {
    as_root kill -KILL "$(sed -n 's/^pid //p' "$work/node0/nodes/1/link")"
    wait "$daemon1" 2>/dev/null || true
    echo "node 1 was killed"
    start_node 1
    daemon1=$!
    wait_mounted 1 "$daemon1"
    until grep -q '^state up' "$work/node0/nodes/1/link"; do
        kill -0 "$daemon1" 2>/dev/null || die "the daemon of node 1 ended"
        sleep 0.05
    done
    echo "node 1 was started again"
}

train() {
    "$python" utils/demo_train.py --data "$digits" --restarts 8 "$work/node0" "$work/node1" &
    trainer=$!
    while [ "$(steps_done)0" -lt 2000 ]; do # 200 steps of 600; the 0 makes a number of nothing
        kill -0 "$trainer" 2>/dev/null || break
        sleep 0.02
    done
    kill_and_restart_node_1
    result=0
    wait "$trainer" || result=$?
    trainer=
    return "$result"
}

# A rank on each node, four integers each. Everything is a file.
add_in_the_shell() {
    for node in 0 1; do
        job=$work/node$node/jobs/shell
        mkdir "$job"
        echo 'world=2' >"$job/config"
        echo 'dtype=i32' >"$job/config"
        mkdir "$job/ranks/$node"
    done
    first=$work/node0/jobs/shell/ranks/0 second=$work/node1/jobs/shell/ranks/1
    printf '\001\0\0\0\002\0\0\0\003\0\0\0\004\0\0\0' | dd of="$first/buffer" status=none
    printf '\012\0\0\0\024\0\0\0\036\0\0\0\050\0\0\0' | dd of="$second/buffer" status=none
    echo "rank 0 has $(od -An -td4 "$first/buffer")  on node 0"
    echo "rank 1 has $(od -An -td4 "$second/buffer")  on node 1"
    echo 'op=sum' >"$first/allreduce" & # waits for the other one
    other=$!
    echo 'op=sum' >"$second/allreduce"
    wait "$other"
    sums=
    for rank in 0 1; do
        sum=$(od -An -td4 "$work/node$rank/jobs/shell/ranks/$rank/buffer")
        echo "the sum    $sum  at rank $rank"
        sums="$sums $sum"
    done
    rmdir "$first" "$second" "$work/node0/jobs/shell" "$work/node1/jobs/shell"
    # shellcheck disable=SC2086 # the columns of od, as words
    set -- $sums
    [ "$*" = '11 22 33 44 11 22 33 44' ] || die "the shell's sum is wrong"
}

trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
work=$(mktemp -d)

utils/setup.sh
fetch_digits
build_it
mount_nodes
echo
echo '== four processes on two nodes learn handwritten digits; one node is killed on the way =='
train
echo
echo '== two ranks in the shell, one on each node =='
add_in_the_shell
echo
echo 'All of it holds.'
