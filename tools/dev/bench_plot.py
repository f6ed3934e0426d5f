#!/usr/bin/env python3
"""Draws the rows that benchmarks write with --json, as SVG files."""

import argparse
import dataclasses
import json
import math
import pathlib
import re
import statistics
import sys

NO_MATPLOTLIB = 3
# Comparison of parameters_bench -> (title, x axis, y axis).
COMPARISONS = {
    "inline": ("Inline data against a gathered buffer: SEND", "message", "one way, µs (p50)"),
    "opcodes": ("SEND, WRITE and READ", "message", "one way (READ: round trip), µs (p50)"),
    "signalling": ("A completion for every n-th SEND of 32 bytes", "n", "million SENDs/s"),
    "waiting": ("Busy, adaptive and event-driven waiting: SEND", "message", "one way, µs (p50)"),
    "doorbells": ("WRs posted with one doorbell: SEND of 32 bytes", "WRs", "million SENDs/s"),
    "receives": ("One SRQ against a queue per QP: SEND of 32 bytes", "QPs", "million SENDs/s"),
    "requests": ("Four ways to move a request's payload", "payload", "request to response, µs (p50)"),
}
IN_BYTES = ("message", "payload")


@dataclasses.dataclass
class Panel:
    title: str
    x_title: str
    y_title: str
    curves: dict  # name -> {x: y}, x ascending; a name of FLOOR begins a dashed curve
    sizes: bool = False  # x counts bytes


@dataclasses.dataclass
class Figure:
    name: str  # of the file
    title: str
    panels: list


FLOOR = "floor: "


# Names of devices in titles.
WIRES = {"shm": "shared memory", "soft0": "the soft device", "rxe0": "Soft-RoCE", "siw0": "Soft-iWARP"}


def wire(device):
    return WIRES.get(device, device)


def size_label(size):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:g} B"


