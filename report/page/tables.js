// tables.js: tables that are sorted by a click on a column; those of collectives and units.
"use strict";

// columns: [title, "number" | "text" | "", how a value is shown]; rows: arrays of values; hot(row): it stands out.
function table(name, columns, rows, hot) {
	const body = el("tbody");
	const fill = () => body.replaceChildren(...rows.map(row => el("tr", {class: hot && hot(row) ? "hot" : null},
		...row.map((value, i) => el("td", {class: columns[i][1] + (columns[i][3] ? " cost" : "")},
			value === null || value === undefined ? "" : columns[i][2] ? columns[i][2](value) : String(value))))));
	const heads = columns.map(([title, kind], i) => {
		const head = el("th", {class: kind, scope: "col"}, el("button", {type: "button", click() {
			const up = head.getAttribute("aria-sort") === "descending";
			const first = value => value === null || value === undefined ? -Infinity : value;
			rows.sort((a, b) => (first(a[i]) < first(b[i]) ? -1 : first(a[i]) > first(b[i]) ? 1 : 0) * (up ? 1 : -1));
			heads.forEach(other => other.removeAttribute("aria-sort"));
			head.setAttribute("aria-sort", up ? "ascending" : "descending");
			fill();
		}}, title));
		return head;
	});
	fill();
	return el("div", {class: "scroll", tabindex: "0"}, el("table", {"data-name": name}, el("thead", null,
		el("tr", null, ...heads)), body));
}

// By number of a collective: the microseconds that computing waits for it.
function measuredWaits() {
	const waits = new Map();
	if (!measured)
		return waits;
	for (const [op, time] of timesOf(typicalStep(measured)))
		if (/^wait\d+$/.test(op))
			waits.set(Number(op.slice(4)), time);
	return waits;
}

function collectives() {
	const waits = measuredWaits(), many = parts.length > 1, runs = measured ? microBatchesOf(typicalStep(measured)) : [];
	const rows = data.collectives.map(([part, number, op, unit, stream, slot, bytes, at]) => ({part: parts[part], number, op,
		unit: unit < 0 ? "" : plan.units[unit].name, stream, slot: slot < 0 ? null : slot, bytes, at}));
	const guess = new Map(prediction ? prediction.collectives.map(c => [c.micro_batch + c.number, c]) : []);
	if (!rows.length)
		return [el("p", null, "A step has no collectives.")];
	const ms = value => value.toFixed(3);
	const columns = [["no", "number"], ["op", ""], ["unit", "text"], ["stream", ""], ["slot", "number"],
		["bytes", "number", countText]];
	if (many)
		columns.unshift(["micro-batch", ""]);
	const exposed = columns.length + 1;
	if (prediction)
		columns.push(["takes ms", "number", ms], ["exposed ms", "number", ms, true]);
	if (measured)
		columns.push([measured.kind + " exposed ms", "number", ms, true]);
	if (prediction)
		columns.push(["why it is exposed", "text"]);
	const values = rows.map(row => {
		const p = guess.get(row.part.name + row.number), out = [row.number, row.op, row.unit, row.stream, row.slot, row.bytes];
		if (many)
			out.unshift(row.part.name + (row.part.times > 1 ? ` \u00d7 ${row.part.times}` : ""));
		if (prediction)
			out.push(p ? p.end_ms - p.begin_ms : null, p ? p.exposed_ms : null);
		if (measured)
			out.push((waits.get(row.at) || 0) / 1000 / (runs.filter(run => run.part === row.part).length || 1));
		if (prediction)
			out.push(p ? p.reason : "");
		return out;
	});
	const bytes = rows.reduce((sum, row) => sum + row.bytes * row.part.times, 0);
	const said = prediction ? ` Computing waits ${ms(exposedMs(prediction))} ms of ${ms(prediction.step_ms)} ms for them` +
		`, which take ${ms(prediction.transferring_ms)} ms.` : " With --machine=FILE, shardc plan predicts how long each " +
		"takes and why computing waits for it.";
	return [el("p", null, `Bytes are those that rank ${plan.rank} receives: ${bytesText(bytes)} in a step.${said}`),
		table("collectives", columns, values, row => prediction && row[exposed] > 1e-4 * prediction.step_ms)];
}

function units() {
	if (!plan.units.length)
		return [];
	const columns = [["unit", "text"], ["strategy", ""], ["parameters", "number"], ["elements", "number", countText],
		["at rest on a rank", "number", bytesText], ["gathers", "number"], ["reduces", "number"], ["first use", "text"],
		["last use", "text"]];
	return [el("h3", null, "Units"), table("units", columns, plan.units.map(u => [u.name, u.strategy, u.params, u.elements,
		u.bytes_per_rank, u.gathers, u.reduces, u.first_use, u.last_use]))];
}
