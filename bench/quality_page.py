#!/usr/bin/env python3
"""Writes the tables of docs/reference/quality.md from bench/results.

usage: bench/quality_page.py [--check]     --check: exit 1 if the page is not up to date
"""
import re
import sys

from common import ROOT
from readme_table import load, machine_words, table

PAGE = ROOT / "docs" / "reference" / "quality.md"
MARKERS = re.compile(r"(<!-- made by bench/quality_page.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
MISSING = ["Nothing was measured yet."]


def with_error(mean, error):
    return f"{mean:.4f} ± {error:.4f}"


def windows_lines(result):
    if result is None:
        return MISSING
    rows = [[r["text"], r["format"], f"{r['bits_per_value']:.2f}",
             with_error(r["kld"]["mean"], r["kld"]["mean_stderr"]), f"{r['kld']['median']:.4f}",
             f"{r['kld']['p99']:.3f}", f"{100 * r['same_top']:.1f} %",
             with_error(r["ppl"]["ratio"], r["ppl"]["ratio_stderr"])] for r in result["results"]]
    return [f"{result['windows']} windows of {result['context']:,} tokens of each text, all positions "
            f"(`{result['command']}`; {machine_words(result['machine'])}, {result['isa']}):", "",
            *table(["text", "cache", "bits per value", "KL mean", "median", "99 %", "same top",
                    "perplexity ratio"], rows)]


def calibration_lines(result):
    if result is None:
        return MISSING
    lines = [f"`{result['command']}` ({machine_words(result['machine'])}):"]
    for context, measured in result["contexts"].items():
        rows = []
        for r in measured["rows"]:
            rows.append([r["base"], r["kind"], f"{r['bits_per_value']:.3f}",
                         with_error(r["kld"]["mean"], r["kld"]["mean_stderr_windows"]),
                         f"{r['kld']['p99']:.3f}", f"{100 * r['same_top']:.1f} %",
                         with_error(r["ppl"]["ratio"], r["ppl"]["ratio_stderr"])])
        lines += ["", f"{measured['windows_of_each_text']} windows of {int(context):,} tokens of each "
                      "text:", "",
                  *table(["base", "formats", "bits per value", "KL mean", "99 %", "same top",
                          "perplexity ratio"], rows)]
    if "domains" in result:
        d = result["domains"]
        texts = list(next(iter(d["kld_mean"].values())))
        lines += ["", f"A profile on the text of another domain ({d['base']} at "
                      f"{d['budget_bits']} bits, {d['windows_of_each_text']} windows of each text), "
                      "KL mean:", "",
                  *table(["profile", *texts],
                         [[name, *(f"{klds[t]:.4f}" for t in texts)]
                          for name, klds in d["kld_mean"].items()])]
    return lines


def perplexity_lines(result):
    if result is None:
        return MISSING
    rows = []
    for pair in result["pairs"]:
        ours, peer = pair["tq"], pair["llama.cpp"]
        rows.append([pair["other"].split(".")[1], with_error(*ours["kld_mean"]),
                     with_error(*peer["kld_mean"]), f"{ours['ppl']:.4f}", f"{peer['ppl'][0]:.4f}",
                     f"{100 * ours['same_top'][0]:.2f} %", f"{100 * peer['same_top'][0]:.2f} %"])
    return [f"{result['windows']} windows of {result['context']} tokens of {result['text']}, the second "
            f"half of each scored, weights against {result['base']}:", "",
            *table(["weights", "KL, tq", "KL, llama.cpp", "perplexity, tq", "perplexity, llama.cpp",
                    "same top, tq", "same top, llama.cpp"], rows)]


def main():
    lines = {"windows": windows_lines(load("quality.json")),
             "long_windows": windows_lines(load("quality_8192.json")),
             "calibration": calibration_lines(load("calibration.json")),
             "perplexity": perplexity_lines(load("llama_perplexity.json"))}
    old = PAGE.read_text(encoding="utf-8")
    new = MARKERS.sub(lambda m: m.group(1) + "\n".join(lines[m.group(2)]) + "\n" + m.group(3), old)
    if "--check" in sys.argv[1:]:
        if new != old:
            print(f"{PAGE.relative_to(ROOT)} is not up to date: run bench/quality_page.py",
                  file=sys.stderr)
        return 0 if new == old else 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
