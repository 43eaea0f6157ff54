"""The report of the demonstration: one self-contained HTML file, drawn from the figures alone."""
import base64
import html
import math

TORRENT = "BitTorrent"
HOW_TO_ADD_TORRENT = "apt-get install python3-libtorrent, then make demo again"

STYLE = """
:root { --ink: #18222d; --quiet: #66737f; --line: #dfe5ea; --faint: #f4f7f9; --tree: #e8590c; --compute: #3b7dd8; --talk: #f2a33a; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 48px 0 4px; }
p { margin: 4px 0 16px; color: var(--quiet); max-width: 76ch; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 24px 0 0; }
.figure { background: var(--faint); border-radius: 10px; padding: 14px 16px; }
.figure b { display: block; font-size: 25px; line-height: 1.2; font-variant-numeric: tabular-nums; }
.figure span { color: var(--quiet); font-size: 13.5px; }
.below { margin-bottom: 20px; }
.thirds { display: grid; grid-template-columns: repeat(auto-fit, minmax(310px, 1fr)); gap: 24px; }
h3 { font-size: 16px; margin: 8px 0 0; } h3 + p { font-size: 13.5px; margin: 0 0 8px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 24px; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--quiet); paint-order: stroke; stroke: var(--halo, none); stroke-width: 4px; }
img { max-width: 100%; display: block; border-radius: 6px; }
.key { font-size: 13.5px; color: var(--quiet); } .key i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin: 0 6px -1px 14px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 600; color: var(--quiet); border-bottom: 2px solid var(--line); padding: 6px 10px; white-space: nowrap; }
td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td.bar { width: 34%; } td.bar div { height: 10px; background: var(--tree); border-radius: 5px; }
footer { margin-top: 48px; color: var(--quiet); font-size: 13px; border-top: 1px solid var(--line); padding-top: 12px; }
"""


def page(summary, topology, description, mosaic):
    """Returns the whole page as text. `topology` is the output of `cool topology --json`,
    `description` that of `Network.describe`, and `mosaic` the bytes of a PNG image."""
    b = summary["broadcast"]
    racks = {n["rack"] for n in topology["nodes"]}
    rates = {"%g" % link["mbit"] if link["mbit"] else "unlimited" for link in description["links"]}
    body = [
        "<h1>Visual words of photographs, clustered over a programmable network</h1>",
        "<p>%s patches of photographs, each a histogram of oriented gradients of %d numbers, were grouped into %d clusters by "
        "%d emulated nodes in %d racks. Every iteration, the sums of each cluster's points met at the node that owns its centroid, and the "
        "centroids that moved went to all nodes, over multicast trees that the controller had installed in the OpenFlow switches.</p>"
        % (number(summary["points"]), summary["dims"], summary["k"], len(topology["nodes"]), len(racks)),
        figures([
            (number(summary["points"]), "vectors of %d numbers" % summary["dims"]),
            (number(summary["k"]), "clusters, %d iterations" % summary["iterations"]),
            ("%d / %d" % (len(topology["nodes"]), len(racks)), "nodes / racks, links of %s Mbit/s" % " or ".join(sorted(rates))),
            (seconds(summary["seconds"]["computing"]), "computing"),
            (seconds(summary["seconds"]["communicating"]), "communicating or waiting"),
            ("%.3f ×" % b["most"], "the message, at most, on any link in a broadcast"),
        ]),
        "<div class=pair><section><h2>Inertia</h2><p>Sum of squared distances from the nearest centroid, by iteration.</p>",
        curve(summary["inertia"]),
        "</section><section><h2>Time</h2><p>Seconds of each iteration, as rank 0 saw them.</p>",
        bars(summary["seconds_computing"], summary["seconds_communicating"]),
        '<div class=key><i style="background:var(--compute)"></i>computing<i style="background:var(--talk)"></i>communicating, '
        "waiting for slower ranks included</div></section></div>",
        "<div class=pair><section><h2>Distances measured</h2><p>Share of all distances from points to centroids that each iteration measured, as in "
        "Figure 9 of the paper on clustering social images. Bounds on the others prove that they are no nearer. The scale is logarithmic.</p>",
        curve([100 * share for share in summary["distances"]], decades=True, unit=" %"),
        "</section><section><h2>Busiest link</h2><p>Bytes that the busiest link of a node or rack had to carry in one direction, as the program counts them: "
        "sums and centroids, of centroids that have not moved nothing. In KiB.</p>",
        curve([n / 1024 for n in summary["busiest_link_bytes"]], floor=0),
        "</section></div>",
        "<h2>The network, and the path of a broadcast</h2>",
        "<p>As the controller found it by LLDP. Orange: the tree along which one broadcast of %s from %s was measured to travel, with "
        "the bytes on each link as a multiple of the message. %d chunks had to be repaired.</p>" % (
            size(b["bytes"]), html.escape(b["root"]), b["repairs"]),
        drawing(topology, b),
        *copied(summary["copies"]),
        "<h2>Visual words</h2>",
        "<p>Each row shows the patches nearest to one centroid, over clusters from large to small (left column first, from its top). What they "
        "have in common are edges and texture; color has no effect.</p>",
        '<img alt="Rows of similar patches" src="data:image/png;base64,%s">' % base64.b64encode(mosaic).decode(),
        "<h2>Bytes on every link</h2>",
        "<p>Of the same broadcast, headers and all. The minimum of a link that leads to a receiver is the message once.</p>",
        table(b),
        "<footer>%s broadcast and %s reduced as message sizes; %d chunks retransmitted during the clustering; %d ranks; seed %d.</footer>" % (
            size(summary["bytes_broadcast"]), size(summary["bytes_reduced"]), summary["repairs"], summary["ranks"], summary["seed"]),
    ]
    return ("<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>COOL: visual words over a programmable network</title>"
            '<meta name=viewport content="width=device-width"><style>%s</style></head>\n<body><main>\n%s\n</main></body></html>\n'
            % (STYLE, "\n".join(body)))


