"""The text files: read like any file by every tool, at any size and offset, and one version an open."""
import decimal
import errno
import json
import mmap
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import time

import numpy as np

from harness import (Actor, Skip, contains, equal, fails, needs, read, run_all, sh, values, wait_until, write)

ROOT_TEXTS = ("README", "version", "config", "stats", "metrics", "health", "events", "topology")
STILL = ("README", "version", "config", "topology")  # nothing in them moves while a test looks
JOB_TEXTS = ("config", "members", "stats", "trace")


def with_a_job(mount):
    """A job that has run three operations."""
    job = mount.job(2, size=64)
    ranks = job.ranks()
    for _ in range(3):
        run_all(ranks, "op=sum")
    return job, ranks


def all_texts(mount, job):
    return [mount.file(name) for name in ROOT_TEXTS] + [f"{job.path}/{name}" for name in JOB_TEXTS] + \
        [f"{job.path}/ranks/{rank}/status" for rank in range(2)] + \
        [mount.file("nodes/0", name) for name in ("link", "stats")]


def test_the_root_holds_the_files_of_the_manual_and_nothing_else(mount):
    equal(sorted(os.listdir(mount.path)), sorted((*ROOT_TEXTS, "jobs", "nodes")), "files of the root")
    equal(os.listdir(mount.file("nodes")), ["0"], "nodes")
    equal(sorted(os.listdir(mount.file("nodes/0"))), ["link", "stats", "window"], "files of a node")
    equal(os.listdir(mount.file("jobs")), [], "jobs")


def test_a_job_and_a_rank_hold_the_files_of_the_manual(mount):
    job = mount.job(2)
    rank = job.rank(0)
    equal(sorted(os.listdir(job.path)), ["config", "members", "ranks", "stats", "trace"], "files of a job")
    equal(os.listdir(f"{job.path}/ranks"), ["0"], "ranks")
    equal(sorted(os.listdir(rank.path)), ["allgather", "allreduce", "barrier", "broadcast", "buffer",
                                          "reduce_scatter", "status"], "files of a rank")


def test_text_files_are_regular_and_0444(mount):
    for name in ROOT_TEXTS:
        mode = os.stat(mount.file(name)).st_mode
        assert stat.S_ISREG(mode) and stat.S_IMODE(mode) == 0o444, f"{name} has mode {oct(mode)}"


def test_every_text_file_ends_its_last_line(mount):
    job, _ = with_a_job(mount)
    for path in all_texts(mount, job):
        text = read(path)
        assert text and text.endswith("\n") and "\0" not in text, f"{path} reads {text[-40:]!r}"


def test_the_size_is_the_length_of_what_is_read(mount):
    job, _ = with_a_job(mount)
    for path in all_texts(mount, job):
        if path.endswith(("trace", "events")):  # these state a size without rendering
            continue
        with open(path, "rb", buffering=0) as file:
            equal(os.fstat(file.fileno()).st_size, len(file.readall()), f"size of {path}")


def test_shell_tools_read_the_same(mount):
    for name in STILL:
        path = mount.file(name)
        whole = read(path).encode()
        for command in (f"cat {path}", f"head -c 1000000 {path}", f"tail -c +1 {path}", f"tail -n +1 {path}",
                        f"dd if={path} bs=1 status=none", f"dd if={path} bs=7 status=none",
                        f"dd if={path} bs=64k status=none", f"dd if={path} bs=4095 status=none", f"grep '' {path}",
                        f"sed '' {path}", f"cp {path} {mount.env.directory}/copy && cat {mount.env.directory}/copy",
                        f"cat < {path}"):
            equal(sh(command), whole, command)
        equal(int(sh(f"wc -c < {path}")), len(whole), f"wc -c {name}")
        equal(int(sh(f"wc -l < {path}")), whole.count(b"\n"), f"wc -l {name}")
        equal(int(sh(f"grep -c '' {path}")), whole.count(b"\n"), f"grep -c {name}")
        equal(sh(f"head -n 1 {path}"), whole.split(b"\n")[0] + b"\n", f"head {name}")
        equal(sh(f"tail -n 1 {path}"), whole.split(b"\n")[-2] + b"\n", f"tail {name}")


