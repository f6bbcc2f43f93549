// tree.js: the model as the tree of its modules, with parameters and the units that they are in.
"use strict";

const UNIT_COLORS = ["matmul", "attention", "reduce", "update", "rows", "moves"];

// Long names differ in their ends.
function tail(name) {
	return name.length > 22 ? "\u2026" + name.slice(-21) : name;
}

function chip(unit) {
	return el("span", {class: "chip", title: "unit " + plan.units[unit].name},
		el("i", {style: `background:var(--${UNIT_COLORS[unit % UNIT_COLORS.length]})`}), tail(plan.units[unit].name));
}

// Modules by the dots in names: {name, elements, units, modules, params}.
function readTree() {
	const module = name => ({name, elements: 0, count: 0, units: new Set(), modules: new Map(), params: []});
	const root = module(data.model);
	for (const [path, name, type, elements, trained, unit] of data.params) {
		const parts = path.split(".");
		let at = root;
		for (let depth = 0; depth < parts.length; depth++) {
			at.elements += elements;
			at.count++;
			at.units.add(unit);
			if (depth === parts.length - 1)
				break;
			if (!at.modules.has(parts[depth]))
				at.modules.set(parts[depth], module(parts[depth]));
			at = at.modules.get(parts[depth]);
		}
		at.params.push({name: parts[parts.length - 1], whole: name, type, elements, trained, unit});
	}
	return root;
}

function only(module) {
	const unit = module.units.size === 1 ? [...module.units][0] : -1;
	return unit >= 0 ? unit : null;
}

// Whether the unit begins at this module: all its parameters are in it, and more than these are in the module around.
function moduleRow(module, around) {
	const unit = only(module), begins = unit !== null && (!around || only(around) === null);
	return el("div", {class: "row"}, el("span", {class: "name"}, module.name), begins ? chip(unit) : null,
		el("span", {class: "size"}, `${module.count} ${module.count === 1 ? "parameter" : "parameters"}, ` +
			shortText(module.elements)));
}

function paramRow(param, around) {
	return el("div", {class: "row mono" + (param.trained ? "" : " frozen"), title: param.whole},
		el("span", {class: "name"}, param.name + (param.trained ? "" : " (frozen)")),
		only(around) === null && param.unit >= 0 ? chip(param.unit) : null, el("span", {class: "type"}, param.type),
		el("span", {class: "size"}, shortText(param.elements)));
}

// Modules of several units are open, so that all units are seen; the rows inside of others are made when these are opened.
function moduleNode(module, around, open) {
	const inner = el("div", {class: "inner"});
	let made = false;
	const make = () => {
		if (made)
			return;
		made = true;
		inner.append(...[...module.modules.values()].map(one => moduleNode(one, module, one.units.size > 1)),
			...module.params.map(param => paramRow(param, module)));
	};
	const node = el("details", {open, toggle() { make(); }}, el("summary", null, moduleRow(module, around)), inner);
	if (open)
		make();
	return node;
}

function tree() {
	const root = readTree(), node = moduleNode(root, null, true);
	const box = el("div", {class: "tree"}, node);
	const frozen = data.params.filter(param => !param[4]).length;
	return [el("p", null, `${countText(data.params.length)} parameters, ${shortText(root.elements)} elements` +
		(frozen ? `, ${frozen} of them frozen` : "") + `, in ${plan.units.length} ${plan.units.length === 1 ? "unit" : "units"}. ` +
		"A module that is a unit, or inside of one with others, has its name beside it."), box, ...units()];
}
