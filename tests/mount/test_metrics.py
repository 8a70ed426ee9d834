"""The metrics, and what ships to read them: alert rules and a dashboard for Prometheus and Grafana."""
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request

from harness import contains, equal, needs, run_all, sh, wait_until

PROMETHEUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../utils/prometheus")


def families(text):
    """{name: type} as the TYPE lines say."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))


def in_use(fabric):
    """A fabric that has something to say: a job that worked, failed, and waits."""
    fabric.wait_up()
    ranks = fabric.job([0, 1], size=64, timeout=2).ranks()
    run_all(ranks)
    ranks[0].begin().error()
    return fabric[0].read("metrics")


@needs(nodes=2, tools=("promtool",))
def test_promtool_accepts_the_metrics(fabric):
    text = in_use(fabric)
    done = subprocess.run(["promtool", "check", "metrics"], input=text.encode(), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    equal((done.returncode, done.stdout.decode()), (0, ""), "promtool check metrics")


@needs(mount=False, tools=("promtool",))
def test_promtool_sees_each_alert_fire_when_it_should(_):
    sh(f"promtool check rules {PROMETHEUS}/fabricfs.rules.yml")
    sh(f"cd {PROMETHEUS} && promtool test rules fabricfs.test.yml")


@needs(nodes=2)
def test_rules_and_dashboard_use_metrics_that_exist(fabric):
    there = families(in_use(fabric))
    parts = {"summary": ("sum", "count"), "histogram": ("sum", "count", "bucket")}
    names = set(there) | {f"{name}_{part}" for name, kind in there.items() for part in parts.get(kind, ())}
    for name in ("fabricfs.rules.yml", "fabricfs.test.yml", "fabricfs-dashboard.json"):
        with open(f"{PROMETHEUS}/{name}", encoding="utf-8") as file:
            used = set(re.findall(r"\bfabricfs_\w+", file.read()))
        assert used and used <= names, f"{name}: {sorted(used - names)} are no metrics"
    with open(f"{PROMETHEUS}/fabricfs-dashboard.json", encoding="utf-8") as file:
        assert all(panel["targets"] for panel in json.load(file)["panels"])


@needs(mount=False, modes=("coherent",))
def test_each_alert_has_a_test_in_which_it_fires(_):
    with open(f"{PROMETHEUS}/fabricfs.rules.yml", encoding="utf-8") as file:
        alerts = set(re.findall(r"alert: (\w+)", file.read()))
    with open(f"{PROMETHEUS}/fabricfs.test.yml", encoding="utf-8") as file:
        fired = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n +- exp_labels", file.read()))
    equal(fired, alerts, "alerts that fire in a test")


def test_every_family_has_help_type_and_a_fitting_name(mount):
    run_all(mount.job(2, size=64).ranks())
    text = mount.read("metrics")
    for name, kind in families(text).items():
        contains(text, f"# HELP {name} ")
        equal(name.endswith("_total"), kind == "counter", f"{name} is a {kind}")
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) .*|fabricfs_\w+(\{(\w+="[^"\\]*",?)+\})? [-+.e\d]+', line), line


def durations_of(job, text):
    """The histogram of a job: [(edge in seconds, requests within it)], their sum in seconds and their count."""
    start = rf'^fabricfs_job_request_duration_seconds_{{}}\{{{{job="{job.name}"{{}}\}}}} (\S+)$'
    buckets = re.findall(start.format("bucket", ',le="(.*)"'), text, re.M)
    total, count = (float(re.search(start.format(part, ""), text, re.M)[1]) for part in ("sum", "count"))
    return [(float(edge), int(within)) for edge, within in buckets], total, int(count)


def test_the_histogram_has_each_request_in_the_bucket_of_its_duration(mount):
    job = mount.job(2, size=64, timeout=3)
    ranks = job.ranks()
    equal(durations_of(job, mount.read("metrics"))[1:], (0, 0), "before the first")
    for _ in range(20):
        run_all(ranks)
    ranks[0].begin().error()  # failed ones have no latency
    text = mount.read("metrics")
    buckets, total, count = durations_of(job, text)
    edges, within = zip(*buckets)
    equal((count, within[-1], edges[-1]), (40, 40, float("inf")), "requests")
    assert all(1.3 < high / low < 1.6 for low, high in zip(edges, edges[1:-1])), edges
    assert edges[0] < 20e-6 and edges[-2] > 60, edges
    each = [high - low for low, high in zip((0, *within), within)]
    assert min(each) >= 0, within
    least = sum(low * times for low, times in zip((0, *edges), each))
    most = sum(high * times for high, times in zip(edges, each) if times)
    assert least <= total <= most, f"they sum up to {total}, by their buckets {least} to {most}"
    median = float(re.search(rf'job_latency_seconds{{job="{job.name}",quantile="0.5"}} (.*)', text)[1])
    place = next(i for i, requests in enumerate(within) if requests >= count / 2)
    assert (0, *edges)[place] <= median <= edges[place], f"{median} is not in {buckets}"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@contextlib.contextmanager
def running(*command, log):
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@needs(tools=("prometheus", "prometheus-node-exporter"))
def test_a_real_prometheus_reads_them_through_the_textfile_collector(mount):
    job = mount.job(2, size=64)
    run_all(job.ranks())
    where, exporter, server = mount.env.directory, free_port(), free_port()
    os.mkdir(f"{where}/textfile")
    shutil.copyfile(mount.file("metrics"), f"{where}/textfile/fabricfs.prom.part")
    os.rename(f"{where}/textfile/fabricfs.prom.part", f"{where}/textfile/fabricfs.prom")
    with open(f"{where}/prometheus.yml", "w", encoding="utf-8") as config:
        config.write(f"scrape_configs: [{{job_name: node, scrape_interval: 1s, honor_labels: true, "
                     f"static_configs: [{{targets: ['127.0.0.1:{exporter}']}}]}}]\n"
                     f"rule_files: ['{os.path.realpath(PROMETHEUS)}/fabricfs.rules.yml']\n")

    def asked(query):
        query = urllib.parse.quote(query)
        with contextlib.suppress(OSError), \
                urllib.request.urlopen(f"http://127.0.0.1:{server}/api/v1/query?query={query}") as answer:
            return [sample["value"][1] for sample in json.load(answer)["data"]["result"]]
        return []

    with running("prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile",
                 f"--collector.textfile.directory={where}/textfile", f"--web.listen-address=127.0.0.1:{exporter}",
                 log=f"{where}/exporter.log"), \
            running("prometheus", f"--config.file={where}/prometheus.yml", f"--storage.tsdb.path={where}/tsdb",
                    f"--web.listen-address=127.0.0.1:{server}", log=f"{where}/prometheus.log"):
        said = wait_until(lambda: asked(f'fabricfs_job_ops_total{{job="{job.name}",collective="allreduce"}}'),
                          "Prometheus knows the operations", 30)
        equal(said, ["1"], "operations")
        # The one bucket of both requests, or that of the slower one, has the quantile.
        said = asked(f'histogram_quantile(0.999, fabricfs_job_request_duration_seconds_bucket{{job="{job.name}"}})')
        buckets = durations_of(job, mount.read("metrics"))[0]
        above = max([0] + [edge for edge, within in buckets if within < 2])
        until = min(edge for edge, within in buckets if within == 2)
        assert above < float(said[0]) <= until, f"{said} is not between {above} and {until}"
