#!/usr/bin/env python3
"""Calibrated profiles against uniform formats of as many bytes, on genres that nothing was chosen by.

usage: bench/calibration.py [--groups core] [--minutes 0] [--list]
                            [--folder build/calibration] [--name calibration.json]

Needs ./quickstart, Debian's perl-doc and jargon-text, and the built tq.

Profiles are calibrated (tq calibrate) on the jargon file and on sources of Python's library, piece
by piece in turn, and measured (tq eval kld) on the Bible and on Perl manuals. A budget is the bits of
a uniform format: that one gets the same centres, mean queries and anchors (tq calibrate --uniform).

Every row is written to bench/results/NAME as it is measured, and what stands there is not measured
again. --minutes M stops after about M minutes, in the midst of a calibration too, which goes on from
its state: call it again while it exits with 1. --groups all, or some of (core: about half an hour
on two cores):
"""
import argparse
import dataclasses
import gzip
import json
import pathlib
import signal
import subprocess
import sys
import sysconfig
import time

from common import MODEL, RESULTS, ROOT, TEXT, TQ, machine, write
from quality import BIBLE_TAIL, CALIBRATION_MANUALS, MANUALS, PIECE, perl_text

GROUPS = {
    "core": "k3v2-anchor1 at 2.70, 3.20, 4.20 bits: uniform, by layer, by head; windows of 2,048",
    "long": "the profiles of core at 2.70 bits over windows of 8,192",
    "trellis": "k3v2-trellis-anchor1 at 2.70 bits, over both lengths",
    "kv": "K and V alike in each layer, and uniform formats that share bits out to them otherwise",
    "full": "100,000 tokens, everything as tq calibrate does it by itself: time and memory",
    "plain": "the three budgets without anchors",
    "domains": "a profile of each of the two texts' genres on the text of the other",
    "at8192": "calibrated at 8,192 tokens instead of 2,048, over windows of 8,192",
}
WINDOWS = {2048: 8, 8192: 1}  # of each text
TEXTS = ("bible", "perl")
PYTHON_MODULES = ("argparse ast bdb calendar cgi codecs configparser csv dataclasses datetime difflib "
                  "doctest enum fractions ftplib functools gettext heapq imaplib inspect ipaddress "
                  "locale mailbox optparse os pdb pickle pprint random shutil smtplib socket "
                  "statistics string subprocess tarfile tempfile textwrap threading tokenize "
                  "traceback typing uuid weakref zipfile").split()
JARGON = "/usr/share/doc/jargon-text/jargon.txt.gz"
JARGON_SKIPPED = 200_000  # characters of preface and tables
CALIBRATION_CHARACTERS = 320_000  # of each genre
SECONDS_OF_A_CALL = 240  # about, of one that measures rows
GUESSED_SPEED = {2048: 400, 8192: 150}  # tokens of one pass a second, until some were measured


@dataclasses.dataclass(frozen=True)
class Profile:
    base: str              # "k3v2-anchor1"; of a uniform one its format
    kind: str              # "uniform", or --granularity of what is calibrated
    data: str = "calibration"
    context: int = 2048
    options: tuple = ("--tokens", 16384, "--site-tokens", 2048, "--search-tokens", 4096)
    held_out: int = 4096
    label: str = ""        # tells apart what is equal else

    @property
    def name(self):
        where = "" if self.context == 2048 else f"-at-{self.context}"
        return f"{self.kind}-{self.base}{self.label}{where}"

    @property
    def axes(self):
        """What follows the bits in the name of a preset: -anchor1."""
        return self.base[self.base.index("-"):] if "-" in self.base else ""

    @property
    def uniform(self):
        """The uniform profile whose bytes it has."""
        return Profile(self.base, "uniform", held_out=2048)

    @property
    def state(self):
        """What is measured depends on neither bits nor budgets: one state for all of them."""
        return f"{self.data}{self.axes}{self.label}-{self.context}.state"


def uniform(*bases):
    return [Profile(base, "uniform", held_out=2048) for base in bases]


def calibrated(kind, *bases):
    return [Profile(base, kind) for base in bases]


ANCHORED = ("k3v2-anchor1", "k4v2-anchor1", "k4v4-anchor1")
PLAIN = ("k3v2", "k4v2", "k4v4")
TRELLIS = "k3v2-trellis-anchor1"
FULL = Profile("k3v2-anchor1", "auto", options=("--tokens", 100_000), held_out=16384, label="-full")
LONG_OPTIONS = ("--tokens", 32768, "--site-tokens", 8192, "--search-tokens", 8192)
DOMAINS = [Profile("k3v2-anchor1", "auto", data=f"calibration-{t}", label=f"-{t}") for t in TEXTS]
AT_8192 = [Profile("k3v2-anchor1", kind, context=8192, options=LONG_OPTIONS, held_out=8192)
           for kind in ("uniform", "layer")]
