#!/usr/bin/env python3
"""Makes the F16 model on which quantizers are compared, from the Q4_1 file that ./quickstart fetches.

usage: bench/quantize_source.py IN.gguf OUT.gguf

The fetched weights lie on Q4_1's grid, where Q4_1 would be free of loss and everything else not.
This model computes the same function with weights off every grid: each channel of the residual
stream that a norm scales, each value channel and each feed-forward channel gets a random factor
between 0.7 and 1.4, which goes into the norm (or the rows of v and up) and, inverted, into the
columns of the matrices behind it. Token embeddings, which are the head too and have no such factor,
get noise of up to half a step of their Q4_1 block: what the rounding had hidden.

Needs PyPI's gguf and numpy.
"""
import sys

import gguf
import numpy as np

SEED = 1


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    reader = gguf.GGUFReader(sys.argv[1])
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
               for t in reader.tensors}
    layers = 1 + max(int(n.split(".")[1]) for n in tensors if n.startswith("blk."))
    random = np.random.default_rng(SEED)

    def factors(n):
        return np.exp2(random.uniform(-0.5, 0.5, n)).astype(np.float32)

    def field(key):
        return int(reader.fields[key].contents())

    kv_heads = field("llama.attention.head_count_kv")
    group = field("llama.attention.head_count") // kv_heads
    for layer in range(layers):
        blk = f"blk.{layer}."
        for norm, behind in (("attn_norm", ("attn_q", "attn_k", "attn_v")),
                             ("ffn_norm", ("ffn_gate", "ffn_up"))):
            scale = factors(tensors[blk + norm + ".weight"].size)
            tensors[blk + norm + ".weight"] *= scale
            for name in behind:
                tensors[blk + name + ".weight"] /= scale
        # A value channel is read by all query heads of its group.
        scale = factors(tensors[blk + "attn_v.weight"].shape[0])
        tensors[blk + "attn_v.weight"] *= scale[:, None]
        per_head = scale.reshape(kv_heads, 1, -1).repeat(group, axis=1).reshape(-1)
        tensors[blk + "attn_output.weight"] /= per_head
        scale = factors(tensors[blk + "ffn_up.weight"].shape[0])
        tensors[blk + "ffn_up.weight"] *= scale[:, None]
        tensors[blk + "ffn_down.weight"] /= scale
    embeddings = tensors["token_embd.weight"]
    blocks = embeddings.reshape(-1, 32)
    steps = (blocks.max(axis=1) - blocks.min(axis=1)) / 15
    blocks += (random.uniform(-0.5, 0.5, blocks.shape) * steps[:, None]).astype(np.float32)

    writer = gguf.GGUFWriter(sys.argv[2], "llama")
    for key, value in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        kind = value.types[0]
        element = value.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, value.contents(), kind, sub_type=element)
    writer.add_uint32("general.file_type", 1)
    for name, values in tensors.items():
        writer.add_tensor(name, values if values.ndim == 1 else values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
