"""The buffer: shared memory that files and mappings see alike, its limits, and clients that pull it away."""
import ctypes
import errno
import glob
import mmap
import os
import re
import time

import numpy as np

from harness import Actor, Job, Skip, contains, equal, fails, needs, run_all, sh, values, wait_until, write

PAGE = mmap.PAGESIZE
PUNCH_HOLE, KEEP_SIZE = 2, 1
MADV_REMOVE = 9
libc = ctypes.CDLL(None, use_errno=True)


def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def mapped(rank, flags=mmap.MAP_SHARED):
    """The whole buffer as a mapping of the test's own process."""
    fd = os.open(rank.file("buffer"), os.O_RDWR)
    try:
        return mmap.mmap(fd, os.fstat(fd).st_size, flags, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)


def map_buffer(path):
    """For an actor: maps and keeps the buffer as floats."""
    global floats
    floats = np.memmap(path, np.float32, "r+")
    return len(floats)


def set_floats(first, values):
    floats[first:first + len(values)] = values


def get_floats(first, count):
    return np.array(floats[first:first + count])


def step(trigger_path, value):
    """For an actor: a step of training as users write it."""
    fd = os.open(trigger_path, os.O_RDWR)
    floats[:] = value
    os.write(fd, b"op=sum\n")
    result = float(floats[0]), float(floats[-1])
    os.close(fd)
    return result


# --- one memory, several views --------------------------------------------------------------------------------

def test_stores_through_a_mapping_are_reduced_without_msync_and_the_result_appears_in_it(mount):
    ranks = mount.job(2, size="1M").ranks()
    for rank in ranks:
        equal(rank.actor.call(map_buffer, rank.file("buffer")), 1 << 18, "floats mapped")
    for number in range(20):
        calls = [rank.actor.begin(step, rank.file("allreduce"), number + rank.number) for rank in ranks]
        for call in calls:
            equal(call.result(), (2 * number + 1, 2 * number + 1), "first and last element")


def test_a_mapping_sees_writes_and_reads_see_the_mapping(mount):
    rank = mount.job(2, size=2 * PAGE).rank(0)
    view = mapped(rank)
    rank.put(b"written", 100)
    equal(view[100:107], b"written", "mapping after write()")
    view[PAGE:PAGE + 6] = b"stored"
    equal(rank.get(6, PAGE), b"stored", "read() after a store")
    equal(mapped(rank)[PAGE:PAGE + 6], b"stored", "another mapping")
    view.close()


def test_two_processes_map_the_same_buffer(mount):
    rank = mount.job(2, size=PAGE).rank(0)
    other = Actor()
    for actor in (rank.actor, other):
        actor.call(map_buffer, rank.file("buffer"))
    rank.actor.call(set_floats, 5, np.float32([1, 2, 3]))
    equal(other.call(get_floats, 5, 3).tolist(), [1, 2, 3], "the other process's view")


def test_a_mapping_outlives_its_descriptor_and_works(mount):
    ranks = mount.job(2, size=PAGE).ranks()
    view = mapped(ranks[0])  # its descriptor is closed
    view[:4] = np.float32(3).tobytes()
    ranks[1].put(np.float32(4).tobytes())
    run_all(ranks)
    equal(view[:4], np.float32(7).tobytes(), "sum in the mapping")


def test_memmap_of_numpy_creates_the_length_it_asks_for(mount):
    ranks = mount.job(2).ranks()
    arrays = [np.memmap(rank.file("buffer"), np.float64, "r+", shape=(1000,)) for rank in ranks]
    for array in arrays:
        array[:] = np.arange(1000)
    run_all(ranks, "dtype=f64")
    equal(arrays[0].tolist(), (2.0 * np.arange(1000)).tolist(), "sum")


def test_a_private_mapping_changes_nothing(mount):
    rank = mount.job(2, size=PAGE).rank(0)
    rank.put(b"\1" * PAGE)
    view = mapped(rank, mmap.MAP_PRIVATE)
    view[:5] = b"other"
    equal(rank.get(5), b"\1" * 5, "buffer")