def number(n):
    return "{:,}".format(n).replace(",", "\u202f")


def seconds(s):
    return "%.1f s" % s


def size(n):
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= scale:
            return "%.3g %s" % (n / scale, unit)
    return "%d bytes" % n


def figures(entries):
    cell = '<div class=figure><b>%s</b><span>%s</span></div>'
    return "<div class=figures>%s</div>" % "".join(cell % e for e in entries)


# A chart is W x H, with margins for the labels.
W, H, LEFT, BOTTOM, TOP = 500, 250, 64, 34, 12


def steps(low, high):
    """Returns three to seven round numbers that span the values."""
    span = (high - low) or abs(high) or 1
    unit = 10 ** math.floor(math.log10(span))
    step = next(m * unit for m in (0.2, 0.5, 1, 2) if span / (m * unit) <= 6)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def powers(low, high):
    """Returns the powers of ten that span the values."""
    # A maximum slightly above a power of ten does not need the next power: an iteration whose
    # bounds fail measures a few more distances than one without bounds.
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high) - 0.05)
    return [10.0 ** n for n in range(first, max(last, first + 1) + 1)]


def label(value, step):
    return number(round(value)) if step >= 1 else "%.*f" % (max(0, -math.floor(math.log10(step))), value)


def frame(marks, count, decades=False, unit=""):
    """Returns the SVG elements of the grid behind a chart, a function from the index of a value to
    its x coordinate, and a function from a value to its y coordinate. If `decades` is true, the y
    axis is logarithmic."""
    def y(v):
        low, high, v = (math.log10(n) for n in (marks[0], marks[-1], v)) if decades else (marks[0], marks[-1], v)
        return TOP + (H - TOP - BOTTOM) * (1 - (v - low) / (high - low))

    def x(i):
        return LEFT + (W - LEFT - 8) * (i + 0.5) / count

    lines = []
    for m in marks:
        lines.append('<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="var(--line)"/>' % (LEFT, W - 4, y(m), y(m)))
        step = m if decades else marks[1] - marks[0]
        lines.append('<text x="%d" y="%.1f" text-anchor="end">%s%s</text>' % (LEFT - 8, y(m) + 4, label(m, step), unit))
    every = math.ceil(count / 15)
    for i in range(0, count, every):
        lines.append('<text x="%.1f" y="%d" text-anchor="middle">%d</text>' % (x(i), H - BOTTOM + 18, i + 1))
    return lines, x, y


def chart(lines):
    return '<svg viewBox="0 0 %d %d" role="img">%s</svg>' % (W, H, "".join(lines))


