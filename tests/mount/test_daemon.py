"""The daemon: starting, stopping, refusing, and staying responsive while everybody waits."""
import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np

from harness import (MODE_OPTIONS, NOBODY, SOON, Actor, Job, Mount, Skip, connections, contains, die_with_parent, equal,
                     fails, mounts_below, needs, process_state, read, read_bytes, run_all, sh, values, wait_until,
                     within, write)


def program(env, *arguments, **kwargs):
    return subprocess.run([env.program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20,
                          check=False, text=True, **kwargs)


# --- the command line ---------------------------------------------------------------------------------------

@needs(mount=False)
def test_help_and_version_print_and_succeed(env):
    for option in ("--help", "-h"):
        done = program(env, option)
        equal((done.returncode, done.stderr), (0, ""), option)
        contains(done.stdout, "MOUNTPOINT", "--help", "-f", "memory")
    for option in ("--version", "-V"):
        done = program(env, option)
        equal(done.returncode, 0, option)
        contains(done.stdout, "fabricfs")


@needs(mount=False)
def test_bad_arguments_are_one_line_and_exit_2(env):
    point = f"{env.directory}/point"
    os.mkdir(point)
    for arguments in ([], ["--nonsense", point], ["-o", "nonsense=1", point], ["-o", "memory=lots", point],
                      ["--memory", "x", point], [point, point, point], ["-o", "buffer=sideways", point],
                      ["--config", "/nonexistent", point], ["-o", "memory", point]):
        done = program(env, *arguments)
        equal(done.returncode, 2, f"status of {arguments}")
        equal(done.stderr.count("\n"), 1, f"lines on stderr of {arguments}: {done.stderr!r}")
        equal(done.stdout, "", "stdout")
    equal(mounts_below(env.directory), [], "mounts")


@needs(mount=False)
def test_a_mountpoint_that_is_none_is_refused(env):
    file = f"{env.directory}/file"
    with open(file, "w"):
        pass
    for path in ("/nonexistent/x", file):
        done = program(env, path)
        assert done.returncode != 0, f"{path} was mounted"
        equal(done.stderr.count("\n"), 1, f"lines on stderr: {done.stderr!r}")
        contains(done.stderr, path)


@needs(mount=False)
def test_a_kernel_that_the_machine_lacks_is_refused_with_those_it_has(env):
    point = f"{env.directory}/point"
    os.mkdir(point)
    done = program(env, "--kernel", "abacus", point)
    equal((done.returncode, done.stderr.count("\n")), (2, 1), f"status and lines of {done.stderr!r}")
    contains(done.stderr, "--kernel", "abacus", "portable")
    with open("/proc/cpuinfo") as cpus:
        lacks = "avx512f" not in cpus.read()
    if lacks:
        done = program(env, "--kernel", "avx512", point)
        equal((done.returncode, done.stderr.count("\n")), (1, 1), f"status and lines of {done.stderr!r}")
        contains(done.stderr, "avx512", "portable")


@needs(mount=False)
def test_a_bad_configuration_names_its_line_and_key(env):
    point, file = f"{env.directory}/point", f"{env.directory}/conf"
    os.mkdir(point)
    for text, line, key in (("[fabric]\nmemory = lots\n", "2", "memory"), ("[fabric]\n\n\ncolour = blue\n", "4", "colour"),
                            ("[node 0]\nlanding = cloud:9\n", "2", "landing"),
                            ("[wrong]\nx = 1\n", "1", "wrong"), ("[fabric]\nname\n", "2", "name")):
        with open(file, "w") as conf:
            conf.write(text)
        done = program(env, "--config", file, point)
        equal(done.returncode, 2, f"status of {text!r}")
        equal(done.stderr.count("\n"), 1, f"lines on stderr: {done.stderr!r}")
        contains(done.stderr, line, key)


@needs(mount=False)
def test_a_configuration_file_is_used_and_config_says_where_each_setting_came_from(env):
    file = f"{env.directory}/conf"
    with open(file, "w") as conf:
        conf.write("[fabric]\nmemory = 64M\nworkers = 1\n")
    mount = Mount(env, ("--config", file, "-o", "workers=2"))
    text = mount.read("config")
    line = {name: next(line for line in text.splitlines() if re.match(rf"{name}\b", line)) for name in
            ("memory", "workers")}
    contains(line["memory"], "64M", file)
    contains(line["workers"], "2")
    assert file not in line["workers"], line
    mount.finish()


@needs(mount=False)
def test_the_background_daemon_is_ready_when_the_command_returns(env):
    point = f"{env.directory}/point"
    os.mkdir(point)
    options = ("-o", "buffer=coherent") if env.mode == "coherent" else ()
    done = program(env, *options, point)
    equal(done.returncode, 0, f"status, {done.stderr}")
    contains(read(f"{point}/version"), "fabricfs")
    daemon = daemon_of(point)
    with open(f"/proc/{daemon}/stat") as stat:
        words = stat.read().rsplit(") ", 1)[1].split()
    equal(words[3], str(daemon), "session of its own")
    for fd in "012":
        equal(os.readlink(f"/proc/{daemon}/fd/{fd}"), "/dev/null", f"descriptor {fd}")
    equal(os.readlink(f"/proc/{daemon}/cwd"), "/", "directory")
    os.kill(daemon, signal.SIGTERM)
    wait_until(lambda: not os.path.ismount(point), "the mount is gone")
    wait_until(lambda: process_state(daemon) in ("", "Z"), "the daemon is gone")


def daemon_of(point):
    """The pid whose arguments end with this mount point."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")[:-1]
            if words and words[-1].decode() == point and b"fabricfs" in words[0]:
                return int(pid)
    raise AssertionError(f"no daemon of {point}")


@needs(mount=False)
def test_it_starts_where_the_ends_of_children_are_ignored(env):
    point = f"{env.directory}/point"
    os.mkdir(point)
    command = subprocess.Popen([env.program, *MODE_OPTIONS[env.mode], point],
                               preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    equal(command.wait(20), 0, "status")
    contains(read(f"{point}/version"), "fabricfs")
    daemon = daemon_of(point)
    subprocess.run(["umount", point], check=True)
    wait_until(lambda: process_state(daemon) in ("", "Z"), "the daemon is gone")


@needs(mount=False)
def test_a_daemon_starts_without_standard_descriptors(env):
    os.mkdir(f"{env.directory}/here")
    started = subprocess.Popen(f"exec {env.program} {env.directory}/here <&- >&- 2>&-", shell=True)
    equal(started.wait(20), 0, "status")
    contains(read(f"{env.directory}/here/version"), "fabricfs")
    daemon = daemon_of(f"{env.directory}/here")
    subprocess.run(["umount", f"{env.directory}/here"], check=True)
    wait_until(lambda: process_state(daemon) in ("", "Z"), "the daemon is gone")


@needs(mount=False)
def test_a_relative_mountpoint_works(env):
    os.mkdir(f"{env.directory}/here")
    done = program(env, "here", cwd=env.directory)
    equal(done.returncode, 0, f"status, {done.stderr}")
    contains(read(f"{env.directory}/here/version"), "fabricfs")
    daemon = daemon_of("here")
    subprocess.run(["umount", f"{env.directory}/here"], check=True)
    wait_until(lambda: process_state(daemon) in ("", "Z"), "the daemon is gone")


# --- stopping ----------------------------------------------------------------------------------------------

def test_sigterm_unmounts_and_ends_with_status_0(mount):
    equal(mount.stop(), 0, "status")
    assert not os.path.ismount(mount.path)
    mount.process = None


def test_sigint_does_too(mount):
    mount.process.send_signal(signal.SIGINT)
    equal(mount.process.wait(10), 0, "status")
    assert not os.path.ismount(mount.path)
    mount.process = None


def test_unmounting_from_outside_ends_the_daemon(mount):
    subprocess.run(["umount", mount.path], check=True)
    equal(mount.process.wait(10), 0, "status")
    mount.process = None


def test_sigterm_with_open_files_and_a_parked_writer_is_bounded_and_answers_eshutdown(mount):
    ranks = mount.job(3, size=4096).ranks()
    waiting = ranks[0].begin()
    queue = ranks[1].actor.call(os.open, ranks[1].file("allreduce"), os.O_RDWR | os.O_NONBLOCK)
    ranks[1].actor.call(os.write, queue, b"\n")
    inside, mapper = Actor(), Actor()
    inside.call(os.chdir, ranks[2].path)
    mapper.call(map_for_later, ranks[2].file("buffer"))
    events = open(mount.file("events"), "rb", buffering=0)
    mount.wait_parked()
    equal(mount.stop(), 0, "status")
    waiting.fails((errno.ESHUTDOWN, errno.ENOTCONN, errno.ECONNABORTED))
    assert not os.path.ismount(mount.path)
    held = mount.said().split("still held by pid ", 1)[1].split("\n", 1)[0].split()
    for pid in (inside.pid, mapper.pid, ranks[1].actor.pid, os.getpid()):
        assert str(pid) in held, f"{pid} holds something, too: {held}"
    fails((errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV, errno.ESHUTDOWN), events.read)
    mount.process = None
    mount.start()
    run_all(mount.job(2, size=64).ranks())


def map_for_later(path):
    """For an actor: holds a mapping of the buffer until it ends, and no descriptor (Python's own mmap keeps one)."""
    mmap = ctypes.CDLL(None).mmap
    mmap.restype, mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    fd = os.open(path, os.O_RDWR)
    assert mmap(None, 4096, 3, 1, fd, 0) != ctypes.c_void_p(-1).value
    os.close(fd)


def test_a_parked_writer_gets_eshutdown_when_the_daemon_stops(mount):
    ranks = mount.job(2, size=64).ranks()
    waiting = ranks[0].begin()
    mount.wait_parked()
    equal(mount.stop(), 0, "status")
    waiting.fails(errno.ESHUTDOWN)
    mount.process = None


def ask_until_gone(path):
    """For an actor: asks for operations, whatever the answer, until the file system is gone."""
    fd = os.open(path, os.O_RDWR)
    while True:
        try:
            os.write(fd, b"op=sum\n")
        except OSError as error:
            if error.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV):
                return error.errno


def start_asking(mount):
    """Two ranks that have operations of 32 MiB under way all the time."""
    job = mount.job(2, size="32M")
    asking = [rank.actor.begin(ask_until_gone, rank.file("allreduce")) for rank in job.ranks()]
    wait_until(lambda: int(values(job.read("stats"))["allreduce_ops"]) > 1, "operations are carried out")
    return asking


def test_clients_that_go_on_asking_do_not_keep_a_daemon_from_stopping(mount):
    asking = start_asking(mount)
    equal(mount.stop(), 0, "status")
    for call in asking:
        assert call.result()
    mount.process = None


def test_a_connection_aborted_under_running_operations_is_a_failure_that_leaves_no_mount(mount):
    asking = start_asking(mount)
    with open(f"{connections()}/{mount.connection()}/abort", "w") as abort:
        abort.write("1")
    equal(mount.process.wait(10), 1, "status")
    contains(mount.said(), "aborted")
    for call in asking:
        assert call.result()
    assert not os.path.ismount(mount.path)
    mount.process = None


def test_a_buffer_that_grows_while_the_daemon_stops_is_answered(mount):
    ranks = mount.job(4).ranks()
    growing = [rank.actor.begin(os.truncate, rank.file("buffer"), 64 << 20) for rank in ranks]
    equal(mount.stop(), 0, "status")
    for call in growing:
        call.fails((0, errno.ESHUTDOWN, errno.ENOTCONN, errno.ECONNABORTED))
    mount.process = None


def test_sigpipe_does_not_end_a_daemon(mount):
    os.kill(mount.pid, signal.SIGPIPE)
    contains(mount.read("version"), "fabricfs")


# --- mounts that are dead or alive ----------------------------------------------------------------------------

@needs(mount=False)
def test_a_daemon_that_ends_late_leaves_the_mount_of_its_successor(env):
    """The kernel gives the numbers of mounts that are gone to the next ones, the lowest first; the memory for buffers
    is a mount as well."""
    other = os.path.join(env.directory, "other")
    os.mkdir(other)
    sh(f"mount -t tmpfs other {other}")
    mount = Mount(env)
    late = mount.process
    os.kill(late.pid, signal.SIGSTOP)
    equal(ctypes.CDLL(None).umount2(mount.path.encode(), 0), 0, "umount, which asks the daemon nothing")
    sh(f"umount {other}")
    mount.start()
    os.kill(late.pid, signal.SIGCONT)
    equal(late.wait(20), 0, "status of the first daemon")
    contains(mount.read("version"), "fabricfs")
    mount.finish()


def test_a_dead_mount_answers_at_once_and_is_replaced(mount):
    ranks = mount.job(2, size=64).ranks()
    waiting = ranks[0].begin()
    mount.wait_parked()
    mount.process.kill()
    mount.process.wait()
    waiting.fails((errno.ENOTCONN, errno.ECONNABORTED))
    started = time.monotonic()
    fails(errno.ENOTCONN, os.listdir, mount.path)
    within(SOON, started, "ls of a dead mount")
    for rank in ranks:
        rank.actor.kill()
    mount.process = None
    mount.start()
    equal(len(mounts_below(mount.env.directory)), 1, "mounts on the point")
    run_all(mount.job(2, size=64).ranks())


def test_a_live_mount_is_refused(mount):
    done = program(mount.env, mount.path)
    assert done.returncode != 0, "a second daemon mounted"
    equal(done.stderr.count("\n"), 1, f"lines on stderr: {done.stderr!r}")
    contains(done.stderr, mount.path)
    done = program(mount.env, "-f", mount.path)
    assert done.returncode != 0, "a second daemon mounted"
    run_all(mount.job(2, size=64).ranks())
    equal(len(mounts_below(mount.env.directory)), 1, "mounts")


@needs(mount=False)
def test_a_foreign_mount_is_not_detached(env):
    point = f"{env.directory}/point"
    os.mkdir(point)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], check=True)
    with open(f"{point}/precious", "w"):
        pass
    done = program(env, point)
    try:
        if done.returncode == 0:  # mounting above it is legal; then it must come back
            os.kill(daemon_of(point), signal.SIGTERM)
            wait_until(lambda: os.path.exists(f"{point}/precious"), "the file is back")
        assert os.path.exists(f"{point}/precious")
    finally:
        subprocess.run(["umount", point], check=True)


