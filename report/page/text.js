// text.js: elements and numbers.  All text of the data enters the page as text nodes, never as HTML.
"use strict";

// An element with attributes and children; functions among the attributes are listeners.
function el(tag, attributes, ...children) {
	const node = document.createElement(tag);
	for (const [name, value] of Object.entries(attributes || {}))
		if (typeof value === "function")
			node.addEventListener(name, value);
		else if (value !== null && value !== undefined && value !== false)
			node.setAttribute(name, value === true ? "" : value);
	node.append(...children.filter(child => child !== null && child !== undefined));
	return node;
}

function bytesText(n) {
	const units = ["B", "KiB", "MiB", "GiB", "TiB"];
	let u = 0;
	for (; n >= 1024 && u < units.length - 1; u++)
		n /= 1024;
	return (u ? n.toFixed(n < 10 ? 2 : 1) : n) + " " + units[u];
}

function countText(n) {
	return Math.round(n).toLocaleString("en");
}

// Elements of parameters: 124.4M.
function shortText(n) {
	const units = ["", "k", "M", "G", "T"];
	let u = 0;
	for (; n >= 1000 && u < units.length - 1; u++)
		n /= 1000;
	return (u ? n.toPrecision(Math.max(3, Math.ceil(Math.log10(n + 1)))) : n) + units[u];
}

// Microseconds, with three digits at least.
function timeText(us) {
	const [value, unit] = us >= 1e6 ? [us / 1e6, "s"] : us >= 1000 ? [us / 1000, "ms"] : [us, "\u00b5s"];
	return (value >= 1000 || !value ? value.toFixed(0) : value.toPrecision(Math.max(3, Math.ceil(Math.log10(value))))) +
		" " + unit;
}

// A number of a run: six digits at most.
function numberText(x) {
	return x === null || x === undefined ? "-" : x !== 0 && (Math.abs(x) < 1e-4 || Math.abs(x) >= 1e7) ?
		x.toExponential(3) : Number(x.toPrecision(6)).toLocaleString("en", {maximumSignificantDigits: 6});
}

function percentText(share) {
	return (100 * share).toFixed(1) + "%";
}

// Numbers that are easy to read, about n of them, from `from` to `to`.
function ticks(from, to, n) {
	const rough = (to - from) / Math.max(n, 1), power = 10 ** Math.floor(Math.log10(rough));
	const step = [1, 2, 5, 10].map(x => x * power).find(x => x >= rough * 0.999);
	const out = [];
	if (!(step > 0) || !isFinite(step))
		return out;
	for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9 && out.length < 100; i++)
		out.push(i * step || 0); /* not -0 */
	return out;
}
