"""Nodes that find each other, go and come back, and what their files say of each other."""
import errno
import mmap
import os
import random
import select
import signal
import subprocess
import time

import numpy as np

from harness import (SOON, Actor, Fabric, Job, Mount, contains, equal, fails, needs, read_bytes, result_words, run_all,
                     values, wait_until, within, work_again, write)


def stats_of(fabric, node, of):
    return values(fabric[node].read("nodes", of, "stats"))


def start_refused(env, *options):
    """Starts a daemon that must refuse; what it says."""
    place = f"{env.directory}/refused"
    os.makedirs(place, exist_ok=True)
    done = subprocess.run([env.program, "-f", *options, place], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=30, check=False)
    assert done.returncode != 0, "the daemon started"
    return done.stdout.decode()


# --- finding each other ------------------------------------------------------------------------------------

@needs(mount=False, seconds=90)
def test_nodes_find_each_other_in_any_order_of_start(env):
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        fabric = Fabric(env, 3, start=order)
        fabric.wait_up()
        fabric.finish()


@needs(mount=False)
def test_a_node_that_is_not_there_yet_is_absent_and_its_window_ehostdown(env):
    fabric = Fabric(env, 3, start=[0, 2])
    fabric.wait_up()
    equal(fabric.link(0, 1)["state"], "absent", "state")
    contains(fabric[0].read("topology"), "node 1 ", "absent")
    contains(fabric[0].read("nodes/1/link"), "why ")
    equal(os.stat(fabric[0].file("nodes/1/window")).st_size, 0, "size of a window that is not there")
    fabric.add(1)
    fabric.wait_up()
    assert os.stat(fabric[0].file("nodes/1/window")).st_size > 0, "the window has no size"
    fabric.finish()


@needs(nodes=8, seconds=90)
def test_eight_nodes_find_each_other_and_reduce(fabric):
    fabric.wait_up(seconds=40)
    ranks = fabric.job([7, 3, 0, 5, 1, 6, 2, 4], size="1M").ranks()
    for count in (2, 100003):
        for rank in ranks:
            rank.put(np.full(count, 2 ** rank.number, np.int32).tobytes())
        run_all(ranks, f"dtype=i32 count={count}", seconds=30)
        for rank in ranks:
            equal(set(np.frombuffer(rank.get(4 * count), np.int32).tolist()), {255}, f"sum at rank {rank.number}")


# --- refusing each other -----------------------------------------------------------------------------------

@needs(nodes=2)
def test_two_daemons_with_one_number_refuse_each_other_in_words(fabric):
    fabric.wait_up()
    said = start_refused(fabric.env, "--fabric", fabric.name, "--node", "1", "--nodes", "2")
    contains(said, "another daemon", "node number")
    assert fabric.is_up(), "the fabric has suffered"


@needs(nodes=2, options=())
def test_two_daemons_with_one_number_and_memories_of_their_own_are_named_on_all_nodes(fabric):
    fabric.wait_up()
    config = f"{fabric.env.directory}/rival.conf"
    with open(config, "w") as out:
        out.write(f"[node 1]\nlanding = shm:fabricfs.{fabric.name}.rival\n")
    rival = Mount(fabric.env, ("--fabric", fabric.name, "--node", "1", "--nodes", "2", "-c", config))
    fabric.wait_event("nodes/1", "two daemons claim to be node 1", f"process {fabric[1].pid}",
                      f"process {rival.pid}", nodes=[0])
    who = f"process {fabric[0].pid} on {os.uname().nodename[:31]}"
    fabric.wait_event("nodes/0", f"node 0 ({who}) refuses this node: another daemon claims to be node 1", nodes=[1])
    wait_until(lambda: f"the daemon of node 0 runs ({who}), but nothing of it arrives here" in rival.read("events"),
               "the other daemon knows why it waits")
    rival.finish()


