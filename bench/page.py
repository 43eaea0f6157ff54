"""Renders the benchmark report as one HTML file from the figures in report.json."""
import html
import math

COLORS = {"cool": "#e8590c", "openmpi": "#3b7dd8", "mpich": "#6c8aa6", "gloo": "#7b61b8",
          "sockets": "#8a8a8a"}

STYLE = """
:root { --ink: #18222d; --quiet: #66737f; --line: #dfe5ea; --faint: #f4f7f9; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 48px 0 4px; }
h3 { font-size: 15px; margin: 20px 0 2px; }
p { margin: 4px 0 16px; color: var(--quiet); max-width: 76ch; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin: 24px 0 0; }
.tile { background: var(--faint); border-radius: 10px; padding: 14px 16px; }
.tile b { display: block; font-size: 25px; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile span { color: var(--quiet); font-size: 13.5px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 8px 32px; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--quiet); }
svg text.value { font-size: 9.5px; fill: var(--ink); }
.key { font-size: 13.5px; color: var(--quiet); } .key i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin: 0 6px -1px 0; }
.key span { margin-right: 18px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; color: var(--quiet); border-bottom: 2px solid var(--line); padding: 6px 6px; white-space: nowrap; }
td { text-align: right; padding: 4px 6px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th.left, td.left { text-align: left; } tr.first td { border-top: 1.5px solid #c6d0d8; } tr.cool td { font-weight: 600; }
td.reason { white-space: normal; text-align: left; color: #b3261e; font-weight: 400; } td.reason.absent { color: var(--quiet); }
footer { margin-top: 48px; color: var(--quiet); font-size: 13px; border-top: 1px solid var(--line); padding-top: 12px; }
"""

# Position and size of the drawing area of a chart.
LEFT, TOP, WIDTH, HEIGHT = 44, 14, 460, 170

HEADINGS = (("case", 1), ("placement", 1), ("library", 1), ("median", 0), ("minimum", 0),
            ("maximum", 0), ("time / limit", 0), ("time / COOL's", 0),
            ("on all links", 0), ("on uplinks", 0), ("busiest link", 0), ("idle", 0), ("ranks", 0), ("agents", 0), ("switches", 0))
# For fewer bytes, the start of the job and the granularity of ticks dominate the CPU seconds per
# MiB.
LEAST_FOR_PROCESSOR = 1 << 16


def page(report):
    """Returns the whole page as text."""
    net, libraries = report["network"], report["libraries"]
    measured = [n for n in libraries if any("median" in c["results"].get(n, {}) for c in report["cases"])]
    body = [
        "<h1>Collectives on one network, compared by library</h1>",
        "<p>%d nodes in %d racks (%s), host links %s, links between switches %s, emulated on one "
        "machine with %d CPUs. All "
        "libraries ran in the same hosts over the same links, one after the other within each "
        "case. A time is the time of the slowest "
        "rank, and every result was verified on every rank. The limit is the time that the busiest "
        "link needs at its full rate. A port "
        "forwards a burst of 16 KiB at once, so 64 KiB may take slightly less. Waiting ranks of "
        "Open MPI yield the CPU; those of MPICH %s.</p>"
        % (net["nodes"], net["racks"], text(net["topology"]), rate(net["host_mbit"]), rate(net["uplink_mbit"]), report["processors"],
           "poll their sockets, as they do by default" if report["busy_poll"] else "sleep until data arrives, because all hosts share these CPUs"),
        tiles(report),
        key(libraries, measured),
    ]
    for placement in unique(c["placement"] for c in report["cases"]):
        body += ["<h2>Time over the physical limit, ranks %s</h2>" % ("in rack order" if placement == "racked" else "interleaved over the racks"),
                 "<p>Medians on a logarithmic scale. 1 is the physical limit of the links; lower "
                 "is better.</p>", "<div class=charts>"]
        placement_cases = [c for c in report["cases"] if c["placement"] == placement]
        body += ["<section><h3>%s</h3>%s</section>" % (op, chart([c for c in placement_cases if c["op"] == op], measured)) for op in unique(c["op"] for c in placement_cases)]
        body.append("</div>")
    body += small_messages(report["cases"], measured)
    body += [
        "<h2>All figures</h2>",
        "<p>Bytes include frame headers and are per repetition; the two directions of a link count "
        "separately. Idle is the idle share of this "
        "machine's CPUs; where it is near zero, the CPUs limited the time, not the network. Ranks, "
        "agents, and switches are "
        "the CPU time, user and system, that they used per MiB that must arrive at all nodes "
        "together (all receivers' bytes of a bcast, "
        "all vectors except the root's of a reduce, and both of an allreduce), without the time to "
        "start COOL's ranks.</p>",
        table(report), skipped_libraries(libraries),
        "<footer>%s. report.json contains the same figures.</footer>" % text(report["date"]),
    ]
    return ('<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Benchmark</title>'
            "<style>%s</style><main>%s</main></html>\n" % (STYLE, "\n".join(body)))


