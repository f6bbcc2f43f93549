"""Prints rows of the GPU kit (rows.jsonl) as Markdown: what failed, steps beside PyTorch's, ceilings, time by kernel.

Steps are medians over rounds.  Ratios are PyTorch's time over ours in the same round: above 1, we are faster; the range
is over rounds, and the peer is the fastest configuration of PyTorch.  --expect adds the column of what was expected,
from a file of {case: milliseconds}.

usage: report.py ROWS [--expect FILE]
"""
import argparse
import json
import math
import pathlib
import re
import statistics

OURS = ["ours", "tuned"]  # tuned: with --tune


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
    """A sentence: the fastest configuration of PyTorch over ours, in rounds that have both."""
    peers = {w: statistics.median(r["step_ms"] for r in rs.values()) for w, rs in found.items() if w not in OURS}
    if "ours" not in found or not peers:
        return "There is no ratio: ours or PyTorch's steps are missing."
    best = min(peers, key=peers.get)
    text = []
    for who in OURS:
        ratios = [found[best][r]["step_ms"] / row["step_ms"] for r, row in found.get(who, {}).items() if r in found[best]]
        if ratios:
            text.append(f"PyTorch {best} over {who}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
                        f"{max(ratios):.2f}).")
    return " ".join(text) or f"There is no ratio: no round has both ours and {best}."


def products(row):
    """Of each product of a tuned step: the rate of what the library proposes first, and of the quickest."""
    body = []
    for p in row["products"]:
        size = re.search(r"(\d+) x (\d+) x (\d+)", p["product"])
        # One launch covers the largest batch dim.
        batch = max((int(n) for n in re.findall(r"batch (\d+)", p["product"])), default=1)
        work = 2e-6 * batch * math.prod(int(n) for n in size.groups())  # per microsecond: TFLOP/s
        body.append([p["product"], f"{p['us'][0]:.1f}", f"{min(p['us']):.1f}", f"{work / p['us'][0]:.0f}",
                     f"{work / min(p['us']):.0f}", str(len(p["us"]))])
    head = ["product", "us of the first", "us of the quickest", "TFLOP/s of the first",
            "TFLOP/s of the quickest", "proposals"]
    return ["", f"## Products of {row['case']}", "", *table(head, body)]


def steps(rows, case, expected):
    found = rounds(rows, case)
    body = []
    for who, rs in found.items():
        some = next(iter(rs.values()))
        allocated = f"{some['allocated'] / 1e9:.2f}" if some["allocated"] else "-"
        body.append([who, f"{statistics.median(r['step_ms'] for r in rs.values()):.2f}",
                     f"{expected[case]:.2f}" if who == "ours" and case in expected else "-",
                     f"{statistics.median(r['per_second'] for r in rs.values()):,.0f}", allocated, str(len(rs))])
    head = ["who", "ms a step", "expected", "a second", "GB", "rounds"]
    return ["", f"## {case}", "", *table(head, body), "", ratio(found)]


def kernels(row):
    body = [[f"`{k['kernel']}`", f"{k['ms_per_step']:.3f}", f"{k['launches_per_step']:.1f}", f"{k['percent']:.1f}"]
            for k in row["kernels"]]
    return ["", f"## Kernels of {row['case']}", "", *table(["kernel", "ms a step", "launches a step", "%"], body)]


def report(rows, expected):
    facts = rows[0]["machine"]
    gpu = facts["gpus"][0]["name"] if facts["gpus"] else f"no GPU ({facts['arch']})"
    text = [f"# Steps on {gpu}", "", f"{facts['time']}; {json.dumps(facts['gpus'])}", "", *checks(rows)]
    for r in rows:
        if "ceilings" in r:
            text += ["", *table(["ceiling", "measured"], [[k, f"{v:,.0f}"] for k, v in r["ceilings"].items()])]
    for case in dict.fromkeys(r["case"] for r in rows if "step_ms" in r):
        text += steps(rows, case, expected)
    for r in {r["case"]: r for r in rows if "products" in r}.values():
        text += products(r)
    for r in rows:
        if "kernels" in r:
            text += kernels(r)
    return "\n".join(text)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("rows", type=pathlib.Path)
    p.add_argument("--expect", type=pathlib.Path, help="a JSON object of milliseconds by case")
    args = p.parse_args()
    rows = [json.loads(line) for line in args.rows.read_text().splitlines()]
    print(report(rows, json.loads(args.expect.read_text()) if args.expect else {}))


if __name__ == "__main__":
    main()
