#!/usr/bin/env python3
"""The attention kernel alone: runs `tq bench attention` and keeps its JSON.

usage: bench/attention.py [--threads N] [--tq FILE]

Waits up to ten minutes for a quiet machine. Where valgrind is installed, callgrind counts the
instructions of one call of each format at head_dim 64, three query heads per KV head and 8192
tokens. Writes bench/results/attention.json.
"""
import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile

from common import TQ, machine, output, wait_for_quiet, write

SHAPES = [("64,128,256", "1,3,4,8", "8k"), ("64", "3", "1k,4k,16k,32k")]


def count_instructions(tq, kv):
    """Instructions of one layer's attention by callgrind, inside tq::Attend only."""
    with tempfile.NamedTemporaryFile() as out:
        done = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}",
             "--collect-atstart=no", "--toggle-collect=tq::Attend(*", tq, "bench", "attention",
             "--kv", kv, "--head-dim", "64", "--group", "3", "--depth", "8k", "--threads", "1",
             "--runs", "1", "--working-set", "1KiB", "--bandwidth", "1", "--json", "--quiet"],
            capture_output=True, text=True, check=True)
    calls = json.loads(done.stdout)["results"][0]["calls"]
    return int(re.search(r"Collected : (\d+)", done.stderr).group(1)) / calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tq", default=str(TQ))
    options = parser.parse_args()

    wait_for_quiet()
    result = None
    measured_on = machine()
    for dims, groups, depths in SHAPES:
        part = json.loads(output(
            options.tq, "bench", "attention", "--head-dim", dims, "--group", groups,
            "--depth", depths, "--threads", str(options.threads), "--json", "--quiet"))
        if result is None:
            result = {"measured_on": measured_on, **part}
        else:
            result["results"] += part["results"]
    if shutil.which("valgrind"):
        result["callgrind"] = {
            "settings": {"head_dim": 64, "kv_heads": 4, "group": 3, "depth": 8192},
            "isa": result["isa"], "instructions_per_layer": {}}
        for kv in dict.fromkeys(row["name"] for row in result["results"]):
            result["callgrind"]["instructions_per_layer"][kv] = count_instructions(options.tq, kv)
            print(f"counted {kv}", flush=True)
    else:
        result["callgrind"] = None
    write("attention.json", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
