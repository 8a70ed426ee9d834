#!/usr/bin/python3
"""Keeps the style of the sources: what a reader counts on and no compiler checks.

    style.py [ROOT]

One line for each thing that is wrong, then the figures; status 1 when anything is wrong. The limits are a ratchet:
they may be lowered when the sources allow it, never raised.
"""
import os
import re
import sys

LAYERS = ("utils", "ntbmem", "reduce", "fs")  # a file may include its own layer and those before it
FUNCTION_LINES_MAX = 70
LONG_FUNCTION_LINES = 50
LONG_FUNCTIONS_SHARE = 0.03
LINE_COLUMNS = {".c": 110, ".h": 110, ".build": 120, ".sh": 120, ".py": 125}
GETENV_ALLOWED = {"fs/fs_notify.c",   # the service manager's socket comes that way and no other
                  "utils/ctl_text.c"}  # NO_COLOR is one setting for all programs

wrong = []


def report(path, number, what):
    wrong.append(f"{path}:{number}: {what}")


def files(root):
    for directory, names, entries in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith((".", "build", "__")) and name != "subprojects")
        for name in sorted(entries):
            yield os.path.relpath(os.path.join(directory, name), root)


def functions(lines):
    """(line number, name, length) of each function, from its brace in the first column to the closing one."""
    begin = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            begin = number
        elif line == "}" and begin:
            head = " ".join(lines[max(0, begin - 4):begin - 1])
            name = re.findall(r"(\w+)\(", head)
            yield begin, name[-1] if name else "?", number - begin + 1
            begin = None


def check_text(path, lines, text):
    limit = LINE_COLUMNS.get(os.path.splitext(path)[1])
    if text and not text.endswith("\n"):
        report(path, len(lines), "no newline at the end")
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            report(path, number, "blanks at the end of the line")
        if limit and len(line) > limit:
            report(path, number, f"{len(line)} columns, the limit is {limit}")
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line) and path != "tests/style.py":
            report(path, number, "a note to oneself; do it, or write it where users read it")
        if re.match(r"(<{7}|={7}|>{7})( |$)", line):
            report(path, number, "two versions of these lines are left to merge")
        if re.search(r"/(home|root|work)/", line) and path != "tests/style.py":
            report(path, number, "an absolute path of the machine it was written on")


def check_includes(path, lines):
    layer = path.split("/")[0]
    for number, line in enumerate(lines, 1):
        found = re.match(r'#include "([^"]+)"', line)
        if not found:
            continue
        target = found[1].split("/")[0]
        if "/" not in found[1]:
            report(path, number, "includes are written from the root")
        elif layer in LAYERS and (target not in LAYERS or LAYERS.index(target) > LAYERS.index(layer)):
            report(path, number, f"{layer}/ must not know {target}/")


def check_story(path, lines, names):
    header = path[:-2] + ".h"
    needs_one = path.endswith(".h") or header not in names
    if needs_one and lines and not lines[0].startswith("/*"):
        report(path, 1, "does not begin with what it is for")


def check_contracts(path, lines):
    """Every function in a header has a comment above it, or above the group it stands in."""
    for number, line in enumerate(lines, 1):
        if not re.match(r"[a-z][\w \*]*\b\w+\(", line) or line.startswith(("static inline", "typedef", "return")):
            continue
        above = number - 2
        while above >= 0 and lines[above].strip() and not lines[above].endswith("*/"):
            above -= 1
        if above < 0 or not lines[above].endswith("*/"):
            report(path, number, "a function without a contract")


def check_code(path, lines):
    for number, line in enumerate(lines, 1):
        if re.search(r"\b(secure_)?getenv\(", line) and path not in GETENV_ALLOWED:
            report(path, number, "settings come from the table of options, not from the environment")
        if re.search(r"\b(strcat|sprintf|vsprintf|gets|alloca|system|popen)\(", line):
            report(path, number, "a call that has no place here")
        if path.startswith("tests/unit") and re.search(r"\b(u|nano|clock_nano)?sleep\(", line):
            report(path, number, "sleeping is no synchronisation")


def check_lengths(path, lines):
    for number, name, length in functions(lines):
        if length > FUNCTION_LINES_MAX:
            report(path, number, f"{name}() has {length} lines, the limit is {FUNCTION_LINES_MAX}")
        yield length


def check_test_list(names, root):
    with open(os.path.join(root, "tests/unit/meson.build"), encoding="utf-8") as file:
        built = file.read()
    for path in names:
        found = re.fullmatch(r"tests/unit/test_(\w+)\.c", path)
        if found and f"'{found[1]}'" not in built:
            report(path, 1, "a test that is not built")


def main():
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), ".."))
    names = set(files(root))
    lengths = []
    for path in sorted(names):
        extension = os.path.splitext(path)[1]
        if extension not in LINE_COLUMNS and extension not in (".md", ".in", ".txt", ".wrap"):
            continue
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        lines = text.splitlines()
        check_text(path, lines, text)
        if extension in (".c", ".h"):
            check_includes(path, lines)
            check_code(path, lines)
            lengths += check_lengths(path, lines)
        if extension in (".c", ".h") and path.split("/")[0] in LAYERS:
            check_story(path, lines, names)
        if extension == ".h" and path.split("/")[0] in LAYERS:
            check_contracts(path, lines)
    check_test_list(names, root)
    lengths.sort()
    long = sum(length > LONG_FUNCTION_LINES for length in lengths)
    if long > LONG_FUNCTIONS_SHARE * len(lengths):
        report(".", 0, f"{long} of {len(lengths)} functions have over {LONG_FUNCTION_LINES} lines")
    print("\n".join(wrong))
    print(f"{len(lengths)} functions, median {lengths[len(lengths) // 2]} lines, {long} over {LONG_FUNCTION_LINES}, "
          f"longest {lengths[-1]}; {len(wrong)} things wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
