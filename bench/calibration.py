#!/usr/bin/env python3
"""Calibrated profiles against uniform formats of as many bytes, on text that nothing was chosen by.

usage: bench/calibration.py [--bases k3v2,k3v2-anchor1] [--uniform k3v2,k4v2,k4v4]
                            [--contexts 2048:8,8192:1] [--tokens 100000] [--granularities auto]
                            [--domains k3v2-anchor1@2.75] [--folder build/calibration]
                            [--name calibration.json]

Needs ./quickstart, Debian's perl-doc (the second genre) and the built tq.

Calibrates (tq calibrate) on pieces of other Perl manuals and of the end of the Bible in turn. The
budgets are the bits of the formats in --uniform with the axes of the base; those get the same
centres and mean queries (tq calibrate --uniform). Then tq eval kld reads CONTEXT:WINDOWS windows of
each of the two genres. Profiles are kept in --folder, and what was interrupted goes on from there.
"""
import argparse
import json
import pathlib
import subprocess
import sys

from common import MODEL, ROOT, TEXT, TQ, machine, write
from quality import BIBLE_TAIL, CALIBRATION_MANUALS, MANUALS, calibration_text, perl_text

GENRES = ("bible", "perl")


def suffix(base):
    """What follows the bits in the name of a preset: -anchor1."""
    return base[base.index("-"):] if "-" in base else ""


def run(*command):
    print(" ".join(str(c) for c in command), file=sys.stderr, flush=True)
    # 1: the profile misses the default target, which is not what is asked here.
    result = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode not in (0, 1):
        sys.exit(result.returncode)
    return json.loads(result.stdout)


def calibrate(folder, name, arguments, data="calibration.txt"):
    """The profile and what tq calibrate said of it, made once."""
    profile, said = folder / f"{name}.tqprofile", folder / f"{name}.json"
    if not said.exists():
        result = run(TQ, "calibrate", MODEL, "--data", folder / data, "--held-out-share",
                     0.2, "--out", profile, "--json", *arguments)
        said.write_text(json.dumps(result), encoding="utf-8")
    return profile, json.loads(said.read_text(encoding="utf-8"))


def measure(folder, context, windows, profiles):
    """tq eval kld over windows of both genres; a row for each profile."""
    measured = run(TQ, "eval", "kld", "--model", MODEL, "--data", folder / "bible.txt", "--data",
                   folder / "perl.txt", "--context", context, "--cut", "spread", "--windows",
                   windows, "--kv",
                   ",".join(str(p) for p in profiles), "--json")
    return measured.get("floor"), measured.get("rows", [measured])


def domains(o, common):
    """A profile of one genre on the text of the other, beside the genre's own."""
    base, budget = o.domains.split("@")
    paths = [calibrate(o.folder, f"domain-{genre}", [*common, "--base", base, "--budget", budget],
                       f"calibration-{genre}.txt")[0] for genre in GENRES]
    _, rows = measure(o.folder, o.calibrate_at, o.domain_windows, paths)
    out = {"base": base, "budget_bits": float(budget), "windows_of_each_text": o.domain_windows,
           "kld_mean": {}}
    for genre, row in zip(GENRES, rows):
        out["kld_mean"][f"calibrated on {genre}"] = {t["text"]: t["kld"]["mean"]
                                                     for t in row["by_text"]}
    return out


def summary(said):
    keep = ("bits_per_value", "formats", "kept_uniform", "measured_over_predicted", "trials",
            "seconds", "peak_rss_bytes", "log")
    out = {k: said[k] for k in keep}
    out["by_layer"] = [{k: row[k] for k in ("layer", "k_kld", "v_kld", "k_bits", "v_bits",
                                            "output_cosine", "score_agreement")}
                       for row in said["by_layer"]]
    return out


def row_of(row, base, kind):
    keep = ("bits_per_value", "kld", "same_top", "ppl", "by_position")
    out = {"base": base, "kind": kind}
    out.update({k: row[k] for k in keep if k in row})
    out["texts"] = [{k: t[k] for k in ("text", "kld", "ppl") if k in t}
                    for t in row.get("by_text", [])]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bases", default="k3v2,k3v2-anchor1")
    parser.add_argument("--uniform", default="k3v2,k4v2,k4v4")
    parser.add_argument("--contexts", default="2048:8,8192:1")
    parser.add_argument("--calibrate-at", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=100000)
    parser.add_argument("--site-tokens", type=int, default=4096)
    parser.add_argument("--search-tokens", type=int, default=8192)
    parser.add_argument("--held-out-tokens", type=int, default=4096)
    parser.add_argument("--granularities", default="auto")
    parser.add_argument("--domains", default="", help="BASE@BITS: each genre by the other's profile")
    parser.add_argument("--domain-windows", type=int, default=4)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "calibration")
    parser.add_argument("--name", default="calibration.json")
    o = parser.parse_args()
    for needed, fix in ((MODEL, "./quickstart"), (TEXT, "./quickstart"), (TQ, "build tq")):
        if not needed.exists():
            print(f"{needed} is not there: run {fix}", file=sys.stderr)
            return 2
    o.folder.mkdir(parents=True, exist_ok=True)
    texts = {"calibration.txt": calibration_text(), "perl.txt": perl_text(MANUALS),
             "bible.txt": TEXT.read_text(encoding="utf-8")[:-BIBLE_TAIL],
             "calibration-bible.txt": TEXT.read_text(encoding="utf-8")[-BIBLE_TAIL:],
             "calibration-perl.txt": perl_text(CALIBRATION_MANUALS)}
    if not texts["perl.txt"]:
        print("no Perl manuals found: apt-get install perl-doc", file=sys.stderr)
        return 2
    for name, text in texts.items():
        if not (o.folder / name).exists():
            (o.folder / name).write_text(text, encoding="utf-8")
    common = ["--context", o.calibrate_at, "--tokens", o.tokens, "--site-tokens", o.site_tokens,
              "--search-tokens", o.search_tokens, "--held-out-tokens", o.held_out_tokens]
    profiles, calibrations = [], {}
    for base in o.bases.split(","):
        for uniform in o.uniform.split(","):
            name = uniform + suffix(base)
            # What is measured does not depend on bits and budgets: one state for a base.
            kept = ["--state", o.folder / f"{base}.state", "--keep-state"]
            path, said = calibrate(o.folder, f"uniform-{name}",
                                   [*common, *kept, "--uniform", "--base", name])
            profiles.append((path, base, f"uniform {name}"))
            for granularity in o.granularities.split(","):
                kind = f"{base}-at-{uniform}-{granularity}"
                path, made = calibrate(o.folder, kind,
                                       [*common, *kept, "--base", base, "--granularity",
                                        granularity, "--budget", said["bits_per_value"]])
                profiles.append((path, base, f"calibrated ({granularity}) at {name}"))
                calibrations[kind] = summary(made)
    result = {"machine": machine(), "command": "bench/calibration.py " + " ".join(sys.argv[1:]),
              "calibrations": calibrations, "contexts": {}}
    for part in o.contexts.split(","):
        context, windows = part.split(":")
        floor, rows = measure(o.folder, context, windows, [p for p, _, _ in profiles])
        result["contexts"][context] = {
            "windows_of_each_text": int(windows), "floor": floor,
            "rows": [row_of(row, base, kind) for row, (_, base, kind) in zip(rows, profiles)]}
    if o.domains:
        result["domains"] = domains(o, common)
    write(o.name, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
