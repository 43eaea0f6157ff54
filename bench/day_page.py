"""Renders the report of a day (bench/day.py) as one HTML file from the figures in day.json."""
import statistics

from page import STYLE, text

LEFT, WIDTH, LANE = 110, 1040, 26
COLORS = {"controllers": "#3b7dd8", "upgrade": "#7b61b8", "agents": "#7b61b8",
          "management": "#c77d0a", "links": "#d1495b", "certificates": "#3a7d44",
           "logs": "#6c8aa6", "hostile": "#18222d", "attacks": "#5b2333", "evening": "#3a7d44"}
JOB, WRONG = "#e8590c", "#b3261e"


def sentence(day):
    """Returns the outcome in one line."""
    jobs = day["jobs"]
    steps = sum(job.get("steps", 0) for job in jobs)
    longest = max((job.get("longest", 0) for job in jobs), default=0)
    return ("%g minutes: %d jobs, %d steps of checked calls, the longest %.1f s; %d events; violations: %d"
            % (day["minutes"], len(jobs), steps, longest, len(day["events"]), len(day["violations"])))


def page(day):
    body = [
        "<h1>A day in the life of a cluster</h1>",
        "<p>%s, %s%s, seed %d. %s. Every rank of every job checked every byte; a call that made no progress for %d s would have failed.</p>"
        % (text(day["date"]), text(day["topology"]),
           ", all programs upgraded during the day" if day["upgraded"] else "", day["seed"], text(sentence(day)), day["bound_s"]),
        "<h2>Timeline</h2>", "<div class=wide>%s</div>" % timeline(day),
        "<h2>Violations</h2>", violations(day), "<h2>Events</h2>", kinds(day), "<h2>Jobs</h2>", jobs(day),
        "<h2>Commands of the operator</h2>",
        table(("command", "count", "worst"), [(text("cool " + name), a["count"], "%.2f s"
                                               % a["worst_s"]) for name, a in sorted(day["answers"].items())]),
        "<h2>Resources, maximum over each kind of program</h2>", resources(day)]
    return ("<!doctype html>\n<html lang=en><meta charset=utf-8><title>A day in the life of a cluster</title><style>%s</style><main>%s</main></html>\n"
            % (STYLE, "\n".join(body)))


def timeline(day):
    """Returns an SVG timeline with one lane per user and per kind of event."""
    lanes = list(dict.fromkeys([job["user"] for job in sorted(day["jobs"], key=lambda job: job["user"])] + [event["kind"] for event in day["events"]]))
    end = max([60 * day["minutes"]] + [event["until"] for event in day["events"]] + [job["until"] for job in day["jobs"]])
    x = lambda at: LEFT + at / end * WIDTH
    height = LANE * len(lanes) + 40
    parts = ["<svg viewBox='0 0 %d %d' role=img style='min-width:900px'>" % (LEFT + WIDTH + 10, height)]
    for number, lane in enumerate(lanes):
        parts.append("<text x='%d' y='%d' text-anchor='end'>%s</text><path d='M%d %dH%d' stroke='#e6ebef'/>"
                     % (LEFT - 10, LANE * number + 18, text(lane), LEFT, LANE * (number + 1), LEFT + WIDTH))
    step = next((s for s in (10, 30, 60, 300, 600) if end / s <= 14), 1800)
    for at in range(0, int(end) + 1, step):
        parts.append("<path d='M%.1f 0V%d' stroke='#eef2f5'/><text x='%.1f' y='%d' text-anchor='middle'>%g min</text>"
                     % (x(at), LANE * len(lanes), x(at), height - 20, at / 60))
    for bar in day["jobs"] + day["events"]:
        lane = lanes.index(bar.get("user") or bar["kind"])
        color = WRONG if "failed" in bar else COLORS.get(bar.get("kind"), JOB)
        title = "%s %s" % (bar["what"], bar["about"]) if "what" in bar else "%s on %s" % (bar["user"], " ".join(bar["nodes"]))
        parts.append("<rect x='%.1f' y='%d' width='%.1f' height='%d' rx='2' fill='%s' fill-opacity='0.85'><title>%s (%.1f to %.1f s)%s</title></rect>"
                     % (x(bar["at"]), LANE * lane + 6, max(1.5, x(bar["until"]) - x(bar["at"]) - 1), LANE - 10,
                        color, text(title), bar["at"], bar["until"],
                        text(": " + bar["failed"]) if "failed" in bar else ""))
    return "".join([*parts, "</svg>"])


def violations(day):
    if not day["violations"]:
        return "<p>None.</p>"
    return "<ul>%s</ul>" % "".join("<li>%.1f s: %s</li>" % (v["at"], text(v["text"])) for v in day["violations"])


def kinds(day):
    """Returns a table of the events by kind: how often they occurred, and how long recovery
    took."""
    by_kind = {}
    for event in day["events"]:
        by_kind.setdefault((event["kind"], event["what"]), []).append(event)
    rows = []
    for (kind, what), events in sorted(by_kind.items()):
        durations = [event["until"] - event["at"] for event in events]
        failovers = [seconds for event in events for seconds in event.get("seconds", {}).values()]
        rows.append((text(kind), text(what), len(events), "%.1f s" % statistics.median(durations), "%.1f s" % max(durations),
                     "%.2f, %.2f s" % (statistics.median(failovers), max(failovers)) if failovers else ""))
    return table(("kind", "event", "count", "recovery, median", "recovery, worst",
                  "failover: median, worst"), rows)


def jobs(day):
    rows = []
    for user in sorted({job["user"] for job in day["jobs"]}):
        own_jobs = [job for job in day["jobs"] if job["user"] == user]
        succeeded = [job for job in own_jobs if "failed" not in job]
        rows.append((text(user), len(own_jobs), len(own_jobs) - len(succeeded), sum(job["steps"] for job in succeeded), "%.2f s" % max((job["longest"] for job in succeeded), default=0)))
    return table(("user", "jobs", "failed", "steps", "longest step"), rows)


def resources(day):
    rows = []
    for kind in sorted({kind for sample in day["samples"] for kind in sample["most"]}):
        samples = [sample["most"][kind] for sample in day["samples"] if kind in sample["most"]]
        quarter = max(1, len(samples) // 4)
        early, late = ([statistics.median(s[i] for s in part) for i in range(3)] for part in (samples[:quarter], samples[-quarter:]))
        rows.append((text(kind), "%.0f, %.0f MiB" % (early[0], late[0]), "%d, %d" % (early[1], late[1]), "%d, %d" % (early[2], late[2])))
    return table(("program", "memory, first and last quarter", "open files", "threads"), rows)


def table(headings, rows):
    """Returns an HTML table. Columns in which a cell begins with a digit are aligned to the right,
    all others to the left."""
    left = [not any(str(row[i])[:1].isdigit() for row in rows) for i in range(len(headings))]
    cells = lambda tag, row: "".join("<%s%s>%s</%s>" % (tag, " class=left" if left[i] else "", cell, tag) for i, cell in enumerate(row))
    lines = "".join("<tr>%s</tr>" % cells("td", row) for row in rows)
    return "<div class=wide><table><tr>%s</tr>%s</table></div>" % (cells("th", map(text, headings)), lines)
