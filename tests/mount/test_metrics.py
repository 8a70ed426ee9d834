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
    ranks = fabric.job([0, 1], size=64, timeout=1).ranks()
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
    names = set(there) | {f"{name}_{part}" for name, kind in there.items() if kind == "summary" for part in ("sum", "count")}
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

    def asked():
        query = urllib.parse.quote(f'fabricfs_job_ops_total{{job="{job.name}",collective="allreduce"}}')
        with contextlib.suppress(OSError), \
                urllib.request.urlopen(f"http://127.0.0.1:{server}/api/v1/query?query={query}") as answer:
            return [sample["value"][1] for sample in json.load(answer)["data"]["result"]]
        return []

    with running("prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile",
                 f"--collector.textfile.directory={where}/textfile", f"--web.listen-address=127.0.0.1:{exporter}",
                 log=f"{where}/exporter.log"), \
            running("prometheus", f"--config.file={where}/prometheus.yml", f"--storage.tsdb.path={where}/tsdb",
                    f"--web.listen-address=127.0.0.1:{server}", log=f"{where}/prometheus.log"):
        equal(wait_until(asked, "Prometheus knows the operations", 30), ["1"], "operations")