def curve(values, decades=False, floor=None, unit=""):
    """Returns a curve of a value by iteration. Its axis starts at `floor`, or at the minimum if
    that is lower."""
    low, high = min(values) if floor is None else min(floor, *values), max(values)
    marks = powers(max(low, 1e-6), max(high, 1e-5)) if decades else steps(low, high)
    lines, x, y = frame(marks, len(values), decades, unit)
    values = [max(v, marks[0]) for v in values]
    points = " ".join("%.1f,%.1f" % (x(i), y(v)) for i, v in enumerate(values))
    lines.append('<polyline points="%s" fill="none" stroke="var(--compute)" stroke-width="2.5" stroke-linejoin="round"/>' % points)
    for i, v in enumerate(values):
        lines.append('<circle cx="%.1f" cy="%.1f" r="4" fill="var(--compute)"><title>%d: %.8g</title></circle>' % (x(i), y(v), i + 1, v))
    return chart(lines)


def bars(lower, upper):
    lines, x, y = frame(steps(0, max(a + b for a, b in zip(lower, upper))), len(lower))
    width = min(34, 0.6 * (W - LEFT) / len(lower))
    for i, (a, b) in enumerate(zip(lower, upper)):
        for start, end, color in ((0, a, "--compute"), (a, a + b, "--talk")):
            lines.append('<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="var(%s)"><title>%.3f s</title></rect>' % (
                x(i) - width / 2, y(end), width, y(start) - y(end), color, end - start))
    return chart(lines)


def places(topology):
    """Returns the positions of nodes and switches (name -> (x, y)), a box (x, width, rack) for each
    rack, and the width that each node has."""
    racks = {}
    for node in topology["nodes"]:
        racks.setdefault(node["rack"], []).append(node["name"])
    cell = 1000 / (len(topology["nodes"]) + 0.5 * len(racks))
    positions, boxes, x = {}, [], 0.0
    for rack in sorted(racks):
        x += 0.25 * cell
        boxes.append((x, cell * len(racks[rack]), rack))
        for name in sorted(racks[rack], key=lambda n: (len(n), n)):
            positions[name] = (x + cell / 2, 262)
            x += cell
        x += 0.25 * cell
    tors = {s["rack"]: s["name"] for s in topology["switches"] if s["rack"] is not None}
    for left, width, rack in boxes:
        positions[tors[rack]] = (left + width / 2, 160)
    above = [s["name"] for s in topology["switches"] if s["rack"] is None]
    for i, name in enumerate(above):
        positions[name] = (1000 * (i + 0.5) / len(above), 44)
    return positions, boxes, cell


def drawing(topology, broadcast):
    """Returns a drawing of the network with the measured tree."""
    positions, boxes, cell = places(topology)
    name = {s["datapath_id"]: s["name"] for s in topology["switches"]}
    ends = [(name[l["a"]], name[l["b"]]) for l in topology["links"]]
    ends += [(name[n["datapath_id"]], n["name"]) for n in topology["nodes"]]
    tree = {(r["from"], r["to"]): r["bytes"] / broadcast["bytes"] for r in broadcast["links"] if r["minimum"]}
    out = ['<defs><marker id="to" viewBox="0 0 10 10" refX="5" refY="5" markerWidth="4.2" markerHeight="4.2" orient="auto">'
           '<path d="M1 1 9 5 1 9z" fill="var(--tree)"/></marker></defs>']
    for left, width, rack in boxes:
        out.append('<rect x="%.1f" y="128" width="%.1f" height="182" rx="12" fill="var(--faint)"/>' % (left, width))
        out.append('<text x="%.1f" y="302" text-anchor="middle">rack %d</text>' % (left + width / 2, rack))
    labels = []
    for a, b in ends:
        a, b = (b, a) if (b, a) in tree else (a, b)
        (x1, y1), (x2, y2) = positions[a], positions[b]
        xm, ym = (x1 + x2) / 2, (y1 + y2) / 2
        style = 'stroke="var(--tree)" stroke-width="3" marker-mid="url(#to)"' if (a, b) in tree else 'stroke="#b9c3cc" stroke-width="1.5"'
        out.append('<polyline points="%.1f,%.1f %.1f,%.1f %.1f,%.1f" fill="none" %s/>' % (x1, y1, xm, ym, x2, y2, style))
        if (a, b) in tree:
            # The label is near the lower end of the line, where lines do not overlap.
            (xl, yl), (xu, yu) = ((x1, y1), (x2, y2)) if y1 > y2 else ((x2, y2), (x1, y1))
            side = 1 if xl >= xu else -1
            labels.append('<text x="%.1f" y="%.1f" text-anchor="%s" style="--halo:#fffc">%.2f</text>' % (
                xl + (xu - xl) * 0.3 + side * 6, yl + (yu - yl) * 0.3 + 4, "start" if side > 0 else "end", tree[a, b]))
    for node, (x, y) in positions.items():
        if node == broadcast["root"]:
            shape, ink = '<circle cx="%.1f" cy="%.1f" r="17" fill="var(--tree)"/>' % (x, y), "#fff"
        elif y > 200:
            shape, ink = '<circle cx="%.1f" cy="%.1f" r="17" fill="#fff" stroke="#8795a1" stroke-width="1.5"/>' % (x, y), "var(--ink)"
        else:
            shape, ink = '<rect x="%.1f" y="%.1f" width="52" height="28" rx="6" fill="var(--ink)"/>' % (x - 26, y - 14), "#fff"
        out.append(shape + '<text x="%.1f" y="%.1f" text-anchor="middle" style="fill:%s;font-weight:600">%s</text>' % (
            x, y + 4, ink, html.escape(node)))
    return '<svg viewBox="0 0 1000 316" role="img">%s</svg>' % "".join(out + labels)


