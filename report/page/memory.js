// memory.js: what is in memory from op to op, stacked by category, and what holds the peak.
"use strict";

// When each op begins, in microseconds; ops that take no time begin when the one before them ends.
function beginsOf(step) {
	const begins = new Float64Array(ops.length), slice = new Map();
	for (const one of step.streams[0])
		if (!one.mark)
			slice.set(one.op.number, one);
	let now = 0;
	for (let p = 0; p < ops.length; p++) {
		const one = slice.get(p);
		begins[p] = one ? Math.max(one.begin, now) : now;
		now = one ? Math.max(one.end, now) : now;
	}
	return begins;
}

// The last position whose place is at most `value`.
function lastBefore(places, value) {
	let low = 0, high = places.length;
	while (low < high) {
		const middle = (low + high) >> 1;
		if (places[middle] <= value)
			low = middle + 1;
		else
			high = middle;
	}
	return Math.max(low - 1, 0);
}

// For each pixel the position that holds most among those that it shows, so that no peak is lost.
function columnsOf(places, view, width) {
	const out = [];
	let p = lastBefore(places, view.from);
	for (let x = view.left; x < width - view.right; x++) {
		const end = view.value(x + 1, width);
		let most = p;
		for (; p + 1 < places.length && places[p + 1] < end; p++)
			most = held.total[p + 1] > held.total[most] ? p + 1 : most;
		out.push(most);
	}
	return out;
}

// "forward"; of several micro-batches "first: forward", "middle \u00d7 6: backward".
function sectionText(op) {
	const times = op.part.times > 1 ? ` \u00d7 ${op.part.times}` : "";
	return parts.length > 1 ? `${op.part.name}${times}: ${op.section}` : op.section;
}

function drawSections(context, places, view, width, height, paint) {
	let begin = 0;
	for (let p = 1; p <= ops.length; p++) {
		if (p < ops.length && ops[p].section === ops[begin].section && ops[p].part === ops[begin].part)
			continue;
		const x = view.x(places[begin], width), end = p < ops.length ? view.x(places[p], width) : width - view.right;
		const from = Math.max(x, view.left), room = Math.min(end, width - view.right) - from;
		context.fillStyle = paint("dim");
		if (room > 10)
			context.fillText(fitted(context, sectionText(ops[begin]), room - 6), from + 4, 10);
		context.strokeStyle = paint("dim");
		context.setLineDash([2, 3]);
		context.beginPath();
		if (x > view.left && x < width - view.right) {
			context.moveTo(x, 0);
			context.lineTo(x, height);
		}
		context.stroke();
		context.setLineDash([]);
		begin = p;
	}
}

function drawAreas(context, columns, used, y, left, paint) {
	const base = new Float64Array(columns.length);
	for (const category of used) {
		context.fillStyle = paint(category);
		context.beginPath();
		columns.forEach((p, i) => {
			base[i] += held.of[category][p];
			context.lineTo(left + i, y(base[i]));
			context.lineTo(left + i + 1, y(base[i]));
		});
		for (let i = columns.length - 1; i >= 0; i--) {
			const below = base[i] - held.of[category][columns[i]];
			context.lineTo(left + i + 1, y(below));
			context.lineTo(left + i, y(below));
		}
		context.fill();
	}
}

function drawLevel(context, bytes, text, y, view, width, paint) {
	context.strokeStyle = paint("text");
	context.setLineDash([6, 4]);
	context.beginPath();
	context.moveTo(view.left, y(bytes));
	context.lineTo(width - view.right, y(bytes));
	context.stroke();
	context.setLineDash([]);
	context.textAlign = "right";
	clearText(context, text, width - view.right - 4, y(bytes) - 9, paint);
	context.textAlign = "left";
}

// Its text stands above the area, or inside of it where the line of what is mapped is too near.
function drawPeak(context, places, view, width, y, paint) {
	const x = view.x(places[held.peak], width), at = y(held.total[held.peak]);
	if (x < view.left || x > width - view.right)
		return;
	context.fillStyle = paint("text");
	context.beginPath();
	context.arc(x, at, 3.5, 0, 7);
	context.fill();
	context.textAlign = x > width / 2 ? "right" : "left";
	clearText(context, "peak " + bytesText(held.total[held.peak]), x + (x > width / 2 ? -8 : 8),
		at - y(mapped) > 24 ? at - 8 : at + 12, paint);
	context.textAlign = "left";
}

function holdersAt(position) {
	return heldAt(position).slice(0, 5).map(row => `${bytesText(row.bytes)}  ${row.name}`);
}

