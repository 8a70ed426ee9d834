"""Input that is cut, flipped, mixed up or malicious: partial output, a status, never a crash, a hang or an invented
fault."""
import json
import os
import random
import re
import resource

import make
from control import Run, findings, look, write
from make import BRIDGE, GPU, NIC, ROOT_PORT, Fn

MACHINE = make.switch("00:01.0", 1, [GPU, NIC], acs=0x1d)


def run_all(*words):
    """Every command reads it; the JSON is whole whenever there is any."""
    for command in ("links", "topo", "doctor"):
        run = Run(command, "--json", *words)
        if run.out:
            run.json()
        Run(command, *words)


def test_a_dump_cut_anywhere_is_read_as_far_as_it_goes(directory):
    healthy = make.switch("00:01.0", 1, [GPU, NIC])
    text = make.dump(healthy, 256)
    whole, _ = look("doctor", "--dump", write(directory, text))
    assert not findings(whole, severity="fault")
    for cut in range(1, len(text), 307):
        run = Run("doctor", "--json", "--dump", write(directory, text[:cut]))
        if run.status == 2 and not run.out:
            continue  # not even one function
        answer = run.json()
        assert not findings(answer, severity="fault"), (cut, answer["findings"])


def test_a_cut_dump_names_the_function_where_it_ends(directory):
    text = make.dump(make.pair(), 256)
    answer, status = look("links", "--dump", write(directory, text[:-300]))
    assert status == 2 and not answer["complete"]
    assert [gap["address"] for gap in answer["missing"]] == ["0000:01:00.0"] and answer["missing"][0]["kind"] == "cut"
    assert "0000:01:00.0" in Run("links", "--dump", os.path.join(directory, "machine")).out


def test_flipped_bits_crash_nothing(directory):
    source = random.Random(7)
    text = bytearray(make.dump(MACHINE).encode())
    for _ in range(25):
        flipped = bytearray(text)
        for _ in range(source.randrange(1, 40)):
            flipped[source.randrange(len(flipped))] ^= 1 << source.randrange(8)
        path = os.path.join(directory, "flipped")
        with open(path, "wb") as file:
            file.write(flipped)
        run_all("--dump", path)


def test_flipped_registers_crash_nothing(directory):
    source = random.Random(11)
    for _ in range(25):
        lines = []
        for fn in MACHINE:
            config = bytearray(fn.config())
            for _ in range(source.randrange(1, 30)):
                config[source.choice((source.randrange(0x40), source.randrange(0x40, 0x80),
                                      source.randrange(0x100, 0x180)))] = source.randrange(256)
            lines.append(fn.address + " flipped\n")
            lines += [f"{at:02x}: {config[at:at + 16].hex(' ')}\n" for at in range(0, 4096, 16)] + ["\n"]
        run_all("--dump", write(directory, "".join(lines)))


def test_noise_is_refused_or_read(directory):
    source = random.Random(13)
    path = os.path.join(directory, "noise")
    for size in (0, 1, 100, 100000):
        with open(path, "wb") as file:
            file.write(source.randbytes(size))
        run_all("--dump", path)


def test_bus_numbers_that_loop_end(directory):
    ring = [Fn(f"{i:02x}:00.0", BRIDGE, ROOT_PORT, buses=(i, (i + 1) % 200, 255), slot=True) for i in range(1, 200)]
    ring.append(Fn("00:00.0", BRIDGE, ROOT_PORT, buses=(0, 1, 255)))
    ring[198 - 1].buses = (198, 1, 255)
    path = write(directory, make.dump(ring, 256))
    run_all("--dump", path)
    answer, status = look("doctor", "--dump", path)
    assert status == 1 and findings(answer, "bus-tree")


def test_contradicting_bus_numbers_are_named(directory):
    machine = [Fn("00:01.0", BRIDGE, ROOT_PORT, buses=(0, 5, 3), slot=True)]
    answer, _ = look("doctor", "--dump", write(directory, make.dump(machine)))
    assert findings(answer, "bus-numbers", "warning")


def test_thousands_of_functions_in_thousands_of_domains_take_no_time(directory):
    lines = [f"{domain:x}:00:00.0 x\n00: 86 80 34 12\n\n" for domain in range(0x10000, 0x10000 + 20000)]
    path = write(directory, "".join(lines))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    answer, status = look("links", "--dump", path)
    assert status == 2 and answer["functions"] == 16384
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 10


def test_names_cannot_reach_the_terminal(directory):
    evil = "\033[2J\007evil"
    machine = make.pair(device={"attrs": {"uevent": "DRIVER=" + evil, "power_state": evil,
                                          "aer_dev_correctable": evil + " 3\nTOTAL_ERR_COR 3"}})
    tree = make.sysfs(machine, directory + "/tree")
    for command in ("links", "topo", "doctor"):
        for words in ([], ["--json"]):
            run = Run(command, "--sysfs", tree, *words)
            assert "\033" not in run.out and "\007" not in run.out, command
    assert "?[2J?evil 3" in Run("doctor", "--sysfs", tree).out


