#!/usr/bin/env python3
"""Weights by `tq quantize` beside those by llama.cpp's llama-quantize, as a result file.

usage: bench/quantize.py LLAMA_BIN SOURCE.F16.gguf [--windows 3] [--context 512] [--rows N]
                         [--types Q4_0] [--name quantize.json] [--keep FOLDER]

SOURCE comes from bench/quantize_source.py. LLAMA_BIN is llama.cpp's folder of programs with
llama-quantize, llama-imatrix and llama-perplexity (cmake --build .cache/llama.cpp --target ...).
Needs ./quickstart and Debian's perl-doc. Both sides calibrate on the same text, pieces of Perl
manuals and of the end of the Bible; scored are other manuals and the Bible's begin and middle.
llama-quantize keeps the embeddings, which are the head too, in Q8_0, and so does `tq quantize`, so
that the types are the same and only the choice of scales and codes differs (with importance
llama-quantize puts the first eighth of ffn_down into the type with a minimum: 0.2 % more bytes).
With any types at the same bytes: tq-budget chooses each tensor's by the KL that it was seen to cost;
llama-mixed is llama-quantize's Q4_K_S (Q5_0 where rows are no multiple of 256) with Q5_0 embeddings.
llama-perplexity scores files of both on one window, and of ours `tq eval kld --cut llama` does: they
must open there and score the same. FOLDER keeps models and scores: with --rows a run stops after so
many new scores and writes those there are; the next one goes on.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

from common import ROOT, TEXT, TQ, machine, output, write
from quality import MANUALS, calibration_text, perl_text

CALIBRATION_TOKENS = 8192
# Begins of file names: what is calibrated, and the type of the embeddings.
WAYS = {
    "llama-plain": {"tool": "llama.cpp", "calibration": "none", "embeddings": "Q8_0"},
    "llama-imatrix": {"tool": "llama.cpp", "calibration": "importance", "embeddings": "Q8_0"},
    "tq-plain": {"tool": "tq", "calibration": "none", "embeddings": "Q8_0"},
    "tq-importance": {"tool": "tq", "calibration": "importance", "embeddings": "Q8_0"},
    "tq-feedback": {"tool": "tq", "calibration": "importance and feedback", "embeddings": "Q8_0"},
    "llama-mixed": {"name": "Q4_K_S", "tool": "llama.cpp", "calibration": "importance",
                    "embeddings": "Q5_0"},
    "tq-budget": {"name": "int4", "tool": "tq", "calibration": "importance, types by measured KL",
                  "embeddings": "by measured KL"},
    "tq-small": {"tool": "tq", "calibration": "importance", "embeddings": "as the rest"},
}


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
        raise SystemExit(f"{command[0]} failed")
    return done.stdout + done.stderr


def kld(model, source, texts, *more, cut="spread"):
    text = []
    for t in texts:
        text += ["--data", str(t)]
    result = json.loads(output(str(TQ), "eval", "kld", "--model", str(model), "--model-baseline",
                               str(source), "--cut", cut, "--kv", "f16", "--json", "--quiet", *text,
                               *[str(m) for m in more]))
    return {"kld": result["kld"]["mean"], "kld_stderr": result["kld"]["mean_stderr_windows"],
            "same_top": result["same_top"], "ppl_ratio": result["ppl"]["ratio"],
            "by_text": {t["text"]: t["kld"]["mean"] for t in result["by_text"]}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama", type=pathlib.Path)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--types", default="Q4_0")
    parser.add_argument("--name", default="quantize.json")
    parser.add_argument("--keep", type=pathlib.Path, default=ROOT / ".cache" / "quantize")
    parser.add_argument("--rows", type=int, default=1000)
    options = parser.parse_args()
    options.keep.mkdir(exist_ok=True)
    bench = Bench(options)
    for name in options.types.split(","):
        for way in WAYS:
            bench.add(way, name)
    result = {
        "machine": machine(),
        "command": f"bench/quantize.py LLAMA_BIN SOURCE --windows {options.windows} "
                   f"--context {options.context} --types {options.types}",
        "source_bytes": options.source.stat().st_size,
        "calibration_tokens": CALIBRATION_TOKENS, "rows": bench.rows,
        "one_window": bench.one_window()}
    write(options.name, result)
    return 0


class Bench:
    """Models and scores; what is in the folder already is not made again."""

    def __init__(self, options):
        self.options = options
        self.keep = options.keep
        self.calibration, self.perl = self.keep / "calibration.txt", self.keep / "perl.txt"
        self.calibration.write_text(calibration_text(), encoding="utf-8")
        self.perl.write_text(perl_text(MANUALS), encoding="utf-8")
        if self.perl.stat().st_size == 0:
            raise SystemExit("no Perl manuals found: apt-get install perl-doc")
        self.rows_path = self.keep / f"rows-{options.windows}x{options.context}.json"
        self.known = json.loads(self.rows_path.read_text()) if self.rows_path.exists() else {}
        self.rows = []
        self.left = options.rows

    def add(self, way, name):
        stem = f"{way}-{name}"
        path = self.keep / f"{stem}.gguf"
        if stem not in self.known:
            if self.left == 0:
                print(f"left for another run: {stem}", file=sys.stderr)
                return
            self.left -= 1
            if not path.exists():
                self.make(way, name, path)
            options = self.options
            row = {"name": name, **WAYS[way], "file_bytes": path.stat().st_size,
                   "commit": machine()["commit"],
                   **kld(path, options.source, [TEXT, self.perl], "--context", options.context,
                         "--windows", options.windows)}
            self.known[stem] = row
            self.rows_path.write_text(json.dumps(self.known, indent=1))
            print(json.dumps(row), flush=True)
        self.rows.append(self.known[stem])

    def make(self, way, name, path):
        source, llama = self.options.source, self.options.llama
        if way.startswith("llama"):
            weighted = []
            if way != "llama-plain":
                imatrix = self.keep / "imatrix.gguf"
                if not imatrix.exists():
                    run(llama / "llama-imatrix", "-m", source, "-f", self.calibration, "-o",
                        imatrix, "-c", 512, "--chunks", CALIBRATION_TOKENS // 512, "-t", 2)
                weighted = ["--imatrix", imatrix]
            if way == "llama-mixed":
                weighted += ["--token-embedding-type", "q5_0"]
                name = WAYS[way]["name"]
            run(llama / "llama-quantize", *weighted, source, path, name, 2)
            return
        more = []
        if way != "tq-plain":
            more = ["--data", self.calibration, "--held-out-share", 0, "--context", 512,
                    "--calibration-tokens", CALIBRATION_TOKENS, "--eval-tokens", 0,
                    "--feedback-columns", 2048 if way == "tq-feedback" else 0]
        if way == "tq-budget":  # the bytes of tq-importance
            twin = json.loads(output(str(TQ), "info", str(self.keep / f"tq-importance-{name}.gguf"),
                                     "--json"))
            chosen = ["--to", "int4", "--budget", twin["quantize"]["bits_per_weight"]]
        else:
            embeddings = "Q8_0" if WAYS[way]["embeddings"] == "Q8_0" else name
            chosen = ["--to", name, "--embeddings", embeddings]
        run(TQ, "quantize", source, *chosen, "--out", path, "--quiet", *more)

    def one_window(self):
        """What llama-perplexity says of the files whose tensors have the same types, and what we
        say of ours, on one window that both cut in the same way."""
        options = self.options
        known = self.known.setdefault("one_window", {})
        base = self.keep / f"base-{options.context}.kld"
        common = ["-f", self.perl, "-c", options.context, "--chunks", 1, "-t", 2,
                  "--kl-divergence-base", base]
        rows = []
        for name in options.types.split(","):
            for way in [w for w in WAYS if WAYS[w]["embeddings"] == "Q8_0"]:
                stem = f"{way}-{name}"
                path = self.keep / f"{stem}.gguf"
                if stem not in known:
                    if self.left == 0 or not path.exists():
                        print(f"left for another run: a window of {stem}", file=sys.stderr)
                        continue
                    self.left -= 1
                    if not base.exists():
                        run(options.llama / "llama-perplexity", "-m", options.source, *common)
                    row = {"name": name, **WAYS[way], "file_bytes": path.stat().st_size,
                           "llama_perplexity": self.llama_scores(path, common)}
                    if way.startswith("tq"):
                        ours = kld(path, options.source, [self.perl], "--context",
                                   options.context, "--windows", 1, cut="llama")
                        row["tq"] = {key: ours[key] for key in ("kld", "same_top", "ppl_ratio")}
                    known[stem] = row
                    self.rows_path.write_text(json.dumps(self.known, indent=1))
                    print(json.dumps(row), flush=True)
                rows.append(known[stem])
        return rows

    def llama_scores(self, model, common):
        said = run(self.options.llama / "llama-perplexity", "-m", model, *common,
                   "--kl-divergence")
        pair = r":\s*([-\d.]+) ±\s*([\d.]+)"
        found = {"kld": r"Mean\s+KLD" + pair, "same_top": r"Same top p" + pair,
                 "ppl_ratio": r"Mean PPL\(Q\)/PPL\(base\)\s*" + pair}
        scores = {}
        for name, pattern in found.items():
            value, error = re.search(pattern, said).groups()
            unit = 100 if name == "same_top" else 1
            scores[name] = round(float(value) / unit, 6)
            scores[name + "_stderr"] = round(float(error) / unit, 6)
        return scores


if __name__ == "__main__":
    sys.exit(main())
