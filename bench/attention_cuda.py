#!/usr/bin/env python3
"""Decode attention on a CUDA device beside FP16 attention of PyTorch, in one run.

usage: bench/attention_cuda.py [--tq FILE] [--quick] [--peers FOLDER] [--out FILE] [--commit ID]

Runs `tq bench attention --device cuda` and, for the same shapes, scaled_dot_product_attention over
a contiguous FP16 cache with each backend that PyTorch offers (cuDNN, flash): CUDA graphs over
distinct buffers, medians. --peers measures FlashInfer (FP16, FP8), FlashAttention-3 (BF16, FP8)
and vLLM's turboquant_* too (bench/cuda_peers.py), from the folder that
bench/peers/prepare_cuda_peers.py made.

Each of our results has in ratio_to the time of another divided by its own: "fastest f16", the
fastest cache of 16 bits of all peers, PyTorch's among them ("fastest_f16_peer" says which it was);
"our fp8"; and with --peers "fastest fp8 peer" ("fastest_fp8_peer") and the presets of vLLM whose
bits are nearest, none where they are far.

Formats of CENTRED are measured with a centre as well. Writes bench/results/attention_cuda.json.
Needs PyTorch with CUDA; --quick measures two batches and one depth, --formats, --depths and
--no-center less than all; --formats= measures none of ours.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import RESULTS, TQ, cuda_machine, output, run, write_to
from cuda_peers import FAMILIES
from cuda_timing import graph_us, layers_for

FORMATS = "k4v4,k3v3,k3v2,k2v2,fp8,f16,k8v8,k8v4,k4v4-group32"
CENTRED = "k4v4,k3v2,k3v2-anchor1"
Q_HEADS, HEAD_DIM = 32, 128
PEER_SECONDS = 240  # of a family: a kernel that hangs ends after these
NEAR_BITS = 4  # of K and V together: k8v8 is beside vLLM's k8v4, f16 beside none
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def fp16_results(kv_heads, batch, depth):
    """One result a backend; a backend that refuses the shape is listed with its reason."""
    layer_bytes = 2 * batch * kv_heads * depth * HEAD_DIM * 2
    layers = layers_for(layer_bytes, 16)
    shape = (batch, kv_heads, depth, HEAD_DIM)
    k, v = ([torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(layers)]
            for _ in range(2))
    q = torch.randn(batch, Q_HEADS, 1, HEAD_DIM, device="cuda", dtype=torch.float16)
    for name, backend in BACKENDS.items():
        result = {"name": "f16", "peer": f"torch {torch.__version__} SDPA {name}",
                  "settings": {"head_dim": HEAD_DIM, "kv_heads": kv_heads,
                               "group": Q_HEADS // kv_heads, "batch": batch, "depth": depth,
                               "layers": layers, "launch": "CUDA graph of all layers",
                               "cache": "contiguous"},
                  "bytes_per_layer": layer_bytes}
        try:
            with sdpa_kernel([backend]):
                us = graph_us(lambda i: F.scaled_dot_product_attention(
                    q, k[i], v[i], enable_gqa=kv_heads != Q_HEADS), layers)
            result |= {"us_per_layer": us, "bytes_per_second": layer_bytes / us * 1e6}
        except RuntimeError as error:
            result |= {"us_per_layer": None, "skipped": str(error).splitlines()[0]}
            torch.cuda.synchronize()
        yield result


def peer_results(folder, batches, depths):
    """Results of the families of bench/cuda_peers.py, each in a process of its own."""
    results = []
    for family in FAMILIES:
        with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as out:
            try:
                subprocess.run(
                    [sys.executable, str(pathlib.Path(__file__).with_name("cuda_peers.py")),
                     folder, family, "--out", out.name, "--batches", ",".join(map(str, batches)),
                     "--depths", ",".join(map(str, depths))], check=True, timeout=PEER_SECONDS)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                print(f"{error}; what it measured before counts", flush=True)
            results += [json.loads(line) for line in out]
    return results


def bits(name):
    """Of K and of V: (4, 2) of k4v2-anchor1, (8, 8) of fp8, (4, 4) of vllm turboquant 4bit_nc."""
    pair = re.search(r"k\D*(\d+)v\D*(\d+)", name)
    k, v = pair.groups() if pair else 2 * re.findall(r"\d+", name)[:1]
    return int(k), int(v)


def title(result):
    return result["peer"] if result["name"] == "f16" else result["name"]


def add_ratios(ours, peers):
    """Adds ratio_to to our results of a shape; `peers`: all others of it."""
    ran = [p for p in peers if p["us_per_layer"]]
    fastest = {kind: min((p for p in ran if p["name"].endswith(end)), default=None,
                         key=lambda p: p["us_per_layer"])
               for kind, end in (("f16", "16"), ("fp8", "fp8"))}  # fp16, bf16
    our_fp8 = next((r for r in ours if r["name"] == "fp8"), None)
    vllm = [p for p in ran if p["name"].startswith("vllm ")]
    for result in ours:
        result |= {f"fastest_{kind}_peer": title(p) for kind, p in fastest.items() if p}
        away = {p["name"]: sum(abs(a - b) for a, b in zip(bits(result["name"]), bits(p["name"])))
                for p in vllm}
        nearest = min([NEAR_BITS, *away.values()])
        to = {"fastest f16": fastest["f16"], "our fp8": our_fp8, "fastest fp8 peer": fastest["fp8"]}
        to |= {p["name"]: p for p in vllm if away[p["name"]] == nearest}
        result["ratio_to"] = {name: them["us_per_layer"] / result["us_per_layer"]
                              for name, them in to.items() if them}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tq", default=str(TQ))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--depths", default="1024,8192,32768,131072")
    parser.add_argument("--formats", default=FORMATS)
    parser.add_argument("--no-center", action="store_true")
    parser.add_argument("--peers", help="folder of bench/peers/prepare_cuda_peers.py")
    parser.add_argument("--out", default=str(RESULTS / "attention_cuda.json"))
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    batches = [1, 4] if options.quick else [1, 4, 8]
    depths = [131072] if options.quick else [int(d) for d in options.depths.split(",")]
    document = {"measured_on": cuda_machine(options.commit, torch=torch.__version__,
                                            cudnn=torch.backends.cudnn.version()),
                "results": []}
    others = peer_results(options.peers, batches, depths) if options.peers else []
    for kv_heads in (32, 8):
        ours_all = []
        for formats, more in ([(options.formats, [])] if options.formats else []) + (
                [] if options.no_center or not options.formats else [(CENTRED, ["--center"])]):
            part = json.loads(output(
                options.tq, "bench", "attention", "--device", "cuda", "--kv", formats,
                "--head-dim", str(HEAD_DIM), "--kv-heads", str(kv_heads), "--group",
                str(Q_HEADS // kv_heads), "--batch", ",".join(map(str, batches)), "--depth",
                ",".join(map(str, depths)), "--runs", "7", "--json", "--quiet", *more))
            document.setdefault("device", part["device"])
            document.setdefault("read_bytes_per_second", part["read_bytes_per_second"])
            ours_all += part["results"]
        for batch in batches:
            for depth in depths:
                peers = list(fp16_results(kv_heads, batch, depth))
                torch.cuda.empty_cache()
                peers += [r for r in others if (kv_heads, batch, depth) == tuple(
                    r["settings"][n] for n in ("kv_heads", "batch", "depth"))]
                ours = [r for r in ours_all if r["settings"]["batch"] == batch
                        and r["settings"]["depth"] == depth]
                add_ratios(ours, peers)
                document["results"] += peers + ours
                line = [f"kv_heads {kv_heads} batch {batch} depth {depth}:"]
                line += [f"{title(p)} " + (f"{p['us_per_layer']:.1f}" if p["us_per_layer"]
                                           else "skipped") for p in peers]
                line += [f"{r['name']}{' centred' if r['settings']['center'] else ''} "
                         f"{r['us_per_layer']:.1f} us "
                         f"({r['ratio_to'].get('fastest f16', 0):.2f}x)" for r in ours]
                print(" | ".join(line), flush=True)
    write_to(options.out, document)
    return 0


if __name__ == "__main__":
    run(main)