def test_shell_tools_come_to_an_end_on_files_that_move(mount):
    job, _ = with_a_job(mount)
    for path in all_texts(mount, job):
        for command in ("cat", "head -c 100000", "tail -n 2", "grep -c ''", "wc", "dd status=none bs=1 if=",
                        "dd status=none bs=13 skip=1 if="):
            joined = command + path if command.endswith("=") else f"{command} {path}"
            sh(joined)


@needs(tools=("busybox",))
def test_busybox_reads_the_same(mount):
    for name in STILL:
        path = mount.file(name)
        whole = read(path).encode()
        for command in (f"busybox cat {path}", f"busybox head -c 1000000 {path}",
                        f"busybox dd if={path} bs=1 2>/dev/null", f"busybox tail -n +1 {path}",
                        f"busybox cp {path} {mount.env.directory}/copy && cat {mount.env.directory}/copy"):
            equal(sh(command), whole, command)


def test_python_copies_by_sendfile_splice_and_copy_file_range(mount):
    for name in STILL:
        path, copy = mount.file(name), f"{mount.env.directory}/copy"
        whole = read(path).encode()
        shutil.copyfile(path, copy)
        equal(read(copy).encode(), whole, f"copyfile of {name}")
        for move in (lambda source, target: os.sendfile(target, source, 0, 1 << 20),
                     lambda source, target: os.copy_file_range(source, target, 1 << 20)):
            source, target = os.open(path, os.O_RDONLY), os.open(copy, os.O_RDWR | os.O_TRUNC)
            try:
                moved = move(source, target)
                equal(os.pread(target, 1 << 20, 0), whole[:moved], f"copy of {name}")
                equal(moved, len(whole), f"bytes of {name} copied")
            except OSError as error:
                assert error.errno in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP), error
            finally:
                os.close(source)
                os.close(target)
        reader, writer = os.pipe()
        source = os.open(path, os.O_RDONLY)
        moved = os.splice(source, writer, 1 << 16)
        equal(os.read(reader, 1 << 16), whole[:moved], f"splice of {name}")
        assert moved, f"splice of {name} moved nothing"
        for fd in (reader, writer, source):
            os.close(fd)


def test_sendfile_of_a_file_that_changed_sends_the_new_version(mount):
    job = mount.job(2)
    copy = os.open(f"{mount.env.directory}/copy", os.O_RDWR | os.O_CREAT)
    for world in range(2, 7):
        job.configure(f"world={world}")

        def sent():
            source = os.open(f"{job.path}/config", os.O_RDONLY)
            os.ftruncate(copy, 0)
            os.lseek(copy, 0, os.SEEK_SET)
            os.sendfile(copy, source, 0, 1 << 16)
            os.close(source)
            return values(os.pread(copy, 1 << 16, 0).decode()).get("world") == str(world)
        wait_until(sent, f"sendfile sends world={world}")
    os.close(copy)


def test_an_open_sees_one_version_at_any_read_size(mount):
    """A reader that has begun goes on in the version of its open, whatever happens to the job meanwhile."""
    job = mount.job(2)
    before = read(f"{job.path}/config")
    with open(f"{job.path}/config", "rb", buffering=0) as slow:
        text = slow.read(1)
        job.configure("world=64\ndtype=bf16\ntimeout=12\n")
        while piece := slow.read(1):
            text += piece
        equal(text.decode(), before, "what the slow reader saw")
        equal(os.pread(slow.fileno(), 1 << 16, 0).decode(), before, "its pread")
        equal(os.pread(slow.fileno(), 10, 3).decode(), before[3:13], "its pread at 3")
    equal(job.config()["dtype"], "bf16", "what the next open sees")


def test_two_readers_of_one_byte_at_a_time_do_not_mix(mount):
    job = mount.job(2)
    with open(f"{job.path}/config", "rb", buffering=0) as one:
        first = one.read(3)
        job.configure("timeout=7")
        with open(f"{job.path}/config", "rb", buffering=0) as two:
            texts = [first, b""]
            while True:
                pieces = one.read(1), two.read(1)
                if pieces == (b"", b""):
                    break
                texts = [text + piece for text, piece in zip(texts, pieces)]
    equal([values(text.decode())["timeout"] for text in texts], ["30", "7"], "timeouts")


