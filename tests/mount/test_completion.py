"""Completion in bash offers what the programs take: commands, options, and words for their values."""
import re
import subprocess

from harness import equal, needs
from test_pages import TREE

ASK = """
. "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
"_${1##*/}" "$1"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def offered(program, *words):
    """What is offered for the last of the words behind the program, as bash splits them: "--a=b" is three."""
    script = f"{TREE}/utils/completion/{program.rsplit('/', 1)[1]}"
    done = subprocess.run(["bash", "-c", ASK, "bash", script, program, *words], stdout=subprocess.PIPE, check=True,
                          stderr=subprocess.STDOUT, cwd=TREE, timeout=20, text=True)
    return set(done.stdout.split())


def control(env):
    return f"{env.build}/utils/fabricctl"


def manual(path):
    with open(path, encoding="utf-8") as file:
        return file.read().replace("\\-", "-")


@needs(mount=False, modes=("coherent",), tools=("bash",))
def test_options_of_fabricfs_are_those_of_its_manual(env):
    page = manual(f"{env.build}/fs/fabricfs.8")
    known = set(re.findall(r"--[a-z_]+", page[page.index(".SH OPTIONS"):page.index(".SH", page.index(".SH OPTIONS") + 3)]))
    assert len(known) > 20, f"options of the manual: {known}"
    equal(offered(env.program, "--"), known, "options")
    equal(offered(env.program, "-o", ""), {f"{name[2:]}=" for name in known} - {
        "foreground=", "faults=", "help=", "version="}, "names behind -o")


@needs(mount=False, modes=("coherent",), tools=("bash",))
def test_values_of_fabricfs_are_those_it_takes(env):
    modes = {"auto", "passthrough", "coherent"}
    for words in (["--buffer", ""], ["--buffer", "="], ["--buffer", "=", ""], ["-o", "buffer", "="],
                  ["-o", "buffer", "=", ""]):
        equal(offered(env.program, *words), modes, f"behind {words}")
    equal(offered(env.program, "--buffer", "=", "c"), {"coherent"}, "behind --buffer=c")
    equal(offered(env.program, "--log", ""), {"error", "warning", "info", "debug"}, "levels")
    equal(offered(env.program, "--awake", ""), {"auto", "never"}, "awake")
    equal(offered(env.program, "--huge", ""), {"never", "always", "within_size", "advise"}, "huge pages")
    equal(offered(env.program, "--config", "=", "READ"), {"README.md"}, "files")
    equal(offered(env.program, "utils/pag"), {"utils/pages"}, "mount points")
    for name in ("buffer", "log", "huge", "awake"):
        for word in offered(env.program, f"--{name}", ""):
            subprocess.run([env.program, f"--{name}={word}", "--version"], check=True, stdout=subprocess.DEVNULL)


@needs(mount=False, modes=("coherent",), tools=("bash",))
def test_commands_and_options_of_fabricctl_are_those_of_its_manual(env):
    page = manual(f"{TREE}/utils/fabricctl.1")
    commands = set(re.findall(r"^\.B fabricctl (\w+)$", page, re.M))
    assert commands >= {"doctor", "topo", "links", "plan", "perf"}, f"commands of the manual: {commands}"
    equal(offered(control(env), ""), commands, "commands")
    found = set().union(*(offered(control(env), command, "--") for command in commands))
    equal(found, set(re.findall(r"^\.BI? (--[a-z-]+)", page, re.M)), "options")


@needs(mount=False, modes=("coherent",), tools=("bash",))
def test_values_of_fabricctl_are_those_of_the_interface(env):
    for option, words in {
            "--color": "auto always never", "--io": "mmap rw", "--op": "sum avg min max prod band bor bxor",
            "--dtype": "f32 f64 f16 bf16 i8 u8 i32 u32 i64 u64",
            "--collective": "allreduce reduce_scatter allgather broadcast barrier"}.items():
        equal(offered(control(env), "perf", option, ""), set(words.split()), f"behind {option}")
        equal(offered(control(env), "perf", option, "="), set(words.split()), f"behind {option}=")
    equal(offered(control(env), "topo", "--dump", "READ"), {"README.md"}, "files")
    equal(offered(control(env), "perf", "--mount", "utils/pag"), {"utils/pages"}, "directories")


@needs(tools=("bash",))
def test_jobs_that_are_there_are_offered_for_a_report(mount):
    mount.job(1, name="digits")
    mount.job(1, name="words")
    for words in (["--mount", mount.path], ["--mount", "=", mount.path]):
        equal(offered(control(mount.env), "report", *words, ""), {"digits", "words"}, "jobs")
        equal(offered(control(mount.env), "report", *words, "d"), {"digits"}, "jobs with d")
