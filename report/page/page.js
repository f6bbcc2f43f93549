// page.js: puts the page together.
"use strict";

function tile(value, text, look) {
	return el("div", {class: "tile"}, el("b", {class: look || null}, value), el("span", null, text));
}

function tiles() {
	const out = [tile(plan.world === 1 ? "1 rank" : `${countText(plan.world)} ranks`, plan.hosts > 1 ? `on ${plan.hosts} hosts`
		: "on one host")];
	if (prediction) {
		const tokens = prediction.tokens_per_s > 0;
		out.push(tile(timeText(prediction.step_ms * 1000), "a step" + (data.micro_batches > 1 ?
			` of ${countText(data.micro_batches)} micro-batches` : "") + ", predicted"),
			tile(countText(tokens ? prediction.tokens_per_s : prediction.samples_per_s), (tokens ? "tokens" : "samples") +
				" a second, predicted"),
			tile(percentText(prediction.mfu), "of the machine's peak"),
			tile(percentText(prediction.step_ms ? exposedMs(prediction) / prediction.step_ms : 0), "of the step waits for " +
				"collectives"));
	}
	if (measured && measured.steps.length)
		out.push(tile(timeText(typicalStep(measured).seconds), `a step, ${measured.kind}`));
	out.push(tile(bytesText(mapped), "of memory on a rank" + (prediction ? prediction.fits ? ", which fits" :
		", which does not fit" : ""), prediction ? prediction.fits ? "good" : "bad" : null));
	const loss = data.log.length ? series("loss") : [];
	if (loss.length)
		out.push(tile(numberText(loss[loss.length - 1][1]), "loss at step " + countText(loss[loss.length - 1][0])));
	return el("div", {class: "tiles"}, ...out);
}

function about() {
	const strategies = [...new Set(plan.units.map(unit => unit.strategy))].join(", ");
	return [data.file, data.target === "cuda" ? "for GPUs" : "for CPUs", data.batch ? `${data.batch} ` +
		`${data.batch === 1 ? "sample" : "samples"} a rank and micro-batch` : "", data.optimizer, strategies,
	prediction ? "on " + prediction.machine : ""].filter(text => text).join(" \u00b7 ");
}

function reproduce() {
	return [el("p", null, "The command that wrote this page; without --report it prints the same plan as text."),
		el("pre", null, data.command), el("p", null, "Each category of memory, mapped once before the first step:"),
		table("mapped", [["category", ""], ["bytes", "number", countText], ["", "number"]],
			Object.entries(plan.memory).map(([name, bytes]) => [name.replace(/_/g, " "), bytes, bytesText(bytes)]))];
}

const PARTS = [["Timeline", "timeline", timeline], ["Memory", "memory", memoryChart],
	["Collectives", "collectives", collectives], ["Model", "model", tree], ["Run", "run", run],
	...(plan.alternatives ? [["Answers", "answers", answers]] : []), ["Reproduce", "reproduce", reproduce]];

// What is shown of a step of several micro-batches.
function microBatches() {
	const ms = prediction && prediction.micro_batches_ms;
	const which = data.micro_batches === 1 ? "its only one" : repeated ? `the first, one of the ${repeated.times} between, ` +
		"which run the same program, and the last" : data.micro_batches === 2 ? "the first and the last" :
		"the first, the middle and the last";
	return `A step may have several micro-batches (--accum=many); this one has ${countText(data.micro_batches)}, as ` +
		`--global-batch says or else 3. Shown is ${which}.` + (ms ? ` A step of A takes ${ms.first.toFixed(3)} + (A - 2) ` +
		`\u00d7 ${ms.middle.toFixed(3)} + ${ms.last.toFixed(3)} ms.` : "");
}

(() => {
	const begin = performance.now(), page = document.getElementById("page");
	page.replaceChildren(el("h1", null, data.model), el("p", null, about()),
		el("nav", null, ...PARTS.map(([title, id]) => el("a", {href: "#" + id}, title))), tiles());
	if (data.many)
		page.append(el("p", null, microBatches()));
	for (const [title, id, make] of PARTS)
		page.append(el("section", {id}, el("h2", null, title), ...make()));
	document.body.append(tip);
	window.addEventListener("resize", redrawAll);
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
	redrawAll();
	page.dataset.ms = (performance.now() - begin).toFixed(0);
})();
