"""Formats the tables of copying.py. A column consists of its heading and a function that returns
the cell of a row. Each kind of measurement has its own section in docs/measurements/copies.md."""
import statistics

import copy_peers
import page


def torrent_title(piece):
    return "torrent, pieces of %s" % page.size(piece)


def has_faults(options):
    """Returns whether nodes are disturbed during copies."""
    return bool(options.kill or options.join or options.restart)


def section(options):
    """Returns the name of the section of the document that contains this table."""
    kinds = {"slow copies": options.slow, "killed nodes": options.kill, "nodes that join": options.join, "nodes that restart": options.restart,
             "lossy copies": options.loss, "copies of a change": options.delta, "copies and a broadcast": "bcast" in options.ways,
             "copies by multicast programs": any(way in ("udpcast", "uftp") for way in options.ways), "copies by other programs": any(way in copy_peers.PEERS for way in options.ways)}
    return next((name for name, chosen in kinds.items() if chosen), "copies")


def format_number(pattern, value):
    return "-" if value is None else pattern % value


def ratio(key):
    return lambda row: format_number("%.2f", row[key])


def time_and_count(key):
    """Returns a function for two cells: the median of the complete copies, and how many are
    complete."""
    return lambda row: "%s | %d of %d" % (format_number("%.2f", row[key]["over"]), row[key]["complete"], row[key]["of"])


SECONDS = ("seconds", lambda row: "%.1f" % statistics.median(row["seconds"]))
UPLINK = ("bytes on busiest uplink / file", ratio("uplink"))
IDLE = ("idle", lambda row: "%.0f %%" % (100 * row["idle"]))
UNDISTURBED = ("undisturbed, s", lambda row: "%.1f" % row["undisturbed"])


def figures(options):
    """Returns the columns with the figures of a way."""
    if options.kill:
        return [UNDISTURBED, ("%d receivers killed: time / undisturbed | complete" % options.kill,
                              time_and_count("receivers")),
                ("source killed: time / undisturbed | complete",
                 time_and_count("source")), ("copies with killed source", lambda row: "%d"
                                    % row["source"]["struck"])]
    if options.join or options.restart:
        return [UNDISTURBED, ("late nodes: time since their start / limit | complete",
                              time_and_count("late")), ("other nodes: time / undisturbed | complete",
                                               time_and_count("others")),
                ("bytes into a late node / file", ratio("into"))]
    if options.slow:
        return [SECONDS, ("fast hosts: time / limit", ratio("fast_over_limit")),
                ("slow hosts: time / limit", ratio("slow_over_limit")), UPLINK, IDLE]
    if options.delta:
        return [SECONDS, ("bytes broadcast / file", lambda row: format_number("%.4f", row["sent"])),
                ("bytes on source's link / file", lambda row: "%.4f" % row["source"]),
                ("bytes on busiest uplink / file", lambda row: "%.4f" % row["uplink"])]
    ratios = [("time / limit", ratio("over_limit"))]
    if options.loss:
        ratios.append(("time / limit at this loss", lambda row: "%.2f"
                     % (row["over_limit"] * (1 - row["loss"]))))
    if "bcast" in options.ways:
        ratios.append(("seconds within ranks", lambda row: format_number("%.1f", row["own"])))
    return [SECONDS, *ratios, UPLINK, IDLE]


class Table:
    """A Markdown table that grows by one line per measured way."""

    def __init__(self, options):
        self.labels = [("file", lambda row: page.size(row["bytes"])), ("uplinks", lambda row: "%g" % row["uplink_mbit"])]
        if options.loss:
            self.labels.append(("lost", lambda row: "%g %%" % (100 * row["loss"])))
        self.labels.append(("way", lambda row: row["way"]))
        self.figures = figures(options)
        self.width = sum(heading.count("|") + 1 for heading, _ in self.figures)
        headings = [heading for heading, _ in self.labels + self.figures]
        self.lines = ["| %s |" % " | ".join(headings), "| --- |%s --- |%s" % (" --: |" * (len(self.labels) - 2), " --: |" * self.width)]

    def add(self, row):
        """Adds a row, possibly of a way that failed, and returns its line."""
        cells = [cell(row) for _, cell in self.labels]
        if "failed" in row:
            cells += ["failed: %s" % " ".join(row["failed"].split()).replace("|", "/")] + [""] * (self.width - 1)
        else:
            cells += [cell(row) for _, cell in self.figures]
        self.lines.append("| %s |" % " | ".join(cells))
        return self.lines[-1]