def test_shell_tools_fill_and_show_a_buffer(mount):
    job = mount.job(2)
    rank = job.rank(0)
    data = os.urandom(100001)
    with open(f"{mount.env.directory}/data", "wb") as file:
        file.write(data)
    buffer = rank.file("buffer")
    for command in (f"cat {mount.env.directory}/data > {buffer}", f"cp {mount.env.directory}/data {buffer}",
                    f"dd if={mount.env.directory}/data of={buffer} status=none",
                    f"dd if={mount.env.directory}/data of={buffer} bs=7777 status=none",
                    f"truncate -s 0 {buffer}; cat {mount.env.directory}/data >> {buffer}",
                    f"head -c 1000 {mount.env.directory}/data > {buffer}; tail -c +1001 {mount.env.directory}/data >> "
                    f"{buffer}", f"tee {buffer} < {mount.env.directory}/data > /dev/null"):
        os.truncate(buffer, 0)
        sh(command)
        equal(rank.get(), data, f"buffer after {command}")
    equal(sh(f"cat {buffer}"), data, "cat")
    equal(sh(f"dd if={buffer} bs=1 skip=5 count=100 status=none"), data[5:105], "dd bs=1")
    equal(int(sh(f"wc -c < {buffer}")), len(data), "wc")
    sh(f"cmp {buffer} {mount.env.directory}/data")
    contains(sh(f"od -An -tx1 -N4 {buffer}").decode().strip(), data[:4].hex(" "))
    sh(f"cp {buffer} {mount.env.directory}/back && cmp {mount.env.directory}/back {mount.env.directory}/data")


def test_dd_in_the_middle_leaves_the_rest(mount):
    rank = mount.job(2, size=10000).rank(0)
    rank.put(b"\1" * 10000)
    sh(f"printf abc | dd of={rank.file('buffer')} bs=1 seek=5001 conv=notrunc status=none")
    equal(rank.get(), b"\1" * 5001 + b"abc" + b"\1" * 4996, "buffer")


def test_redirection_truncates_first(mount):
    rank = mount.job(2, size=10000).rank(0)
    rank.put(b"\1" * 10000)
    sh(f"printf abc > {rank.file('buffer')}")
    equal(rank.get(), b"abc", "buffer")


def test_appending_and_seeking_past_the_end_work_as_in_any_file(mount):
    rank = mount.job(2).rank(0)
    with open(rank.file("buffer"), "r+b", buffering=0) as file:
        file.seek(5000)
        file.write(b"x")
        equal(os.fstat(file.fileno()).st_size, 5001, "size")
        file.seek(0)
        equal(file.read(5001), b"\0" * 5000 + b"x", "a hole reads as zeros")
        equal(file.seek(0, os.SEEK_END), 5001, "end")
    fd = os.open(rank.file("buffer"), os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"yz")
    os.close(fd)
    equal(rank.get()[5000:], b"xyz", "after O_APPEND")


def test_a_shrunk_and_regrown_buffer_reads_zeros(mount):
    rank = mount.job(2, size=3 * PAGE).rank(0)
    rank.put(b"\1" * (3 * PAGE))
    os.truncate(rank.file("buffer"), 100)
    os.truncate(rank.file("buffer"), 3 * PAGE)
    equal(rank.get(), b"\1" * 100 + b"\0" * (3 * PAGE - 100), "buffer")


