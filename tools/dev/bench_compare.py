"""Compares two sets of benchmark rows: which figures changed beyond noise.

The n-th run of a row in OLD is paired with its n-th run in NEW, since runs alternate and the machine drifts. The
figure is the median of the pairs' ratios NEW / OLD. Its interval is taken from order statistics: from the k-th smallest
ratio to the k-th largest, which holds the true median with the stated confidence whatever the distribution. A row has
changed if all of the interval lies on one side of 1.
"""

import dataclasses
import json
import math
import statistics

# The least confidence. Five pairs reach 93.75%, with the smallest and the largest ratio as the interval.
CONFIDENCE = 0.90

# The ends of names of figures. A name that ends like one of WORSE_IF_LOWER is not looked up in WORSE_IF_HIGHER:
# bandwidth_to_alone is no echo_p99_to_alone.
WORSE_IF_HIGHER = ("_us", "_ns", "_ms", "_per_gib", "_to_alone", "instructions", "bytes_per_link", "allocations",
                   "handshakes_per_link")
WORSE_IF_LOWER = ("_per_s", "bandwidth", "bandwidth_to_alone", "_gbps", "_mb_s")
# These say which row it is. All other fields are ignored.
KEYS = ("bench", "device", "mode", "op", "side", "name", "size", "outstanding", "links", "outstanding_per_link", "streams", "scenario")
# The floor is measured beside a row: it depends on the machine, not on the code.
IGNORED_PREFIXES = ("floor", "ratio_to_floor")


class CompareError(Exception):
    """Nothing can be compared; the text says why."""


@dataclasses.dataclass
class Change:
    row: str
    figure: str
    pairs: int
    old: float  # medians
    new: float
    ratio: float
    low: float  # of the interval of the ratio; nan if there are too few pairs
    high: float
    confidence: float
    verdict: str  # "better", "worse", "same" or "too few runs"


def higher_is_worse(figure):
    """Whether a higher `figure` is worse. None if it can be neither better nor worse."""
    if figure in KEYS or figure.startswith(IGNORED_PREFIXES):
        return None
    if figure.endswith(WORSE_IF_LOWER):
        return False
    return True if figure.endswith(WORSE_IF_HIGHER) else None


def read_rows(lines, name):
    """{row: {figure: [value of each run]}} of JSON lines."""
    rows = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise CompareError(f"{name}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise CompareError(f"{name}, line {number}: not a JSON object")
        label = " ".join(f"{key}={row[key]}" for key in KEYS if key in row)
        figures = rows.setdefault(label, {})
        for figure, value in row.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if is_number and value > 0 and higher_is_worse(figure) is not None:
                figures.setdefault(figure, []).append(float(value))
    return rows


def interval(values, confidence=CONFIDENCE):
    """(low, high, the confidence reached) of the median of `values`, by order statistics; nan if there are too few."""
    ordered = sorted(values)
    count = len(ordered)
    best = (math.nan, math.nan, 0.0)
    for k in range(count // 2):
        # The k + 1 smallest and the k + 1 largest values bound the median unless it lies outside on one side.
        outside = 2 * sum(math.comb(count, i) for i in range(k + 1)) / 2 ** count
        if 1 - outside < confidence:
            break
        best = (ordered[k], ordered[count - 1 - k], 1 - outside)
    return best


def compare(old, new):
    """The changes of each figure that both sides have, in the order of `old`."""
    changes = []
    for row, figures in old.items():
        for figure, before in figures.items():
            after = new.get(row, {}).get(figure)
            if after is None:
                continue
            ratios = [b / a for a, b in zip(before, after)]
            low, high, confidence = interval(ratios)
            if math.isnan(low):
                verdict = "too few runs"
            elif low <= 1 <= high:
                verdict = "same"
            else:
                verdict = "worse" if (low > 1) == higher_is_worse(figure) else "better"
            changes.append(Change(row, figure, len(ratios), statistics.median(before), statistics.median(after),
                                  statistics.median(ratios), low, high, confidence, verdict))
    if not changes:
        raise CompareError("the two have no row in common")
    return changes


def report(changes):
    """Lines of text: the rows that changed first."""
    pairs = min(change.pairs for change in changes)
    confidence = min(change.confidence for change in changes)
    yield (f"ratios NEW / OLD: medians of {pairs} pairs, intervals of {100 * confidence:.1f}% by order statistics"
           if confidence > 0 else f"{pairs} runs of each are too few for an interval: at least 5 are needed")
    for title, verdicts in (("changed", ("worse", "better")), ("not beyond noise", ("same", "too few runs"))):
        listed = [change for change in changes if change.verdict in verdicts]
        if not listed:
            continue
        yield f"{title}:"
        for c in listed:
            bounds = "" if math.isnan(c.low) else f" [{c.low:.3f}, {c.high:.3f}]"
            yield f"  {c.verdict:12} {c.row}  {c.figure}: {c.old:.6g} -> {c.new:.6g}, x {c.ratio:.3f}{bounds}"


def exit_status(changes):
    """0: nothing is worse beyond noise. 1: something is."""
    return 1 if any(change.verdict == "worse" for change in changes) else 0
