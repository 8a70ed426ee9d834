"""Jobs, ranks and their configuration: names, what may be said when, and who may leave."""
import contextlib
import errno
import os

from harness import (Actor, Job, contains, equal, fails, needs, read, run_all, values, wait_until, write)

TRUNCATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def refused(job, lines, expected=errno.EINVAL):
    fails(expected, write, f"{job.path}/config", lines)


# --- config -----------------------------------------------------------------------------------------------

def test_a_new_job_has_the_defaults_of_the_manual(mount):
    job = mount.job(None)
    config = job.config()
    assert "world" not in config, config
    for key, value in {"dtype": "f32", "op": "sum", "timeout": "30", "size": "0", "depth": "64", "verify": "none",
                       "linger": "3600"}.items():
        equal(config[key], value, key)
    assert {"wire", "memory"} <= config.keys(), config


def test_what_config_shows_may_be_written_back(mount):
    job = mount.job(3, dtype="bf16", op="max", timeout=2.5, size="4K", depth=7, linger="never")
    text = job.read("config")
    write(f"{job.path}/config", text, TRUNCATE)
    equal(job.read("config"), text, "config")


def test_both_spellings_and_size_suffixes_are_taken(mount):
    job = mount.job(None)
    write(f"{job.path}/config", "world=4\ndtype = f64\n  timeout  =  12  \nsize=1M\ndepth = 3")
    config = job.config()
    equal([config[key] for key in ("world", "dtype", "timeout", "depth")], ["4", "f64", "12", "3"], "values")
    rank = job.rank(0)
    equal(os.stat(rank.file("buffer")).st_size, 1 << 20, "size of a new buffer")
    for text, size in (("2K", 2048), ("1G", 1 << 30), ("77", 77)):
        job = mount.job(2, size=text, memory="4G")
        equal(os.stat(job.rank(0).file("buffer")).st_size, size, f"size={text}")


def test_a_write_is_taken_whole_or_not_at_all(mount):
    job = mount.job(2)
    before = job.read("config")
    for lines in ("world=3\ndtype=f33\n", "world=3\nfoo=1\n", "timeout=5\nworld\n", "world=3\nsize=-1\n"):
        refused(job, lines)
        equal(job.read("config"), before, f"config after {lines!r}")


def test_bad_values_are_refused(mount):
    job = mount.job(2)
    before = job.read("config")
    for line in ("world=", "world=x", "world=2x", "world=-1", "world=1.5", "dtype=f31", "dtype=F32", "op=mean", "op=",
                 "timeout=abc", "timeout=-1", "timeout=nan", "size=4Q", "size=K", "depth=x", "verify=maybe", "wire=i8",
                 "linger=sometimes", "memory=much", "=3", "world", "colour=blue", "world=2 dtype=f32", "world=2\0"):
        refused(job, line + "\n")
    for line in ("world=0", "world=99999999999999999999", "timeout=0", "depth=0", "depth=99999999999"):
        refused(job, line + "\n", (errno.EINVAL, errno.ERANGE))
    equal(job.read("config"), before, "config")


def test_a_write_that_is_too_long_is_refused(mount):
    job = mount.job(2)
    refused(job, "timeout=3\n" + "#" * 100000, (errno.EINVAL, errno.E2BIG, errno.EFBIG))
    equal(job.config()["timeout"], "30", "timeout")


def test_writing_assigns_and_never_replaces(mount):
    job = mount.job(3, dtype="f64", timeout=9)
    write(f"{job.path}/config", "op=max\n", TRUNCATE)
    config = job.config()
    equal([config[key] for key in ("world", "dtype", "timeout", "op")], ["3", "f64", "9", "max"], "config")
    os.close(os.open(f"{job.path}/config", TRUNCATE))
    os.truncate(f"{job.path}/config", 0)
    equal(job.config(), config, "config after truncation alone")


