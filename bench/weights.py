#!/usr/bin/env python3
"""Prefill and decode speed of each weight type beside llama.cpp, on the same files and threads.

usage: bench/weights.py [--runs N] [--threads N] [--tokens 512] [--isa avx2] [--name NAME]
                        [--tq FILE] [--llama-bench FILE] [--peer-built TEXT] FILE.gguf...

For each file runs `tq bench prefill` and `tq bench decode` at depth 0 over the f16 cache, whose runs
alternate with those of llama-bench, and keeps medians and ratios. Files of other types are made of
one by llama-quantize. With --isa, name a llama-bench that is built for no more. Adds to
bench/results/NAME.json (weights.json): a file that is measured again replaces its old row. Rows of
another processor, or with other threads or runs, are dropped.
"""
import argparse
import json
import os
import subprocess
import sys

from common import RESULTS, TQ, machine, wait_for_quiet, write

BASE = "llama.cpp f16"


def bench(what, path, flags, options):
    command = [options.tq, "bench", what, "--model", path, "--kv", "f16", "--threads",
               str(options.threads), "--runs", str(options.runs), "--peer", "llama.cpp", "--json",
               "--quiet", *flags]
    if options.llama_bench:
        command += ["--llama-bench", options.llama_bench]
    environment = {**os.environ, **({"TQ_ISA": options.isa} if options.isa else {})}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout)


def row_of(document):
    speeds = {r["name"]: r for r in document["results"]}
    ours = speeds["f16"]
    return {"tokens_per_second": {name: {"median": r["tokens_per_second"],
                                         "min": r["lowest_tokens_per_second"],
                                         "max": r["highest_tokens_per_second"]}
                                  for name, r in speeds.items()},
            "ratio_to": {BASE: round(ours["ratio_to"][BASE], 3)}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--isa", default="")
    parser.add_argument("--name", default="weights")
    parser.add_argument("--tq", default=str(TQ))
    parser.add_argument("--llama-bench", default="")
    parser.add_argument("--peer-built", default="GGML_NATIVE=ON", help="kept in the result")
    options = parser.parse_args()

    wait_for_quiet(minutes=0.2)
    path = RESULTS / f"{options.name}.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"results": []}
    result = {"machine": machine(), "threads": options.threads, "runs": options.runs}
    # Rows of another machine or another way to measure would stand under this header.
    same = all(old.get("machine", {}).get(k) == result["machine"][k] for k in ("processor", "isa")) \
        and all(old.get(k) == result[k] for k in ("threads", "runs"))
    result["results"] = old["results"] if same else []
    for file in options.files:
        prefill = bench("prefill", file, ["--tokens", str(options.tokens)], options)
        decode = bench("decode", file,
                       ["--depth", "0", "--steps", str(options.steps), "--peer-types", "f16",
                        "--peer-steps", str(options.steps), "--peer-runs", str(options.runs)],
                       options)
        result["peer"] = prefill["peer"] | {"flags": f"-t {options.threads} -fa 1",
                                            "built": options.peer_built}
        row = {"model": prefill["model"], "weights": prefill["weights"],
               "weight_bytes": prefill["weight_bytes"], "isa": prefill["isa"],
               "load_seconds": round(prefill["load_seconds"], 3),
               "prefill": {"tokens": options.tokens, **row_of(prefill)},
               "decode": {"depth": 0, **row_of(decode)}}
        result["results"] = [r for r in result["results"]
                             if (r["model"], r["isa"]) != (row["model"], row["isa"])] + [row]
        for what in ("prefill", "decode"):
            both = row[what]["tokens_per_second"]
            print(f"{row['model']:32} {row['isa']:10} {what:8} {both['f16']['median']:8.1f} against "
                  f"{both[BASE]['median']:8.1f}: {row[what]['ratio_to'][BASE]:.2f}x", flush=True)
    write(f"{options.name}.json", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
