#!/usr/bin/env python3
"""Our KL and perplexity of a pair of weight files beside those of llama-perplexity --kl-divergence.

usage: bench/peers/compare_perplexity.py LLAMA_PERPLEXITY BASE.gguf OTHER.gguf [OTHER.gguf...]
                                         [--context 512] [--windows 8] [--text FILE]

Both programs read the same text in the same windows, score the second half of each and give the same
statistics. Writes bench/results/llama_perplexity.json. llama.cpp stores the base's logits in 16 bit,
so its own KL of a model with itself is not 0; `self` in the result says how large it is.

The programs differ in the arithmetic of their matrix products (how activations are rounded), so a
pair of files is not quite the same pair of models to both.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from common import TEXT, TQ, machine, write  # noqa: E402

PATTERNS = {
    "ppl_base": r"Mean PPL\(base\)\s*:\s*([\d.]+) ±\s*([\d.]+)",
    "ppl": r"Mean PPL\(Q\)\s*:\s*([\d.]+) ±\s*([\d.]+)",
    "ln_ratio": r"Mean ln\(PPL\(Q\)/PPL\(base\)\)\s*:\s*(-?[\d.]+) ±\s*([\d.]+)",
    "kld_mean": r"Mean\s+KLD:\s*(-?[\d.]+) ±\s*([\d.]+)",
    "kld_p99": r"99\.0%\s+KLD:\s*(-?[\d.]+)()",
    "kld_median": r"Median\s+KLD:\s*(-?[\d.]+)()",
    "kld_max": r"Maximum KLD:\s*(-?[\d.]+)()",
    "delta_p_rms": r"RMS Δp\s*:\s*([\d.]+) ±\s*([\d.]+)",
    "same_top": r"Same top p:\s*([\d.]+) ±\s*([\d.]+)",
}


def llama(program, model, text, base, options, compare):
    command = [program, "-m", model, "-f", text, "-c", str(options.context), "-b",
               str(options.context), "--chunks", str(options.windows), "-t", str(options.threads),
               "--kl-divergence-base", base] + (["--kl-divergence"] if compare else [])
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def parse(printed):
    result = {}
    for key, pattern in PATTERNS.items():
        found = re.search(pattern, printed)
        if found is None:
            raise ValueError(f"llama-perplexity printed no {key}")
        value = float(found.group(1))
        error = float(found.group(2)) if found.group(2) else None
        scale = 100 if key in ("delta_p_rms", "same_top") else 1  # in percent there
        result[key] = [value / scale, error / scale] if error is not None else value / scale
    return result


def ours(base, other, text, options):
    command = [str(TQ), "eval", "kld", "--model", other, "--model-baseline", base, "--data", text,
               "--cut", "llama", "--context", str(options.context), "--windows",
               str(options.windows), "--threads", str(options.threads), "--json", "--quiet"]
    j = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return {"ppl_base": j["ppl"]["f16"], "ppl": j["ppl"]["quantized"],
            "ppl_ratio": [j["ppl"]["ratio"], j["ppl"]["ratio_stderr"]],
            "kld_mean": [j["kld"]["mean"], j["kld"]["mean_stderr"]], "kld_p99": j["kld"]["p99"],
            "kld_median": j["kld"]["median"], "kld_max": j["kld"]["max"],
            "delta_p_rms": j["delta_p_rms"], "same_top": [j["same_top"], j["same_top_stderr"]],
            "positions": j["kld"]["positions"], "isa": j["isa"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama_perplexity")
    parser.add_argument("base")
    parser.add_argument("others", nargs="+")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--text", default=str(TEXT))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # llama-perplexity tokenizes the whole file: only what is used.
        text = pathlib.Path(folder) / "text.txt"
        source = pathlib.Path(options.text).read_bytes()
        text.write_bytes(source[:options.context * options.windows * 12])
        base = str(pathlib.Path(folder) / "base.bin")
        printed = llama(options.llama_perplexity, options.base, str(text), base, options, False)
        found = re.search(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)", printed)
        result = {"machine": machine(), "base": pathlib.Path(options.base).name,
                  "context": options.context, "windows": options.windows,
                  "text": pathlib.Path(options.text).name, "ppl_of_base":
                  {"llama.cpp": [float(found.group(1)), float(found.group(2))]}, "pairs": []}
        self_check = parse(llama(options.llama_perplexity, options.base, str(text), base, options,
                                 True))
        result["self"] = {"kld_mean": self_check["kld_mean"][0]}
        for other in options.others:
            peer = parse(llama(options.llama_perplexity, other, str(text), base, options, True))
            mine = ours(options.base, other, str(text), options)
            result["ppl_of_base"]["tq"] = mine["ppl_base"]
            result["pairs"].append({"other": pathlib.Path(other).name, "tq": mine,
                                    "llama.cpp": peer})
            print(f"{pathlib.Path(other).name}: KL {mine['kld_mean'][0]:.5f} ± "
                  f"{mine['kld_mean'][1]:.5f}, llama.cpp {peer['kld_mean'][0]:.5f} ± "
                  f"{peer['kld_mean'][1]:.5f}; ppl {mine['ppl']:.4f}, llama.cpp "
                  f"{peer['ppl'][0]:.4f}")
    write("llama_perplexity.json", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
