#!/usr/bin/env python3
"""Says what each decision of the default schedule is worth: predicted plans with it, without it, and with more of it.

usage: tests/predict/defaults.py SHARDC MODELS MACHINES [--docs FILE.md [--write]]

The reference plans are Llama-3 8B on 8, 64 and 1,024 H100.  What no option undoes is undone in the schedule's file, or
by a policy file that makes the same units otherwise.  A second table has the default beside what --wrap=auto finds.

--docs compares the tables of the page with these, to the digits shown; --write writes them into it.  Rows of models
that MODELS lacks are left as the page has them, which is said.  Fails, too, if the default is not within SLOWER of the
fastest row that needs no more memory, since then another schedule ought to be the default.
"""
import argparse
import concurrent.futures
import dataclasses
import functools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

WORLDS = (8, 64, 1024)
REFERENCE = "llama3-8b"
SLOWER = 1e-3  # of a step
BLOCKS = r"^model\.model\.layers\.[0-9]+$"
# The units of --wrap=block with the last block as the root, which --reshard-root gathers again for backward.
LAST_AS_ROOT = {"units": [{"scope": r"^model\.model\.layers\.([0-9]|[12][0-9]|30)$"},
                          {"name": "embed", "scope": r"^model\.model\.embed_tokens$"},
                          {"name": "head", "scope": r"^model\.(model\.norm|lm_head)$"}]}
# Model, its name on the page, its loss, ranks.
SEARCHED = [("llama3-8b", "Llama-3 8B", "cross_entropy:shift=1", WORLDS),
            ("gpt2-xl", "GPT-2 XL", "cross_entropy:shift=1", (8, 64)),
            ("vit-g", "ViT-g", "cross_entropy", (8, 64)), ("resnet-152", "ResNet-152", "cross_entropy", (8, 64))]


# ---- schedule files ----

@dataclasses.dataclass
class Line:
    """A collective: its op, unit, stream, slot and bytes; the points where it is issued, waited for and released."""
    columns: list
    issue: str
    wait: str
    release: str

    def is_of(self, stream):
        return self.columns[2] == stream


def edited(text, edit):
    """The schedule with its lines of a step in another order or at other points, numbered again."""
    head, train, rest = re.fullmatch(r"(.*^\[train\]\n)(.*?)(^\[eval\]\n.*|\Z)", text, re.M | re.S).groups()
    lines = []
    for words in (line.split("#")[0].split() for line in train.splitlines()):
        if words:
            lines.append(Line(words[1:6], *words[6:]))
    lines = edit(lines)
    rows = [" ".join([str(i + 1), *line.columns, line.issue, line.wait, line.release]) for i, line in enumerate(lines)]
    return head + "\n".join(rows) + "\n\n" + rest


def in_order(lines):
    """Lines by their points of issue; of one point in the order of the list."""
    def key(line):
        section, at = line.issue.split("+")
        return ["forward", "backward", "update"].index(section), float("inf") if at == "end" else int(at)
    return sorted(lines, key=key)


def first_block_later(lines):
    """The first block's gather is issued where it is waited for, and not beside the gather of what precedes it."""
    second = [line for line in lines if line.is_of("gather")][1]
    second.issue = second.wait
    return in_order(lines)


def reduces_swapped(lines):
    """Of each two reduces that follow each other the second goes first; both are waited for as late as they were."""
    reduces = [line for line in lines if line.is_of("reduce")]
    for first, second in zip(reduces[0::2], reduces[1::2]):
        first.issue, first.wait = second.issue, second.wait
        at = lines.index(second)
        lines.remove(first)
        lines.insert(at, first)
    return in_order(lines)


def reduces_later(lines):
    """A reduce is issued with the next unit's gradients, and waited for one unit later than before."""
    reduces = [line for line in lines if line.is_of("reduce")]
    for line, later in zip(reduces, reduces[1:]):
        line.issue, line.wait = later.issue, later.wait
    return in_order(lines)


EDIT = "the [schedule file](#the-schedule-file)"
# What is changed, the option or what else changes it, both as the page has them; an edit or a policy file.
ROWS = [
    ("first gather: embedding, last norm and head are one unit, the root", f"--wrap=scope:{BLOCKS}", None),
    ("first gather: the first block's is issued where it is used", EDIT, first_block_later),
    ("the last block is gathered again for backward", "a policy file and `--reshard-root`", LAST_AS_ROOT),
    ("ahead in forward: no unit", "--forward-prefetch=0", None),
    ("ahead in forward: two units", "--forward-prefetch=2", None),
    ("ahead in backward: no unit", "--backward-prefetch=none --limit-reduces=1", None),
    ("ahead in backward: behind the reshard of the unit before", "--backward-prefetch=post", None),
    ("ahead in backward: two units", "--backward-prefetch=pre:2", None),
    ("reduces: each two in the other order", EDIT, reduces_swapped),
    ("reduces: issued one unit later", EDIT, reduces_later),
    ("reduces: waited for at once", "--limit-reduces=0", None),
    ("reduces: waited for two units later", "--limit-reduces=2", None),
    ("slots: taken in turn", "--limit-all-gathers=2", None),
    ("slots: three", "--limit-all-gathers=3", None),
    ("slots: none, memory of its own for each unit", "--limit-all-gathers=0", None),
]