@needs(nodes=2, options=())
def test_a_daemon_with_another_number_of_nodes_is_refused_in_words(fabric):
    fabric.wait_up()
    fabric[1].stop()
    fabric[1].options = tuple("3" if o == "2" else o for o in fabric[1].options)
    fabric[1].start()
    wait_until(lambda: "nodes" in fabric[0].read("nodes/1/link") and "why" in fabric[0].read("nodes/1/link") and
               fabric.link(0, 1)["state"] != "up" and "3" in fabric.link(0, 1)["why"], "node 0 says why not")
    fabric.wait_event("nodes/1", "3", "2", nodes=[0])


@needs(mount=False)
def test_bad_node_numbers_are_refused_with_the_limit(env):
    for options, word in ((("--node", "2", "--nodes", "2"), "below the number of nodes"),
                          (("--node", "0", "--nodes", "513"), "512"), (("--node", "-1", "--nodes", "2"), "-1")):
        contains(start_refused(env, "--fabric", env.memory_name(), *options), word)


@needs(mount=False)
def test_a_fabric_of_the_same_name_under_another_user_cannot_attach(env):
    fabric = Fabric(env, 2, start=[0])
    for name in os.listdir("/dev/shm"):
        if env.memory_name() in name:
            mode = os.stat(f"/dev/shm/{name}").st_mode & 0o777
            equal(mode, 0o600, f"mode of {name}")
    fabric.finish()


# --- going and coming back ---------------------------------------------------------------------------------

@needs(nodes=3, options=())
def test_a_restarted_daemon_is_up_again_without_remounting_the_others(fabric):
    fabric.wait_up()
    for how in (signal.SIGKILL, signal.SIGTERM):
        fabric[1].process.send_signal(how)
        fabric[1].process.wait(10)
        for node in (0, 2):
            wait_until(lambda node=node: fabric.link(node, 1)["state"] not in ("up", "suspect"), "it is missed")
        fabric[1].start()
        fabric.wait_up()
    for node in (0, 2):
        equal(fabric.link(node, 1)["pid"], str(fabric[1].pid), "process of node 1")


@needs(nodes=2, options=())
def test_a_quick_restart_is_noticed_and_named(fabric):
    fabric.wait_up()
    before = fabric[1].pid
    fabric[1].process.kill()
    fabric[1].process.wait()
    fabric[1].start()
    wait_until(lambda: fabric.link(0, 1).get("pid") == str(fabric[1].pid) and fabric.is_up(), "node 1 is back")
    fabric.wait_event("nodes/1", f"down: host {os.uname().nodename[:31]}, pid {before}: ", nodes=[0])


@needs(nodes=2, options=("-o", "heartbeat_ms=3000"))
def test_the_heartbeat_limit_is_what_the_option_says(fabric):
    fabric.wait_up()
    os.kill(fabric[1].pid, signal.SIGSTOP)
    started = time.monotonic()
    wait_until(lambda: fabric.link(0, 1)["state"] not in ("up", "suspect"), "it is missed")
    took = time.monotonic() - started
    assert took > 2, f"it is missed after {took:.2f} s, as if the limit were the default, 1 s"
    os.kill(fabric[1].pid, signal.SIGCONT)
    fabric.wait_up()


@needs(nodes=3, options=("-o", "heartbeat_ms=3000"))
def test_a_stopped_daemon_is_suspected_first_and_comes_back_by_itself(fabric):
    fabric.wait_up()
    os.kill(fabric[2].pid, signal.SIGSTOP)
    seen = set()
    wait_until(lambda: seen.add(fabric.link(0, 2)["state"]) or seen & {"down", "absent", "greeting"}, "it is missed")
    assert seen <= {"up", "suspect", "down", "absent", "greeting"} and "suspect" in seen, seen
    os.kill(fabric[2].pid, signal.SIGCONT)
    fabric.wait_up()