@needs(mount=False)
def test_twenty_starts_and_stops_leave_nothing(env):
    mount = Mount(env)
    for _ in range(20):
        mount.job(1, name="x").rank(0).actor.kill()
        mount.finish()
        mount.start()
    mount.finish()
    equal(mounts_below(env.directory), [], "mounts")


# --- other ways to mount -----------------------------------------------------------------------------------------

@needs(mount=False, tools=("mount.fuse3",))
def test_an_fstab_line_mounts(env):
    """mount(8) with the type fuse.fabricfs and the options of fstab, through mount.fuse3, which looks for the
    program in PATH."""
    point, fstab = f"{env.directory}/point", f"{env.directory}/fstab"
    os.mkdir(point)
    mode = ",buffer=coherent" if env.mode == "coherent" else ""
    config = f"{env.directory}/conf"
    with open(config, "w") as file:
        file.write("[fabric]\nname = fromfstab\n")
    with open(fstab, "w") as file:
        file.write(f"fabricfs {point} fuse.fabricfs config={config},_netdev,nofail,noatime,x-test.note=1{mode} 0 0\n")
    path = f"{os.path.dirname(env.program)}:{os.environ['PATH']}"
    link = "/usr/local/bin/fabricfs"
    made = not os.path.lexists(link) and shutil.which("fabricfs") is None
    if made:
        os.symlink(env.program, link)  # mount(8) cleans PATH
    try:
        done = subprocess.run(["mount", "-T", fstab, point], env={**os.environ, "PATH": path}, timeout=20,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        equal(done.returncode, 0, f"status of mount, {done.stdout.decode()}")
        contains(read(f"{point}/version"), "fabricfs")
        contains(read(f"{point}/config"), "fromfstab")
        with open("/proc/self/mountinfo") as table:
            line = next(line for line in table if f" {point} " in line)
        contains(line, "fuse.fabricfs", "allow_other")
        sh(f"umount {point}")
    finally:
        if made:
            os.unlink(link)
    wait_until(lambda: not os.path.ismount(point), "the mount is gone")


@needs(mount=False, modes=("coherent",), tools=("fusermount3",))
def test_an_unprivileged_user_mounts_with_fusermount3(env):
    """Without CAP_SYS_ADMIN there is no passthrough; everything else works, for this user alone."""
    if not os.stat(shutil.which("fusermount3")).st_mode & 0o4000:
        raise Skip("fusermount3 is not setuid")
    if not os.access("/dev/fuse", os.R_OK) or os.stat("/dev/fuse").st_mode & 0o006 != 0o006:
        raise Skip("/dev/fuse is for root")
    if not os.path.exists("/etc/mtab"):
        raise Skip("fusermount3 unmounts nothing without /etc/mtab")
    mount = Mount(env, uid=NOBODY)
    one, two = Actor(NOBODY), Actor(NOBODY)
    job = Job(mount, 2, owner=one, size=64)
    ranks = [job.rank(0, one), job.rank(1, two)]
    for rank in ranks:
        rank.actor.call(put_ones, rank.file("buffer"))
    run_all(ranks)
    equal(one.call(read_bytes, ranks[0].file("buffer"), 4), np.float32(2).tobytes(), "sum")
    fails(errno.EACCES, Actor(1001).call, os.listdir, mount.path)
    contains(one.call(read, mount.file("stats")), "coherent")
    mount.finish()


def put_ones(path):
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, np.ones(16, np.float32).tobytes(), 0)
    os.close(fd)


