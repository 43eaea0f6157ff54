"""Formats the results of torch_train.py for docs/measurements/torch.md."""

import section

TITLES = {"ddp": "DDP step", "fsdp2": "FSDP2 step", "zero1": "ZeRO-1 step"}


def result_text(result):
    """Returns the steps of one backend as text for the progress line."""
    if "failed" in result:
        return "failed: " + result["failed"]
    more = ", optimizer %.3f s" % result["optimizer"] if "optimizer" in result else ""
    return "%.3f s%s, busiest link %.2f MB" % (result["median"], more, result["busiest_link_bytes"] / 1e6)


def rows(report, case):
    """Yields the rows of a case: the measurement, its limit in seconds, the seconds by backend, and
    the bytes divided by the least bytes by backend."""
    successful = {b: r for b, r in case["results"].items() if "failed" not in r and b != "cool again"}
    seconds = lambda size: 8e-6 * size / report["host_mbit"]
    yield (TITLES[case["strategy"]], seconds(case["least_bytes"]), {b: r["median"] for b, r in successful.items()},
           {b: r["busiest_link_bytes"] / case["least_bytes"] for b, r in successful.items()})
    if case["strategy"] == "zero1":
        yield "ZeRO-1's parameters", seconds(report["weights"]), {b: r["optimizer"] for b, r in successful.items()}, {}


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
    complete = [runs for runs in both if all("hash" in run for run in runs)]
    equal = [runs for runs in complete if runs[0]["hash"] == runs[1]["hash"] and all(run["hashes_equal"] for run in runs)]
    return "After these steps, the weights of all ranks and of a second run are equal bit by bit in %d of %d cases with cool." % (
        len(equal), len(complete))


def training_table(report):
    lines = ["| strategy | steps | accuracy, cool | accuracy, gloo | weights of two runs with cool "
             "| weights of all ranks |",
             "| --- | --: | --: | --: | --- | --- |"]
    for strategy, results in report["training"].items():
        successful = {name: result for name, result in results.items() if "failed" not in result}
        accuracy = {name: 100 * result["accuracy"] for name, result in successful.items()}
        hashes = [successful[name]["hash"] for name in ("cool", "cool again") if name in successful]
        comparison = "-" if len(hashes) < 2 else "equal" if hashes[0] == hashes[1] else "differ"
        all_ranks = "equal" if successful and all(result["hashes_equal"] for result in successful.values()) else "differ"
        steps = max((result["steps"] for result in successful.values()), default="-")
        lines.append("| %s | %s | %s | %s | %s | %s |" % (
            strategy, steps, cell(accuracy, "cool", "%.2f %%"), cell(accuracy, "gloo", "%.2f %%"), comparison, all_ranks))
    return lines


def killed_lines(report):
    for backend, result in report["killed"].items():
        if "failed" in result:
            yield "- A rank killed in a step, %s: failed: %s." % (backend, result["failed"])
            continue
        yield "- A rank killed in a step, %s: the first survivor gets an error after %.2f s, the last after %.2f s; the error names the rank at %d of %d survivors. `%s`" % (
            backend, result["told"][0], result["told"][-1], result["named"], result["survivors"],
            result["message"].split(". ")[0])
        if "went_on" in result:
            yield "- `dist.shrink_group` after that: all survivors have completed their next step %.2f s after the kill." % result["went_on"]


def adapter_lines(report):
    for count, result in report["adapter"].items():
        if "failed" in result:
            yield "- %s ranks of one host: failed: %s." % (count, result["failed"])
            continue
        yield ("- An allreduce of %s ranks of one host: 8 bytes take %.3f ms through torch and "
               "%.3f ms with `comm.allreduce`; 64 MiB in "
               "memory of the backend take %.1f ms and %.1f ms." % (count, *(1e3 * result[name] for name in ("small", "own_small", "large", "own_large"))))


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
    results = [result for case in report.get("steps", ()) for name, result in case["results"].items() if name != "gloo"]
    results += [report.get("killed", {}).get("cool", {}), *report.get("adapter", {}).values()]
    results += [result for by_name in report.get("training", {}).values() for name, result in by_name.items() if name != "gloo"]
    return any("failed" in result for result in results)


def write(report):
    section.replace("torch.md", "torch", section_text(report))