# Group: [(profiles, length of windows)], the most valuable first.
PLAN = {
    "core": [(uniform(*ANCHORED) + calibrated("layer", *ANCHORED), 2048),
             (calibrated("head", *ANCHORED), 2048)],
    "long": [(uniform(ANCHORED[0]) + calibrated("layer", ANCHORED[0]) +
              calibrated("head", ANCHORED[0]), 8192)],
    "trellis": [(uniform(TRELLIS) + calibrated("layer", TRELLIS), 2048),
                (uniform(TRELLIS) + calibrated("layer", TRELLIS), 8192),
                (calibrated("head", TRELLIS), 2048), (calibrated("head", TRELLIS), 8192)],
    "kv": [(uniform("k3v3-anchor1", "k5v3-anchor1") + calibrated("pair", *ANCHORED), 2048),
           (uniform("k2v3-anchor1", "k2v4-anchor1", "k3v5-anchor1"), 2048)],
    "full": [([FULL], 2048), ([FULL], 8192)],
    "plain": [(uniform(*PLAIN) + calibrated("layer", *PLAIN), 2048),
              (calibrated("head", *PLAIN), 2048)],
    "domains": [(DOMAINS, 2048)],
    "at8192": [(AT_8192, 8192)],
}


class OutOfTime(Exception):
    pass