def test_reading_at_and_after_the_end_gives_nothing(mount):
    for name in STILL:
        fd = os.open(mount.file(name), os.O_RDONLY)
        size = os.lseek(fd, 0, os.SEEK_END)
        equal(size, os.fstat(fd).st_size, f"end of {name}")
        for offset in (size, size + 1, size + (1 << 40)):
            equal(os.pread(fd, 10, offset), b"", f"{name} at {offset}")
        equal(len(os.pread(fd, 10, size - 3)), 3, f"last bytes of {name}")
        os.close(fd)


def test_what_a_write_to_config_changed_is_in_the_next_cat(mount):
    job = mount.job(2)
    for world in range(2, 40):
        job.configure(f"world={world}")
        contains(sh(f"cat {job.path}/config").decode(), f"world = {world}\n")


def test_text_files_cannot_be_written_even_by_root(mount):
    job, _ = with_a_job(mount)
    for path in [*map(mount.file, ROOT_TEXTS), f"{job.path}/stats", f"{job.path}/trace",
                 f"{job.path}/ranks/0/status"]:
        fails((errno.EACCES, errno.EPERM), os.open, path, os.O_WRONLY)
        fails((errno.EACCES, errno.EPERM), os.open, path, os.O_RDWR)
        fails((errno.EACCES, errno.EPERM), os.truncate, path, 0)


def test_a_shared_mapping_of_a_text_file_is_refused_or_right(mount):
    """Text files may refuse mmap (ENODEV); if they take it, the mapping holds the text."""
    for name in STILL:
        with open(mount.file(name), "rb") as file:
            whole = file.read()
            for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
                try:
                    with mmap.mmap(file.fileno(), len(whole), flags, mmap.PROT_READ) as view:
                        equal(view[:], whole, f"mapping of {name}")
                except OSError as error:
                    equal(error.errno, errno.ENODEV, f"mmap of {name}")


def test_a_trigger_cannot_be_mapped(mount):
    rank = mount.job(2).rank(0)
    for trigger in ("allreduce", "barrier"):
        fd = os.open(rank.file(trigger), os.O_RDWR)
        fails((errno.ENODEV, errno.EACCES), mmap.mmap, fd, 4096, mmap.MAP_SHARED)
        os.close(fd)


def test_nothing_else_can_be_made_renamed_linked_or_removed(mount):
    job, ranks = with_a_job(mount)
    for directory in (mount.path, mount.file("nodes"), mount.file("nodes/0"), job.path, ranks[0].path):
        fails((errno.EPERM, errno.EACCES), os.mkdir, f"{directory}/new")
    for directory in (mount.path, mount.file("jobs"), mount.file("nodes/0"), job.path, f"{job.path}/ranks",
                      ranks[0].path):
        new = f"{directory}/new"
        fails((errno.EPERM, errno.EACCES), os.open, new, os.O_CREAT | os.O_WRONLY)
        fails(errno.EPERM, os.symlink, "x", new)
        fails(errno.EPERM, os.mkfifo, new)
        fails(errno.EPERM, os.link, mount.file("version"), new)
        fails(errno.EPERM, os.rename, mount.file("version"), new)
    for path in (mount.file("version"), f"{job.path}/config", f"{ranks[0].path}/buffer", f"{ranks[0].path}/allreduce"):
        fails(errno.EPERM, os.unlink, path)
    for path in (mount.file("jobs"), mount.file("nodes"), mount.file("nodes/0"), f"{job.path}/ranks"):
        fails(errno.EPERM, os.rmdir, path)
    fails(errno.EPERM, os.rename, job.path, mount.file("jobs/other"))
    fails(errno.EPERM, os.rename, ranks[0].path, f"{job.path}/ranks/7")


def test_in_place_editing_by_rename_is_refused_in_words(mount):
    job = mount.job(2)
    done = sh(f"sed -i s/30/31/ {job.path}/config", check=False)
    assert done.returncode != 0 and done.stderr, "sed -i succeeded"
    equal(job.config()["timeout"], "30", "timeout")


def test_walking_the_tree_works(mount):
    job, _ = with_a_job(mount)
    listing = sh(f"ls -lR {mount.path}").decode()
    contains(listing, "README", job.name, "allreduce", "nodes/0")
    found = sh(f"find {mount.path}").decode().split()
    equal(len(found), len(set(found)), "paths found once")
    contains(found, f"{job.path}/ranks/1/buffer")
    sh(f"find {mount.path} -ls")
    sh(f"du -s {mount.path}")
    sh(f"stat {job.path}/ranks/0/allreduce")