@needs(mount=False, tools=("systemd-analyze",), modes=("passthrough",))
def test_systemd_takes_the_unit_which_keeps_the_mount_visible(env):
    with open(f"{os.path.dirname(env.program)}/../utils/fabricfs.service") as shipped:
        unit = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={env.program}", shipped.read())
    assert not re.search(r"(?m)^(Private|Protect|ReadOnly|ReadWrite|Inaccessible|Bind|Root|Temporary|Dynamic)", unit), unit
    os.mkdir(f"{env.directory}/unit")
    with open(f"{env.directory}/unit/fabricfs.service", "w") as file:
        file.write(unit)
    said = subprocess.run(["systemd-analyze", "verify", "--man=no", file.name], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    equal((said.returncode, said.stdout.decode()), (0, ""), "systemd-analyze verify")


@needs(mount=False)
def test_readiness_is_told_to_systemd_after_the_mount_answers(env):
    import socket
    address = f"{env.directory}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(address)
        server.settimeout(10)
        os.environ["NOTIFY_SOCKET"] = address
        try:
            mount = Mount(env)
        finally:
            del os.environ["NOTIFY_SOCKET"]
        contains(server.recv(4096).decode(), "READY=1")
        mount.process.terminate()
        told = ""
        with contextlib.suppress(TimeoutError):
            while "STOPPING=1" not in told:
                told += server.recv(4096).decode()
        mount.process.wait(10)
        mount.process = None


def test_stats_say_the_buffer_mode_and_why(mount):
    line = next(line for line in mount.read("stats").splitlines() if line.startswith("buffer_mode"))
    contains(line, mount.mode)
    assert any("why" in other or "reason" in other for other in mount.read("stats").splitlines()), \
        "stats do not say why this mode is on"


# --- while everybody waits --------------------------------------------------------------------------------------

@needs(alone=True, seconds=90)
def test_sixty_four_parked_ranks_leave_everything_responsive(mount):
    job = mount.job(65, timeout=60)
    ranks = [job.rank(number) for number in range(64)]
    for rank in ranks:
        rank.open()
    looks = {
        "ls -lR": lambda: sh(f"ls -lR {mount.path}"), "cat stats": lambda: sh(f"cat {mount.path}/stats"),
        "cat of the job's stats": lambda: sh(f"cat {job.path}/stats"), "df": lambda: sh(f"df {mount.path}"),
        "open and close": lambda: os.close(os.open(ranks[0].file("status"), os.O_RDONLY)),
        "open and close of a trigger": lambda: os.close(os.open(ranks[0].file("allreduce"), os.O_RDONLY)),
        "mkdir and rmdir": lambda: (os.mkdir(mount.file("jobs/other")), os.rmdir(mount.file("jobs/other"))),
        "statfs": lambda: os.statvfs(mount.path)}
    undisturbed = {what: best_of_ten(look) for what, look in looks.items()}
    threads = mount.threads()
    waiting = [rank.begin("count=0") for rank in ranks]
    mount.wait_parked(64)
    for what, look in looks.items():  # ratios: the milliseconds are for bench_mount.py to show
        took, limit = best_of_ten(look), max(0.1, 3 * undisturbed[what])
        assert took < limit, f"{what} takes {took * 1000:.0f} ms, {undisturbed[what] * 1000:.0f} ms when nobody waits"
    assert mount.threads() <= threads, f"{mount.threads()} threads, {threads} before"
    last = job.rank(64)
    last.run("count=0")
    for call in waiting:
        call.result()


def test_a_path_into_a_job_in_use_costs_few_requests(mount):
    """The kernel asks again only for names and sizes that may change without its doing."""
    rank = mount.job(2).rank(0)
    rank.open()

    def requests_of_ten_looks():
        before = int(mount.stats()["requests"])
        for _ in range(10):
            os.stat(rank.file("allreduce"))
        return int(mount.stats()["requests"]) - before
    # Two a look, the name of the rank and the size, beside the two readings of stats; the job's own name now and then.
    best = min(requests_of_ten_looks() for _ in range(20))
    assert best < 40, f"{best} requests for ten looks at a trigger"


def best_of_ten(function):
    return min(timed(function) for _ in range(10))


def timed(function):
    started = time.monotonic()
    function()
    return time.monotonic() - started


def test_a_parked_rank_does_not_freeze_its_own_directory(mount):
    job = mount.job(2, size=64)
    ranks = job.ranks()
    waiting = ranks[0].begin()
    mount.wait_parked()
    started = time.monotonic()
    sh(f"ls -la {ranks[0].path}")
    sh(f"cat {ranks[0].path}/status {job.path}/members")
    sh(f"stat {ranks[0].path}/allreduce")
    os.mkdir(mount.file("jobs/another"))
    within(SOON, started, "looking around")
    ranks[1].run()
    waiting.result()


def test_open_with_o_trunc_of_a_trigger_with_a_parked_write_is_ebusy(mount):
    ranks = mount.job(2, size=64).ranks()
    waiting = ranks[0].begin()
    mount.wait_parked()
    fails(errno.EBUSY, os.open, ranks[0].file("allreduce"), os.O_WRONLY | os.O_TRUNC)
    ranks[1].run()
    waiting.result()
    os.close(os.open(ranks[0].file("allreduce"), os.O_WRONLY | os.O_TRUNC))


@needs(alone=True)
def test_an_idle_daemon_uses_no_cpu(mount):
    """Under 0.5 % of a core; the long measurement is tests/bench/bench_mount.py."""
    ranks = mount.job(2, size=64).ranks()
    run_all(ranks)
    least_cpu(mount, 2)


def operate(fd):
    """For an actor: operations one after the other, until the other rank is gone."""
    while True:
        os.write(fd, b"count=1\n")


def longest_idle_way():
    """Microseconds that an idle processor may take to come back: what all who ask for less agree on."""
    with open("/dev/cpu_dma_latency", "rb") as device:
        return int.from_bytes(device.read(4), sys.byteorder)


@needs(alone=True)
def test_processors_are_kept_awake_while_operations_follow_one_another_closely(mount):
    if mount.stats()["awake"].startswith("none"):
        raise Skip("the kernel cannot be asked")
    ranks = mount.job(2, size=64).ranks()
    equal(mount.stats()["awake"], "free", "before")
    usual = longest_idle_way()
    calls = [rank.actor.begin(operate, rank.open()) for rank in ranks]
    wait_until(lambda: longest_idle_way() <= 2 and mount.stats()["awake"] == "held", "it asks for a short way back")
    ranks[1].actor.kill()
    calls[0].fails(errno.ECONNRESET)
    wait_until(lambda: mount.stats()["awake"] == "free" and longest_idle_way() == usual, "it takes that back")


@needs(options=["-o", "awake=never"], alone=True)
def test_processors_may_sleep_where_that_is_wanted(mount):
    if not os.access("/dev/cpu_dma_latency", os.R_OK):
        raise Skip("the kernel cannot be asked")
    job, usual = mount.job(2, size=64), longest_idle_way()
    ranks = job.ranks()
    calls = [rank.actor.begin(operate, rank.open()) for rank in ranks]
    while int(values(job.read("stats"))["allreduce_ops"]) < 100:
        assert not calls[0].done() and not calls[1].done(), "a rank has ended"
        equal(longest_idle_way(), usual, "idle way")
    equal(mount.stats()["awake"], "none (not wanted)", "awake")
    ranks[1].actor.kill()
    calls[0].fails(errno.ECONNRESET)


def least_cpu(mount, seconds):
    """Of five spans the daemon spends one at rest: time that the host takes from a processor counts as used."""
    def used():
        before, end = cpu_ticks(mount.pid), time.monotonic() + seconds
        wait_until(lambda: time.monotonic() > end, "the time is over")
        return (cpu_ticks(mount.pid) - before) / os.sysconf("SC_CLK_TCK")
    spent = []
    while not spent or spent[-1] > 0.02:
        assert len(spent) < 5, f"{spent} s of CPU, each in {seconds} s"
        spent.append(used())


def cpu_ticks(pid):
    with open(f"/proc/{pid}/stat") as stat:
        words = stat.read().rsplit(") ", 1)[1].split()
    return int(words[11]) + int(words[12])


@needs(alone=True)
def test_a_waiting_operation_uses_no_cpu(mount):
    ranks = mount.job(2, size=64).ranks()
    waiting = ranks[0].begin()
    mount.wait_parked()
    least_cpu(mount, 1)
    ranks[1].run()
    waiting.result()


@needs(mount=False, alone=True, seconds=90)
def test_the_kernels_request_timeout_does_not_abort_the_mount(env):
    """With fs.fuse.max_request_timeout set, a parked request is answered before the kernel loses patience. The
    setting is the machine's, so nothing else may mount meanwhile."""
    knob = "/proc/sys/fs/fuse/max_request_timeout"
    if not os.path.exists(knob):
        raise Skip("this kernel has no request timeouts")
    before = read(knob)
    try:
        write(knob, "20")
        mount = Mount(env)
        ranks = mount.job(2, size=64, timeout=600).ranks()
        waiting = ranks[0].begin()
        waiting.fails((errno.ETIMEDOUT, errno.EAGAIN), 40)
        contains(mount.read("version"), "fabricfs")
        mount.finish()
    finally:
        write(knob, before.strip() or "0")


def refuse_often(path):
    """In a process: asks for what is refused, with an event and so a line of the log, each time."""
    for _ in range(200):
        fails(errno.EINVAL, os.mkdir, f"{path}/ranks/none")


@needs(mount=False)
def test_a_log_that_nobody_reads_holds_up_nothing_and_tells_what_it_lacks(env):
    """200 lines of the log are more than this pipe has room for."""
    point = f"{env.directory}/point"
    os.mkdir(point)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 8192)
    daemon = subprocess.Popen([env.program, "-f", *MODE_OPTIONS[env.mode], point], stderr=writer,
                              preexec_fn=die_with_parent)
    wait_until(lambda: os.path.ismount(point) and os.path.exists(f"{point}/version"), "the mount answers")
    os.mkdir(f"{point}/jobs/job")
    Actor().call(refuse_often, f"{point}/jobs/job")
    equal(read(f"{point}/events").count("a rank is a number"), 200, "refusals in events")
    logged = os.read(reader, 65536).decode()
    assert logged.endswith("\n") and logged.count("a rank is a number") < 200, logged
    os.rmdir(f"{point}/jobs/job")
    said = ""
    while "removed" not in said or not said.endswith("\n"):
        said += os.read(reader, 65536).decode()
    left_out, removed = said.splitlines()
    equal(left_out, f"{200 - logged.count('a rank is a number')} lines are left out here: nobody took them", "word")
    contains(removed, "jobs/job removed")
    daemon.terminate()
    equal(daemon.wait(20), 0, "status")