def tiles(report):
    """Returns the tiles with the most important figures."""
    entries = [("%.2f ×" % mean, "as fast as %s from 64 KiB on, geometric mean" % text(report["libraries"][name]["title"]))
             for name, mean in report["geometric_means"].items()]
    cool_ratios = [c["results"]["cool"]["over_limit"] for c in report["cases"] if c["asked"] >= 1 << 20 and c["results"]["cool"].get("over_limit")]
    if cool_ratios:
        entries.append(("%.2f ×" % max(cool_ratios), "the limit at most, COOL from 1 MiB on"))
    failures = sum("failed" in r for c in report["cases"] for r in c["results"].values())
    entries += [(str(len(report["cases"])), "cases"), (str(failures), "failed measurements")]
    return "<div class=tiles>%s</div>" % "".join("<div class=tile><b>%s</b><span>%s</span></div>" % f for f in entries)


def key(libraries, measured):
    items = ["<span><i style='background:%s'></i>%s %s</span>"
             % (COLORS[n], text(libraries[n]["title"]),
                text(libraries[n]["version"])) for n in measured]
    return "<p class=key style='margin-top:24px'>%s</p>" % "".join(items)


def chart(cases, measured):
    """Returns a chart with groups of bars by size, one bar per library, on a logarithmic scale that
    begins at the limit."""
    cases = [c for c in cases if any(r.get("over_limit") for r in c["results"].values())]
    if not cases:
        return "<p>The links are not shaped, so there is no limit.</p>"
    most = max(r["over_limit"] for c in cases for r in c["results"].values() if r.get("over_limit"))
    decades = math.log10(max(most, 2) * 1.25)
    y = lambda value: TOP + HEIGHT * (1 - math.log10(max(value, 1)) / decades)
    ticks = [(tick, "%g ×" % tick) for tick in (t * 10 ** d for d in range(6) for t in (1, 2, 5)) if math.log10(tick) <= decades]
    return bars(cases, measured, ticks, y, lambda c: size(c["asked"]), lambda r: r.get("over_limit"))


def bars(cases, measured, ticks, y, name_of, value_of):
    """Returns an SVG chart with one group of bars per case, and the value above each bar."""
    parts = ["<svg viewBox='0 0 %d %d' role=img>" % (LEFT + WIDTH, TOP + HEIGHT + 26)]
    for number, (tick, label) in enumerate(ticks):
        parts.append("<path d='M%d %.1fH%d' stroke='%s'/><text x='%d' y='%.1f' text-anchor='end'>%s</text>"
                     % (LEFT, y(tick), LEFT + WIDTH, "#e6ebef" if number else "#8a97a3", LEFT - 6, y(tick) + 4, label))
    group = WIDTH / len(cases)
    bar = min(38.0, group * 0.88 / max(1, len(measured)))
    for number, case in enumerate(cases):
        middle = LEFT + group * (number + 0.5)
        parts.append("<text x='%.1f' y='%d' text-anchor='middle'>%s</text>" % (middle, TOP + HEIGHT + 18, name_of(case)))
        for place, name in enumerate(measured):
            value = value_of(case["results"].get(name, {}))
            x = middle + bar * (place - len(measured) / 2)
            if value:
                at = min(y(value), TOP + HEIGHT - 1.5)
                parts.append("<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' rx='2' fill='%s'/><text class=value x='%.1f' y='%.1f' "
                             "text-anchor='middle'>%s</text>" % (x + 1, at, bar - 2, TOP + HEIGHT - at, COLORS[name], x + bar / 2, at - 4, short(value)))
    return "".join([*parts, "</svg>"])


def small_messages(cases, measured):
    """Returns the charts of absolute times for cases without a limit."""
    cases = [c for c in cases if not c["limit"]]
    parts = []
    for placement, asked in unique((c["placement"], c["asked"]) for c in cases):
        group = [c for c in cases if (c["placement"], c["asked"]) == (placement, asked)]
        parts.append("<section><h3>%s, %s</h3>%s</section>" % (size(asked), placement, time_chart(group, measured)))
    if not parts:
        return []
    return ["<h2>Time of small messages</h2>",
            "<p>Medians in milliseconds. There is no limit because the messages fit into the burst "
            "of a shaped port, "
            "or the links are not shaped. All ranks begin at one instant, except those of Gloo's "
            "own program, which begin when they leave a barrier, "
            "one after the other. A bcast or scatter of Gloo's root may therefore begin before its "
            "last rank is ready.</p>", "<div class=charts>", *parts, "</div>"]


