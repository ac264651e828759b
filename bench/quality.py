#!/usr/bin/env python3
"""KL of cache formats to the f16 cache over windows of two genres, as a result file.

usage: bench/quality.py [--formats k8v8,k4v4,k3v2] [--calibrated k4v4,k3v2,k3v2-anchor1]
                        [--windows 4] [--context 2048] [--texts bible,perl] [--append]
                        [--profiles FOLDER] [--f32-floor] [--name quality.json]

Needs ./quickstart and Debian's perl-doc (the second genre).
Writes bench/results/NAME from `tq eval kld --cut spread`. `windows` is a number for each text.
Formats given with --calibrated get means of K and Q (`tq calibrate --uniform`) from 16,384 tokens of
other manuals and of the end of the Bible, no window of which is measured; they are named calibrated-FORMAT. --append adds to
NAME what was measured at the same context over as many windows: long contexts in several sittings,
whose profiles --profiles keeps. --f32-floor measures the 16-bit cache beside keys and values of 32
bits too.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from common import MODEL, RESULTS, ROOT, TEXT, TQ, machine, output, write

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


def calibrated_profiles(names, folder):
    """Paths of the profiles of these formats; those that `folder` lacks are made."""
    missing = [name for name in names if not (folder / f"calibrated-{name}").exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "calibration.txt").write_text(calibration_text(), encoding="utf-8")
        for name in missing:
            profile = folder / f"{name}.tqprofile"
            done = subprocess.run(
                [str(TQ), "calibrate", str(MODEL), "--data", str(folder / "calibration.txt"),
                 "--context", "2048", "--tokens", str(CALIBRATION_TOKENS), "--held-out-share", "0.1",
                 "--held-out-tokens", "2048", "--uniform", "--base", name, "--out", str(profile),
                 "--quiet"], stdout=subprocess.DEVNULL, check=False)
            # 1: the profile misses the default target, which is not what is asked here.
            if done.returncode not in (0, 1):
                sys.exit(done.returncode)
            profile.rename(folder / f"calibrated-{name}")
    return [str(folder / f"calibrated-{name}") for name in names]


def row(candidate):
    """What stands in the result file of one cache on one text."""
    text = candidate["by_text"][0]
    # Of several windows, their spread; positions of one window depend on each other.
    stderr = "mean_stderr_windows" if text["windows"] > 1 else "mean_stderr"
    return {"text": text["text"], "format": candidate["kv"],
            "bits_per_value": candidate["bits_per_value"],
            "kld": {"mean": text["kld"]["mean"], "mean_stderr": text["kld"][stderr],
                    **{key: text["kld"][key] for key in ("median", "p99", "p999", "max")}},
            "kld_behind_1024": text["kld_behind_1024"]["mean"],
            "same_top": text["same_top"],
            "ppl": {key: text["ppl"][key] for key in ("f16", "ratio", "ratio_stderr")},
            "by_position": [[b["first"], b["end"], b["kld_mean"]]
                            for b in candidate["by_position"]]}


def measure(text, formats, options):
    """tq's document of one text."""
    command = [str(TQ), "eval", "kld", "--model", str(MODEL), "--kv", ",".join(formats),
               "--data", str(text), "--cut", "spread", "--windows", str(options.windows),
               "--context", str(options.context), "--json"]
    command += ["--f32-floor"] if options.f32_floor else []
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="k8v8,k4v4,k3v2")
    parser.add_argument("--calibrated", default="k4v4,k3v2,k3v2-anchor1,k3v2-trellis-anchor1")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--texts", default="bible,perl")
    parser.add_argument("--append", action="store_true")
    parser.add_argument("--profiles")
    parser.add_argument("--f32-floor", action="store_true")
    parser.add_argument("--name", default="quality.json")
    options = parser.parse_args()
    for needed in (MODEL, TEXT, TQ):
        if not needed.exists():
            print(f"{needed} is not there: run ./quickstart", file=sys.stderr)
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
        formats += calibrated_profiles(calibrated, pathlib.Path(options.profiles or folder))
        documents = [measure({"bible": TEXT, "perl": perl}[text], formats, options)
                     for text in options.texts.split(",")]
    arguments = ["--formats", options.formats, "--calibrated", options.calibrated, "--windows",
                 str(options.windows), "--context", str(options.context)]
    arguments = [f"'{a}'" if a == "" else a for a in arguments]
    arguments += ["--f32-floor"] if options.f32_floor else []
    arguments += ["--name", options.name] if options.name != "quality.json" else []
    first = documents[0]
    result = {"machine": machine(), "command": "bench/quality.py " + " ".join(arguments),
              "model": first["model"], "context": options.context, "windows": options.windows,
              "isa": first["isa"], "results": []}
    path = RESULTS / options.name
    if options.append and path.exists():
        old = json.loads(path.read_text(encoding="utf-8"))
        same = [key for key in ("model", "context", "windows", "isa") if old[key] != result[key]]
        if same:
            print(f"{path.name} differs in {', '.join(same)}: nothing added", file=sys.stderr)
            return 2
        result["results"] = old["results"]
        if "f32_floor" in old:
            result["f32_floor"] = old["f32_floor"]
        result["also"] = old.get("also", []) + [old["command"]]
    for document in documents:
        for candidate in document.get("rows", [document]):
            new = row(candidate)
            result["results"] = [r for r in result["results"] if (r["text"], r["format"])
                                 != (new["text"], new["format"])] + [new]
    if options.f32_floor:
        new = [{"text": d.get("rows", [d])[0]["by_text"][0]["text"], **d["floor_f32"]}
               for d in documents]
        texts = {f["text"] for f in new}
        result["f32_floor"] = [f for f in result.get("f32_floor", []) if f["text"] not in texts] + new
    result["results"].sort(key=lambda r: r["text"])  # stable: formats stay in order
    write(options.name, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
