"""Two users: who may see, join, stop and change what."""
import errno
import os
import stat

import numpy as np

from harness import (NOBODY, Actor, Job, contains, equal, fails, read, result_words, run_all, write)

ALICE, BOB = 1001, 1002
DENIED = (errno.EACCES, errno.EPERM)


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def alices(mount, world=2, **config):
    """Alice, and a job of hers with rank 0 joined."""
    alice = Actor(ALICE)
    job = Job(mount, world, owner=alice, size=64, **config)
    return alice, job, job.rank(0, alice)


def test_every_user_may_use_the_mount_of_root(mount):
    for uid in (ALICE, NOBODY):
        actor = Actor(uid)
        job = Job(mount, 1, owner=actor, size=16)
        rank = job.rank(0, actor)
        rank.run("op=sum")
        for name in ("README", "version", "config", "stats", "metrics", "health", "events", "topology"):
            assert actor.call(read, mount.file(name)), name


def test_the_modes_are_those_of_the_manual(mount):
    equal(oct(mode_of(mount.file("jobs"))), oct(0o1777), "jobs")
    alice, job, rank = alices(mount)
    equal(oct(mode_of(job.path)), oct(0o700), "a new job")
    equal(oct(mode_of(f"{job.path}/ranks")), oct(0o700), "ranks, masked by the job")
    for name, kind in (("buffer", 0o600), ("allreduce", 0o600), ("barrier", 0o600), ("status", 0o400)):
        equal(oct(mode_of(rank.file(name))), oct(kind), f"{name}, masked by the job")
    equal(oct(mode_of(f"{job.path}/stats")), oct(0o400), "stats of the job")
    os.chmod(job.path, 0o755)
    equal(oct(mode_of(rank.file("buffer"))), oct(0o644), "buffer under 0755")
    equal(oct(mode_of(f"{job.path}/stats")), oct(0o444), "stats under 0755")
    os.chmod(job.path, 0o777)
    equal(oct(mode_of(f"{job.path}/ranks")), oct(0o777), "ranks under 0777")
    equal(oct(mode_of(rank.file("allreduce"))), oct(0o666), "allreduce under 0777")


def test_everything_in_a_job_belongs_to_who_made_it(mount):
    alice, job, rank = alices(mount)
    for directory, names, files in os.walk(job.path):
        for path in (directory, *(os.path.join(directory, name) for name in files)):
            info = os.lstat(path)
            equal((info.st_uid, info.st_gid), (ALICE, ALICE), f"owner of {path}")


def test_another_user_cannot_see_into_a_job(mount):
    alice, job, rank = alices(mount)
    bob = Actor(BOB)
    fails(DENIED, bob.call, os.listdir, job.path)
    for name in ("config", "members", "stats", "trace", "ranks"):
        fails(DENIED, bob.call, os.open, f"{job.path}/{name}", os.O_RDONLY)
    for name in ("buffer", "status", "allreduce"):
        fails(DENIED, bob.call, os.open, rank.file(name), os.O_RDONLY)


def test_another_user_cannot_join_write_or_remove_a_job(mount):
    alice, job, rank = alices(mount)
    bob = Actor(BOB)
    fails(DENIED, bob.call, os.mkdir, f"{job.path}/ranks/1")
    fails(DENIED, bob.call, os.open, rank.file("allreduce"), os.O_RDWR)
    fails(DENIED, bob.call, os.open, rank.file("buffer"), os.O_RDWR)
    fails(DENIED, bob.call, write, f"{job.path}/config", "world=3\n")
    fails(DENIED, bob.call, write, f"{job.path}/members", "drop=0\n")
    fails(DENIED, bob.call, os.rmdir, rank.path)
    fails(DENIED, bob.call, os.chmod, job.path, 0o777)
    fails(DENIED, bob.call, os.truncate, rank.file("buffer"), 0)
    rank.actor.call(os.rmdir, rank.path)
    fails(DENIED, bob.call, os.rmdir, job.path)
    alice.call(os.rmdir, job.path)


def test_another_users_name_of_a_job_is_taken(mount):
    alice, job, rank = alices(mount)
    fails(errno.EEXIST, Actor(BOB).call, os.mkdir, job.path)


def test_chmod_lets_others_in_and_out_again_at_once(mount):
    alice, job, rank = alices(mount)
    bob = Actor(BOB)
    fails(DENIED, bob.call, read, f"{job.path}/stats")
    alice.call(os.chmod, job.path, 0o755)
    assert bob.call(read, f"{job.path}/stats")
    assert bob.call(read, rank.file("status")) is not None
    fails(DENIED, bob.call, os.open, rank.file("buffer"), os.O_RDWR)
    fails(DENIED, bob.call, os.open, rank.file("allreduce"), os.O_WRONLY)
    fails(DENIED, bob.call, os.mkdir, f"{job.path}/ranks/1")
    alice.call(os.chmod, job.path, 0o700)
    fails(DENIED, bob.call, read, f"{job.path}/stats")