def test_inode_numbers_of_stat_and_readdir_agree_and_are_unique(mount):
    with_a_job(mount)
    seen = {}
    for directory, _, _ in os.walk(mount.path):
        for entry in os.scandir(directory):
            equal(entry.inode(), os.lstat(entry.path).st_ino, f"inode of {entry.path}")
            assert entry.inode() not in seen, f"{entry.path} and {seen.get(entry.inode())} share an inode"
            seen[entry.inode()] = entry.path


def test_df_shows_a_size(mount):
    figures = os.statvfs(mount.path)
    assert figures.f_blocks > 0 and figures.f_bavail <= figures.f_bfree <= figures.f_blocks, figures
    contains(sh(f"df -P {mount.path}").decode(), mount.path)


def test_extended_attributes_are_refused_at_once(mount):
    fails({errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS}, os.getxattr, mount.file("version"), "user.x")
    fails({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}, os.setxattr, mount.file("version"), "user.x",
          b"1")


def test_version_and_readme_say_what_this_is(mount):
    contains(mount.read("version"), "fabricfs")
    contains(mount.read("README"), "allreduce", "mkdir", "jobs", "config")


def test_the_config_file_shows_settings_and_their_origin(mount):
    text = mount.read("config")
    for key in ("memory", "node"):
        assert re.search(rf"^{key}\w* = \S", text, re.M), f"no {key} in {text!r}"
    contains(text, "default")


def test_health_is_ok_or_one_finding_a_line(mount):
    text = mount.read("health")
    assert text == "ok\n" or all(re.match(r"\w+\b.*\S", line) for line in text.splitlines()), text


def test_topology_names_this_node(mount):
    assert re.search(r"\b0\b", mount.read("topology"))


def test_stats_are_names_and_values(mount):
    job, _ = with_a_job(mount)
    for path in (mount.file("stats"), f"{job.path}/stats", mount.file("nodes/0/stats")):
        for line in read(path).splitlines():
            assert re.match(r"[a-z][a-z0-9_.]*(\{[^}]*\})? \S", line), f"{path}: {line!r}"


def test_stats_of_a_job_count_operations_and_show_percentiles(mount):
    job, _ = with_a_job(mount)
    stats = values(job.read("stats"))
    low, middle, high = (float(stats[f"latency_{p}_us"]) for p in ("p50", "p99", "p99.9"))
    assert 0 < low <= middle <= high, stats
    equal(stats["allreduce_ops"], "3", "allreduce_ops")


def test_metrics_of_thousands_of_jobs_do_not_keep_the_daemon_busy(mount):
    for number in range(3000):
        os.mkdir(mount.file("jobs", number))
    once = looking(mount, 1)  # renders them
    many = looking(mount, 300)
    assert many < 100 * once, f"one look takes {once * 1000:.1f} ms, 300 take {many * 1000:.0f} ms"


def looking(mount, times):
    """Seconds that so many looks at the size of the metrics take."""
    started = time.monotonic()
    for _ in range(times):
        os.stat(mount.file("metrics"))
    return time.monotonic() - started


def test_metrics_follow_the_prometheus_text_format(mount):
    with_a_job(mount)
    sample = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-zA-Z_]\w*="([^"\\\n]|\\.)*",?)*\})? '
                        r'([+-]?(\d+(\.\d*)?([eE][+-]?\d+)?|Inf)|NaN)$')
    typed = set()
    seen = set()
    for line in mount.read("metrics").splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in typed, f"{name} has its type twice"
            assert kind in ("counter", "gauge", "summary", "histogram", "untyped"), line
            typed.add(name)
        elif line.startswith("# HELP "):
            assert len(line.split(None, 3)) == 4, line
        else:
            assert sample.match(line), f"not a sample: {line!r}"
            name = re.match(r"[a-zA-Z0-9_:]+", line).group()
            assert name.startswith("fabric"), f"{name} has no prefix of ours"
            assert {name, re.sub("_(sum|count|bucket)$", "", name)} & typed, f"{name} has no type before it"
            series = line.rsplit(" ", 1)[0]
            assert series not in seen, f"{series} twice"
            seen.add(series)
    assert seen, "no samples"


