#!/usr/bin/env python3
"""Writes tests/golden/weight_blocks.json: blocks of weights and what PyPI's `gguf` reads in them.

usage: make_weight_golden.py [OUT.json]

Needs: pip install gguf. Blocks are random bytes with finite half-precision scales; in the last two
of a type all other bytes are 0 or 255: the smallest and largest codes and integer scales. MXFP4 has
a byte for a scale instead: small, usual, 0 and the largest whose weights are floats. Both `blocks`
and `values` (float32) are little-endian bytes in hexadecimal.
"""
import importlib.metadata
import json
import pathlib
import sys

import gguf
import numpy as np

# Where the half-precision numbers of a block lie.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": []}


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else (
        pathlib.Path(__file__).parents[2] / "tests" / "golden" / "weight_blocks.json")
    rng = np.random.default_rng(1)
    types = {}
    for name, halves in HALVES.items():
        kind = gguf.GGMLQuantizationType[name]
        _, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (4, size), dtype=np.uint8)
        blocks[2], blocks[3] = 0, 255
        for at in halves:
            numbers = (rng.standard_normal(4) * [1, 1e-3, 1, 100]).astype("<f2")
            blocks[:, at:at + 2] = numbers.view(np.uint8).reshape(4, 2)
        if name == "MXFP4":
            blocks[:, 0] = [1, 120, 0, 252]
        values = gguf.quants.dequantize(blocks, kind).astype("<f4")
        types[name] = {"blocks": blocks.tobytes().hex(), "values": values.tobytes().hex()}
    result = {"made_by": "bench/peers/make_weight_golden.py",
              "oracle": f"gguf {importlib.metadata.version('gguf')} (PyPI)", "types": types}
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
