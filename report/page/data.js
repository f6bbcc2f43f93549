// data.js: the page's data, as the compiler wrote them, and what follows from them.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const plan = data.plan, prediction = plan.prediction || null;
const SECTIONS = ["forward", "backward", "update"];

// The programs of the step: that of its only micro-batch, or of the first, those between, of which one is shown, and the
// last.
const parts = data.parts.map(([name, times, first, n]) => ({name, times, first, n}));
const repeated = parts.find(part => part.times > 1) || null;

function partAt(number) {
	return parts.find(part => number < part.first + part.n);
}

// Bytes that are mapped for the step.
const mapped = parts.length > 1 ? plan.micro_batches[Math.min(parts.length, 3)].total : plan.memory.total;

const ops = data.ops.map((row, number) => ({number, part: partAt(number), kind: row[0], result: row[1], type: row[2], section: SECTIONS[row[3]],
	unit: row[4] < 0 ? null : plan.units[row[4]].name, class: data.classes[row[5]], node: row[6], scope: row[7],
	role: row[8]}));

function opText(op) {
	return op.kind + (op.unit ? " @" + op.unit : op.result ? " %" + op.result : "");
}

// What is known of an op besides its name, a line each.
function opLines(op) {
	const role = op.role ? ` (${op.role})` : "";
	const micro = parts.length > 1 ? `, micro-batch ${op.part.name}` : "";
	return [op.type, `${op.section}${role}, op ${op.number}${micro}`, op.unit ? "unit " + op.unit : "",
		op.scope ? "module " + op.scope : "", op.node ? "node " + op.node : ""].filter(line => line);
}

// ---- traces ----

const MARKS = ["", "wait", "issue", "host"];

function sliceText(slice) {
	return slice.op ? (slice.mark ? slice.mark + " " : "") + opText(slice.op) : slice.name;
}

// Slices by step and stream, in order; times of each step begin at 0.
function readTrace(trace) {
	if (!trace)
		return null;
	const steps = new Map();
	for (const [stream, begin, duration, op, mark, step, name] of trace.slices) {
		if (!steps.has(step))
			steps.set(step, {step, streams: data.streams.map(() => []), begin: Infinity, end: 0, n: 0});
		const of = steps.get(step);
		while (of.streams.length <= stream)
			of.streams.push([]);
		of.streams[stream].push({begin, end: begin + duration, op: ops[op] || null, mark: MARKS[mark], name});
		of.begin = Math.min(of.begin, begin);
		of.end = Math.max(of.end, begin + duration);
		of.n += MARKS[mark] !== "host";
	}
	for (const of of steps.values()) {
		for (const slice of of.streams.flat()) {
			slice.begin -= of.begin;
			slice.end -= of.begin;
		}
		of.streams.forEach(slices => slices.sort((a, b) => a.begin - b.begin));
		of.seconds = of.end - of.begin;
	}
	// Of a step that runs another size of the program there is only what the host does.
	const shown = [...steps.values()].filter(of => of.n);
	return {kind: trace.kind, machine: trace.machine, steps: shown.sort((a, b) => a.step - b.step)};
}

const predicted = readTrace(data.predicted), measured = readTrace(data.measured);

// The step of median length: the first of a run is slow.
function typicalStep(trace) {
	const sorted = [...trace.steps].sort((a, b) => a.seconds - b.seconds);
	return sorted[sorted.length >> 1];
}

// Microseconds that each op takes in a step; waits and issues are apart, those of a collective as "wait12".
function timesOf(step) {
	const time = new Map();
	for (const slice of step.streams.flat()) {
		const key = slice.op ? slice.mark + slice.op.number : slice.name;
		time.set(key, (time.get(key) || 0) + slice.end - slice.begin);
	}
	return time;
}

// How long computing waits for collectives, without what it waits for copies to memory of the host.
function exposedMs(prediction) {
	return prediction.exposed_ms - prediction.copies_exposed_ms;
}

// ---- memory ----

// From the bottom of the stack to its top.
const CATEGORIES = ["parameters", "states", "buffers", "inputs", "communication", "other", "gathered", "gradients",
	"activations", "workspace"];

const memory = data.memory.map(row => ({category: row[0], name: row[1], bytes: row[2], first: row[3], last: row[4],
	op: row[5] < 0 ? null : ops[row[5]]}));

// Bytes of each category at each op, and of all; the op where most is held, as the compiler found it.
const held = (() => {
	const n = Math.max(ops.length, 1), of = {};
	for (const category of CATEGORIES)
		of[category] = new Float64Array(n + 1);
	for (const row of memory) {
		of[row.category][row.first] += row.bytes;
		of[row.category][row.last + 1] -= row.bytes;
	}
	const total = new Float64Array(n);
	for (const category of CATEGORIES)
		for (let p = 0; p < n; p++) {
			of[category][p] += p ? of[category][p - 1] : 0;
			total[p] += of[category][p];
		}
	return {of, total, peak: data.peak.op};
})();

function heldAt(position) {
	return memory.filter(row => row.first <= position && position <= row.last).sort((a, b) => b.bytes - a.bytes);
}
