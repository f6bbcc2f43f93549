"""Prints rows of the GPU kit (rows.jsonl) as Markdown: what failed, steps beside PyTorch's, ceilings, classes, kernels.

Steps are medians over rounds.  Ratios are PyTorch's time over ours in the same round: above 1, we are faster; the range
is over rounds, and the peer is the fastest configuration of PyTorch.  What was expected is of an H200: by the plan, and
"at the ceilings" where every op is as fast as its products or its bytes allow (bench/gpu/expect.py).  Of kernels, the
share of the ceiling is the time that their products take at the best rate that was measured, or their bytes, whichever
is longer, over the time they took.  Of kernels alone, in series, the ceilings are those of the same run of the same
program.

usage: report.py ROWS..
"""
import argparse
import json
import math
import pathlib
import re
import statistics

PEERS = ["eager", "compile", "fsdp"]  # all others are our programs; tuned: with --tune


def is_row(r):
    """Whether it is of a call of `run`, or of a check."""
    if not isinstance(r, dict):
        return False
    m = r.get("machine")
    if isinstance(m, dict):
        return {"gpus", "arch", "time"} <= m.keys() and isinstance(r.get("budget"), float | int)
    return r.get("ok", "") in (True, False, None) and all(isinstance(r.get(key), str) for key in ("part", "test", "detail"))


def read(path):
    """Its rows, and how many lines are none: a killed run may leave one, as may a disk."""
    found = []
    for line in filter(str.strip, path.read_text(errors="replace").split("\n")):
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError):
            found.append(None)
    rows = [r for r in found if is_row(r)]
    return rows, len(found) - len(rows)


def latest(rows):
    """All rows but of a check that was run again: the last one that came to a verdict, else the last."""
    kept = {}
    for i, r in enumerate(rows):
        key = (r["part"], r["test"]) if "test" in r else i
        if r.get("ok") is not None or kept.get(key, r).get("ok") is None:
            kept[key] = r
    return list(kept.values())


def table(head, rows):
    return ["| " + " | ".join(r) + " |" for r in (head, ["---"] * len(head), *rows)]


def checks(rows):
    tests = [r for r in rows if "test" in r]
    count = {ok: sum(r["ok"] is ok for r in tests) for ok in (True, False, None)}
    text = [f"{count[True]} checks passed, {count[False]} failed, {count[None]} were not done or only report.", ""]
    other = [[r["part"], r["test"], "FAILED" if r["ok"] is False else "-", r["detail"].replace("|", "\\|").replace("\n", " ")]
             for r in tests if r["ok"] is not True]
    return text + (table(["part", "check", "", "what it said"], other) if other else [])


def rounds(rows, case):
    """{who: {round: row}} of steps that were measured."""
    found = {}
    for r in rows:
        if r.get("case") == case and "step_ms" in r:
            found.setdefault(r["who"], {})[r["test"].rsplit(" ", 1)[1]] = r
    return found


def ratio(found):
    """Sentences: the fastest configuration of PyTorch over each of ours, and ours over its other forms, in rounds that
    have both."""
    peers = {w: statistics.median(r["step_ms"] for r in rs.values()) for w, rs in found.items() if w in PEERS}
    if "ours" not in found or not peers:
        return "There is no ratio: ours or PyTorch's steps are missing."
    best, forms = min(peers, key=peers.get), [w for w in found if w not in PEERS]
    text = []
    for above, who in [*((best, w) for w in forms), *(("ours", w) for w in forms if w != "ours")]:
        ratios = [found[above][r]["step_ms"] / row["step_ms"] for r, row in found[who].items() if r in found[above]]
        if ratios:
            text.append(f"{'PyTorch ' * (above == best)}{above} over {who}: {statistics.median(ratios):.2f} "
                        f"({min(ratios):.2f} to {max(ratios):.2f}).")
    return " ".join(text) or f"There is no ratio: no round has both ours and {best}."


def products(row):
    """Of each product of a tuned step: the rate of what the library proposes first, and of the quickest; "-": it could
    not be run."""
    body = []
    for p in row["products"]:
        size = re.search(r"(\d+) x (\d+) x (\d+)", p["product"])
        # One launch covers the largest batch dim.
        batch = max((int(n) for n in re.findall(r"batch (\d+)", p["product"])), default=1)
        work = 2e-6 * batch * math.prod(int(n) for n in size.groups())  # per microsecond: TFLOP/s
        both = p["us"][0], min((us for us in p["us"] if us), default=None)
        body.append([p["product"], *(f"{us:.1f}" if us else "-" for us in both),
                     *(f"{work / us:.0f}" if us else "-" for us in both), str(len(p["us"]))])
    head = ["product", "us of the first", "us of the quickest", "TFLOP/s of the first",
            "TFLOP/s of the quickest", "proposals"]
    return ["", f"## Products of {row['case']}", "", *table(head, body)]


