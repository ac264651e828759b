#!/usr/bin/env python3
"""Decode attention of other projects on a CUDA device, from the folder that
bench/peers/prepare_cuda_peers.py makes.

usage: bench/cuda_peers.py FOLDER FAMILY --out FILE [--check-only]
       [--kv-heads LIST] [--batches LIST] [--depths LIST]

attention_cuda.py --peers runs this once for each family, each in a process of its own, so that an
illegal access of one ends nothing else. A family first computes attention over a small cache of
real values and compares it with scaled_dot_product_attention in FP32; what is wrong is an error
and is not measured. Then each shape is timed in each variant of the peer (kernel, page size,
layout, splits); the fastest is timed again and is the result, a line of JSON in FILE, with its
relative_error in that comparison: the norm of the error over that of the result. An FP8 cache is
compared over the values that it holds, vLLM's over those that it was given.
"""
import argparse
import json
import math
import os
import pathlib
import shutil
import sys
import tempfile
import time
import traceback
from typing import NamedTuple

import torch
import torch.nn.functional as F

from cuda_timing import LayersGraph, layers_for

Q_HEADS, HEAD_DIM = 32, 128
SCALE = HEAD_DIM ** -0.5
MOST_LAYERS = 32  # as `tq bench attention`
PAGE_SIZES = (16, 64)
# The last page is not full, and the page tables of both sizes are multiples of 16 long, as those
# of the measured shapes: Triton compiles a kernel again for another divisibility.
CHECK_BATCH, CHECK_DEPTH = 2, 1023


class Shape(NamedTuple):
    kv_heads: int
    batch: int
    depth: int

    @property
    def group(self):
        return Q_HEADS // self.kv_heads


class Variant(NamedTuple):
    kernel: str
    page: int = 0  # 0: a contiguous cache
    layout: str = ""
    splits: int = 0

    def settings(self):
        found = {"kernel": self.kernel, "page_size": self.page, "layout": self.layout,
                 "kv_splits": self.splits}
        return {name: value for name, value in found.items() if value}

    def __str__(self):
        return ", ".join(f"{v}" if k == "kernel" else f"{k} {v}"
                         for k, v in self.settings().items())


