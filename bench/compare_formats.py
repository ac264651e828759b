#!/usr/bin/env python3
"""The default sweep of tq compare as a result file: memory, KL and time of each cache format.

usage: bench/compare_formats.py [--context N]

Needs ./quickstart. Writes bench/results/compare.json.
"""
import argparse
import json
import sys

from common import MODEL, ROOT, TQ, machine, output, write


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--context", type=int, default=6144)
    options = parser.parse_args()
    if not TQ.exists() or not MODEL.exists():
        print("tq or the model is not there: run ./quickstart", file=sys.stderr)
        return 2
    command = ["compare", "--model", str(MODEL.relative_to(ROOT)), "--context",
               str(options.context), "--json", "--quiet"]
    result = {"machine": machine(), "command": "tq " + " ".join(command[:-1])}
    result.update(json.loads(output(str(TQ), *command)))
    write("compare.json", result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
