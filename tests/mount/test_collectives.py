"""Every collective, dtype and op against numpy, in place, at odd sizes and offsets; and what disagreement gets."""
import errno
import os
import subprocess
import time

import numpy as np

import oracle
from harness import SOON, Actor, contains, equal, needs, read_bytes, result_words, run_all, sh, wait_until, within
from oracle import DTYPES, FLOATS, bf16_from_f32, bf16_to_f32, ops_of, part, random_input

SIZES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 4096, 4097)


def fill(ranks, inputs, offset=0):
    for rank, array in zip(ranks, inputs):
        rank.put(array.tobytes(), offset)


def results(ranks, dtype, count, offset=0):
    size = np.dtype(DTYPES[dtype]).itemsize
    return [np.frombuffer(rank.get(count * size, offset), DTYPES[dtype]) for rank in ranks]


def check(ranks, dtype, op, count, random, offset=0):
    """One allreduce; every rank must hold the oracle's values and all the same bits."""
    inputs = [random_input(random, dtype, count, op) for _ in ranks]
    check_inputs(ranks, dtype, op, inputs, offset)


def check_inputs(ranks, dtype, op, inputs, offset=0):
    count = len(inputs[0])
    fill(ranks, inputs, offset)
    run_all(ranks, f"dtype={dtype} op={op} count={count} offset={offset}")
    got = results(ranks, dtype, count, offset)
    expected = oracle.reduce(inputs, dtype, op)
    assert oracle.same(got[0], expected, dtype), \
        f"{dtype} {op} count={count}: {got[0][:8]}, expected {expected[:8]}, of {[list(x[:8]) for x in inputs]}"
    for other in got[1:]:
        equal(other.tobytes(), got[0].tobytes(), f"bits of {dtype} {op} at another rank")


# --- allreduce ---------------------------------------------------------------------------------------------

def test_allreduce_gives_what_numpy_gives_for_every_dtype_and_op(mount):
    ranks, random = mount.job(3, size=8 * 1024).ranks(), np.random.default_rng(1)
    for dtype in DTYPES:
        for op in ops_of(dtype):
            check(ranks, dtype, op, 1000, random)


def test_allreduce_of_every_dtype_works_at_every_size_around_a_vector(mount):
    ranks, random = mount.job(2, size=8 * 5000).ranks(), np.random.default_rng(2)
    for dtype in DTYPES:
        for count in SIZES:
            check(ranks, dtype, "sum", count, random)


def test_allreduce_starts_at_any_element(mount):
    ranks, random = mount.job(2, size=8 * 5000).ranks(), np.random.default_rng(3)
    for dtype in DTYPES:
        size = np.dtype(DTYPES[dtype]).itemsize
        for first in (1, 3, 17):
            check(ranks, dtype, "sum", 77, random, first * size)


def test_nothing_outside_the_range_is_touched(mount):
    ranks = mount.job(2, size=4096).ranks()
    for rank in ranks:
        rank.put(b"\x7e" * 4096)
    ones = np.ones(33, np.float32)
    fill(ranks, [ones, ones], 100)
    run_all(ranks, "offset=100 count=33")
    for rank in ranks:
        data = rank.get()
        equal(data[:100] + data[232:], b"\x7e" * (4096 - 132), "bytes around the range")
        equal(data[100:232], (ones + ones).tobytes(), "the range")


def test_allreduce_works_with_one_to_nine_ranks(mount):
    random = np.random.default_rng(4)
    for world in range(1, 10):
        job = mount.job(world, size=4096)
        ranks = job.ranks()
        for dtype in ("f32", "bf16", "i8"):
            for op in ("sum", "avg", "max"):
                check(ranks, dtype, op, 321, random)
        for rank in ranks:
            rank.actor.kill()


def test_several_mebibytes_reduce_right(mount):
    ranks, random = mount.job(2, size="16M").ranks(), np.random.default_rng(5)
    for dtype in ("f32", "f16", "bf16", "u8", "i64"):
        check(ranks, dtype, "sum", (2 << 20) - 3, random)
        check(ranks, dtype, "max", (2 << 20) - 5, random, np.dtype(DTYPES[dtype]).itemsize)


