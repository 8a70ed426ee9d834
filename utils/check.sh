#!/bin/bash
# Everything that can be checked, from nothing: installs what is missing, checks the style, builds every way the
# project can be built, and runs all tests. One line a step; the log of a step that failed follows it. The last
# line is the count of tests and steps, the status 0 only when none failed.
#
# Builds lie in a temporary directory; mounts and shared memory in a mount namespace of their own. So nothing is
# left behind, whatever happens.
set -u
cd "$(dirname "$0")/.." || exit 1

if [ "$(id -u)" != 0 ]; then
    exec sudo "$0" "$@"
fi
if [ "${FABRIC_CHECK_NAMESPACE:-}" != 1 ]; then
    utils/setup.sh --check || exit 1
    export FABRIC_CHECK_NAMESPACE=1
    exec unshare --mount --propagation private "$0" "$@"
fi

passed=0 failed=0 skipped=0
work=$(mktemp -d "${TMPDIR:-/tmp}/fabricfs-check.XXXXXX") && chmod 755 "$work" || exit 1
export TMPDIR=$work/tmp
mkdir -m 1777 "$TMPDIR"
cores=$(nproc)
side_by_side=$((cores + 1)) # mount tests: they wait much of their time

# Processes and mounts of the tests: their arguments and mount points lie in the directory of this run.
left_processes() { pgrep -f "$work/"; }
left_mounts() { awk -v below="$work/" 'index($2, below) == 1 { print $2 }' /proc/self/mounts; }