@needs(nodes=2)
def test_looking_at_a_stopped_node_does_not_hang(fabric):
    fabric.wait_up()
    os.kill(fabric[1].pid, signal.SIGSTOP)
    started = time.monotonic()
    for name in ("topology", "health", "stats", "metrics", "nodes/1/link", "nodes/1/stats", "nodes/1/window"):
        read_bytes(fabric[0].file(name), 64)
    within(SOON, started, "reading all")
    os.kill(fabric[1].pid, signal.SIGCONT)


def storm(fabric, rounds, seed):
    """Kills and starts daemons in random order; none is asked to be up in between."""
    chance = random.Random(seed)
    for _ in range(rounds):
        node = chance.choice(sorted(fabric.mounts))
        mount = fabric[node]
        how = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        mount.process.send_signal(how)
        mount.process.wait(10)
        if chance.random() < 0.3:
            time.sleep(chance.random() * 0.3)
        mount.start()


@needs(mount=False, seconds=600)
def test_many_restarts_in_random_order_under_load_end_with_all_up(env):
    """A fifth of the storms' number; --storms 1000 is the long run. The load are two ranks that never leave."""
    fabric = Fabric(env, 4, options=())
    fabric.wait_up(seconds=30)
    job = fabric.job([0, 1], size="1M", timeout=2)
    ranks = job.ranks()
    load = [rank.actor.begin(keep_asking, rank.open(), f"{env.directory}/stop") for rank in ranks]
    survivors = {node: mount for node, mount in fabric.mounts.items() if node > 1}
    seed = int(time.time())
    print(f"seed {seed}")
    all_mounts, fabric.mounts = fabric.mounts, survivors
    storm(fabric, max(1, env.storms // 5), seed)
    fabric.mounts = all_mounts
    write(f"{env.directory}/stop", "", os.O_WRONLY | os.O_CREAT)
    done = [call.result(20) for call in load]
    assert min(done) > 0, f"operations that worked during the storm: {done}"
    storm(fabric, 4, seed + 1)
    fabric.wait_up(seconds=60)
    placement = [3, 1, 0, 2]
    ranks = fabric.job(placement, size="1M").ranks()
    for rank in ranks:
        rank.put(np.full(1 << 18, rank.number + 1, np.float32).tobytes())
    work_again(ranks)
    fabric.finish()


def keep_asking(fd, stop):
    """In a rank's process: operation after operation until the file is there; how many worked."""
    done = 0
    while not os.path.exists(stop):
        try:
            os.write(fd, b"op=max\n")
            done += 1
        except OSError:
            time.sleep(0.01)
    return done


# --- what the files say ------------------------------------------------------------------------------------

@needs(nodes=2)
def test_a_link_says_its_state_and_where_it_leads(fabric):
    fabric.wait_up()
    link = fabric.link(0, 1)
    equal((link["state"], link["link_up"], link["verified"]), ("up", "yes", "yes"), "link")
    equal(link["pid"], str(fabric[1].pid), "pid")
    equal(link["host"], os.uname().nodename, "host")
    contains(link["window"], "shm:", fabric.name)
    contains(link["memory"], "emulated")
    equal(fabric.link(0, 0)["state"], "self", "the own state")


@needs(nodes=2)
def test_figures_of_a_link_grow_with_what_it_carries(fabric):
    fabric.wait_up()
    ranks = fabric.job([0, 1], size="4M").ranks()
    before = int(stats_of(fabric, 0, 1)["put_bytes"])
    run_all(ranks)
    carried = int(stats_of(fabric, 0, 1)["put_bytes"]) - before
    assert 4 << 20 <= carried <= 6 << 20, f"{carried} bytes for an allreduce of 4 MiB over two nodes"
    for name in ("beats_sent", "beats_heard", "messages_sent", "messages_received", "sessions", "puts"):
        assert int(stats_of(fabric, 0, 1)[name]) > 0, name
    equal(int(stats_of(fabric, 0, 1)["hellos_bad"]), 0, "bad hellos")


@needs(nodes=2)
def test_a_window_shows_the_other_nodes_landing_memory(fabric):
    fabric.wait_up()
    mine, theirs = fabric[1].file("nodes/1/window"), fabric[0].file("nodes/1/window")
    equal(os.stat(mine).st_size, os.stat(theirs).st_size, "sizes")
    equal(os.stat(theirs).st_mode & 0o777, 0o600, "mode")
    equal(read_bytes(mine, 64), read_bytes(theirs, 64), "the header page")


@needs(mount=False)
def test_the_ring_keeps_nodes_of_one_switch_together_and_says_why(env):
    path = f"{env.directory}/conf"
    with open(path, "w") as config:
        for node, switch in enumerate("ABAB"):
            config.write(f"[node {node}]\nswitch = {switch}\n")
    fabric = Fabric(env, 4, options=(*Fabric.PATIENT, "-c", path))
    fabric.wait_up()
    for mount in fabric:
        contains(mount.read("topology"), "ring 0 2 1 3", "switch=A", "switch=B", "2 switches")
    ranks = fabric.job([3, 2, 1, 0], size=64).ranks()
    for rank in ranks:
        rank.put(np.full(16, rank.number, np.float32).tobytes())
    run_all(ranks)
    equal(set(np.frombuffer(ranks[2].get(), np.float32).tolist()), {6.0}, "sum")
    fabric.finish()


@needs(nodes=2)
def test_a_ring_without_switches_is_by_number(fabric):
    for mount in fabric:
        contains(mount.read("topology"), "ring 0 1", "by number")


def configured(env, nodes, lines, **more):
    """A fabric whose every link has these settings."""
    path = f"{env.directory}/conf-{len(os.listdir(env.directory))}"
    with open(path, "w") as config:
        for node in range(nodes):
            config.write(f"[node {node}]\n{lines}\n")
    return Fabric(env, nodes, options=(*Fabric.PATIENT, "-c", path), **more)


def time_of(ranks, command=""):
    started = time.monotonic()
    run_all(ranks, command, seconds=30)
    return time.monotonic() - started


@needs(mount=False)
def test_a_configured_bandwidth_is_kept(env):
    """2 nodes, 8 MiB: each sends 8 MiB at 16 MiB/s."""
    fabric = configured(env, 2, "bandwidth = 16M")
    fabric.wait_up()
    equal(fabric.link(0, 1)["emulated_bandwidth_bytes_s"], str(16 << 20), "bandwidth")
    ranks = fabric.job([0, 1], size="8M").ranks()
    for rank in ranks:
        rank.put(np.full(2 << 20, rank.number + 1, np.float32).tobytes())
    took = [time_of(ranks, "op=max") for _ in range(3)]
    assert 0.45 <= min(took) <= 2, f"{took} s for 0.5 s of sending"
    for rank in ranks:
        equal(set(np.unique(np.frombuffer(rank.get(), np.float32)).tolist()), {2.0}, "maximum")
    fabric.finish()


@needs(mount=False)
def test_a_configured_latency_is_kept(env):
    fabric = configured(env, 2, "latency = 20000000")
    fabric.wait_up()
    equal(fabric.link(0, 1)["emulated_latency_ns"], "20000000", "latency")
    ranks = fabric.job([0, 1], size=64).ranks()
    took = min(time_of(ranks, "", ) for _ in range(3))
    assert 0.02 <= took <= 1, f"{took * 1e3:.1f} ms for at least 20 ms"
    fabric.finish()


@needs(mount=False)
def test_landing_memory_may_be_a_file_and_is_as_long_as_it_says(env):
    for node in range(2):
        with open(f"{env.directory}/land{node}", "wb") as file:
            file.truncate(8 << 20)
    path = f"{env.directory}/conf"
    with open(path, "w") as config:
        for node in range(2):
            config.write(f"[node {node}]\nlanding = file:{env.directory}/land{node}+1M:1M\n")
    fabric = Fabric(env, 2, options=(*Fabric.PATIENT, "-c", path))
    fabric.wait_up()
    ranks = fabric.job([0, 1], size="8M").ranks()
    for rank in ranks:
        rank.put(np.full(2 << 20, rank.number + 1, np.float32).tobytes())
    run_all(ranks, seconds=30)
    equal(set(np.unique(np.frombuffer(ranks[0].get(), np.float32)).tolist()), {3.0}, "sum")
    equal(set(read_bytes(f"{env.directory}/land0", 1 << 20)), {0}, "bytes before the part that was named")
    equal(os.stat(fabric[0].file("nodes/1/window")).st_size, 1 << 20, "size of the window")
    with open(fabric[0].file("nodes/1/window"), "r+b", buffering=0) as window:
        equal(window.read(8), b"FABFCNTB", "the beginning of the part")
        fails(errno.ENODEV, mmap.mmap, window.fileno(), 4096)
    passthrough = values(fabric[0].read("stats"))["buffer_mode"] == "passthrough"
    contains(fabric.link(0, 1)["client_mmap"], "at an offset" if passthrough else "not in passthrough mode")
    fabric.finish()


@needs(mount=False)
def test_a_window_of_64_kib_carries_messages_that_are_much_larger(env):
    path = f"{env.directory}/conf"
    with open(path, "w") as config:
        for node in range(2):
            config.write(f"[node {node}]\nlanding = shm:fabricfs.{env.memory_name()}.{node}+0:64K\n")
    fabric = Fabric(env, 2, options=(*Fabric.PATIENT, "-c", path))
    fabric.wait_up()
    ranks = fabric.job([0, 1], size="4M").ranks()
    for rank in ranks:
        rank.put(np.full(1 << 20, rank.number + 1, np.float32).tobytes())
    run_all(ranks, seconds=30)
    for rank in ranks:
        equal(set(np.unique(np.frombuffer(rank.get(), np.float32)).tolist()), {3.0}, "sum")
    fabric.finish()


@needs(mount=False)
def test_memory_that_is_too_small_or_misaligned_is_refused_with_what_is_required(env):
    for landing, *words in (("shm:{}+0:4K", "4096", "at least 6144"), ("shm:{}+100:1M", "100", "multiples of 4K")):
        path = f"{env.directory}/conf"
        with open(path, "w") as config:
            config.write(f"[node 0]\nlanding = {landing.format(env.memory_name())}\n")
        said = start_refused(env, "--fabric", env.memory_name(), "--node", "0", "--nodes", "2", "-c", path)
        contains(said, *words)


@needs(nodes=2)
def test_a_stopped_fabric_leaves_no_shared_memory(fabric):
    fabric.wait_up()
    for mount in fabric:
        equal(mount.stop(), 0, "exit status")
    equal([name for name in os.listdir("/dev/shm") if fabric.name in name], [], "shared memory")
    for mount in fabric:
        mount.start()
    fabric.wait_up()


# --- much to tell ------------------------------------------------------------------------------------------

def run_barriers(path, numbers):
    """In one process: asks for a barrier as each of the ranks, and returns the results."""
    queues = [os.open(f"{path}/ranks/{number}/barrier", os.O_RDWR | os.O_NONBLOCK) for number in numbers]
    for queue in queues:
        os.write(queue, b"\n")
    lines = []
    for queue in queues:
        select.select([queue], [], [], 20)
        lines.append(os.read(queue, 4096).decode())
        os.close(queue)
    return lines


@needs(nodes=2, seconds=90)
def test_hundreds_of_ranks_on_one_node_are_known_on_the_other(fabric):
    """What a node says of its part in a job is longer than one message between nodes."""
    fabric.wait_up()
    world = 600
    job = fabric.job([0] * (world - 1) + [1])
    for number in range(world - 1):
        os.mkdir(f"{job.on[0].path}/ranks/{number}")
    last = job.rank(world - 1)
    job.wait_known()
    call = last.begin("", "barrier")
    for line in Actor().call(run_barriers, job.on[0].path, range(world - 1)):
        contains(line, "result=ok")
    call.result()
    equal(fabric.link(1, 0)["state"], "up", "state")


@needs(nodes=2)
def test_numbers_of_many_tags_are_told_to_a_node_that_comes_back(fabric):
    fabric.wait_up()
    job = fabric.job([0, 1], size=64, timeout=5)
    ranks, tags = job.ranks(), [f"a-bucket-with-the-number-{number}" for number in range(80)]
    for tag in tags:
        run_all(ranks, f"tag={tag}")
    fabric[1].process.kill()
    fabric[1].process.wait()
    fabric.wait_event("nodes/1", "down", nodes=[0])
    fabric[1].start()
    fabric.wait_up()
    again = Job(fabric[1], 2, name=job.name, size=64, timeout=5).rank(1)
    again.open()
    wait_until(lambda: f"rank=1 node=1 pid={again.pid} state=present" in job.on[0].read("members"), "it is back")
    wait_until(lambda: "rank=0 node=0" in again.job.read("members"), "it knows the other")
    for tag in tags:
        run_all([ranks[0], again], f"tag={tag}")
    equal(result_words(again.status().splitlines()[-1])["seq"], "2", "number")


@needs(mount=False, seconds=90)
def test_a_node_that_comes_late_hears_of_hundreds_of_jobs(env):
    """They are more than may wait for one peer at once."""
    fabric, jobs = Fabric(env, 2, start=[0]), []
    for number in range(700):
        jobs.append(Job(fabric[0], 2, name=f"{'j' * 50}{number}", size=64))
        os.mkdir(f"{jobs[-1].path}/ranks/0")
    fabric.add(1)
    fabric.wait_up()
    for job in (jobs[0], jobs[350], jobs[699]):
        there = Job(fabric[1], 2, name=job.name, size=64)
        rank = there.rank(1)
        wait_until(lambda job=job: "rank=1 node=1" in job.read("members"), "node 0 knows rank 1")
        call = rank.begin("", "barrier")
        contains(Actor().call(run_barriers, job.path, [0])[0], "result=ok")
        call.result()
    equal(stats_of(fabric, 0, 1)["sessions"], "1", "sessions")
    fabric.finish()


@needs(nodes=2, seconds=90)
def test_jobs_of_a_node_beyond_what_other_nodes_keep_are_enospc_naming_the_limit(fabric):
    """Each of them would wait for ranks that the other nodes never hear of."""
    fabric.wait_up()
    for number in range(1023):
        os.mkdir(fabric[0].file("jobs", f"j{number}"))
    last = fabric.job([0, 1], size=64)
    fails(errno.ENOSPC, os.mkdir, fabric[0].file("jobs/more"))
    assert not os.path.exists(fabric[0].file("jobs/more")), "it is there"
    fabric.wait_event("jobs/more", "mkdir: ENOSPC: this node has 1024 jobs", nodes=[0])
    run_all(last.ranks(), "op=sum")
    os.rmdir(fabric[0].file("jobs/j0"))
    os.mkdir(fabric[0].file("jobs/more"))


@needs(mount=False)
def test_nodes_of_a_fabric_of_512_meet_and_their_windows_stay_small(env):
    fabric = Fabric(env, 512, start=[0, 300, 511])
    fabric.wait_up()
    ranks = fabric.job([511, 0, 300], size="1M").ranks()
    for rank in ranks:
        rank.put(np.full(1 << 18, rank.number + 1, np.float32).tobytes())
    run_all(ranks)
    for rank in ranks:
        equal(set(np.unique(np.frombuffer(rank.get(), np.float32)).tolist()), {6.0}, f"sum at rank {rank.number}")
    assert os.path.getsize(fabric[0].file("nodes/0/window")) <= 64 << 20, "landing memory"
    fabric.finish()