def test_a_tree_with_missing_odd_and_endless_files_is_read(directory):
    source = random.Random(17)
    values = ("", "Unknown", "0", "255", "-1", "99999999999999999999", "0x", "8.0 GT/s PCIe", "a" * 100000, "\n\n\n",
              "\0\0\0", "12 34", "TOTAL_ERR_COR 1")
    for round_number in range(12):
        machine = make.switch("00:01.0", 1, [GPU, NIC])
        for fn in machine:
            names = list(make.attributes(fn)) + ["aer_dev_fatal", "resource", "iommu_group", "config", "power_state"]
            for name in source.sample(names, 4):
                fn.attrs = {**fn.attrs, name: source.choice(values + (None, None))}
        tree = make.sysfs(machine, f"{directory}/{round_number}", config=source.choice((0, 64, 256, 100, 4096)),
                          links=source.choice(("links", "text")))
        run_all("--sysfs", tree)


def test_links_out_of_the_tree_and_special_files_are_left_alone(directory):
    tree = make.sysfs(make.pair(device={"attrs": {"vendor": None, "class": None}}), directory + "/tree", config=0)
    device = os.path.join(tree, "bus/pci/devices/0000:01:00.0")
    os.symlink("/etc/passwd", device + "/vendor")
    os.symlink("/dev/zero", device + "/config")
    os.mkfifo(device + "/class")
    os.symlink("/", os.path.join(tree, "bus/pci/devices/0000:02:00.0"))
    os.symlink("0000:03:00.0", os.path.join(tree, "bus/pci/devices/0000:03:00.0"))
    write(tree, "../../../../../../etc", "bus/pci/devices/0000:04:00.0")
    run_all("--sysfs", tree)
    answer, status = look("links", "--sysfs", tree)
    assert status == 2 and {gap["address"] for gap in answer["missing"]} == {
        "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"}, answer["missing"]


def test_a_tree_of_users_without_root_says_so(directory):
    tree = make.sysfs(make.pair(), directory + "/tree", config=64)
    answer, status = look("links", "--sysfs", tree)
    assert status == 0 and [gap["kind"] for gap in answer["missing"]] == ["needs-root"]
    assert answer["links"][0]["verdict"] == "full", "speeds come from the attributes"


# --- copies of a mounted fabric's files --------------------------------------------------------------------

FABRIC = {
    "version": "fabricfs 0.1.0\n",
    "stats": "fabric rack\nnode 0\npid 7\nuptime_s 3\nbuffer_mode passthrough\nmemory_used_bytes 5\n",
    "health": "warn nodes/1 is absent: silent; next: start its daemon\n",
    "metrics": "# TYPE fabricfs_job_world gauge\nfabricfs_job_world{job=\"j\"} 2\n"
               "fabricfs_job_ops_total{job=\"j\",collective=\"allreduce\"} 4\n"
               "fabricfs_job_latency_seconds{job=\"j\",quantile=\"0.999\"} 0.000012500\n"
               "fabricfs_rank_arrived_last_total{job=\"j\",rank=\"1\"} 4\n"
               "fabricfs_rank_late_seconds_total{job=\"j\",rank=\"1\"} 0.004\n"
               "fabricfs_link_errors_total{node=\"1\",kind=\"fatal\"} 3\n",
    "nodes/0/link": "state self\nmemory RAM\n",
    "nodes/1/link": "state absent\nwhy silent\nhost b\ndevice 0000:03:00.0\n",
    "jobs/j/stats": "world 2\nranks_waiting 1\nranks_missing 1\nlast_failure -\nrank1_late_max_us 1500\n",
    "jobs/j/config": "world = 2\n",
    "jobs/j/trace": '{"traceEvents":[{"name":"wait","ph":"X","ts":5,"dur":3,"args":{"seq":1,"last_rank":1}},'
                    '{"name":"allreduce","ph":"X","ts":8,"dur":2,"args":{"seq":1,"op":"sum","result":"ok"}}]}',
    "events": "2026-11-30T17:31:43.928Z info jobs/j made\n",
    "topology": "node 0 host=a\nring 0 1 (by number)\n",
    "jobs/j/members": "rank=0 node=0 pid=8 state=present last=4\nrank=1 node=1 pid=9 state=lost last=4 suspect=yes\n",
}


