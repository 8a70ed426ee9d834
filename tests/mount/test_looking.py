"""fabricctl status, top and report: what scripts and people see of a mounted fabric."""
import errno
import html.parser
import json
import os
import re
import signal
import subprocess

from harness import NOBODY, contains, equal, needs, process_state, run_all, values, wait_until
from terminal import Terminal


def look(env, *words, status=0, uid=None, seconds=30):
    """Runs fabricctl; what it printed, or what it said on stderr when `status` is 2."""
    def become():
        if uid is not None:
            os.setgroups([])
            os.setuid(uid)
    done = subprocess.run([f"{env.build}/utils/fabricctl", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=seconds, check=False, preexec_fn=become)
    equal(done.returncode, status, f"status of {words}: {done.stderr.decode()}")
    return (done.stderr if status == 2 else done.stdout).decode()


def status_of(mount, **how):
    return json.loads(look(mount.env, "status", "--mount", mount.path, "--json", **how))


def with_a_late_rank(ranks, late, times=5):
    """Operations in which one rank comes last, after the others wait."""
    for _ in range(times):
        pending = [rank.begin() for rank in ranks if rank.number != late]
        ranks[late].job.wait_asking(len(pending))
        ranks[late].run()
        for call in pending:
            call.result()


def with_a_lost_rank(mount):
    """A job of two ranks, which have reduced once; then the second died."""
    job = mount.job(2, size=64)
    ranks = job.ranks()
    run_all(ranks)
    ranks[1].actor.kill()
    wait_until(lambda: "lost" in mount.read("health"), "the rank is lost")
    return job, ranks


def test_status_of_a_node_alone_is_all_right(mount):
    contains(look(mount.env, "status", "--mount", mount.path), "fabric fabric node=0 nodes=1 jobs=0 ",
             f" pid={mount.pid} ", "node 0 state=self ", "\nok\n")
    answer = status_of(mount)
    equal([answer[key] for key in ("complete", "node", "pid", "jobs", "findings")], [True, 0, mount.pid, [], []], "status")
    equal((answer["buffer_mode"], answer["kernel"]), (mount.mode, mount.stats()["kernel"]), "buffers and kernel")


def test_status_names_the_rank_that_is_late_and_those_that_are_waited_for(mount):
    job = mount.job(3, size=64)
    ranks = job.ranks()
    with_a_late_rank(ranks, 2)
    ranks[0].begin()
    job.wait_asking()
    seen, said = status_of(mount)["jobs"][0], values(job.read("stats"))
    equal([seen[key] for key in ("job", "world", "in", "lost", "ops", "failed_ops", "waiting", "missing", "slowest",
                                 "memory_used_bytes", "bytes")], [job.name, 3, 3, 0, 5, 0, 1, [1, 2], 2,
                                                  int(said["memory_used_bytes"]), 320], "job")
    equal([(rank["pid"], rank["node"], rank["last"], rank["arrived_last"]) for rank in seen["ranks"]],
          [(ranks[0].pid, 0, 5, 0), (ranks[1].pid, 0, 5, 0), (ranks[2].pid, 0, 5, 5)], "ranks")
    equal(f"{seen['ranks'][2]['late_max_us']}", said["rank2_late_max_us"], "how late")
    assert 0 < seen["ranks"][2]["late_mean_us"] <= seen["ranks"][2]["late_max_us"], seen["ranks"]
    p50, p999, longest = (seen["latency_us"][name] for name in ("p50", "p99.9", "max"))
    assert 0 < p50 <= p999 < 1.00001 * longest + 0.1, seen["latency_us"]  # metrics have six digits
    equal(seen["latency_us"]["count"], 15, "requests")
    contains(look(mount.env, "status", "--mount", mount.path), f"job {job.name} world=3 in=3 lost=0 ops=5 ",
             f" missing=1,2 slowest=2 slowest_node=0 slowest_pid={ranks[2].pid} arrived_last=5 ")


@needs(nodes=2)
def test_status_shows_both_nodes_and_ranks_of_both(fabric):
    fabric.wait_up()
    job = fabric.job([0, 1], size=64)
    ranks = job.ranks()
    run_all(ranks)
    for mount in fabric:
        wait_until(lambda mount=mount: " ops=1 " in look(mount.env, "status", "--mount", mount.path), "the operation shows")
        answer = status_of(mount)
        equal([node["state"] for node in answer["nodes"]], ["self", "up"] if mount is fabric[0] else ["up", "self"], "nodes")
        other = answer["nodes"][1 if mount is fabric[0] else 0]
        contains(other["memory"], "emulated")
        assert other["put_bytes"] > 0 and other["suspect"] is False, other
        equal([(rank["node"], rank["pid"]) for rank in answer["jobs"][0]["ranks"]],
              [(0, ranks[0].pid), (1, ranks[1].pid)], "ranks")


def test_status_tells_findings_by_its_exit_status(mount):
    job, ranks = with_a_lost_rank(mount)
    finding = {"severity": "error", "object": f"jobs/{job.name}",
               "fact": f"rank 1 is lost: its process {ranks[1].pid} ended",
               "next": f"start it again, or write drop=1 to jobs/{job.name}/members"}
    equal(status_of(mount, status=1)["findings"], [finding], "findings")
    text = look(mount.env, "status", "--mount", mount.path, status=1)
    equal(text.splitlines()[-1], mount.read("health").strip(), "the last line")


@needs(mount=False)
def test_status_without_a_fabric_is_an_error_in_words(env):
    for path in (env.directory, f"{env.directory}/none"):
        contains(look(env, "status", "--mount", path, status=2), f"{path}: no fabric is mounted there")


def left_of(env):
    """Processes of this build's fabricctl."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if env.directory.encode() in file.read() and process_state(pid) not in "Z":
                    found.append(int(pid))
        except OSError:
            pass
    return found


def test_a_daemon_that_does_not_answer_is_an_error_in_time(mount):
    others = set(left_of(mount.env))
    os.kill(mount.pid, signal.SIGSTOP)
    wait_until(lambda: process_state(mount.pid) == "T", "the daemon is stopped")
    try:
        said = look(mount.env, "status", "--mount", mount.path, "--timeout", "0.3", status=2)
        contains(said, f"{mount.path}", "does not answer within 0.3 s")
    finally:
        os.kill(mount.pid, signal.SIGCONT)
    wait_until(lambda: set(left_of(mount.env)) <= others, "no reader is left")


def test_of_jobs_of_others_status_shows_what_metrics_has(mount):
    job = mount.job(2, size=64)
    os.chmod(job.path, 0o700)
    ranks = job.ranks()
    with_a_late_rank(ranks, 1, times=2)
    seen = status_of(mount, uid=NOBODY)["jobs"][0]
    equal([seen[key] for key in ("job", "open", "world", "in", "ops", "slowest", "waiting")],
          [job.name, False, 2, None, 2, 1, None], "job")
    equal([rank["pid"] for rank in seen["ranks"]], [None, None], "processes")


# --- top ---------------------------------------------------------------------------------------------------

def top(mount, *words, **how):
    return Terminal(f"{mount.env.build}/utils/fabricctl", "top", "--mount", mount.path, "--interval", "0.1", *words, **how)


def row(text, start):
    """The line of the screen that begins so, blanks and the mark of the picked job apart."""
    return next((line for line in text.splitlines() if line.lstrip(" >").startswith(start)), "")


def in_order(text, *words):
    return [text.index(word) for word in words] == sorted(text.index(word) for word in words)


@needs(nodes=2)
def test_top_shows_nodes_links_jobs_and_who_is_late_on_a_small_screen(fabric):
    fabric.wait_up()
    job = fabric.job([0, 0, 1], size=64)
    ranks = job.ranks()
    screen = top(fabric[0])
    screen.shows(f"{fabric.name}: node 0 of 2, up ", "nodes   2 of 2 up, none suspect or degraded, links emulated, 0 errors",
                 "health  ok", " LATENCY", "q quit")

    def at_work():
        with_a_late_rank(ranks, 1, times=1)
        return re.search(rf">{job.name} +3/3 +[1-9][0-9.]* .* 1 \+[0-9.]+[um]s +[▁▂▃▄▅▆▇█]", screen.text())
    wait_until(at_work, "the job works, and rank 1 is late")
    screen.shows(f"{job.name}: rank 1 (node 0, pid {ranks[1].pid}) came last in 100% of operations, now +")
    ranks[0].begin()
    screen.shows(f"{job.name}: 1 of 3 ranks wait for 1,2")
    assert all(len(line) <= 80 for line in screen.text().splitlines())
    screen.type("q")
    screen.ended()


def test_percentiles_of_top_are_of_what_was_done_since_the_screen_before(mount):
    """A job that has stood still for an hour has none, and what it took before does not blur what it takes now."""
    job = mount.job(2, size=64)
    ranks = job.ranks()
    with_a_late_rank(ranks, 1)
    screen = top(mount)
    screen.shows(f">{job.name}", where=lambda text: row(text, job.name).split()[2:5] == ["0", "-", "-"])

    def at_work():
        with_a_late_rank(ranks, 1, times=1)
        return re.search(rf">{job.name} +2/2 +[1-9][0-9.]* +[1-9][0-9.]*[um]?s +[1-9][0-9.]*[um]?s ", screen.text())
    wait_until(at_work, "the job works, and has percentiles")
    screen.shows(f">{job.name}", where=lambda text: row(text, job.name).split()[2:5] == ["0", "-", "-"])
    screen.type("q")
    screen.ended()


def test_keys_of_top_pick_sort_open_and_quit(mount):
    jobs = [mount.job(2, size=64, name=name) for name in ("alpha", "beta", "gamma")]
    ranks = jobs[1].ranks()
    with_a_late_rank(ranks, 1)
    screen = top(mount)
    screen.shows(">alpha", " beta", " gamma", "sort: name")
    screen.type("down")
    screen.shows(">beta", " alpha")
    screen.type("r")
    screen.shows("name (reversed)", "gamma", ">beta", "alpha", where=lambda text: in_order(text, "gamma", ">beta", "alpha"))
    screen.type("enter")
    first, late = (str(rank.pid) for rank in ranks)
    screen.shows("last operations", "CAME LAST", "Esc back",
                 where=lambda text: row(text, "1 ").split()[:4] == ["1", "0", late, "present"])
    screen.shows(first, late, where=lambda text: in_order(text, late, first))
    wait_until(lambda: re.search(r"last operations +[▁▂▃▄▅▆▇█]{5}\n", screen.text()), "what they took")
    screen.type("s")
    screen.shows("sort: rank", first, late, where=lambda text: in_order(text, first, late))
    screen.type("escape")
    screen.shows(">beta", "Enter ranks")
    screen.type("tab")
    screen.shows("WRITTEN", " emulated")
    screen.type("tab")
    screen.shows("nothing to be said against this fabric")
    screen.type("tab")
    screen.shows(">beta")
    screen.type("q")
    screen.ended()


def test_top_without_colours_says_it_in_words(mount):
    job, _ = with_a_lost_rank(mount)
    for how, coloured in (({}, True), ({"term": "vt100"}, False), ({"NO_COLOR": "1"}, False),
                          ({"term": "vt100", "LC_ALL": "C"}, False)):
        screen = top(mount, **how)
        screen.shows(f"health  error jobs/{job.name} rank 1 is lost", f"{job.name}: 1 of 2 ranks lost.")
        screen.type("enter")
        screen.shows("CAME LAST", where=lambda text: row(text, "1 ").split()[3:4] == ["lost"])
        screen.type("q")
        equal(bool(re.search(rb"\033\[[0-9;]*3[0-9]\b[0-9;]*m", screen.ended())), coloured, f"colours with {how}")


def test_top_fits_whatever_the_window_becomes(mount):
    jobs = [mount.job(2, name=f"j{number:02}") for number in range(30)]
    screen = top(mount)
    screen.shows(">j00", " j15", but=("j16",))
    screen.resize(132, 50)
    screen.shows(">j00", " j29")
    screen.resize(40, 10)
    screen.shows(">j00", " j01", but=("j02",))
    screen.type(*["down"] * 29)
    screen.shows(f">{jobs[-1].name}")
    for columns, lines in ((1, 1), (3, 200), (200, 3)):
        screen.resize(columns, lines)
        for key in ("tab", "tab", "tab", "enter", "escape"):
            screen.type(key)
    screen.resize(80, 24)
    screen.shows(f">{jobs[-1].name}", "Enter ranks")
    screen.type("q")
    screen.ended()


def test_top_answers_keys_while_the_daemon_does_not(mount):
    job = mount.job(2)
    screen = top(mount, "--timeout", "2")
    screen.shows(f">{job.name}")
    os.kill(mount.pid, signal.SIGSTOP)
    try:
        screen.shows("the daemon does not answer within 2 s", f">{job.name}")
        screen.type("tab")
        screen.shows("WRITTEN", "does not answer")
    finally:
        os.kill(mount.pid, signal.SIGCONT)
    screen.shows("health  ok", but=("does not answer",))
    screen.type("q")
    screen.ended()


def test_top_leaves_the_terminal_as_it_was(mount):
    for end in (lambda screen: screen.type("q"), lambda screen: screen.process.terminate(),
                lambda screen: screen.type("\003")):
        screen = top(mount)
        screen.shows("health  ok")
        end(screen)
        assert b"\033[?1049l" in screen.ended().split(b"health")[-1], "the other screen is still there"


def test_top_without_a_terminal_is_an_error_in_words(mount):
    contains(look(mount.env, "top", "--mount", mount.path, status=2), "wants a terminal", "fabricctl status")
    screen = top(mount, term="no-such-terminal")
    screen.shows("is TERM right")
    screen.ended(2)
    screen = Terminal(f"{mount.env.build}/utils/fabricctl", "top", "--mount", mount.env.directory)
    screen.shows("no fabric")  # and where: a long line of its own
    screen.ended(2)


# --- report ------------------------------------------------------------------------------------------------

class Page(html.parser.HTMLParser):
    """A report, taken apart: the texts in each element, and that every element ends where it should."""

    EMPTY = {"meta", "br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.tags, self.links = [], {}, [], []
        self.feed(text)
        self.close()
        equal(self.open, [], "elements without end")

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action", "data", "xlink:href")]
        assert not any(name.startswith("on") for name, _ in attrs), f"{tag} runs something: {attrs}"
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        equal(tag, self.open.pop(), "the element that ends")

    def handle_data(self, data):
        for tag in self.open:
            self.texts[tag] = self.texts.get(tag, "") + data

    def counts(self, *tags):
        return [self.tags.count(tag) for tag in tags]


def report_of(mount, name):
    path = f"{mount.env.directory}/report.html"
    equal(look(mount.env, "report", name, "--mount", mount.path, "-o", path), "", "what it printed")
    with open(path, encoding="utf-8") as file:
        return file.read()


@needs(nodes=2)
def test_a_report_tells_the_job_in_one_file(fabric):
    fabric.wait_up()
    job = fabric.job([0, 1, 0], size=64, timeout=3)
    ranks = job.ranks()
    with_a_late_rank(ranks, 2)
    ranks[0].begin().fails(errno.ETIMEDOUT)
    text = report_of(fabric[0], job.name)
    page = Page(text)
    contains(page.texts["h1"], f"Job {job.name}")
    contains(page.texts["main"], f"Fabric {fabric.name}, as node 0 of 2 saw it", "are emulated on one machine",
             "3 ranks on 2 nodes.", f"Rank 2 (node 0, process {ranks[2].pid}) keeps the others waiting",
             "it came last in 5 of 5 operations", "missing=1,2", "rank 1 (node 1", "Nothing is to be said against",
             "operation 6: allreduce f32 sum, 16 elements: ETIMEDOUT", "timeout = 3")
    contains(page.texts["style"], ".wait", ".work")
    equal(page.links, [], "what it would fetch")
    equal({"script", "link", "iframe", "object", "img", "form"} & set(page.tags), set(), "what it would run")
    assert "url(" not in text and "@import" not in text and "http" not in text
    equal(page.counts("circle", "ellipse"), [10, 1], "marks of 5 operations, and the ring")
    equal(text.count('class="bad-line"'), 1, "marks of failures")
    ordered = re.findall(r'<tr><td class="n">(\d+)</td><td class="n">[01]</td><td class="n">(\d+)</td>', text)
    equal(ordered[0], ("2", str(ranks[2].pid)), "the latest rank comes first")
    for line in fabric[0].read("events").splitlines():
        if f" jobs/{job.name} " in line:
            contains(page.texts["main"], line.split(" ", 3)[3])


def test_a_report_of_a_job_that_did_nothing_is_whole(mount):
    page = Page(report_of(mount, mount.job(2).name))
    contains(page.texts["main"], "0 of 2", "There were none yet.", "-half take at most")


def test_what_cannot_be_reported_is_refused_in_words(mount):
    job = mount.job(2)
    os.chmod(job.path, 0o700)
    for words, said, uid in ((("nobody",), "no job nobody", None), ((job.name,), "another user's", NOBODY),
                             ((job.name, "-o", f"{mount.env.directory}/no/where"), "No such file", None),
                             ((job.name, "-o", "/dev/full"), "No space left", None), ((), "which job", None),
                             ((job.name, "more"), "unexpected word", None)):
        contains(look(mount.env, "report", *words, "--mount", mount.path, status=2, uid=uid), said)
    screen = Terminal(f"{mount.env.build}/utils/fabricctl", "report", job.name, "--mount", mount.path)
    screen.shows(f"give a file, -o {job.name}.html")
    screen.ended(2)
