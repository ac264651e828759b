#!/usr/bin/env python3
"""KL of cache formats to the f16 cache over windows of two genres, as a result file.

usage: bench/quality.py [--formats k8v8,k4v4,k3v2] [--windows 4] [--context 2048]

Needs ./quickstart, Debian's perl-doc (the second genre) and
  cmake --preset release -DTURBOQUANT_BUILD_BENCH=ON && cmake --build build --target kld_windows
Writes bench/results/quality.json. `windows` is a number for each text.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from common import MODEL, ROOT, TEXT, machine, output, write

PROGRAM = ROOT / "build" / "bench" / "kld_windows"
MANUALS = ("perlcall perldebguts perlhacktips perlembed perldsc perlfork perlinterp perlnewmod "
           "perlobj perlootut perlperf perlretut").split()


def perl_text(path):
    """The prose of some Perl manuals; returns how many were found."""
    found = 0
    with path.open("w", encoding="utf-8") as out:
        for name in MANUALS:
            for pod in sorted(pathlib.Path("/usr/share/perl").glob(f"5.*.*/pod/{name}.pod")):
                out.write(output("pod2text", str(pod)))
                found += 1
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="k8v8,k4v4,k3v2")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--context", type=int, default=2048)
    options = parser.parse_args()
    for needed, fix in ((MODEL, "./quickstart"), (TEXT, "./quickstart"),
                        (PROGRAM, "cmake --build build --target kld_windows (see --help)")):
        if not needed.exists():
            print(f"{needed} is not there: run {fix}", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory() as folder:
        perl = pathlib.Path(folder) / "perl.txt"
        if perl_text(perl) == 0:
            print("no Perl manuals found: apt-get install perl-doc", file=sys.stderr)
            return 2
        report = pathlib.Path(folder) / "result.json"
        arguments = ["--formats", options.formats, "--windows", str(options.windows),
                     "--context", str(options.context)]
        subprocess.run([str(PROGRAM), str(MODEL), *arguments, "--json", str(report), str(TEXT),
                        str(perl)], check=True)
        result = {"machine": machine(), "command": "bench/quality.py " + " ".join(arguments)}
        result.update(json.loads(report.read_text(encoding="utf-8")))
    write("quality.json", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