def time_chart(cases, measured):
    """Returns a chart with groups of bars by operation, one bar per library, on a linear scale of
    milliseconds."""
    times = [1e3 * r["median"] for c in cases for r in c["results"].values() if "median" in r]
    if not times:
        return "<p>There are no measurements.</p>"
    step = 10 ** math.floor(math.log10(max(times)))
    step = step if max(times) / step > 3 else step / 2 if max(times) / step > 1.5 else step / 5
    ticks = [step * n for n in range(math.ceil(max(times) / step) + 1)]
    y = lambda value: TOP + HEIGHT * (1 - value / (ticks[-1] * 1.06))
    return bars(cases, measured, [(tick, "%g" % round(tick, 6)) for tick in ticks], y, lambda c: c["op"],
                lambda r: 1e3 * r["median"] if "median" in r else None)


def table(report):
    rows = []
    for case in report["cases"]:
        for number, (name, r) in enumerate(case["results"].items()):
            title_of_case = "%s %s" % (case["op"], size(case["asked"])) if number == 0 else ""
            cells = [("left", title_of_case), ("left", case["placement"] if number == 0 else ""), ("left", text(report["libraries"][name]["title"]))]
            if "median" in r:
                faster = case["times_faster"].get(name)
                cells += [("", v) for v in (
                    seconds(r["median"]), seconds(r["min"]), seconds(r["max"]), "%s ×" % short(r["over_limit"]) if r["over_limit"] else "-",
                    "%.2f ×" % faster if faster else "", amount(r["link_bytes"]), amount(r["uplink_bytes"]), amount(r["busiest_link_bytes"]),
                    "-" if r["idle"] is None else "%.0f %%" % (100 * r["idle"]), *processor_cells(case, r, name))]
                cells_html = "".join("<td class='%s'>%s</td>" % c for c in cells)
            else:
                reason = ("failed: " + r["failed"]) if "failed" in r else r["absent"]
                cells_html = "".join("<td class='%s'>%s</td>" % c for c in cells) + "<td colspan=12 class='reason%s'>%s</td>" % (
                    "" if "failed" in r else " absent", text(reason))
            rows.append("<tr class='%s %s'>%s</tr>" % ("first" if number == 0 else "", name, cells_html))
    heads = "".join("<th%s>%s</th>" % (" class=left" if is_left else "", title) for title, is_left in HEADINGS)
    return "<div class=wide><table><tr>%s</tr>%s</table></div>" % (heads, "".join(rows))


def processor_cells(case, figures, name):
    """Returns the cells with CPU milliseconds per MiB delivered. Libraries other than COOL have no
    agents."""
    if case["asked"] < LEAST_FOR_PROCESSOR:
        return ["-"] * 3
    cpu_seconds = figures["processor_seconds_per_mib"]
    return ["%.1f ms" % (1e3 * cpu_seconds[consumer]) if consumer != "agents" or name == "cool" else "" for consumer in ("ranks", "agents", "switches")]


def skipped_libraries(libraries):
    lines = ["<li>%s: %s</li>" % (text(library["title"]), text(library["absent"])) for library in libraries.values() if "absent" in library]
    return "<h2>Skipped libraries</h2><ul>%s</ul>" % "".join(lines) if lines else ""


def unique(items):
    return list(dict.fromkeys(items))


def text(value):
    return html.escape(str(value))


def short(value):
    return "%.2f" % value if value < 9.995 else "%.1f" % value if value < 100 else "%.0f" % value


def seconds(value):
    return "%.2f s" % value if value >= 1 else "%.1f ms" % (1e3 * value) if value >= 0.01 else "%.2f ms" % (1e3 * value)


def amount(value):
    return "%.1f MB" % (value / 1e6) if value >= 1e6 else "%.1f kB" % (value / 1e3)


def rate(mbit):
    return "%g Mbit/s" % mbit if mbit else "unshaped"


def size(count):
    """Returns a number of bytes as users write it, for example 64K or 1M."""
    for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if count >= unit and count % unit == 0:
            return "%d%s" % (count // unit, letter)
    return str(count)
