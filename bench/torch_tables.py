"""Formats the results of torch_train.py for docs/measurements/torch.md."""
import os

import section

DOCUMENT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "measurements", "torch.md")
TITLES = {"ddp": "DDP step", "fsdp2": "FSDP2 step", "zero1": "ZeRO-1 step"}


def words(result):
    """Returns the steps of one backend as text for the progress line."""
    if "failed" in result:
        return "failed: " + result["failed"]
    more = ", optimizer %.3f s" % result["optimizer"] if "optimizer" in result else ""
    return "%.3f s%s, busiest link %.2f MB" % (result["median"], more, result["busiest_link_bytes"] / 1e6)


def rows(report, case):
    """Yields the rows of a case: the measurement, its limit in seconds, the seconds by backend, and
    the bytes divided by the least bytes by backend."""
    good = {b: r for b, r in case["results"].items() if "failed" not in r and b != "cool again"}
    seconds = lambda size: 8e-6 * size / report["host_mbit"]
    yield (TITLES[case["strategy"]], seconds(case["least_bytes"]), {b: r["median"] for b, r in good.items()},
           {b: r["busiest_link_bytes"] / case["least_bytes"] for b, r in good.items()})
    if case["strategy"] == "zero1":
        yield "ZeRO-1's parameters", seconds(report["weights"]), {b: r["optimizer"] for b, r in good.items()}, {}


def cell(values, key, form):
    return form % values[key] if key in values else "-"


def steps_table(report):
    heads = ("placement", "measurement", "limit, s", "cool, s",
             "cool / larger of limit and computation", "gloo, s", "gloo / cool",
             "cool: bytes on busiest link / least", "gloo: bytes on busiest link / least")
    lines = ["| %s |" % " | ".join(heads), "| --- | --- |" + " --: |" * (len(heads) - 2)]
    for case in report["steps"]:
        for what, limit, seconds, carried in rows(report, case):
            least = max(limit, report["computing"]) if what.endswith("step") else limit
            over = "%.2f" % (seconds["cool"] / least) if "cool" in seconds else "-"
            ratio = "%.2f" % (seconds["gloo"] / seconds["cool"]) if len(seconds) == 2 else "-"
            cells = (case["placement"], what, "%.3f" % limit, cell(seconds, "cool", "%.3f"), over, cell(seconds, "gloo", "%.3f"), ratio,
                     cell(carried, "cool", "%.3f"), cell(carried, "gloo", "%.3f"))
            lines.append("| %s |" % " | ".join(cells))
    return lines


def repeated(report):
    """Returns a sentence that states in how many cases all ranks, and both runs with COOL, had
    equal weights after the measured steps."""
    both = [[case["results"].get(name, {}) for name in ("cool", "cool again")] for case in report["steps"]]
    known = [runs for runs in both if all("hash" in run for run in runs)]
    good = [runs for runs in known if runs[0]["hash"] == runs[1]["hash"] and all(run["hashes_equal"] for run in runs)]
    return "After these steps, the weights of all ranks and of a second run are equal bit by bit in %d of %d cases with cool." % (
        len(good), len(known))


def training_table(report):
    lines = ["| strategy | steps | accuracy, cool | accuracy, gloo | weights of two runs with cool "
             "| weights of all ranks |",
             "| --- | --: | --: | --: | --- | --- |"]
    for strategy, found in report["training"].items():
        good = {name: f for name, f in found.items() if "failed" not in f}
        accuracy = {name: 100 * f["accuracy"] for name, f in good.items()}
        two = [good[name]["hash"] for name in ("cool", "cool again") if name in good]
        same = "-" if len(two) < 2 else "equal" if two[0] == two[1] else "differ"
        all_ranks = "equal" if good and all(f["hashes_equal"] for f in good.values()) else "differ"
        steps = max((f["steps"] for f in good.values()), default="-")
        lines.append("| %s | %s | %s | %s | %s | %s |" % (
            strategy, steps, cell(accuracy, "cool", "%.2f %%"), cell(accuracy, "gloo", "%.2f %%"), same, all_ranks))
    return lines


def killed_lines(report):
    for backend, found in report["killed"].items():
        if "failed" in found:
            yield "- A rank killed in a step, %s: failed: %s." % (backend, found["failed"])
            continue
        yield "- A rank killed in a step, %s: the first survivor gets an error after %.2f s, the last after %.2f s; the error names the rank at %d of %d survivors. `%s`" % (
            backend, found["told"][0], found["told"][-1], found["named"], found["survivors"],
            found["message"].split(". ")[0])
        if "went_on" in found:
            yield "- `dist.shrink_group` after that: all survivors have completed their next step %.2f s after the kill." % found["went_on"]


def adapter_lines(report):
    for count, found in report["adapter"].items():
        if "failed" in found:
            yield "- %s ranks of one host: failed: %s." % (count, found["failed"])
            continue
        yield ("- An allreduce of %s ranks of one host: 8 bytes take %.3f ms through torch and "
               "%.3f ms with `comm.allreduce`; 64 MiB in "
               "memory of the backend take %.1f ms and %.1f ms." % (count, *(1e3 * found[name] for name in ("small", "own_small", "large", "own_large"))))


def section_text(report):
    lines = ["Measured %(date)s by `bench/torch_train.py --docs` on %(topology)s with links of %(host_mbit)g and %(uplink_mbit)g Mbit/s: torch %(torch)s, "
             "%(ranks)d ranks with %(batch)d pictures per step, %(processors)d CPUs for all hosts." % report]
    if "steps" in report:
        lines += ["Medians of %d steps; computation alone, on all ranks at once, takes %.3f s."
                  % (report["steps_measured"], report["computing"]), ""]
        lines += [*steps_table(report), "", repeated(report)]
    if "training" in report:
        lines += ["", "Training with %d ranks in different racks on unshaped links:"
                  % report["training_ranks"], "", *training_table(report)]
    more = [*(killed_lines(report) if "killed" in report else ()), *(adapter_lines(report) if "adapter" in report else ())]
    return "\n".join([*lines, "", *more])


def failed(report):
    """Returns whether a measurement of COOL failed. A failure of Gloo does not count."""
    found = [f for case in report.get("steps", ()) for name, f in case["results"].items() if name != "gloo"]
    found += [report.get("killed", {}).get("cool", {}), *report.get("adapter", {}).values()]
    found += [f for of in report.get("training", {}).values() for name, f in of.items() if name != "gloo"]
    return any("failed" in f for f in found)


def write(report):
    section.replace(DOCUMENT, "torch", section_text(report))