def test_an_editor_may_rewrite_the_file(mount):
    """As vim does: read all, O_TRUNC, write all, fsync."""
    job = mount.job(3)
    text = job.read("config").replace("timeout = 30", "timeout = 45")
    fd = os.open(f"{job.path}/config", TRUNCATE)
    os.write(fd, text.encode())
    os.fsync(fd)
    os.close(fd)
    equal((job.config()["timeout"], job.config()["world"]), ("45", "3"), "timeout, world")


def test_config_is_frozen_once_a_rank_has_joined(mount):
    job = mount.job(2, timeout=9)
    job.rank(0)
    for line in ("world=3", "dtype=f64", "op=max", "timeout=10", "size=1K", "depth=3"):
        refused(job, line + "\n", errno.EBUSY)
    refused(job, "world=2\ndtype=f64\n", errno.EBUSY)
    equal(job.config()["dtype"], "f32", "dtype")


def test_equal_values_are_fine_when_frozen(mount):
    job = mount.job(2, dtype="bf16", timeout=9, size="64K")
    job.rank(0)
    for lines in ("world=2\n", "dtype = bf16\ntimeout=9\nworld=2\n", "timeout=9.0\n", "size=65536\n", "op=sum\n"):
        write(f"{job.path}/config", lines)
    write(f"{job.path}/config", job.read("config"), TRUNCATE)
    job.rank(1)


def test_a_job_nobody_is_in_may_be_configured_again(mount):
    job = mount.job(2)
    rank = job.rank(0)
    os.rmdir(rank.path)
    write(f"{job.path}/config", "world=3\n")
    equal(job.config()["world"], "3", "world")


def test_every_rank_of_a_script_may_run_the_same_lines(mount):
    actors = [Actor() for _ in range(4)]
    calls = [actor.begin(join_like_a_script, mount.file("jobs/script"), number)
             for number, actor in enumerate(actors)]
    for call in calls:
        call.result()
    equal(sorted(os.listdir(mount.file("jobs/script/ranks"))), ["0", "1", "2", "3"], "ranks")


def join_like_a_script(job, rank):
    for path in (job, None, f"{job}/ranks/{rank}"):
        try:
            if path:
                os.mkdir(path)
            else:
                write(f"{job}/config", "world=4\ndtype=f32\nop=avg\n")
        except FileExistsError:
            pass


# --- names and directories --------------------------------------------------------------------------------

def test_job_names_of_the_manual_are_taken(mount):
    for name in ("a", "Z", "0", "job.1", "_x", "-", "a-b_c.d", "...", ".hidden", "x" * 64):
        os.mkdir(mount.file("jobs", name))
        contains(os.listdir(mount.file("jobs")), name)


def test_other_job_names_are_refused(mount):
    for name in ("x" * 65, "a b", "a=b", "a:b", "ä", "a\nb", "a,b", "~", "x" * 255):
        fails((errno.EINVAL, errno.ENAMETOOLONG), os.mkdir, mount.file("jobs", name))
    equal(os.listdir(mount.file("jobs")), [], "jobs")


def test_mkdir_of_a_job_that_exists_says_so(mount):
    job = mount.job(2)
    fails(errno.EEXIST, os.mkdir, job.path)


def test_joining_before_world_is_set_gives_eagain(mount):
    job = mount.job(None)
    fails(errno.EAGAIN, os.mkdir, f"{job.path}/ranks/0")
    job.configure("world=1\n")
    job.rank(0)


def test_rank_names_are_decimal_and_below_world(mount):
    job = mount.job(3)
    for name in ("3", "4", "100", "99999999999999999999", "-1", "x", "1x", "0x1", "01", "00", "+1", "1.0", "x" * 65):
        fails((errno.EINVAL, errno.ERANGE, errno.ENAMETOOLONG), os.mkdir, f"{job.path}/ranks/{name}")
    for name in ("0", "1", "2"):
        os.mkdir(f"{job.path}/ranks/{name}")


def test_a_rank_that_exists_says_so(mount):
    job = mount.job(2)
    job.rank(0)
    fails(errno.EEXIST, os.mkdir, f"{job.path}/ranks/0")


