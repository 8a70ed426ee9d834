"""Collectives over several nodes against numpy, whatever way the ranks are spread: values, bits, sizes, disagreement."""
import errno
import mmap
import os
import select

import numpy as np

import oracle
from harness import Fabric, Job, all_fail, contains, equal, fails, needs, result_words, run_all, work_again
from oracle import DTYPES, bf16_from_f32, bf16_to_f32, ops_of, part, random_input

SLOT = 256 * 1024  # bytes of a slot in landing memory
PART = 2048        # bytes of the largest partial sum that travels in a message
PLACEMENTS = ([0, 1], [0, 1, 0], [1, 0, 0, 1], [0, 1, 2], [2, 0, 1, 0, 2], [1, 1, 2, 0, 2, 2])


def fill(ranks, inputs, offset=0):
    for rank, array in zip(ranks, inputs):
        rank.put(array.tobytes(), offset)


def results(ranks, dtype, count, offset=0):
    size = np.dtype(DTYPES[dtype]).itemsize
    return [np.frombuffer(rank.get(count * size, offset), DTYPES[dtype]) for rank in ranks]


def let_go(ranks):
    for rank in ranks:
        rank.actor.kill()


def check_allreduce(ranks, dtype, op, count, random, offset=0, words=""):
    inputs = [random_input(random, dtype, count, op) for _ in ranks]
    fill(ranks, inputs, offset)
    run_all(ranks, f"dtype={dtype} op={op} count={count} offset={offset} {words}", seconds=30)
    got, expected = results(ranks, dtype, count, offset), oracle.reduce(inputs, dtype, op)
    what = f"{dtype} {op} count={count}"
    assert oracle.same(got[0], expected, dtype), f"{what}: {got[0][:8]}, expected {expected[:8]}"
    equal(len({x.tobytes() for x in got}), 1, f"different results of {what}")


def check_reduce_scatter(ranks, dtype, op, count, random):
    inputs = [random_input(random, dtype, count, op) for _ in ranks]
    fill(ranks, inputs)
    run_all(ranks, f"dtype={dtype} op={op} count={count}", "reduce_scatter", seconds=30)
    expected = oracle.reduce(inputs, dtype, op)
    for number, got in enumerate(results(ranks, dtype, count)):
        mine = part(number, count, len(ranks))
        rest = np.delete(got, np.arange(count)[mine]), np.delete(inputs[number], np.arange(count)[mine])
        assert oracle.same(got[mine], expected[mine], dtype), f"part {number} of reduce_scatter {dtype} {op} {count}"
        equal(rest[0].tobytes(), rest[1].tobytes(), f"what is not part {number} of {count} {dtype}")


def check_allgather(ranks, dtype, count, random):
    inputs = [random_input(random, dtype, count) for _ in ranks]
    fill(ranks, inputs)
    run_all(ranks, f"dtype={dtype} count={count}", "allgather", seconds=30)
    expected = np.concatenate([x[part(r, count, len(ranks))] for r, x in enumerate(inputs)]).tobytes()
    for number, got in enumerate(results(ranks, dtype, count)):
        equal(got.tobytes() == expected, True, f"allgather of {count} {dtype} at rank {number} is right")


def check_broadcast(ranks, dtype, count, random, root):
    inputs = [random_input(random, dtype, count) for _ in ranks]
    fill(ranks, inputs)
    run_all(ranks, f"dtype={dtype} count={count} root={root}", "broadcast", seconds=30)
    for number, got in enumerate(results(ranks, dtype, count)):
        equal(got.tobytes() == inputs[root].tobytes(), True, f"broadcast of {count} {dtype} from {root} at {number}")


def check_all(ranks, dtype, op, count, random):
    check_allreduce(ranks, dtype, op, count, random)
    check_reduce_scatter(ranks, dtype, op, count, random)
    check_allgather(ranks, dtype, count, random)
    check_broadcast(ranks, dtype, count, random, int(random.integers(len(ranks))))
    run_all(ranks, "", "barrier")


# --- values ------------------------------------------------------------------------------------------------

@needs(nodes=2)
def test_two_nodes_give_what_numpy_gives_for_every_dtype_and_op(fabric):
    ranks, random = fabric.job([0, 1, 0], size=8 * 1024).ranks(), np.random.default_rng(1)
    for dtype in DTYPES:
        for op in ops_of(dtype):
            check_allreduce(ranks, dtype, op, 20, random)    # in one message
            check_allreduce(ranks, dtype, op, 1000, random)  # around the ring


