#!/usr/bin/env python3
"""What the models say with quantized caches: tq eval suite with its default gate, and its parts alone.

usage: bench/suite.py [--suites f16,k8v8,k4v4,k3v2,k2v2] [--tasks k4v4,k3v2] [--lengths 1k,2k,4k,8k]
                      [--requests 16] [--folder build/suite] [--only needle-1k,...] [--name suite.json]

Needs ./quickstart --embeddings and the built tq.

Runs tq eval suite as it comes for each cache of --suites (a preset or a profile; f16 is the plain
model beside itself: the floor of every number). Then, for the caches of --tasks side by side, needles at
each length, adversarial texts, a replay of requests (request_log.py), and generations. Answers are
kept in --folder, and what was interrupted goes on from there. Seconds are those of a quiet machine only
where its load says so.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

from common import MODEL, ROOT, TEXT, TQ, machine, write


def measure(folder, name, *command):
    """The document of a command and its seconds, made once."""
    path = folder / f"{name}.json"
    if not path.exists():
        words = [str(w) for w in (TQ, "eval", *command, "--model", MODEL, "--json")]
        print(" ".join(words), file=sys.stderr, flush=True)
        begin = time.monotonic()
        result = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
        if result.returncode not in (0, 1):  # 1: the gate failed, which is an answer
            sys.exit(result.returncode)
        document = json.loads(result.stdout)
        document["wall_seconds"] = round(time.monotonic() - begin, 1)
        document["exit_code"] = result.returncode
        path.write_text(json.dumps(document), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def kinds_of(document):
    """Right answers by kind; what the plain model cannot do is marked."""
    rows = document.get("rows", [document])
    out = {}
    for kind, plain in rows[0]["by_kind"].items():
        out[kind] = {"questions": plain["questions"], "informative": plain["informative"],
                     "right": {document["baseline"]: plain["baseline_score"]["right"]} |
                              {r["candidate"]: r["by_kind"][kind]["candidate_score"]["right"]
                               for r in rows}}
    return out


def trials(document):
    rows = document.get("rows", [document])
    return {"questions": document["questions"], "informative": document["informative"],
            "note": document["note"], "by_kind": kinds_of(document),
            "difference_of_informative": {
                r["candidate"]: {"difference": r["difference"],
                                 "interval": r["difference_interval"]} for r in rows},
            "wall_seconds": document["wall_seconds"]}


def generations(document):
    keep = ("informative", "note", "similarity", "facts", "right", "repetition", "same_answers",
            "unrelated", "wall_seconds")
    return {k: document[k] for k in keep if k in document}


def replay(document):
    rows = document.get("rows", [document])
    keep = ("candidate", "answered_share", "difference_rate", "difference_interval",
            "similarity_loss", "similarity_loss_interval", "answers")
    return {k: document[k] for k in ("requests", "informative", "note", "floor")} | {
            "rows": [{k: r[k] for k in keep if k in r} for r in rows],
            "wall_seconds": document["wall_seconds"]}


def suite(document):
    out = {k: document[k] for k in ("verdict", "passed", "failed", "skipped", "seconds",
                                    "wall_seconds", "exit_code")}
    out["checks"] = [{k: c[k] for k in ("evaluation", "path", "state", "value", "min", "max")
                      if k in c} for c in document["checks"]]
    out["informative"] = {e: document[e]["informative"] for e in document["seconds"]
                          if document.get(e) and "informative" in document[e]}
    out["by_kind"] = {e: kinds_of(document[e]) for e in ("needle", "adversarial")
                      if document.get(e)}
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suites", default="f16,k8v8,k4v4,k3v2,k2v2")
    parser.add_argument("--tasks", default="k4v4,k3v2")
    parser.add_argument("--lengths", default="1k,2k,4k,8k")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "suite")
    parser.add_argument("--only", default="", help="measure these parts; others as far as they are")
    parser.add_argument("--name", default="suite.json")
    o = parser.parse_args()
    for needed, fix in ((MODEL, "./quickstart"), (TEXT, "./quickstart"), (TQ, "build tq")):
        if not needed.exists():
            print(f"{needed} is not there: run {fix}", file=sys.stderr)
            return 2
    o.folder.mkdir(parents=True, exist_ok=True)
    log = o.folder / "requests.jsonl"
    if not log.exists():
        log.write_text(subprocess.run([sys.executable, ROOT / "bench" / "request_log.py",
                                       "--requests", str(o.requests), "--text", TEXT],
                                      capture_output=True, text=True, check=True).stdout,
                       encoding="utf-8")
    data, both = ("--data", TEXT), ("--kv", o.tasks)
    # Name, where it stands in the result, how it is summed up, and the command.
    parts = [(f"suite-{pathlib.Path(kv).stem}", ("suite", pathlib.Path(kv).stem), suite,
              ("suite", *data, "--kv", kv)) for kv in o.suites.split(",")]
    parts += [(f"needle-{length}", ("needle", length), trials,
               ("needle", *data, *both, "--kinds", "single,multi_key", "--lengths", length,
                "--depths", "10,50,90")) for length in o.lengths.split(",")]
    parts += [("adversarial", ("adversarial",), trials,
               ("adversarial", *data, *both, "--questions", 8)),
              ("replay", ("replay",), replay, ("replay", "--data", log, *both))]
    parts += [(f"generate-{kv}", ("generate", kv), generations, ("generate", *data, "--kv", kv))
              for kv in o.tasks.split(",")]
    only = o.only.split(",") if o.only else [part[0] for part in parts]
    suites = ",".join(pathlib.Path(kv).name for kv in o.suites.split(","))
    result = {"machine": machine(), "command": f"bench/suite.py --suites {suites} --tasks {o.tasks} "
                                               f"--lengths {o.lengths} --requests {o.requests}"}
    for name, place, sum_up, command in parts:
        if name not in only and not (o.folder / f"{name}.json").exists():
            continue
        at = result
        for key in place[:-1]:
            at = at.setdefault(key, {})
        at[place[-1]] = sum_up(measure(o.folder, name, *command))
    write(o.name, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