def number_label(value):
    for unit, factor in ((" M", 1e6), (" k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.4g}{unit}"
    return f"{value:.4g}"


def spans_decades(values):
    """Whether an axis of `values` must be logarithmic for the small ones to be told apart."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) >= 10 * min(positive)


def read_rows(lines):
    return [json.loads(line) for line in lines if line.strip()]


def curves_of(rows, name_of, x, y):
    """{name: {x: y}}: medians of the rows that agree in name and x. Rows without the figure are left out."""
    values = {}
    for row in rows:
        if row.get(x) is not None and row.get(y) is not None:
            values.setdefault(name_of(row), {}).setdefault(row[x], []).append(row[y])
    return {name: {at: statistics.median(points[at]) for at in sorted(points)} for name, points in values.items()}


def _by(rows, *keys):
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return groups


def calls(rows):
    for (device,), some in _by([row for row in rows if row["bench"] in ("rpc", "grpc", "ucx")], "device").items():
        peers = len({row["bench"] for row in some}) > 1

        def name(row, peers=peers):
            return f"{row['bench'] + ', ' if peers else ''}{size_label(row['size'])}, {row['mode']}"

        latency = curves_of(some, name, "outstanding", "p50_us")
        latency.update(curves_of([row for row in some if row["bench"] == "rpc"], lambda row, name=name: FLOOR + name(row),
                                 "outstanding", "floor_p50_us"))
        yield Figure(f"{device}-calls", f"Unary echo over {wire(device)}", [
            Panel("latency", "calls in flight", "p50, µs", latency),
            Panel("throughput", "calls in flight", "calls/s", curves_of(some, name, "outstanding", "calls_per_s"))])


def counting(rows):
    """Calls that are counted (RuntimeOptions::metrics) beside calls that are not, which are the floor."""
    def name(row):
        return f"{size_label(row['size'])}, {row['mode']}"

    def floor(row):
        return FLOOR + name(row)

    for (device,), some in _by([row for row in rows if row["bench"] == "metrics"], "device").items():
        latency = curves_of(some, name, "outstanding", "p50_us")
        latency.update(curves_of(some, floor, "outstanding", "off_p50_us"))
        rate = curves_of(some, name, "outstanding", "calls_per_s")
        rate.update(curves_of(some, floor, "outstanding", "off_calls_per_s"))
        yield Figure(f"{device}-metrics", f"Calls with metrics, and without (floor), over {wire(device)}", [
            Panel("latency", "calls in flight", "p50, µs", latency),
            Panel("throughput", "calls in flight", "calls/s", rate)])


def payloads(rows):
    """One figure for each device, mode, and variant or peer; its panels are read and written."""
    some = []
    for row in rows:
        parts = re.fullmatch(r"(payload|grpc|ucx)_(read|write)(?:_(\w+))?", row["bench"])
        if parts:
            some.append({**row, "op": parts[2], "variant": parts[3] if parts[1] == "payload" else parts[1]})
    for (device, variant, mode), group in _by(some, "device", "variant", "mode").items():
        panels = []
        for op, title in (("read", "read"), ("write", "written")):
            of_op = [row for row in group if row["op"] == op]
            curves = curves_of(of_op, lambda row: f"{row['outstanding']} in flight", "size", "gb_per_s")
            # The floor stands beside each point of each variant; 0 or null: it was not measured.
            curves.update(curves_of([row for row in of_op if row.get("floor_gb_per_s")],
                                    lambda row: f"{FLOOR}{row['outstanding']} in flight", "size", "floor_gb_per_s"))
            panels.append(Panel(title, "payload", "GB/s", curves, True))
        yield Figure(f"{device}-payload-{variant}-{mode}", f"Payloads over {wire(device)}: {variant}, {mode}", panels)


def interference(rows):
    for (device,), some in _by([row for row in rows if row["bench"] == "interference"], "device").items():
        panels = []
        for op, title in (("read", "beside payloads that are read"), ("write", "beside payloads that are written")):
            group = [row for row in some if row["op"] == op]
            curves = curves_of(group, lambda row: "alone", "size", "echo_alone_p99_us")
            curves.update(curves_of(group, lambda row: f"beside {row['outstanding']} in flight", "size", "echo_p99_us"))
            if curves:
                panels.append(Panel(title, "payload", "p99 of the echo, µs", curves, True))
        yield Figure(f"{device}-interference", f"A paced echo beside payloads over {wire(device)}", panels)


def links(rows):
    def name(row):
        return f"{row['outstanding_per_link']:g} in flight per link"

    for (device,), some in _by([row for row in rows if row["bench"] == "links"], "device").items():
        yield Figure(f"{device}-links", f"Echo over many links of one executor, over {wire(device)}", [
            Panel("throughput", "links", "calls/s", curves_of(some, name, "links", "calls_per_s")),
            Panel("latency", "links", "p50, µs", curves_of(some, name, "links", "p50_us"))])


def storms(rows):
    """Clients that connect at once: how long until the last call has ended, and what that cost in handshakes."""
    names = {"storm": "first calls", "comeback": "after the server was killed"}

    def name(row):
        return names[row["bench"]]

    for (device,), some in _by([row for row in rows if row["bench"] in names], "device").items():
        last = curves_of(some, name, "links", "last_call_ms")
        last.update(curves_of(some, lambda row: FLOOR + name(row), "links", "floor_last_ms"))
        yield Figure(f"{device}-storm", f"Clients that all connect at once, over {wire(device)}", [
            Panel("time", "links", "ms until the last call has ended", last),
            Panel("cost", "links", "failed handshakes per link", curves_of(some, name, "links", "failed_handshakes_per_link"))])


def overload(rows):
    """What is served of what is asked for: open loads of a server with a queue, and callers that give up."""
    for (device,), some in _by([row for row in rows if row["bench"] == "overload"], "device").items():
        curves = curves_of([row for row in some if re.fullmatch(r"\d+ (percent|times)", row["scenario"])],
                           lambda row: "a queue, open load", "offered_per_s", "goodput_per_s")
        impatient = [row for row in some if row.get("floor_per_s")]
        curves.update(curves_of(impatient, lambda row: row["scenario"], "offered_per_s", "goodput_per_s"))
        curves.update(curves_of(impatient, lambda row: FLOOR + row["scenario"], "offered_per_s", "floor_per_s"))
        yield Figure(f"{device}-overload", f"More load than a server can serve, over {wire(device)}", [
            Panel("goodput", "calls offered/s", "calls served/s", curves)])


def parameters(rows):
    some = [row for row in rows if row["bench"] == "parameters"]
    for (device, comparison), group in _by(some, "device", "comparison").items():
        title, x_title, y_title = COMPARISONS.get(comparison, (comparison, "x", "y"))
        yield Figure(f"{device}-{comparison}", f"{title} ({device})", [
            Panel("", x_title, y_title, curves_of(group, lambda row: row["curve"], "x", "y"), x_title in IN_BYTES)])


def figures(rows):
    """The figures that `rows` have points for."""
    for kind in (calls, counting, payloads, interference, links, storms, overload, parameters):
        for figure in kind(rows):
            figure.panels = [panel for panel in figure.panels if panel.curves]
            if figure.panels:
                yield figure


# Colours. Ink and paper change places on a dark background; curves are readable on both.
INK, PAPER, GRID = "#1f2328", "#fffffe", "#d1d9e0"
CURVES = ("#2f7fd0", "#d2622a", "#2c9a58", "#9566d0", "#b0820c", "#cf4680", "#0f9aa8", "#8a7a6a")
MARKERS = "os^Dv<>p"
DARK = {INK: "#e6edf3", PAPER: "#0d1117", GRID: "#30363d"}
WIDTH, HEIGHT = 4.6, 3.4  # of a panel, in inches


def with_dark_mode(svg):
    """`svg`, with a style that swaps ink and paper for viewers that prefer a dark background."""
    rules = "".join(f'[style*="{kind}: {light}"] {{ {kind}: {dark} !important }}\n'
                    for light, dark in DARK.items() for kind in ("fill", "stroke"))
    style = f"<style>@media (prefers-color-scheme: dark) {{\n{rules}}}</style>\n"
    return re.sub(r"(<svg [^>]*>\n)", lambda match: match[1] + style, svg, count=1)


def _ticks(axis, values, label, pyplot_ticker):
    """A tick at each of `values`, the first and the last labelled; labels that would touch are left out."""
    room = WIDTH * 72 * 0.8 / max(math.log2(max(values) / min(values)), 1)  # points per doubling

    def fits(value, other):
        width = 2.5 * (len(label(value)) + len(label(other))) + 5
        return abs(math.log2(value / other)) * room > width

    labelled = [values[0]]
    for value in values[1:-1]:
        if fits(value, labelled[-1]) and fits(value, values[-1]):
            labelled.append(value)
    labelled += values[-1:] if len(values) > 1 else []
    axis.set_major_locator(pyplot_ticker.FixedLocator(labelled))
    axis.set_major_formatter(pyplot_ticker.FuncFormatter(lambda value, _: label(value)))
    axis.set_minor_locator(pyplot_ticker.FixedLocator(list(values)))
    axis.set_minor_formatter(pyplot_ticker.NullFormatter())


def _draw_y(axes, values, ticker):
    """Draws the y axis for `values`: those of all panels in a row that show the same figure."""
    if spans_decades(values):
        axes.set_yscale("log")
        margin = (max(values) / min(values)) ** 0.06
        axes.set_ylim(min(values) / margin, max(values) * margin)
        wide = max(values) / min(values) > 1000
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1,) if wide else (1, 2, 5), numticks=20))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    else:
        axes.set_ylim(0, max(values) * 1.1 or 1)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: number_label(value)))


def draw(figure):
    """The picture of `figure`, a matplotlib Figure. Needs matplotlib."""
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot, ticker
    matplotlib.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "verbena", "font.family": "sans-serif", "font.size": 9,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
        "axes.facecolor": PAPER, "figure.facecolor": PAPER, "savefig.facecolor": PAPER, "grid.color": GRID,
        "axes.spines.top": False, "axes.spines.right": False})
    names = list(dict.fromkeys(name.removeprefix(FLOOR) for panel in figure.panels for name in panel.curves))
    floors = any(name.startswith(FLOOR) for panel in figure.panels for name in panel.curves)
    columns = max(1, int(len(figure.panels) * WIDTH / 1.7))
    legend = math.ceil((len(names) + floors) / columns) * 0.2 + 0.15
    height = HEIGHT + legend + 0.2
    picture, all_axes = pyplot.subplots(1, len(figure.panels), figsize=(WIDTH * len(figure.panels), height),
                                        squeeze=False)
    for axes, panel in zip(all_axes[0], figure.panels):
        for name, points in panel.curves.items():
            index = names.index(name.removeprefix(FLOOR))
            is_floor = name.startswith(FLOOR)
            axes.plot(list(points), list(points.values()), color=CURVES[index % len(CURVES)],
                      marker="" if is_floor else MARKERS[index % len(MARKERS)], markersize=5,
                      linestyle=":" if is_floor else "-", label=name)
        axes.set_xscale("log", base=2)
        _ticks(axes.xaxis, sorted({x for points in panel.curves.values() for x in points}),
               size_label if panel.sizes else lambda value: f"{value:,.0f}", ticker)
        alike = [other for other in figure.panels if other.y_title == panel.y_title]
        values = [y for other in alike for points in other.curves.values() for y in points.values()]
        _draw_y(axes, values, ticker)
        axes.set_title(panel.title, fontsize=9)
        axes.set_xlabel(panel.x_title)
        axes.set_ylabel(panel.y_title)
        axes.grid(True, linewidth=0.6)
    lines = [pyplot.Line2D([], [], color=CURVES[i % len(CURVES)], marker=MARKERS[i % len(MARKERS)], markersize=5,
                           label=name) for i, name in enumerate(names)]
    if floors:
        lines.append(pyplot.Line2D([], [], color=INK, linestyle=":", label="floor"))
    picture.suptitle(figure.title, fontsize=10, y=1 - 0.12 / height, va="top")
    picture.legend(handles=lines, loc="lower center", ncol=columns, frameon=False, fontsize=8)
    picture.tight_layout(rect=(0, legend / height, 1, 1 - 0.1 / height))
    return picture


def misplaced_labels(picture):
    """Pairs of texts of `picture` that lie over each other, and texts that leave it."""
    from matplotlib.text import Text
    picture.draw_without_rendering()  # places the legend
    unseen = set()  # labels of ticks beyond their axis, which are not drawn
    for axes in picture.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            unseen |= {tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    texts = [text for text in picture.findobj(Text)
             if text.get_text().strip() and text.get_visible() and text not in unseen]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    inside = picture.bbox
    leaving = [(text, "leaves the picture") for text, box in boxes if not (
        inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1)]
    return leaving + [(one, other) for i, (one, box) in enumerate(boxes) for other, box2 in boxes[i + 1:]
                      if box.overlaps(box2)]


def write(rows, directory):
    """Writes an SVG for each figure of `rows` into `directory`. Returns their paths."""
    from matplotlib import pyplot
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for figure in figures(rows):
        picture = draw(figure)
        path = directory / f"{figure.name}.svg"
        picture.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        path.write_text(with_dark_mode(path.read_text(encoding="utf-8")), encoding="utf-8")
        pyplot.close(picture)
        paths.append(path)
    return paths


def main():
    parser = argparse.ArgumentParser(prog="bench_plot.py", description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(".bazel/plots"), metavar="DIR",
                        help="where the SVG files go (default .bazel/plots)")
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON lines, as ./dev bench --json writes them")
    options = parser.parse_args()
    try:
        import matplotlib  # noqa: F401  pylint: disable=unused-import
    except ImportError:
        print("bench: plots need matplotlib for /usr/bin/python3: run ./dev install-deps --plots", file=sys.stderr)
        return NO_MATPLOTLIB
    rows = []
    for name in options.files:
        try:
            rows += read_rows(pathlib.Path(name).read_text(encoding="utf-8").splitlines())
        except (OSError, ValueError) as error:
            print(f"bench: {name}: {error}", file=sys.stderr)
            return 2
    paths = write(rows, options.out)
    if not paths:
        print(f"bench: no row of {', '.join(options.files)} has a plot", file=sys.stderr)
        return 1
    print("".join(f"plotted in {path}\n" for path in paths), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