def steps(rows, case):
    found = rounds(rows, case)
    body = []
    for who, rs in found.items():
        some = next(iter(rs.values()))
        allocated = f"{some['allocated'] / 1e9:.2f}" if some["allocated"] else "-"
        body.append([who, f"{statistics.median(r['step_ms'] for r in rs.values()):.2f}",
                     f"{some['expected_ms']:.2f}" if "expected_ms" in some else "-",
                     f"{statistics.median(r['per_second'] for r in rs.values()):,.0f}", allocated, str(len(rs))])
    head = ["who", "ms a step", "expected", "a second", "GB", "rounds"]
    return ["", f"## {case}", "", *table(head, body), "", ratio(found)]


def compared(row):
    """Losses and norms of a tenth of the steps, and of the last one."""
    ours, peer, n = row["ours"], row["pytorch"], row["steps"]
    body = [[str(i + 1), *(f"{who[key][i]:.5g}" for key in ("loss", "grad_norm") for who in (ours, peer))]
            for i in sorted({*range(0, n, max(n // 10, 1)), n - 1})]
    return ["", f"## {row['compared']}: {n} steps from the same weights", "",
            *table(["step", "loss", "PyTorch's", "gradient norm", "PyTorch's"], body), "", row["detail"]]


def ceiling(rows, unit):
    """The best rate that anything reached alone; 0: none was measured."""
    return max((v for r in rows for k, v in r.get("ceilings", {}).items() if k.endswith(unit)), default=0)


def rates(ms, flops, moved, tops):
    """TFLOP/s, GB/s and the share of the ceiling, as texts."""
    if not ms:
        return ["-"] * 3
    best = [work / most for work, most in ((flops / 1e9, tops[0]), (moved / 1e6, tops[1])) if most]
    return [f"{flops / ms / 1e9:.0f}" if flops else "-", f"{moved / ms / 1e6:.0f}",
            f"{100 * max(best) / ms:.0f}" if len(best) == 2 else "-"]


def traced(row, tops):
    body = [[f"`{k['kernel'][:120]}`".replace("|", "\\|"), str(k["calls"]), f"{k['ms']:.3f}", f"{k['expected_ms']:.3f}",
             *rates(k["ms"], k["flops"], k["moved"], tops)] for k in row["traced"]]
    head = ["kernel", "calls", "ms a step", "expected", "TFLOP/s", "GB/s", "% of the ceiling"]
    return [*classes(row), "", f"## A step of {row['case']}, kernel by kernel", "", row["detail"], "",
            *table(head, body)]


def classes(row):
    """The table of bench/README.md, with what was measured beside it."""
    keys, sums = ("calls", "flops", "moved", "least_ms", "expected_ms", "ms"), {}
    for k in row["traced"]:
        sums[k["class"]] = [a + k[key] for a, key in zip(sums.get(k["class"], [0] * 6), keys)]
    rows = sorted(sums.items(), key=lambda s: -s[1][4])
    body = [[name, str(n), f"{flops / 1e12:.2f}", f"{moved / 1e9:.1f}", *(f"{ms:.2f}" for ms in times)]
            for name, (n, flops, moved, *times) in [*rows, ("step", [sum(c) for c in zip(*sums.values())])]]
    head = [row["case"], "ops", "TFLOP", "GB", "at the ceilings, ms", "by the plan, ms", "measured, ms"]
    return ["", f"## A step of {row['case']}, by class", "", *table(head, body)]


def calls_of(rows, case):
    """{kernel: milliseconds of a call in the traced step}."""
    return {k["kernel"]: k["ms"] / k["calls"] for r in rows if "traced" in r and r["case"] == case
            for k in r["traced"] if k["calls"]}


def timed(row, rows):
    """Those come first that take most of a step."""
    in_step, body = calls_of(rows, row["case"]), []
    for k in sorted(row["timed"], key=lambda k: -k["count"] * k["ms"]):
        body.append([f"`{k['kernel'][:120]}`".replace("|", "\\|"), k["node"].replace("|", "\\|"), str(k["count"]),
                     f"{k['ms']:.4f}", f"{k['least']:.4f} to {k['most']:.4f}",
                     f"{in_step[k['kernel']]:.4f}" if k["kernel"] in in_step else "-", f"{k['count'] * k['ms']:.3f}",
                     f"{k['rate']:,.0f} {k['unit']}" if k["ms"] else "-",
                     "-" if k["percent"] is None else f"{k['percent']:.0f}"])
    head = ["kernel", "first node", "in a step", "ms alone", "range", "ms in the step", "ms of all", "rate",
            "% of the ceiling"]
    return ["", f"## Kernels of {row['case']} alone, in series", "", row["detail"], "", *table(head, body)]


def alone(row):
    body = [[a["name"], f"{a['ms']:.3f}", f"{a['rate']:,.0f} {a['unit']}", str(len(a["us"]) or "-"),
             f"{min(a['us']) / 1e3:.3f}" if a["us"] else "-"] for a in row["alone"]]
    return ["", "## Alone", "", *table(["what", "ms", "rate", "proposals", "ms of the quickest"], body)]


def attention(row, rows):
    """PyTorch's back ends, and ours: that of the traced step, a call, and in series."""
    body = []
    for case, backends in row["attention"].items():
        for key, who in (("timed", "ours, alone"), ("traced", "ours, in a step")):
            for r in rows:
                if key in r and r["case"] == case:
                    took = {k["kernel"].split()[0]: k["ms"] / (k["calls"] if key == "traced" else 1) for k in r[key]}
                    body.append([case, who, *(f"{took[k]:.3f}" if k in took else "-"
                                              for k in ("attention", "attention_grad"))])
        for how, took in backends.items():
            body.append([case, how, *([took["refused"], "-"] if "refused" in took else
                                      [f"{took[k]:.3f}" for k in ("forward_ms", "backward_ms")])])
    return ["", "## Attention", "", *table(["case", "who", "ms forward", "ms backward"], body)]


def counters(row):
    body = [[f"`{k['kernel']}`", str(k["launches"]), f"{k['ms']:.3f}", rates(k["ms"], 0, k["bytes"], [0, 0])[1]]
            for k in row["counters"]]
    return ["", f"## One step of {row['case']} by ncu", "",
            *table(["kernel", "launches", "ms", "GB/s"], body)]


def memory(rows):
    body = [[r["memory"], *(f"{n / 2**30:.2f}" for n in (r["plan"], r["used"], r["used"] - r["plan"]))] for r in rows]
    return ["", "## Memory, GiB", "", *table(["case", "plan", "in use", "more"], body)] if body else []


def kernels(row):
    body = [[f"`{k['kernel']}`", f"{k['ms_per_step']:.3f}", f"{k['launches_per_step']:.1f}", f"{k['percent']:.1f}"]
            for k in row["kernels"]]
    return ["", f"## Kernels of {row['case']} by nsys", "", *table(["kernel", "ms a step", "launches a step", "%"], body)]


def calls(rows):
    """Of each call of `run` when, within what, and where it was."""
    facts = [(r["machine"], r["budget"]) for r in rows if "machine" in r]
    names = dict.fromkeys(m["gpus"][0]["name"] if m["gpus"] else f"no GPU ({m['arch']})" for m, _ in facts)
    return [f"# Steps on {', '.join(names)}", "",
            *(f"{m['time']}, {budget:g} s; {json.dumps(m['gpus'])}" for m, budget in facts), ""]


def report(rows):
    text = [*calls(rows), *checks(rows)]
    for r in rows:
        if "ceilings" in r:
            text += ["", *table(["ceiling", "measured"], [[k, f"{v:,.0f}"] for k, v in r["ceilings"].items()])]
    for r in rows:
        if "compared" in r:
            text += compared(r)
    for case in dict.fromkeys(r["case"] for r in rows if "step_ms" in r):
        text += steps(rows, case)
    for r in {r["case"]: r for r in rows if "products" in r}.values():
        text += products(r)
    text += memory([r for r in rows if "memory" in r])
    tops = [ceiling(rows, unit) for unit in ("TFLOP/s", "GB/s")]
    shown = {"alone": alone, "traced": lambda r: traced(r, tops), "timed": lambda r: timed(r, rows),
             "attention": lambda r: attention(r, rows),
             "counters": counters, "kernels": kernels}
    for key, show in shown.items():
        for r in rows:
            if key in r:
                text += show(r)
    return "\n".join(text)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("rows", type=pathlib.Path, nargs="+", help="of one machine, the oldest first")
    try:
        files = [read(path) for path in p.parse_args().rows]
    except OSError as e:
        p.error(f"{e.filename}: {e.strerror}")
    print(report(latest([r for rows, _ in files for r in rows])))
    if others := sum(n for _, n in files):
        print(f"\n{others} {'line is no row' if others == 1 else 'lines are no rows'}, and what "
              f"{'it' if others == 1 else 'they'} said is not here.")


if __name__ == "__main__":
    main()
