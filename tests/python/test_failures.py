"""What a script hears when something is wrong with itself, with another rank, or with a node."""
import errno
import os
import signal

from harness import PATIENCE, contains, equal, needs, wait_until
from ranks import Process, begin, raises, together


def test_a_missing_rank_is_named_with_node_and_pid(mount):
    from fabricfs import FabricError, RanksMissing

    def body(fabric):
        if fabric.rank == 0:
            with raises(RanksMissing, "allreduce", "rank 0 in job job", "rank 1 (node 0, pid ", "did not come within"):
                fabric.allreduce(bytearray(4))
            try:
                fabric.allreduce(bytearray(4), async_op=True).wait()
            except TimeoutError as error:
                assert isinstance(error, FabricError) and error.errno == errno.ETIMEDOUT
                contains(error.status, "result=ETIMEDOUT", "missing=1", "collective=allreduce")
                (missing,) = error.missing
                return missing.rank, missing.node, missing.pid, missing.state, missing.last
        signal.pause()

    first, second = begin(mount, body, timeout=2)
    equal(first.result(), (1, 0, second.pid, "present", 1))
    second.kill()
    second.outcome()


def test_a_rank_that_dies_is_heard_of_at_once_and_comes_back(mount):
    from fabricfs import RankLost

    def body(fabric):
        x = fabric.memory(1)
        x[0] = 1
        if fabric.rank == 1 and not os.path.exists(f"{mount.path}/../again"):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            fabric.allreduce(x)
        except RankLost as error:
            contains(str(error), "rank 1 on node 0 is lost", "its process")
            open(f"{mount.path}/../again", "w").close()
            fabric.rendezvous()
            x[0] = 1
            fabric.allreduce(x)
        return x[0]

    first, second = begin(mount, body, timeout=20)
    equal(second.outcome(), (False, None))
    wait_until(lambda: os.path.exists(f"{mount.path}/../again"), "rank 0 hears of it")
    again = begin_rank(mount, body, 1, timeout=20)
    equal([first.result(), again.result()], [2.0, 2.0])


def test_a_rank_that_was_lost_before_is_named_as_one_that_is_lost_meanwhile(mount):
    from fabricfs import RankLost

    def body(fabric):
        if fabric.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        wait_until(lambda: fabric.members()[1].state == "lost", "rank 1 is lost")
        with raises(RankLost):
            try:
                fabric.allreduce(bytearray(1))
            except RankLost as error:
                equal([(member.rank, member.state) for member in error.missing], [(1, "lost")])
                raise

    first, second = begin(mount, body)
    equal(second.outcome(), (False, None))
    first.result()


def begin_rank(mount, body, rank, world=2, job="job", **config):
    from fabricfs import Fabric

    def alone():
        with Fabric(job, rank, world, mount=mount.path, **config) as fabric:
            return body(fabric)
    return Process(alone)


def test_ranks_that_disagree_hear_who_asked_what(mount):
    from fabricfs import Disagreement

    def body(fabric):
        with raises(Disagreement, "rank 0 asked allreduce u8 sum count=4", "rank 1 asked allreduce u8 sum count=5"):
            fabric.allreduce(bytearray(4 + fabric.rank))
        with raises(Disagreement, "rank 0 asked", "rank 1 asked"):
            fabric.allreduce(bytearray(4), ("sum", "max")[fabric.rank], async_op=True).wait()
        x = bytearray([1])
        fabric.allreduce(x)
        return x[0]
    equal(together(mount, body), [2, 2])


def test_data_stay_as_they_were_when_an_operation_fails(mount):
    from fabricfs import Disagreement

    def body(fabric):
        x = bytearray(b"1234")
        with raises(Disagreement):
            fabric.allreduce(x, ("sum", "max")[fabric.rank])
        return bytes(x)
    equal(together(mount, body), [b"1234"] * 2)


def test_a_wrong_word_is_refused_and_disturbs_nobody(mount):
    from fabricfs import FabricError

    def body(fabric):
        x = bytearray([1])
        with raises(FabricError, "op='sun' should be one of sum avg"):
            fabric.allreduce(x, "sun")
        with raises(FabricError, "root=2"):
            fabric.broadcast(x, root=2, async_op=True)
        fabric.allreduce(x)
        return x[0]
    equal(together(mount, body), [2, 2])


def test_an_exception_in_a_rank_is_a_loss_for_the_others_at_once(mount):
    from fabricfs import RankLost

    def body(fabric):
        if fabric.rank == 1:
            raise KeyError("a mistake of the script")
        fabric.allreduce(bytearray(1))

    first, second = begin(mount, body, timeout=60)
    ok, error = first.outcome(PATIENCE)
    assert not ok and isinstance(error, RankLost), error
    assert isinstance(second.outcome()[1], KeyError)


