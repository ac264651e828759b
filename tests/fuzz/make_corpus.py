#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets into tests/fuzz/corpus (the same bytes each time)."""
import gzip
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent / "corpus"


def text(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(b)) + b


def value(key, kind, raw):
    return text(key) + struct.pack("<I", kind) + raw


def texts(items):
    return struct.pack("<IQ", 8, len(items)) + b"".join(map(text, items))


def tensor(name, shape, kind, offset):
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf(values, tensors=(), data=b"", version=3, align=32):
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values)) + b"".join(values) + b"".join(tensors)
    if tensors:
        out += b"\0" * (-len(out) % align)
    return out + data


def gguf_seeds():
    scalars = [value(f"k{kind}", kind, raw) for kind, raw in (
        (0, b"\xff"), (1, b"\xff"), (2, b"\xff\xff"), (3, b"\xff\xff"), (4, b"\1\0\0\0"), (5, b"\xff" * 4),
        (6, struct.pack("<f", 0.5)), (7, b"\1"), (8, text("text")), (10, b"\xff" * 8), (11, b"\xff" * 8),
        (12, struct.pack("<d", 0.1)))]
    arrays = [value("texts", 9, texts(["a", "", "b"])), value("ints", 9, struct.pack("<IQ2i", 5, 2, 1, -1)),
              value("floats", 9, struct.pack("<IQf", 6, 1, 0.5)), value("bools", 9, struct.pack("<IQ2B", 7, 2, 0, 1))]
    three = [tensor("a", [3], 0, 0), tensor("b", [64, 2], 2, 32), tensor("c", [1, 1, 2, 1], 1, 128)]
    whole = gguf(scalars + arrays, three, b"x" * 132)
    yield "whole", whole
    yield "version2", gguf(scalars[:2], three, b"x" * 132, version=2)
    yield "no_tensors", gguf(scalars)
    yield "truncated_header", whole[:65]
    yield "truncated_data", whole[:-10]
    yield "alignment_0", gguf([value("general.alignment", 4, b"\0" * 4)], three, b"x" * 132)
    yield "alignment_64", gguf([value("general.alignment", 4, b"\x40\0\0\0")], three[:1], b"x" * 12, align=64)
    yield "alignment_text", gguf([value("general.alignment", 8, text("32"))])
    yield "empty_key", gguf([value("", 4, b"\0" * 4)])
    yield "duplicate_key", gguf([scalars[0], scalars[0]])
    yield "duplicate_tensor", gguf([], [three[0], tensor("a", [1], 0, 32)], b"x" * 64)
    yield "overlap", gguf([], [tensor("a", [16], 0, 0), tensor("b", [1], 0, 32)], b"x" * 64)
    yield "dimension_0", gguf([], [tensor("a", [4, 0], 0, 0)], b"x" * 64)
    yield "dimension_2_42", gguf([], [tensor("a", [2**42 + 1], 0, 0)], b"x" * 64)
    yield "product_overflows", gguf([], [tensor("a", [2**32, 2**32], 0, 0)], b"x" * 64)
    yield "type_77", gguf([], [tensor("a", [1], 77, 0)], b"x" * 64)
    yield "offset_max", gguf([], [tensor("a", [1], 0, 2**64 - 32)], b"x" * 64)
    yield "nested_array", gguf([value("k", 9, struct.pack("<IQIQ", 9, 1, 4, 0))])
    yield "huge_array", gguf([value("k", 9, struct.pack("<IQ", 8, 2**61))])
    yield "huge_counts", b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60) + b"\0" * 41
    yield "big_endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)