def page_table(shape, page):
    """Pages of each sequence in shuffled order, as `tq bench attention` has them."""
    if not page:
        return None
    pages = -(-shape.depth // page)
    table = torch.randperm(shape.batch * pages, device="cuda", dtype=torch.int32)
    return table.view(shape.batch, pages)


def places(shape, table, page):
    """Page and place in it of each token of each sequence."""
    token = torch.arange(shape.depth, device="cuda")
    return table.long()[:, token // page], (token % page).expand(shape.batch, -1)


class FlashInfer:
    """FA2 kernels of BatchDecodeWithPagedKVCacheWrapper, planned for the exact shape."""

    order = "shuffled page table"

    def __init__(self, dtype):
        import flashinfer.decode
        self.wrapper_of = flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper
        self.dtype = dtype
        self.name = "flashinfer " + ("fp16" if dtype == torch.float16 else "fp8")
        self.filled_by = "random values"
        self.workspace = torch.zeros(512 * 2**20, dtype=torch.uint8, device="cuda")
        self.wrappers = {}

    def variants(self):
        return [Variant(kernel, page, layout) for kernel, layout in (
            ("tensor cores", "NHD"), ("tensor cores", "HND"), ("CUDA cores", "NHD"))
                for page in PAGE_SIZES]

    def limits(self):
        """Largest error beside FP32, and its norm beside the norm of the result."""
        return 1e-2, 1e-2

    def fill_values(self, flat):
        """Random values; FP8 has none of its own."""
        if self.dtype != torch.float8_e4m3fn:
            flat.normal_()
            return
        for part in flat.split(2**28):
            part.copy_(torch.randn(len(part), dtype=torch.float16, device="cuda"))

    def layer_bytes(self, shape):
        return (2 * shape.batch * shape.depth * shape.kv_heads * HEAD_DIM
                * self.dtype.itemsize)

    def allocate(self, shape, layers):
        """Layers of K and V as flat values: all layouts and page sizes are views of them."""
        tokens = shape.batch * -(-shape.depth // 64) * 64
        return [[torch.empty(tokens * shape.kv_heads * HEAD_DIM, dtype=self.dtype, device="cuda")
                 for _ in range(2)] for _ in range(layers)]

    def fill(self, shape, cache):
        for flat in (flat for layer in cache for flat in layer):
            self.fill_values(flat)

    def paged(self, shape, flat, variant):
        inner = ((variant.page, shape.kv_heads) if variant.layout == "NHD"
                 else (shape.kv_heads, variant.page))
        size = variant.page * shape.kv_heads * HEAD_DIM
        return flat[:len(flat) // size * size].view(-1, *inner, HEAD_DIM)

    def put(self, shape, cache, variant, table, k, v):
        """Real values [batch, depth, kv_heads, head_dim] into layer 0; returns them as stored."""
        for flat, values in zip(cache[0], (k, v)):
            pages = self.paged(shape, flat, variant)
            pages = pages if variant.layout == "NHD" else pages.transpose(1, 2)
            bits = {1: torch.uint8, 2: torch.int16}[self.dtype.itemsize]  # FP8 is not indexed
            pages.view(bits)[places(shape, table, variant.page)] = values.to(self.dtype).view(bits)
        return k.to(self.dtype), v.to(self.dtype)

    def call(self, shape, cache, variant, table, q, out):
        if variant not in self.wrappers:
            self.wrappers[variant] = self.wrapper_of(
                self.workspace, variant.layout, backend="fa2",
                use_tensor_cores=variant.kernel == "tensor cores")
        wrapper = self.wrappers[variant]
        pages = table.shape[1]
        wrapper.plan(
            torch.arange(shape.batch + 1, dtype=torch.int32) * pages, table.flatten(),
            torch.full((shape.batch,), (shape.depth - 1) % variant.page + 1, dtype=torch.int32),
            Q_HEADS, shape.kv_heads, HEAD_DIM, variant.page, pos_encoding_mode="NONE",
            q_data_type=torch.float16, kv_data_type=self.dtype, sm_scale=SCALE)
        layers = [tuple(self.paged(shape, flat, variant) for flat in layer) for layer in cache]
        return lambda layer: wrapper.run(q, layers[layer], out=out)


class FlashInferXqa(FlashInfer):
    """XQA kernels, as xqa_batch_decode_with_kv_cache calls them."""

    def __init__(self, dtype):
        super().__init__(dtype)
        from flashinfer.decode import xqa_batch_decode_with_kv_cache
        self.run = xqa_batch_decode_with_kv_cache
        self.name = "flashinfer xqa " + ("fp16" if dtype == torch.float16 else "fp8")

    def variants(self):
        return [Variant("XQA", page, layout) for page in PAGE_SIZES for layout in ("NHD", "HND")]

    def limits(self):
        # With an FP8 cache the query and the probabilities are FP8 too.
        return (1e-2, 1e-2) if self.dtype == torch.float16 else (math.inf, 1e-1)

    def call(self, shape, cache, variant, table, q, out):
        layers = [tuple(self.paged(shape, flat, variant) for flat in layer) for layer in cache]
        lengths = torch.full((shape.batch,), shape.depth, dtype=torch.int32,
                             device="cuda").view(torch.uint32)
        return lambda layer: self.run(
            q, layers[layer], self.workspace, table, lengths, shape.depth, bmm1_scale=SCALE,
            bmm2_scale=1.0, out=out, kv_layout=variant.layout)


class FlashAttention3(FlashInfer):
    """FA3 over a contiguous cache: the kernels on PyPI have neither FP16 nor pages."""

    order = "contiguous"

    def __init__(self, dtype):  # pylint: disable=super-init-not-called
        import fa3_fwd._C  # pylint: disable=import-outside-toplevel,unused-import
        self.run = torch.ops.fa3_fwd.fwd
        self.dtype = dtype
        self.name = "flash-attention 3 " + ("bf16" if dtype == torch.bfloat16 else "fp8")
        self.filled_by = "random values"

    def variants(self):
        return [Variant("FA3"), Variant("FA3, query heads packed")]

    def limits(self):
        # BF16 has 8 bits; with an FP8 cache the query and the probabilities are FP8 too.
        return math.inf, 2e-2 if self.dtype == torch.bfloat16 else 1e-1

    def allocate(self, shape, layers):
        return [[torch.empty(shape.batch * shape.depth * shape.kv_heads * HEAD_DIM,
                             dtype=self.dtype, device="cuda") for _ in range(2)]
                for _ in range(layers)]

    def put(self, shape, cache, variant, table, k, v):
        for flat, values in zip(cache[0], (k, v)):
            flat.copy_(values.flatten())
        return k.to(self.dtype), v.to(self.dtype)

    def call(self, shape, cache, variant, table, q, out):
        q = q.to(self.dtype).unsqueeze(1)
        layers = [[flat.view(shape.batch, shape.depth, shape.kv_heads, HEAD_DIM) for flat in layer]
                  for layer in cache]
        packed = True if "packed" in variant.kernel else None  # None: as it finds best
        return lambda layer: self.run(q, *layers[layer], softmax_scale=SCALE, num_splits=0,
                                      pack_gqa=packed)[0][:, 0]


class Vllm:
    """vLLM's Triton kernels of --kv-cache-dtype turboquant_*, with the query's rotation."""

    order = "shuffled page table"

    def __init__(self, preset):
        if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
            raise RuntimeError("Triton needs a C compiler for what launches its kernels: install "
                               "gcc or set CC")
        from vllm.model_executor.layers.quantization.turboquant.centroids import get_centroids
        from vllm.model_executor.layers.quantization.turboquant.config import TurboQuantConfig
        from vllm.v1.attention.ops.triton_turboquant_decode import (
            triton_turboquant_decode_attention)
        from vllm.v1.attention.ops.triton_turboquant_store import triton_turboquant_store
        self.decode, self.store = triton_turboquant_decode_attention, triton_turboquant_store
        self.config = TurboQuantConfig.from_cache_dtype(preset, HEAD_DIM)
        self.preset = preset
        self.name = "vllm " + preset.replace("_", " ", 1)
        self.filled_by = "its own store kernel: 1024 tokens, repeated"
        self.centroids = get_centroids(HEAD_DIM, self.config.centroid_bits).cuda()
        self.midpoints = (self.centroids[:-1] + self.centroids[1:]) / 2
        # The rotation of its backend: Sylvester's Hadamard matrix over sqrt(head_dim).
        rotation = torch.ones(1, 1)
        while len(rotation) < HEAD_DIM:
            rotation = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), rotation)
        self.rotation = (rotation * SCALE).contiguous().cuda()

    def variants(self):
        # 32 splits are its default (attention_config.tq_max_kv_splits_for_cuda_graph).
        return [Variant("Triton", page, splits=splits) for page in PAGE_SIZES
                for splits in (32, 128)]

    def limits(self):
        # Values of a normal distribution lose about 0.15, 0.2, 0.26 and 0.33; nonsense 1 or more.
        return math.inf, {"turboquant_k8v4": 0.3, "turboquant_4bit_nc": 0.4,
                          "turboquant_k3v4_nc": 0.5}.get(self.preset, 0.6)

    def layer_bytes(self, shape):
        return shape.batch * shape.depth * shape.kv_heads * self.config.slot_size_aligned

    def allocate(self, shape, layers):
        tokens = shape.batch * -(-shape.depth // 64) * 64
        return [torch.zeros(tokens * shape.kv_heads * self.config.slot_size_aligned,
                            dtype=torch.uint8, device="cuda") for _ in range(layers)]

    def fill(self, shape, cache):
        values = torch.randn(2, 1024, shape.kv_heads, HEAD_DIM, dtype=torch.float16,
                             device="cuda")
        slots = torch.arange(1024, dtype=torch.int32, device="cuda")
        some = cache[0][:1024 * shape.kv_heads * self.config.slot_size_aligned]
        self.encode(self.paged(shape, some, Variant("Triton", 16)), slots, *values)
        some = some.clone()
        for part in (part for layer in cache for part in layer.split(len(some))):
            part.copy_(some[:len(part)])

    def encode(self, pages, slots, k, v):
        c = self.config
        self.store(k, v, pages, slots, self.rotation, self.midpoints, mse_bits=c.key_mse_bits,
                   key_packed_size=c.key_packed_size,
                   value_quant_bits=c.effective_value_quant_bits, key_fp8=c.key_fp8)

    def paged(self, shape, flat, variant):
        return flat.view(-1, variant.page, shape.kv_heads, self.config.slot_size_aligned)

    def put(self, shape, cache, variant, table, k, v):
        page, place = places(shape, table, variant.page)
        slots = (page * variant.page + place).flatten().int()
        self.encode(self.paged(shape, cache[0], variant), slots,
                    *(x.reshape(-1, shape.kv_heads, HEAD_DIM) for x in (k, v)))
        return k, v

    def call(self, shape, cache, variant, table, q, out):
        c = self.config
        lengths = torch.full((shape.batch,), shape.depth, dtype=torch.int32, device="cuda")
        parts = torch.empty(shape.batch, Q_HEADS, variant.splits, HEAD_DIM + 1, device="cuda")
        lse = torch.empty(shape.batch, Q_HEADS, device="cuda")
        layers = [self.paged(shape, flat, variant) for flat in cache]
        return lambda layer: self.decode(
            query=q, kv_cache=layers[layer], block_table=table, seq_lens=lengths,
            Pi=self.rotation, centroids=self.centroids, scale=SCALE, mse_bits=c.key_mse_bits,
            key_packed_size=c.key_packed_size, value_quant_bits=c.effective_value_quant_bits,
            key_fp8=c.key_fp8, norm_correction=c.norm_correction, PiT=self.rotation,
            mid_o_buf=parts, output_buf=out, lse_buf=lse, max_num_kv_splits=variant.splits)


FAMILIES = {
    "flashinfer": (FlashInfer, (torch.float16, torch.float8_e4m3fn), "flashinfer"),
    "flashinfer-xqa": (FlashInferXqa, (torch.float16, torch.float8_e4m3fn), "flashinfer"),
    "fa3": (FlashAttention3, (torch.bfloat16, torch.float8_e4m3fn), "fa3-fwd"),
    "vllm": (Vllm, ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc",
                    "turboquant_3bit_nc"), "vllm"),
}


def trouble(what):
    """The exception in full; a device that an illegal access left unusable ends the process."""
    print(f"{what} FAILED", flush=True)
    traceback.print_exc(file=sys.stdout)
    sys.stdout.flush()
    torch.cuda.synchronize()


def check(peer, kv_heads):
    """Variants whose result is right, each with its relative error."""
    shape = Shape(kv_heads, CHECK_BATCH, CHECK_DEPTH)
    torch.manual_seed(7)
    k, v = (torch.randn(shape.batch, shape.depth, kv_heads, HEAD_DIM, device="cuda").half()
            for _ in range(2))
    # Twice the usual query: a few tokens weigh most, so the result is far from an average.
    q = 2 * torch.randn(shape.batch, Q_HEADS, HEAD_DIM, device="cuda").bfloat16().half()
    good, worst = {}, (0.0, 0.0)
    most, most_relative = peer.limits()
    for variant in peer.variants():
        try:
            cache = peer.allocate(shape, 1)
            table = page_table(shape, variant.page)
            stored = peer.put(shape, cache, variant, table, k, v)
            out = peer.call(shape, cache, variant, table, q, torch.zeros_like(q))(0)
            torch.cuda.synchronize()
            right = F.scaled_dot_product_attention(
                q.float()[:, :, None], *(x.float().transpose(1, 2) for x in stored),
                enable_gqa=True)[:, :, 0]
            error = out.float() - right
            found = (error.abs().max().item(), (error.norm() / right.norm()).item())
            if not (found[0] < most and found[1] < most_relative):
                raise ValueError(f"wrong result: largest error {found[0]:.4g} (limit {most:g}), "
                                 f"relative {found[1]:.4g} (limit {most_relative:g})")
            worst = max(worst, found)
            good[variant] = found[1]
        except Exception:  # pylint: disable=broad-except
            trouble(f"{peer.name}, {kv_heads} KV heads, {variant}: check")
    print(f"{peer.name}, {kv_heads} KV heads: {len(good)} of {len(peer.variants())} variants are "
          f"right, largest error {worst[0]:.2g}, relative {worst[1]:.2g}", flush=True)
    return good


def measure(peer, shape, variants, version):
    """Result of a shape; `variants` as check() found them."""
    layer_bytes = peer.layer_bytes(shape)
    layers = layers_for(layer_bytes, MOST_LAYERS)
    result = {"name": peer.name, "peer": version,
              "settings": {"head_dim": HEAD_DIM, "kv_heads": shape.kv_heads, "group": shape.group,
                           "batch": shape.batch, "depth": shape.depth, "layers": layers,
                           "launch": "CUDA graph of all layers",
                           "cache": peer.order, "filled_by": peer.filled_by},
              "bytes_per_layer": layer_bytes}
    q = torch.randn(shape.batch, Q_HEADS, HEAD_DIM, device="cuda", dtype=torch.float16)
    out = torch.empty_like(q)
    cache = peer.allocate(shape, layers)
    peer.fill(shape, cache)
    tried = []
    for variant in variants:
        try:
            call = peer.call(shape, cache, variant, page_table(shape, variant.page), q, out)
            torch.cuda.synchronize()
            graph = LayersGraph(call, layers)
            tried.append((graph.us(2), variant, graph, call))
        except Exception:  # pylint: disable=broad-except
            trouble(f"{peer.name}, {shape}, {variant}")
    if not tried:
        return result | {"us_per_layer": None, "skipped": "no variant ran"}
    _, variant, graph, _ = min(tried, key=lambda t: t[0])
    us = graph.us(7)
    result["settings"] |= variant.settings()
    return result | {"us_per_layer": us, "bytes_per_second": layer_bytes / us * 1e6,
                     "relative_error": variants[variant],
                     "tried_us": {str(t[1]): round(t[0], 2) for t in tried}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--out", required=True)
    parser.add_argument("--kv-heads", default="32,8")
    parser.add_argument("--batches", default="1,4,8")
    parser.add_argument("--depths", default="1024,8192,32768,131072")
    parser.add_argument("--check-only", action="store_true")
    options = parser.parse_args()
    numbers = [[int(n) for n in text.split(",")]
               for text in (options.kv_heads, options.batches, options.depths)]
    folder = pathlib.Path(options.folder).resolve()
    versions = json.loads((folder / "peers.json").read_text(encoding="utf-8"))["versions"]
    # FlashInfer shall take the compiled modules of the folder or fail, never compile.
    os.environ |= {"FLASHINFER_DISABLE_JIT": "1", "FLASHINFER_DISABLE_VERSION_CHECK": "1",
                   "FLASHINFER_WORKSPACE_BASE": tempfile.mkdtemp(),
                   "FLASHINFER_CUDA_ARCH_LIST": "9.0a"}
    sys.path.insert(0, str(folder))
    kind, forms, project = FAMILIES[options.family]
    version = f"{project} {versions[project]}"
    with open(options.out, "w", encoding="utf-8") as out:
        for form in forms:
            start = time.monotonic()
            try:
                peer = kind(form)
                right = {kv_heads: check(peer, kv_heads) for kv_heads in numbers[0]}
            except Exception:  # pylint: disable=broad-except
                trouble(f"{version}, {form}")
                continue
            print(f"{peer.name}: ready after {time.monotonic() - start:.1f} s", flush=True)
            if options.check_only:
                continue
            for shape in (Shape(h, b, d) for h in numbers[0] for b in numbers[1]
                          for d in numbers[2]):
                if not right[shape.kv_heads]:
                    continue
                result = measure(peer, shape, right[shape.kv_heads], version)
                torch.cuda.empty_cache()
                out.write(json.dumps(result) + "\n")
                out.flush()
            print(f"{peer.name}: measured after {time.monotonic() - start:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
