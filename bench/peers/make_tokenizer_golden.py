#!/usr/bin/env python3
"""Writes tests/golden/tokenizer_smollm2.json: token ids of Hugging Face `tokenizers`.

usage: make_tokenizer_golden.py MODEL.gguf [OUT.json]

Needs: pip install tokenizers gguf; the commands `bible` (package bible-kjv) and the pages of
perl-doc. The reference tokenizer is put together from the tokens and merges of the GGUF file and
the pre-tokenizers of SmolLM2's tokenizer.json: single digits, then GPT-2's byte level.
"""
import glob
import json
import random
import subprocess
import sys

import gguf
import tokenizers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

CONTROL = 3

ODDITIES = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n\n", "\t", "\t\t\t", " \n", "\n ", " \n \n ", "\r\n",
    "\r\n\r\n", "\r", "a\r\nb", "\u2028", "\u2029", "a\u2029b", "a\u2028\u2029 b", "\u0085", "a\u0085b",
    "\x0b\x0c", "\x00", "a\x00b", "\x01\x02\x03", "\x04", "!\x04!", "a\x06b", "\x7f", "\x1b[0m",
    "\u00a0", "a\u00a0b", "\u00a0\u00a0a", "\u1680x", "\u180e", "a\u180eb", " \u180e ", "\u2000\u2001x",
    "\u200b", "a\u200bb", "\u202f1", "\u205fx", "\u3000", "\u3000\u3000\u6f22", "\ufeffBOM", "x\ufeff",
    "Hello", "Hello world", " Hello world", "  Hello  world  ", "Hello\tworld", "HELLO world",
    "hello, world!", "Hello,world", "...", "\u2026", "?!", "?!?!?!", "--", "---", "\u2014", "\u2013dash\u2013", "''", '""',
    "'s", "'S", "it's", "IT'S", "we'll they've I'm you'd don't 'tis 're", "'ll'll", "can\u2019t", "o'clock",
    "'\u017f", "l'\u00e9t\u00e9", "0", "1", "12", "123", "1234567890", "3.14159", "1,000,000", "-1e-10", "1st 2nd",
    "x1y2z3", "0x1F", "\u0661\u0662\u0663", "\u00bd", "\u2167", "\u00b2", "\u2460\u2461", "\u4e00\u4e8c\u4e09", "1\u0301", " 1", "  12",
    "1 2  3   4", "2024-11-29T23:59:59Z", "v1.2.3-rc4", "192.168.0.1", "\U0001d7d8\U0001d7d9",
    "caf\u00e9", "cafe\u0301", "\u00e9", "e\u0301", "\u00c5", "A\u030a", "\u212b", "\u1e69", "s\u0323\u0307", "s\u0307\u0323", "\u0301", " \u0301", "\u0301\u0301",
    "a\u0300\u0301\u0302\u0303", "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f\u031e\u0320\u034dA", "\u00df\u1e9e", "\ufb01 \ufb06", "\u0130\u0131", "\u01c5",
    "\u4f60\u597d", "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3067\u3059\u3002", "\u3072\u3089\u304c\u306a \u30ab\u30bf\u30ab\u30ca \uff76\uff9e", "\ud55c\uad6d\uc5b4 \ubb38\uc7a5", "\u1112\u1161\u11ab",
    "\u0639\u0631\u0628\u064a", "\u0627\u0644\u0633\u0644\u0627\u0645 \u0639\u0644\u064a\u0643\u0645", "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u202bRTL\u202c LTR", "\u0639\u064e\u0631\u064e\u0628\u0650\u064a\u0651", "abc \u05d0\u05d1\u05d2 123",
    "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd", "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22", "\u1781\u17d2\u1798\u17c2\u179a", "\u10e5\u10d0\u10e0\u10d7\u10e3\u10da\u10d8", "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac", "\u0420\u0443\u0441\u0441\u043a\u0438\u0439 \u0442\u0435\u043a\u0441\u0442",
    "\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "1\ufe0f\u20e3", "\u2764\ufe0f", "\u2764",
    "a\U0001f600b \U0001f600 \U0001f600\U0001f600", "\U0001f9d1\U0001f3fb\u200d\U0001f680", "\U00010348", "\U0001f9ff\U000e0001", "\U00040000", "\U0010ffff",
    "\ufffd", "a\ufffdb", "\ufffd\ufffd\ufffd", "\ue000", "\ufdd0", "\uffff",
    "<|im_start|>", "<|im_end|>", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a<|im_start|>b", " <|im_end|> ", "<|endoftext|><|endoftext|>", "<|im_start|", "<|im_start",
    "<<|im_end|>>", "<|IM_END|>", "<|im_<|im_end|>end|>", "<repo_name>x<file_sep>y", "<reponame>", "<filename",
    "<empty_output>1<jupyter_code>", "text\n<|im_end|>\n", "<|endoftext|>'s", "1<|im_end|>2",
    "def f(x):\n    return x + 1\n", "def f(x):\n\treturn x\n\n\n", "for (int i = 0; i < 10; ++i) {\n  a[i]++;\n}",
    "if(a&&b||!c){return a?b:c;}", "x = {'a': [1, 2], \"b\": None}", "// comment\r\n/* block */\r\n",
    "#include <stdio.h>\n", "SELECT * FROM t WHERE a >= 10 AND b <> 'x';", "https://example.org/a?b=c&d=%20#e",
    "user@example.org", "C:\\Users\\x\\file.txt", "/usr/share/perl/5.36.0", "$HOME/*.{c,h}", "a->b::c<d>", "==!=<=>=", "`code`",
    "```python\nprint('hi')\n```\n", "| a | b |\n|---|---|\n| 1 | 2 |\n", "- [ ] item\n  - sub\n", "\\frac{1}{2} \\alpha_i^2",
    "<html><body class=\"x\">&nbsp;&amp;</body></html>", "{\"k\": [1.5, true, null]}\n", "%s %d %%", "@#$%^&*()_+-=[]{}|;':\",./<>?",
    "camelCaseName snake_case_name SCREAMING_CASE kebab-case", "a b c d e f", "aaaaaaaaaaaaaaaa", "ABABABABABABABAB",
    "Pneumonoultramicroscopicsilicovolcanoconiosis", "antidisestablishmentarianism", "Donaudampfschiffahrtsgesellschaftskapit\u00e4n",
    "a" * 1000, "ab" * 500, " " * 100, "\n" * 100, "\t" * 33, " \n" * 40, "1" * 50, "!" * 77, "\u00e9" * 65, "\u6f22" * 40,
    "\U0001f600" * 20, "word " * 50, "x" * 63 + " " + "y" * 64 + " " + "z" * 65, "a  b   c    d     e", "end with spaces   ",
    "   start with spaces", "line one\nline two\n\n  indented\n", "tab\tand  spaces \t mixed\n\t\n", "a\n \nb", "a \n b", " \t\n\r\x0b\x0c x",
]


