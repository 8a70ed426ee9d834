"""utils/examples: the same small rank in several languages, each run as it is; they even meet each other."""
import os
import shutil
import subprocess

from harness import Skip, equal, needs, wait_until
from ranks import TREE

EXAMPLES = f"{TREE}/utils/examples"
LINES_MAX = 30
RUN = {  # how each is started; {name} is the file, {out} what was built of it
    "mean.sh": (["sh", "{name}"], None),
    "mean.c": (["{out}"], ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", "{out}", "{name}"]),
    "mean.pl": (["perl", "{name}"], None),
    "mean.js": (["node", "{name}"], None),
    "mean.go": (["{out}"], ["go", "build", "-o", "{out}", "{name}"]),
    "mean.R": (["Rscript", "--vanilla", "{name}"], None),
}


MEANS = ["0.5", "1.5", "2.5", "3.5"]
GIVES = {"mean.sh": ["1", "20"], "mean.go": ["0.5", "1", "2", "3"]}  # those that reduce something else


def command(name, directory):
    """The words that start a rank of this example, built when it has to be."""
    def fill(words):
        return [word.format(name=f"{EXAMPLES}/{name}", out=f"{directory}/{name}.out") for word in words]
    run, build = RUN[name]
    tool = (build or run)[0]
    if not shutil.which(tool):
        raise Skip(f"{tool} is not installed")
    if build:
        subprocess.run(fill(build), check=True, timeout=100,
                       env={**os.environ, "GOCACHE": f"{directory}/cache", "GO111MODULE": "off"})
    return fill(run)


def start(words, mount, rank, world):
    return subprocess.Popen([*words, mount.path, str(rank), str(world)], stdout=subprocess.PIPE, text=True)


def said(process):
    """What a rank printed, as words."""
    out = process.communicate(timeout=60)[0]
    equal(process.returncode, 0, "exit status")
    return out.split()


def check_alone(mount, name):
    """Two ranks of one language."""
    words = command(name, mount.env.directory)
    ranks = [start(words, mount, rank, 2) for rank in range(2)]
    for rank, process in enumerate(ranks):
        printed = said(process)
        equal(printed[:2] + [word.strip("[]") for word in printed[2:]], ["rank", f"{rank}:"] + GIVES.get(name, MEANS), name)


def example_test(name):
    @needs(seconds=150)
    def test(mount):
        check_alone(mount, name)
    return test


for _name, _title in (("mean.sh", "shell"), ("mean.c", "c"), ("mean.pl", "perl"), ("mean.js", "node_js"), ("mean.go", "go"),
                      ("mean.R", "r")):
    globals()[f"test_the_example_in_{_title}_runs"] = example_test(_name)


@needs(mount=False, modes=("coherent",))
def test_every_example_is_run_and_has_at_most_30_lines(_):
    equal(sorted(os.listdir(EXAMPLES)), sorted(RUN), "the examples")
    for name in RUN:
        with open(f"{EXAMPLES}/{name}", encoding="utf-8") as file:
            lines = len(file.read().splitlines())
        assert lines <= LINES_MAX, f"{name} has {lines} lines"


def test_ranks_in_different_languages_meet(mount):
    perl = command("mean.pl", mount.env.directory)
    ranks = [start(perl, mount, 0, 2), start(command("mean.c", mount.env.directory), mount, 1, 2)]
    for rank in ranks:
        equal(said(rank)[2:], MEANS)
    wait_until(lambda: "state=present" not in mount.read("jobs/mean/members"), "both have ended")
