// run.js: a run's log as charts: loss, learning rate, norm of gradients, throughput.
"use strict";

// [step, value] of a column, in the order of the log.
function series(name) {
	const column = data.columns.indexOf(name);
	return data.log.filter(row => row[column] !== null).map(row => [row[0], row[column]]);
}

const CHARTS = [
	{title: "loss", of: [["loss", "matmul"], ["eval_loss", "wait"]]},
	{title: "learning rate", of: [["lr", "update"]]},
	{title: "norm of gradients", of: [["grad_norm", "attention"]]},
	{title: "throughput", of: [["tokens_per_s", "reduce"], ["samples_per_s", "reduce"]], first: true},
	{title: "milliseconds of a step", of: [["step_ms", "moves"], ["exposed_comm_ms", "wait"]]},
	{title: "accuracy", of: [["eval_accuracy", "attention"]]},
	{title: "loss scale", of: [["loss_scale", "moves"]], varies: true},
];

function extent(lines) {
	let low = Infinity, high = -Infinity;
	for (const line of lines)
		for (const [, value] of line.points) {
			low = Math.min(low, value);
			high = Math.max(high, value);
		}
	const pad = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.1 || 1;
	return [low - pad, high + pad];
}

// Lines that go back begin anew: a run that was resumed repeats steps.
function drawLine(context, points, x, y, paint, name) {
	let last = -Infinity, drawn = 0;
	context.strokeStyle = context.fillStyle = paint(name);
	context.lineWidth = 1.6;
	context.beginPath();
	for (const [step, value] of points) {
		if (step < last || !drawn)
			context.moveTo(x(step), y(value));
		else
			context.lineTo(x(step), y(value));
		last = step;
		drawn++;
	}
	context.stroke();
	if (points.length < 40)
		for (const [step, value] of points)
			context.fillRect(x(step) - 2, y(value) - 2, 4, 4);
	context.lineWidth = 1;
	return drawn;
}

function runChart(what, lines, steps) {
	const left = 64, right = 10, [low, high] = extent(lines);
	const view = {from: steps[0], to: Math.max(steps[1], steps[0] + 1), left, right,
		x(value, width) { return left + (value - this.from) / (this.to - this.from) * (width - left - right); }};
	const one = chart(what.title + " over the steps", () => 170, (context, width, height, paint) => {
		const bottom = height - AXIS, y = value => bottom - (value - low) / (high - low) * (bottom - 6);
		axisBelow(context, view, width, bottom, countText, paint);
		context.fillStyle = paint("dim");
		for (const tick of ticks(low, high, 4))
			context.fillText(numberText(tick), 6, Math.min(Math.max(y(tick), 8), bottom - 4));
		return lines.reduce((sum, line) => sum + drawLine(context, line.points, step => view.x(step, width), y, paint,
			line.color), 0);
	});
	one.canvas.addEventListener("pointermove", event => {
		const box = one.canvas.getBoundingClientRect();
		const step = view.from + (event.clientX - box.left - left) / (box.width - left - right) * (view.to - view.from);
		const near = lines.map(line => [line.name, line.points.reduce((best, point) =>
			Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best)]);
		showTip(event, "step " + countText(near[0][1][0]), near.map(([name, point]) => `${name} ${numberText(point[1])}` +
			(point[0] !== near[0][1][0] ? ` (step ${countText(point[0])})` : "")));
	});
	one.canvas.addEventListener("pointerleave", hideTip);
	const last = lines.map(line => [line.color, `${line.name} ${numberText(line.points[line.points.length - 1][1])}`]);
	return el("div", {class: "chart"}, el("h3", null, what.title), one.canvas, legend(last));
}

function run() {
	if (!data.log.length)
		return [el("p", null, "There is no log of a run: ./train .. --log RUN.jsonl writes one, and --report-log=RUN.jsonl " +
			"shows it here.")];
	const all = data.log.map(row => row[0]);
	const steps = [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
	const made = [];
	for (const what of CHARTS) {
		let lines = what.of.map(([name, paint]) => ({name, color: paint, points: series(name)}))
			.filter(line => line.points.some(point => point[1] !== 0 || line.name === "loss"));
		if (what.first)
			lines = lines.slice(0, 1);
		if (what.varies)
			lines = lines.filter(line => line.points.some(point => point[1] !== line.points[0][1]));
		if (lines.length)
			made.push(runChart(what, lines, steps));
	}
	const every = data.every > 1 ? `, of which each ${countText(data.every)}th and all evaluations are shown` : "";
	return [el("p", null, `${countText(data.lines)} ${data.lines === 1 ? "line" : "lines"}${every}, to step ${countText(steps[1])}. ` +
		"The legend has the last value."),
		el("div", {class: "columns"}, ...made)];
}