clean_up() {
    trap - EXIT
    left_processes | xargs -r kill -KILL
    left_mounts | xargs -r umount -l
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# ---- steps ----

outcome() { # WORD NAME SINCE
    printf '%-8s %s (%d s)\n' "$1" "$2" $((SECONDS - $3))
}

show_log() { tail -n 60 "$work/log" | sed 's/^/    | /'; }

# Runs a command with its output in the log; a signal to this script is not kept waiting by it.
logged() { # COMMAND...
    "$@" >"$work/log" 2>&1 </dev/null &
    wait $!
}

# Runs a command as one step. Status 0 when it succeeded.
step() { # NAME COMMAND...
    local name=$1 since=$SECONDS
    shift
    if logged "$@"; then
        outcome passed "$name" "$since"
        passed=$((passed + 1))
    else
        outcome FAILED "$name" "$since"
        show_log
        failed=$((failed + 1))
        return 1
    fi
}

skip() { # NAME REASON
    printf '%-8s %s: %s\n' skipped "$1" "$2"
    skipped=$((skipped + 1))
}

# Adds the counts of "3 passed, 1 failed, 2 skipped". Status 1 when there is no such line.
add_counts() { # LINE
    [[ $1 =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]] || return 1
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
}

# Runs a command whose last line counts its tests. Shows what did not pass.
suite() { # NAME COMMAND...
    local name=$1 since=$SECONDS status=0 last
    shift
    logged "$@" || status=$?
    last=$(tail -n 1 "$work/log")
    if ! add_counts "$last"; then
        outcome FAILED "$name" "$since"
        show_log
        failed=$((failed + 1))
    elif [ "$status" != 0 ]; then
        outcome FAILED "$name: $last" "$since"
        grep -v '^passed' "$work/log" | sed '$d; s/^/    | /'
        [[ $last =~ \ 0\ failed ]] && failed=$((failed + 1))
    else
        outcome passed "$name: $last" "$since"
        sed -n '/^skipped/ s/^/    /p' "$work/log"
    fi
}

# Begins a suite that mostly waits for the network, beside steps in which no test runs: `suite NAME begun` is its step.
begin() { # COMMAND...
    {
        "$@"
        echo $? >"$work/begun.status"
    } >"$work/begun" 2>&1 </dev/null &
    begun=$!
}

begun() {
    tail --pid="$begun" -s 0.2 -f /dev/null
    cat "$work/begun"
    return "$(cat "$work/begun.status")"
}

# ---- style ----

c_sources() { find fs reduce ntbmem utils tests -name '*.[ch]'; }

check_format() {
    # shellcheck disable=SC2046 # a list of names
    clang-format --dry-run -Werror $(c_sources)
}

# cppcheck follows neither an initializer that is another file nor a pointer through which padded[] is filled; that of
# Debian 13 does not see that what is in a list is still there, and says where it looks less closely.
check_c() {
    cppcheck -q -j "$cores" --enable=warning,performance,portability --std=c11 --error-exitcode=1 -I. \
        -D_GNU_SOURCE -D'FS_VERSION=""' --suppress=missingInclude --suppress=uninitvar:reduce/red_simd.h \
        --suppress=internalAstError:fs/fs_readme.c --suppress=syntaxError:fs/fs_readme.c \
        --suppress=memleak:ntbmem/ntbm_mail.c --suppress=memleak:reduce/coll_net.c \
        --suppress=normalCheckLevelMaxBranches \
        fs reduce ntbmem utils
}

check_scripts() { shellcheck utils/*.sh utils/completion/* utils/examples/*.sh tests/mount/machine.sh .ci/run; }

# ---- builds ----

build() { # DIRECTORY OPTION...
    local directory=$work/$1
    shift
    meson setup "$directory" "$@" && ninja -C "$directory" && touch "$directory/built"
}

# Whether that build succeeded, for those who use it.
is_built() { [ -e "$work/$1/built" ]; } # DIRECTORY

# Where it was built is nobody's business but the debugger's.
check_paths() { # DIRECTORY
    ! grep -c "$PWD\|$work" "$work/$1/fs/fabricfs"
}

check_install() { # DIRECTORY
    DESTDIR=$work/installed meson install -C "$work/$1" --skip-subprojects &&
        find "$work/installed" -name fabricfs -perm /100 | grep . &&
        find "$work/installed" -name fabricctl -perm /100 | grep . &&
        find "$work/installed" -name fabricfs.service | grep . &&
        [ -z "$(man --warnings -l "$(find "$work/installed" -name fabricfs.8)" 2>&1 >/dev/null)" ]
}

# ---- tests ----

# The units of one build. Criterion counts its tests in a line for each program, on its standard error.
run_units() { # DIRECTORY
    local status=0
    meson test -C "$work/$1" --suite unit --no-rebuild --print-errorlogs || status=$?
    awk '/\[====\] Synthesis:/ {
             gsub(/[|:]/, " ")
             for (i = 1; i <= NF; i++) {
                 if ($i == "Passing") good += $(i + 1)
                 if ($i == "Failing" || $i == "Crashing") bad += $(i + 1)
             }
         }
         END { printf "%d passed, %d failed\n", good, bad }' "$work/$1/meson-logs/testlog.txt"
    return $status
}

# Programs that are one test each. Meson counts them.
run_programs() { # DIRECTORY SELECTION...
    local directory=$work/$1 status=0
    shift
    meson test -C "$directory" --no-rebuild --print-errorlogs "$@" >"$work/programs" 2>&1 || status=$?
    cat "$work/programs"
    awk '/^(Ok|Unexpected Pass|Fail|Timeout|Skipped): / { count[$1] += $NF }
         END { printf "%d passed, %d failed, %d skipped\n", count["Ok:"],
                   count["Fail:"] + count["Timeout:"] + count["Unexpected"], count["Skipped:"] }' "$work/programs"
    return $status
}

fuzzers() { basename -s .c tests/fuzz/fuzz_*.c | sed '/^fuzz_driver$/d; s/^fuzz_//'; }

build_fuzzers() {
    local name targets=()
    for name in $(fuzzers); do
        targets+=("tests/fuzz/libfuzzer_$name")
    done
    CC=clang meson setup "$work/fuzz" -Dfuzz=true -Dtests=false -Dfuse=system -Db_lundef=false \
        -Db_sanitize=address,undefined && ninja -C "$work/fuzz" "${targets[@]}" &&
        touch "$work/fuzz/built"
}

run_fuzzer() { # NAME
    local found=$work/found-$1
    mkdir -p "$found"
    (cd "$found" && "$work/fuzz/tests/fuzz/libfuzzer_$1" -seed=1 -max_total_time=6 -timeout=20 "$found" \
        "$OLDPWD/tests/fuzz/$1")
}

run_mounts() { # DIRECTORY ARGUMENT...
    local directory=$work/$1
    shift
    /usr/bin/python3 tests/mount/run.py --build "$directory" --jobs "$side_by_side" "$@"
}

run_python() { # DIRECTORY ARGUMENT...
    local directory=$work/$1
    shift
    /usr/bin/python3 tests/python/run.py --build "$directory" --jobs "$side_by_side" "$@"
}

run_guests() { # DIRECTORY ARGUMENT...
    local directory=$work/$1
    shift
    /usr/bin/python3 tests/vm/run.py --build "$directory" "$@"
}

run_packages() { /usr/bin/python3 tests/package/run.py; }

run_fabricctl() { # DIRECTORY ARGUMENT...
    local directory=$work/$1
    shift
    /usr/bin/python3 tests/pci/run.py --build "$directory" "$@"
}

# Under a sanitizer everything is several times slower, and what it finds ends the process that did it. TSan wants
# the address space where it used to be, which newer kernels scatter too widely.
run_mounts_sanitized() { # DIRECTORY PATTERN...
    local directory=$1 fixed=
    shift
    setarch -R true 2>/dev/null && fixed='setarch -R'
    FABRIC_TEST_PATIENCE=60 \
        ASAN_OPTIONS=detect_stack_use_after_return=1 \
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
        TSAN_OPTIONS=halt_on_error=1 \
        $fixed /usr/bin/python3 tests/mount/run.py --build "$work/$directory" --jobs "$side_by_side" --storms 10 "$@"
}

# Users may open /dev/fuse on most machines; where they may not, this namespace lets them.
open_fuse_to_users() {
    [ "$(stat -c %a /dev/fuse)" = 666 ] ||
        { mknod -m 666 "$work/fuse" c 10 229 && mount --bind "$work/fuse" /dev/fuse; }
}

own_shared_memory() { mount -t tmpfs -o mode=1777 fabricfs-check /dev/shm; }

check_nothing_left() {
    ! {
        left_processes | xargs -r ps -o pid,args -p
        left_mounts
        find /dev/shm "$TMPDIR" -mindepth 1
    } | grep .
}

# ---- all of it ----

if clang-format --version | grep -q 'version 14\.'; then
    step 'the format of the C sources' check_format
else
    skip 'the format of the C sources' 'only clang-format 14 gives the same layout'
fi
step 'the style of the sources' /usr/bin/python3 tests/style.py
step 'static analysis of the C sources' check_c
step 'static analysis of the scripts' check_scripts

step 'shared memory of our own' own_shared_memory
step 'mounts for users' open_fuse_to_users

step 'a release build' build release --buildtype=release
if is_built release; then
    step 'no path of this machine in the program' check_paths release
    step 'installation' check_install release
    suite 'units' run_units release
    suite 'simulations' run_programs release --suite sim --suite sim_large
    step 'the demo' utils/demo.sh "$work/release" # fetches the digits that others train with, too
    suite 'mounts, passthrough' run_mounts release --mode passthrough
    suite 'the Python package, other languages' run_python release --mode passthrough
    suite 'the Python package, coherent buffers' run_python release --mode coherent 'examples: ' 'arrays: ' \
        'launch: ' 'frameworks: '
    suite 'fabricctl' run_fabricctl release
    suite 'virtual machines' run_guests release
    begin run_packages
fi

step 'a debug build' build debug --buildtype=debug -Dtests=false
pkg-config --atleast-version=3.17 fuse3 ||
    step "a build with the system's libfuse" build system -Dfuse=system -Dtests=false
step 'a build with ASan and UBSan' build asan -Db_sanitize=address,undefined
step 'a build with TSan' build tsan -Db_sanitize=thread
if command -v clang >/dev/null; then
    step 'a build with libFuzzer' build_fuzzers
else
    skip 'fuzzing' 'clang is not installed'
fi
is_built release && suite 'Debian packages' begun

# Buffers kept coherent: with the libfuse that can do nothing else, if the system has such a one. What is about other
# things than buffers and libfuse has been tested above.
if pkg-config --atleast-version=3.17 fuse3; then
    suite 'mounts, coherent' run_mounts release --mode coherent --without 'watch: ' --without 'looking: '
    skip "a build with the system's libfuse" 'it is new enough that all builds are'
elif is_built system; then
    suite "mounts, coherent, with the system's libfuse" run_mounts system --mode coherent --without 'watch: ' \
        --without 'looking: '
    suite 'mounts, coherent' run_mounts release --mode coherent 'queue: ' 'memory: '
    skip "passthrough with the system's libfuse" "libfuse $(pkg-config --modversion fuse3) has none"
fi

if pkg-config --atleast-version=3.13 libpci; then # it forgets a string whenever it is asked for a name
    echo 'leak:libpci.so' >"$work/leaks"
    export LSAN_OPTIONS=suppressions=$work/leaks:print_suppressions=0
fi
if is_built asan; then
    suite 'units under ASan and UBSan' run_units asan
    suite 'fuzz targets and simulations under ASan and UBSan' run_programs asan --suite fuzz --suite sim
    suite 'fabricctl with hostile input under ASan and UBSan' run_fabricctl asan hostile
    suite 'mounts under ASan and UBSan' run_mounts_sanitized asan --mode passthrough 'config: ' 'queue: ' \
        'lost: ' 'memory: ' 'failures: ' 'watch: ' 'links: '
    suite 'mounts under ASan and UBSan, coherent' run_mounts_sanitized asan --mode coherent 'memory: '
fi
if is_built tsan; then
    suite 'nodes in real time under TSan' run_programs tsan live_nodes_kill live_nodes_threads
    suite 'mounts under TSan' run_mounts_sanitized tsan --mode passthrough 'queue: ' 'signals: ' 'nodes: ' \
        'watch: ' 'numa: '
    suite 'mounts under TSan, coherent' run_mounts_sanitized tsan --mode coherent 'memory: '
fi
if is_built fuzz; then
    for target in $(fuzzers); do
        step "fuzzing with libFuzzer: $target" run_fuzzer "$target"
    done
fi
step 'nothing is left behind' check_nothing_left

echo
echo "$skipped skipped"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
