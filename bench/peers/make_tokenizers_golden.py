#!/usr/bin/env python3
"""Writes tests/golden/tokenizers.json: small tokenizers of each kind, and what they make of odd texts.

usage: make_tokenizers_golden.py [OUT.json]

Needs: pip install tokenizers sentencepiece protobuf; the command `bible` (package bible-kjv). Each kind is a
vocabulary of a few hundred tokens, trained here on verses and the odd texts themselves, in the
pipeline that the family's tokenizer.json has (regular expressions and normalizers are part of a
model). "json" entries are tokenizer.json files with ids of Hugging Face tokenizers; "ggml" entries are
SentencePiece models as GGUF keys with ids of sentencepiece.
"""
import io
import json
import subprocess
import sys
import tempfile

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from make_tokenizer_golden import ODDITIES

META = "\u2581"
TEXTS = [t for t in dict.fromkeys(ODDITIES) if len(t) < 60] + [
    "\u2581", "a\u2581b", "  a", "a  ", " \u2581", "<s>x</s>", " <s> x </s> y", "x<mask> y", "x <mask>y", "<|a|>  b<|a|>\nc",
    "\ufb01\u2460\uff21\u212b\u00bd", "HTTPServer getURLFor IOErrors", "\u01c5a \u01c5A A\u02b0b", "\u0928\u093f Qu\u0308b",
    "DON'T don'T I'LL we'Re", "12345678 1234 123456789012", "a/b\n/c//\n\n", "\u00c5ngstr\u00f6m \u1112\u1161\u11ab", "x\u00a0\u3000y", "t\x00u"]
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + CONTRACTIONS + r"?|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER
         + "*" + CONTRACTIONS + r"?|\p{N}{1,3}" + TAIL)
TEKKEN = r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + r"+|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + r"*|\p{N}" + TAIL
OTHER = r"\d+|[a-z]+(?=[A-Z])|\s"  # no family's: passed on as it is


def corpus():
    out = subprocess.run(["bible", "-l", "10000", "-f", "mat5:1-mat7:29"], capture_output=True, text=True, check=True)
    return out.stdout.splitlines() + TEXTS


def byte_level(regexes, normalizer=None, ignore_merges=False, bos=False, own_regex=False, digits=False):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tok.normalizer = normalizer
    steps = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    steps += [pre_tokenizers.Split(Regex(r), "isolated") for r in regexes]
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own_regex)])
    tok.decoder = decoders.ByteLevel()
    specials = ["<s>", "</s>", "<|a|>"]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(corpus(), trainer)
    tok.add_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    if bos:
        tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tok.token_to_id("<s>"))])
    return tok


def with_bytes(tok, size):
    """The same BPE with byte tokens: trained, then put together again."""
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=["<unk>", "<s>", "</s>", "<|a|>"])
    tok.train_from_iterator(corpus(), trainer)
    model = json.loads(tok.to_str())["model"]
    names = list(sorted(model["vocab"], key=model["vocab"].get))
    # Rare characters go: they have to fall back to bytes.
    rare = {t for t in names[4:] if len(t) == 1 and ord(t) > 127 and t not in (META, "\u00e9", "\u6f22")}
    merges = [m for m in model["merges"] if not any(set(p) & rare for p in m)]
    keep = names[:4] + [f"<0x{b:02X}>" for b in range(256)] + [t for t in names[4:] if not set(t) & rare]
    tok.model = models.BPE(vocab={t: i for i, t in enumerate(keep)}, merges=[tuple(m) for m in merges], unk_token="<unk>",
                           fuse_unk=True, byte_fallback=True)
    tok.add_special_tokens([AddedToken("<s>", normalized=False), AddedToken("</s>", normalized=False),
                            AddedToken("<|a|>", rstrip=True, normalized=False)])
    return tok


def sentencepiece_decoder(strip):
    steps = [decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


def llama2():
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend(META), normalizers.Replace(" ", META)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tok.decoder = sentencepiece_decoder(strip=True)
    return with_bytes(tok, 400)


def metaspace(scheme, split):
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.Metaspace(META, prepend_scheme=scheme, split=split)
    tok.decoder = sentencepiece_decoder(strip=True)
    return with_bytes(tok, 400)


def gemma():
    tok = Tokenizer(models.BPE(unk_token="<unk>"))
    tok.normalizer = normalizers.Replace(" ", META)
    tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tok.decoder = sentencepiece_decoder(strip=False)
    return with_bytes(tok, 400)


def unigram():
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(META, prepend_scheme="always")
    tok.decoder = decoders.Metaspace(META, prepend_scheme="always")
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>", "<|a|>"], unk_token="<unk>",
                                      show_progress=False)
    tok.train_from_iterator([l for l in corpus() if l.isascii()], trainer)
    return tok


