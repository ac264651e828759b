#!/usr/bin/env python3
"""Decode speed at depth beside llama.cpp: same file, same threads, alternating runs, one result.

usage: bench/compare_llama.py [--runs N] [--threads N] [--depths 0,2048,7600] [--tokens N]
                              [--formats f16,k8v4,k4v4,k3v2] [--peer-types f16,q8_0,q4_0]

Needs ./quickstart (tq, model, text) and bench/peers/build_llama_cpp.sh. Each run of a depth calls
`tq run` once for each cache format and llama-bench once for each of its cache types, so that both
see the same state of the machine. Writes bench/results/llama_cpp.json.
"""
import argparse
import json
import pathlib
import sys
import tempfile

from common import MODEL, ROOT, TEXT, TQ, machine, output, spread, write

LLAMA_BENCH = ROOT / ".cache" / "llama.cpp" / "build" / "bin" / "llama-bench"
BASE = "llama.cpp f16"


def our_run(prompt_file, kv, options, tokens=None):
    # The first token comes from the prompt's own logits: N steps make N + 1 tokens.
    return json.loads(output(
        str(TQ), "run", "--model", str(MODEL), "--prompt-file", str(prompt_file), "--kv", kv,
        "--max-tokens", str((tokens or options.tokens) + 1), "--threads", str(options.threads),
        "--json", "--quiet"))


def peer_tokens_per_second(depth, cache_type, options):
    rows = json.loads(output(
        options.llama_bench, "-m", str(MODEL), "-t", str(options.threads), "-fa", "1",
        "-ctk", cache_type, "-ctv", cache_type, "-p", "0", "-n", str(options.tokens),
        "-d", str(depth), "-r", "1", "-o", "json"))
    return rows[0]["avg_ts"]


def prompt_of(depth, folder, options):
    """A file with text of about `depth` tokens, and how many tokens it really has."""
    path = pathlib.Path(folder) / f"prompt_{depth}.txt"
    text = TEXT.read_text(encoding="utf-8") if depth else "In"
    sample = text[:4000]
    path.write_text(sample, encoding="utf-8")
    tokens = our_run(path, "f16", options, tokens=1)["prompt_tokens"]
    if depth:
        path.write_text(text[:len(sample) * depth // tokens], encoding="utf-8")
        tokens = our_run(path, "k3v2", options, tokens=1)["prompt_tokens"]
    return path, tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depths", default="0,2048,7600")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--formats", default="f16,k8v4,k4v4,k3v2")
    parser.add_argument("--peer-types", default="f16,q8_0,q4_0")
    parser.add_argument("--llama-bench", default=str(LLAMA_BENCH))
    options = parser.parse_args()
    for needed, fix in ((TQ, "./quickstart"), (MODEL, "./quickstart"), (TEXT, "./quickstart"),
                        (options.llama_bench, "bench/peers/build_llama_cpp.sh")):
        if not pathlib.Path(needed).exists():
            print(f"{needed} is not there: run {fix}", file=sys.stderr)
            return 2

    result = {"machine": machine(), "model": MODEL.name, "threads": options.threads,
              "peer": {"name": (ROOT / "bench/peers/llama_cpp_version.sh").read_text(
                           encoding="utf-8").split('"')[1],
                       "flags": f"-t {options.threads} -fa 1 -n {options.tokens}"},
              "results": []}
    with tempfile.TemporaryDirectory() as folder:
        for depth in map(int, options.depths.split(",")):
            speeds = {}
            prompt, depth = prompt_of(depth, folder, options)
            for run in range(options.runs):
                for kv in options.formats.split(","):
                    got = our_run(prompt, kv, options)
                    speeds.setdefault(f"tq {kv}", []).append(got["decode_tokens_per_second"])
                    result["isa"] = got["isa"]
                for cache_type in options.peer_types.split(","):
                    speeds.setdefault(f"llama.cpp {cache_type}", []).append(
                        peer_tokens_per_second(depth, cache_type, options))
                print(f"depth {depth}, run {run + 1} of {options.runs}", flush=True)
            base = spread(speeds[BASE])["median"]
            for name, values in speeds.items():
                row = {"depth": depth, "name": name,
                       "tokens_per_second": spread(values),
                       "ratio_to": {BASE: round(spread(values)["median"] / base, 3)}}
                result["results"].append(row)
                print(f"  {name:16} {row['tokens_per_second']['median']:8.1f} tokens/s, "
                      f"{row['ratio_to'][BASE]:.2f}x {BASE}")
    write("llama_cpp.json", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
