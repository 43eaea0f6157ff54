"""Formats the figures of bench.py as sections of documents in docs/measurements."""
import statistics

import page
import section

# The documents that `bench.py --docs` can write to.
DOCUMENTS = ("benchmarks", "small-calls")


def heading(report):
    """Returns the first lines of a section: how the figures were measured."""
    network = report["network"]
    versions = ", ".join("%(title)s %(version)s" % report["libraries"][name] for name in peers_of(report))
    return ["Measured %s on %s, host links %s, links between switches %s, %d CPUs for all nodes and switches. Peers: %s. Medians in ms." % (
        report["date"], network["topology"], page.rate(network["host_mbit"]), page.rate(network["uplink_mbit"]), report["processors"], versions), ""]


def measured_libraries(report):
    """Returns the names of the libraries that were measured, COOL first."""
    return [name for name, library in report["libraries"].items() if "absent" not in library]


def peers_of(report):
    """Returns the measured libraries that COOL is compared with. Plain sockets are none, because
    they repair nothing."""
    return [name for name in measured_libraries(report) if name not in ("cool", "sockets")]


def best_ratio(case, names):
    """Returns the time of the fastest of these libraries divided by the time of COOL, or None."""
    return min((case["times_faster"][name] for name in names if name in case["times_faster"]), default=None)


def ratio_text(value):
    return "-" if value is None else "%.2f" % value


def mean(ratios):
    """Returns the geometric mean of ratios, and in how many cases COOL is slower."""
    ratios = [ratio for ratio in ratios if ratio is not None]
    if not ratios:
        return "-"
    return "%.2f (%d of %d)" % (statistics.geometric_mean(ratios), sum(ratio < 1 for ratio in ratios), len(ratios))


def means(report):
    """Returns the table of geometric means by length."""
    names = peers_of(report)
    columns = ["than %s" % report["libraries"][name]["title"] for name in names] + ["than the best of each case"]
    lines = ["How many times as fast COOL is, by the geometric mean; in parentheses the number of cases in which it is slower:", "",
             "| bytes | %s |" % " | ".join(columns), "| --- |" + " --: |" * len(columns)]
    for length in sorted({case["asked"] for case in report["cases"]}):
        cases = [case for case in report["cases"] if case["asked"] == length]
        cells = [mean([case["times_faster"].get(name) for case in cases]) for name in names]
        lines.append("| %s | %s |" % (page.size(length), " | ".join([*cells, mean([best_ratio(case, names) for case in cases])])))
    return lines


def milliseconds(figures):
    """Returns the cell of one library: its median, and the ratio to the limit if there is one."""
    if "median" not in figures:
        return "failed" if "failed" in figures else "-"
    return "%.2f" % (1e3 * figures["median"]) + (" (%.2f)" % figures["over_limit"] if figures["over_limit"] else "")


def by_case(report):
    """Returns the table with one row per operation, length and placement."""
    names = measured_libraries(report)
    titles = [report["libraries"][name]["title"] for name in names]
    columns = [*titles, "best peer / COOL", "busiest link, COOL", "idle, COOL"]
    lines = ["| operation | bytes | placement | %s |" % " | ".join(columns), "| --- | --- | --- |" + " --: |" * len(columns)]
    for case in report["cases"]:
        cool = case["results"]["cool"]
        idle = cool.get("idle")
        lines.append("| %s | %s | %s | %s |" % (case["op"], page.size(case["asked"]), case["placement"], " | ".join([
            *(milliseconds(case["results"][name]) for name in names), ratio_text(best_ratio(case, peers_of(report))),
            "{:,.0f}".format(cool["busiest_link_bytes"]) if "busiest_link_bytes" in cool else "-", "-" if idle is None else "%.0f %%" % (100 * idle)])))
    return lines


def by_placement(report):
    """Returns the table with one row per operation and length, and the columns of each
    placement."""
    names = measured_libraries(report)
    titles = [report["libraries"][name]["title"] for name in names]
    placements = list(dict.fromkeys(case["placement"] for case in report["cases"]))
    columns = [title for placement in placements for title in ["%s: %s" % (placement, titles[0]), *titles[1:], "best / COOL"]]
    rows = {}
    for case in report["cases"]:
        cells = rows.setdefault((case["op"], case["asked"]), [])
        cells += [*(milliseconds(case["results"][name]) for name in names), ratio_text(best_ratio(case, peers_of(report)))]
    lines = ["| operation | %s |" % " | ".join(columns), "| --- |" + " --: |" * len(columns)]
    return lines + ["| %s of %s | %s |" % (op, page.size(length), " | ".join(cells)) for (op, length), cells in rows.items()]


def write(report, document):
    """Writes the section of one of the DOCUMENTS."""
    table = by_case(report) if document == "benchmarks" else by_placement(report)
    text = "\n".join([*heading(report), *means(report), "", *table])
    section.replace(document + ".md", "bench/bench.py", text)
