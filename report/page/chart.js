// chart.js: what charts share: canvases that follow the size and colours of the page, a range that is zoomed and moved,
// and the text at the pointer.
"use strict";

const FONT = '12px system-ui, "DejaVu Sans", sans-serif';

function color(name) {
	return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim() || "#888";
}

// Colours by name, read once for each drawing.
function colors() {
	const cache = new Map();
	return name => {
		if (!cache.has(name))
			cache.set(name, color(name));
		return cache.get(name);
	};
}

// Black or white, whichever is read more easily on a colour "#rrggbb" (relative luminance of WCAG 2).
function inkOn(background) {
	const [r, g, b] = [1, 3, 5].map(i => parseInt(background.slice(i, i + 2), 16) / 255)
		.map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
	return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

const charts = [];

// A canvas of some height that draw(context, width, height, colors) fills; draw returns how many marks it has drawn.
function chart(label, height, draw) {
	const canvas = el("canvas", {role: "img", "aria-label": label, tabindex: "0"});
	const self = {canvas, pending: false, redraw() {
		if (self.pending)
			return;
		self.pending = true;
		requestAnimationFrame(() => {
			self.pending = false;
			const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, tall = height();
			canvas.style.height = tall + "px";
			canvas.width = Math.round(width * ratio);
			canvas.height = Math.round(tall * ratio);
			const context = canvas.getContext("2d");
			context.scale(ratio, ratio);
			context.font = FONT;
			context.textBaseline = "middle";
			const begin = performance.now();
			canvas.dataset.drawn = width > 0 ? draw(context, width, tall, colors()) : 0;
			canvas.dataset.ms = (performance.now() - begin).toFixed(1);
		});
	}};
	charts.push(self);
	return self;
}

function redrawAll() {
	charts.forEach(one => one.redraw());
}

// ---- the text at the pointer ----

const tip = el("div", {class: "tip", hidden: true});

function showTip(event, title, lines) {
	tip.replaceChildren(el("b", null, title), ...lines.map(line => el("div", null, line)));
	tip.hidden = false;
	const box = tip.getBoundingClientRect();
	tip.style.left = Math.max(4, Math.min(event.clientX + 14, window.innerWidth - box.width - 8)) + "px";
	tip.style.top = Math.max(4, event.clientY + 18 + box.height > window.innerHeight ? event.clientY - box.height - 10
		: event.clientY + 18) + "px";
}

function hideTip() {
	tip.hidden = true;
}

// ---- ranges ----

// The part [from, to] of [0, all] that a chart shows between pixels left and width - right.
function range(all, left, right) {
	return {from: 0, to: all(), all, left, right,
		x(value, width) { return left + (value - this.from) / (this.to - this.from) * (width - left - right); },
		value(x, width) { return this.from + (x - left) / (width - left - right) * (this.to - this.from); },
		set(from, to) {
			const most = all(), span = Math.min(Math.max(to - from, most / 1e6), most);
			this.from = Math.min(Math.max(from, 0), most - span);
			this.to = this.from + span;
		},
		zoom(factor, at) {
			this.set(at - (at - this.from) * factor, at + (this.to - at) * factor);
		},
		move(share) {
			this.set(this.from + share * (this.to - this.from), this.to + share * (this.to - this.from));
		}};
}

// Wheel with ctrl or shift and pinch zoom, dragging moves, keys do both; a double click shows everything.
function zooms(one, view) {
	const canvas = one.canvas;
	let drag = null;
	canvas.classList.add("zooms");
	const at = event => view.value(event.clientX - canvas.getBoundingClientRect().left, canvas.clientWidth);
	canvas.addEventListener("wheel", event => {
		const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
		if (!event.ctrlKey && !event.shiftKey && !event.altKey && !sideways)
			return;
		event.preventDefault();
		if (sideways && !event.shiftKey)
			view.move(event.deltaX / 800);
		else
			view.zoom(Math.exp((event.deltaY || event.deltaX) / 300), at(event));
		one.redraw();
	}, {passive: false});
	canvas.addEventListener("pointerdown", event => {
		drag = event.button ? null : {x: event.clientX, from: view.from, to: view.to};
		canvas.setPointerCapture(event.pointerId);
	});
	canvas.addEventListener("pointermove", event => {
		if (!drag)
			return;
		const shift = (event.clientX - drag.x) / (canvas.clientWidth - view.left - view.right) * (drag.to - drag.from);
		view.set(drag.from - shift, drag.to - shift);
		hideTip();
		one.redraw();
	});
	for (const name of ["pointerup", "pointercancel"])
		canvas.addEventListener(name, () => { drag = null; });
	canvas.addEventListener("dblclick", () => { view.set(0, view.all()); one.redraw(); });
	canvas.addEventListener("keydown", event => {
		const middle = (view.from + view.to) / 2;
		const acts = {ArrowLeft: () => view.move(-0.15), ArrowRight: () => view.move(0.15), "+": () => view.zoom(0.6, middle),
			"=": () => view.zoom(0.6, middle), "-": () => view.zoom(1 / 0.6, middle), 0: () => view.set(0, view.all())};
		if (!acts[event.key] || event.ctrlKey || event.metaKey)
			return;
		event.preventDefault();
		acts[event.key]();
		one.redraw();
	});
}

function zoomButtons(one, view) {
	const act = (text, label, run) => el("button", {type: "button", "aria-label": label, title: label, click() {
		run();
		one.redraw();
	}}, text);
	return el("span", null, act("+", "zoom in", () => view.zoom(0.6, (view.from + view.to) / 2)), " ",
		act("\u2212", "zoom out", () => view.zoom(1 / 0.6, (view.from + view.to) / 2)), " ",
		act("all", "show everything", () => view.set(0, view.all())));
}

function legend(entries) {
	return el("div", {class: "legend"}, ...entries.map(([name, text]) => el("span", null,
		el("i", {style: `background:var(--${name})`}), text)));
}

// A line of numbers below a chart.
function axisBelow(context, view, width, y, text, paint) {
	context.fillStyle = paint("dim");
	context.strokeStyle = paint("line");
	context.textAlign = "center";
	for (const tick of ticks(view.from, view.to, Math.max(2, (width - view.left) / 110))) {
		const x = Math.round(view.x(tick, width)) + 0.5;
		context.beginPath();
		context.moveTo(x, 0);
		context.lineTo(x, y + 3);
		context.stroke();
		context.fillText(text(tick), Math.min(Math.max(x, 24), width - 26), y + 12);
	}
	context.textAlign = "left";
}

// Text that can be read on any area.
function clearText(context, text, x, y, paint) {
	context.strokeStyle = paint("back");
	context.lineWidth = 4;
	context.lineJoin = "round";
	context.strokeText(text, x, y);
	context.lineWidth = 1;
	context.fillStyle = paint("text");
	context.fillText(text, x, y);
}

// Shortens text to the room there is; "" where nothing fits.
function fitted(context, text, room) {
	const n = Math.floor(room / 6.2);
	return n >= text.length || context.measureText(text).width <= room ? text : n < 4 ? "" : text.slice(0, n - 1) + "\u2026";
}