def sentencepiece_model(kind, **options):
    text = [line for line in corpus() if "\n" not in line and "\r" not in line and "\0" not in line and line.strip()]
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=out, model_type=kind, vocab_size=400, character_coverage=0.985,
        minloglevel=2, num_threads=1, **options)
    model = proto.ModelProto.FromString(out.getvalue())
    spec = model.normalizer_spec
    ggml = {"model": "llama" if kind == "bpe" else "t5", "tokens": [p.piece for p in model.pieces],
            "scores": [p.score for p in model.pieces], "kinds": [p.type for p in model.pieces],
            "add_space_prefix": spec.add_dummy_prefix, "remove_extra_whitespaces": spec.remove_extra_whitespaces,
            "charsmap_bytes": list(spec.precompiled_charsmap)}
    processor = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    # What stands for a whole token in a text is a matter of the caller there.
    texts = [i for i, t in enumerate(TEXTS) if "\0" not in t and "<s>" not in t and "</s>" not in t]
    return {"ggml": ggml, "texts": texts, "ids": [processor.encode(TEXTS[i]) for i in texts]}


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/tokenizers.json"
    kinds = {
        "gpt2": byte_level([], own_regex=True), "smollm": byte_level([], own_regex=True, digits=True),
        "llama3": byte_level([LLAMA3], ignore_merges=True, bos=True),
        "qwen2": byte_level([QWEN2], normalizers.NFC()), "o200k": byte_level([O200K]), "tekken": byte_level([TEKKEN]),
        "other": byte_level([OTHER], normalizers.NFKD()),
        "llama2": llama2(), "metaspace_first": metaspace("first", False), "metaspace_split": metaspace("always", True),
        "gemma": gemma(), "unigram": unigram(),
    }
    entries = {}
    for name, tok in kinds.items():
        encoded = [tok.encode(t).ids for t in TEXTS]
        decoded = {i: tok.decode(ids) for i, ids in enumerate(encoded)}
        tokenizer = json.loads(tok.to_str())
        if name != "gpt2":  # both spellings of merges are met
            tokenizer["model"].update({k: [" ".join(m) for m in v] for k, v in tokenizer["model"].items() if k == "merges"})
        entries[name] = {"json": tokenizer, "ids": encoded,
                         "decoded_otherwise": {i: d for i, d in decoded.items() if d != TEXTS[i]}}
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as rules:
        for source, target in (("\ufb01", "fi"), ("\u2460", "1"), ("\uff21", "A"), ("\u212b", "\u00c5"), ("e\u0301", "\u00e9"),
                               ("\t", " "), ("\u3000", " "), ("\u00ad", "")):
            points = [" ".join(f"{ord(c):X}" for c in s) for s in (source, target)]
            rules.write("\t".join(points) + "\n")
        rules.flush()
        identity = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
        entries["sp_bpe"] = sentencepiece_model("bpe", byte_fallback=True, **identity)
        entries["sp_bpe_unknown"] = sentencepiece_model("bpe", **identity)
        entries["sp_unigram"] = sentencepiece_model("unigram", normalization_rule_tsv=rules.name)
        entries["sp_unigram_bytes"] = sentencepiece_model("unigram", byte_fallback=True, user_defined_symbols=["Verily"],
                                                          normalization_rule_tsv=rules.name)
    head = {"about": "made by bench/peers/make_tokenizers_golden.py", "tokenizers": tokenizers.__version__,
            "sentencepiece": sentencepiece.__version__, "texts": TEXTS}
    with open(out, "w", encoding="ascii") as f:
        lines = [f'"{name}":{json.dumps(entry, separators=(",", ":"))}' for name, entry in entries.items()]
        f.write(json.dumps(head)[:-1] + ',\n"tokenizers_of_kind": {\n' + ",\n".join(lines) + "\n}}\n")
    json.load(open(out, encoding="ascii"))
    print(f"{out}: {len(entries)} tokenizers, {len(TEXTS)} texts")


if __name__ == "__main__":
    main()
