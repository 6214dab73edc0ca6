#!/usr/bin/env python3
"""Draws the charts and fills in the tables of some pages from docs/results/*.json.

    tools/charts.py            # write docs/charts/*.svg and the tables of the pages in PAGES
    tools/charts.py --check    # write nothing; fail if a file on disk differs from what would be written

A results file holds one table: title, date, machine, peer, commands, notes, columns and rows. A page takes a table with

    <!-- table: NAME [KEY=VALUE,...] [columns=KEY,...] [brief] [chart] [if-present] -->
    <!-- end -->

The lines between the markers are generated. KEY=VALUE keeps the rows whose cell is one of the values, `columns` selects
columns, and `brief` leaves out the machine, the commands and the notes. `chart` puts the chart of the same name first.
`if-present` shows nothing while there are no results of that name.
"""
import argparse
import json
import pathlib
import re
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
CHARTS = DOCS / "charts"
PAGES = [DOCS / "BENCHMARKS.md", DOCS / "architecture/numerics.md"]

NAMES = {
    "qwen3-0.6b": "Qwen3-0.6B",
    "qwen3-4b": "Qwen3-4B",
    "llama-1b": "Llama-1B",
    "llama-8b": "Llama-8B",
}


class Invalid(Exception):
    """A results file or a marker that cannot be used."""


# Results.


def load_results():
    found = {}
    for path in sorted(RESULTS.glob("*.json")):
        try:
            found[path.stem] = checked(json.loads(path.read_text()))
        except (ValueError, Invalid) as error:
            raise Invalid(f"{path.relative_to(ROOT)}: {error}") from error
    return found


def checked(result):
    """The result itself, if it is complete and its rows use only declared columns."""
    for key in ("title", "date", "machine", "commands", "columns", "rows"):
        if not result.get(key):
            raise Invalid(f"`{key}` is missing or empty")
    unknown = set(result) - {"title", "date", "machine", "peer", "commands", "notes", "columns", "rows"}
    if unknown:
        raise Invalid(f"unknown keys: {', '.join(sorted(unknown))}")
    columns = {column["key"] for column in result["columns"]}
    for number, row in enumerate(result["rows"]):
        if set(row) - columns:
            raise Invalid(f"row {number} has undeclared columns: {', '.join(sorted(set(row) - columns))}")
        for cell in row.values():
            figures(cell)
    return result


def figures(cell):
    """The numbers of a cell, the representative one first; none for text."""
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        return [cell]
    if isinstance(cell, str):
        return []
    if isinstance(cell, list) and cell and all(isinstance(n, (int, float)) for n in cell):
        return cell
    if isinstance(cell, dict) and list(cell) in (["median", "min", "max"], ["mean", "deviation"]):
        return list(cell.values())
    raise Invalid(f"not a cell: {cell!r}")


# Tables.


def number(value, column):
    if column.get("style") == "exponent":
        return f"{value:.1e}"
    digits = column.get("digits")
    return f"{value:,}" if digits is None else f"{value:,.{digits}f}"


def cell_text(cell, column):
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    texts = [number(n, column) for n in figures(cell)]
    if isinstance(cell, dict):
        return f"{texts[0]} ({texts[1]} to {texts[2]})" if "median" in cell else f"{texts[0]} ± {texts[1]}"
    return ", ".join(texts)


