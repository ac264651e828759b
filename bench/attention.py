#!/usr/bin/env python3
"""The attention kernel alone: runs `tq bench attention` and keeps its JSON.

usage: bench/attention.py [--only times|counts] [--threads N] [--tq FILE]

Times: waits up to two minutes for a quiet machine. Counts: callgrind counts the instructions of one
call of each format at head_dim 64, three query heads per KV head and 8192 tokens; they do not
depend on what else runs. Writes bench/results/attention.json; with --only the other part stays.
"""
import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile

from common import RESULTS, TQ, machine, output, wait_for_quiet, write

FORMATS = "f16,bf16,fp8,k8v8,k8v4,k6v5,k4v4,k4v4-group32,k3v3,k3v2,k3v2-trellis,k2v2"
SHAPES = [("64,128,256", "1,3,4,8", "8k"), ("64", "3", "1k,4k,16k,32k")]
COUNTED = {"head_dim": 64, "kv_heads": 4, "group": 3, "depth": 8192}


def count_instructions(tq, kv):
    """Instructions of one layer's attention by callgrind, inside tq::Attend only."""
    with tempfile.NamedTemporaryFile() as out:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}",
             "--collect-atstart=no", "--toggle-collect=tq::Attend(*", tq, "bench", "attention",
             "--kv", kv, "--head-dim", str(COUNTED["head_dim"]), "--group", str(COUNTED["group"]),
             "--kv-heads", str(COUNTED["kv_heads"]), "--depth", str(COUNTED["depth"]),
             "--threads", "1", "--runs", "1", "--working-set", "1KiB", "--bandwidth", "1", "--json", "--quiet"],
            capture_output=True, text=True, check=True)
    calls = json.loads(done.stdout)["results"][0]["calls"]
    return int(re.search(r"Collected : (\d+)", done.stderr).group(1)) / calls


def measure_times(options):
    wait_for_quiet()
    times = {"measured_on": machine()}
    for dims, groups, depths in SHAPES:
        part = json.loads(output(
            options.tq, "bench", "attention", "--kv", FORMATS, "--head-dim", dims,
            "--group", groups, "--depth", depths, "--threads", str(options.threads), "--json",
            "--quiet"))
        if "results" in times:
            times["results"] += part["results"]
        else:
            times.update(part)
    return times


def measure_counts(options):
    counts = {"measured_on": machine(), "settings": COUNTED, "instructions_per_layer": {}}
    for kv in FORMATS.split(","):
        counts["instructions_per_layer"][kv] = count_instructions(options.tq, kv)
        print(f"counted {kv}", flush=True)
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["times", "counts"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tq", default=str(TQ))
    options = parser.parse_args()

    old = RESULTS / "attention.json"
    result = json.loads(old.read_text(encoding="utf-8")) if options.only and old.exists() else {}
    if options.only != "counts":
        result["times"] = measure_times(options)
    if options.only == "counts" or (options.only is None and shutil.which("valgrind")):
        result["counts"] = measure_counts(options)
    write("attention.json", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