def test_a_job_with_ranks_cannot_be_removed(mount):
    job = mount.job(2)
    rank = job.rank(0)
    fails(errno.EBUSY, os.rmdir, job.path)
    os.rmdir(rank.path)
    os.rmdir(job.path)
    equal(os.listdir(mount.file("jobs")), [], "jobs")


def test_a_rank_in_an_operation_cannot_be_removed(mount):
    job = mount.job(2)
    ranks = job.ranks()
    waiting = ranks[0].begin("count=0")
    mount.wait_parked()
    fails(errno.EBUSY, os.rmdir, ranks[0].path)
    ranks[1].run("count=0")
    waiting.result()
    os.rmdir(ranks[0].path)


def test_rmdir_works_although_files_are_in_it(mount):
    job = mount.job(2)
    rank = job.rank(0)
    assert os.listdir(rank.path)
    os.rmdir(rank.path)
    os.rmdir(job.path)


def test_descriptors_of_a_removed_rank_give_enodev(mount):
    job = mount.job(2, size=64)
    rank = job.rank(0)
    trigger = os.open(rank.file("allreduce"), os.O_RDWR)
    queue = os.open(rank.file("barrier"), os.O_RDWR | os.O_NONBLOCK)
    os.rmdir(rank.path)
    fails(errno.ENODEV, os.write, trigger, b"\n")
    fails(errno.ENODEV, os.write, queue, b"\n")
    os.mkdir(rank.path)
    fails(errno.ENODEV, os.write, trigger, b"\n")
    fails(errno.ENODEV, os.read, queue, 100)
    os.close(trigger)
    os.close(queue)


def test_descriptors_of_a_removed_job_give_enodev(mount):
    job = mount.job(2)
    config = os.open(f"{job.path}/config", os.O_RDWR)
    os.rmdir(job.path)
    fails(errno.ENODEV, os.write, config, b"world=3\n")
    os.mkdir(job.path)
    fails(errno.ENODEV, os.write, config, b"world=3\n")
    assert "world" not in values(read(f"{job.path}/config")), "the old descriptor reached the new job"
    os.close(config)


def test_every_incarnation_has_a_new_inode_number(mount):
    path, seen = mount.file("jobs/again"), set()
    for _ in range(20):
        os.mkdir(path)
        write(f"{path}/config", "world=1\n")
        os.mkdir(f"{path}/ranks/0")
        numbers = {os.stat(f"{path}/{name}").st_ino for name in (".", "config", "ranks", "ranks/0", "ranks/0/buffer")}
        assert len(numbers) == 5 and not numbers & seen, "an inode number came back"
        seen |= numbers
        os.rmdir(f"{path}/ranks/0")
        os.rmdir(path)


def test_a_removed_rank_may_join_again_and_work(mount):
    job = mount.job(2)
    ranks = job.ranks()
    run_all(ranks, "count=0")
    ranks[0].close()
    os.rmdir(ranks[0].path)
    ranks[0] = job.rank(0)
    run_all(ranks, "count=0")


def test_a_directory_left_by_a_dead_process_is_taken_over(mount):
    """mkdir says EEXIST, and opening a trigger makes the rank one's own."""
    job = mount.job(2)
    ranks = job.ranks()
    run_all(ranks, "count=0")
    ranks[0].actor.kill()
    heir = Actor()
    fails(errno.EEXIST, heir.call, os.mkdir, ranks[0].path)
    fd = heir.call(os.open, ranks[0].file("allreduce"), os.O_RDWR)
    call = heir.begin(os.write, fd, b"count=0\n")
    ranks[1].run("count=0")
    call.result()


def test_a_directory_that_is_held_open_lists_what_is_there_when_read_again(mount):
    fd = os.open(mount.file("jobs"), os.O_RDONLY)
    equal(os.listdir(fd), [], "before")
    for number in range(300):
        os.mkdir(mount.file("jobs", number))
    equal(len(os.listdir(fd)), 300, "jobs")
    for number in range(299):
        os.rmdir(mount.file("jobs", number))
    equal(os.listdir(fd), ["299"], "after")
    os.close(fd)