def test_writes_from_unaligned_memory_and_of_several_mebibytes_arrive_whole(mount):
    ranks = mount.job(2, size="8M").ranks()
    data = np.random.default_rng(1).integers(0, 100, (8 << 20) // 4, np.int32)
    room = np.empty(data.nbytes + PAGE, np.uint8)
    for shift in (0, 1, 2, 3, 4, 32):
        unaligned = room[shift:shift + data.nbytes]
        unaligned[:] = data.view(np.uint8)
        for rank in ranks:
            fd = os.open(rank.file("buffer"), os.O_WRONLY)
            equal(os.write(fd, unaligned), data.nbytes, "bytes written")
            os.close(fd)
        run_all(ranks, "dtype=i32")
        equal(ranks[1].get(), (data * 2).tobytes(), f"sum with memory at +{shift}")


def test_the_size_shown_is_the_size_used(mount):
    job = mount.job(2, size=12345)
    rank = job.rank(0)
    equal(os.stat(rank.file("buffer")).st_size, 12345, "initial size")
    os.truncate(rank.file("buffer"), 777)
    equal(os.stat(rank.file("buffer")).st_size, 777, "after truncate")
    fd = os.open(rank.file("buffer"), os.O_WRONLY)
    os.pwrite(fd, b"x" * 10, 1000)
    equal(os.fstat(fd).st_size, 1010, "fstat after an extending write")
    os.close(fd)
    equal(os.stat(rank.file("buffer")).st_size, 1010, "stat after it")


def test_a_write_that_extends_the_buffer_counts_in_the_next_command(mount):
    ranks = mount.job(2).ranks()
    for rank in ranks:
        rank.put(np.ones(8, np.float32).tobytes())
    run_all(ranks)
    for rank in ranks:
        rank.put(np.ones(8, np.float32).tobytes(), 32)
    run_all(ranks)
    equal(ranks[0].get(), np.r_[np.full(8, 4), np.full(8, 2)].astype(np.float32).tobytes(), "buffer")


def test_concurrent_opens_with_every_flag_work(mount):
    rank = mount.job(2, size=16 * PAGE).rank(0)
    rank.put(bytes(range(256)) * (16 * PAGE // 256))
    flags = (os.O_RDONLY, os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_APPEND, os.O_RDONLY | os.O_CLOEXEC,
             os.O_RDWR | os.O_NONBLOCK, os.O_RDWR | os.O_SYNC)
    fds = [os.open(rank.file("buffer"), flag) for flag in flags * 5]
    for fd in fds:
        os.fstat(fd)
    for fd in fds[::2]:
        os.close(fd)
    equal(rank.get(256), bytes(range(256)), "buffer")
    for fd in fds[1::2]:
        os.close(fd)


@needs(modes=("passthrough",))
def test_o_direct_works_on_a_buffer(mount):
    rank = mount.job(2, size=4 * PAGE).rank(0)
    room = mmap.mmap(-1, PAGE)
    room[:] = b"\7" * PAGE
    fd = os.open(rank.file("buffer"), os.O_RDWR | os.O_DIRECT)
    equal(os.pwrite(fd, room, PAGE), PAGE, "bytes written")
    equal(os.preadv(fd, [room], 0), PAGE, "bytes read")
    os.close(fd)
    equal(rank.get(PAGE, PAGE), b"\7" * PAGE, "buffer")


@needs(modes=("coherent",))
def test_a_store_beside_a_running_range_is_kept(mount):
    """Stores to other pages while operations run must never be lost by the two invalidations."""
    ranks = mount.job(2, size=2 * PAGE).ranks()
    actor = Actor()
    actor.call(map_buffer, ranks[0].file("buffer"))
    for number in range(200):
        actor.call(set_floats, PAGE // 4, np.float32([number]))
        run_all(ranks, "op=max count=16")
        equal(float(actor.call(get_floats, PAGE // 4, 1)[0]), number, "the store in the other page")
        equal(ranks[0].get(4, PAGE), np.float32(number).tobytes(), "read() of it")


@needs(modes=("coherent",))
def test_a_store_to_the_page_under_operation_never_undoes_the_result(mount):
    """The result stands when the trigger returns, however busy another process is on the same page; its own store
    beside the range may be lost while the operation runs."""
    ranks = mount.job(2, size=PAGE).ranks()
    scribbler = Actor()
    scribbler.call(map_buffer, ranks[0].file("buffer"))
    scribbling = scribbler.begin(scribble, 512, 1.5)
    end, rounds = time.monotonic() + 1.2, 0
    while time.monotonic() < end:
        for rank in ranks:
            rank.put(np.full(16, rounds, np.float32).tobytes())
        run_all(ranks, "op=sum count=16")
        equal(ranks[1].get(64), np.full(16, 2 * rounds, np.float32).tobytes(), "result at the quiet rank")
        equal(ranks[0].get(64), np.full(16, 2 * rounds, np.float32).tobytes(), "result beside a busy store")
        rounds = (rounds + 1) % 1000
    assert scribbling.result() > 100


@needs(modes=("coherent",), options=("-o", "workers=1"))
def test_a_buffer_can_be_lengthened_while_the_only_worker_waits_for_its_pages(mount):
    """The kernel holds dirty pages back until a new length is answered, and an operation begins by waiting for them."""
    pages = 4096
    ranks = mount.job(2, size=pages * PAGE).ranks()
    storing, lengthening = Actor(), Actor()
    storing.call(map_buffer, ranks[0].file("buffer"))
    for number in range(1, 11):
        storing.call(store_in_every_other_page, number)  # each is a request of its own
        summing = [rank.begin(f"op=max count={pages * PAGE // 4}") for rank in ranks]
        lengthening.call(os.truncate, ranks[0].file("buffer"), (pages + number % 2) * PAGE)
        for call in summing:
            call.result()
        equal(float(storing.call(get_floats, 0, 1)[0]), number, "the sum")


@needs(modes=("coherent",))
def test_closing_a_descriptor_of_a_buffer_leaves_its_pages_alone(mount):
    """Else an operation that another rank's process begins meanwhile could miss pages that are being written back."""
    rank, actor = mount.job(1, size=8 * PAGE).rank(0), Actor()
    actor.call(map_buffer, rank.file("buffer"))
    # The kernel may clean them at any time, but not always just then.
    assert any(actor.call(store_and_close, rank.file("buffer"), number) for number in range(1, 21)), "cleaned at every close"


def store_and_close(path, value):
    """For an actor: stores in its mapping, closes a descriptor, and returns how much of the mapping is dirty."""
    fd = os.open(path, os.O_RDWR)
    floats[:] = value
    os.close(fd)
    with open("/proc/self/smaps", encoding="utf-8") as file:
        mapping = file.read().split(path, 1)[1]
    return sum(int(size) for size in re.findall(r"(?:Shared|Private)_Dirty: +([0-9]+) kB", mapping)[:2])


def store_in_every_other_page(value):
    floats[::2 * PAGE // 4] = value


def scribble(index, seconds):
    """For an actor: stores to one float of its mapping without end."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        floats[index] = count
        count += 1
    return count


# --- limits ---------------------------------------------------------------------------------------------------

def test_growing_past_the_jobs_memory_is_enospc_when_the_size_is_set(mount):
    job = mount.job(2, memory="1M")
    one, two = job.ranks()
    os.truncate(one.file("buffer"), 700 << 10)
    fails(errno.ENOSPC, os.truncate, two.file("buffer"), 700 << 10)
    equal(os.stat(two.file("buffer")).st_size, 0, "size after the refusal")
    os.truncate(two.file("buffer"), 300 << 10)
    os.truncate(one.file("buffer"), 0)
    os.truncate(two.file("buffer"), 700 << 10)
    fails((errno.ENOSPC, errno.EFBIG), os.truncate, two.file("buffer"), 1 << 50)
    fails((errno.ENOSPC, errno.EFBIG, errno.EINVAL), os.truncate, two.file("buffer"), (1 << 63) - 1)
    run_all([one, two], "count=0")


def test_writing_past_the_jobs_memory_is_enospc_and_what_fits_stays(mount):
    job = mount.job(2, memory="1M")
    rank = job.rank(0)
    fd = os.open(rank.file("buffer"), os.O_WRONLY)
    written = 0
    try:
        for _ in range(64):
            written += os.write(fd, b"x" * 65536)
    except OSError as error:
        equal(error.errno, errno.ENOSPC, "errno")
    os.close(fd)
    assert 0 < written <= 1 << 20, f"{written} bytes fitted"
    equal(rank.get(10), b"x" * 10, "buffer")
    assert mount.alive()


@needs(options=("-o", "memory=8M"))
def test_the_daemons_memory_is_shared_by_all_jobs(mount):
    jobs = [mount.job(1) for _ in range(4)]
    ranks = [job.rank(0) for job in jobs]
    grown = 0
    for rank in ranks:
        try:
            os.truncate(rank.file("buffer"), 3 << 20)
            grown += 1
        except OSError as error:
            equal(error.errno, errno.ENOSPC, "errno")
    equal(grown, 2, "buffers of 3 MiB in 8 MiB")
    os.rmdir(ranks[0].path)
    os.truncate(ranks[3].file("buffer"), 3 << 20)


@needs(options=("-o", "memory=16M,memory_user=4M"))
def test_a_user_has_a_limit_too(mount):
    one, two = Actor(1001), Actor(1002)
    first = Job(mount, 1, owner=one).rank(0, one)
    one.call(os.truncate, first.file("buffer"), 3 << 20)
    second = Job(mount, 1, owner=one).rank(0, one)
    fails(errno.ENOSPC, one.call, os.truncate, second.file("buffer"), 3 << 20)
    third = Job(mount, 1, owner=two).rank(0, two)
    two.call(os.truncate, third.file("buffer"), 3 << 20)


def fill(path, most=64 << 20):
    """For an actor: lengthens a buffer by writing until it is refused; the bytes that fitted, and the descriptor."""
    fd = os.open(path, os.O_WRONLY)
    written = 0
    try:
        while written < most:
            written += os.write(fd, b"x" * 65536)
    except OSError as error:
        equal(error.errno, errno.ENOSPC, "errno")
    return written, fd


def used(mount):
    return int(mount.stats()["memory_used_bytes"])


@needs(options=("-o", "memory=8M"))
def test_writes_that_lengthen_buffers_of_many_jobs_stay_within_the_daemons_memory(mount):
    ranks = [mount.job(2).rank(0) for _ in range(3)]
    fds = [rank.actor.call(os.open, rank.file("buffer"), os.O_WRONLY) for rank in ranks]
    fitted = [rank.actor.call(fill, rank.file("buffer")) for rank in ranks]
    total = sum(written for written, _ in fitted)
    if mount.mode == "passthrough":
        assert all(written > 1 << 20 for written, _ in fitted), f"{fitted}: each has a share"
    assert total <= 8 << 20, f"{total} bytes in 8 MiB"
    assert used(mount) <= 8 << 20, mount.read("stats")
    for rank, (_, other), fd in zip(ranks, fitted, fds):
        rank.actor.call(os.close, other)
        rank.actor.call(os.close, fd)
    os.rmdir(ranks[0].path)
    os.truncate(ranks[1].file("buffer"), 0)
    written, _ = ranks[1].actor.call(fill, ranks[1].file("buffer"))
    assert written + fitted[2][0] > 7 << 20, f"{written} bytes beside {fitted[2][0]}: what others gave up is lent"


@needs(options=("-o", "memory=8M"))
def test_a_file_that_fitted_into_a_buffer_fits_again(mount):
    """`cat` cuts the buffer off before it writes: others that could use the memory do not get it in between."""
    other, rank = (mount.job(2, size="3M").rank(0) for _ in range(2))
    other.actor.call(map_buffer, other.file("buffer"))
    grads = f"{mount.env.directory}/grads"
    with open(grads, "wb") as file:
        file.write(b"x" * (3 << 20))
    for _ in range(2):
        sh(f"cat {grads} > {rank.file('buffer')}")
        equal(used(mount), 6 << 20, "memory in use")
    fd = rank.actor.call(os.open, rank.file("buffer"), os.O_WRONLY | os.O_TRUNC)
    fails(errno.ENOSPC, os.truncate, other.file("buffer"), 6 << 20)  # the writer may still come to it
    rank.actor.call(os.close, fd)
    wait_until(lambda: used(mount) == 3 << 20, "what was not written is free")
    os.truncate(other.file("buffer"), 7 << 20)


@needs(options=("-o", "memory=16M,memory_user=4M"))
def test_writes_that_lengthen_buffers_stay_within_the_users_memory(mount):
    users = Actor(1001), Actor(1001), Actor(1002)
    ranks = [Job(mount, 2, owner=user).rank(0, user) for user in users]
    fitted = [rank.actor.call(fill, rank.file("buffer"))[0] for rank in ranks]
    assert fitted[0] + fitted[1] <= 4 << 20 and fitted[2] <= 4 << 20, f"{fitted} bytes in 4 MiB a user"
    assert fitted[0] >= 3 << 20 and fitted[2] >= 3 << 20, f"{fitted}: what is free is lent"


@needs(options=("-o", "memory=8M"))
def test_a_mapping_that_outlives_its_job_counts_until_it_goes(mount):
    job = mount.job(1, size="5M")
    rank = job.rank(0)
    rank.actor.call(map_buffer, rank.file("buffer"))
    os.rmdir(rank.path)
    os.rmdir(job.path)
    other = mount.job(1).rank(0)
    if mount.mode == "passthrough":
        fails(errno.ENOSPC, os.truncate, other.file("buffer"), 5 << 20)
        equal(used(mount), 5 << 20, "memory in use")
        equal(rank.actor.call(get_floats, 0, 1).tolist(), [0], "what is mapped")
    rank.actor.kill()
    wait_until(lambda: used(mount) == 0, "the memory is free")
    os.truncate(other.file("buffer"), 5 << 20)


@needs(options=("-o", "memory=8M"))
def test_a_length_set_by_the_client_is_not_taken_back_for_others(mount):
    """numpy makes a file as long as its array by writing the last byte; the pages come with the stores."""
    rank = mount.job(2).rank(0)
    array = np.memmap(rank.file("buffer"), np.float32, "r+", shape=(1 << 20,))
    other = mount.job(2).rank(0)
    fails(errno.ENOSPC, os.truncate, other.file("buffer"), 5 << 20)
    other.actor.call(fill, other.file("buffer"))
    array[:] = 1
    equal(float(array.sum(dtype=np.float64)), float(1 << 20), "sum of what was stored")


def use_memory(jobs, seed, seconds):
    """For an actor: makes ranks, sets lengths, writes, maps and removes at random; how often that worked."""
    random = np.random.default_rng(seed)
    end, done, kept = time.monotonic() + seconds, 0, []
    while time.monotonic() < end:
        rank = f"{random.choice(jobs)}/ranks/{random.integers(3)}"
        step, length = random.integers(8), int(random.integers(10 << 20))
        try:
            if step == 0:
                os.mkdir(rank)
            elif step == 1:
                os.rmdir(rank)
            elif step == 2:
                os.truncate(f"{rank}/buffer", length)
            elif step < 5:
                fd = os.open(f"{rank}/buffer", os.O_RDWR | (os.O_TRUNC if step == 3 else os.O_APPEND))
                kept.append(os.fdopen(fd, "rb", 0))  # closed when there are too many
                os.write(fd, b"x" * length)
            elif step == 5:
                fd = os.open(f"{rank}/buffer", os.O_RDWR)
                kept.append(os.fdopen(fd, "rb", 0))
                kept.append(mmap.mmap(fd, os.fstat(fd).st_size or PAGE))
            elif step == 6:
                fd = os.open(f"{rank}/buffer", os.O_RDWR)
                kept.append(os.fdopen(fd, "rb", 0))
                fallocate(fd, length % 2, length, length)
            done += 1
        except (OSError, ValueError):  # refused, or another one was quicker
            pass
        while len(kept) > 8:
            kept.pop(0).close()
    return done


@needs(options=("-o", "memory=16M,memory_user=12M"))
def test_whatever_clients_do_memory_stays_within_the_limits(mount):
    jobs = [mount.job(3).path for _ in range(3)]
    actors = [Actor() for _ in range(6)]
    calls = [actor.begin(use_memory, jobs, seed, 4) for seed, actor in enumerate(actors)]
    most = 0
    while not all(call.done() for call in calls):
        most = max(most, used(mount))
    assert all(call.result() > 10 for call in calls), "nothing was done"
    assert 4 << 20 < most <= 12 << 20, f"{most} bytes are used"
    for actor in actors:
        actor.kill()
    mount.wait_idle()
    buffers = glob.glob(mount.file("jobs/*/ranks/*/buffer"))
    for buffer in buffers:  # what was allocated behind a gap leaves the first page out, and others may have it all
        os.truncate(buffer, 0)
    wait_until(lambda: used(mount) == 0, "no memory is in use")
    for buffer in buffers:
        os.truncate(buffer, PAGE)
    wait_until(lambda: used(mount) == len(buffers) * PAGE, f"a page of each of the {len(buffers)} buffers is in use")
    for buffer in buffers:
        os.rmdir(os.path.dirname(buffer))
    equal(used(mount), 0, "memory in use when all ranks have left")
    os.truncate(mount.job(1).rank(0).file("buffer"), 12 << 20)


@needs(options=("-o", "memory=192M"))
def test_ranks_that_just_fit_join_while_others_are_being_reserved(mount):
    for _ in range(5):
        job = mount.job(8, size="24M")
        for number in range(8):
            os.mkdir(f"{job.path}/ranks/{number}")
        for number in range(8):
            os.rmdir(f"{job.path}/ranks/{number}")
        os.rmdir(job.path)


@needs(options=("-o", "memory=64M"))
def test_memory_is_free_when_the_removal_of_its_rank_returns(mount):
    for number in range(20):
        job = mount.job(2, size="60M")
        rank = job.rank(0)
        if number % 2:
            os.rmdir(rank.path)
        else:
            write(f"{job.path}/members", "drop=0\n")
        os.rmdir(job.path)


def removed_meanwhile(mount, leaving):
    """How many jobs come and go while the memory of another one, a gibibyte, is freed."""
    job, count = mount.job(1, size="1G"), 0
    pending = leaving.begin(os.rmdir, job.rank(0).path)
    wait_until(lambda: values(job.read("stats"))["joined"] == "0", "the rank is gone")
    while not pending.done():
        os.mkdir(mount.file("jobs/other"))
        os.rmdir(mount.file("jobs/other"))
        count += 1
    pending.result()
    os.rmdir(job.path)
    return count


def test_the_removal_of_a_job_does_not_wait_for_memory_of_others(mount):
    leaving = Actor()
    counts = []
    while len(counts) < 5 and max(counts, default=0) <= 20:
        counts.append(removed_meanwhile(mount, leaving))
    assert max(counts) > 20, f"at most {max(counts)} jobs were removed while the memory of another was freed"
    leaving.kill()


@needs(options=("-o", "memory=1024T"))
def test_a_limit_above_what_the_machine_has_is_a_finding(mount):
    contains(mount.read("health"), "warn memory", "1024T")


def test_a_job_whose_size_does_not_fit_is_refused_when_joining_or_before(mount):
    job = mount.job(4, memory="1M")
    fails((errno.ENOSPC, errno.ERANGE, errno.EINVAL), job.configure, "size=2M\n")
    job.configure("size=400K\n")
    for number in range(2):
        job.rank(number)
    fails(errno.ENOSPC, os.mkdir, f"{job.path}/ranks/2")
    equal(sorted(os.listdir(f"{job.path}/ranks")), ["0", "1"], "ranks after the refusal")


@needs(options=("-o", "memory=16M,memory_user=4M"))
def test_a_memory_limit_that_is_changed_while_nobody_is_in_counts_for_who_joins_next(mount):
    user = Actor(1001)
    full = Job(mount, 1, owner=user, size="3M").rank(0, user)
    job = Job(mount, 2, owner=user, memory="2M", size="2M")
    fails(errno.ENOSPC, user.call, os.mkdir, f"{job.path}/ranks/0")  # the user's limit
    user.call(os.rmdir, full.path)
    job.configure("memory=3M\nsize=3M\n")
    job.rank(0, user)
    user.call(write, f"{job.path}/members", "drop=0\n")
    job.configure("memory=4M\nsize=4M\n")
    job.rank(1, user)


def test_jobs_that_do_nothing_cost_little_memory(mount):
    if mount.sanitized():
        raise Skip("a sanitizer adds to everything")
    before = mount.rss_kib()
    for number in range(1000):
        os.mkdir(mount.file("jobs", number))
    grown = mount.rss_kib() - before
    assert grown < 16 << 10, f"1000 jobs take {grown} KiB"
    for number in range(1000):
        os.rmdir(mount.file("jobs", number))


def test_memory_comes_back_when_jobs_go(mount):
    if mount.sanitized():
        raise Skip("a sanitizer keeps freed memory")
    rss = mount.rss_kib()
    for _ in range(30):
        job = mount.job(2, size="8M")
        ranks = job.ranks()
        for rank in ranks:
            rank.put(b"\1" * (8 << 20))
        run_all(ranks)
        for rank in ranks:
            rank.actor.kill()
            os.rmdir(rank.path)
        os.rmdir(job.path)
    wait_until(lambda: mount.rss_kib() < rss + 8192, f"resident memory is back near {rss} KiB")


# --- clients that pull memory away --------------------------------------------------------------------------------

def test_truncating_a_buffer_in_an_operation_is_ebusy(mount):
    ranks = mount.job(2, size=PAGE).ranks()
    waiting = ranks[0].begin()
    mount.wait_parked()
    fails(errno.EBUSY, os.truncate, ranks[0].file("buffer"), 0)
    fails(errno.EBUSY, os.open, ranks[0].file("buffer"), os.O_WRONLY | os.O_TRUNC)
    equal(os.stat(ranks[0].file("buffer")).st_size, PAGE, "size")
    ranks[1].run()
    waiting.result()
    os.truncate(ranks[0].file("buffer"), 0)


def fill_and_reduce(fd, buffer, seconds):
    """For an actor: fills, reduces, counts outcomes by errno, until the time is over."""
    outcomes, end = {}, time.monotonic() + seconds
    room = b"\1" * (1 << 20)
    while time.monotonic() < end:
        try:
            os.pwrite(buffer, room, 0)
            os.write(fd, b"dtype=i32 count=262144\n")
            outcomes[0] = outcomes.get(0, 0) + 1
        except OSError as error:
            outcomes[error.errno] = outcomes.get(error.errno, 0) + 1
    return outcomes


def disturb(path, kind, seconds):
    """For an actor: pulls the buffer's memory away in one way, again and again."""
    fd = os.open(path, os.O_RDWR)
    end, count = time.monotonic() + seconds, 0
    view = mmap.mmap(fd, 1 << 20) if kind == "remove" else None
    while time.monotonic() < end:
        try:
            if kind == "truncate":
                os.ftruncate(fd, 0)
                os.ftruncate(fd, 1 << 20)
            elif kind == "open":
                os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
                os.ftruncate(fd, 1 << 20)
            elif kind == "punch":
                fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, 1 << 20)
            elif kind == "remove":
                view.madvise(MADV_REMOVE)
            elif kind == "shrink":
                os.ftruncate(fd, (1 << 20) - PAGE)
                os.ftruncate(fd, 1 << 20)
            count += 1
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTSUP):
                return f"{kind}: {error.strerror}"
            if error.errno not in (errno.EBUSY, errno.EAGAIN):
                raise
    return count


def storm_of(mount, kind, seconds=1.0):
    job = mount.job(2, size="1M", timeout=1)
    ranks = job.ranks()
    vandal = Actor()
    destroyer = vandal.begin(disturb, ranks[0].file("buffer"), kind, seconds)
    calls = []
    for rank in ranks:
        fd, buffer = rank.open(), rank.actor.call(os.open, rank.file("buffer"), os.O_RDWR)
        calls.append(rank.actor.begin(fill_and_reduce, fd, buffer, seconds))
    outcomes = [call.result(seconds + 15) for call in calls]
    done = destroyer.result(seconds + 10)
    if isinstance(done, str):
        raise Skip(done)
    assert done > 0, "the disturber did nothing"
    for found in outcomes:
        assert set(found) <= {0, errno.EFAULT, errno.ERANGE, errno.EINVAL, errno.EBUSY, errno.ETIMEDOUT,
                              errno.ENOSPC}, {errno.errorcode.get(key, key): value for key, value in found.items()}
    assert mount.alive()
    for rank in ranks:
        rank.actor.kill()
    fresh = mount.job(2, size=64).ranks()
    for rank in fresh:
        rank.put(np.ones(16, np.float32).tobytes())
    run_all(fresh)
    equal(fresh[0].get(), np.full(16, 2, np.float32).tobytes(), "a sum afterwards")


def test_truncation_in_a_loop_during_operations_does_not_hurt_the_daemon(mount):
    storm_of(mount, "truncate")


def test_opening_with_o_trunc_in_a_loop_does_not_hurt_the_daemon(mount):
    storm_of(mount, "open")


def test_shrinking_by_a_page_in_a_loop_does_not_hurt_the_daemon(mount):
    storm_of(mount, "shrink")


def test_holes_punched_in_a_loop_do_not_hurt_the_daemon(mount):
    storm_of(mount, "punch")


def test_madv_remove_in_a_loop_does_not_hurt_the_daemon(mount):
    storm_of(mount, "remove")


def test_a_punched_hole_counts_as_zeros_and_the_quota_stays_right(mount):
    ranks = mount.job(2, size=4 * PAGE).ranks()
    for rank in ranks:
        rank.put(np.ones(PAGE, np.float32).tobytes())
    fd = os.open(ranks[0].file("buffer"), os.O_RDWR)
    try:
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, PAGE, PAGE)
    except OSError as error:
        raise Skip(f"fallocate: {error.strerror}") from None
    finally:
        os.close(fd)
    run_all(ranks)
    got = np.frombuffer(ranks[1].get(), np.float32)
    expected = np.full(PAGE, 2, np.float32)
    expected[PAGE // 4:PAGE // 2] = 1
    equal(got.tolist(), expected.tolist(), "sum with a hole")


def test_a_file_that_client_shrinks_below_the_range_is_erange_at_the_next_command(mount):
    ranks = mount.job(2, size=PAGE).ranks()
    os.truncate(ranks[0].file("buffer"), 100)
    ranks[0].fails(errno.ERANGE, "count=1024")
    run_all(ranks, "count=25")


def test_the_window_of_the_own_node_is_bounded(mount):
    """Reading and writing outside the window's size fails or ends; it never reaches other memory."""
    path = mount.file("nodes/0/window")
    size = os.stat(path).st_size
    fd = os.open(path, os.O_RDONLY)
    try:
        equal(os.pread(fd, 100, size), b"", "read at the end")
        equal(os.pread(fd, 100, size + (1 << 40)), b"", "read far outside")
        if size:
            assert os.pread(fd, 100, 0), "nothing at the start"
    finally:
        os.close(fd)


@needs(seconds=180)
def test_large_mapped_buffers_sum_right(mount):
    ranks = mount.job(2, size="192M", dtype="i32").ranks()
    views = [np.memmap(rank.file("buffer"), np.int32, "r+") for rank in ranks]
    for number, view in enumerate(views):
        view[:] = number + 1
    run_all(ranks, seconds=60)
    for view in views:
        assert (view == 3).all(), "wrong sum"


def test_a_c_library_can_pin_or_lock_its_mapping(mount):
    rank = mount.job(2, size=16 * PAGE).rank(0)
    view = mapped(rank)
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(16 * PAGE)) != 0:
        raise Skip(f"mlock: {os.strerror(ctypes.get_errno())}")
    equal(libc.munlock(ctypes.c_void_p(address), ctypes.c_size_t(16 * PAGE)), 0, "munlock")
