#!/usr/bin/env python3
"""The plan against what a run allocates and what the operating system reports.

usage: plan_against_run.py --tq PATH --model PATH --text PATH

For every preset: the cache within 1 % and the peak resident memory within 5 % of the plan. Then the
longest context that tq plan names under a limit is run to its end within that limit, and one 5 %
longer is refused with exit code 3. Prints one line for each; exit 1 when one does not hold.
"""
import argparse
import json
import subprocess
import sys

PRESETS = ["f16", "k8v8", "k8v4", "k4v4", "k4v2", "k3v3", "k3v2", "k2v2"]
LIMIT = "144MiB"
failed = False


def tq(*words):
    return subprocess.run([options.tq, *map(str, words), "--json", "--quiet"], text=True,
                          capture_output=True)


def check(holds, text):
    global failed
    failed |= not holds
    print(("ok: " if holds else "WRONG: ") + text)


def run(kv, num_bytes):
    with open(options.text, encoding="utf-8") as file:
        prompt = file.read(num_bytes)
    result = tq("run", "--model", options.model, "-p", prompt, "--kv", kv, "--max-tokens", 2)
    if result.returncode != 0:
        sys.exit(f"tq run failed: {result.stderr}")
    return json.loads(result.stdout)


def plan(kv, *words):
    result = tq("plan", options.model, "--kv", kv, *words)
    if result.returncode != 0:
        sys.exit(f"tq plan failed: {result.stderr}")
    return json.loads(result.stdout)


parser = argparse.ArgumentParser()
for name in ("tq", "model", "text"):
    parser.add_argument("--" + name, required=True)
options = parser.parse_args()

for kv in PRESETS:
    # The plain cache is the largest: it gets a longer text.
    got = run(kv, 8000 if kv == "f16" else 2600)
    want = plan(kv, "--context", got["prompt_tokens"] + got["generated_tokens"])
    cache = want["cache"]["total_bytes"] / got["cache"]["bytes"]
    rss = want["total_bytes"] / got["peak_rss_bytes"]
    check(abs(cache - 1) < 0.01, f"{kv}: cache planned / allocated = {cache:.4f}")
    check(abs(rss - 1) < 0.05, f"{kv}: memory planned / resident = {rss:.4f}")

longest = plan("k3v2", "--memory-limit", LIMIT)["max_context"]
too_long = tq("run", "--model", options.model, "-p", "hello", "--kv", "k3v2", "--context",
              int(longest * 1.05), "--memory-limit", LIMIT)
check(too_long.returncode == 3 and f"--context {longest}" in too_long.stderr,
      f"a context of {int(longest * 1.05)} is refused: {too_long.stderr.strip()}")
# A word of one token, so that the prompt and what is generated fill the context exactly.
full = tq("run", "--model", options.model, "-p", " the" * (longest - 2), "--kv", "k3v2",
          "--max-tokens", 2, "--context", longest, "--memory-limit", LIMIT)
if full.returncode != 0:
    sys.exit(f"tq run failed: {full.stderr}")
got = json.loads(full.stdout)
tokens = got["prompt_tokens"] + got["generated_tokens"]
limit = int(LIMIT[:-3]) << 20
check(tokens == longest and got["peak_rss_bytes"] <= limit * 1.05,
      f"{tokens} of {longest} tokens ran in {got['peak_rss_bytes']} bytes; the limit is {limit}")
sys.exit(failed)