def message_rows(links):
    """Returns one row for each link: the direction that the message took, if any."""
    directed_pairs = {frozenset((r["from"], r["to"])) for r in links if r["minimum"]}
    rows, seen = [], set()
    for r in links:
        ends = frozenset((r["from"], r["to"]))
        if r["minimum"] or ends not in directed_pairs | seen:
            rows.append(r)
        seen.add(ends)
    return rows


def table(broadcast):
    carried = {(r["from"], r["to"]): r["bytes"] for r in broadcast["links"]}
    most = max(carried.values())
    lines = ["<tr><th>link<th>bytes<th>minimum<th>times<th>bytes back<th></tr>"]
    for r in message_rows(broadcast["links"]):
        times = "%.3f" % (r["bytes"] / r["minimum"]) if r["minimum"] else "–"
        lines.append('<tr><td>%s → %s<td>%s<td>%s<td>%s<td>%s<td class=bar><div style="width:%.1f%%"></div></tr>' % (
            html.escape(r["from"]), html.escape(r["to"]), number(r["bytes"]), number(r["minimum"]), times,
            number(carried[r["to"], r["from"]]), 100 * r["bytes"] / most))
    return "<div class=wide><table>%s</table></div>" % "".join(lines)


HOW_COPIES_ARE_TIMED = (
    "A piece counts once it is complete and verified: 4 MiB in a broadcast, which sends it to all nodes at once, 2 MiB in a swarm, whose nodes send until all "
    "are complete, 256 KiB in BitTorrent. The time of <code>cool copy</code> starts with the command, and a copy is complete when its files have been read again "
    "and verified. The time of BitTorrent excludes the start of its programs, the hash of the file and the torrent.")
# The panels of copies are next to each other, so that their text is as large as that of charts.
PANEL, MARGIN, BELOW = 340, 56, 50
RACKS = ("#3b7dd8", "#e8590c", "#2f9e44", "#9c36b5", "#f2a33a", "#1098ad")


def by_node(ways):
    """Returns, for copies, each node with its rack and its seconds by each method."""
    seconds = [{node["node"]: node["seconds"] for node in way["nodes"]} for way in ways]
    nodes = sorted(ways[0]["nodes"], key=lambda node: (node["rack"], len(node["node"]), node["node"]))
    return [(node["node"], node["rack"], [seconds_of_way[node["node"]] for seconds_of_way in seconds]) for node in nodes]


