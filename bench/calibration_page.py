"""The tables of docs/reference/calibration.md, from what bench/calibration.py measured."""
import statistics

from calibration import TEXTS, WINDOWS
from readme_table import machine_words, table, with_error

KINDS = {"uniform": "all heads alike", "pair": "by layer, K and V alike",
         "layer": "by layer, K and V apart", "head": "by head, K and V apart",
         "auto": "the better of both"}


class Rows:
    """The rows of the result file by profile, length and text."""

    def __init__(self, result):
        self.result = result
        self.by_key = {(r["profile"], r["context"], r["text"]): r for r in result["rows"]}

    def of(self, profile, context):
        """The rows of all texts; None unless all are there."""
        rows = [self.by_key.get((profile, context, text)) for text in TEXTS]
        return None if None in rows else rows

    def profiles(self, context):
        names = dict.fromkeys(r["profile"] for r in self.result["rows"] if r["context"] == context)
        return [name for name in names if self.of(name, context)]


def axes(base):
    return base[base.index("-"):] if "-" in base else ""


def mean(rows):
    return sum(r["kld"]["mean"] for r in rows) / len(rows)


def format_name(row):
    """What a reader would ask for: a preset, or the base of what was calibrated."""
    return row["base"] if row["kind"] == "uniform" else f"like {row['base']}"


def change(rows, reference):
    """Of the mean KL, with the error of the mean of the windows' differences."""
    if reference is None or reference == rows:
        return ""
    differences = [b - a for old, new in zip(reference, rows)
                   for a, b in zip(old["kld_by_window"], new["kld_by_window"])]
    text = f"{100 * (mean(rows) / mean(reference) - 1):+.0f}"
    if len(differences) > 2:
        error = statistics.stdev(differences) / len(differences) ** 0.5
        text += f" ± {100 * error / mean(reference):.0f}"
    return text + " %"


def best_uniform(rows, context, like):
    """Of the uniform formats with its axes and its bits, the one with the least KL."""
    found = [rows.of(name, context) for name in rows.profiles(context)]
    same = [f for f in found if f[0]["kind"] == "uniform" and axes(f[0]["base"]) == axes(like["base"])
            and abs(f[0]["bits_per_value"] - like["bits_per_value"]) < 0.05]
    return min(same, key=mean, default=None)


def of_a_genre(name):
    return name.endswith(tuple(f"-{t}" for t in TEXTS))


def how(calibration):
    """In which units bits were chosen, and whatever is not as in the other rows."""
    out = KINDS[calibration["kind"]]
    if calibration["kind"] == "auto":
        out += f", {calibration['tokens']:,} tokens"
    if calibration["context_len"] != 2048:
        out += f", calibrated at {calibration['context_len']:,}"
    return out + (" (kept uniform)" if calibration.get("kept_uniform") else "")


def equal_bytes_of(context):
    def lines(result):
        rows = Rows(result)
        names = [n for n in rows.profiles(context) if not of_a_genre(n)]
        cells = []
        found = sorted((rows.of(n, context) for n in names),
                       key=lambda r: (axes(r[0]["base"]), round(r[0]["bits_per_value"], 1),
                                      list(KINDS).index(r[0]["kind"])))
        for r in found:
            cells.append([format_name(r[0]), how(result["calibrations"][r[0]["profile"]]),
                          f"{r[0]['bits_per_value']:.3f}",
                          *(with_error(t["kld"]["mean"], t["kld"]["mean_stderr"]) for t in r),
                          change(r, best_uniform(rows, context, r[0])),
                          " / ".join(with_error(t["ppl"]["ratio"], t["ppl"]["ratio_stderr"])
                                     for t in r),
                          " / ".join(f"{100 * t['same_top']:.1f} %" for t in r)])
        if not cells:
            return None
        return [f"{WINDOWS[context]} window{'s' if WINDOWS[context] > 1 else ''} of {context:,} tokens "
                f"of each text, all positions (`{result['command']}`; "
                f"{machine_words(result['machine'])}):", "",
                *table(["formats", "bits chosen", "bits per value",
                        *(f"KL, {t}" for t in TEXTS), "to the best uniform one",
                        f"perplexity ratio, {' / '.join(TEXTS)}", "same top"], cells)]
    return lines


def depth_lines(result):
    rows = Rows(result)
    cells = []
    for name in rows.profiles(8192):
        short, long = rows.of(name, 2048), rows.of(name, 8192)
        if short is None:
            continue
        for s, l in zip(short, long):
            near, far = s["by_position"][-1], l["by_position"][-1]
            cells.append([name, s["text"], f"{near[2]:.4f}", f"{far[2]:.4f}",
                          f"{far[2] / near[2]:.1f}x"])
    return cells and [
        "KL of the last positions of the windows (the deepest of 16 ranges):", "",
        *table(["profile", "text", "of 2,048", "of 8,192", "ratio"], cells)]


def domain_lines(result):
    rows = Rows(result)
    cells = []
    for text in TEXTS:
        found = [n for n in rows.profiles(2048) if n.endswith(f"-{text}")]
        for r in (rows.of(n, 2048) for n in found):
            cells.append([f"of the genre of {text}",
                          *(with_error(t["kld"]["mean"], t["kld"]["mean_stderr"]) for t in r)])
    return cells and table(["calibrated on text", *(f"KL, {t}" for t in TEXTS)], cells)


def cost_lines(result):
    cells = []
    for name, c in result["calibrations"].items():
        said = c.get("gain")
        cells.append([name, f"{c['tokens']:,}", f"{c['context_len']:,}", f"{c['seconds']:,.0f}",
                      f"{c['peak_rss_bytes'] / 2**30:.2f}",
                      with_error(said["kld_mean"], said["kld_stderr"]) if said else ""])
    return cells and table(["profile", "tokens read", "context", "seconds", "peak GiB",
                            "gain on its held-out text"], cells)


SECTIONS = {"equal_bytes": equal_bytes_of(2048), "equal_bytes_8192": equal_bytes_of(8192),
            "depth": depth_lines, "domains": domain_lines, "cost": cost_lines}
