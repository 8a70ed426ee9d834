"""README.md and utils/pages: what they print is typed as it stands, and gives what they say.

Each page is one session of bash on a machine to throw away (machine.sh), in the top of the source tree. The word
after the language of a fenced block says what becomes of it:

    ```sh run            is run; it prints nothing, or what the next block says
    ```text output       that output: "..." stands for anything in a line, a line of three dots for any lines
    ```LANG file=NAME    is written to that file
    ```sh elsewhere      is run by utils/check.sh or would change the machine; here its commands must exist
    ```text              is a drawing or a listing; a page has no other blocks

"bash: line 7: " is printed as an interactive shell has it, "bash: ". At the end of a page no mount, daemon or shared
memory may be left.
"""
import os
import re
import shutil
import subprocess
from types import SimpleNamespace

from harness import contains, needs

TREE = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
PAGES = ["README.md"] + sorted(f"utils/pages/{name}" for name in os.listdir(f"{TREE}/utils/pages")
                               if name.endswith(".md"))
LEFT = r"""
SECONDS=0
until left=$(grep fuse.fabricfs /proc/mounts; grep -l fabricfs /proc/[0-9]*/comm 2>/dev/null; ls /dev/shm)
      [ -z "$left" ] || [ $SECONDS -gt 30 ]; do sleep 0.05; done
echo "$left"
"""


def blocks(page):
    """The fenced blocks of a page: info, text, line."""
    found, block = [], None
    with open(f"{TREE}/{page}", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            fence = re.match(r"```(.*)", line)
            if fence and block is None:
                block = SimpleNamespace(info=fence[1].strip(), text="", line=number)
            elif fence:
                found.append(block)
                block = None
            elif block is not None:
                block.text += line
    assert block is None, f"{page}:{block.line}: a block without end"
    return found


def steps(page):
    """What a session types for each block that is run or written, with the output that the page shows."""
    found = []
    for block in blocks(page):
        language, _, what = block.info.partition(" ")
        where = f"{page}:{block.line}"
        if block.info == "sh run":
            found.append(SimpleNamespace(types=block.text, shows="", where=where))
        elif block.info == "text output":
            assert found and not found[-1].shows, f"{where}: output of what?"
            found[-1].shows = block.text
        elif what.startswith("file="):
            found.append(SimpleNamespace(types=f"cat > {what[5:]} <<'END OF FILE'\n{block.text}END OF FILE\n", shows="",
                                         where=where))
        else:
            assert block.info in ("text", "sh elsewhere"), f"{where}: {block.info or 'nothing'} says not what it is"
    found.append(SimpleNamespace(types=LEFT, shows="", where=f"what {page} leaves"))
    return found


def pattern(shown):
    """A regular expression for the output that a page shows."""
    lines = (r"(.*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
             for line in shown.splitlines())
    return "".join(lines)


def normal(text):
    """Output without what differs between a script and a person: line numbers of the shell, blanks at ends."""
    text = re.sub(r"bash: line \d+: ", "bash: ", text)
    return "".join(line.rstrip() + "\n" for line in text.strip("\n").splitlines())


def run_page(env, page):
    found = steps(page)
    script = "exec 2>&1\n"
    if env.mode == "coherent":
        script += "printf '[fabric]\\nbuffer = coherent\\n' > /etc/fabricfs.conf\n"
    for number, step in enumerate(found):
        script += f"printf '\\n---- block {number} ----\\n'\n{step.types}"
    root = f"{env.directory}/root"
    os.mkdir(root)
    machine = ["unshare", "--mount", "--pid", "--fork", "--kill-child",
               f"{TREE}/tests/mount/machine.sh", root, TREE, env.build, "bash", "-c", script]
    done = subprocess.run(machine, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=150, check=False)
    said = done.stdout.decode(errors="replace")
    parts = re.split(r"---- block \d+ ----\n", said)
    assert len(parts) == len(found) + 1, f"{page}: the session ended early: {said}"
    for step, printed in zip(found, parts[1:]):
        printed, shown = normal(printed), normal(step.shows)
        assert re.fullmatch(pattern(shown), printed), f"{step.where} printed\n{printed}\nthe page shows\n{shown}"


def page_test(page):
    @needs(mount=False, tools=("unshare", "bash"), seconds=180)
    def test(env):
        run_page(env, page)
    return test


for _page in PAGES:
    if any(block.info == "sh run" for block in blocks(_page)):
        globals()[f"test_what_{re.sub(r'[^a-z]+', '_', _page.lower())}_prints_is_so"] = page_test(_page)


@needs(mount=False, modes=("coherent",))
def test_commands_that_run_elsewhere_exist(_):
    for page in PAGES:
        steps(page)  # every block says what it is
        for block in blocks(page):
            for line in block.text.splitlines() if block.info == "sh elsewhere" else ():
                word = line.split()[0]
                there = os.access(f"{TREE}/{word}", os.X_OK) if "/" in word else shutil.which(word)
                assert there or word == "systemctl", f"{page}:{block.line}: there is no {word}"


@needs(mount=False, modes=("coherent",))
def test_links_between_pages_lead_somewhere(_):
    for page in PAGES + ["tests/README.md"]:
        with open(f"{TREE}/{page}", encoding="utf-8") as file:
            text = re.sub(r"```.*?```", "", file.read(), flags=re.S)
        for target in re.findall(r"\]\(([^)]+)\)", text):
            path, _, anchor = target.partition("#")
            path = os.path.normpath(os.path.join(TREE, os.path.dirname(page), path)) if path else f"{TREE}/{page}"
            assert os.path.exists(path), f"{page}: {target} does not exist"
            if anchor:
                with open(path, encoding="utf-8") as file:
                    titles = re.findall(r"^#+ (.*)$", file.read(), flags=re.M)
                slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
                assert anchor in slugs, f"{page}: {target}: no such heading"


def test_the_readme_of_the_mount_holds_the_examples_of_readme_md(mount):
    with open(f"{TREE}/README.md", encoding="utf-8") as file:
        part = re.search(r"<!-- README of the mount: begin -->\n(.*)<!-- README of the mount: end -->", file.read(), re.S)[1]
    readme = mount.read("README")
    examples = re.findall(r"^```.*?\n(.*?)^```", part, re.S | re.M)
    assert len(examples) > 5, "README.md has lost its examples"
    for example in examples:
        contains(readme, re.sub(r"^(?=.)", "    ", example.rstrip("\n"), flags=re.M))