def fabric(directory, name, **files):
    """A directory with these files of a fabric, some of them others; its path."""
    for path, text in {**FABRIC, **files}.items():
        path = os.path.join(directory, name, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
    return os.path.join(directory, name)


def look_at(tree):
    """All that looks at a mounted fabric; the JSON of status, or None when it is no fabric."""
    run = Run("status", "--json", "--mount", tree)
    assert Run("status", "--mount", tree).status == run.status
    Run("report", "j", "--mount", tree)
    return run.json() if run.out else None


def test_copies_of_a_fabric_are_read_like_a_fabric(directory):
    answer, status = look("status", "--mount", fabric(directory, "copy"))
    job = answer["jobs"][0]
    assert status == 1 and answer["complete"] and answer["fabric"] == "rack"
    assert [job[key] for key in ("world", "in", "ops", "missing", "slowest")] == [2, 1, 4, [1], 1]
    assert job["latency_us"]["p99.9"] == 12.5 and job["latency_us"]["p50"] is None
    assert [job["ranks"][1][key] for key in ("suspect", "late_mean_us", "late_max_us", "state")] == [
        True, 1000, 1500, "lost"]
    assert [answer["nodes"][1][key] for key in ("why", "errors", "device")] == ["silent", 3, "0000:03:00.0"]


def test_a_fabric_with_flipped_bits_crashes_nothing(directory):
    source = random.Random(23)
    for number in range(40):
        files = {}
        for name, text in FABRIC.items():
            text = bytearray(text.encode())
            for _ in range(source.randrange(0, 6)):
                text[source.randrange(len(text))] = source.choice(b"0919 \n\0\"{}=,.-e\xff;")
            files[name] = bytes(text[:source.choice((len(text), source.randrange(len(text) + 1)))])
        look_at(fabric(directory, str(number), **files))


def test_figures_beyond_reason_are_not_known(directory):
    for word in ("-1", "nan", "inf", "1e999", "0x10", "1025", "99999999999999999999", "4 4", ""):
        answer = look_at(fabric(directory, "odd", **{
            "stats": f"node {word}\n", "jobs/j/stats": f"world {word}\nrank{word}_late_max_us {word}\n",
            "metrics": f"fabricfs_job_world{{job=\"j\"}} {word}\nfabricfs_job_ops_total{{job=\"j\"}} {word}\n",
            "jobs/j/members": f"rank={word} node={word} pid={word}\n"}))
        assert answer["jobs"][0]["world"] is None and answer["jobs"][0]["ranks"] == [], word


def test_a_fabric_cannot_reach_the_terminal(directory):
    evil = "\033[2J\007evil\x9b2J"
    tree = fabric(directory, "evil", **{name: text.replace(" ", f" {evil}", 1) for name, text in FABRIC.items()
                                       if name != "version"})
    os.makedirs(f"{tree}/jobs/\033[2J")
    for words in ([], ["--json"]):
        run = Run("status", "--mount", tree, *words)
        assert not set("\033\007\x9b") & set(run.out) and "evil" in run.out, run.out


def test_a_fabric_of_special_and_endless_files_is_read_in_time(directory):
    tree = fabric(directory, "special")
    for name, target in (("stats", "/dev/zero"), ("health", "/proc/kmsg"), ("topology", "topology")):
        if os.path.exists(f"{tree}/{name}"):
            os.unlink(f"{tree}/{name}")
        os.symlink(target, f"{tree}/{name}")
    os.unlink(f"{tree}/metrics")
    os.mkfifo(f"{tree}/metrics")
    for number in range(600):
        os.makedirs(f"{tree}/jobs/job{number}")
    answer = look_at(tree)
    assert not answer["complete"] and answer["fabric"] is None
    with open(f"{tree}/version", "r+b") as file:
        file.truncate(1 << 40)
    assert look_at(tree)["complete"] is False


def test_a_report_shows_what_a_fabric_says_and_does_not_obey_it(directory):
    evil = "<script>alert(1)</script><b a='\"&"
    words = re.compile("absent|silent|made|rack|allreduce")
    tree = fabric(directory, "evil", **{
        name: words.sub(lambda _, text=text: json.dumps(evil)[1:-1] if text[0] == "{" else evil, text)
        for name, text in FABRIC.items() if name != "metrics"})
    run = Run("report", "j", "--mount", tree)
    assert run.status == 0 and "<script" not in run.out and "<b a" not in run.out
    assert run.out.count("&lt;script&gt;alert(1)") >= 4, run.out


def test_a_trace_of_nonsense_is_refused_or_drawn(directory):
    spans = '{"name":"wait","ph":"X","ts":%s,"dur":%s,"args":{"seq":1,"last_rank":%s}},' \
            '{"name":"allreduce","ph":"X","ts":0,"dur":%s,"args":{"seq":1,"result":"%s"}}'
    for trace in ("", "{}", "[]", '{"traceEvents":{}}', '{"traceEvents":[1,null,{},{"ph":"X"}]}', "[" * 100000,
                  *('{"traceEvents":[%s]}' % ",".join([spans % (n, n, n, n, "x" * 99)] * 9)
                    for n in ("0", "-1", "1e300", "1e-300", '"a"', "null", "1e15"))):
        run = Run("report", "j", "--mount", fabric(directory, "trace", **{"jobs/j/trace": trace}))
        assert run.status in (0, 2)
        assert not re.search(r"=\"-?(nan|inf)", run.out) and len(run.out) < 100000, trace
