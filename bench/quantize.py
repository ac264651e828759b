#!/usr/bin/env python3
"""Weights by `tq quantize` beside llama.cpp's llama-quantize, at the same bytes, as a result file.

usage: bench/quantize.py LLAMA_BIN SOURCE.F16.gguf [--windows 4] [--context 512]
                         [--types Q4_0,Q4_K_M] [--name quantize.json] [--keep FOLDER]

SOURCE comes from bench/quantize_source.py. LLAMA_BIN is llama.cpp's folder of programs with
llama-quantize, llama-imatrix and llama-perplexity (cmake --build .cache/llama.cpp --target ...).
Needs ./quickstart and Debian's perl-doc. Both sides calibrate on the same text, pieces of Perl
manuals and of the end of the Bible; scored are other manuals and the begin of the Bible. Each of
llama.cpp's files, with and without its importance matrix, is put beside one of ours that is no
larger. llama-perplexity scores the files too: ours must open there and score the same. Rows of
types that are not named stay in the result file; FOLDER keeps the models and the importance matrix,
which is made once.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from common import RESULTS, ROOT, TEXT, TQ, machine, output, write
from quality import MANUALS, calibration_text, perl_text

CALIBRATION_CHUNKS = 16  # of 512 tokens


def run(*command):
    begin = time.monotonic()
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
        raise SystemExit(f"{command[0]} failed")
    return done.stdout + done.stderr, time.monotonic() - begin


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


def llama_scores(llama, model, base, text, options):
    """What llama-perplexity says of a file against the source's logits in `base`."""
    said, _ = run(llama / "llama-perplexity", "-m", model, "-f", text, "-c", options.context,
                  "--chunks", options.windows, "-t", 2, "--kl-divergence-base", base,
                  "--kl-divergence")
    found = {"kld": r"Mean\s+KLD:\s*([-\d.]+)", "ppl_ratio": r"Mean PPL\(Q\)/PPL\(base\)\s*:\s*([\d.]+)",
             "same_top": r"Same top p:\s*([\d.]+)"}
    return {name: float(re.search(pattern, said).group(1)) for name, pattern in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama", type=pathlib.Path)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--types", default="Q4_0,Q4_K_M")
    parser.add_argument("--name", default="quantize.json")
    parser.add_argument("--keep", type=pathlib.Path, default=ROOT / ".cache" / "quantize")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        keep = options.keep
        keep.mkdir(exist_ok=True)
        calibration, perl = keep / "calibration.txt", keep / "perl.txt"
        calibration.write_text(calibration_text(), encoding="utf-8")
        perl.write_text(perl_text(MANUALS), encoding="utf-8")
        if perl.stat().st_size == 0:
            print("no Perl manuals found: apt-get install perl-doc", file=sys.stderr)
            return 2
        texts = [TEXT, perl]
        imatrix, base = keep / "imatrix.gguf", folder / "base.kld"
        if not imatrix.exists():
            run(options.llama / "llama-imatrix", "-m", options.source, "-f", calibration, "-o",
                imatrix, "-c", 512, "--chunks", CALIBRATION_CHUNKS, "-t", 2)
        run(options.llama / "llama-perplexity", "-m", options.source, "-f", perl, "-c",
            options.context, "--chunks", options.windows, "-t", 2, "--kl-divergence-base", base)
        rows = []

        def add(tool, name, path, seconds, **more):
            row = {"tool": tool, "name": name, "file_bytes": path.stat().st_size,
                   "seconds": round(seconds, 1), **more, **kld(path, options.source, texts, options)}
            row["llama_perplexity"] = llama_scores(options.llama, path, base, perl, options)
            rows.append(row)
            print(json.dumps(row), flush=True)

        probe = folder / "probe.gguf"
        sizes = json.loads(output(str(TQ), "quantize", str(options.source), "--to", "Q4_0", "--out",
                                  str(probe), "--json", "--quiet"))
        header = sizes["file_bytes"] - sizes["tensor_bytes"]
        for name in options.types.split(","):
            sizes = {}
            for weighted in (False, True):
                path = keep / f"llama-{name}{'-imatrix' if weighted else ''}.gguf"
                matrix = ["--imatrix", imatrix] if weighted else []
                _, seconds = run(options.llama / "llama-quantize", *matrix, options.source, path,
                                 name, 2)
                sizes[weighted] = path.stat().st_size
                add("llama.cpp", name, path, seconds, calibrated=weighted)
            # The budget is what is left for tensors; keys that tell of the allocation take a little.
            budget = (min(sizes.values()) - header - 4096) / 2**30
            path = keep / f"tq-{name}-calibrated.gguf"
            to = "int8" if name == "Q8_0" else "int4"
            _, seconds = run(TQ, "quantize", options.source, "--to", to, "--max-gib", budget,
                             "--data", calibration, "--held-out-share", 0, "--context", 512,
                             "--calibration-tokens", 512 * CALIBRATION_CHUNKS, "--eval-tokens", 0,
                             "--out", path, "--quiet")
            add("tq", f"{to} as large as {name}", path, seconds, calibrated=True)
            if not name.endswith("_M"):
                path = keep / f"tq-{name}.gguf"
                _, seconds = run(TQ, "quantize", options.source, "--to", name, "--out", path,
                                 "--quiet")
                add("tq", name, path, seconds, calibrated=False)
        result = {"machine": machine(),
                  "command": f"bench/quantize.py LLAMA_BIN SOURCE --windows {options.windows} "
                             f"--context {options.context} --types {options.types}",
                  "source_bytes": options.source.stat().st_size,
                  "rows": rows}
        path = RESULTS / options.name
        if path.exists():
            old = json.loads(path.read_text(encoding="utf-8"))["rows"]
            names = {(row["tool"], row["name"]) for row in rows}
            result["rows"] = [r for r in old if (r["tool"], r["name"]) not in names] + rows
    write(options.name, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
