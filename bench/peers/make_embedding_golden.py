#!/usr/bin/env python3
"""Writes tests/golden/embeddings.json: WordPiece ids of odd texts, and sentence embeddings.

usage: make_embedding_golden.py [OUT.json]

Needs: pip install tokenizers sentence-transformers gguf; the command `bible` (package bible-kjv); and
.cache/all-MiniLM-L6-v2, which ./check fetches. "wordpiece" holds a vocabulary of a few hundred tokens
that is trained here, and the ids that Hugging Face tokenizers gives with it; "minilm" the ids and the
vectors of sentence-transformers for the real model, in float32 on the CPU.
"""
import json
import pathlib
import subprocess
import sys

from make_tokenizer_golden import ODDITIES
from sentence_transformers import SentenceTransformer
from tokenizers import BertWordPieceTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / ".cache" / "all-MiniLM-L6-v2"
TEXTS = [t for t in dict.fromkeys(ODDITIES) if len(t) < 200] + [
    "[SEP]", "a[CLS]b [MASK]", "[sep] [UNK]x", "\u00c5ngstr\u00f6m caf\u00e9 na\u00efve \u0130stanbul", "\u1112\u1161\u11ab \ud55c\uae00",
    "\u4e2d\u6587 text \u65e5\u672c\u8a9e\u306e", "don't 'quoted' \u201cquoted\u201d \u2014 dash\u2026", "a\u00a0b\u3000c\u2003d\u200be\u00adf", "x\x00y\ufffdz\x7f\x85",
    "1,234.56 $5 \u20ac7 50% a@b.c #1 C++", "w" * 100, "w" * 101, "unaffable UNAFFABLE", "\ufb01ne \u2460 \uff21", "\t tab\r\nline \n",
    "\u0938\u094d\u0924\u0947 \u05e9\u05b8\u05dc \u0627\u064e\u0644", "\U0001f600 ok \U0001f468\u200d\U0001f469", "e\u0301\u0323 q\u0308\u0302", "\u03a3\u0391\u03a3 \u1e9e \u01c5"]
SENTENCES = [
    "The order number is 4711 and it ships on Monday.", "Your parcel 4711 leaves us at the beginning of next week.",
    "The order number is 4712 and it ships on Monday.", "Bananas are rich in potassium.", "no", "",
    "In the beginning God created the heaven and the earth."]


def bible(place, lines):
    out = subprocess.run(["bible", "-l", "10000", "-f", place], capture_output=True, text=True, check=True)
    return out.stdout.splitlines()[:lines]


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "tests/golden/embeddings.json")
    small = BertWordPieceTokenizer(lowercase=True)
    small.train_from_iterator(bible("mat5:1-mat7:29", 200) + TEXTS, vocab_size=900, min_frequency=2, show_progress=False)
    vocabulary = [t for t, _ in sorted(small.get_vocab().items(), key=lambda item: item[1])]
    small = BertWordPieceTokenizer({t: i for i, t in enumerate(vocabulary)}, lowercase=True)
    wordpiece = {"vocabulary": vocabulary, "cases": [{"text": t, "ids": small.encode(t).ids} for t in TEXTS]}

    model = SentenceTransformer(str(MODEL), device="cpu")
    # Long enough to fill the 256 tokens of a piece.
    sentences = SENTENCES + [" ".join(bible("gen1:1-gen1:12", 12))]
    cases = []
    for text in sentences:
        # [CLS], at most 254 pieces, [SEP]: the model's own limit (sentence_bert_config.json).
        ids = model.tokenizer(text, truncation=True, max_length=256)["input_ids"]
        model.max_seq_length = 256
        vector = model.encode([text], normalize_embeddings=True)[0]
        cases.append({"text": text, "ids": ids, "vector": [round(float(x), 7) for x in vector]})
    texts = [{"text": t, "ids": model.tokenizer(t)["input_ids"]} for t in TEXTS]
    out.write_text(json.dumps({"wordpiece": wordpiece, "minilm": {"sentences": cases, "texts": texts}}, indent=None,
                              separators=(",", ":")).replace('{"text"', '\n{"text"') + "\n")
    print(f"{out}: {len(vocabulary)} tokens, {len(TEXTS)} texts, {[len(c['ids']) for c in cases]} ids")


if __name__ == "__main__":
    main()
