#!/usr/bin/env python3
"""Runs .tqtest files: a command, what it must print, in plain text. tests/README.md has the format.

usage: run_tqtest.py --tq PATH [--model PATH] [--text PATH] FILE...

Exit 0: all steps hold. 1: one did not. 77: skipped, because $MODEL or $TEXT is not there.
"""
import argparse
import difflib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

SKIPPED = 77
TIMEOUT_SECONDS = 600


class BadTest(Exception):
    """The .tqtest file itself is wrong."""


class Step:
    def __init__(self, line_number, must_fail, command):
        self.line_number = line_number
        self.command = command
        self.exit_code = 2 if must_fail else 0
        self.must_fail = must_fail
        self.stdin = ""
        self.environment = {}
        self.sections = {}  # "stdout", "stderr", "json" -> lines


def parse(path):
    steps, files = [], []
    section = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        word, _, rest = line.partition(" ")
        starts_step = word in ("run", "fail") and rest
        if section is not None and not (starts_step or line.startswith(("# ", "file "))):
            if line.startswith("----"):
                section = line[4:].strip()
                steps[-1].sections[section] = []
            else:
                steps[-1].sections[section].append(line)
            continue
        section = None
        if starts_step:
            steps.append(Step(number, word == "fail", rest))
        elif line.startswith("#") or not line.strip():
            pass
        elif word == "file":  # file NAME CONTENT, with \n and \xNN as in a string
            name, _, content = rest.partition(" ")
            files.append((name, content.encode().decode("unicode_escape").encode("latin-1")))
        elif not steps:
            raise BadTest(f"{path}:{number}: '{line}' before the first run or fail")
        elif word == "exit":
            steps[-1].exit_code = int(rest)
        elif word == "stdin":
            steps[-1].stdin = rest.encode().decode("unicode_escape")
        elif word == "env":
            name, _, value = rest.partition("=")
            steps[-1].environment[name] = value
        elif line.startswith("----"):
            section = line[4:].strip() or ("stderr" if steps[-1].must_fail else "stdout")
            steps[-1].sections[section] = []
        else:
            raise BadTest(f"{path}:{number}: '{line}' is not a directive; see tests/README.md")
    for step in steps:
        for lines in step.sections.values():
            while lines and not lines[-1].strip():
                lines.pop()
        unknown = set(step.sections) - {"stdout", "stderr", "json"}
        if unknown:
            raise BadTest(f"{path}:{step.line_number}: unknown section ---- {unknown.pop()}")
    if not steps:
        raise BadTest(f"{path}: no run and no fail line")
    return steps, files


def line_pattern(line):
    """{{regex}} inside a line is a regular expression, the rest is literal."""
    parts = re.split(r"\{\{(.*?)\}\}", line)
    return re.compile("".join(p if i % 2 else re.escape(p) for i, p in enumerate(parts)))


def matches(expected, actual):
    """`...` alone on a line stands for any number of lines."""
    reachable = {0}  # numbers of actual lines that can be consumed so far
    for line in expected:
        if line.strip() == "...":
            reachable = set(range(min(reachable), len(actual) + 1)) if reachable else reachable
            continue
        pattern = line_pattern(line)
        reachable = {i + 1 for i in reachable
                     if i < len(actual) and pattern.fullmatch(actual[i].rstrip())}
    return len(actual) in reachable


def look_up(document, key):
    value = document
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", key):
        value = value[int(index)] if index else value[name]
    return value


def check_json(lines, text):
    """Each line: KEY, or KEY OP VALUE with OP of == != < <= > >= ~ (regular expression)."""
    try:
        document = json.loads(text)
    except ValueError as error:
        return [f"stdout is not one JSON document: {error}"]
    operators = {"==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
                 "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
                 "~": lambda a, b: re.search(b, a) is not None}
    problems = []
    for line in filter(str.strip, lines):
        key, _, condition = line.strip().partition(" ")
        try:
            value = look_up(document, key)
            if condition:
                operator, _, wanted = condition.partition(" ")
                other = document_value(document, wanted)
                if not operators[operator](value, other):
                    problems.append(f"json {line}: found {value!r}")
        except (KeyError, IndexError, TypeError) as error:
            problems.append(f"json {line}: {type(error).__name__}: {error}")
    return problems


def document_value(document, text):
    """A JSON value, or another key of the document."""
    try:
        return json.loads(text)
    except ValueError:
        return look_up(document, text)


def run_step(step, variables, environment, folder):
    def replace(text):
        return re.sub(r"\$([A-Z]+)", lambda m: variables.get(m.group(1), m.group(0)), text)

    arguments = [replace(a) for a in shlex.split(step.command)]
    if arguments[0] == "tq":
        arguments[0] = variables["TQ"]
    extra = {name: replace(value) for name, value in step.environment.items()}
    result = subprocess.run(arguments, input=step.stdin.encode("utf-8", "surrogateescape"),
                            cwd=folder, env={**environment, **extra}, capture_output=True,
                            timeout=TIMEOUT_SECONDS, check=False)
    stdout = result.stdout.decode("utf-8", "replace")
    stderr = result.stderr.decode("utf-8", "replace")
    problems = []
    if result.returncode != step.exit_code:
        problems.append(f"exit code {result.returncode}, expected {step.exit_code}")
    if step.must_fail and stdout and "stdout" not in step.sections:
        problems.append("it failed, yet printed on stdout")
    for name, text in (("stdout", stdout), ("stderr", stderr)):
        if name in step.sections:
            expected = [replace(line) for line in step.sections[name]]
            actual = [line.rstrip() for line in text.rstrip("\n").split("\n")] if text else []
            if not matches(expected, actual):
                problems.append(f"{name} differs (- expected, + found):")
                problems += list(difflib.ndiff(expected, actual))
    if "json" in step.sections:
        problems += check_json([replace(line) for line in step.sections["json"]], stdout)
    if problems:
        problems += ["stdout:", stdout[-2000:], "stderr:", stderr[-2000:]]
    return problems


def run_file(path, options):
    steps, files = parse(path)
    variables = {"TQ": os.path.abspath(options.tq), "MODEL": os.path.abspath(options.model),
                 "TEXT": os.path.abspath(options.text),
                 "SOURCE": str(pathlib.Path(__file__).parents[1].resolve())}
    used = path.read_text(encoding="utf-8")
    for name in ("MODEL", "TEXT"):
        if re.search(r"\$" + name + r"\b", used) and not os.path.isfile(variables[name]):
            print(f"{path}: skipped, ${name} is not there: {variables[name]}")
            return SKIPPED
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TQ_")}
    with tempfile.TemporaryDirectory(prefix="tqtest") as folder:
        variables["TMP"] = folder
        for name, content in files:
            (pathlib.Path(folder) / name).write_bytes(content)
        for step in steps:
            try:
                problems = run_step(step, variables, environment, folder)
            except subprocess.TimeoutExpired:
                problems = [f"did not end within {TIMEOUT_SECONDS} s"]
            if problems:
                print(f"{path}:{step.line_number}: {step.command}")
                print("\n".join("  " + p for p in "\n".join(problems).splitlines()))
                return 1
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tq", required=True, help="the tq binary")
    parser.add_argument("--model", default="", help="value of $MODEL")
    parser.add_argument("--text", default="", help="value of $TEXT")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    codes = []
    for path in options.files:
        try:
            codes.append(run_file(path, options))
        except BadTest as error:
            print(error)
            codes.append(1)
    if 1 in codes:
        return 1
    return SKIPPED if SKIPPED in codes else 0


if __name__ == "__main__":
    sys.exit(main())
