#!/usr/bin/env python3
"""Weights by `tq quantize` beside llama.cpp's llama-quantize, at the same bytes, as a result file.

usage: bench/quantize.py LLAMA_BIN SOURCE.F16.gguf [--windows 4] [--context 512] [--rows N]
                         [--types Q4_0] [--name quantize.json] [--keep FOLDER]

SOURCE comes from bench/quantize_source.py. LLAMA_BIN is llama.cpp's folder of programs with
llama-quantize, llama-imatrix and llama-perplexity (cmake --build .cache/llama.cpp --target ...).
Needs ./quickstart and Debian's perl-doc. Both sides calibrate on the same text, pieces of Perl
manuals and of the end of the Bible; scored are other manuals and the begin of the Bible. Each of
llama.cpp's files, with and without its importance matrix, is put beside one of ours that is no
larger. llama-perplexity scores the files too: ours must open there and score the same. FOLDER keeps
models and scores: with --rows a run ends after so many new ones, and the next one goes on.
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


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
        raise SystemExit(f"{command[0]} failed")
    return done.stdout + done.stderr


def kld(model, source, texts, options):
    text = []
    for t in texts:
        text += ["--data", str(t)]
    result = json.loads(output(str(TQ), "eval", "kld", "--model", str(model), "--model-baseline",
                               str(source), "--kv", "f16", "--context", str(options.context),
                               "--windows", str(options.windows), "--json", "--quiet", *text))
    return {"kld": result["kld"]["mean"], "kld_stderr": result["kld"]["mean_stderr_windows"],
            "kld_p99": result["kld"]["p99"], "same_top": result["same_top"],
            "ppl_ratio": result["ppl"]["ratio"], "ppl": result["ppl"]["quantized"],
            "by_text": {t["text"]: {"kld": t["kld"]["mean"], "ppl_ratio": t["ppl"]["ratio"]}
                        for t in result["by_text"]}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama", type=pathlib.Path)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--types", default="Q4_0")
    parser.add_argument("--name", default="quantize.json")
    parser.add_argument("--keep", type=pathlib.Path, default=ROOT / ".cache" / "quantize")
    parser.add_argument("--rows", type=int, default=1000)
    options = parser.parse_args()
    options.keep.mkdir(exist_ok=True)
    bench = Bench(options)
    for name in options.types.split(","):
        for weighted in (False, True):
            bench.add("llama.cpp", name, weighted, f"llama-{name}{'-imatrix' if weighted else ''}")
        bench.add("tq", "int4, as large", True, f"tq-{name}-calibrated")
        bench.add("tq", "int4", False, "tq-int4")
    write(options.name, {
        "machine": machine(),
        "command": f"bench/quantize.py LLAMA_BIN SOURCE --windows {options.windows} "
                   f"--context {options.context} --types {options.types}",
        "source_bytes": options.source.stat().st_size,
        "calibration_tokens": CALIBRATION_TOKENS, "rows": bench.rows})
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

    def add(self, tool, name, calibrated, stem):
        path = self.keep / f"{stem}.gguf"
        if stem not in self.known:
            if self.left == 0:
                raise SystemExit(f"stopped before {stem}; run again to go on")
            self.left -= 1
            if not path.exists():
                self.make(stem, name, calibrated, path)
            row = {"tool": tool, "name": name, "calibrated": calibrated,
                   "file_bytes": path.stat().st_size,
                   **kld(path, self.options.source, [TEXT, self.perl], self.options),
                   "llama_perplexity": self.llama_scores(path)}
            self.known[stem] = row
            self.rows_path.write_text(json.dumps(self.known, indent=1))
            print(json.dumps(row), flush=True)
        self.rows.append(self.known[stem])

    def make(self, stem, name, calibrated, path):
        source, llama = self.options.source, self.options.llama
        if stem.startswith("llama"):
            imatrix = self.keep / "imatrix.gguf"
            if calibrated and not imatrix.exists():
                run(llama / "llama-imatrix", "-m", source, "-f", self.calibration, "-o", imatrix,
                    "-c", 512, "--chunks", CALIBRATION_TOKENS // 512, "-t", 2)
            weighted = ["--imatrix", imatrix] if calibrated else []
            run(llama / "llama-quantize", *weighted, source, path, name, 2)
            return
        more = []
        if calibrated:
            # As large as llama.cpp's file, less what our keys take in the header.
            peer = stem.replace("tq-", "llama-").replace("-calibrated", "")
            size = (self.keep / f"{peer}.gguf").stat().st_size
            more = ["--max-gib", (size - self.header_bytes()) / 2**30, "--data", self.calibration,
                    "--held-out-share", 0, "--context", 512, "--calibration-tokens",
                    CALIBRATION_TOKENS, "--eval-tokens", 0]
        run(TQ, "quantize", source, "--to", "int4", "--out", path, "--quiet", *more)

    def header_bytes(self):
        """Of a file of ours, with room for keys that tell of an allocation."""
        probe = self.keep / "probe.gguf"
        sizes = json.loads(output(str(TQ), "quantize", str(self.options.source), "--to", "Q4_0",
                                  "--out", str(probe), "--json", "--quiet"))
        probe.unlink()
        return sizes["file_bytes"] - sizes["tensor_bytes"] + 4096

    def llama_scores(self, model):
        """What llama-perplexity says of a file, against the logits of the source."""
        options = self.options
        base = self.keep / f"base-{options.windows}x{options.context}.kld"
        common = ["-f", self.perl, "-c", options.context, "--chunks", options.windows, "-t", 2,
                  "--kl-divergence-base", base]
        if not base.exists():
            run(options.llama / "llama-perplexity", "-m", options.source, *common)
        said = run(options.llama / "llama-perplexity", "-m", model, *common, "--kl-divergence")
        found = {"kld": r"Mean\s+KLD:\s*([-\d.]+)", "same_top": r"Same top p:\s*([\d.]+)",
                 "ppl_ratio": r"Mean PPL\(Q\)/PPL\(base\)\s*:\s*([\d.]+)"}
        return {name: float(re.search(pattern, said).group(1)) for name, pattern in found.items()}


if __name__ == "__main__":
    sys.exit(main())