def table(result, filters, keys):
    columns = {column["key"]: column for column in result["columns"]}
    missing = [key for key in [*filters, *keys] if key not in columns]
    if missing:
        raise Invalid(f"no such column: {', '.join(missing)}")
    chosen = [columns[key] for key in keys] or result["columns"]
    rows = [row for row in result["rows"] if all(str(row.get(key)) in values for key, values in filters.items())]
    if not rows:
        raise Invalid("no row is left")
    head = [column["title"] + (f", {column['unit']}" if "unit" in column else "") for column in chosen]
    numeric = [all(not isinstance(row.get(column["key"]), str) for row in rows) for column in chosen]
    lines = [head, ["---:" if right else "---" for right in numeric]]
    lines += [[cell_text(row.get(column["key"]), column) for column in chosen] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def provenance(result):
    lines = [f"- Date: {result['date']}", f"- Machine: {result['machine']}"]
    if "peer" in result:
        lines.append(f"- Peer: {result['peer']}")
    lines += [f"- {note}" for note in result.get("notes", [])]
    return "\n".join(lines) + "\n\n```console\n" + "\n".join(f"$ {command}" for command in result["commands"]) + "\n```"


OPENING = re.compile(r"^<!-- table:", re.MULTILINE)
MARKER = re.compile(r"^<!-- table: (\S+)((?: \S+)*) -->\n(?:(?!<!--).*\n)*<!-- end -->", re.MULTILINE)


def filled(text, results):
    """A page with all its tables generated anew."""

    def replacement(match):
        name, options = match[1], match[2].split()
        opening = match[0].split("\n", 1)[0]
        if name not in results:
            if "if-present" in options:
                return opening + "\n<!-- end -->"
            raise Invalid(f"no results named {name}")
        filters, keys = {}, []
        for option in options:
            key, _, value = option.partition("=")
            if key == "columns":
                keys = value.split(",")
            elif key not in ("brief", "chart", "if-present"):
                filters[key] = value.split(",")
        parts = [f"![{results[name]['title']}](../charts/{name}.svg)"] if "chart" in options else []
        parts += [] if "brief" in options else [provenance(results[name])]
        parts.append(table(results[name], filters, keys))
        return opening + "\n\n" + "\n\n".join(parts) + "\n\n<!-- end -->"

    if len(OPENING.findall(text)) != len(MARKER.findall(text)):
        raise Invalid("a table marker is malformed or has no <!-- end -->")
    return MARKER.sub(replacement, text)


# Charts.

WIDTH, LEFT, RIGHT = 760, 165, 115
INK, QUIET, GRID = "#1c2430", "#5d6776", "#e3e7ec"
BLUE, GREY, GREEN, ORANGE = "#1f6fb2", "#b9c1cb", "#2f9e83", "#e08a2e"


class Drawing:
    """SVG elements from top to bottom. Coordinates are rounded, so the output is the same on every machine."""

    def __init__(self, title, subtitle):
        self.elements = []
        self.title = title
        self.text(16, 26, title, size=16, weight=600)
        self.text(16, 45, subtitle, color=QUIET)
        self.y = 62

    def text(self, x, y, content, size=12, color=INK, anchor="start", weight=400):
        self.elements.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{color}" '
            f'text-anchor="{anchor}">{escape(content)}</text>'
        )

    def bar(self, x, y, width, height, color):
        self.elements.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}" rx="1.5" fill="{color}"/>'
        )

    def curve(self, points, color, dashed=False):
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.elements.append(f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="2.0"{dash}/>')
        for x, y in points:
            self.elements.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.0" fill="{color}"/>')

    def line(self, x1, y1, x2, y2, color=GRID, width=1.0):
        self.elements.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width:.1f}"/>'
        )

    def legend(self, series):
        x = 16.0
        for name, color in series.items():
            self.bar(x, self.y - 1, 11, 11, color)
            self.text(x + 16, self.y + 9, name)
            x += 40 + 7 * len(name)
        self.y += 28

    def svg(self):
        height = round(self.y + 28)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img" font-family="system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n"
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n' + "\n".join(self.elements) + "\n</svg>\n"
        )