def copied(copies):
    """Returns the section about copies of a file to all nodes."""
    ways, mib = copies["ways"], copies["bytes"] / 2**20
    yield "<h2>A file on %d nodes</h2>" % len(ways[0]["nodes"])
    limit = ", all that a link of %g Mbit/s carries: the file in %.2f s" % (copies["mbit"], copies["limit"]) if copies["limit"] else ""
    yield "<p>The program <code>%s</code>, %.1f MiB, from %s to the %d others: what each of them had of it over time. %s%s</p>" % (
        html.escape(copies["file"]), mib, html.escape(copies["from"]), len(ways[0]["nodes"]),
        "Nothing can be faster than the dashed line%s. " % limit if limit else "", HOW_COPIES_ARE_TIMED)
    if all(way["name"] != TORRENT for way in ways):
        yield "<p>To add BitTorrent: %s.</p>" % HOW_TO_ADD_TORRENT
    yield "<div class=thirds>"
    marks = steps(0, max(way["seconds"] for way in ways)), steps(0, mib)
    for way in ways:
        over = "%.2f × the limit; " % way["over_limit"] if way["over_limit"] else ""
        yield "<section><h3>%s: %s</h3><p>%sbusiest uplink: %.2f × the file</p>" % (html.escape(way["name"]), seconds(way["seconds"]), over, way["most"])
        yield panel(way, copies, *marks) + "</section>"
    racks = sorted({node["rack"] for node in ways[0]["nodes"]})
    keys = "".join('<i style="background:%s"></i>rack %d' % (RACKS[rack % len(RACKS)], rack) for rack in racks)
    dashed = "; dashed: the limit" if copies["limit"] else ""
    yield '</div><div class="key below">One line per node, colors:%s. A dot marks the completion of its copy%s.</div>' % (keys, dashed)
    yield copies_table(copies)


def panel(way, copies, times, amounts):
    """Returns a panel with each node's progress over time. All panels share the marks `times` and
    `amounts` (MiB)."""
    x = lambda s: MARGIN + (PANEL - MARGIN - 12) * s / times[-1]
    y = lambda n: TOP + (H - TOP - BELOW) * (1 - n / 2**20 / amounts[-1])
    text = '<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>'
    lines = []
    for mark in amounts:
        at = y(mark * 2**20)
        lines.append('<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="var(--line)"/>' % (MARGIN, PANEL - 8, at, at))
        lines.append(text % (MARGIN - 8, at + 4, "end", label(mark, amounts[1]) + " MiB"))
    lines += [text % (x(mark), H - BELOW + 18, "middle", label(mark, times[1])) for mark in times]
    lines.append(text % ((MARGIN + PANEL) / 2, H - BELOW + 38, "middle", "seconds"))
    if copies["limit"]:
        lines.append('<path d="M%.1f %.1f L%.1f %.1f" stroke="var(--ink)" stroke-dasharray="5 4"/>' % (x(0), y(0), x(copies["limit"]), y(copies["bytes"])))
    for node in way["nodes"]:
        lines.append(node_curve(node, copies["bytes"], x, y))
    return '<svg viewBox="0 0 %d %d" role="img">%s</svg>' % (PANEL, H, "".join(lines))


def node_curve(node, whole, x, y):
    """Returns a node's progress as steps, because it is unknown between two pieces."""
    color, end = RACKS[node["rack"] % len(RACKS)], node["seconds"]
    path = "M%.1f %.1f" % (x(0), y(0)) + "".join("H%.1f V%.1f" % (x(s), y(present)) for s, present in node["progress"])
    return ('<g stroke="%s"><title>%s: %.2f s</title><path d="%s" fill="none" stroke-width="1.6" stroke-opacity="0.75"/>'
            '<circle cx="%.1f" cy="%.1f" r="3" fill="%s" stroke="none"/></g>' % (
                color, html.escape(node["node"]), end, path, x(end), y(whole), color))


def copies_table(copies):
    ways = copies["ways"]
    lines = ["<tr><th>node<th>rack%s</tr>" % "".join("<th>%s, s" % html.escape(way["name"]) for way in ways)]
    for node, rack, of_ways in by_node(ways):
        lines.append("<tr><td>%s<td>%d%s</tr>" % (html.escape(node), rack, "".join("<td>%.2f" % s for s in of_ways)))
    lines.append("<tr><td>all<td>%s</tr>" % "".join("<td><b>%.2f</b>" % way["seconds"] for way in ways))
    return "<div class=wide><table>%s</table></div>" % "".join(lines)
