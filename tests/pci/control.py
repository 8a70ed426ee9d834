"""Runs fabricctl and reads what it says."""
import json
import os
import subprocess

PROGRAM = None   # set by run.py
RECORDED = None
SECONDS = 60     # a run that takes longer hangs


class Skip(Exception):
    """The test cannot run here; says why."""


class Run:
    def __init__(self, *words, stdin=None):
        done = subprocess.run([PROGRAM, *words], input=stdin, capture_output=True, timeout=SECONDS, check=False)
        self.status = done.returncode
        self.out = done.stdout.decode("utf-8", "replace")
        self.err = done.stderr.decode("utf-8", "replace")
        assert self.status in (0, 1, 2), f"{words}: status {self.status}\n{self.err}"
        assert "Sanitizer" not in self.err and "runtime error" not in self.err, self.err

    def json(self):
        return json.loads(self.out)


def look(command, *words, stdin=None):
    """The JSON of a command, and its exit status."""
    run = Run(command, "--json", *words, stdin=stdin)
    return run.json(), run.status


def write(directory, text, name="machine"):
    path = os.path.join(directory, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def recorded(name):
    """The path of a recorded machine; skips the test when it is not there."""
    path = os.path.join(RECORDED, name)
    if not os.path.exists(path):
        raise Skip("no recorded machines beside the project")
    return path


def findings(answer, check=None, severity=None):
    return [finding for finding in answer["findings"]
            if check in (None, finding["check"]) and severity in (None, finding["severity"])]


def function(answer, address):
    """One function of doctor's or topo's devices."""
    full = address if address.count(":") == 2 else "0000:" + address
    return next(fn for fn in answer["devices"] if fn["address"] == full)


def link_of(answer, address):
    """The link of links --json that a function is an end of; None without one."""
    full = address if address.count(":") == 2 else "0000:" + address
    for link in answer["links"]:
        ends = [link["above"], link["below"]]
        if full in link["functions"] or any(end and end["address"] == full for end in ends):
            return link
    return None