def spans_of(job):
    """The spans of a job's trace, after a check that it keeps to the trace event format (JSON object form): the keys
    and types of each event; and that spans of one thread lie in each other or side by side, since viewers draw no others."""
    trace = json.loads(job.read("trace"), parse_float=decimal.Decimal)
    equal(trace["displayTimeUnit"], "ns", "unit")
    events, number = trace["traceEvents"], (int, decimal.Decimal)
    kinds = {"X": {"name": str, "ts": number, "dur": number, "pid": int, "tid": int, "args": dict},
             "M": {"name": str, "pid": int, "args": dict}}
    for event in events:
        kind = {"ph": str, **kinds[event["ph"]]}
        equal(event.keys(), kind.keys(), f"keys of {event}")
        assert all(isinstance(event[key], kind[key]) for key in kind), event
    equal([event["args"] for event in events if event["ph"] == "M"], [{"name": f"job {job.name}"}], "the process's name")
    spans = [event for event in events if event["ph"] == "X"]
    for thread in {event["tid"] for event in spans}:
        ends = []
        for event in sorted((event for event in spans if event["tid"] == thread), key=lambda e: (e["ts"], -e["dur"])):
            assert event["ts"] > 0 and event["dur"] >= 0, event
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1], f"{event} crosses one that ends at {ends[-1]}"
            ends.append(event["ts"] + event["dur"])
    for event in spans:  # viewers add the two in double precision
        equal(float(event["ts"]) + float(event["dur"]), event["ts"] + event["dur"], f"the end of {event}")
    return spans


def test_trace_is_chrome_trace_json(mount):
    job, ranks = with_a_job(mount)
    spans = spans_of(job)
    equal([(span["name"], span["args"]["seq"]) for span in spans],
          [(name, seq) for seq in (1, 2, 3) for name in ("wait", "allreduce")], "spans after 3 operations")


def test_operations_that_overlap_are_side_by_side_in_the_trace(mount):
    job = mount.job(2, size=256)
    ranks = job.ranks()
    queued = [rank.open(flags=os.O_RDWR | os.O_NONBLOCK) for rank in ranks]
    for rank, fd in zip(ranks, queued):
        for place in range(4):
            rank.actor.call(os.write, fd, b"offset=%d count=16" % (64 * place))
    wait_until(lambda: len(spans_of(job)) == 8, "all four are over")
    spans = spans_of(job)
    equal(len({span["tid"] for span in spans}), 4, "rows: all have waited at the same time")
    for wait, work in zip(spans[::2], spans[1::2]):
        equal((wait["tid"], wait["ts"] + wait["dur"]), (work["tid"], work["ts"]), "work goes on where waiting ends")


def test_trace_is_json_before_the_first_operation(mount):
    json.loads(mount.job(2).read("trace"))


def test_trace_keeps_its_last_operations(mount):
    job, ranks = with_a_job(mount)
    for _ in range(300):
        run_all(ranks, "count=1")
    json.loads(job.read("trace"))


def test_status_has_one_line_an_operation(mount):
    _, ranks = with_a_job(mount)
    lines = ranks[0].status().splitlines()
    equal([line.split()[0] for line in lines if line.startswith("seq=")], ["seq=1", "seq=2", "seq=3"], "operations")
    contains(lines[-1], "op=sum", "dtype=f32", "count=16", "result=ok")


def test_members_show_rank_node_pid_and_state(mount):
    job, ranks = with_a_job(mount)
    text = job.read("members")
    for rank in ranks:
        line = next((line for line in text.splitlines() if str(rank.pid) in line.replace("=", " ").split()), None)
        assert line, f"no line of pid {rank.pid} in {text!r}"
        contains(re.split(r"[ =]+", line), str(rank.number))


def test_events_tell_of_jobs_and_ranks(mount):
    job, _ = with_a_job(mount)
    os_events = mount.read("events")
    contains(os_events, job.name)


def test_the_size_of_events_grows_with_it(mount):
    mount.job(2)
    before = os.stat(mount.file("events")).st_size
    name = mount.job(2).name
    after = os.stat(mount.file("events")).st_size
    assert after > before, f"size {before}, then {after}"
    contains(mount.read("events"), name)


def test_tail_f_of_events_shows_a_new_line(mount):
    with subprocess.Popen(["tail", "-n", "1", "-f", mount.file("events")], stdout=subprocess.PIPE) as tail:
        try:
            os.set_blocking(tail.stdout.fileno(), False)
            name = "seen-by-tail"
            mount.job(2, name=name)
            shown = b""

            def seen():
                nonlocal shown
                shown += tail.stdout.read() or b""
                return name.encode() in shown
            wait_until(seen, "tail -f shows the event")
        finally:
            tail.kill()


