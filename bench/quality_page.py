#!/usr/bin/env python3
"""Writes the tables of docs/reference/quality.md and calibration.md from bench/results.

usage: bench/quality_page.py [--check]     --check: exit 1 if a page is not up to date
"""
import re
import sys

import calibration_page
from common import ROOT
from readme_table import load, machine_words, table, with_error

PAGES = [ROOT / "docs" / "reference" / name for name in ("quality.md", "calibration.md")]
MARKERS = re.compile(r"(<!-- made by bench/quality_page.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
MISSING = ["Nothing was measured yet."]


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


def f32_floor_lines(result):
    if result is None:
        return MISSING
    rows = [[r["text"], f"{r['kld_mean']:.7f} ± {r['kld_stderr']:.7f}",
             f"{100 * r['same_top']:.2f} %", f"{r['ppl_ratio']:.6f}"] for r in result["f32_floor"]]
    return [f"The f16 cache against keys and values of 32 bits, {result['windows']} windows of "
            f"{result['context']:,} tokens of each text (`{result['command']}`):", "",
            *table(["text", "KL mean", "same top", "perplexity ratio"], rows)]


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


def skip_lines(result):
    if result is None:
        return MISSING
    def percent(value):
        return "-" if value is None else f"{100 * value:.1f} %"
    rows = [[r["text"], f"{r['context']:,}", r["format"], f"{r['eps']:g}" if r["eps"] else "off",
             f"{r['kld']:.5f}", "-" if r["eps"] == 0 else f"{r['kld_added']:+.5f}",
             percent(r.get("share_added")), percent(r.get("blocks_skipped")),
             percent(r.get("mass_skipped"))]
            for r in result["quality"] if r["format"] != "f16" or r["eps"]]
    lines = [f"`{'`, `'.join(result['commands'])}` ({machine_words(result['machine'])}):", "",
             *table(["text", "context", "cache", "eps", "KL mean", "added", "of its own",
                     "V blocks skipped", "mass skipped"], rows)]
    if result["speed"]:
        lines += ["", "Decode steps behind the Bible, with skipping against without, in turn:", "",
                  *table(["cache", "tokens", "eps", "V blocks skipped", "speed"],
                         [[r["format"], f"{r['depth']:,}", f"{r['eps']:g}",
                           percent(r["v_skip"]["blocks_skipped"]),
                           f"{r['speed_ratio']['median']:.2f}x"] for r in result["speed"]])]
    return lines


def main():
    lines = {"windows": windows_lines(load("quality.json")),
             "long_windows": windows_lines(load("quality_8192.json")),
             "f32_floor": f32_floor_lines(load("f32_floor.json")),
             "v_skip": skip_lines(load("v_skip.json")),
             "perplexity": perplexity_lines(load("llama_perplexity.json"))}
    measured = load("calibration.json")
    lines.update({name: MISSING if measured is None else make(measured) or MISSING
                  for name, make in calibration_page.SECTIONS.items()})
    is_old = False
    for page in PAGES:
        old = page.read_text(encoding="utf-8")
        new = MARKERS.sub(lambda m: m.group(1) + "\n".join(lines[m.group(2)]) + "\n" + m.group(3),
                          old)
        if new == old:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{page.relative_to(ROOT)} is not up to date: run bench/quality_page.py",
                  file=sys.stderr)
            is_old = True
        else:
            page.write_text(new, encoding="utf-8")
    return 1 if is_old else 0


if __name__ == "__main__":
    sys.exit(main())
