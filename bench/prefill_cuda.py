#!/usr/bin/env python3
"""Prefill attention on a CUDA device beside causal FP16 attention of PyTorch, in one run.

usage: bench/prefill_cuda.py [--tq FILE] [--out FILE] [--commit ID]

Runs `tq bench attention --device cuda --prefill` (whole prompts: all queries over quantized blocks,
and what appending and sealing the prompt takes) and, for the same shapes, causal
scaled_dot_product_attention in FP16 with each backend that PyTorch offers (cuDNN, flash); medians.
ratio_to has the time of the fastest FP16 backend divided by ours. Writes
bench/results/prefill_cuda.json. Needs PyTorch with CUDA.
"""
import argparse
import json

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import RESULTS, TQ, cuda_machine, output, run, write_to
from cuda_timing import median_us

FORMATS = "k4v4,k3v3,k3v2,k2v2"
TOKENS = [2048, 8192, 32768]
Q_HEADS, HEAD_DIM, RUNS = 32, 128, 7
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def operations(tokens):
    """Of both products of a layer, masked pairs not counted; a multiply-add is two."""
    return 4 * HEAD_DIM * Q_HEADS * tokens * (tokens + 1) / 2


def fp16_results(kv_heads, tokens):
    """One result a backend; a backend that refuses the shape is listed with its reason."""
    q = torch.randn(1, Q_HEADS, tokens, HEAD_DIM, device="cuda", dtype=torch.float16)
    k, v = (torch.randn(1, kv_heads, tokens, HEAD_DIM, device="cuda", dtype=torch.float16)
            for _ in range(2))
    for name, backend in BACKENDS.items():
        result = {"name": "f16", "peer": f"torch {torch.__version__} SDPA {name}, causal",
                  "settings": {"head_dim": HEAD_DIM, "kv_heads": kv_heads,
                               "group": Q_HEADS // kv_heads, "tokens": tokens}}
        try:
            with sdpa_kernel([backend]):
                def attend():
                    F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                   enable_gqa=kv_heads != Q_HEADS)
                median_us(attend, 2)  # it finds its kernel meanwhile
                us = median_us(attend, RUNS)
            result |= {"us_per_layer": us, "operations_per_second": operations(tokens) / us * 1e6}
        except RuntimeError as error:
            result |= {"us_per_layer": None, "skipped": str(error).splitlines()[0]}
            torch.cuda.synchronize()
        yield result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tq", default=str(TQ))
    parser.add_argument("--out", default=str(RESULTS / "prefill_cuda.json"))
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    document = {"measured_on": cuda_machine(options.commit, torch=torch.__version__,
                                            cudnn=torch.backends.cudnn.version()),
                "results": []}
    for kv_heads in (32, 8):
        part = json.loads(output(
            options.tq, "bench", "attention", "--device", "cuda", "--prefill", "--kv", FORMATS,
            "--head-dim", str(HEAD_DIM), "--kv-heads", str(kv_heads), "--group",
            str(Q_HEADS // kv_heads), "--depth", ",".join(map(str, TOKENS)), "--runs", str(RUNS),
            "--json", "--quiet"))
        document.setdefault("device", part["device"])
        for tokens in TOKENS:
            peers = list(fp16_results(kv_heads, tokens))
            torch.cuda.empty_cache()
            fastest = min(p["us_per_layer"] for p in peers if p["us_per_layer"])
            ours = [r for r in part["results"] if r["settings"]["tokens"] == tokens]
            for result in ours:
                result["ratio_to"] = {"fastest f16": fastest / result["us_per_layer"]}
            document["results"] += peers + ours
            print(f"kv_heads {kv_heads} tokens {tokens}: fastest f16 {fastest:.1f} us | "
                  + " | ".join(f"{r['name']} {r['us_per_layer']:.1f} us "
                               f"({r['ratio_to']['fastest f16']:.2f}x, append and seal "
                               f"{100 * r['append_and_seal_share']:.1f} %)" for r in ours),
                  flush=True)
    write_to(options.out, document)
    return 0


if __name__ == "__main__":
    run(main)
