#!/usr/bin/env python3
"""Writes tests/golden/architectures: tiny random models with the logits that transformers computes.

usage: make_architecture_golden.py LLAMA_CPP_SOURCE [OUT_FOLDER] [NAME...]

Needs: pip install torch transformers gguf, and the source of llama.cpp, whose own converter writes
the GGUF files, so that keys, tensor names and the order of rows are what users have. NAME.gguf is
the model with weights in F16; NAME.json has token ids and, by position, the logits after some of
them (float32, eager attention over keys and values that were rounded to F16 as a cache holds them;
4 decimals). All weights are numbers of a seeded generator, rounded to F16 before transformers
computes with them.
"""
import json
import pathlib
import sys
import tempfile

import torch
import transformers

VOCAB, TOKENS, STRIDE = 64, 150, 6

COMMON = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
              bos_token_id=0, eos_token_id=1, pad_token_id=None)
GEMMA = dict(COMMON, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
             intermediate_size=24, sliding_window=40, query_pre_attn_scalar=16)


def rope(kind, **more):
    return dict(rope_theta=10000.0, rope_type=kind, **more)


# name: class, configuration, keys that the converter leaves out.
MODELS = {
    "llama": ("Llama", dict(COMMON, num_hidden_layers=3, head_dim=12, rope_parameters=rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32)), {}),
    "llama-linear": ("Llama", dict(COMMON, tie_word_embeddings=True, attention_bias=True,
                                   rope_parameters=rope("linear", factor=4.0)), {}),
    "llama-yarn": ("Llama", dict(COMMON, rope_parameters=rope(
        "yarn", factor=8.0, original_max_position_embeddings=32)), {}),
    "mistral": ("Mistral", dict(COMMON, head_dim=16, sliding_window=40), {"sliding_window": 40}),
    "qwen2": ("Qwen2", dict(COMMON, tie_word_embeddings=True), {}),
    "qwen3": ("Qwen3", dict(COMMON, head_dim=24), {}),
    "gemma2": ("Gemma2", dict(GEMMA, num_hidden_layers=4, attn_logit_softcapping=5.0,
                              final_logit_softcapping=6.0), {}),
    "gemma3": ("Gemma3", dict(GEMMA, num_hidden_layers=7, rope_parameters={
        "full_attention": dict(rope("linear", factor=8.0), rope_theta=1e6),
        "sliding_attention": rope("default")}), {}),
    "phi3": ("Phi3", dict(COMMON, num_attention_heads=2, num_key_value_heads=1, sliding_window=100,
                          original_max_position_embeddings=64, rope_parameters=rope(
                              "longrope", partial_rotary_factor=0.75,
                              original_max_position_embeddings=64,
                              short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                              long_factor=[1.0, 1.5, 2.0, 4.0, 6.0, 8.0])), {}),
    "mixtral": ("Mixtral", dict(COMMON, intermediate_size=20, num_local_experts=4,
                                num_experts_per_tok=2, sliding_window=None), {}),
    "qwen3moe": ("Qwen3Moe", dict(COMMON, head_dim=16, moe_intermediate_size=16, num_experts=6,
                                  num_experts_per_tok=3, norm_topk_prob=True,
                                  decoder_sparse_step=1, mlp_only_layers=[]), {}),
    "gpt-oss": ("GptOss", dict(COMMON, num_hidden_layers=4, head_dim=12, intermediate_size=12,
                               num_local_experts=4, num_experts_per_tok=2, sliding_window=40,
                               rope_parameters=dict(rope("yarn", factor=4.0, beta_fast=32.0,
                                                         beta_slow=1.0, truncate=False,
                                                         original_max_position_embeddings=64))),
                {}),
}
# The same with experts in MXFP4, as its makers publish it.
MODELS["gpt-oss-mxfp4"] = ("GptOss", dict(MODELS["gpt-oss"][1], intermediate_size=32), {})


def as_mxfp4(values):
    """Blocks of 32 along the last dimension, and what they mean."""
    import gguf
    kind = gguf.GGMLQuantizationType.MXFP4
    blocks = gguf.quants.quantize(values.contiguous().numpy(), kind)
    return blocks, torch.from_numpy(gguf.quants.dequantize(blocks, kind))


def experts_to_mxfp4(path):
    """Puts a file's experts, which lie on the grid of MXFP4, into MXFP4."""
    import gguf
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(path.with_suffix(".tmp"),
                             reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(key, field.contents(), field.types[0],
                             sub_type=field.types[-1] if array else None)
    for t in reader.tensors:
        if t.name.endswith("_exps.weight"):
            values = torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type))
            blocks, same = as_mxfp4(values)
            assert torch.equal(same, values), t.name
            writer.add_tensor(t.name, blocks, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        else:
            writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".tmp").replace(path)