def test_the_current_directory_may_be_a_removed_job(mount):
    job = mount.job(2)
    actor = Actor()
    actor.call(os.chdir, job.path)
    os.rmdir(job.path)
    fails((errno.ENOENT, errno.ENODEV), actor.call, os.listdir, f"{job.path}")
    actor.call(os.chdir, "/")


def test_sixty_four_ranks_join_one_job(mount):
    job = mount.job(64)
    actor = Actor()
    ranks = [job.rank(number, actor) for number in range(64)]
    equal(sorted(map(int, os.listdir(f"{job.path}/ranks"))), list(range(64)), "ranks")
    for rank in ranks:
        os.rmdir(rank.path)
    os.rmdir(job.path)


@needs(options=("-o", "memory=64M"))
def test_size_and_memory_limits_of_a_job_are_checked_when_written(mount):
    job = mount.job(2)
    refused(job, "memory=1T\n", (errno.EINVAL, errno.ERANGE, errno.ENOSPC))
    refused(job, "size=1T\n", (errno.EINVAL, errno.ERANGE, errno.ENOSPC))
    equal(job.config()["size"], "0", "size")


def test_a_job_without_participants_is_removed_after_linger(mount):
    job = mount.job(2, linger=2)
    rank = job.rank(0)
    rank.open()
    rank.actor.kill()
    wait_until(lambda: job.name not in os.listdir(mount.file("jobs")), "the job is gone")
    contains(mount.read("events"), job.name)


def test_a_job_that_lingered_is_not_found_once_events_say_it_is_removed(mount):
    job = mount.job(2, linger=2)
    rank = job.rank(0)
    rank.open()
    os.stat(f"{job.path}/ranks")
    rank.close()
    with open(mount.file("events"), "rb", buffering=0) as events:
        def looked_at_and_removed():
            with contextlib.suppress(FileNotFoundError):
                os.stat(f"{job.path}/ranks")  # whatever the kernel may keep of the path, it keeps now
            return b"removed" in events.read()
        wait_until(looked_at_and_removed, "events say that the job is removed")
    fails(errno.ENOENT, os.stat, job.path)
    fails(errno.ENOENT, os.stat, f"{job.path}/ranks")


def test_a_job_with_a_live_participant_outlives_linger(mount):
    short = mount.job(2, linger=2)
    rank = short.rank(0)
    rank.open()
    idle = mount.job(2, linger=2.2)
    wait_until(lambda: idle.name not in os.listdir(mount.file("jobs")), "the idle job is gone")
    contains(os.listdir(mount.file("jobs")), short.name)


def test_a_refused_join_leaves_a_sentence_in_events(mount):
    job = mount.job(None)
    fails(errno.EAGAIN, os.mkdir, f"{job.path}/ranks/0")
    contains(mount.read("events"), f"jobs/{job.name} ranks: EAGAIN", "world=N")
    job.configure("world=2\n")
    fails(errno.EINVAL, os.mkdir, f"{job.path}/ranks/2")
    contains(mount.read("events"), "below world, which is 2")


def test_a_user_who_floods_events_does_not_push_out_the_others(mount):
    lines = mount.read("events").splitlines()
    user = Actor(1001)
    job = Job(mount, 2, owner=user)
    user.call(refuse_often, f"{job.path}/config", 8000)
    wait_until(lambda: "left out" in mount.read("events"), "events say that lines are left out")
    after = mount.read("events").splitlines()
    equal(after[:len(lines)], lines, "the first lines")
    assert len(after) < 4000, f"{len(after)} lines"
    mount.job(2)  # another user's
    contains(mount.read("events").splitlines()[-1], "made")


def refuse_often(path, times):
    """For an actor: writes a bad setting again and again."""
    fd = os.open(path, os.O_WRONLY)
    for _ in range(times):
        fails(errno.EINVAL, os.write, fd, b"wurld=3\n")
    os.close(fd)


def test_a_refused_config_leaves_a_sentence_in_events(mount):
    """What bad input gets is an errno and a sentence; a config has no status file, so events holds it."""
    job = mount.job(2)
    refused(job, "wurld=3\n")
    wait_until(lambda: "wurld" in mount.read("events"), "events name the key")
