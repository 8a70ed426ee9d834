"""fabricctl perf: what it measures is verified, and it leaves nothing behind."""
import json
import os
import signal
import subprocess

from harness import Fabric, contains, equal, needs, result_words, wait_until

WHOLE = ("i8", "u8", "i32", "u32", "i64", "u64")
FLOATS = ("f32", "f64", "f16", "bf16")


def perf(env, mount, *options, check=0):
    """Runs it; returns its JSON, or what it said on stderr when `check` is another status than success."""
    done = subprocess.run([f"{env.build}/utils/fabricctl", "perf", "--mount", mount, *options, "--json"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=55, check=False)
    equal(done.returncode, check, f"status of {options}: {done.stderr.decode()}")
    return json.loads(done.stdout) if check == 0 else done.stderr.decode()


def all_right(report, sizes):
    equal([row["size"] for row in report["rows"]], sizes, "sizes")
    equal([row["wrong"] for row in report["rows"]], [0] * len(sizes), "wrong elements")


def test_every_row_has_the_figures(mount):
    report = perf(mount.env, mount.path, "--sizes", "8,64K,1M", "--iters", "5", "--limit")
    all_right(report, [8, 64 << 10, 1 << 20])
    for row in report["rows"]:
        equal(row["count"] * 4, row["size"], "elements")
        equal(row["iterations"], 5, "iterations")
        assert 0 < row["p50_us"] <= row["p99_us"] <= row["p999_us"] <= row["max_us"], row
        assert row["time_us"] <= row["max_us"] and row["limit_us"] > 0, row
        assert abs(row["ratio_to_limit"] - row["p50_us"] / row["limit_us"]) < 1e-2 * row["ratio_to_limit"], row
    equal(os.listdir(f"{mount.path}/jobs"), [], "jobs")


def test_every_type_and_operation_is_verified(mount):
    for dtype in FLOATS + WHOLE:
        for op in ("sum", "avg", "min", "max", "prod") + (("band", "bor", "bxor") if dtype in WHOLE else ()):
            report = perf(mount.env, mount.path, "--ranks", "3", "--dtype", dtype, "--op", op, "--sizes", "24,24K",
                          "--iters", "2")
            all_right(report, [24, 24 << 10])


def test_every_collective_is_verified_mapped_or_not(mount):
    for collective in ("allreduce", "reduce_scatter", "allgather", "broadcast", "barrier"):
        for io in ("mmap", "rw"):
            report = perf(mount.env, mount.path, "--ranks", "3", "--collective", collective, "--io", io, "--sizes",
                          "4,40004", "--iters", "3")
            all_right(report, [4, 40004])


def test_operations_in_flight_are_verified(mount):
    report = perf(mount.env, mount.path, "--queue", "8", "--sizes", "64,1M", "--iters", "3")
    all_right(report, [64, 1 << 20])


@needs(nodes=2)
def test_ranks_are_spread_over_several_mounts(fabric):
    fabric.wait_up()
    report = perf(fabric.env, f"{fabric[0].path},{fabric[1].path}", "--ranks", "4", "--sizes", "8,1M", "--iters", "3")
    all_right(report, [8, 1 << 20])
    for node in (0, 1):
        equal(os.listdir(f"{fabric[node].path}/jobs"), [], f"jobs of node {node}")


def test_what_cannot_be_measured_is_refused_in_words(mount):
    for options, word in ((("--sizes", "6"), "multiple of 4"), (("--sizes", "2G"), "up to 1G"),
                          (("--sizes", ""), "--sizes"), (("--dtype", "f8"), "f16"), (("--op", "mean"), "avg"),
                          (("--op", "bxor"), "whole numbers"), (("--collective", "gather"), "allgather"),
                          (("--ranks", "0"), "--ranks"), (("--dtype", "i8", "--ranks", "100"), "exactly")):
        contains(perf(mount.env, mount.path, *options, check=2), word)
    contains(perf(mount.env, mount.env.directory, check=2), "no fabric is mounted there")
    equal(os.listdir(f"{mount.path}/jobs"), [], "jobs")


def start_long(mount):
    """A measurement that would take for ever, and is under way."""
    process = subprocess.Popen([f"{mount.env.build}/utils/fabricctl", "perf", "--mount", mount.path, "--iters", "1000000",
                                "--sizes", "8"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    job = f"{mount.path}/jobs/perf-{process.pid}"

    def members():
        if not os.path.exists(f"{job}/members"):
            return []
        with open(f"{job}/members", encoding="utf-8") as file:
            return [line for line in file if result_words(line).get("last", "0") != "0"]
    wait_until(lambda: len(members()) == 2, "both ranks are at work")
    return process


def test_an_interrupted_measurement_removes_its_job(mount):
    process = start_long(mount)
    process.send_signal(signal.SIGINT)
    contains(process.communicate(timeout=20)[1].decode(), "interrupted")
    equal(process.returncode, 2, "status")
    equal(os.listdir(f"{mount.path}/jobs"), [], "jobs")


def test_a_killed_rank_ends_the_measurement(mount):
    process = start_long(mount)
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="utf-8") as children:
        os.kill(int(children.read().split()[0]), signal.SIGKILL)
    process.communicate(timeout=20)
    equal(process.returncode, 2, "status")
    equal(os.listdir(f"{mount.path}/jobs"), [], "jobs")


@needs(mount=False)
def test_a_stopping_daemon_ends_the_measurement(env):
    fabric = Fabric(env, 2)
    fabric.wait_up()
    process = start_long(fabric[0])
    equal(fabric[0].stop(), 0, "status of the daemon")
    contains(process.communicate(timeout=20)[1].decode(), "rank")
    equal(process.returncode, 2, "status")
    fabric[0].process = None
    fabric[0].start()
    fabric.wait_up()
    fabric.finish()