def test_an_open_job_takes_ranks_of_two_users(mount):
    alice, job, one = alices(mount)
    alice.call(os.chmod, job.path, 0o777)
    bob = Actor(BOB)
    two = job.rank(1, bob)
    bob.call(write_ones, two.file("buffer"))
    alice.call(write_ones, one.file("buffer"))
    run_all([one, two])
    equal(one.get(4), np.float32(2).tobytes(), "sum")


def write_ones(path):
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, np.ones(16, np.float32).tobytes(), 0)
    os.close(fd)


def test_a_group_may_share_a_job(mount):
    alice, job, one = alices(mount)
    alice.call(os.chmod, job.path, 0o770)
    colleague = Actor(BOB, ALICE)
    assert colleague.call(os.listdir, job.path)
    two = job.rank(1, colleague)
    run_all([one, two], "count=0")
    fails(DENIED, Actor(BOB).call, os.listdir, job.path)


def test_supplementary_groups_count(mount):
    alice, job, _ = alices(mount)
    alice.call(os.chmod, job.path, 0o750)
    root_in_disguise = Actor()
    root_in_disguise.call(become, BOB, [ALICE])
    assert root_in_disguise.call(os.listdir, job.path)


def become(uid, groups):
    os.setgroups(groups)
    os.setgid(uid)
    os.setuid(uid)


def test_only_root_may_chown(mount):
    alice, job, rank = alices(mount)
    fails(DENIED, alice.call, os.chown, job.path, BOB, BOB)
    fails(DENIED, Actor(BOB).call, os.chown, job.path, BOB, BOB)
    os.chown(job.path, BOB, BOB)
    equal(os.stat(rank.file("buffer")).st_uid, BOB, "owner of a buffer")
    fails(DENIED, alice.call, os.listdir, job.path)
    assert Actor(BOB).call(os.listdir, job.path)


def test_modes_of_fixed_files_cannot_be_changed(mount):
    alice, job, rank = alices(mount)
    for path in (mount.file("stats"), mount.file("jobs"), f"{job.path}/stats", rank.file("buffer"),
                 rank.file("allreduce")):
        fails((errno.EPERM, errno.EACCES), Actor(NOBODY).call, os.chmod, path, 0o777)
    fails((errno.EPERM, errno.EACCES), os.chmod, mount.file("stats"), 0o666)


def test_setuid_bits_are_not_kept(mount):
    alice, job, _ = alices(mount)
    try:
        alice.call(os.chmod, job.path, 0o7777)
    except OSError as error:
        assert error.errno in (errno.EPERM, errno.EINVAL), error
    assert not os.stat(job.path).st_mode & (stat.S_ISUID | stat.S_ISGID)


def test_the_mount_is_noexec_nosuid_and_nodev(mount):
    with open("/proc/self/mountinfo") as table:
        line = next(line for line in table if f" {mount.path} " in line)
    contains(line, "noexec", "nosuid", "nodev", "allow_other", "default_permissions", "fuse.fabricfs")
    flags = os.statvfs(mount.path).f_flag
    assert flags & os.ST_NOSUID and flags & os.ST_NOEXEC and flags & os.ST_NODEV


def test_jobs_of_different_users_may_run_side_by_side(mount):
    pairs = []
    for uid in (ALICE, BOB):
        one, two = Actor(uid), Actor(uid)
        job = Job(mount, 2, owner=one, size=64)
        pairs.append([job.rank(0, one), job.rank(1, two)])
    for ranks in pairs:
        for rank in ranks:
            rank.actor.call(write_ones, rank.file("buffer"))
        run_all(ranks)
        equal(ranks[0].get(4), np.float32(2).tobytes(), "sum")


def test_events_do_not_tell_other_users_what_is_inside(mount):
    """events is 0444: names and pids are there for operators; buffers and commands of a job are not."""
    alice, job, rank = alices(mount)
    rank.fails(errno.EINVAL, "tag=sesame op=nonsense")
    assert "sesame" not in mount.read("events")


def test_a_users_sticky_jobs_directory_protects_the_jobs(mount):
    alice, job, rank = alices(mount)
    alice.call(os.rmdir, rank.path)
    alice.call(os.chmod, job.path, 0o777)
    fails(DENIED, Actor(BOB).call, os.rmdir, job.path)


def test_a_rank_directory_of_another_user_in_an_open_job_is_not_taken_over(mount):
    """A job 0777 is shared as the job's owner wanted: files below have the job's owner and mode, so opening works."""
    alice, job, one = alices(mount)
    alice.call(os.chmod, job.path, 0o777)
    fails(errno.EEXIST, Actor(BOB).call, os.mkdir, one.path)


def test_a_setuid_change_after_opening_does_not_take_the_descriptor_away(mount):
    actor = Actor()
    job = Job(mount, 1, owner=actor, size=16)
    rank = job.rank(0, actor)
    rank.open()
    actor.call(become, NOBODY, [])
    rank.run("op=sum")
    equal(result_words(rank.status().splitlines()[-1])["result"], "ok", "result")