def test_tail_f_started_on_old_events_shows_only_what_it_was_asked_for(mount):
    for _ in range(20):
        mount.job(2)
    shown = sh(f"tail -n 3 {mount.file('events')}").decode()
    equal(len(shown.splitlines()), 3, "lines")


def test_poll_on_events_wakes_for_a_new_line(mount):
    with open(mount.file("events"), "rb", buffering=0) as events:
        events.readall()
        poll = select.poll()
        poll.register(events, select.POLLIN)
        while poll.poll(0):
            events.readall()
        job = mount.job(2)
        assert poll.poll(20000), "poll did not wake"
        contains(events.readall().decode(), job.name)


def test_a_reader_at_the_end_of_events_reads_on_when_there_is_more(mount):
    with open(mount.file("events"), "rb", buffering=0) as events:
        events.readall()
        name = mount.job(2).name
        wait_until(lambda: name.encode() in events.readall(), "the open descriptor sees the new event")


def test_events_are_bounded(mount):
    """1 MiB is kept, however much happens; readers still get whole lines."""
    path = mount.file("jobs/churn")
    for _ in range(6000):
        os.mkdir(path)
        os.rmdir(path)
    text = mount.read("events")
    assert len(text) <= (1 << 20) + 4096, f"{len(text)} bytes of events"
    assert text.endswith("\n")
    contains(sh(f"tail -n 2 {mount.file('events')}").decode(), "churn")


def test_many_readers_of_changing_files_do_not_disturb_operations(mount):
    job, ranks = with_a_job(mount)
    readers = [Actor() for _ in range(3)]
    calls = [actor.begin(read_for, [mount.file("stats"), f"{job.path}/stats", f"{job.path}/members",
                                    f"{job.path}/trace", mount.file("metrics")], 1.0) for actor in readers]
    end = time.monotonic() + 1.0
    expected = np.arange(16, dtype=np.float32)
    while time.monotonic() < end:
        for rank in ranks:
            rank.put(expected)
        run_all(ranks, "op=avg")
        equal(ranks[0].get(), expected.tobytes(), "average of equal buffers")
    assert all(call.result() > 0 for call in calls)


def read_for(paths, seconds):
    """For an actor: reads files again and again; how often."""
    end, count = time.monotonic() + seconds, 0
    while not count or time.monotonic() < end:
        for path in paths:
            text = read(path)
            assert text.endswith("\n"), path
        count += 1
    return count


def test_the_window_of_this_node_is_for_root(mount):
    info = os.stat(mount.file("nodes/0/window"))
    equal(stat.S_IMODE(info.st_mode), 0o600, "mode")
    fails(errno.EACCES, Actor(65534).call, os.open, mount.file("nodes/0/window"), os.O_RDONLY)


def test_a_large_stats_reader_is_killed_cleanly(mount):
    """A reader that is killed in the middle leaves nothing behind (the runner checks `waiting`)."""
    job, _ = with_a_job(mount)
    readers = [Actor() for _ in range(4)]
    for actor in readers:
        actor.begin(read_for, [mount.file("stats"), f"{job.path}/members"], 60)
    for actor in readers:
        actor.kill(signal.SIGKILL)
    contains(mount.read("stats"), "buffer_mode")


@needs(tools=("vim",))
def test_vim_reads_and_writes_a_job_config(mount):
    job = mount.job(2)
    done = sh(f"vim -u NONE -n -es -c '%s/timeout = 30/timeout = 31/' -c 'set nobackup nowritebackup' -c wq! "
              f"{job.path}/config </dev/null", check=False)
    if done.returncode == 127:
        raise Skip("vim does not start")
    equal(job.config()["timeout"], "31", "timeout")


def test_append_and_tee_write_a_job_config(mount):
    job = mount.job(2)
    sh(f"echo timeout=5 >> {job.path}/config")
    equal(job.config()["timeout"], "5", "after >>")
    sh(f"echo timeout=6 | tee {job.path}/config")
    equal(job.config()["timeout"], "6", "after tee")
    write(f"{job.path}/config", "timeout=8\n", os.O_WRONLY | os.O_TRUNC)
    equal(job.config()["timeout"], "8", "after O_TRUNC")