def test_sigstop_of_the_daemon_delays_and_sigcont_repairs(mount):
    ranks = mount.job(2, size=64).ranks()
    for rank in ranks:
        rank.open()
    os.kill(mount.pid, signal.SIGSTOP)
    calls = [rank.begin() for rank in ranks]
    assert not any(call.done() for call in calls)
    os.kill(mount.pid, signal.SIGCONT)
    for call in calls:
        call.result()


def test_a_bind_mount_shows_the_same_jobs(mount):
    other = f"{mount.env.directory}/bound"
    os.mkdir(other)
    subprocess.run(["mount", "--bind", mount.path, other], check=True)
    try:
        job = mount.job(2, size=64)
        equal(os.listdir(f"{other}/jobs"), [job.name], "jobs through the bind mount")
    finally:
        subprocess.run(["umount", other], check=True)


@needs(mount=False)
def test_a_container_keeps_up_with_a_restart_when_propagation_reaches_it(env):
    """As a container sees it whose volume is `rslave`, and one whose volume is private, which keeps the dead mount."""
    volume = f"{env.directory}/volume"
    os.mkdir(volume)
    subprocess.run(["mount", "--bind", volume, volume], check=True)
    subprocess.run(["mount", "--make-shared", volume], check=True)
    containers = {}
    try:
        mount = Mount(env, path=f"{volume}/fabric")
        for propagation in ("slave", "private"):
            containers[propagation] = subprocess.Popen(
                ["unshare", "--mount", "--propagation", propagation, "sh", "-c",
                 f"while read line; do cat {volume}/fabric/version; echo end; done"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        def look(propagation):
            container = containers[propagation]
            container.stdin.write(b"look\n")
            container.stdin.flush()
            return b"".join(iter(container.stdout.readline, b"end\n")).decode()

        for propagation in containers:
            contains(look(propagation), "fabricfs 0.")
        mount.process.kill()
        mount.process.wait()
        for propagation in containers:
            contains(look(propagation), "not connected")
        mount.start()
        contains(look("slave"), "fabricfs 0.")
        contains(look("private"), "not connected")
        mount.finish()
    finally:
        for container in containers.values():
            container.stdin.close()
            container.wait()
        subprocess.run(["umount", volume], check=True)
