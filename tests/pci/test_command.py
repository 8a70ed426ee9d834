"""The command line: help, options, exit status, colours, and what a recording may come as."""
import json
import os
import re
import shutil
import subprocess
import time

import control
import make
from control import Run, look, write

COMMANDS = ("doctor", "topo", "links", "plan", "perf", "status", "top", "report")


def test_help_of_every_command_names_every_option_of_the_manual(directory):
    manual = os.path.join(os.path.dirname(__file__), "../../utils/fabricctl.1")
    with open(manual, encoding="utf-8") as file:
        documented = set(re.findall(r"\\-\\-([a-z]+(?:\\-[a-z]+)*)", file.read()))
    shown = set()
    for command in COMMANDS:
        run = Run(command, "--help")
        assert run.status == 0 and run.out.startswith(f"Usage: fabricctl {command}"), run.out
        shown |= set(re.findall(r"^  --([a-z-]+)", run.out, re.M))
    assert {option.replace("\\-", "-") for option in documented} == shown


def test_a_wrong_command_line_is_status_2_with_a_reason_on_standard_error(directory):
    for words in ([], ["nonsense"], ["doctor", "extra"], ["links", "--nonsense"], ["links", "--dump"],
                  ["links", "--dump", "a", "--sysfs", "b"], ["links", "--watch", "--dump", "a"], ["plan", "--dump", "a"],
                  ["plan", "--gen", "7"], ["plan", "--width", "x3"], ["plan", "--efficiency", "0"],
                  ["plan", "--efficiency", "101"], ["plan", "--size", "0"], ["plan", "--nodes", "0"],
                  ["plan", "--gbytes", "nan"], ["links", "--json=1"], ["topo", "--json", "--dot"],
                  ["links", "--color", "blue"], ["doctor", "--proc", "/proc"], ["links", "--interval", "0"]):
        run = Run(*words)
        assert run.status == 2 and run.err.startswith("fabricctl: ") and not run.out, (words, run.out, run.err)


def test_input_that_is_not_there_is_status_2_and_named(directory):
    for words in (["--dump", "/nonexistent/file"], ["--sysfs", "/nonexistent/dir"], ["--sysfs", directory],
                  ["--dump", directory], ["--dump", write(directory, "nothing of that kind\n")]):
        for command in ("doctor", "topo", "links"):
            run = Run(command, *words)
            assert run.status == 2 and words[1] in run.err and not run.out, (command, words, run.err)


def test_a_recording_may_come_through_a_pipe(directory):
    answer, status = look("links", "--dump", "-", stdin=make.dump(make.pair()).encode())
    assert status == 0 and answer["links"][0]["verdict"] == "full"


def test_a_sysfs_tree_may_hold_links_texts_or_directories(directory):
    for links in ("links", "text", "directories"):
        tree = make.sysfs(make.pair(), os.path.join(directory, links), links=links)
        answer, status = look("links", "--sysfs", tree)
        assert status == 0 and len(answer["links"]) == 1, (links, answer)
        assert answer["links"][0]["above"]["address"] == "0000:00:01.0", links


def test_colours_are_for_terminals_or_on_request(directory):
    path = write(directory, make.dump(make.pair(now=(2.5, 4))))
    assert "\033[" not in Run("links", "--dump", path).out
    assert "\033[31m" in Run("links", "--dump", path, "--color", "always").out
    read, control_end = os.openpty()
    with subprocess.Popen([control.PROGRAM, "links", "--dump", path], stdout=control_end) as process:
        os.close(control_end)
        seen = b""
        while True:
            try:
                chunk = os.read(read, 4096)
            except OSError:
                break
            if not chunk:
                break
            seen += chunk
        process.wait()
    os.close(read)
    assert b"\033[31m" in seen