class Bench:
    def __init__(self, folder, name, minutes):
        self.folder, self.name = folder, name
        self.end = time.monotonic() + 60 * minutes if minutes else None
        self.has_done = False
        path = RESULTS / name
        self.result = {"machine": machine(), "command": "", "groups": [], "calibrations": {},
                       "rows": [], "floors": {}, "speed": {}}
        if path.exists():
            self.result.update(json.loads(path.read_text(encoding="utf-8")))

    def left(self):
        return None if self.end is None else self.end - time.monotonic()

    def tq(self, *command, seconds=None):
        """The JSON document that tq prints; OutOfTime when it was stopped after `seconds`."""
        if seconds is not None and seconds < 10:
            raise OutOfTime()
        command = [str(c) for c in (TQ, *command)]
        print(" ".join(command), file=sys.stderr, flush=True)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as stop:
            process.send_signal(signal.SIGINT)  # it keeps what it measured
            process.communicate()
            raise OutOfTime() from stop
        except KeyboardInterrupt:
            process.communicate()  # the terminal's Ctrl-C reached it too
            raise
        # 1: the profile misses the default target, which is not what is asked here.
        if process.returncode not in (0, 1):
            sys.exit(process.returncode)
        return json.loads(said)

    def calibrate(self, profile):
        """Makes the profile unless it is there."""
        path = self.path(profile)
        if profile.name in self.result["calibrations"] and path.exists():
            return
        if profile.kind == "uniform":
            chosen = ["--uniform"]
        else:
            if profile.uniform.name not in self.result["calibrations"]:
                self.calibrate(profile.uniform)
            bits = self.result["calibrations"][profile.uniform.name]["bits_per_value"]
            chosen = ["--granularity", profile.kind, "--budget", bits]
        # Of a calibration that was stopped, the time before.
        clock = self.folder / f"{profile.name}.seconds"
        before = float(clock.read_text(encoding="utf-8")) if clock.exists() else 0.0
        start = time.monotonic()
        try:
            said = self.tq("calibrate", MODEL, "--data", self.folder / f"{profile.data}.txt",
                           "--held-out-share", 0.2, "--out", path, "--json", "--context",
                           profile.context, *profile.options, "--held-out-tokens", profile.held_out,
                           "--state", self.folder / profile.state, "--keep-state", "--base",
                           profile.base, *chosen, seconds=self.left())
        finally:
            seconds = before + time.monotonic() - start
            clock.write_text(f"{seconds}", encoding="utf-8")
        keep = ("bits_per_value", "formats", "tokens", "context_len", "kept_uniform", "gain",
                "measured_over_predicted", "trials", "peak_rss_bytes", "log")
        made = {"base": profile.base, "kind": profile.kind, "data": profile.data,
                "seconds": round(seconds, 1), **{k: said[k] for k in keep if k in said}}
        made["held_out"] = {k: said["held_out"][k] for k in ("mean", "kld_stderr_over_windows")}
        if said["trials"]:
            made["by_layer"] = [{k: row[k] for k in ("layer", "k_kld", "v_kld", "k_bits", "v_bits",
                                                     "output_cosine", "score_agreement", "raised")}
                                for row in said["by_layer"]]
        self.result["calibrations"][profile.name] = made
        self.save()

    def path(self, profile):
        return self.folder / f"{profile.name}.tqprofile"

    def save(self):
        self.has_done = True
        write(self.name, self.result)

    def missing(self, profiles, context, text):
        there = {(r["profile"], r["context"], r["text"]) for r in self.result["rows"]}
        return [p for p in profiles if (p.name, context, text) not in there]

    def measure(self, profiles, context, text):
        """A row for each profile over windows of one text."""
        windows = WINDOWS[context]
        todo = self.missing(profiles, context, text)
        while todo:
            speed = self.result["speed"].get(str(context), GUESSED_SPEED[context])
            # The plain run and the floor are read beside them.
            at_once = max(1, int(SECONDS_OF_A_CALL * speed) // (windows * context) - 2)
            piece, todo = todo[:at_once], todo[at_once:]
            passes = windows * context * (len(piece) + 2)
            left = self.left()
            if left is not None and self.has_done and passes / speed > left:
                raise OutOfTime()
            start = time.monotonic()
            said = self.tq("eval", "kld", "--model", MODEL, "--data", self.folder / f"{text}.txt",
                           "--context", context, "--cut", "spread", "--windows", windows, "--kv",
                           ",".join(str(self.path(p)) for p in piece), "--json")
            self.result["speed"][str(context)] = passes / (time.monotonic() - start)
            self.result["floors"][f"{text} {context}"] = said["floor"]
            for profile, row in zip(piece, said.get("rows", [said])):
                self.result["rows"].append(row_of(profile, context, windows, text, row))
            self.save()

    def run(self, groups):
        known = self.result["groups"]
        known += [g for g in groups if g not in known]
        self.result["command"] = f"bench/calibration.py --groups {','.join(known)} --name {self.name}"
        for group in groups:
            for profiles, context in PLAN[group]:
                for profile in profiles:
                    if any(self.missing([profile], context, text) for text in TEXTS):
                        self.calibrate(profile)
                for text in TEXTS:
                    self.measure(profiles, context, text)


def row_of(profile, context, windows, text, row):
    """What stands in the result file of one profile on one text."""
    # Of several windows, their spread; positions of one window depend on each other.
    stderr = "mean_stderr_windows" if windows > 1 else "mean_stderr"
    t = row["by_text"][0]
    return {"profile": profile.name, "base": profile.base, "kind": profile.kind, "context": context,
            "windows": windows, "text": text, "bits_per_value": row["bits_per_value"],
            "kld": {"mean": t["kld"]["mean"], "mean_stderr": t["kld"][stderr],
                    **{key: t["kld"][key] for key in ("median", "p99", "p999", "max")}},
            "kld_by_window": t.get("kld_by_window", []), "same_top": t["same_top"],
            "ppl": {key: t["ppl"][key] for key in ("f16", "ratio", "ratio_stderr")},
            "by_position": [[b["first"], b["end"], b["kld_mean"]] for b in row["by_position"]]}


def pieces_in_turn(a, b):
    return "\n".join(a[i:i + PIECE] + "\n" + b[i:i + PIECE]
                     for i in range(0, min(len(a), len(b)), PIECE))


def texts():
    """What is calibrated on, and what is measured on; None where a package is missing."""
    bible = TEXT.read_text(encoding="utf-8")
    perl = perl_text(MANUALS)
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    sources = "".join((library / f"{m}.py").read_text(encoding="utf-8") for m in PYTHON_MODULES
                      if (library / f"{m}.py").exists())
    for found, fix in ((perl, "perl-doc"), (pathlib.Path(JARGON).exists(), "jargon-text")):
        if not found:
            print(f"a text is missing: apt-get install {fix}", file=sys.stderr)
            return None
    jargon = gzip.open(JARGON, "rt", encoding="utf-8").read()[JARGON_SKIPPED:]
    return {"calibration": pieces_in_turn(jargon[:CALIBRATION_CHARACTERS],
                                          sources[:CALIBRATION_CHARACTERS]),
            "calibration-bible": bible[-BIBLE_TAIL:],
            "calibration-perl": perl_text(CALIBRATION_MANUALS),
            "bible": bible[:-BIBLE_TAIL], "perl": perl}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__ + "\n".join(f"  {k:8} {v}" for k, v in GROUPS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", default="core")
    parser.add_argument("--minutes", type=float, default=0, help="0: until all is done")
    parser.add_argument("--list", action="store_true", help="what there is and what is missing")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "calibration")
    parser.add_argument("--name", default="calibration.json")
    o = parser.parse_args()
    groups = list(GROUPS) if o.groups == "all" else o.groups.split(",")
    unknown = [g for g in groups if g not in GROUPS]
    if unknown:
        parser.error(f"--groups {unknown[0]}: expected all or some of {', '.join(GROUPS)}")
    bench = Bench(o.folder, o.name, o.minutes)
    if o.list:
        for group in groups:
            rows = [(p, c, t) for profiles, c in PLAN[group] for p in profiles for t in TEXTS]
            missing = sum(len(bench.missing([p], c, t)) for p, c, t in rows)
            print(f"{group:8} {len(rows) - missing:3} of {len(rows):3} rows: {GROUPS[group]}")
        return 0
    for needed, fix in ((MODEL, "./quickstart"), (TEXT, "./quickstart"), (TQ, "build tq")):
        if not needed.exists():
            print(f"{needed} is not there: {fix}", file=sys.stderr)
            return 2
    o.folder.mkdir(parents=True, exist_ok=True)
    found = texts()
    if found is None:
        return 2
    for name, text in found.items():
        path = o.folder / f"{name}.txt"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    try:
        bench.run(groups)
    except OutOfTime:
        print("time is up: the same command goes on from here", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped: the same command goes on from here", file=sys.stderr)
        return 130
    print(f"all of {','.join(groups)} is measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
