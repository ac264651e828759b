#!/usr/bin/env python3
"""Decode speed by depth beside llama.cpp: runs `tq bench decode` and keeps its JSON.

usage: bench/decode.py [--runs N] [--threads N] [--depths 0,1k,...] [--formats f16,k8v4,...]
                       [--peer-seconds N] [--shape LAYERS,...] [--tq FILE] [--llama-bench FILE]
                       [--name FILE]

Waits up to two minutes for a quiet machine. A profile whose three KV heads are k4v4, k2v2 and k3v3
runs beside the formats: as many bytes as a uniform k3v3. Writes bench/results/decode.json,
decode_shape.json with --shape, or --name. With TQ_ISA=avx2 and a llama-bench that was built for AVX2
only, both are measured as on a machine without AVX-512.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from common import MODEL, TQ, machine, wait_for_quiet, write

MIXED = {"turboquant": {
    "version": "1.0",
    "model": {"name": "SmolLM2", "architecture": "llama", "num_layers": 30, "num_q_heads": 9,
              "num_kv_heads": 3, "head_dim": 64},
    "defaults": {"k": {"bits": 3}, "v": {"bits": 3}},
    "layers": [{"layers": "0-29", "heads": "0", "k": {"bits": 4}, "v": {"bits": 4}},
               {"layers": "0-29", "heads": "1", "k": {"bits": 2}, "v": {"bits": 2}}]}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=130)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depths", default="0,1k,4k,8k,16k,32k")
    parser.add_argument("--formats", default="f16,k8v4,k4v4,k3v3,k3v2,k3v2-trellis")
    parser.add_argument("--peer-types", default="f16,q8_0,q4_0")
    parser.add_argument("--peer-seconds", type=int, default=300)
    parser.add_argument("--shape", default="")
    parser.add_argument("--tq", default=str(TQ))
    parser.add_argument("--llama-bench", default="")
    parser.add_argument("--name", default="")
    options = parser.parse_args()

    wait_for_quiet()
    measured_on = machine()
    with tempfile.TemporaryDirectory() as folder:
        formats = options.formats
        if options.shape:
            model = ["--shape", options.shape, "--prefill-up-to", "0"]
        else:
            model = ["--model", str(MODEL)]
            profile = pathlib.Path(folder) / "mixed.tqprofile"
            profile.mkdir()
            (profile / "profile.json").write_text(json.dumps(MIXED), encoding="utf-8")
            formats += f",{profile}"
        command = [options.tq, "bench", "decode", *model, "--kv", formats,
                   "--depth", options.depths, "--steps", str(options.steps),
                   "--runs", str(options.runs), "--threads", str(options.threads), "--json",
                   "--peer", "llama.cpp", "--peer-types", options.peer_types,
                   "--peer-seconds", str(options.peer_seconds)]
        if options.llama_bench:
            command += ["--llama-bench", options.llama_bench]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return done.returncode
    result = {"measured_on": measured_on, **json.loads(done.stdout)}
    write(options.name or ("decode_shape.json" if options.shape else "decode.json"), result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
