#!/usr/bin/env python3
"""Writes the tables of docs/reference/speed.md and its chart from bench/results.

usage: bench/speed_page.py [--check]     --check: exit 1 if the page is not up to date
"""
import json
import math
import re
import sys

from common import RESULTS, ROOT
from readme_table import load, machine_words, table

PAGE = ROOT / "docs" / "reference" / "speed.md"
CHART = PAGE.with_suffix(".svg")
MARKERS = re.compile(r"(<!-- made by bench/speed_page.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
# Lines of the chart: result, label, colour.
LINES = [("k3v2", "k3v2", "#0b6e4f"), ("k4v4", "k4v4", "#1f9d76"), ("f16", "f16", "#74c69d"),
         ("llama.cpp f16", "llama.cpp f16", "#9d4edd"),
         ("llama.cpp q8_0", "llama.cpp q8_0", "#c77dff"),
         ("llama.cpp q4_0", "llama.cpp q4_0", "#5a189a")]


def words(result):
    m = result["measured_on"]
    return (f"{machine_words(m)}, {result['isa']}, load before {m['load_before']:.2f}, "
            f"commit {m['commit']}")


def shown(name):
    return "mixed profile" if name.endswith(".tqprofile") else name


def skipped_lines(rows):
    """One sentence for each cache that was not measured at some depth."""
    first = {}
    for r in rows:
        if "skipped" in r:
            first.setdefault(r["name"], (r["settings"]["depth"], r["skipped"]))
    return ["", "Skipped: " + "; ".join(f"{name} from depth {depth:,} on, {why}"
                                        for name, (depth, why) in first.items()) + "."] \
        if first else []


def decode_lines(result, image=None):
    if result is None:
        return ["Nothing was measured yet."]
    rows, trained = result["results"], result["trained_context"]
    depths = list(dict.fromkeys(r["settings"]["depth"] for r in rows))
    names = list(dict.fromkeys(r["name"] for r in rows))
    at = {(r["name"], r["settings"]["depth"]): r for r in rows}
    beyond = {d for d in depths if any(r["beyond_trained_context"] for r in rows
                                       if r["settings"]["depth"] == d)}
    heads = [f"{d:,}" + ("\\*" if d in beyond else "") for d in depths]
    ours = [r for r in rows if r["peer"] is None]
    s = ours[0]["settings"]
    lines = [f"{result['model']}, {s['threads']} threads, {s['steps']} consecutive steps, median "
             f"of {s['runs']} runs, all caches in turn ({words(result)})."]
    if result["peer"]:
        lines += [f"Beside it llama.cpp {result['peer']['build']} with "
                  f"`{result['peer']['flags']}` on the same file."]
    base = "llama.cpp f16"
    if image is not None:
        lines += ["", f"![Decode speed by depth]({image})"]
    lines += ["", f"Tokens per second (times {base}):", ""]
    body = []
    for name in names:
        cells = [shown(name)]
        for d in depths:
            r = at[name, d]
            if "skipped" in r:
                cells.append("skipped")
            else:
                ratio = r["ratio_to"].get(base)
                cells.append(f"{r['tokens_per_second']:.1f}"
                             + (f" ({ratio:.2f}x)" if ratio else ""))
        body.append(cells)
    lines += table(["cache \\ depth", *heads], body)
    lines += skipped_lines(rows)
    lines += ["", "Milliseconds of a step: median / 99th percentile, and attention's share of the "
                  "median:", ""]
    body = []
    for name in dict.fromkeys(r["name"] for r in ours):
        body.append([shown(name)] + [
            f"{at[name, d]['step_ms']['p50']:.1f} / {at[name, d]['step_ms']['p99']:.1f}, "
            f"{at[name, d]['attention_ms']:.2f}" for d in depths])
    lines += table(["cache \\ depth", *heads], body)
    filled = {kind: [f"{d:,}" for d in depths
                     if any(r["filled_by"] == kind for r in ours if r["settings"]["depth"] == d)]
              for kind in ("prefill", "synthetic blocks")}
    lines += ["", "Our caches were filled "
              + " and ".join(f"by {kind} at depth {', '.join(d)}"
                             for kind, d in filled.items() if d)
              + "; those of llama.cpp always by a prefill."]
    if beyond:
        lines += ["", f"\\* beyond the {trained:,} tokens that the model was trained for: speed "
                      "only, its text would be poor."]
    return lines


def shape_lines(result):
    if result is None:
        return ["Nothing was measured yet."]
    lines = [f"{result['model']} (LAYERS, HIDDEN, FFN, Q_HEADS, KV_HEADS, HEAD_DIM, VOCAB), "
             f"{result['weight_bytes'] / 1e9:.2f} GB of weights ({words(result)}):", ""]
    body = []
    for r in result["results"]:
        peer = r["ratio_to"].get("llama.cpp f16") if "ratio_to" in r else None
        own = r["ratio_to"].get("f16") if "ratio_to" in r else None
        body.append([r["name"], f"{r['settings']['depth']:,}",
                     f"{r['tokens_per_second']:.2f}" if "skipped" not in r else "skipped",
                     f"{own:.2f}x" if own else "-", f"{peer:.2f}x" if peer else "-",
                     f"{r['ratio_by_bytes']:.2f}x" if "ratio_by_bytes" in r else "-",
                     f"{r['attention_ms']:.1f}" if "attention_ms" in r else "-"])
    lines += table(["cache", "depth", "tokens/s", "to our f16", "to llama.cpp f16",
                    "if only bytes counted, to f16", "attention ms"], body)
    return lines + skipped_lines(result["results"])


def attention_times(result, at):
    rows = result["results"]
    s = rows[0]["settings"]
    lines = [f"One layer of {s['kv_heads']} KV heads, {s['threads']} threads, median of "
             f"{s['runs']} runs, caches of synthetic blocks; read bandwidth "
             f"{result['read_bytes_per_second'] / 1e9:.2f} GB/s ({words(result)})."]
    depth = 8192
    names = list(dict.fromkeys(r["name"] for r in rows))
    for dim in sorted({r["settings"]["head_dim"] for r in rows}):
        groups = sorted({g for (_, d, g, n) in at if d == dim and n == depth})
        lines += ["", f"head_dim {dim}, {depth:,} tokens: microseconds a layer (GB/s, share of "
                      "read bandwidth) by query heads per KV head:", ""]
        body = []
        for name in names:
            cells = [name]
            for g in groups:
                r = at[name, dim, g, depth]
                cells.append(f"{r['us_per_layer']:.0f} ({r['bytes_per_second'] / 1e9:.1f}, "
                             f"{100 * r['share_of_bandwidth']:.0f} %)")
            body.append(cells)
        lines += table(["cache", *(str(g) for g in groups)], body)
    depths = sorted({n for (_, d, g, n) in at if d == 64 and g == 3})
    lines += ["", "head_dim 64, 3 query heads per KV head: microseconds a layer by depth:", ""]
    return lines + table(["cache", *(f"{d:,}" for d in depths)],
                         [[name] + [f"{at[name, 64, 3, d]['us_per_layer']:.0f}" for d in depths]
                          for name in names])


def attention_counts(counts):
    s = counts["settings"]
    lines = ["", f"Instructions of one call, counted by callgrind (head_dim {s['head_dim']}, "
                 f"{s['kv_heads']} KV heads, {s['group']} query heads each, {s['depth']:,} "
                 f"tokens, one thread; {machine_words(counts['measured_on'])}, commit "
                 f"{counts['measured_on']['commit']}):", ""]
    base = counts["instructions_per_layer"]["f16"]
    return lines + table(["cache", "a layer", "a cached token and KV head", "of f16"],
                         [[name, f"{n / 1e6:.2f} M", f"{n / s['depth'] / s['kv_heads']:.0f}",
                           f"{100 * n / base:.0f} %"]
                          for name, n in counts["instructions_per_layer"].items()])


def attention_lines(result):
    lines = []
    if result and "times" in result:
        lines += attention_times(result["times"], {
            (r["name"], r["settings"]["head_dim"], r["settings"]["group"],
             r["settings"]["depth"]): r for r in result["times"]["results"]})
    else:
        lines += ["Times were not measured yet."]
    if result and "counts" in result:
        lines += attention_counts(result["counts"])
    return lines


def weight_lines(results):
    """Prefill and decode at depth 0 by weight type, one table for each instruction set."""
    lines = []
    for result in results:
        if result is None:
            continue
        rows = result["results"]
        cell = lambda r, what: "{:.0f} ({:.2f}x)".format(
            r[what]["tokens_per_second"]["f16"]["median"], r[what]["ratio_to"]["llama.cpp f16"])
        lines += ["", f"{rows[0]['isa']} ({machine_words(result['machine'])}, {result['threads']} "
                  f"threads, median of {result['runs']} runs, commit {result['machine']['commit']}; "
                  f"llama.cpp built with {result['peer']['built']}):", "",
                  *table(["file", "weights", f"prefill of {rows[0]['prefill']['tokens']}",
                          "decode at depth 0", "loading, s"],
                         [[r["model"], r["weights"], cell(r, "prefill"), cell(r, "decode"),
                           f"{r['load_seconds']:.2f}"] for r in rows])]
    return lines[1:] or ["Nothing was measured yet."]


def cuda_words(result):
    """Where and how the results of a CUDA device were measured."""
    m = result["measured_on"]
    ours = next(r["settings"] for r in result["results"] if r["peer"] is None)
    cudnn = f"{m['cudnn'] // 10000}.{m['cudnn'] // 100 % 100}.{m['cudnn'] % 100}"
    return (f"{result['device']['name']}, driver {m['driver']}, torch {m['torch']}, cuDNN "
            f"{cudnn}, median of {ours['runs']} runs, commit {m['commit']}; "
            f"head_dim {ours['head_dim']}, 32 query heads")


def attention_cuda_lines(result, depth=131072, batches=(1, 4, 8)):
    """Decode attention at one depth: all caches, ours and of peers, the slowest last."""
    if result is None:
        return ["Nothing was measured yet."]
    rows = [r for r in result["results"] if r["settings"]["depth"] == depth and r["us_per_layer"]]

    def title(r):
        if r["peer"] is None:
            return r["name"] + (", centred" if r["settings"]["center"] else "")
        return r["peer"].split(" SDPA ")[1] + " FP16" if " SDPA " in r["peer"] else r["name"]

    lines = [f"{cuda_words(result)}, {depth:,} tokens. Peers: "
             + ", ".join(dict.fromkeys(r["peer"] for r in rows if r["peer"]
                                       and " SDPA " not in r["peer"]))
             + f", and PyTorch. Reading alone reaches "
             f"{result['read_bytes_per_second'] / 1e12:.2f} TB/s."]
    for kv_heads in dict.fromkeys(r["settings"]["kv_heads"] for r in rows):
        at = {(title(r), r["settings"]["batch"]): r for r in rows
              if r["settings"]["kv_heads"] == kv_heads}
        fastest = {b: min(r["us_per_layer"] for (_, batch), r in at.items()
                          if batch == b and r["peer"] and r["name"].endswith("16"))
                   for b in batches}
        lines += ["", f"{kv_heads} KV heads: microseconds a layer (times the fastest 16-bit peer):",
                  ""]
        names = sorted(dict.fromkeys(name for name, _ in at),
                       key=lambda name: at[name, batches[-1]]["us_per_layer"])
        body = []
        for name in names:
            last = at[name, batches[-1]]
            share = 100 * last["bytes_per_second"] / result["read_bytes_per_second"]
            body.append([name if last["peer"] else f"**{name}**"] + [
                f"{at[name, b]['us_per_layer']:,.0f} "
                f"({fastest[b] / at[name, b]['us_per_layer']:.2f}x)" for b in batches]
                + [f"{share:.0f} %"])
        lines += table(["cache \\ sequences", *(str(b) for b in batches), "bandwidth"], body)
    return lines


def prefill_cuda_lines(result):
    if result is None:
        return ["Nothing was measured yet."]
    rows = result["results"]
    tokens = sorted({r["settings"]["tokens"] for r in rows})
    lines = [f"{cuda_words(result)}, one sequence."]
    for kv_heads in dict.fromkeys(r["settings"]["kv_heads"] for r in rows):
        here = [r for r in rows if r["settings"]["kv_heads"] == kv_heads]
        at = {(r["name"], r["settings"]["tokens"]): r for r in here if r["peer"] is None}
        fastest = {n: min((r for r in here if r["peer"] and r["us_per_layer"]
                           and r["settings"]["tokens"] == n), key=lambda r: r["us_per_layer"])
                   for n in tokens}
        lines += ["", f"{kv_heads} KV heads: microseconds a layer (times the fastest FP16; append "
                      "and seal, share of the attention):", ""]
        body = [[fastest[tokens[0]]["peer"].split(" SDPA ")[1].split(",")[0] + " FP16"]
                + [f"{fastest[n]['us_per_layer']:,.0f}" for n in tokens]]
        for name in dict.fromkeys(name for name, _ in at):
            body.append([name] + [
                f"{at[name, n]['us_per_layer']:,.0f} "
                f"({at[name, n]['ratio_to']['fastest f16']:.2f}x; "
                f"{100 * at[name, n]['append_and_seal_share']:.1f} %)" for n in tokens])
        lines += table(["cache \\ tokens", *(f"{n:,}" for n in tokens)], body)
    return lines


def chart(result):
    """Tokens per second (logarithmic) by depth, each line named at its end."""
    width, height, left, right, top, bottom = 760, 420, 56, 150, 40, 48
    rows = [r for r in result["results"] if "skipped" not in r]
    depths = sorted({r["settings"]["depth"] for r in rows})
    names = [line for line in LINES if any(r["name"] == line[0] for r in rows)]
    speeds = [r["tokens_per_second"] for r in rows if r["name"] in {n[0] for n in names}]
    low = 0.8 * min(speeds)
    high = max(speeds) * 1.15

    def x(depth):  # depths lie at equal distances
        return left + (width - left - right) * depths.index(depth) / max(1, len(depths) - 1)

    def y(speed):
        share = math.log(speed / low) / math.log(high / low)
        return height - bottom - (height - top - bottom) * share

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           f'font-family="system-ui, sans-serif" font-size="13" role="img" '
           f'aria-label="Decode speed by depth">',
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
           f'<text x="{left}" y="22" font-size="15" font-weight="600" fill="#222">'
           f'Decode, tokens per second by depth ({result["model"].split(".")[0]})</text>']
    tick = 10 ** math.floor(math.log10(low))
    while tick <= high:
        for step in (1, 2, 5):
            value = tick * step
            if low <= value <= high:
                out += [f'<line x1="{left}" x2="{width - right}" y1="{y(value):.1f}" '
                        f'y2="{y(value):.1f}" stroke="#e5e5e5"/>',
                        f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end" '
                        f'fill="#555">{value:g}</text>']
        tick *= 10
    for d in depths:
        label = f"{d // 1024}k" if d >= 1024 else str(d)
        out.append(f'<text x="{x(d):.1f}" y="{height - bottom + 20}" text-anchor="middle" '
                   f'fill="#555">{label}</text>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{height - 8}" text-anchor="middle" '
               f'fill="#555">tokens in the cache</text>')
    ends = []
    for name, label, colour in names:
        points = [(x(r["settings"]["depth"]), y(r["tokens_per_second"])) for r in rows
                  if r["name"] == name]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        dash = ' stroke-dasharray="6 4"' if name.startswith("llama.cpp") else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                   f'stroke-width="2.2"{dash}/>')
        out += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>'
                for px, py in points]
        ends.append([points[-1][1], points[-1], label, colour])
    # Names that would touch are moved apart, top to bottom.
    ends.sort(key=lambda e: e[0])
    for above, below in zip(ends, ends[1:]):
        below[0] = max(below[0], above[0] + 16)
    for at_y, (px, py), label, colour in ends:
        same = abs(px - (width - right)) < 1
        out += [f'<line x1="{px + 5:.1f}" y1="{py:.1f}" x2="{width - right + 16}" '
                f'y2="{at_y:.1f}" stroke="{colour}" stroke-width="0.7" opacity="'
                f'{0.6 if same else 0.35}"/>',
                f'<text x="{width - right + 20}" y="{at_y + 4:.1f}" fill="{colour}">{label}</text>']
    return "\n".join([*out, "</svg>", ""])


def main():
    decode = load("decode.json")
    lines = {"decode": decode_lines(decode, CHART.name),
             "decode_deep": decode_lines(load("decode_deep.json")),
             "decode_avx2": decode_lines(load("decode_avx2.json")),
             "shape": shape_lines(load("decode_shape.json")),
             "weights": weight_lines([load("weights.json"), load("weights_avx2.json")]),
             "attention": attention_lines(load("attention.json")),
             "attention_cuda": attention_cuda_lines(load("attention_cuda.json")),
             "prefill_cuda": prefill_cuda_lines(load("prefill_cuda.json"))}
    old = PAGE.read_text(encoding="utf-8")
    new = MARKERS.sub(lambda m: m.group(1) + "\n".join(lines[m.group(2)]) + "\n" + m.group(3), old)
    files = {PAGE: new}
    if decode is not None:
        files[CHART] = chart(decode)
    stale = [p for p, text in files.items()
             if not p.exists() or p.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date: run bench/speed_page.py",
                  file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(files[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