def test_f32_sums_round_like_ieee_additions(mount):
    """Two ranks: exactly a + b. Three: within two roundings of the exact sum, the same bits everywhere."""
    random = np.random.default_rng(6)
    ranks = mount.job(2, size=40000).ranks()
    inputs = [random.normal(size=10000).astype(np.float32) for _ in ranks]
    check_inputs(ranks, "f32", "sum", inputs)
    check_inputs(ranks, "f32", "avg", inputs)
    ranks = mount.job(3, size=40000).ranks()
    inputs = [random.normal(size=10000).astype(np.float32) for _ in ranks]
    fill(ranks, inputs)
    run_all(ranks)
    got = results(ranks, "f32", 10000)
    exact = np.sum([x.astype(np.float64) for x in inputs], axis=0)
    scale = np.sum([np.abs(x) for x in inputs], axis=0)
    assert (np.abs(got[0] - exact) <= 2 * 2.0 ** -24 * scale * 1.01).all(), "more than two roundings"
    equal(len({x.tobytes() for x in got}), 1, "different results")


def test_half_precision_is_summed_in_f32_and_rounded_once(mount):
    """2049 small ones beside a large value vanish one by one when every partial sum is rounded."""
    world = 8
    ranks = mount.job(world, size=4096).ranks()
    for dtype, large, one in (("f16", 2048, 1), ("bf16", 256, 1)):
        wide = [np.full(100, large if rank == 0 else one, np.float32) for rank in range(world)]
        inputs = [oracle.narrow(array, dtype) for array in wide]
        check_inputs(ranks, dtype, "sum", inputs)
        got = oracle.widen(results(ranks, dtype, 100)[0], dtype)
        equal(float(got[0]), float(oracle.widen(oracle.narrow(np.float32([large + world - 1]), dtype), dtype)[0]),
              f"{dtype} sum of {large} and seven ones")
        check_inputs(ranks, dtype, "avg", inputs)


def test_half_precision_rounds_ties_to_even(mount):
    ranks = mount.job(2, size=4096).ranks()
    halves = np.arange(2048, 2176, dtype=np.float32)
    check_inputs(ranks, "f16", "sum", [halves.astype(np.float16), np.ones(128, np.float16)])
    large = np.arange(256, 384, dtype=np.float32)
    check_inputs(ranks, "bf16", "sum", [bf16_from_f32(large), bf16_from_f32(np.ones(128, np.float32))])
    equal(float(bf16_to_f32(np.uint16([0x4380]))[0]), 256.0, "the emulation itself")


def test_half_precision_overflows_to_infinity_and_keeps_denormals(mount):
    ranks = mount.job(2, size=4096).ranks()
    big = np.full(40, 65504, np.float16)
    check_inputs(ranks, "f16", "sum", [big, big])
    tiny = np.arange(1, 41, dtype=np.uint16).view(np.float16)
    check_inputs(ranks, "f16", "sum", [tiny, tiny])
    top = np.full(40, 0x7F7F, np.uint16)
    check_inputs(ranks, "bf16", "sum", [top, top])
    check_inputs(ranks, "bf16", "sum", [np.arange(1, 41, dtype=np.uint16)] * 2)
    small = np.arange(1, 41, dtype=np.uint32).view(np.float32)
    check_inputs(ranks, "f32", "sum", [small, small])