def randomize(model, seed, mxfp4):
    """Weights large enough that attention, experts and caps all matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=generator)
        if "norm" in name:
            # Gemma stores what is added to 1.
            value = noise * 0.2 + (0.0 if "Gemma" in type(model).__name__ else 1.0)
        elif name.endswith("bias") or "_bias" in name:
            value = noise * (2.0 if "k_proj" in name else 0.3)
        elif "sinks" in name:
            value = noise * 2
        elif "embed_tokens" in name:
            value = noise * 0.5
        else:
            fan_in = p.shape[-2] if name.endswith(("gate_up_proj", "down_proj")) and p.dim() == 3 \
                and "GptOss" in type(model).__name__ else p.shape[-1]
            gain = 2.0 if "q_proj" in name or "k_proj" in name or "lm_head" in name else 1.0
            value = noise * gain / fan_in ** 0.5
        value = value.half().float()
        if mxfp4 and p.dim() == 3:  # experts, whose last dimension but one is the input
            value = as_mxfp4(value.transpose(1, 2))[1].transpose(1, 2)
        p.data = value


def write_vocab(converter):
    """A byte-level vocabulary of single characters."""
    writer = converter.gguf_writer
    tokens = ["<s>", "</s>", "AB"] + [chr(c) for c in range(ord("A"), ord("A") + VOCAB - 3)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (VOCAB - 2))
    writer.add_token_merges(["A B"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)


def convert(folder, out, extra):
    import gguf
    from conversion import get_model_class
    from conversion.base import ModelBase, ModelType, get_model_architecture
    hparams = ModelBase.load_hparams(folder, False)
    base = get_model_class(get_model_architecture(hparams, ModelType.TEXT))

    class Tiny(base):
        model_arch = base.model_arch

        def set_vocab(self):
            write_vocab(self)

        def set_gguf_parameters(self):
            super().set_gguf_parameters()
            for key, value in extra.items():
                getattr(self.gguf_writer, "add_" + key)(value)

        def modify_tensors(self, data_torch, name, bid):
            # Gemma 3's converter cuts the table to the words of a tokenizer that is not here.
            if "embed_tokens" in name:
                return [(self.map_tensor_name(name), data_torch)]
            return super().modify_tensors(data_torch, name, bid)

    with torch.inference_mode():
        Tiny(folder, gguf.LlamaFileType.MOSTLY_F16, out, eager=True,
             model_name="Tiny " + out.stem).write()


def round_keys_and_values(module):
    """Puts a 16-bit cache in front of a model's eager attention."""
    eager = module.eager_attention_forward
    if getattr(eager, "rounds", False):
        return

    def attend(layer, query, key, value, *args, **kwargs):
        return eager(layer, query, key.half().float(), value.half().float(), *args, **kwargs)

    attend.rounds = True
    module.eager_attention_forward = attend


def rounded(row):
    return [round(x, 4) for x in row.tolist()]


def make(name, out):
    kind, fields, extra = MODELS[name]
    suffix = "TextConfig" if kind == "Gemma3" else "Config"
    config = getattr(transformers, kind + suffix)(**fields)
    config._attn_implementation = "eager"
    model = getattr(transformers, kind + "ForCausalLM")(config).float().eval()
    round_keys_and_values(sys.modules[type(model).__module__])
    mxfp4 = name.endswith("-mxfp4")
    randomize(model, len(name) * 7919 + sum(map(ord, name)), mxfp4)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, VOCAB, (1, TOKENS), generator=generator)
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0].float()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        convert(pathlib.Path(folder), out / f"{name}.gguf", extra)
    if mxfp4:
        experts_to_mxfp4(out / f"{name}.gguf")
    positions = list(range(STRIDE - 1, TOKENS, STRIDE))
    golden = {
        "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "tokens": ids[0].tolist(),
        "logits": {p: rounded(logits[p]) for p in positions},
    }
    if name == "phi3":  # within the original context: the short factors
        with torch.no_grad():
            short = model(ids[:, :60], use_cache=False).logits[0]
        golden["short_logits"] = {59: rounded(short[59])}
    text = json.dumps(golden).replace('], "', '],\n "')
    (out / f"{name}.json").write_text(text + "\n")
    print(name, (out / f"{name}.gguf").stat().st_size, "bytes; largest logit",
          float(logits.abs().max()))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    source = pathlib.Path(sys.argv[1])
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    out = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else (
        pathlib.Path(__file__).resolve().parents[2] / "tests/golden/architectures")
    out.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[3:] or MODELS:
        make(name, out)


if __name__ == "__main__":
    main()