const HELD_BY = {category: "By category", module: "Values, by module", unit: "What is gathered and gradients, by unit"};

function peakTables() {
	const op = ops[held.peak], rows = heldAt(held.peak);
	const share = bytes => percentText(bytes / held.total[held.peak]);
	const values = rows.slice(0, 40).map(row => [row.bytes, share(row.bytes), row.category, row.name,
		row.op && row.category === "activations" ? row.op.node || row.op.kind : row.op ? row.op.unit || row.op.node : ""]);
	const more = rows.length > 40 ? `, the largest 40 of ${rows.length}` : "";
	return [el("p", null, `Most is held at op ${held.peak}` + (op ? `, ${opText(op)}${op.node ? ", node " + op.node : ""} ` +
		`(${op.section})` : "") + `: ${countText(held.total[held.peak])} bytes.`),
		el("div", {class: "columns"}, el("div", null, el("h3", null, "What holds the peak" + more),
			table("peak", [["bytes", "number", bytesText], ["share", "number"], ["category", ""], ["what", "text"],
				["node or unit", "text"]], values)),
		el("div", null, ...[["category", data.peak.categories], ["module", data.peak.modules], ["unit", data.peak.units]]
			.filter(([, of]) => of.length).flatMap(([by, of]) => [el("h3", null, HELD_BY[by]), table("by-" + by,
				[["bytes", "number", bytesText], ["share", "number"], [by, "text"]], of.map(([name, bytes]) => [bytes,
					share(bytes), name]))])))];
}

function memoryChart() {
	const used = CATEGORIES.filter(category => memory.some(row => row.category === category));
	const byOp = Float64Array.from(ops, (op, p) => p), step = predicted ? typicalStep(predicted) : null;
	const byTime = step ? beginsOf(step) : null;
	let places = byOp, text = tick => "op " + countText(tick);
	const view = range(() => places === byOp ? Math.max(ops.length, 1) : step.seconds, 78, 10);
	const one = chart("memory over the step, stacked by category", () => 300, (context, width, height, paint) => {
		const bottom = height - AXIS, top = Math.max(mapped, held.total[held.peak]) * 1.12 || 1;
		const y = bytes => bottom - bytes / top * (bottom - 4);
		const columns = columnsOf(places, view, width);
		axisBelow(context, view, width, bottom, text, paint);
		drawAreas(context, columns, used, y, view.left, paint);
		drawSections(context, places, view, width, bottom, paint);
		drawLevel(context, mapped, "mapped " + bytesText(mapped), y, view, width, paint);
		drawPeak(context, places, view, width, y, paint);
		context.fillStyle = paint("dim");
		const unit = 1024 ** Math.floor(Math.log(top) / Math.log(1024));
		for (const tick of ticks(0, top / unit, 5))
			context.fillText(bytesText(tick * unit), 6, Math.min(Math.max(y(tick * unit), 8), bottom - 4));
		one.canvas.dataset.rows = memory.length;
		return columns.length * used.length;
	});
	zooms(one, view);
	one.canvas.addEventListener("pointermove", event => {
		const box = one.canvas.getBoundingClientRect(), x = event.clientX - box.left;
		if (event.buttons || x < view.left)
			return hideTip();
		const p = columnsOf(places, view, box.width)[Math.floor(x - view.left)];
		if (p === undefined || !ops[p])
			return hideTip();
		const parts = used.filter(c => held.of[c][p]).map(c => `${c} ${bytesText(held.of[c][p])}`).join(", ");
		showTip(event, `${bytesText(held.total[p])} at op ${p}, ${opText(ops[p])}`, [parts, ...holdersAt(p),
			ops[p].node ? "node " + ops[p].node : ""].filter(line => line));
	});
	one.canvas.addEventListener("pointerleave", hideTip);
	const by = byTime ? el("button", {type: "button", click(event) {
		places = places === byOp ? byTime : byOp;
		text = places === byOp ? tick => "op " + countText(tick) : timeText;
		event.target.textContent = places === byOp ? "by time" : "by op";
		view.set(0, view.all());
		one.redraw();
	}}, "by time") : null;
	const mostOf = c => held.of[c].slice(0, -1).reduce((most, bytes) => Math.max(most, bytes), 0); // ops may be 100,000
	const most = used.map(c => [c, `${c} ${bytesText(mostOf(c))}`]);
	return [el("p", null, "What is in use at each op. Memory is mapped once, before the first step: each category has its " +
		"largest size all the time, which is the dashed line; the legend has the most that each has in use."),
	el("div", {class: "bar"}, zoomButtons(one, view), by), one.canvas, legend(most), ...peakTables()];
}