def test_integers_wrap_and_averages_truncate_toward_zero(mount):
    ranks = mount.job(3, size=8 * 256).ranks()
    for dtype in ("i8", "u8", "i32", "u32", "i64", "u64"):
        limits = np.iinfo(DTYPES[dtype])
        extremes = np.array([limits.max, limits.min, limits.max, limits.max // 2 + 1, 0, 1], DTYPES[dtype])
        for op in ("sum", "avg", "prod", "min", "max"):
            check_inputs(ranks, dtype, op, [extremes, extremes, extremes[::-1].copy()])
    for dtype in ("i8", "i32", "i64"):
        low = np.array([-1, -2, -4, -5, 1, 2, 4, 5], DTYPES[dtype])
        zero = np.zeros(8, DTYPES[dtype])
        check_inputs(ranks, dtype, "avg", [low, zero, zero])
        equal(list(results(ranks, dtype, 8)[0]), [0, 0, -1, -1, 0, 0, 1, 1], f"{dtype} averages")


def test_nan_on_any_rank_propagates_through_min_and_max(mount):
    world = 4
    ranks = mount.job(world, size=4096).ranks()
    for dtype in FLOATS:
        for op in ("min", "max", "sum", "avg", "prod"):
            wide = [np.arange(1, 70, dtype=np.float32) + rank for rank in range(world)]
            for rank in range(world):
                wide[rank][rank * 16 + np.arange(8)] = np.nan
            check_inputs(ranks, dtype, op, [oracle.narrow(array, dtype) for array in wide])
            got = oracle.widen(results(ranks, dtype, 69)[0], dtype)
            equal(int(np.isnan(got).sum()), 32, f"NaNs after {dtype} {op}")


def test_negative_zero_is_below_positive_zero(mount):
    ranks = mount.job(2, size=4096).ranks()
    for dtype in FLOATS:
        plus, minus = oracle.narrow(np.zeros(33, np.float32), dtype), oracle.narrow(-np.zeros(33, np.float32), dtype)
        for op in ("min", "max"):
            for inputs in ([plus, minus], [minus, plus], [minus, minus], [plus, plus]):
                check_inputs(ranks, dtype, op, inputs)


def test_infinities_and_their_difference(mount):
    ranks = mount.job(2, size=4096).ranks()
    for dtype in FLOATS:
        inf = oracle.narrow(np.array([np.inf, -np.inf, np.inf, 1, np.inf] * 9, np.float32), dtype)
        other = oracle.narrow(np.array([np.inf, np.inf, -np.inf, -np.inf, 0] * 9, np.float32), dtype)
        for op in ("sum", "avg", "min", "max", "prod"):
            check_inputs(ranks, dtype, op, [inf, other])


def test_the_order_of_arrival_changes_no_bit(mount):
    world = 4
    ranks, random = mount.job(world, size=40000).ranks(), np.random.default_rng(7)
    inputs = [(random.normal(size=10000) * 10.0 ** random.integers(-6, 6, 10000)).astype(np.float32) for _ in ranks]
    seen = set()
    for _ in range(20):
        fill(ranks, inputs)
        pending = []
        for position, index in enumerate(random.permutation(world)):
            pending.append(ranks[index].begin())
            if position < world - 1:
                mount.wait_parked(position + 1)
        for call in pending:
            call.result()
        seen |= {rank.get() for rank in ranks}
    equal(len(seen), 1, "different results in 20 runs")


def test_another_daemon_gives_the_same_bits(mount):
    """The same world, placement, count and data: the same bits after a restart."""
    random = np.random.default_rng(8)
    inputs = [(random.normal(size=99999) * 10.0 ** random.integers(-6, 6, 99999)).astype(np.float32)
              for _ in range(3)]
    seen = set()
    for _ in range(2):
        ranks = mount.job(3, size=400000).ranks()
        fill(ranks, inputs)
        run_all(ranks, "count=99999")
        seen |= {rank.get() for rank in ranks}
        for rank in ranks:
            rank.actor.kill()
        mount.finish()
        mount.start()
    equal(len(seen), 1, "different results in two runs")


def test_every_rank_may_use_an_offset_of_its_own(mount):
    ranks, random = mount.job(3, size=65536).ranks(), np.random.default_rng(9)
    inputs = [random_input(random, "f32", 500) for _ in ranks]
    offsets = (0, 4, 40000)
    for rank, array, offset in zip(ranks, inputs, offsets):
        rank.put(array.tobytes(), offset)
    run_all(ranks, [f"offset={offset} count=500" for offset in offsets])
    expected = oracle.reduce(inputs, "f32", "sum").tobytes()
    for rank, offset in zip(ranks, offsets):
        equal(rank.get(2000, offset), expected, f"result at {offset}")


def test_buffers_may_have_different_sizes_when_the_range_fits(mount):
    ranks = mount.job(2).ranks()
    ranks[0].put(np.ones(10, np.float32).tobytes())
    ranks[1].put(np.ones(1000, np.float32).tobytes())
    run_all(ranks, "count=10")
    equal(ranks[0].get(), np.full(10, 2, np.float32).tobytes(), "rank 0")
    equal(ranks[1].get(), np.r_[np.full(10, 2), np.ones(990)].astype(np.float32).tobytes(), "rank 1")


# --- the other collectives -----------------------------------------------------------------------------------

def test_reduce_scatter_puts_its_part_at_each_rank_and_leaves_the_rest(mount):
    random = np.random.default_rng(10)
    for world in (1, 2, 3, 5):
        ranks = mount.job(world, size=8 * 1024).ranks()
        for dtype in DTYPES:
            for op in ops_of(dtype):
                for count in (1000, 1001) if op == "sum" else (333,):
                    inputs = [random_input(random, dtype, count, op) for _ in ranks]
                    fill(ranks, inputs)
                    run_all(ranks, f"dtype={dtype} op={op} count={count}", "reduce_scatter")
                    total = oracle.reduce(inputs, dtype, op)
                    for rank, got, mine in zip(ranks, results(ranks, dtype, count), inputs):
                        expected = mine.copy()
                        expected[part(rank.number, count, world)] = total[part(rank.number, count, world)]
                        assert oracle.same(got, expected, dtype), f"{dtype} {op} count={count} rank {rank.number}"
        for rank in ranks:
            rank.actor.kill()


def test_allgather_brings_every_part_to_every_rank(mount):
    random = np.random.default_rng(11)
    for world in (1, 2, 3, 5):
        ranks = mount.job(world, size=8 * 1024).ranks()
        for dtype in DTYPES:
            for count in (0, 1, world - 1, world, 1000, 1001):
                inputs = [random_input(random, dtype, count) for _ in ranks]
                fill(ranks, inputs)
                run_all(ranks, f"dtype={dtype} count={count}", "allgather")
                expected = np.concatenate([array[part(number, count, world)]
                                           for number, array in enumerate(inputs)])
                for got in results(ranks, dtype, count):
                    equal(got.tobytes(), expected.tobytes(), f"{dtype} count={count}")
        for rank in ranks:
            rank.actor.kill()


def test_broadcast_overwrites_the_others_with_the_roots_range(mount):
    ranks, random = mount.job(3, size=65536).ranks(), np.random.default_rng(12)
    for dtype in DTYPES:
        for root in range(3):
            for count in (0, 1, 777, 5000):
                inputs = [random_input(random, dtype, count) for _ in ranks]
                fill(ranks, inputs)
                run_all(ranks, f"dtype={dtype} count={count} root={root}", "broadcast")
                for got in results(ranks, dtype, count):
                    equal(got.tobytes(), inputs[root].tobytes(), f"{dtype} root={root}")


def test_reduce_scatter_and_allgather_make_an_allreduce(mount):
    ranks, random = mount.job(4, size=40000).ranks(), np.random.default_rng(13)
    inputs = [random.normal(size=10000).astype(np.float32) for _ in ranks]
    fill(ranks, inputs)
    run_all(ranks)
    expected = ranks[0].get()
    fill(ranks, inputs)
    run_all(ranks, "", "reduce_scatter")
    run_all(ranks, "", "allgather")
    for rank in ranks:
        equal(rank.get(), expected, "result in two steps")


def test_a_barrier_lets_nobody_go_before_the_last_has_come(mount):
    ranks = mount.job(3).ranks()
    first = [rank.begin("", "barrier") for rank in ranks[:2]]
    mount.wait_parked(2)
    assert not any(call.done() for call in first), "the barrier opened for two of three"
    ranks[2].run("", "barrier")
    for call in first:
        call.result()


def test_a_barrier_needs_no_buffer_and_changes_none(mount):
    ranks = mount.job(2).ranks()
    ranks[0].put(b"abc")  # no multiple of any element
    run_all(ranks, "", "barrier")
    equal(ranks[0].get(), b"abc", "buffer")


def test_a_world_of_one_is_done_at_once(mount):
    rank = mount.job(1, size=16).rank(0)
    rank.put(np.arange(4, dtype=np.float32).tobytes())
    for trigger in ("allreduce", "reduce_scatter", "allgather", "barrier"):
        rank.run("", trigger)
    rank.run("root=0", "broadcast")
    rank.run("op=avg")
    equal(rank.get(), np.arange(4, dtype=np.float32).tobytes(), "buffer")


# --- commands -----------------------------------------------------------------------------------------------

def test_an_empty_line_means_the_whole_buffer(mount):
    ranks = mount.job(2).ranks()
    for command in (b"\n", b" \n", b"   ", b" \t\n"):
        for rank in ranks:
            rank.put(np.arange(6, dtype=np.float32).tobytes())
        run_all(ranks, command)
        equal(ranks[1].get(), (2 * np.arange(6, dtype=np.float32)).tobytes(), f"after {command}")


def test_an_empty_line_on_a_buffer_of_odd_size_is_refused(mount):
    ranks = mount.job(1).ranks()
    ranks[0].put(b"12345")
    ranks[0].fails(errno.EINVAL)
    ranks[0].run("count=1")
    ranks[0].run("dtype=u8")


def test_the_jobs_defaults_fill_in_what_a_command_leaves_out(mount):
    ranks = mount.job(2, dtype="i32", op="max", size=16).ranks()
    fill(ranks, [np.array([1, -5, 7, 0], np.int32), np.array([0, 5, -7, 0], np.int32)])
    run_all(ranks)
    equal(list(results(ranks, "i32", 4)[0]), [1, 5, 7, 0], "maximum")
    run_all(ranks, "op=sum")
    equal(list(results(ranks, "i32", 4)[0]), [2, 10, 14, 0], "sum")
    run_all(ranks, "offset=8")
    equal(list(results(ranks, "i32", 4)[0]), [2, 10, 14, 0], "maximum of the second half")


def test_words_come_in_any_order_with_any_blanks_and_no_newline(mount):
    ranks = mount.job(2, size=64).ranks()
    for command in (b"op=sum dtype=i32 count=2 offset=4", b"  offset=4\tcount=2   dtype=i32 op=sum  \n",
                    b"count=2 op=sum offset=4 dtype=i32\n", b"tag=x op=sum dtype=i32 count=2 offset=4\n"):
        fill(ranks, [np.array([1, 2, 3, 4], np.int32)] * 2)
        run_all(ranks, command)
        equal(list(results(ranks, "i32", 4)[0]), [1, 4, 6, 4], f"after {command}")


def test_malformed_commands_are_refused_and_nothing_runs(mount):
    """The rank is a world of its own: whatever was accepted would run at once and double the buffer."""
    rank = mount.job(1, dtype="f32", size=64).rank(0)
    for command in ("opp=sum", "op", "op=", "=sum", "op=mean", "op=SUM", "dtype=f31", "dtype=", "count=x", "count=-1",
                    "count=1.5", "count=0x10", "count=1k", "offset=-4", "offset=x", "offset=2", "offset=1 dtype=bf16",
                    "sum", "allreduce", "op=sum,dtype=f32", "op=sum;", "op = sum", "tag=", "root=x",
                    "op=band", "op=bxor dtype=f64", "count=99999999999999999999999", "op=sum\ncount=1",
                    "\n\n", "op=sum\n\n", "op=sum\nop=sum\n", "op=sum\0", "\0", "count=1\0count=2"):
        line = command.encode() if command.endswith("\n") or "\0" in command else command.encode() + b"\n"
        rank.fails((errno.EINVAL, errno.ERANGE) if "9999" in command else errno.EINVAL, line)
    equal([line for line in rank.status().splitlines() if "result=ok" in line], [], "operations that ran")


def test_a_word_given_twice_is_refused(mount):
    """The manual does not say; a user who wrote two values meant one of them, and we cannot know which."""
    rank = mount.job(1, size=64).rank(0)
    rank.fails(errno.EINVAL, "count=1 count=2")


def test_a_range_outside_the_buffer_is_erange(mount):
    rank = mount.job(1, size=64).rank(0)
    for command in ("count=17", "offset=64 count=1", "offset=4 count=16", "offset=128", "count=4611686018427387904",
                    "count=4611686018427387905", "offset=18446744073709551612 count=1",
                    "offset=18446744073709551612 count=2", "count=9223372036854775807 dtype=u8"):
        rank.fails(errno.ERANGE, command)
    rank.run("offset=64 count=0")
    rank.run("count=16")


def test_a_root_that_is_no_rank_is_refused(mount):
    rank = mount.job(1, size=64).rank(0)
    for root in ("1", "7", "4294967296", "-1"):
        rank.fails((errno.EINVAL, errno.ERANGE), f"root={root}", "broadcast")


def test_a_command_of_4095_bytes_is_taken_and_4096_are_refused(mount):
    rank = mount.job(1, size=64).rank(0)
    rank.run(b"count=1".ljust(4095))
    rank.run(b"count=1".ljust(4094) + b"\n")
    for length in (4096, 4097, 8192, 1 << 20):
        rank.fails(errno.EINVAL, b"count=1".ljust(length))


def test_a_refused_command_leaves_a_sentence_in_status(mount):
    rank = mount.job(1, size=64).rank(0)
    rank.fails(errno.EINVAL, "opp=sum")
    contains(rank.status(), "EINVAL", "opp")
    rank.fails(errno.ERANGE, "count=1000")
    contains(rank.status(), "ERANGE")


def test_refused_commands_use_no_number(mount):
    ranks = mount.job(2, size=64).ranks()
    run_all(ranks)
    ranks[0].fails(errno.EINVAL, "op=mean")
    ranks[0].fails(errno.ERANGE, "count=99")
    run_all(ranks)
    for rank in ranks:
        numbers = [result_words(line)["seq"] for line in rank.status().splitlines() if "result=ok" in line]
        equal(numbers, ["1", "2"], f"numbers of rank {rank.number}")


def test_a_command_in_two_writes_is_two_commands(mount):
    rank = mount.job(1, size=64).rank(0)
    rank.run(b"count=1 ")
    rank.run(b"op=sum")
    equal(len([line for line in rank.status().splitlines() if "result=ok" in line]), 2, "operations")


def test_opening_touching_or_truncating_a_trigger_asks_for_nothing(mount):
    rank = mount.job(1, size=64).rank(0)
    for trigger in ("allreduce", "barrier"):
        os.close(os.open(rank.file(trigger), os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        os.truncate(rank.file(trigger), 0)
        os.truncate(rank.file(trigger), 1000)
        os.utime(rank.file(trigger))
        sh(f": > {rank.file(trigger)}; : >> {rank.file(trigger)}")
        equal(os.write(os.open(rank.file(trigger), os.O_WRONLY), b""), 0, "a write of nothing")
    equal(rank.status(), "", "status")


def test_a_command_may_come_at_any_offset_and_in_pieces_of_memory(mount):
    """pwrite and writev are one write() each."""
    rank = mount.job(1, size=64).rank(0)
    fd = rank.actor.call(os.open, rank.file("allreduce"), os.O_RDWR)
    for offset in (0, 1, 4096, 1 << 20, 1 << 40):
        equal(rank.actor.call(os.pwrite, fd, b"count=1\n", offset), 8, f"pwrite at {offset}")
    equal(rank.actor.call(os.writev, fd, [b"count=1 ", b"op=", b"max\n"]), 15, "writev")
    contains(rank.status().splitlines()[-1], "seq=6 ", "op=max", "count=1 ")


def test_empty_operations_succeed(mount):
    ranks = mount.job(3).ranks()
    for trigger in ("allreduce", "reduce_scatter", "allgather", "broadcast", "barrier"):
        command = "count=0 root=1" if trigger == "broadcast" else "" if trigger == "barrier" else "count=0"
        run_all(ranks, command, trigger)
    run_all(ranks)  # buffers of no bytes


def test_all_five_triggers_share_one_sequence(mount):
    ranks = mount.job(2, size=64).ranks()
    for trigger in ("allreduce", "barrier", "broadcast", "reduce_scatter", "allgather", "allreduce"):
        run_all(ranks, "root=0" if trigger == "broadcast" else "", trigger)
    for rank in ranks:
        numbers = [int(result_words(line)["seq"]) for line in rank.status().splitlines() if "result=ok" in line]
        equal(numbers, [1, 2, 3, 4, 5, 6], "numbers")


def test_shell_redirections_are_commands(mount):
    job = mount.job(2, dtype="i32")
    for rank in job.ranks():
        rank.put(np.arange(4, dtype=np.int32).tobytes())
    for text in (f"echo op=sum > {job.path}/ranks/0/allreduce & echo op=sum > {job.path}/ranks/1/allreduce; wait $!",
                 f"echo > {job.path}/ranks/0/barrier & echo >> {job.path}/ranks/1/barrier; wait $!",
                 f"printf op=sum > {job.path}/ranks/0/allreduce & echo op=sum | dd status=none "
                 f"of={job.path}/ranks/1/allreduce; wait $!"):
        sh(text)
    equal(list(np.frombuffer(read_bytes(f"{job.path}/ranks/1/buffer"), np.int32)), [0, 4, 8, 12], "twice doubled")


# --- disagreement ---------------------------------------------------------------------------------------------

def disagree(mount, commands, words, triggers=("allreduce",) * 3):
    job = mount.job(3, size=4096, timeout=20)
    ranks = job.ranks()
    for rank in ranks:
        rank.put(b"\1" * 4096)
    started = time.monotonic()
    pending = [rank.begin(command, trigger) for rank, command, trigger in zip(ranks, commands, triggers)]
    for call in pending:
        call.fails(errno.EPROTO)
    within(SOON, started, "the disagreement")
    for rank in ranks:
        line = rank.status().splitlines()[-1]
        contains(line, "EPROTO", *words)
        equal(rank.get(), b"\1" * 4096, "buffer after a disagreement")
    run_all(ranks, "count=1")
    equal(ranks[0].get(4), (np.frombuffer(b"\1\1\1\1", np.float32) * 3).tobytes(), "the next operation")
    for rank in ranks:
        rank.actor.kill()


def test_a_different_count_is_eproto_everywhere_and_status_says_who(mount):
    disagree(mount, ["count=100", "count=100", "count=99"], ["99", "100", "2"])
    disagree(mount, ["count=0", "count=1", "count=1"], ["count"])


def test_a_different_dtype_is_eproto_everywhere(mount):
    disagree(mount, ["dtype=f32 count=8", "dtype=i32 count=8", "dtype=f32 count=8"], ["f32", "i32", "1"])


def test_a_different_op_is_eproto_everywhere(mount):
    disagree(mount, ["op=sum count=8", "op=sum count=8", "op=max count=8"], ["sum", "max", "2"])


def test_a_different_collective_is_eproto_everywhere(mount):
    disagree(mount, ["count=8"] * 3, ["allreduce", "reduce_scatter"], ("allreduce", "reduce_scatter", "allreduce"))
    disagree(mount, ["count=8", "", "count=8"], ["allreduce", "barrier"], ("allreduce", "barrier", "allreduce"))


def test_a_different_root_is_eproto_everywhere(mount):
    disagree(mount, ["root=0 count=8", "root=1 count=8", "root=0 count=8"], ["root"], ("broadcast",) * 3)


def test_a_late_rank_gets_the_disagreement_at_once(mount):
    """One that failed has failed for all; the clock does not run again for who comes later."""
    ranks = mount.job(3, size=64, timeout=20).ranks()
    first = [ranks[0].begin("count=1"), ranks[1].begin("count=2")]
    for call in first:
        call.fails(errno.EPROTO)
    started = time.monotonic()
    ranks[2].fails(errno.EPROTO, "count=1")
    within(SOON, started, "the late rank's answer")
    run_all(ranks, "count=3")


# --- tags ----------------------------------------------------------------------------------------------------

def test_each_tag_has_a_sequence_of_its_own(mount):
    """Ranks may issue tagged operations in different orders, from threads or processes of their own."""
    mount.needs_parallel_writes()
    job = mount.job(2, size=64)
    ranks = job.ranks()
    helpers = [Actor(), Actor()]
    fds = [helper.call(os.open, rank.file("allreduce"), os.O_WRONLY) for helper, rank in zip(helpers, ranks)]
    first = ranks[0].begin("tag=a count=1")
    second = helpers[1].begin(os.write, fds[1], b"tag=b count=2 offset=32\n")
    mount.wait_parked(2)
    assert not first.done() and not second.done()
    ranks[1].run("tag=a count=1")
    first.result()
    helpers[0].call(os.write, fds[0], b"tag=b count=2 offset=32\n")
    second.result()
    run_all(ranks, "count=4")


def test_a_thousand_tags_work(mount):
    """A framework may name every layer; what is over costs nothing."""
    ranks = mount.job(2, size=64).ranks()
    for rank in ranks:
        rank.put(np.ones(16, np.float32).tobytes())
    calls = [rank.actor.begin(write_tags, rank.open(), 1000) for rank in ranks]
    for call in calls:
        call.result(60)
    equal(ranks[0].get(4), np.float32(1).tobytes(), "average")


def write_tags(fd, count):
    """For an actor: an operation under each of `count` names."""
    for number in range(count):
        os.write(fd, b"op=avg tag=layer%d\n" % number)


def test_a_tag_that_is_too_long_or_has_odd_characters_is_refused(mount):
    """The manual gives no alphabet; result lines are key=value words, so a tag can hold neither blank nor '='."""
    rank = mount.job(1, size=64).rank(0)
    rank.run("tag=layer.1_a-b")
    for tag in ("x" * 1000, "a=b", "a\x01b", "a\x7fb"):
        rank.fails(errno.EINVAL, f"tag={tag}")


def test_an_untagged_operation_does_not_match_a_tagged_one(mount):
    ranks = mount.job(2, size=64, timeout=0.5).ranks()
    pending = [ranks[0].begin("tag=a count=1"), ranks[1].begin("count=1")]
    for call in pending:
        call.fails(errno.ETIMEDOUT)


def test_two_jobs_do_not_mix(mount):
    one, two = mount.job(2, size=64).ranks(), mount.job(2, size=64).ranks()
    fill(one, [np.ones(16, np.float32)] * 2)
    fill(two, [np.full(16, 5, np.float32)] * 2)
    waiting = one[0].begin()
    mount.wait_parked()
    run_all(two)
    assert not waiting.done()
    one[1].run()
    waiting.result()
    equal(one[0].get(4), np.float32(2).tobytes(), "first job")
    equal(two[0].get(4), np.float32(10).tobytes(), "second job")


def test_thousands_of_operations_in_a_row_are_all_right(mount):
    ranks = mount.job(2, size=64).ranks()
    for rank in ranks:
        rank.put(np.ones(16, np.float32).tobytes())
    calls = [rank.actor.begin(repeat_write, rank.open(), b"op=avg\n", 5000) for rank in ranks]
    for call in calls:
        call.result(60)
    equal(ranks[0].get(), np.ones(16, np.float32).tobytes(), "average of ones, 5000 times")


def repeat_write(fd, command, count):
    for _ in range(count):
        os.write(fd, command)


# --- C and Perl -----------------------------------------------------------------------------------------------

def test_a_c_client_reduces_through_its_mapping(mount):
    program = mount.env.compile("client.c")
    job = mount.job(3, size=4096)
    for number in range(3):
        os.mkdir(f"{job.path}/ranks/{number}")
    clients = [subprocess.Popen([program, "sum", f"{job.path}/ranks/{number}", str(number + 1), "1000"],
                                stdout=subprocess.PIPE) for number in range(3)]
    for client in clients:
        out, _ = client.communicate(timeout=30)
        equal((client.returncode, out), (0, b"6\n"), "client")


def test_operations_asked_for_by_aio_hold_up_nobody_elses_files(mount):
    """Such writes are background requests of the kernel, which are counted; so are the releases of all files."""
    program = mount.env.compile("client.c")
    ranks = mount.job(2, size=64).ranks()
    client = subprocess.Popen([program, "submit", ranks[0].path, "40"], stdout=subprocess.PIPE)
    mount.wait_parked(40)
    equal(client.stdout.readline(), b"40\n", "submitted")
    other = mount.job(2, size=64)
    closes = other.rank(0)
    closes.open()
    contains(other.read("members"), "state=present")
    closes.close()
    wait_until(lambda: "state=joined" in other.read("members"), "the promise has ended with the close")
    for number in range(40):
        ranks[1].run(f"count=1 tag=t{number}")
    equal(client.communicate(timeout=30), (b"40\n", None), "ended")


@needs(tools=("perl",))
def test_perl_clients_reduce_with_syswrite_and_sysread(mount):
    script = r"""
        use strict; my ($dir, $value) = @ARGV;
        open(my $b, "+<", "$dir/buffer") or die; syswrite($b, pack("l<4", ($value) x 4)) == 16 or die "buffer: $!";
        open(my $t, "+<", "$dir/allreduce") or die; defined(syswrite($t, "dtype=i32 op=sum\n")) or die "trigger: $!";
        sysseek($b, 0, 0); sysread($b, my $data, 16) == 16 or die; print join(",", unpack("l<4", $data)), "\n";
    """
    job = mount.job(2)
    for number in range(2):
        os.mkdir(f"{job.path}/ranks/{number}")
    clients = [subprocess.Popen(["perl", "-e", script, f"{job.path}/ranks/{number}", str(10 + number)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for number in range(2)]
    for client in clients:
        equal(client.communicate(timeout=30), (b"21,21,21,21\n", b""), "client")
