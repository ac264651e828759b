#!/usr/bin/env python3
"""What skipping of V costs in KL and saves in time, as a result file.

usage: bench/skip.py [--formats f16,k4v4,k3v2] [--eps 0.001,0.003,0.01] [--context 2048]
                     [--windows 2] [--texts bible,perl] [--speed DEPTH,...]

Needs ./quickstart and Debian's perl-doc (the second genre). Adds to bench/results/v_skip.json what
`tq eval kld --v-skip` measures at one context: of each format and eps the KL to the f16 cache, how
much of it skipping adds, and how much is skipped; of f16, skipping alone. eps is chosen by the
Bible; the manuals check it. With --speed instead: decode speed of --formats behind so many tokens
of the Bible with each eps, beside the same cache without skipping, in turn.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from common import MODEL, RESULTS, TEXT, TQ, machine, spread, write
from quality import MANUALS, perl_text

NAME = "v_skip.json"


def tq(*arguments):
    done = subprocess.run([str(TQ), *arguments, "--model", str(MODEL), "--json", "--quiet"],
                          stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def rows_of(document, context):
    """A row for each text, format and eps; those without skipping give the others what to add to."""
    texts = len(document["rows"][0]["by_text"])
    rows = []
    for t in range(texts):
        plain = {}
        for candidate in document["rows"]:
            text = candidate["by_text"][t]
            skip = candidate.get("v_skip", {"eps": 0})
            name = candidate["kv"].split(" v-skip ")[0]
            row = {"text": text["text"], "context": context, "windows": text["windows"],
                   "format": name, "eps": skip["eps"], "kld": text["kld"]["mean"],
                   "kld_behind_1024": text["kld_behind_1024"]["mean"],
                   "kld_by_window": text["kld_by_window"], "same_top": text["same_top"],
                   "ppl_ratio": text["ppl"]["ratio"]}
            if skip["eps"] == 0:
                plain[name] = row
            else:
                own = plain[name]["kld"]
                row["kld_added"] = row["kld"] - own
                if own > 0:
                    row["share_added"] = row["kld_added"] / own
                row |= {key: skip[key] for key in ("blocks_skipped", "mass_skipped", "bound")}
            rows.append(row)
    return rows


def quality(options, folder):
    perl = folder / "perl.txt"
    perl.write_text(perl_text(MANUALS), encoding="utf-8")
    rows = []
    for text in options.texts.split(","):  # one by one: what is skipped is of a run
        rows += rows_of(tq("eval", "kld", "--kv", options.formats, f"--v-skip=0,{options.eps}",
                           "--data", str({"bible": TEXT, "perl": perl}[text]), "--cut", "spread",
                           "--windows", str(options.windows), "--context", str(options.context)),
                        options.context)
    return rows


def speed(options, folder):
    """Tokens a second of decode steps behind a saved cache, without and with skipping in turn."""
    prompt, rows = folder / "prompt.txt", []
    text = TEXT.read_text(encoding="utf-8")
    for depth in (int(d) for d in options.speed.split(",")):
        prompt.write_text(text[:int(depth * 3.6)], encoding="utf-8")
        for name in options.formats.split(","):
            saved = folder / f"{name}-{depth}.tqcache"
            context = ["--context", str(depth + depth // 4 + 256), "--kv", name]
            start = tq("run", "--prompt-file", str(prompt), "--max-tokens", "0", "--save-cache",
                       str(saved), *context)
            def run(*skip):
                return tq("run", "-p", "", "--load-cache", str(saved), "--max-tokens", "64",
                          "--temperature", "0", *skip, *context)
            for eps in options.eps.split(","):
                pairs = [(run(), run(f"--v-skip={eps}")) for _ in range(options.runs)]
                ratios = [b["decode_tokens_per_second"] / a["decode_tokens_per_second"]
                          for a, b in pairs]
                rows.append({"format": name, "depth": start["saved_tokens"], "eps": float(eps),
                             "steps": 64, "v_skip": pairs[-1][1]["v_skip"],
                             "speed_ratio": spread(ratios)})
            saved.unlink()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="f16,k4v4,k3v2")
    parser.add_argument("--eps", default="0.001,0.003,0.01")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--texts", default="bible,perl")
    parser.add_argument("--speed", default="")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    for needed in (MODEL, TEXT, TQ):
        if not needed.exists():
            print(f"{needed} is not there: run ./quickstart", file=sys.stderr)
            return 2
    path = RESULTS / NAME
    result = (json.loads(path.read_text(encoding="utf-8")) if path.exists()
              else {"model": MODEL.name, "commands": [], "quality": [], "speed": []})
    result["machine"] = machine()
    kind, key = (("speed", ("format", "depth", "eps")) if options.speed
                 else ("quality", ("text", "context", "format", "eps")))
    with tempfile.TemporaryDirectory() as folder:
        new = (speed if options.speed else quality)(options, pathlib.Path(folder))
    key_of = lambda row: tuple(row[k] for k in key)
    keys = {key_of(row) for row in new}
    result[kind] = sorted([r for r in result[kind] if key_of(r) not in keys] + new, key=key_of)
    result["commands"].append("bench/skip.py " + " ".join(sys.argv[1:]))
    write(NAME, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
