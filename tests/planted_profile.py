#!/usr/bin/env python3
"""Writes a profile of SmolLM2-135M: 4-bit keys and values, the keys of one head with levels of its own.

usage: planted_profile.py FOLDER.tqprofile SCALE

The levels are those of Lloyd and Max for a normal distribution, times SCALE, without a correction of
the gain: 1 is a good profile, 0.3 plants a wrong scale that no file check can see.
"""
import json
import pathlib
import struct
import sys

LAYER, HEAD = 1, 0
POSITIVE = (0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0691, 2.7327)


def main():
    folder, scale = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    levels = [scale * x for x in [-p for p in reversed(POSITIVE)] + list(POSITIVE)]
    name = f"layers.{LAYER}.heads.{HEAD}.k_levels"
    header = json.dumps({name: {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}).encode()
    header += b" " * (-len(header) % 8)
    (folder / "tensors.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<16f", *levels))
    profile = {"version": "1.0",
               "model": {"name": "SmolLM2", "architecture": "llama", "num_layers": 30, "num_q_heads": 9,
                         "num_kv_heads": 3, "head_dim": 64},
               "defaults": {"k": {"bits": 4}, "v": {"bits": 4}},
               "layers": [{"layers": str(LAYER), "heads": str(HEAD),
                           "k": {"bits": 4, "codebook": "calibrated", "gain": "none"}}]}
    (folder / "profile.json").write_text(json.dumps({"turboquant": profile}))


if __name__ == "__main__":
    main()
