#!/usr/bin/env python3
"""KL of cache formats to the f16 cache over windows of two genres, as a result file.

usage: bench/quality.py [--formats k8v8,k4v4,k3v2] [--calibrated k4v4,k3v2,k3v2-anchor1]
                        [--windows 4] [--context 2048] [--name quality.json]

Needs ./quickstart, Debian's perl-doc (the second genre) and
  cmake --preset release -DTURBOQUANT_BUILD_BENCH=ON
  cmake --build build --target kld_windows mean_profile
Writes bench/results/NAME. `windows` is a number for each text. Formats given with --calibrated get
means of K and Q from 16,384 tokens of other manuals and of the end of the Bible, no window of which
is measured; they are named calibrated-FORMAT.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from common import MODEL, ROOT, TEXT, machine, output, write

PROGRAM = ROOT / "build" / "bench" / "kld_windows"
MAKE_PROFILES = ROOT / "build" / "bench" / "mean_profile"
MANUALS = ("perlcall perldebguts perlhacktips perlembed perldsc perlfork perlinterp perlnewmod "
           "perlobj perlootut perlperf perlretut").split()


CALIBRATION_MANUALS = ("perldata perlref perlmod perlsec perlpod perlrun perltie perlxstut "
                       "perlunicook perlport").split()
CALIBRATION_TOKENS = 16384
BIBLE_TAIL = 300_000  # characters behind the last window of 8 of 8,192 tokens
PIECE = 6000          # characters in a row of one genre


def perl_text(manuals):
    """The prose of some Perl manuals."""
    texts = []
    for name in manuals:
        for pod in sorted(pathlib.Path("/usr/share/perl").glob(f"5.*.*/pod/{name}.pod")):
            texts.append(output("pod2text", "--utf8", str(pod)))
    return "".join(texts)


def calibration_text():
    """Pieces of both genres in turn."""
    bible = TEXT.read_text(encoding="utf-8")[-BIBLE_TAIL:]
    perl = perl_text(CALIBRATION_MANUALS)
    pieces = range(0, min(len(bible), len(perl)), PIECE)
    return "\n".join(perl[i:i + PIECE] + "\n" + bible[i:i + PIECE] for i in pieces)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="k8v8,k4v4,k3v2")
    parser.add_argument("--calibrated", default="k4v4,k3v2,k3v2-anchor1,k3v2-trellis-anchor1")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--name", default="quality.json")
    options = parser.parse_args()
    fix = "cmake --build build --target kld_windows mean_profile (see --help)"
    for needed, fix in ((MODEL, "./quickstart"), (TEXT, "./quickstart"), (PROGRAM, fix),
                        (MAKE_PROFILES, fix)):
        if not needed.exists():
            print(f"{needed} is not there: run {fix}", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        perl = folder / "perl.txt"
        perl.write_text(perl_text(MANUALS), encoding="utf-8")
        if perl.stat().st_size == 0:
            print("no Perl manuals found: apt-get install perl-doc", file=sys.stderr)
            return 2
        formats = [f for f in options.formats.split(",") if f]
        calibrated = [f for f in options.calibrated.split(",") if f]
        if calibrated:
            (folder / "calibration.txt").write_text(calibration_text(), encoding="utf-8")
            subprocess.run([str(MAKE_PROFILES), str(MODEL), ",".join(calibrated),
                            str(folder / "calibration.txt"), str(CALIBRATION_TOKENS),
                            str(folder)], check=True)
            for name in calibrated:
                profile = folder / f"calibrated-{name}"
                (folder / f"{name}.tqprofile").rename(profile)
                formats.append(str(profile))
        report = folder / "result.json"
        windows = ["--windows", str(options.windows), "--context", str(options.context)]
        subprocess.run([str(PROGRAM), str(MODEL), "--formats", ",".join(formats), *windows,
                        "--json", str(report), str(TEXT), str(perl)], check=True)
        arguments = ["--formats", options.formats, "--calibrated", options.calibrated, *windows]
        result = {"machine": machine(), "command": "bench/quality.py " + " ".join(arguments)}
        result.update(json.loads(report.read_text(encoding="utf-8")))
    write(options.name, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