def bible_verses():
    """Twenty verses, evenly spread."""
    verses = []
    for reference in ("gen1:1-3", "exo20:13-15", "ps23:1-4", "pro3:5-6", "is40:31", "mat5:3-5", "jn1:1-2",
                      "rom8:28", "rev22:21"):
        out = subprocess.run(["bible", "-l", "10000", "-f", reference], capture_output=True, text=True, check=True)
        verses += [line for line in out.stdout.splitlines() if line.strip()]
    return verses[:20]


def perl_lines():
    """Twenty lines of perl's manual with code or unusual characters."""
    pages = sorted(glob.glob("/usr/share/perl/5.*/pod/perlop.pod"))
    if not pages:
        sys.exit("perlop.pod is not there; on Debian: apt-get install --reinstall perl-doc")
    text = open(pages[-1], encoding="utf-8").read()
    lines = [line for line in text.splitlines() if len(line) > 30 and ("    " in line or "<" in line)]
    return random.Random(3).sample(lines, 20)


def main():
    model = sys.argv[1]
    out = sys.argv[2] if len(sys.argv) > 2 else "tests/golden/tokenizer_smollm2.json"
    fields = gguf.GGUFReader(model).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"

    def build(with_special):
        tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        tok.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        if with_special:
            tok.add_special_tokens(
                [AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == CONTROL])
        return tok

    special, plain = build(True), build(False)
    texts = ODDITIES + bible_verses() + perl_lines()
    cases = []
    for text in dict.fromkeys(texts):
        case = {"text": text, "ids": special.encode(text).ids}
        without = plain.encode(text).ids
        if without != case["ids"]:
            case["ids_without_special"] = without
        cases.append(case)
    head = {
        "about": "token ids of Hugging Face tokenizers, made by bench/peers/make_tokenizer_golden.py",
        "tokenizers": tokenizers.__version__,
        "model": "SmolLM2-135M-Instruct.Q4_1.gguf",
    }
    lines = [json.dumps(case, separators=(",", ":")) for case in cases]
    with open(out, "w", encoding="ascii") as f:
        f.write(json.dumps(head)[:-1] + ',\n"cases": [\n' + ",\n".join(lines) + "\n]}\n")
    json.load(open(out, encoding="ascii"))
    print(f"{out}: {len(cases)} strings, tokenizers {tokenizers.__version__}")


if __name__ == "__main__":
    main()