def ticks_for(largest):
    """Round numbers from 0 to the first that is not below the largest value, four to eight of them."""
    step = 10 ** (len(str(int(largest))) - 1)
    for factor in (5, 2, 1, 0.5, 0.2):
        count = -(-largest // (step * factor))
        if count >= 4:
            return [round(step * factor * n, 1) for n in range(int(count) + 1)]
    raise Invalid(f"no axis for {largest}")


def scale(largest):
    """Maps 0..largest to the width of the plot."""
    return lambda value: LEFT + (WIDTH - LEFT - RIGHT) * value / largest


def axis(drawing, x, ticks, label, top, bottom):
    """Grid lines with a label under each."""
    for tick in ticks:
        drawing.line(x(tick), top, x(tick), bottom)
        drawing.text(x(tick), bottom + 15, label(tick), size=11, color=QUIET, anchor="middle")


def bar_chart(title, subtitle, series, groups, label, baseline=None):
    """One line per row of a group, one bar per series. A group is (heading, [(name, [value], note)])."""
    drawing = Drawing(title, subtitle)
    drawing.legend(series)
    ticks = ticks_for(max(value for _, rows in groups for _, values, _ in rows for value in values))
    x, top = scale(ticks[-1]), drawing.y - 6
    colors = list(series.values())
    bottom = drawing.y - 4 + sum(24 + len(rows) * (10 * len(series) + 8) for _, rows in groups)
    axis(drawing, x, ticks, label, top, bottom)
    if baseline is not None:
        drawing.line(x(baseline), top, x(baseline), bottom, QUIET, 1.2)
    for heading, rows in groups:
        drawing.text(16, drawing.y + 10, heading, weight=600)
        drawing.y += 18
        for name, values, note in rows:
            drawing.text(LEFT - 10, drawing.y + 13, name, anchor="end")
            for place, value in enumerate(values):
                y = drawing.y + 10 * place
                drawing.bar(LEFT, y, x(value) - LEFT, 9, colors[place])
                # A label just left of the baseline would be crossed by it.
                end = x(baseline) if baseline and 0 <= x(baseline) - x(value) < 30 else x(value)
                drawing.text(end + 5, y + 8, label(value), size=9.5, color=QUIET)
            drawing.text(WIDTH - 16, drawing.y + 13, note, anchor="end", weight=600)
            drawing.y += 10 * len(values) + 8
        drawing.y += 6
    return drawing.svg()


def panel(drawing, left, heading, counts, curves, labels=None):
    """Curves over a count that is to scale, from (color, dashed, [value or None]). `labels`: the counts that are written."""
    top, height, width = drawing.y + 22, 110, 285
    ticks = ticks_for(max(value for _, _, values in curves for value in values if value is not None))

    def place(count, value):
        return left + width * count / counts[-1], top + height * (1 - value / ticks[-1])

    drawing.text(left, drawing.y + 10, heading, size=11, color=QUIET)
    for tick in ticks:
        x, y = place(0, tick)
        drawing.line(x, y, x + width, y)
        drawing.text(x - 6, y + 4, f"{tick:,g}", size=10, color=QUIET, anchor="end")
    for count in labels or counts:
        x, y = place(count, 0)
        drawing.line(x, y, x, y + 4, QUIET)
        drawing.text(x, y + 16, f"{count:,}", size=10, color=QUIET, anchor="middle")
    for color, dashed, values in curves:
        drawing.curve([place(count, value) for count, value in zip(counts, values) if value is not None], color, dashed)


def threads_chart(result, shapes, formats):
    """Of these shapes and formats: tokens per second and GB/s over the number of threads, which is to scale."""
    drawing = Drawing("Decoding by number of threads", f"{result['machine']} ({result['date']})")
    peer = any("llama_cpp" in row for row in result["rows"])
    drawing.legend({"Welte": BLUE, **({"llama.cpp": GREY} if peer else {}), "what as many threads read": GREEN})
    for shape, found in by_shape([row for row in result["rows"] if row["shape"] in shapes]):
        for name in formats:
            rows = sorted((row for row in found if row["format"] == name), key=lambda row: row["threads"])
            threads = [row["threads"] for row in rows]

            def values(key):
                return [figures(row[key])[0] if key in row else None for row in rows]

            drawing.text(16, drawing.y + 10, f"{shape} {name.upper()}", weight=600)
            drawing.y += 20
            speeds = [(GREY, False, values("llama_cpp"))] if any("llama_cpp" in row for row in rows) else []
            panel(drawing, 60, "tokens per second", threads, [*speeds, (BLUE, False, values("welte"))])
            floor = [(GREEN, True, values("floor"))] if any("floor" in row for row in rows) else []
            panel(drawing, 430, "GB/s", threads, [*floor, (BLUE, False, values("gb_s"))])
            drawing.y += 164
    return drawing.svg()


def growth_chart(batches, depths):
    """Time of a step over its rows, and over the positions in the context."""

    def name(row):
        return f"{row['shape']} {row['format'].upper()}"

    names = list(dict.fromkeys(name(row) for row in batches["rows"] + depths["rows"]))
    colors = dict(zip(names, [BLUE, GREEN, GREY]))
    drawing = Drawing("How a decode step grows", f"Microseconds. {batches['machine']} ({batches['date']})")
    drawing.legend(colors)

    def side(left, heading, rows, key, labels):
        counts = sorted({row[key] for row in rows})
        curves = []
        for model in dict.fromkeys(name(row) for row in rows):
            steps = {row[key]: row["step"] for row in rows if name(row) == model}
            curves.append((colors[model], False, [steps.get(count) for count in counts]))
        panel(drawing, left, heading, counts, curves, labels)

    side(60, "rows of a step, 512 to 640 positions each", batches["rows"], "sequences", [1, 32, 64, 128, 256])
    side(430, "positions in the context, one row", depths["rows"], "depth", [0, 8192, 16384, 32768])
    drawing.y += 150
    return drawing.svg()


def by_shape(rows):
    """(name of the shape, its rows), in the order in which the shapes first occur."""
    grouped = {}
    for row in rows:
        grouped.setdefault(row["shape"], []).append(row)
    return [(NAMES.get(shape, shape), found) for shape, found in grouped.items()]


def against_llama_cpp(result, test):
    rows = [row for row in result["rows"] if row["test"] == test]
    return [
        (
            shape,
            [
                (row["format"].upper(), [figures(row["welte"])[0], figures(row["llama_cpp"])[0]], f"{row['ratio']:.2f}x")
                for row in found
            ],
        )
        for shape, found in by_shape(rows)
    ]


def ratios(heading, result):
    """Per format: the ratios to llama.cpp in decoding and in prompts."""
    groups = []
    for shape, found in by_shape(result["rows"]):
        pairs = {}
        for row in found:
            pairs.setdefault(row["format"], {})[row["test"][:2]] = row["ratio"]
        rows = [(name.upper(), [pair["tg"], pair["pp"]], "") for name, pair in pairs.items()]
        groups.append((f"{heading}, {shape}", rows))
    return groups


def thousands(value):
    return f"{value / 1000:g}k" if value >= 10000 and value % 1000 == 0 else f"{value:,.0f}"


def charts(results):
    persistent = results["h200-persistent-llama-cpp"]
    graph = results["h200-graph-llama-cpp"]
    yield "h200-decode", bar_chart(
        "Decoding on an H200, tokens per second",
        f"128 tokens, one stream, empty context; higher is better ({persistent['date']})",
        {"Welte": BLUE, "llama.cpp": GREY},
        against_llama_cpp(persistent, "tg128"),
        thousands,
    )
    yield "h200-prompts", bar_chart(
        "Prompts on an H200, tokens per second",
        f"Prompt of 512 tokens; higher is better ({graph['date']})",
        {"Welte": BLUE, "llama.cpp": GREY},
        against_llama_cpp(graph, "pp512"),
        thousands,
    )
    yield "cpu-ratios", bar_chart(
        "CPU: speed as a multiple of llama.cpp's",
        "Two cores of an AMD EPYC; the line at 1 is llama.cpp; higher is better",
        {"decoding": BLUE, "prompts": ORANGE},
        ratios("AVX-512", results["cpu-avx512-llama-cpp"]) + ratios("AVX2", results["cpu-avx2-llama-cpp"]),
        lambda value: f"{value:.2f}",
        baseline=1,
    )


    batched = results["cpu-avx512-batched"]
    yield "cpu-batched", bar_chart(
        "CPU: sequences decoded together, tokens per second of all",
        f"Prompts of 512 tokens, 128 generated; right: the time of a step ({batched['date']})",
        {"Welte": BLUE},
        [
            (
                "Qwen3-0.6B Q4_0",
                [(str(row["sequences"]), [row["tg"]], f"{row['step']:.1f} ms") for row in batched["rows"]],
            )
        ],
        thousands,
    )

    yield "h100-growth", growth_chart(results["h100-batched"], results["h100-depth"])

    yield "cpu-16-cores-threads", threads_chart(results["cpu-16-cores-threads"], ["qwen3-4b", "llama-8b"], ["q4_k", "bf16"])


def outputs():
    """Every generated file and its text."""
    results = load_results()
    files = {CHARTS / f"{name}.svg": svg for name, svg in charts(results)}
    for page in PAGES:
        try:
            files[page] = filled(page.read_text(), results)
        except Invalid as error:
            raise Invalid(f"{page.relative_to(ROOT)}: {error}") from error
    return files


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true", help="write nothing; fail if a generated file is stale")
    check = p.parse_args().check
    try:
        files = outputs()
    except Invalid as error:
        sys.exit(f"error: {error}")
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    extra = sorted(set(CHARTS.glob("*.svg")) - set(files))
    if check:
        for path in stale:
            print(f"{path.relative_to(ROOT)}: stale; run tools/charts.py", file=sys.stderr)
        for path in extra:
            print(f"{path.relative_to(ROOT)}: tools/charts.py does not draw this file", file=sys.stderr)
        sys.exit(1 if stale or extra else 0)
    CHARTS.mkdir(exist_ok=True)
    for path in stale:
        path.write_text(files[path])
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
