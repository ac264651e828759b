#!/usr/bin/env python3
"""Tests of the documents. --links: every relative link leads to a file. --run: every ```sh block
of the files in RUN works, one shell per file, from the repository root.

A block after a line `<!-- not run: REASON -->` is left out, and said so.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1].resolve()
RUN = ["README.md", "docs/concepts.md", "docs/guides/data.md", "docs/guides/evaluate.md",
       "docs/guides/gate.md", "docs/guides/plan.md", "docs/guides/tasks.md",
       "docs/guides/calibrate.md", "docs/guides/quantize.md"]
SKIPPED_FOLDERS = re.compile(r"^(build[^/]*|\.venv|\.cache|\.git)/")


def documents():
    for path in sorted(ROOT.rglob("*.md")):
        if not SKIPPED_FOLDERS.match(path.relative_to(ROOT).as_posix()):
            yield path


def check_links():
    problems = 0
    for path in documents():
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target) or target.startswith("#"):
                continue
            if not (path.parent / target.split("#")[0]).exists():
                print(f"{path.relative_to(ROOT)}: link to {target}, which is not there")
                problems += 1
    return problems


def run_blocks():
    problems = 0
    for name in RUN:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"(<!-- not run: (.*?) -->\s*)?```sh\n(.*?)```", text, re.DOTALL):
            line = text.count("\n", 0, match.start(3)) + 1
            if match.group(1):
                print(f"{name}:{line}: not run: {match.group(2)}")
                continue
            print(f"{name}:{line}: running", flush=True)
            try:
                result = subprocess.run(["bash", "-euo", "pipefail", "-c", match.group(3)],
                                        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True,
                                        text=True, timeout=600, check=False)
            except subprocess.TimeoutExpired as late:
                print(f"{name}:{line}: not done after {late.timeout:.0f} s")
                problems += 1
                continue
            if result.returncode != 0:
                print(f"{name}:{line}: exit code {result.returncode}\n{result.stdout[-3000:]}"
                      f"{result.stderr[-3000:]}")
                problems += 1
    return problems


def main():
    if sys.argv[1:] == ["--links"]:
        return 1 if check_links() else 0
    if sys.argv[1:] == ["--run"]:
        return 1 if run_blocks() else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
