"""Plans of models of real sizes beside closed forms, for several world sizes, strategies and recomputation.

For each plan: two seconds of a processor, where others may work beside it at most four, and 300 MiB; parameters,
gradients, optimizer states, collectives and their bytes equal what forms.py says, activations are within 5% of it.  For
each program: no constant grows with the square of the tokens, and in a block there is no cast, transpose or copy beyond
a listed set.  A line for each plan, a sentence for each miss.

usage: sizes.py SHARDC DIRECTORY [--models a,b] [--docs FILE [--write]]
DIRECTORY has the files of models.py; FILE is the table of docs/, which is compared, or written.
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from configs import MODELS
from forms import FORMS, GIB, activations, numel, up

WORLDS, STRATEGIES, REMATS = (8, 64, 512, 1024), ("full_shard", "shard_grad_op", "hybrid_shard"), ("none", "block")
HOST = 8  # ranks of a host, a shard group of hybrid_shard
SECONDS, MIB, SLACK = 4.0, 300, 0.05
# GiB of the whole plan that may not be exceeded, of full_shard; none: the page says what it is.
LIMITS = [("llama3-8b", 8, "--remat=none", 50), ("llama3-8b", 8, "--remat=block", 26),
          ("llama-7b-128k", 8, "--remat=block", 60), ("llama-7b-128k", 8, "--remat=block --tile-rows=off", None),
          ("llama-7b-128k", 64, "--remat=block", 60), ("llama3-8b-128k", 8, "--remat=block", 60),
          ("llama3-8b-128k", 8, "--remat=block --tile-rows=off", None),
          ("llama3-8b-128k", 8, "--remat=block --offload=optim", 60),
          ("llama3-8b-128k", 8, "--remat=block --offload-acts=block", 30), ("llama3-8b-128k", 64, "--remat=block", 60)]
MOVES = ("cast", "transpose", "concat", "split", "slice", "broadcast", "pad", "copy")
SILENT = ("view", "reshape", "wait", "reshard", "collect", "record", "zero_gaps", "const", "read",
          "columns", "rows", "join", "stack")  # ops that launch nothing
DOCS = [(8, "none"), (8, "block"), (512, "none"), (512, "block")]


@dataclasses.dataclass
class Unit:
    name: str
    flats: list         # elements of each, and bytes of an element as gathered
    begin: int          # steps of the forward that read it: 0 is what precedes the blocks, k block k - 1
    end: int


def gib(n):
    return f"{n / GIB:.2f}"


# ---- programs ----

def command(shardc, model, path, *options):
    loss = "--loss=cross_entropy" + (":shift=1" if MODELS[model].tokens else "")
    return [shardc, *options, path, loss, "--param-dtype=bf16", "--target=cuda"]


def program(shardc, model, path, remat):
    """The PLAN's text; it holds for any number of ranks."""
    parts = command(shardc, model, path, f"--remat={remat}", "--emit=ir", "--stop-after=memory")
    run = subprocess.run(parts, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{' '.join(map(str, parts))}\n{run.stderr}")
    return run.stdout


def scopes(model):
    return [f"{scope}.{k}" for scope, n in MODELS[model].layers.items() for k in range(n)]


def role(param, names, form):
    """The step of forward that reads a parameter, and the closed form's shapes there."""
    for k, scope in enumerate(names):
        if param.startswith(scope + "."):
            return k + 1, form.blocks[k].shapes
    last = any(param.endswith("." + suffix) for suffix in form.last)
    return (len(names) + 1, list(form.last.values())) if last else (0, list(form.first.values()))


def units_of(model, form, text):
    """Units of the text, and sentences where their parameters are not those of the closed form."""
    types = re.findall(r'^  param "(.*?)" : f32\[([\d,]+)\]', text, re.M)
    numels = {name: numel(map(int, dims.split(","))) for name, dims in types}
    names, units, seen, wanted = scopes(model), [], collections.defaultdict(list), {}
    lines = re.findall(r"^  unit @(\S+) \{.*?flats=\[(.*?)\], params=\[(.*?)\]\}$", text, re.M)
    for name, flats, params in lines:
        lies, steps = collections.defaultdict(int), []
        for param, flat in re.findall(r'"(.*?)" @\d+(?:/(\d+))?', params):
            step, shapes = role(param, names, form)
            seen[step].append(numels[param])
            wanted[step] = sorted(map(numel, shapes))
            steps.append(step)
            lies[int(flat or 0)] += up(numels[param])
        width = [2 if "param=bf16" in f else 4 for f in flats.split(", ")]
        units.append(Unit(name.strip('"'), [(lies[i], w) for i, w in enumerate(width)], min(steps), max(steps)))
    return units, [f"parameters of step {k} have {sorted(seen[k])} elements, the closed form {want}"
                   for k, want in wanted.items() if sorted(seen[k]) != want]


def ops_of(text, section):
    """Ops of a section, a loop with its body as one of them."""
    body = re.search(rf"^  {section} \{{\n(.*?)^  \}}", text, re.M | re.S)[1]
    return re.findall(r"^    [%a-z](?:.* do \{\n(?:      .*\n)*    \}.*|.*)$", body, re.M)


def kind(line):
    return re.match(r"(?:.*? = )?(\w+)", line.strip())[1]


def block_ops(model, text):
    """Launches of a block in the middle, by kind, forward and backward."""
    scope = scopes(model)[len(scopes(model)) // 2]
    locations = re.findall(r'^    (\d+) = ".*?"(?::".*?")?@"(.*?)"', text, re.M)
    mine = {n for n, s in locations if (s + ".").startswith(scope + ".")}
    counts = collections.Counter()
    for section in ("forward", "backward"):
        for line in ops_of(text, section):
            loc = re.search(r"loc\((\d+)", line)
            if loc and loc[1] in mine and kind(line) not in SILENT:
                counts[kind(line)] += 1
    return counts


def squares(model, text):
    """Types with two dimensions of the sequence's length, where no width is as long: they grow with its square."""
    t = MODELS[model].sample[0]
    if not MODELS[model].tokens:
        return []
    types = collections.Counter(re.findall(r"%[\w.]+ : (\w+\[[\d,]*\])", text))
    wide = t in MODELS[model].size.values()
    return [f"{n} values are {type}" for type, n in types.items()
            if type[:-1].split("[")[1].split(",").count(str(t)) > 1 and not (wide and type.count(",") < 3)]


# ---- plans ----

@functools.cache
def plan(shardc, model, path, world, *options):
    """(plan, seconds of processor, MiB)"""
    parts = command(shardc, model, path, *options, f"--world={world}", f"--hosts={world // HOST}", "--comm=nccl",
                    "--format=json")
    parts.insert(1, "plan")
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(parts, stdout=out, stderr=err)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = status
        out.seek(0), err.seek(0)
        if status:
            sys.exit(f"{' '.join(map(str, parts))}\n{err.read()}")
        return json.load(out), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def closed(units, form, world, strategy, remat):
    """What the plan is to say, from units and form."""
    ranks = HOST if strategy == "hybrid_shard" else world
    shard = {u.name: [up(-(-n // ranks)) for n, _ in u.flats] for u in units}
    whole = {name: 4 * ranks * sum(flats) for name, flats in shard.items()}
    rest = 4 * sum(sum(s) for s in shard.values())
    gathers = gathers_of(units, len(form.blocks), strategy)
    want = {"parameters": rest, "states": 2 * rest, "inputs": form.inputs, "workspace": form.workspace,
            "gradients": rest + gradients_in_flight(units, whole, len(form.blocks)),
            "all_gather": sum(gathers.values()), "reduce_scatter": len(units),
            "gathered bytes": (ranks - 1) * sum(gathers[u.name] * n * width for u in units
                                                for n, (_, width) in zip(shard[u.name], u.flats)),
            "scattered bytes": (ranks - 1) * rest}
    groups = world // ranks
    if groups > 1:
        want["all_reduce_shards"] = len(units)
        want["bytes between groups"] = sum(between(n, groups) for flats in shard.values() for n in flats)
    return want


def between(n, groups):
    """Bytes that the first of so many ranks receives to add up n elements: its own piece from all, the other sums."""
    piece = up(-(-n // groups))
    return 4 * ((groups - 1) * piece + n - piece)


def gathers_of(units, blocks, strategy):
    """How often each unit is gathered: twice where it is freed between forward and backward.  What forward reads before
    the blocks is not read by backward; the last two units of forward stay in the two slots of gathers; a unit that is
    read before the blocks and behind them stays all the time."""
    freed = sorted((u for u in units if u.begin > 0 or u.end <= blocks), key=lambda u: u.begin)
    stay = strategy == "shard_grad_op" or len(freed) < 2
    twice = [] if stay else [u.name for u in freed[:-2] if u.end > 0]
    return {u.name: 2 if u.name in twice else 1 for u in units}


def gradients_in_flight(units, whole, blocks):
    """Bytes of flat gradients.  The wait of a reduce is one unit late, so units take turns in two slots, each as large
    as its largest; where that is less, what lies beside the blocks has a slot of its own.  A unit that is read before
    the blocks and behind them has its gradient all the time."""
    def turns(some):
        sizes = [whole[u.name] for u in some]
        return max(sizes[0::2], default=0) + max(sizes[1::2], default=0)
    order = sorted(units, key=lambda u: -u.end)
    passing = [u for u in order if u.begin > 0 or u.end <= blocks]
    inner = [u for u in passing if 0 < u.begin and u.end <= blocks]
    beside = max((whole[u.name] for u in passing if u not in inner), default=0)
    return min(turns(passing), turns(inner) + beside) + sum(whole[u.name] for u in order if u not in passing)


def found(p, want):
    sums = p["step"]["sums"]
    got = {"parameters": p["memory"]["parameters"], "states": p["memory"]["optimizer states"],
           "inputs": p["memory"]["inputs"], "workspace": p["memory"]["workspace"],
           "gradients": p["memory"]["gradients"],
           "gathered bytes": sums.get("all_gather", {}).get("bytes"),
           "scattered bytes": sums.get("reduce_scatter", {}).get("bytes"),
           "bytes between groups": sums.get("all_reduce_shards", {}).get("bytes")}
    got.update((op, sums.get(op, {}).get("count")) for op in ("all_gather", "reduce_scatter", "all_reduce_shards"))
    return {k: got[k] for k in want}


def judge(model, form, units, p, used, world, strategy, remat):
    """(line of the table, sentences about misses)"""
    where = f"{model}, {world} ranks, {strategy}, remat {remat}"
    want, memory, misses = closed(units, form, world, strategy, remat), p["memory"], []
    misses += [f"{where}: {k} are {got}, the closed form says {want[k]}" for k, got in found(p, want).items()
               if got != want[k]]
    live = activations(form, remat)
    if abs(memory["activations"] - live) > SLACK * live:
        misses.append(f"{where}: activations are {gib(memory['activations'])} GiB, the closed form says {gib(live)}; "
                      f"peak at {p['peak']['op']} of {p['peak']['node']}")
    seconds, mib = used
    if seconds > SECONDS or mib > MIB:
        misses.append(f"{where}: the plan took {seconds:.2f} s and {mib:.0f} MiB")
    row = dict(memory, model=model, world=world, strategy=strategy, remat=remat, closed=live, seconds=seconds, mib=mib)
    return row, misses


def line_of(row):
    return (f"{row['model']:15} {row['world']:5} {row['strategy']:14} {row['remat']:6} {gib(row['parameters']):>7} "
            f"{gib(row['optimizer states']):>7} {gib(row['gradients']):>7} {gib(row['gathered']):>7} "
            f"{gib(row['activations']):>8} {gib(row['closed']):>8} {gib(row['total']):>8} {row['seconds']:6.2f} "
            f"{row['mib']:5.0f}")


HEAD = (f"{'model':15} {'ranks':>5} {'strategy':14} {'remat':6} {'params':>7} {'states':>7} {'grads':>7} "
        f"{'gathers':>7} {'activ.':>8} {'formula':>8} {'GiB':>8} {'s':>6} {'MiB':>5}")


def check_program(model, form, text, remat):
    misses = [f"{model}, remat {remat}: {v}, which grows with the square of the tokens" for v in squares(model, text)]
    counts = block_ops(model, text)
    moves = {k: n for k, n in counts.items() if k in MOVES}
    if moves != form.moves.get(remat):
        misses.append(f"{model}, remat {remat}: a block has {moves}, listed are {form.moves.get(remat)}")
    return counts, misses


def check_model(pool, args, model):
    form, path = FORMS[MODELS[model].family](MODELS[model]), args.directory / f"{model}.onnx"
    rows, misses, units, launches = [], [], {}, {}
    for remat in REMATS:
        text = program(args.shardc, model, path, remat)
        units[remat], bad = units_of(model, form, text)
        counts, more = check_program(model, form, text, remat)
        misses += [f"{model}: {b}" for b in bad] + more
        launches[remat] = counts
        print(f"{model}, remat {remat}: {counts.total()} launches in a block: "
              + ", ".join(f"{n} {k}" for k, n in counts.most_common()), flush=True)
    jobs = [(w, s, r) for w in WORLDS for s in STRATEGIES for r in REMATS]
    plans = pool.map(lambda job: plan(args.shardc, model, path, job[0], f"--strategy={job[1]}", f"--remat={job[2]}"),
                     jobs)
    for (world, strategy, remat), (p, *used) in zip(jobs, plans):
        row, bad = judge(model, form, units[remat], p, used, world, strategy, remat)
        rows.append(row)
        misses += bad
        print(line_of(row), flush=True)
    return rows, launches, misses


def check_limits(pool, args, models):
    """(lines of the page's table, sentences about misses)"""
    limits, lines, misses = [row for row in LIMITS if row[0] in models], [], []
    plans = pool.map(lambda row: plan(args.shardc, row[0], args.directory / f"{row[0]}.onnx", row[1],
                                      "--strategy=full_shard", *row[2].split()), limits)
    for (model, world, options, limit), (p, *_) in zip(limits, plans):
        total = p["memory"]["total"]
        lines.append(f"| {model} | {world} | `{options}` | {gib(total)} | {limit or '-'} |")
        print(lines[-1], flush=True)
        if limit and total > limit * GIB:
            misses.append(f"{model}, {world} ranks, {options}: {gib(total)} GiB in all, more than {limit}")
    return lines, misses


# ---- docs ----

def check_hints(args, models):
    """A plan of what is whole ends with what blocks of rows save: the plan of auto says the same."""
    model, misses = "llama3-8b-128k", []
    for option in ("--loss-chunk", "--tile-rows") if model in models else ():
        path = args.directory / f"{model}.onnx"
        off, _, _ = plan(args.shardc, model, path, 64, "--remat=block", f"{option}=off")
        auto, _, _ = plan(args.shardc, model, path, 64, "--strategy=full_shard", "--remat=block")
        hint = [h for h in off["hints"] if h["option"] == f"{option}=auto"]
        ok = len(hint) == 1 and hint[0]["total"] == auto["memory"]["total"] \
            and hint[0]["saves"] == off["memory"]["total"] - auto["memory"]["total"]
        misses += [] if ok else [f"{model}: the hint of {option}=auto is not what that plan says: {off['hints']}"]
    return misses


def sizes_table(rows):
    lines = ["| model | ranks | remat | parameters | states | gradients | gathered | activations | workspace | in all |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        if row["strategy"] == "full_shard" and (row["world"], row["remat"]) in DOCS:
            cells = [row["model"], str(row["world"]), row["remat"]]
            cells += map(gib, (row["parameters"], row["optimizer states"], row["gradients"], row["gathered"],
                               row["activations"], row["workspace"], row["total"]))
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def launches_table(launches):
    """launches: model -> remat -> kind -> how many; models whose blocks have the same share a line."""
    shared = collections.defaultdict(list)
    for model, counts in launches.items():
        for remat, kinds in counts.items():
            listed = ", ".join(f"{n} {k}" for k, n in sorted(kinds.items(), key=lambda kn: (-kn[1], kn[0])))
            shared[remat, kinds.total(), listed].append(model)
    return ["| a block of | remat | launches | which |", "| --- | --- | --- | --- |",
            *(f"| {', '.join(models)} | {remat} | {n} | {listed} |" for (remat, n, listed), models in shared.items())]


def check_docs(path, tables, write):
    """Tables of the page, each known by its head."""
    text, misses = path.read_text(), []
    for lines in tables:
        table = "\n".join(lines) + "\n"
        shown = re.search("^" + re.escape(lines[0]) + r"\n(?:\|.*\n)*", text, re.M)
        if not shown or (shown[0] != table and not write):
            misses.append(f"{path}: {lines[0]} is not what plans say: make sizes SIZES=--write writes it")
        elif write:
            text = text[:shown.start()] + table + text[shown.end():]
    if write:
        path.write_text(text)
    return misses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shardc")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--docs", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows, launches, misses, models = [], {}, [], args.models.split(",")
    print(HEAD)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for model in models:
            more, launches[model], bad = check_model(pool, args, model)
            rows += more
            misses += bad
        lines, bad = check_limits(pool, args, models)
        misses += bad
    misses += check_hints(args, models)
    if args.docs and models == list(MODELS):
        limits = ["| model | ranks | options | in all | at most |", "| --- | --- | --- | --- | --- |", *lines]
        misses += check_docs(args.docs, [sizes_table(rows), limits, launches_table(launches)], args.write)
    print(*misses, sep="\n")
    print(f"sizes: {len(rows)} plans, {len(misses)} misses")
    sys.exit(bool(misses))


if __name__ == "__main__":
    main()