def test_a_rank_that_leaves_while_another_goes_on_is_a_disagreement_each_time(mount):
    from fabricfs import Disagreement

    def body(fabric):
        for _ in range(3 if fabric.rank == 0 else 0):
            with raises(Disagreement, "rank 0 asked allreduce", "rank 1 asked barrier (as a rank that leaves does)"):
                fabric.allreduce(bytearray(1))

    begun = begin(mount, body, timeout=600)
    for process in begun:
        process.result()
    equal(os.listdir(mount.file("jobs")), [], "jobs that are left")


def test_who_leaves_does_not_wait_for_who_has_left_or_never_came(mount):
    from fabricfs import Fabric
    Fabric("job", 0, 2, mount=mount.path, wait=False, timeout=600).close()

    def body(fabric):
        if fabric.rank == 0:
            fabric.barrier()  # which is what the other leaves with
            wait_until(lambda: fabric.members()[1].state == "absent", "rank 1 has left")

    for process in begin(mount, body, timeout=600):
        process.result()
    equal(os.listdir(mount.file("jobs")), [], "jobs that are left")


def test_a_rank_that_is_another_process_is_not_taken_over(mount):
    from fabricfs import Fabric
    first = begin(mount, lambda fabric: signal.pause(), world=1)[0]
    wait_until(lambda: os.path.exists(mount.file("jobs/job/members")) and
               "state=present" in mount.read("jobs/job/members"), "rank 0 takes part")
    with raises(FileExistsError, f"rank 0 of job job is process {first.pid} on node 0"):
        Fabric("job", 0, 1, mount=mount.path)
    first.kill()
    first.outcome()
    Fabric("job", 0, 1, mount=mount.path).close()


def test_another_config_than_the_jobs_is_refused_with_the_reason(mount):
    from fabricfs import Fabric, FabricError
    with Fabric("job", 0, 1, mount=mount.path):
        with raises(FabricError, "job job: EBUSY: line 1: world is 1 and fixed"):
            Fabric("job", 0, 2, mount=mount.path)
    with raises(FabricError, "job wrong: ", "line 2: "):
        Fabric("wrong", 0, 1, mount=mount.path, wire="u8")
    os.rmdir(mount.file("jobs/wrong"))


def test_when_the_daemon_ends_it_is_said_and_a_fabric_can_be_closed_and_made_anew(mount):
    from fabricfs import Fabric, FabricError
    fabric = Fabric("job", 0, 1, mount=mount.path)
    fabric.barrier()
    mount.process.kill()
    mount.process.wait()
    with raises(FabricError, "barrier of rank 0 in job job", "the daemon has ended", "start it"):
        fabric.barrier()
    fabric.close()
    with raises(OSError, "not connected", mount.path):
        Fabric("job", 0, 1, mount=mount.path)
    mount.process = None
    mount.start()
    with Fabric("job", 0, 1, mount=mount.path) as fabric:
        fabric.barrier()
        os.rmdir(fabric.path + "/ranks/0")
        with raises(FabricError, "this rank of it, was removed"):
            fabric.barrier()


@needs(mount=False)
def test_where_nothing_is_mounted_it_is_said(env):
    from fabricfs import Fabric
    os.makedirs(f"{env.directory}/jobs/job")  # made by a script before the fabric was mounted
    with raises(FileNotFoundError, f"no fabric is mounted at {env.directory}"):
        Fabric("job", 0, 1, mount=env.directory)


def test_a_closed_fabric_is_not_used_and_a_forked_process_is_no_rank(mount):
    from fabricfs import Fabric
    fabric = Fabric("job", 0, 1, mount=mount.path)
    x = fabric.memory(4)

    def child():
        with raises(ValueError, f"is another process's (rank 0 is {os.getppid()})"):
            fabric.barrier()
        fabric.close()
    Process(child).result()
    fabric.barrier()
    fabric.close()
    fabric.close()
    with raises(ValueError, "closed"):
        fabric.allreduce(x)
    equal(os.listdir(mount.file("jobs")), [])


@needs(nodes=2, options=("-o", "heartbeat_ms=2500"))
def test_a_node_that_dies_is_named_and_comes_back(fabric):
    from fabricfs import NodeLost
    fabric.wait_up()

    def body(me):
        me.barrier()
        if me.rank == 0:
            try:
                me.barrier()
            except NodeLost as error:
                return error.errno == errno.EHOSTDOWN and "node 1" in str(error)
        signal.pause()

    first, second = begin(fabric, body, placement=[0, 1])
    members = fabric[0].file("jobs/job/members")
    wait_until(lambda: os.path.exists(members) and open(members).read().count("last=2") == 2, "both have met")
    fabric[1].process.kill()
    equal(first.result(), True)
    second.kill()
    second.outcome()
    fabric[1].process.wait()
    os.system(f"umount -l {fabric[1].path}")
    fabric[1].start()
    fabric.wait_up()
    equal(together(fabric, lambda me: me.world, placement=[0, 1], job="again"), [2, 2])