@needs(nodes=3, seconds=90)
def test_all_collectives_are_right_however_ranks_are_spread(fabric):
    random = np.random.default_rng(2)
    for placement in PLACEMENTS:
        job = fabric.job(placement, size="64K")
        ranks = job.ranks()
        for dtype, op in (("f32", "sum"), ("bf16", "avg"), ("i8", "max"), ("u64", "bxor")):
            for count in (1, 100, 3001):
                check_all(ranks, dtype, op, count, random)
        let_go(ranks)


@needs(nodes=4, seconds=90)
def test_four_nodes_with_several_ranks_each_are_right_at_every_size(fabric):
    ranks, random = fabric.job([3, 0, 2, 1, 0, 3, 2, 2], size="2M").ranks(), np.random.default_rng(3)
    for count in (0, 1, 2, 7, 8, 9, 255, 256, 511, 512, 513, 4097, 65535, 65536, 65537, 262147):
        check_all(ranks, "f32", "sum", count, random)


@needs(nodes=2)
def test_sizes_around_a_message_and_a_slot_are_right(fabric):
    ranks, random = fabric.job([0, 1, 1], size="2M").ranks(), np.random.default_rng(4)
    for dtype in ("f32", "f16", "u8", "f64"):
        size = np.dtype(DTYPES[dtype]).itemsize
        edges = {edge // size + step for edge in (PART, PART * size // max(size, 4), SLOT, 2 * SLOT, 3 * SLOT)
                 for step in (-1, 0, 1)}
        for count in sorted(edges):
            check_allreduce(ranks, dtype, "sum", count, random)
        check_reduce_scatter(ranks, dtype, "sum", SLOT // size + 1, random)
        check_allgather(ranks, dtype, SLOT // size + 1, random)
        check_broadcast(ranks, dtype, SLOT // size + 1, random, 0)


@needs(nodes=3, seconds=90)
def test_many_mebibytes_are_right_although_a_window_is_smaller(fabric):
    ranks, random = fabric.job([0, 1, 2, 1], size="24M").ranks(), np.random.default_rng(5)
    for dtype, op in (("f32", "sum"), ("bf16", "avg"), ("u8", "sum"), ("f64", "min")):
        count = (20 << 20) // np.dtype(DTYPES[dtype]).itemsize - 3
        check_allreduce(ranks, dtype, op, count, random)
    check_reduce_scatter(ranks, "f32", "sum", (5 << 20) + 1, random)
    check_allgather(ranks, "f16", (10 << 20) + 1, random)
    check_broadcast(ranks, "i32", (5 << 20) + 1, random, 2)


@needs(nodes=2)
def test_offsets_may_be_odd_and_differ_between_nodes(fabric):
    ranks, random = fabric.job([0, 1], size="1M").ranks(), np.random.default_rng(6)
    for count in (50, 70001):
        inputs = [random_input(random, "f32", count) for _ in ranks]
        offsets = (4, 1236)
        for rank, array, offset in zip(ranks, inputs, offsets):
            rank.put(b"\x7e" * (1 << 20))
            rank.put(array.tobytes(), offset)
        run_all(ranks, [f"count={count} offset={offset}" for offset in offsets])
        total = (inputs[0] + inputs[1]).tobytes()
        for rank, offset in zip(ranks, offsets):
            data = rank.get()
            equal(data[offset:offset + 4 * count] == total, True, "the range holds the sum")
            equal(set(data[:offset] + data[offset + 4 * count:]), {0x7e}, "bytes around the range")


@needs(nodes=3)
def test_every_rank_may_be_the_root(fabric):
    ranks, random = fabric.job([2, 0, 1, 0], size="1M").ranks(), np.random.default_rng(7)
    for root in range(4):
        for count in (3, 100000):
            check_broadcast(ranks, "f32", count, random, root)


@needs(nodes=2)
def test_nothing_to_reduce_succeeds(fabric):
    ranks = fabric.job([0, 1, 0]).ranks()
    for trigger in ("allreduce", "reduce_scatter", "allgather", "broadcast"):
        run_all(ranks, "count=0", trigger)
    run_all(ranks, "", "barrier")


@needs(nodes=2)
def test_what_combines_nothing_succeeds_whatever_op_the_job_has(fabric):
    ranks = fabric.job([0, 1], size=4096, op="band", timeout=5).ranks()
    for trigger in ("barrier", "broadcast", "allgather"):
        run_all(ranks, "", trigger)


def add_mapped(rank_path, value):
    """In a rank's process: stores through a mapping, reduces, and returns what the mapping holds."""
    with open(f"{rank_path}/buffer", "r+b") as file:
        memory = mmap.mmap(file.fileno(), 1 << 20)
    array = np.frombuffer(memory, np.float32)
    array[:] = value
    fd = os.open(f"{rank_path}/allreduce", os.O_RDWR)
    os.write(fd, b"\n")
    os.close(fd)
    return float(array.min()), float(array.max())


@needs(nodes=2)
def test_a_mapping_on_another_node_holds_the_result_without_msync(fabric):
    ranks = fabric.job([0, 1], size="1M").ranks()
    pending = [rank.actor.begin(add_mapped, rank.path, rank.number + 1.5) for rank in ranks]
    equal([call.result() for call in pending], [(4.0, 4.0)] * 2, "what the mappings hold")


# --- bits --------------------------------------------------------------------------------------------------

def normal(random, dtype, count):
    values = random.normal(size=count)
    return bf16_from_f32(values.astype(np.float32)) if dtype == "bf16" else values.astype(DTYPES[dtype])


@needs(nodes=3, seconds=90)
def test_bits_are_the_same_on_all_ranks_and_in_every_run_whatever_the_order_of_arrival(fabric):
    placement = [0, 2, 1, 0, 2]
    random = np.random.default_rng(8)
    for dtype, count in (("f32", 100), ("f32", 200001), ("bf16", 70001), ("f16", 333)):
        inputs, seen = [normal(random, dtype, count) for _ in placement], set()
        for _ in range(3):
            ranks = fabric.job(placement, size="1M").ranks()
            for _ in range(2):
                fill(ranks, inputs)
                order = random.permutation(len(ranks))
                run_all([ranks[i] for i in order], f"dtype={dtype} count={count}", seconds=30)
                seen |= {x.tobytes() for x in results(ranks, dtype, count)}
            let_go(ranks)
        equal(len(seen), 1, f"results of {count} {dtype}")


@needs(nodes=2)
def test_bits_are_the_same_after_the_daemons_are_started_again(fabric):
    random = np.random.default_rng(9)
    inputs, seen = [normal(random, "f32", 50001) for _ in range(3)], set()
    for _ in range(2):
        ranks = fabric.job([0, 1, 1], size="256K").ranks()
        fill(ranks, inputs)
        run_all(ranks, "count=50001")
        seen |= {x.tobytes() for x in results(ranks, "f32", 50001)}
        let_go(ranks)
        for mount in fabric:
            equal(mount.stop(), 0, "exit status")
        for mount in fabric:
            mount.start()
        fabric.wait_up()
    equal(len(seen), 1, "results")


@needs(nodes=4)
def test_half_precision_is_rounded_once_however_many_nodes(fabric):
    """2049 small ones beside a large value vanish one by one when every partial sum is rounded."""
    ranks = fabric.job([0, 1, 2, 3, 0, 1, 2, 3], size="256K").ranks()
    for count in (16, 40001):
        inputs = [np.full(count, 2048 if rank.number == 0 else 0.5, np.float16) for rank in ranks]
        fill(ranks, inputs)
        run_all(ranks, f"dtype=f16 count={count}")
        for got in results(ranks, "f16", count):
            equal(set(got.tolist()), {2052.0}, "2048 + 7 * 0.5 rounded once")
        big = [bf16_from_f32(np.full(count, 256 if rank.number == 7 else 0.5, np.float32)) for rank in ranks]
        fill(ranks, big)
        run_all(ranks, f"dtype=bf16 count={count}")
        for got in results(ranks, "bf16", count):
            equal(set(bf16_to_f32(got).tolist()), {260.0}, "256 + 7 * 0.5 rounded once")


@needs(nodes=2)
def test_a_narrow_wire_still_gives_all_ranks_the_same_bits(fabric):
    random = np.random.default_rng(10)
    for dtype in ("f16", "bf16"):
        ranks = fabric.job([0, 1, 0], size="1M", dtype=dtype, wire=dtype).ranks()
        for count in (100, 200001):
            check_allreduce(ranks, dtype, "max", count, random)
            inputs = [normal(random, dtype, count) for _ in ranks]
            fill(ranks, inputs)
            run_all(ranks, f"count={count}")
            got = results(ranks, dtype, count)
            equal(len({x.tobytes() for x in got}), 1, "different results")
            wide = [oracle.widen(x, dtype).astype(np.float64) for x in inputs]
            error = np.abs(oracle.widen(got[0], dtype) - sum(wide))
            unit = 2.0 ** (-8 if dtype == "bf16" else -11)
            assert (error <= 3 * unit * sum(map(np.abs, wide)) + 1e-6).all(), f"{dtype}: more than three roundings"
        let_go(ranks)


@needs(nodes=3)
def test_nan_and_signed_zero_do_not_depend_on_the_node_they_are_on(fabric):
    ranks = fabric.job([0, 1, 2], size="256K").ranks()
    values = (np.nan, -0.0, 0.0, np.inf, -np.inf, 1.0, 1e-42)
    combos = [(a, b, c) for a in values for b in values for c in values]
    for copies in (1, 100):
        inputs = [np.array([combo[r] for combo in combos] * copies, np.float32) for r in range(3)]
        for op in ("min", "max", "sum"):
            fill(ranks, inputs)
            run_all(ranks, f"op={op} count={len(inputs[0])}")
            got = results(ranks, "f32", len(inputs[0]))
            if op != "sum":
                assert oracle.same(got[0], oracle.reduce(inputs, "f32", op), "f32"), op
            equal(len({x.tobytes() for x in got}), 1, f"different results of {op}")


@needs(nodes=3)
def test_averages_count_all_ranks_of_all_nodes_and_integers_truncate_toward_zero(fabric):
    ranks = fabric.job([0, 0, 1, 2, 1], size="256K").ranks()
    for count in (3, 9000):
        for dtype in ("i32", "u8", "i64", "f32"):
            inputs = [np.array([-7, 7, 1] * (count // 3)).astype(DTYPES[dtype]) * (r + 1) for r in range(5)]
            if dtype == "u8":
                inputs = [np.full(count, 9 + r, np.uint8) for r in range(5)]
            fill(ranks, inputs)
            run_all(ranks, f"dtype={dtype} op=avg count={count}")
            expected = oracle.reduce(inputs, dtype, "avg")
            for got in results(ranks, dtype, count):
                equal(got.tolist() == expected.tolist(), True, f"avg of {dtype}")


# --- many at once ------------------------------------------------------------------------------------------

def queue_all(path, commands):
    """In a rank's process: queues all commands without waiting, then reads as many result lines."""
    fd = os.open(f"{path}/allreduce", os.O_RDWR | os.O_NONBLOCK)
    for command in commands:
        os.write(fd, command.encode() + b"\n")
    lines = []
    while len(lines) < len(commands):
        select.select([fd], [], [], 20)
        lines.append(os.read(fd, 4096).decode().strip())
    os.close(fd)
    return lines


@needs(nodes=3)
def test_operations_on_disjoint_ranges_overlap_and_are_all_right(fabric):
    ranks, random = fabric.job([0, 1, 2, 0], size="4M").ranks(), np.random.default_rng(11)
    counts = [10, 70001, 1, 200000, 333, 65536, 512, 100000]
    offsets = np.concatenate([[0], np.cumsum(counts)[:-1]]) * 4
    inputs = [[random_input(random, "f32", count) for count in counts] for _ in ranks]
    for rank, arrays in zip(ranks, inputs):
        for array, offset in zip(arrays, offsets):
            rank.put(array.tobytes(), int(offset))
    commands = [f"count={count} offset={offset}" for count, offset in zip(counts, offsets)]
    pending = [rank.actor.begin(queue_all, rank.path, commands) for rank in ranks]
    for call in pending:
        lines = [result_words(line) for line in call.result(30)]
        equal({line["result"] for line in lines}, {"ok"}, "results")
        equal(sorted(int(line["seq"]) for line in lines), list(range(1, 9)), "numbers")
    for i, (count, offset) in enumerate(zip(counts, offsets)):
        expected = sum(arrays[i] for arrays in inputs)
        for rank in ranks:
            equal(rank.get(4 * count, int(offset)) == expected.tobytes(), True, f"range {i} at rank {rank.number}")


@needs(nodes=3)
def test_tags_that_share_memory_may_be_asked_for_in_any_order_on_each_node(fabric):
    """Each operation adds up what the one before it left: after the k-th, the sum times 3 to the power k - 1."""
    count = 20000
    ranks = fabric.job([0, 1, 2], size=4 * count, timeout=5).ranks()
    orders = ("abcd", "dcba", "cadb")
    for turn in range(10):
        fill(ranks, [np.full(count, rank.number + 1 + turn, np.int32) for rank in ranks])
        calls = [rank.actor.begin(queue_all, rank.path, [f"dtype=i32 count={count} tag={tag}" for tag in order])
                 for rank, order in zip(ranks, orders)]
        for call in calls:
            for line in call.result(20):
                equal(result_words(line)["result"], "ok", "result")
        for got in results(ranks, "i32", count):
            equal(set(got.tolist()), {(6 + 3 * turn) * 27}, "sum")


@needs(nodes=2)
def test_tags_have_sequences_of_their_own_across_nodes(fabric):
    ranks = fabric.job([0, 1], size=4096).ranks()
    fill(ranks, [np.full(1024, 1, np.float32)] * 2)
    first = ranks[0].begin("tag=a count=10")
    other = ranks[1].actor.begin(queue_all, ranks[1].path, ["tag=b count=10 offset=400", "tag=a count=10"])
    first.result()
    ranks[0].run("tag=b count=10 offset=400")
    equal(sorted((result_words(line)["tag"], result_words(line)["seq"], result_words(line)["result"])
                 for line in other.result(30)), [("a", "1", "ok"), ("b", "1", "ok")], "what the queue gave")
    equal(np.frombuffer(ranks[1].get(40, 400), np.float32).tolist(), [2.0] * 10, "what tag b reduced")


@needs(nodes=2)
def test_the_five_triggers_share_one_sequence_across_nodes(fabric):
    ranks = fabric.job([0, 1], size=4096).ranks()
    for trigger in ("barrier", "allreduce", "broadcast", "reduce_scatter", "allgather", "barrier"):
        run_all(ranks, "" if trigger == "barrier" else "count=100", trigger)
    for rank in ranks:
        equal([result_words(line)["seq"] for line in rank.status().splitlines()], list("123456"), "numbers")


@needs(nodes=2)
def test_a_barrier_holds_all_nodes_until_the_last_comes(fabric):
    ranks = fabric.job([0, 1, 1]).ranks()
    pending = [rank.begin("", "barrier") for rank in ranks[:2]]
    for mount in fabric:
        mount.wait_parked(1)
    equal([call.done() for call in pending], [False, False], "who has passed")
    ranks[2].run("", "barrier")
    for call in pending:
        call.result()


@needs(nodes=2, modes=("coherent",))
def test_what_moves_no_data_leaves_mapped_pages_where_they_are(fabric):
    ranks = fabric.job([0, 1], size="1M").ranks()
    with open(ranks[0].file("buffer"), "r+b") as file, mmap.mmap(file.fileno(), 1 << 20) as memory:
        before = os.stat(ranks[0].file("buffer")).st_mtime_ns
        memory[:4096] = b"x" * 4096
        run_all(ranks, "", "barrier")
        run_all(ranks, "count=0", "broadcast")
        equal(os.stat(ranks[0].file("buffer")).st_mtime_ns, before, "when the pages were last written back")


@needs(nodes=2)
def test_two_jobs_work_at_once_while_one_of_them_is_stalled(fabric):
    stalled = fabric.job([0, 1], size="8M", timeout=60).ranks()
    busy = fabric.job([1, 0], size="8M")
    waiting = stalled[0].begin()
    fabric[0].wait_parked(1)
    ranks, random = busy.ranks(), np.random.default_rng(12)
    for count in (10, 100000, 2000000):
        check_allreduce(ranks, "f32", "sum", count, random)
    equal(waiting.done(), False, "the stalled operation is over")
    stalled[1].run(seconds=30)
    waiting.result()


@needs(nodes=2)
def test_a_job_of_one_node_does_not_need_the_others(fabric):
    ranks, random = fabric.job([1, 1], size=4096).ranks(), np.random.default_rng(13)
    check_allreduce(ranks, "f32", "sum", 1000, random)
    fabric[0].process.kill()
    check_allreduce(ranks, "f32", "sum", 1000, random)
    fabric[0].process.wait()
    fabric[0].start()
    check_allreduce(ranks, "f32", "sum", 1000, random)


def repeat(path, times):
    """In a rank's process: the same operation so many times."""
    fd = os.open(f"{path}/allreduce", os.O_RDWR)
    for _ in range(times):
        os.write(fd, b"dtype=f64 count=8\n")
    os.close(fd)


@needs(nodes=2)
def test_many_small_operations_in_a_row_keep_their_order(fabric):
    ranks = fabric.job([0, 1], size=64).ranks()
    for rank in ranks:
        rank.put(np.full(8, 1, np.float64).tobytes())
    pending = [rank.actor.begin(repeat, rank.path, 300) for rank in ranks]
    for call in pending:
        call.result(30)
    for rank in ranks:
        equal(np.frombuffer(rank.get(64), np.float64).tolist(), [2.0 ** 300] * 8, "doubled 300 times")


@needs(mount=False, seconds=120)
def test_sixteen_daemons_reduce_eight_bytes(env):
    fabric = Fabric(env, 16)
    fabric.wait_up(seconds=60)
    ranks = fabric.job(list(range(16)), size=8).ranks()
    for rank in ranks:
        rank.put(np.array([rank.number], np.int64).tobytes())
    run_all(ranks, "dtype=i64 count=1", seconds=30)
    for rank in ranks:
        equal(int(np.frombuffer(rank.get(), np.int64)[0]), 120, f"sum at rank {rank.number}")
    let_go(ranks)
    fabric.finish()


# --- checks and figures ------------------------------------------------------------------------------------

@needs(nodes=3)
def test_checked_operations_are_right(fabric):
    ranks, random = fabric.job([0, 1, 2, 1], size="2M", verify="crc32c").ranks(), np.random.default_rng(14)
    for dtype, count in (("f32", 100), ("f32", 400001), ("bf16", 300001)):
        check_all(ranks, dtype, "sum", count, random)


@needs(nodes=3)
def test_nothing_is_read_across_links_once_nodes_are_up(fabric):
    fabric.wait_up()
    ranks, random = fabric.job([0, 1, 2], size="2M").ranks(), np.random.default_rng(15)

    def reads():
        return [fabric[a].read("nodes", b, "stats") for a in range(3) for b in range(3) if a != b]

    def counted():
        return [int(result["remote_reads"]) for result in
                (dict(line.split() for line in text.splitlines()) for text in reads())]
    before = counted()
    check_all(ranks, "f32", "sum", 300001, random)
    check_all(ranks, "f32", "sum", 30, random)
    equal(counted(), before, "remote reads")


# --- disagreement ------------------------------------------------------------------------------------------

@needs(nodes=2)
def test_a_mismatch_across_nodes_is_eproto_on_all_ranks_and_status_says_who_asked_what(fabric):
    ranks = fabric.job([0, 1, 0], size=4096).ranks()
    cases = ((["count=100", "count=101", "count=100"], "count", "101"),
             (["dtype=f32 count=8", "dtype=i32 count=8", "dtype=f32 count=8"], "i32", "f32"),
             (["op=sum count=8", "op=max count=8", "op=sum count=8"], "max", "sum"),
             (["count=8", "count=0", "count=8"], "count", "0"))
    for commands, *words in cases:
        all_fail(ranks, errno.EPROTO, commands)
        for rank in ranks:
            contains(rank.status().splitlines()[-1], "EPROTO", *words)
    pending = [ranks[0].begin("count=8 root=0", "broadcast"), ranks[1].begin("count=8 root=1", "broadcast"),
               ranks[2].begin("count=8 root=0", "broadcast")]
    for call in pending:
        call.fails(errno.EPROTO)
    pending = [ranks[0].begin("count=8", "allgather"), ranks[1].begin("count=8"), ranks[2].begin("count=8")]
    for call in pending:
        call.fails(errno.EPROTO)
    for rank in ranks:
        contains(rank.status().splitlines()[-1], "allgather", "allreduce")
    run_all(ranks, "count=8")


@needs(nodes=2)
def test_a_different_configuration_is_eproto_naming_both_values(fabric):
    for key, here, there in (("dtype", "f32", "bf16"), ("timeout", 30, 20), ("verify", "none", "crc32c")):
        job = fabric.job([0, 1], size=4096, uneven={0: {key: here}, 1: {key: there}})
        ranks = job.ranks()
        all_fail(ranks, errno.EPROTO, "count=8 dtype=f32")
        for rank in ranks:
            contains(rank.status(), "EPROTO", key, str(here), str(there))
        fabric.wait_event(job.name, key, here, there)
        contains(fabric[0].read("health"), f"error jobs/{job.name} the nodes disagree", str(there))
        for rank in ranks:
            rank.actor.kill()


@needs(nodes=2)
def test_a_different_world_is_eproto_naming_both(fabric):
    ranks = fabric.job([0, 1], size=4096, uneven={1: {"world": 3}}).ranks()
    all_fail(ranks, errno.EPROTO, "count=8")
    for rank in ranks:
        contains(rank.status(), "world", "2", "3")


@needs(nodes=3)
def test_who_disagreed_about_a_job_and_has_left_it_disturbs_nobody(fabric):
    job = fabric.job([0, 1], size=4096)
    ranks, other = job.ranks(), Job(fabric[2], 3, name=job.name).rank(2)
    fabric.wait_event(job.name, "the nodes disagree")
    all_fail(ranks, errno.EPROTO, "count=8")
    os.rmdir(other.path)
    work_again(ranks, "count=8")


@needs(nodes=2)
def test_a_job_may_have_another_memory_limit_on_each_node(fabric):
    ranks = fabric.job([0, 1], size=4096, uneven={0: {"memory": "1M"}, 1: {"memory": "2M"}}).ranks()
    run_all(ranks, "count=8")


@needs(nodes=2)
def test_a_job_of_two_owners_is_eproto_naming_both(fabric):
    job = fabric.job([0, 1], size=4096, timeout=5)
    os.chown(job.on[1].path, 1234, 1234)
    ranks = job.ranks()
    all_fail(ranks, errno.EPROTO, "count=8")
    for rank in ranks:
        contains(rank.status(), "EPROTO", "user 0", "user 1234")
    os.chown(job.on[1].path, 0, 0)
    work_again(ranks, "count=8")


@needs(nodes=2)
def test_a_rank_taken_on_two_nodes_is_eexist_until_one_leaves(fabric):
    """A node that has no rank of the job yet does not look what others have."""
    job = fabric.job([0, 1], size=4096, timeout=5)
    first, second, twin = job.rank(0), job.on[0].rank(1), job.on[1].rank(1)
    fabric.wait_event(job.name, "rank 1 is taken twice")
    pending = [rank.begin("count=8") for rank in (first, second, twin)]
    for call in pending:
        call.fails(errno.EEXIST)
    for rank in (first, second, twin):
        contains(rank.status(), "EEXIST", "rank 1", "node 0", "node 1")
    second.close()
    os.rmdir(second.path)
    work_again([first, twin], "count=8")
    fails(errno.EEXIST, os.mkdir, second.path)


def _queue_many(path, count):
    """In a rank's process: asks for so many operations without waiting for any."""
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    for _ in range(count):
        os.write(fd, b"\n")
    return fd


def _collect_all(fd, count):
    """In a rank's process: the results of so many operations."""
    results = set()
    for _ in range(count):
        select.select([fd], [], [], 20)
        results.add(result_words(os.read(fd, 4096).decode())["result"])
    return results


@needs(nodes=2)
def test_a_node_that_comes_late_hears_of_all_requests_however_many_wait(fabric):
    fabric.wait_up()
    job = fabric.job([0, 0, 0, 0, 1], depth=4096)
    early = [job.rank(number) for number in range(4)]
    queued = [rank.actor.call(_queue_many, rank.file("barrier"), 2000) for rank in early]
    late = job.rank(4)
    fd = late.actor.call(_queue_many, late.file("barrier"), 2000)
    for rank, opened in zip([*early, late], [*queued, fd]):
        equal(rank.actor.call(_collect_all, opened, 2000), {"ok"}, f"results of rank {rank.number}")


@needs(nodes=2)
def test_a_node_may_run_ahead_of_another_by_as_many_operations_as_are_queued(fabric):
    """On node 1 all work on the same memory, one after the other; on node 0 each on its own, so all begin at once."""
    count = 300
    ranks = fabric.job([0, 1], size=8 * count, depth=count, dtype="i64").ranks()
    ranks[0].put(np.ones(count, np.int64).tobytes())
    calls = [rank.actor.begin(queue_all, rank.path, [f"count=1 offset={8 * i * (rank is ranks[0])}" for i in range(count)])
             for rank in ranks]
    for call in calls:
        equal({result_words(line)["result"] for line in call.result(30)}, {"ok"}, "results")
    equal(np.frombuffer(ranks[0].get(8 * count), np.int64).tolist(), list(range(1, count + 1)), "sums")
