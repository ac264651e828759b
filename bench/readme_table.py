#!/usr/bin/env python3
"""Writes the measured table of README.md from bench/results, between its markers.

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


def load(name):
    path = RESULTS / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def with_error(mean, error):
    return f"{mean:.4f} ± {error:.4f}"


def table(header, rows):
    return ["| " + " | ".join(header) + " |", "|" + "---|" * len(header),
            *("| " + " | ".join(row) + " |" for row in rows)]


def formats_table(memory, quality, decode):
    """One row for each cache that was measured: memory, quality, speed."""
    depth = 8192
    speed = {r["name"]: r for r in decode["results"]
             if r["settings"]["depth"] == depth and "skipped" not in r}
    kld = {(r["format"], r["text"]): r for r in quality["results"]}
    texts = list(dict.fromkeys(r["text"] for r in quality["results"]))
    sizes = {r["kv"]: r["cache"] for r in memory["rows"]}
    rows = []
    for name in dict.fromkeys([*sizes, *(r["format"] for r in quality["results"])]):
        size, step = sizes.get(name), speed.get(name)
        measured = [kld.get((name, text)) for text in texts]
        if step is None and not name.startswith("calibrated-"):
            continue
        bits = size["bits_per_value"] if size else measured[0]["bits_per_value"]
        rows.append([name, f"{bits:.2f}", f"{size['ratio_at_131072']:.2f}x" if size else "",
                     *(f"{m['kld']['mean']:.4f}" if m else "-" for m in measured),
                     " / ".join(f"{m['ppl']['ratio']:.4f}" for m in measured) if measured[0]
                     else "-",
                     f"{step['tokens_per_second']:.0f} ({step['ratio_to']['llama.cpp f16']:.2f}x)"
                     if step else ""])
    header = ["cache", "bits per value", "ratio at 131,072",
              *(f"KL, {text}" for text in texts), "perplexity ratio",
              f"tokens/s at {depth:,} (times llama.cpp f16)"]
    return [f"SmolLM2-135M ({machine_words(decode['measured_on'])}, {decode['isa']}):",
            "", *table(header, rows), "",
            f"Memory: `{memory['command'].replace(' --json', '')}`. KL to the plain cache over "
            f"{quality['windows']} windows of {quality['context']:,} tokens of each text, all "
            f"positions: `{quality['command']}`; `calibrated-` formats have centres (and anchors) "
            f"from a calibration. Speed beside {decode['peer']['name']} "
            f"{decode['peer']['build']} on the same file and threads: `bench/decode.py`. All of it: "
            "[quality](docs/reference/quality.md), [speed](docs/reference/speed.md)."]


def main():
    results = [load(name) for name in ("compare.json", "quality.json", "decode.json")]
    lines = ["Nothing was measured yet."] if None in results else formats_table(*results)
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
