"""The collectives, waited for or not, from Python: on one node, and on two."""
import os

from harness import equal, needs
from ranks import module, raises, together


def all_collectives(fabric):
    """Every collective once, in place, on five elements: part 0 is two of them, part 1 three."""
    x = fabric.memory(5, "i32")

    def fill():
        for i in range(5):
            x[i] = (i + 1) * (1, 10)[fabric.rank]

    results = {}
    for name in ("allreduce", "reduce_scatter", "allgather", "broadcast"):
        fill()
        getattr(fabric, name)(x)
        results[name] = list(x)
    fabric.barrier()
    results["part"] = [x[fabric.part(5, rank)].tolist() for rank in range(2)]
    return results


def check_all_collectives(results):
    equal(results[0], {"allreduce": [11, 22, 33, 44, 55], "reduce_scatter": [11, 22, 3, 4, 5],
                       "allgather": [1, 2, 30, 40, 50], "broadcast": [1, 2, 3, 4, 5], "part": [[1, 2], [3, 4, 5]]})
    equal(results[1], {"allreduce": [11, 22, 33, 44, 55], "reduce_scatter": [10, 20, 33, 44, 55],
                       "allgather": [1, 2, 30, 40, 50], "broadcast": [1, 2, 3, 4, 5], "part": [[1, 2], [3, 4, 5]]})


def test_every_collective_does_what_its_trigger_does(mount):
    check_all_collectives(together(mount, all_collectives))


@needs(nodes=2)
def test_every_collective_does_the_same_across_nodes(fabric):
    fabric.wait_up()
    check_all_collectives(together(fabric, all_collectives, placement=[0, 1]))


def test_the_collectives_move_what_lies_elsewhere_and_only_their_part_of_it(mount):
    def body(fabric):
        x = bytearray([1, 2, 3, 4] if fabric.rank == 0 else [10, 20, 30, 40])
        fabric.reduce_scatter(x, "max")
        scattered = list(x)
        fabric.allgather(x)
        gathered = list(x)
        fabric.broadcast(x, root=1, async_op=True).wait()
        return scattered, gathered, list(x)
    equal(together(mount, body), [([10, 20, 3, 4], [10, 20, 30, 40], [10, 20, 30, 40]),
                                  ([10, 20, 30, 40], [10, 20, 30, 40], [10, 20, 30, 40])])


def test_operations_that_are_not_waited_for_overlap_and_end_in_any_order(mount):
    def body(fabric):
        pieces = [fabric.memory(100, "i64") for _ in range(8)]
        for piece in pieces:
            piece[99] = fabric.rank + 1
        works = [fabric.allreduce(piece, async_op=True) for piece in pieces]
        for work in reversed(works):
            work.wait()
            work.wait()
            assert work.done()
        return [piece[99] for piece in pieces]
    equal(together(mount, body), [[3] * 8] * 2)


def test_more_operations_than_the_queue_holds_are_all_done(mount):
    def body(fabric):
        things = [bytearray([fabric.rank + 1]) for _ in range(40)]
        works = [fabric.allreduce(thing, async_op=True) for thing in things]
        for work in works:
            work.wait()
        return {bytes(thing) for thing in things}, "EAGAIN" in open(f"{fabric.path}/ranks/0/status").read()
    equal(together(mount, body, depth=4), [({b"\3"}, False)] * 2)


def test_operations_that_nobody_waits_for_are_over_before_a_rank_leaves(mount):
    def body(fabric):
        fabric.allreduce(fabric.memory(100), async_op=True)
    together(mount, body)
    equal(os.listdir(mount.file("jobs")), [])


def test_a_wait_with_a_limit_ends_and_the_operation_goes_on(mount):
    def body(fabric):
        x = fabric.memory(1)
        x[0] = 1
        if fabric.rank == 0:
            work = fabric.allreduce(x, async_op=True)
            assert not work.done()
            with raises(TimeoutError, "not over within 0.01 s"):
                work.wait(0.01)
            fabric.barrier(tag="late")
            work.wait(10)
        else:
            fabric.barrier(tag="late")
            fabric.allreduce(x)
        return x[0]
    equal(together(mount, body), [2.0, 2.0])


def test_threads_with_tags_of_their_own_do_not_disturb_each_other(mount):
    import threading

    def body(fabric):
        sums = {}

        def run(name):
            x = fabric.memory(50)
            for _ in range(50):
                for i in range(50):
                    x[i] = 1
                fabric.allreduce(x, tag=name)
            sums[name] = sum(x)
        threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b", "c")]
        for thread in threads[::1 if fabric.rank else -1]:
            thread.start()
        for thread in threads:
            thread.join()
        return sums
    equal(together(mount, body), [{"a": 100.0, "b": 100.0, "c": 100.0}] * 2)


def test_results_are_the_same_bits_on_all_ranks(mount):
    numpy = module("numpy")

    def body(fabric):
        x = numpy.random.default_rng(fabric.rank).normal(size=10007).astype("f4")
        mine = x.copy()
        fabric.allreduce(x, "avg")
        return x.tobytes(), mine
    results = together(mount, body, 3)
    equal(len({bits for bits, _ in results}), 1, "results that differ")
    mean = numpy.mean([mine.astype("f8") for _, mine in results], axis=0)
    assert numpy.abs(numpy.frombuffer(results[0][0], "f4") - mean).max() < 1e-6