def safetensors_seeds():
    def file(header, payload=b""):
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(raw)) + raw + payload

    def entry(kind, shape, begin, end):
        return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}

    kinds = (("I64", 8), ("F32", 4), ("I32", 4), ("F16", 2), ("BF16", 2), ("I8", 1), ("U8", 1))
    header, end = {"__metadata__": {"a": "b"}}, 0
    for kind, size in kinds:
        header[kind.lower()] = entry(kind, [2], end, end + 2 * size)
        end += 2 * size
    whole = file(header, bytes(range(end)))
    yield "whole", whole
    yield "truncated", whole[:-1]
    yield "empty_tensor", file({"a": entry("F32", [0, 3], 0, 0), "b": entry("F32", [], 0, 4)}, b"abcd")
    yield "overlap", file({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, b"abcdef")
    yield "hole", file({"a": entry("U8", [2], 2, 4)}, b"abcd")
    yield "overflow", file({"a": entry("F32", [2**62, 8], 0, 4)}, b"abcd")
    yield "duplicate", file(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}')
    yield "deep", file(b"[" * 200)
    yield "huge_header", b"\xff" * 8
    yield "no_json", file(b"not json")


def tokenizer_seeds():
    oddities = ("caf\u00e9 12ab's \n\n <|im_start|>x<|im_end|>\n<tag> \U0001f468\u200d\U0001f469 "
                "\u2029\t\u3000aaaaabcbc").encode() + b"\xff\xc3\xe2\x82 a"
    for kind in range(8):
        yield f"text_{kind}", bytes([kind]) + oddities
    letters = [chr(c) for c in range(33, 127)]
    values = [value("tokenizer.ggml.model", 8, text("gpt2")), value("tokenizer.ggml.pre", 8, text("smollm")),
              value("tokenizer.ggml.tokens", 9, texts(letters + ["ab", "<s>"])),
              value("tokenizer.ggml.merges", 9, texts(["a b"])),
              value("tokenizer.ggml.token_type", 9, struct.pack("<IQ96i", 5, 96, *([1] * 95 + [3]))),
              value("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 95)),
              value("tokenizer.ggml.add_bos_token", 7, b"\1")]
    yield "vocabulary", b"\x80" + gguf(values)
    yield "bad_merge", b"\x80" + gguf(values[:3] + [value("tokenizer.ggml.merges", 9, texts(["a zz"]))])


def chat_seeds():
    golden = json.load(open(pathlib.Path(__file__).parents[1] / "golden" / "chat_templates.json", encoding="ascii"))
    for name, source in golden["templates"].items():
        yield name.replace(" ", "_"), source.encode()
    snippets = [case["source"] for case in golden["cases"] if "source" in case]
    for i in range(0, len(snippets), 7):
        yield f"snippet_{i:03}", snippets[i].encode() + b"\0" + "caf\u00e9 </think> \n{{ x }}".encode() + b"\xff"
    yield "limit_loops", b"{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
    yield "limit_growth", b"{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}"
    yield "limit_depth", b"{{ " + b"(" * 500


def cache_file_seeds():
    yield "raw_magic", b"\0TQCACHE\0" + struct.pack("<II", 1, 256) + b"\0" * 240
    yield "raw_version2", b"\0TQCACHE\0" + struct.pack("<II", 2, 256) + b"\0" * 240
    yield "raw_text", b"\0hello"
    # Bytes of a good file that are changed: (offset, byte), see cache_file_fuzz.cc.
    edits = {"good": [], "length": [(48, 255)], "length_huge": [(55, 64)], "open_slot_0": [(56, 0), (57, 0)],
             "sealed_slot_1": [(64, 1), (65, 0)], "tokens_huge": [(80 + 16 * 3 + 7, 255)], "inexact": [(72, 0)],
             "layout": [(32, 120)]}
    for name, changes in edits.items():
        yield name, b"\1" + b"".join(struct.pack("<HB", *c) for c in changes)
    for at in range(1500, 12000, 700):
        yield f"byte_{at:05}", b"\1" + b"".join(struct.pack("<HB", at + i, 255) for i in range(8))


def plan_seeds():
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100, "max_position_embeddings": 4096}
    mla = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    configs = {"llama": {}, "mistral": {"sliding_window": 128}, "gemma3_text": {"sliding_window": 64},
               "qwen2": {}, "qwen3_moe": experts, "qwen3_next": experts | {"full_attention_interval": 2},
               "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2}, "deepseek_v3": mla,
               "gemma2": {"layer_types": ["full_attention", "sliding_attention"] * 2}}
    for kind, more in configs.items():
        yield "config_" + kind, json.dumps({"model_type": kind} | shape | more).encode()
    yield "config_nested", json.dumps({"text_config": {"model_type": "llama"} | shape}).encode()
    yield "config_absurd", json.dumps({"model_type": "llama"} | shape | {"num_hidden_layers": 10**12}).encode()
    messages = [{"role": "user", "content": "hello " * 40}, {"role": "user", "content": [{"type": "text", "text": "x"}]}]
    yield "log", "\n".join(map(json.dumps, [
        {"messages": messages, "usage": {"prompt_tokens": 90, "completion_tokens": 3}, "time": 1.5},
        {"body": {"messages": messages[:1]}, "response": {"body": {"choices": [{"message": messages[0]}]}}},
        {"prompt": "hello", "choices": [{"text": "you"}], "created": "2026-11-30T12:00:00Z", "duration": 1},
        {"prompt_tokens": 2**63, "completion_tokens": -1}])).encode()


def data_seeds():
    chat = {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "call 5551234 " * 9}]}
    chunk = lambda text: {"choices": [{"index": 0, "delta": {"content": text}}]}
    events = "".join(f"data: {json.dumps(chunk(t))}\n\n" for t in ("555", "1234")) + "data: [DONE]\n\n"
    call = {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "f", "arguments": "{}"}}]}
    log = "\n".join(map(json.dumps, [
        chat, {"request": chat, "response": events}, {"request": {"body": json.dumps(chat)}, "response": [chunk("a"), chunk("b")]},
        {"prompt": "once upon " * 20, "choices": [{"text": "a time", "finish_reason": "length"}]},
        {"request": chat, "response": {"body": {"choices": [{"message": call, "finish_reason": "tool_calls"}]}}},
        {"request": chat, "response": [{"choices": [{"delta": call}]}]}, {"prompt": ["a"], "response": "b"}, {"us": 1}])).encode()
    yield "log", log
    yield "array", b"[" + log.replace(b"\n", b",\n") + b"]"
    yield "log_gzip", gzip.compress(log, mtime=0)
    text = b"".join(b"line %d of a text with 5551234 in it\n" % i for i in range(40))
    yield "text", text
    yield "text_gzip", gzip.compress(text, mtime=0)
    # A raw block in a zstd frame: magic, descriptor, window, 3 bytes of block header.
    yield "text_zstd", b"\x28\xb5\x2f\xfd\x00\x58" + struct.pack("<I", len(text) << 3 | 1)[:3] + text
    yield "member", b'{\n    "a": [1, {"us": 2}], "us" : null, "b": "\\"}"\n}'
    yield "latin", b"Gr\xfc\xdf Gott\n"
    yield "deep", b'{"messages": ' + b"[" * 300 + b"]" * 300 + b"}"


