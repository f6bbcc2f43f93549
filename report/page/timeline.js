// timeline.js: the streams of a step, predicted over measured.
"use strict";

const ROW = 21, GAP = 3, BETWEEN = 9, AXIS = 24, LABEL = 140, BAND = 16;

function sliceColor(slice, stream) {
	if (slice.mark)
		return slice.mark;
	if (stream && slice.op.class === "collectives")
		return data.streams[stream];
	return slice.op.class === "nothing" ? "none" : slice.op.class;
}

// Index of the first slice that ends after `time`.
function firstAfter(slices, time) {
	let low = 0, high = slices.length;
	while (low < high) {
		const middle = (low + high) >> 1;
		if (slices[middle].end > time)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

// Draws what of a row is in view; slices of less than a pixel that follow each other share one.
function drawRow(context, slices, stream, view, width, y, paint) {
	let drawn = 0, reached = -1;
	for (let i = firstAfter(slices, view.from); i < slices.length && slices[i].begin < view.to; i++) {
		const slice = slices[i];
		const x = Math.max(view.x(slice.begin, width), view.left), end = Math.min(view.x(slice.end, width), width - view.right);
		if (end <= reached && end - x < 1)
			continue;
		const wide = Math.max(end - x - (end - x > 4 ? 0.6 : 0), 1);
		context.fillStyle = paint(sliceColor(slice, stream));
		context.fillRect(x, y, wide, ROW);
		reached = x + wide;
		drawn++;
		const text = wide > 34 ? fitted(context, sliceText(slice), wide - 8) : "";
		if (text) {
			context.fillStyle = inkOn(context.fillStyle);
			context.fillText(text, x + 4, y + ROW / 2 + 1);
		}
	}
	return drawn;
}

// The micro-batches of a step of several, from their slices on the stream that computes.
function microBatchesOf(step) {
	const out = [];
	let last = null, lastEnd = 0;
	for (const slice of step.streams[0]) {
		if (!slice.op || slice.mark)
			continue;
		if (!last || slice.op.part !== last.part || slice.op.number < last.number)
			out.push({part: slice.op.part, begin: last ? lastEnd : 0});
		last = slice.op;
		lastEnd = slice.end;
	}
	for (const [i, one] of out.entries()) {
		const alone = out.filter(other => other.part === one.part).length === 1;
		one.end = i + 1 < out.length ? out[i + 1].begin : step.seconds;
		one.text = one.part.name + (alone && one.part.times > 1 ? ` \u00d7 ${one.part.times}` : "");
	}
	return out;
}

// A band of names above the rows: each micro-batch from its begin to its end.
function drawMicroBatches(context, band, view, width, paint) {
	for (const one of band.of) {
		const x = view.x(one.begin, width), from = Math.max(x, view.left);
		const room = Math.min(view.x(one.end, width), width - view.right) - from;
		if (room <= 0)
			continue;
		context.fillStyle = paint("line");
		context.fillRect(from, band.y, Math.max(room - 1, 1), BAND - 2);
		context.fillStyle = paint("text");
		context.fillText(fitted(context, one.text, room - 8), from + 4, band.y + BAND / 2);
	}
	context.fillStyle = paint("dim");
	context.fillText("micro-batch", 8, band.y + BAND / 2);
}

// The rows from top to bottom: each stream that has slices, in each trace; above them the micro-batches of each.
function rowsOf(shown) {
	const rows = [], bands = parts.length < 2 ? [] : shown.map((one, i) =>
		({y: 6 + i * BAND, kind: one.kind, of: microBatchesOf(one.step)}));
	let y = 6 + bands.length * BAND;
	for (let stream = 0; stream < data.streams.length; stream++) {
		const of = shown.filter(one => one.step.streams[stream].length);
		of.forEach((one, i) => {
			rows.push({stream, slices: one.step.streams[stream], kind: one.kind, y, first: !i});
			y += ROW + GAP;
		});
		y += of.length ? BETWEEN : 0;
	}
	return {rows, bands, height: y + AXIS};
}

function sliceLines(slice, row, rows) {
	const lines = [`${row.kind}: ${timeText(slice.end - slice.begin)}, from ${timeText(slice.begin)}`];
	for (const other of rows)
		if (other !== row && other.stream === row.stream) {
			const same = other.slices.filter(one => one.op === slice.op && one.mark === slice.mark && one.name === slice.name);
			if (same.length)
				lines.push(`${other.kind}: ${timeText(same.reduce((sum, one) => sum + one.end - one.begin, 0))}`);
		}
	return lines.concat(slice.op ? opLines(slice.op) : "the host");
}

const TOTALS = {wait: "waits", issue: "issuing", none: "others"};

// What computing does in all, by class.
function totals(step) {
	const of = new Map();
	for (const slice of step.streams[0])
		of.set(sliceColor(slice, 0), (of.get(sliceColor(slice, 0)) || 0) + slice.end - slice.begin);
	return [...of].sort((a, b) => b[1] - a[1]);
}

function timeline() {
	const shown = [predicted, measured].filter(trace => trace && trace.steps.length).map((trace, i) =>
		({kind: trace === predicted ? "predicted" : trace.kind === "predicted" ? "predicted (file)" : trace.kind, trace,
			step: typicalStep(trace)}));
	if (!shown.length)
		return [el("p", null, "There is no timeline: shardc plan .. --machine=FILE predicts one (docs/prediction.md), and " +
			"--report-trace=FILE shows one that was measured.")];
	let layout = rowsOf(shown);
	const view = range(() => Math.max(...shown.map(one => one.step.seconds)) || 1, LABEL, 8);
	const one = chart("timeline of the streams of a step", () => layout.height, (context, width, height, paint) => {
		let drawn = 0;
		axisBelow(context, view, width, height - AXIS, timeText, paint);
		for (const band of layout.bands)
			drawMicroBatches(context, band, view, width, paint);
		for (const row of layout.rows) {
			drawn += drawRow(context, row.slices, row.stream, view, width, row.y, paint);
			context.fillStyle = paint(row.first ? "text" : "dim");
			const name = row.first ? data.streams[row.stream] : "";
			context.fillText(shown.length > 1 ? name : data.streams[row.stream], 8, row.y + ROW / 2 + 1);
			context.fillStyle = paint("dim");
			if (shown.length > 1)
				context.fillText(row.kind, 74, row.y + ROW / 2 + 1);
		}
		one.canvas.dataset.micro = layout.bands.map(band => band.of.map(each => each.text).join(", ")).join("; ");
		one.canvas.dataset.rows = layout.rows.length;
		one.canvas.dataset.slices = layout.rows.reduce((sum, row) => sum + row.slices.length, 0);
		return drawn;
	});
	zooms(one, view);
	one.canvas.addEventListener("pointermove", event => {
		const box = one.canvas.getBoundingClientRect(), y = event.clientY - box.top;
		const time = view.value(event.clientX - box.left, box.width);
		const row = layout.rows.find(r => y >= r.y && y < r.y + ROW);
		const slack = (view.to - view.from) / box.width;
		const slice = row && !event.buttons ? row.slices[firstAfter(row.slices, time - slack)] : null;
		const band = event.buttons ? null : layout.bands.find(b => y >= b.y && y < b.y + BAND);
		const micro = band && band.of.find(each => each.begin <= time && time < each.end);
		if (slice && slice.begin <= time + slack)
			showTip(event, sliceText(slice), sliceLines(slice, row, layout.rows));
		else if (micro)
			showTip(event, "micro-batch " + micro.text, [`${band.kind}: ${timeText(micro.end - micro.begin)}, from ` +
				timeText(micro.begin), `${countText(micro.part.n)} ops`]);
		else
			hideTip();
	});
	one.canvas.addEventListener("pointerleave", hideTip);
	const choices = shown.filter(s => s.trace.steps.length > 1).map(s => el("label", null, s.kind + " step ", el("select", {
		change(event) {
			s.step = s.trace.steps[event.target.selectedIndex];
			layout = rowsOf(shown);
			view.set(0, view.all());
			one.redraw();
		}}, ...s.trace.steps.map(step => el("option", {selected: step === s.step}, `${step.step}: ${timeText(step.seconds)}`)))));
	const once = s => repeated && s.trace === predicted ? `, with one of the ${repeated.times} micro-batches between` : "";
	const legends = shown.map(s => el("div", {class: "bar"}, el("span", null, `${s.kind}, ${timeText(s.step.seconds)}` +
		once(s) + ":"),
		legend(totals(s.step).map(([name, us]) => [name, `${TOTALS[name] || name} ${timeText(us)}`]))));
	const missing = !predicted ? "A prediction beside it: shardc plan .. --machine=FILE (docs/prediction.md)." : !measured ?
		"A measured step below it: --report-trace=FILE." : "";
	const ms = prediction ? prediction.evidence_ms : {}, all = Object.values(ms).reduce((a, b) => a + b, 0);
	const found = [["measured", "from measured kernels"], ["near", "from measured kernels of the same kind"],
		["roofline", "by the roofline"]].filter(([key]) => ms[key] > 0).map(([key, how]) => `${percentText(ms[key] / all)} ${how}`);
	const evidence = found.length ? `Predicted times are found ${found.join(", ")}. ` : "";
	return [el("p", null, evidence, "Drag to move, ctrl and wheel or + and - to zoom, double click to see all. ", missing),
		el("div", {class: "bar"}, zoomButtons(one, view), ...choices), one.canvas, ...legends];
}