# ---- plans ----

def run(args, model, loss, world, *options):
    machine = args.machines / f"h100-{world}.json"
    command = [args.shardc, "plan", args.models / f"{model}.onnx", f"--loss={loss}", "--param-dtype=bf16",
               "--target=cuda", f"--world={world}", f"--machine={machine}", *options, "--format=json"]
    got = subprocess.run(command, capture_output=True, text=True)
    if got.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{got.stderr}")
    return json.loads(got.stdout[got.stdout.index("{"):])


def numbers(plan):
    """Milliseconds of a step, and bytes of a rank."""
    return plan["prediction"]["step_ms"], plan["memory"]["total"]


def changed(args, row, world):
    """Numbers of a reference plan with one change."""
    _, how, change = row
    reference = functools.partial(run, args, REFERENCE, "cross_entropy:shift=1", world)
    if change is None:
        return numbers(reference(*how.split()))
    if isinstance(change, dict):
        return numbers(reference(f"--wrap=file:{json.dumps(change)}", "--reshard-root"))
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before", Path(folder) / "after"
        reference(f"--schedule-out={before}")
        after.write_text(edited(before.read_text(), change))
        return numbers(reference(f"--schedule-in={after}"))


def cell(got):
    return f"{got[0]:.1f} ms, {got[1] / 2**30:.1f} GiB"


def decisions(pool, args):
    """(lines of the table, sentences about what is faster than the default)"""
    rows = [("nothing", "", None), *ROWS]
    jobs = [(row, world) for row in rows for world in WORLDS]
    got = dict(zip([(row[0], world) for row, world in jobs], pool.map(lambda job: changed(args, *job), jobs)))
    lines = ["| changed | by | " + " | ".join(f"{world:,} x H100" for world in WORLDS) + " |",
             "| --- | --- |" + " --- |" * len(WORLDS)]
    misses = []
    for what, how, change in rows:
        by = f"`{how}`" if how and change is None else how
        lines.append(f"| {what} | {by} | " + " | ".join(cell(got[what, world]) for world in WORLDS) + " |")
        for world in WORLDS:
            (ms, total), (default, most) = got[what, world], got[rows[0][0], world]
            if total <= most and ms < default * (1 - SLOWER):
                misses.append(f"{world} ranks: {what}: {ms:.2f} ms, and the default takes {default:.2f}")
    return lines, misses


def search_lines(pool, args):
    """The second table: a line, or for a model that is not there how its lines begin."""
    rows = [(model, name, loss, world) for model, name, loss, worlds in SEARCHED for world in worlds]

    def line(row):
        model, name, loss, world = row
        begin = f"| {name} | {world:,} x H100 |"
        if not (args.models / f"{model}.onnx").exists():
            return begin, None
        default = run(args, model, loss, world)
        best = run(args, model, loss, world, "--strategy=full_shard", "--wrap=auto")
        options = " ".join(best["search"]["options"])
        return begin, f"{begin} {cell(numbers(default))} | {cell(numbers(best))} | `{options}` |"
    return list(pool.map(line, rows))


# ---- the page ----

def table_of(text, head):
    return re.search("^" + re.escape(head) + r"\n(?:\|.*\n)*", text, re.M)


def check_page(args, tables):
    """tables: lines, the head first; a line is a text, or (how it begins, None) where it could not be made."""
    text, misses = args.docs.read_text(), []
    for lines in tables:
        shown = table_of(text, lines[0])
        if not shown:
            misses.append(f"{args.docs} has no table {lines[0]}")
            continue
        was = shown[0].splitlines()
        made = []
        for line in lines:
            made.append(line if isinstance(line, str) else next((w for w in was if w.startswith(line[0])), line[0]))
        if args.write:
            text = text[:shown.start()] + "\n".join(made) + "\n" + text[shown.end():]
        elif made != was:
            wrong = [line for line in made if line not in was] or [line for line in was if line not in made]
            misses += [f"{args.docs} does not show: {line}" for line in wrong or ["the order of these lines"]]
    if args.write:
        args.docs.write_text(text)
    return misses


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("shardc")
    parser.add_argument("models", type=Path)
    parser.add_argument("machines", type=Path)
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        lines, misses = decisions(pool, args)
        print(*lines, sep="\n", flush=True)
        searched = ["| model | on | default | best of the search | by |", "| --- | --- | --- | --- | --- |"]
        for begin, line in search_lines(pool, args):
            searched.append(line or (begin, None))
            print(line or f"{begin} is not made: the model is not in {args.models}", flush=True)
    if args.docs:
        misses += check_page(args, [lines, searched])
    print("\n".join(f"FAIL {m}" for m in misses) or "tests/predict/defaults: the tables are what plans say")
    return bool(misses)


if __name__ == "__main__":
    sys.exit(main())