def test_a_full_disk_is_an_error(directory):
    path = write(directory, make.dump(make.pair()))
    with open("/dev/full", "w", encoding="utf-8") as full:
        for command in (["links", "--dump", path], ["doctor", "--json", "--dump", path], ["plan"]):
            done = subprocess.run([control.PROGRAM, *command], stdout=full, stderr=subprocess.PIPE, check=False)
            assert done.returncode == 2 and b"error" in done.stderr, (command, done.stderr)


def test_this_machine_can_be_looked_at(directory):
    if not os.path.isdir("/sys/bus/pci/devices"):
        raise control.Skip("this machine has no PCI")
    there = len(os.listdir("/sys/bus/pci/devices"))
    for command in ("doctor", "topo", "links"):
        answer, status = look(command)
        assert status in (0, 1) and answer["source"]["kind"] == "live" and answer["functions"] == there, command


def test_a_machine_without_pci_is_still_looked_at(directory):
    hide = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /sys && exec \"$@\"", "sh"]
    if subprocess.run(hide + ["true"], capture_output=True, check=False).returncode:
        raise control.Skip("mount namespaces are not allowed here")
    done = subprocess.run(hide + [control.PROGRAM, "doctor", "--json"], capture_output=True, check=False)
    answer = json.loads(done.stdout)
    assert done.returncode == 2 and answer["functions"] == 0 and "no PCI here" in answer["missing"][0]["text"]


def test_users_are_told_what_needs_root(directory):
    if os.geteuid() or not os.path.isdir("/sys/bus/pci/devices"):
        raise control.Skip("needs root to become a user, and a machine with PCI")
    os.chmod(directory, 0o755)
    program = shutil.copy(control.PROGRAM, directory)
    become = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    done = subprocess.run(become + [program, "doctor", "--json"], capture_output=True, check=False)
    answer = json.loads(done.stdout)
    assert done.returncode in (0, 1) and [gap["kind"] for gap in answer["missing"]] == ["needs-root"], done.stderr
    assert all(fn["config_bytes"] <= 64 for fn in answer["devices"])


def test_watch_ends_after_its_samples(directory):
    if not os.path.isdir("/sys/bus/pci/devices"):
        raise control.Skip("this machine has no PCI")
    begin = time.monotonic()
    run = Run("links", "--watch", "--samples", "3", "--interval", "0.02")
    assert run.status in (0, 1) and run.out.startswith("VERDICT") and time.monotonic() - begin >= 0.04


def test_plan_reproduces_the_tables_and_says_where_it_differs(directory):
    answer, status = look("plan")
    assert status == 0
    x16 = [round(row["raw"]["x16"], 2) for row in answer["bandwidth"]]
    assert x16 == [4.0, 8.0, 15.75, 31.51, 63.02, 118.0], x16
    payload = [[round(row["x16_payload"][key], 1) for key in ("64", "128", "256", "512")] for row in answer["bandwidth"]]
    assert payload[2] == [11.5, 13.3, 14.4, 15.0] and payload[5] == [85.8, 99.4, 107.9, 112.7], payload
    differing = {claim["what"] for claim in answer["articles"] if not claim["agrees"]}
    assert "PCIe 6.0, one lane" in differing and "allreduce of 256 MB, 4 nodes, 12 GB/s" in differing
    assert all(claim["why"] for claim in answer["articles"])
    assert not differing & {"Gen3 x16", "cables point to point, 8 nodes", "512 MB over Gen3 x16"}


def test_plan_counts_two_thirds_of_a_buffer_for_three_nodes(directory):
    answer, _ = look("plan", "--nodes", "3", "--size", "300M", "--gbytes", "10", "--per-node", "1")
    reduce = answer["allreduce"]
    assert abs(reduce["sent_bytes_reduced"] - 400 * 2**20) < 1
    assert abs(reduce["times"][0]["reduced_ms"] - 400 * 2**20 / 10e6) < 1e-3
    assert answer["cables"] == {"mesh": 3, "switch": 3}
    alone, _ = look("plan", "--nodes", "1")
    assert alone["allreduce"]["sent_bytes_reduced"] == 0
