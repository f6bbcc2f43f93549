// answers.js: what --ask found: other plans, what memory buys, when hybrid sharding pays, the largest sizes.
"use strict";

const stepText = ms => ms === null ? "not predicted" : ms.toFixed(3);

// A sentence in place of what has no answer.
function unanswered(why) {
	return el("p", null, `No answer: ${why}.`);
}

function otherPlans() {
	const now = plan.alternatives.find(row => row.kind === "plan");
	const columns = [["about", ""], ["option", "text"], ["step ms", "number", stepText], ["samples/s", "number"],
		["rate", "number"], ["total memory", "number", bytesText], ["", "text"]];
	const rows = plan.alternatives.map(row => [row.kind.replace(/_/g, " "), row.option, row.step_ms,
		row.samples_per_s === null ? null : Number(row.samples_per_s.toPrecision(6)),
		row.samples_per_s === null ? null : percentText(row.samples_per_s / now.samples_per_s - 1), row.total,
		[row.fits ? "" : "more than a rank has", row.why || ""].filter(text => text).join("; ")]);
	const of = plan.asked_micro_batches === data.micro_batches ? "" :
		` All answers are of a step of ${plan.asked_micro_batches === 1 ? "one micro-batch" :
			countText(plan.asked_micro_batches) + " micro-batches"}.`;
	return [el("p", null, "Other plans, each planned and predicted with its option alone: their numbers do not add up." +
		of),
		table("alternatives", columns, rows, row => row[0] === "plan"),
		el("h3", null, "No other plan"), table("left_out", [["about", ""], ["option", "text"], ["why", "text"]],
			plan.left_out.map(row => [row.kind.replace(/_/g, " "), row.option, row.why]))];
}

function stepAnswer(point, more) {
	const now = plan.alternatives.find(row => row.kind === "plan"), much = bytesText(plan.curve.step);
	const said = `${much} ${more ? "more" : "less"} than this plan `;
	if (point.step_ms === null)
		return said + "has no plan.";
	const ms = point.step_ms - now.step_ms;
	if (more && ms >= 0)
		return said + "buys nothing: no plan that was tried is faster.";
	return said + `${more ? "buys" : ms < 0 ? "saves" : "costs"} ${Math.abs(ms).toFixed(3)} ms: ${point.option}`;
}

function curveAnswer() {
	const curve = plan.curve, gib = 1024 ** 3;
	if (curve.why)
		return [unanswered(curve.why)];
	const rate = (from, to) => to.total > from.total ? (from.step_ms - to.step_ms) / (to.total - from.total) * gib : null;
	const rows = curve.points.map((point, i) => [point.limit, point.option, point.total, point.step_ms,
		i ? rate(curve.points[i - 1], point) : null]);
	return [table("curve", [["limit", "number", bytesText], ["option", "text"], ["total memory", "number", bytesText],
		["step ms", "number", stepText], ["ms per GiB", "number", value => value.toFixed(3)]], rows),
	el("p", null, stepAnswer(curve.more, true)), el("p", null, stepAnswer(curve.less, false))];
}

function hybridAnswer() {
	const hybrid = plan.hybrid, first = hybrid.tried.find(row => row.pays);
	if (hybrid.why)
		return [unanswered(hybrid.why)];
	return [el("p", null, first ? `It pays from ${first.hosts} hosts on.` : "It pays on none of these: it is no faster, " +
		"or a rank has not the memory."),
	table("hybrid", [["hosts", "number"], ["ranks", "number"], ["full_shard ms", "number", stepText],
		["hybrid_shard ms", "number", stepText], ["memory of hybrid_shard", "number", bytesText]],
	hybrid.tried.map(row => [row.hosts, row.world, row.full_shard_ms, row.hybrid_shard_ms, row.hybrid_shard_total]))];
}

function largestAnswer() {
	if (plan.largest_why)
		return [unanswered(plan.largest_why)];
	return [table("largest", [["now", "text"], ["largest", "text"], ["total memory", "number", bytesText]],
		plan.largest.map(row => [row.now, row.option ? row.option + (row.more ? "; larger ones were not tried" :
			row.whole ? "; larger ones fit, but do not divide --global-batch" : "") : "none fits",
		row.option ? row.total : null]))];
}

function answers() {
	return [...otherPlans(), el("h3", null, "Memory and time: the fastest plan within each limit"), ...curveAnswer(),
		el("h3", null, "hybrid_shard beside full_shard, on all ranks of so many hosts"), ...hybridAnswer(),
		el("h3", null, "Largest sizes, each alone, that fit"), ...largestAnswer()];
}
