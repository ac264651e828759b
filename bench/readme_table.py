#!/usr/bin/env python3
"""Writes the measured tables of README.md from bench/results, between its markers.

usage: bench/readme_table.py [--check]     --check: exit 1 if README.md is not up to date
"""
import json
import re
import sys

from common import RESULTS, ROOT

MARKERS = re.compile(r"(<!-- made by bench/readme_table.py -->\n).*?(<!-- end -->)", re.DOTALL)


def machine_words(m):
    compiler = f"{m['compiler'].split(' (')[0]} {m['compiler'].split()[-1]}"
    return f"{m['processor']}, {m['cores']} cores, {compiler}"


def formats_table(result):
    lines = [f"SmolLM2-135M, {result['tokens']:,} tokens of the Bible, all positions "
             f"(`{result['command'].replace(' --json', '')}`; {machine_words(result['machine'])}, "
             f"{result['isa']}):", "",
             "| cache | MiB here | ratio here | ratio at 131,072 | bits per value | ms per token "
             "| KL mean | same top | perplexity |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in result["rows"]:
        cache, plain = row["cache"], row["kv"] == "f16"
        lines.append(
            f"| {row['kv']} | {cache['bytes'] / 2**20:.1f} | {cache['ratio']:.2f}x "
            f"| {cache['ratio_at_131072']:.2f}x | {cache['bits_per_value']:.2f} "
            f"| {row['decode_ms']['quantized']:.1f} "
            + ("| - | - " if plain else
               f"| {row['kld']['mean']:.4f} | {100 * row['same_top']:.1f} % ")
            + f"| {row['ppl']['quantized']:.3f} |")
    lines += ["", f"Noise floor ({result['floor']['kv']}): KL {result['floor']['kld_mean']:.5f}."]
    return lines


def peer_table(result):
    depths = sorted({row["depth"] for row in result["results"]})
    names = list(dict.fromkeys(row["name"] for row in result["results"]))
    runs = min(row["tokens_per_second"]["runs"] for row in result["results"])
    how = "one run of each" if runs == 1 else f"alternating runs, median of {runs}"
    lines = [f"Decode, tokens per second, beside {result['peer']['name']} "
             f"(`{result['peer']['flags']}`) on the same file and threads, {how} "
             f"(`bench/compare_llama.py`; {machine_words(result['machine'])}, "
             f"{result['isa']}):", "",
             "| cache | " + " | ".join(f"depth {d:,}" for d in depths) + " |",
             "|---|" + "---|" * len(depths)]
    for name in names:
        cells = []
        for depth in depths:
            row = next(r for r in result["results"] if r["name"] == name and r["depth"] == depth)
            cells.append(f"{row['tokens_per_second']['median']:.1f} "
                         f"({row['ratio_to']['llama.cpp f16']:.2f}x)")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def quality_table(result):
    lines = [f"KL to the f16 cache over {result['windows']} windows of {result['context']:,} tokens of "
             f"each text, all positions (`{result['command']}`; {result['isa']}):", "",
             "| text | cache | bits per value | KL mean | KL 99 % | same top | perplexity ratio |",
             "|---|---|---|---|---|---|---|"]
    for row in result["results"]:
        kld = row["kld"]
        lines.append(f"| {row['text']} | {row['format']} | {row['bits_per_value']:.2f} "
                     f"| {kld['mean']:.4f} ± {kld['mean_stderr']:.4f} | {kld['p99']:.3f} "
                     f"| {100 * row['same_top']:.1f} % | {row['ppl']['ratio']:.4f} |")
    return lines


def main():
    lines = []
    for name, table in (("compare.json", formats_table), ("quality.json", quality_table),
                        ("llama_cpp.json", peer_table)):
        if (RESULTS / name).exists():
            result = json.loads((RESULTS / name).read_text(encoding="utf-8"))
            lines += [*table(result), ""]
    if not lines:
        lines = ["Nothing was measured yet.", ""]
    path = ROOT / "README.md"
    old = path.read_text(encoding="utf-8")
    new = MARKERS.sub(lambda m: m.group(1) + "\n".join(lines) + "\n" + m.group(2), old)
    if new == old and not MARKERS.search(old):
        print("README.md has no markers of bench/readme_table.py", file=sys.stderr)
        return 1
    if "--check" in sys.argv[1:]:
        if new != old:
            print("README.md is not up to date: run bench/readme_table.py", file=sys.stderr)
        return 0 if new == old else 1
    path.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