def hf_seeds():
    shape = {"num_hidden_layers": 1, "max_position_embeddings": 8, "hidden_size": 2, "intermediate_size": 2,
             "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2, "rms_norm_eps": 1e-5, "vocab_size": 4}
    layer = "model.layers.0."
    names = {"model.embed_tokens.weight": [4, 2], layer + "self_attn.q_proj.weight": [2, 2], layer + "input_layernorm.weight": [2],
             layer + "mlp.up_proj.weight": [2, 2]}
    experts = {layer + f"block_sparse_moe.experts.{e}.w1.weight": [2, 2] for e in range(2)}
    fused = {layer + "mlp.experts.gate_up_proj": [2, 2, 4], layer + "mlp.experts.gate_up_proj_bias": [2, 4],
             layer + "self_attn.sinks": [1]}
    moe = {"num_local_experts": 2, "num_experts_per_tok": 1}
    bpe = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, "added_tokens": [
        {"id": 3, "content": "<s>", "special": True, "lstrip": True, "rstrip": True}],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{N}|\\s+(?!\\S)"}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}, "normalizer": {"type": "NFC"}}
    meta = {"model": {"type": "BPE", "vocab": {"<unk>": 0, "<0x0A>": 1, "\u2581": 2, "a": 3, "\u2581a": 4},
                      "merges": [["\u2581", "a"]], "byte_fallback": True, "unk_token": "<unk>"},
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {
                "type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}}
    unigram = {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["\u2581", -2], ["a", -3], ["\u2581ab", -1.5]]},
               "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}}
    rope = {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    for name, config, tokenizer, tensors in (
            ("llama", {"model_type": "llama"} | rope, bpe, names), ("gemma2", {
                "model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                "sliding_window": 4, "layer_types": ["full_attention"]}, meta, names),
            ("mixtral", {"model_type": "mixtral"} | moe, unigram, names | experts),
            ("gpt_oss", {"model_type": "gpt_oss", "sliding_window": 4} | moe, bpe, fused),
            ("awq", {"model_type": "llama", "quantization_config": {"quant_method": "awq"}}, bpe, names)):
        header, offset = {}, 0
        for tensor_name, dims in tensors.items():
            size = 2
            for dim in dims:
                size *= dim
            header[tensor_name] = {"dtype": "BF16", "shape": dims, "data_offsets": [offset, offset + size]}
            offset += size
        text = json.dumps(header, separators=(",", ":")).encode()
        parts = [json.dumps(shape | config, separators=(",", ":")), json.dumps(tokenizer, separators=(",", ":")),
                 json.dumps({"bos_token": "<s>", "add_bos_token": True}), ""]
        yield name, "".join(part + "\n---\n" for part in parts).encode() + struct.pack("<Q", len(text)) + text + b"x" * offset


def wordpiece_seeds():
    for i, words in enumerate(("abba a.b", "[SEP]a [CLS", "\u4e2d\u6587a", "e\u0301\u0323 \u00c9", "a\x00\ufffd\u200b\t\r\n", "a" * 101,
                               "1a1b", "\ud55c \u0130")):
        yield f"text_{i}", b"\1" + words.encode()
    yield "vocabulary", b"\xff" + b"[UNK]\n[CLS]\n[SEP]\na\n##b\ncafe\n"
    yield "repeated", b"\xff" + b"[UNK]\n[CLS]\n[SEP]\n[UNK]\n"
    yield "no_sep", b"\xff" + b"[UNK]\r\n[CLS]\r\n"


def bert_seeds():
    def encoder(change=None, drop=(), dtype="F32", size=4):
        config = {"model_type": "bert", "hidden_act": "gelu", "hidden_size": 4, "intermediate_size": 4, "vocab_size": 3,
                  "max_position_embeddings": 2, "num_hidden_layers": 1, "num_attention_heads": 2} | (change or {})
        layer = "encoder.layer.0."
        shapes = {"embeddings.word_embeddings.weight": [3, 4], "embeddings.position_embeddings.weight": [2, 4],
                  "embeddings.token_type_embeddings.weight": [2, 4]}
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
                     "intermediate.dense", "output.dense"):
            shapes |= {f"{layer}{name}.weight": [4, 4], f"{layer}{name}.bias": [4]}
        for name in ("embeddings.LayerNorm", layer + "attention.output.LayerNorm", layer + "output.LayerNorm"):
            shapes |= {f"{name}.weight": [4], f"{name}.bias": [4]}
        header, offset = {}, 0
        for name, shape in shapes.items():
            count = shape[0] * (shape[1] if len(shape) == 2 else 1)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + count * size]}
            offset += count * size
        for name in drop:
            header[name + ".x"] = header.pop(name)
        text = json.dumps(header, separators=(",", ":")).encode()
        data = b"".join(struct.pack("<f" if size == 4 else "<e", (i * 7 % 11 - 5) / 8) for i in range(offset // size))
        return json.dumps(config, separators=(",", ":")).encode() + b"\0" + struct.pack("<Q", len(text)) + text + data

    yield "whole", encoder()
    yield "half", encoder(dtype="F16", size=2)
    yield "relu", encoder({"hidden_act": "relu"})
    yield "three_heads", encoder({"num_attention_heads": 3})
    yield "no_layers", encoder({"num_hidden_layers": 0})
    yield "many_layers", encoder({"num_hidden_layers": 1 << 24})
    yield "large", encoder({"hidden_size": 1 << 24, "intermediate_size": 1 << 24})
    yield "no_words", encoder(drop=["embeddings.word_embeddings.weight"])


def main():
    for folder, seeds in (("gguf", gguf_seeds), ("safetensors", safetensors_seeds), ("tokenizer", tokenizer_seeds),
                          ("chat_template", chat_seeds), ("cache_file", cache_file_seeds), ("plan", plan_seeds), ("data", data_seeds),
                          ("hf_folder", hf_seeds), ("wordpiece", wordpiece_seeds), ("bert", bert_seeds)):
        (HERE / folder).mkdir(parents=True, exist_ok=True)
        for name, data in seeds():
            (HERE / folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
