#!/usr/bin/env python3
"""Checks a trace that a binary has written.

usage: tests/e2e/trace.py TRACE.json WORLD RANK FIRST:LAST LOG.jsonl|- PROGRAM=PLAN.ir...
       FIRST:LAST  the steps that it must have, and no others
       PROGRAM     step, first, middle, last or eval, with the text of its module at PLAN
Every op that has code is there once each time its program runs, in the order of the plan, with its section; collectives lie
within the steps on their streams; the slices of computing leave no time of a step out.  Ops have their time on a core as
well if ranks take turns on cores, and not otherwise."""
import collections
import json
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def silent():
    """Kinds of ops without code: those whose rule of ir/ops.def writes none; events, which only GPUs have; and what is
    written by those who make its operands."""
    text = re.sub(r'"(\\.|[^"\\])*"', lambda m: m.group(0).replace(",", ";"), (ROOT / "ir/ops.def").read_text())
    rows = [re.split(r"\s*,\s*", row) for row in re.findall(r"^OP\((.*?)\)$", text, re.M | re.S)]
    return {r[1].strip('"') for r in rows if r[12] in ("none", "record", "resident")} | {"collect"}


def ops_of(path):
    """The ops of each section: [kind, unit, ONNX node]; bodies of loops and fused ops are not counted."""
    section, depth, out = None, 0, collections.defaultdict(list)
    node = {number: json.loads(f'"{name}"') for number, name in
            re.findall(r'^    (\d+) = "((?:\\.|[^"\\])*)":', open(path).read(), re.M)}
    for line in open(path):
        text = re.sub(r'"(\\.|[^"\\])*"', '""', line.rstrip())
        if depth == 1:
            head = re.match(r"  (forward|backward|update|eval) \{$", text)
            section = head.group(1) if head else None
        elif depth == 2 and section and text.strip() not in ("}", ""):
            body = text.strip().split(" = ")[-1] if re.match(r"\s*%", text) and " = " in text else text.strip()
            unit = re.match(r"\S+ @(\S+)", body)
            out[section].append([body.split()[0], unit.group(1) if unit else "", ""])
        depth += text.count("{") - text.count("}")
        at = re.search(r" loc\((\d+)[^()]*\)$", text) if depth == 2 and section else None
        if at:  # of an op with a body it stands behind that
            out[section][-1][2] = node.get(at.group(1), "")
    return out


def check_program(program, plan, slices):
    sections = ops_of(plan)
    names = ["eval"] if program == "eval" else ["forward", "backward", "update"]
    ops = [(s, *op) for s in names for op in sections[s]]
    assert ops and slices, (program, len(ops), len(slices))
    order = [e["args"]["op"] for e in slices]
    first = sorted(set(order))
    assert order == first * (len(order) // len(first)), f"{program}: not each op once a run, in order"
    for e in slices:
        section, kind, unit, onnx = ops[e["args"]["op"]]
        words = e["name"].split()
        assert e["args"]["section"] == section and e["args"]["node"] == onnx, (e, onnx)
        assert kind in ("wait", "copied") and words[0] == "wait" or words[1 if words[0] in ("wait", "issue") else 0] == kind, (e, kind)
        assert not unit or e["args"]["unit"] == unit, e
    missing = {ops[i][1] for i in range(len(ops)) if i not in set(first)} - silent()
    assert not missing, f"{program}: no slices of {missing}"
    return len(order) // len(first)


def main(path, world, rank, steps, log, *plans):
    trace = json.load(open(path))
    other = trace["otherData"]
    first, last = map(int, steps.split(":"))
    wanted = set(range(first, last + 1))
    assert (other["kind"], other["world"], other["rank"]) == ("measured", int(world), int(rank)), other
    assert other["steps"] == len(wanted) and re.fullmatch("[0-9a-f]{16}", other["program"]), other
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert all(e["pid"] == int(rank) for e in trace["traceEvents"])
    rows = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    computing = [e for e in slices if e["tid"] == 0]
    assert {e["args"]["step"] for e in computing} == wanted, {e["args"]["step"] for e in computing}
    for tid in rows:  # slices of a row do not overlap
        end = 0
        for e in (e for e in slices if e["tid"] == tid):
            assert e["dur"] >= 0 and e["ts"] >= end - 0.01, (rows[tid], e, end)
            end = e["ts"] + e["dur"]
    runs = {}
    for p in plans:
        program, plan = p.split("=", 1)
        runs[program] = check_program(program, plan, [e for e in computing if e["args"].get("program") == program])
    said = {e["args"]["program"] for e in slices if "program" in e["args"]}
    assert said == set(runs), (said, runs)
    assert sum(n for p, n in runs.items() if p != "eval") % len(wanted) == 0, runs
    for e in slices:  # a collective has the number and name of the op that issued it, or of the wait for it
        if rows[e["tid"]] in ("gather", "reduce", "sync"):
            same = [x for x in computing if x["args"].get("seq") == e["args"]["seq"] and
                    x["args"]["program"] == e["args"]["program"]]
            assert same and all(x["name"].split(" ", 1)[1] == e["name"] for x in same), (e, same[:1])
            assert e["args"]["bytes"] >= 0, e
    if int(world) > 1:
        assert sum(e["args"]["bytes"] for e in slices if "bytes" in e["args"]), "nothing was received"
    ops = [e for e in computing if "op" in e["args"]]
    if int(world) * other["threads"] > len(os.sched_getaffinity(0)):
        assert all(e["tdur"] >= 0 for e in ops), [e for e in ops if "tdur" not in e][:1]
        assert 0 < sum(e["tdur"] for e in ops) <= 1.01 * sum(e["dur"] for e in ops)
    else:
        assert not any("tdur" in e for e in slices)
    if log != "-":
        took = {r["step"]: r["step_ms"] for r in map(json.loads, open(log)) if "step_ms" in r}
        for step in wanted:
            sum_ms = sum(e["dur"] for e in computing if e["args"]["step"] == step and e["name"] not in
                         ("evaluation", "checkpoint") and e["args"].get("program") != "eval") / 1e3
            assert sum_ms >= 0.97 * took[step], f"step {step}: slices have {sum_ms} ms of {took[step]}"


main(*sys.argv[1:])
