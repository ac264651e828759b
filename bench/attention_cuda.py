#!/usr/bin/env python3
"""Decode attention on a CUDA device beside FP16 attention of PyTorch, in one run.

usage: bench/attention_cuda.py [--tq FILE] [--quick] [--peers FOLDER] [--out FILE] [--commit ID]

Runs `tq bench attention --device cuda` and, for the same shapes, scaled_dot_product_attention over
a contiguous FP16 cache with each backend that PyTorch offers (cuDNN, flash): CUDA graphs over
distinct buffers, medians. --peers measures FlashInfer's FP16 and FP8 and vLLM's turboquant_* too
(bench/cuda_peers.py), from the folder that bench/peers/prepare_cuda_peers.py made. ratio_to has the
time of PyTorch's fastest FP16 backend, of our own FP8 cache and of each peer, divided by that of a
format. Formats of CENTRED are measured with a centre as well. Writes
bench/results/attention_cuda.json. Needs PyTorch with CUDA; --quick measures two batches and one
depth, --formats, --depths and --no-center less than all; --formats= measures none of ours.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import RESULTS, TQ, cuda_machine, output, run, write_to
from cuda_timing import graph_us, layers_for

FORMATS = "k4v4,k3v3,k3v2,k2v2,fp8,f16,k8v8,k8v4,k4v4-group32"
CENTRED = "k4v4,k3v2,k3v2-anchor1"
Q_HEADS, HEAD_DIM = 32, 128
PEER_SECONDS = 240  # a kernel that hangs ends after these
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
    for family in ("flashinfer", "flashinfer-xqa", "fa3", "vllm"):
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
                times = [p["us_per_layer"] for p in peers if p["us_per_layer"]]
                ours = [r for r in ours_all if r["settings"]["batch"] == batch
                        and r["settings"]["depth"] == depth]
                fp8 = [r["us_per_layer"] for r in ours if r["name"] == "fp8"]
                here = [r for r in others if (kv_heads, batch, depth) == tuple(
                    r["settings"][n] for n in ("kv_heads", "batch", "depth"))]
                beside = [(r["name"], [r["us_per_layer"]]) for r in here if r["us_per_layer"]]
                for result in ours:
                    result["ratio_to"] = {name: them[0] / result["us_per_layer"] for name, them in
                                          [("fastest f16", sorted(times)), ("our fp8", fp8),
                                           *beside] if them}
                document["results"] += peers + here + ours
                line = [f"kv_heads {kv_heads} batch {batch} depth {depth}:"]
                line += [f"{p['peer'].split()[-1]} "
                         + (f"{p['us_per_layer']:.1f}" if p["us_per_layer"] else "skipped")
                         for p in peers]
                line += [f"{r['name']} " + (f"{r['us_per_layer']:.1f}" if r["us_per_layer"]
                                            else "skipped") for r in here]
                line += [f"{r['name']}{' centred' if r['settings']['center'] else ''} "
                         f"{r['us_per_layer']:.1f} us "
                         f"({r.get('ratio_to', {}).get('fastest f16', 0):.2f}x)" for r in ours]
                print(" | ".join(line), flush=True)
    write_to(options.out, document)
    return 0


if __name__ == "__main__":
    run(main)
