/* What a step draws from its machines: the bursts and pauses of each resource, and its use over one step. */
import { add, capital, legend, make, percent, seconds, stackedBar } from "./base.js";
import { useChart } from "./use_chart.js";
import { table } from "./table.js";

const NAMES = { compute: "compute", memory: "memory traffic", receive: "network received", send: "network sent", host: "host link", memory_held: "memory held", flops: "share of peak FLOPs" };
const DRAWN = [["compute", 0], ["memory", 1], ["receive", 2], ["send", 3], ["host", 4], ["memory_held", 6]];
const span = (low, high, text) => low === high ? "" : text(low) + " to " + text(high);

/* `used` is { uses, hz, step_s, leaves_node, rows: [{ name, curves }] }. */
export function use(element, used) {
  figures(element, used);
  const pick = make("select"), place = make("div", "small-charts");
  used.rows.forEach((row, n) => { const option = make("option", "", capital(row.name)); option.value = n; pick.append(option); });
  pick.setAttribute("aria-label", "Rank or node whose use is drawn");
  const draw = () => { place.replaceChildren(); for (const [name, hue] of DRAWN) one(place, used, used.rows[Number(pick.value)], name, hue); };
  pick.addEventListener("change", draw);
  add(element, add(make("p", "hint"), document.createTextNode("One step of "), pick), place);
  draw();
}
export const useHint = (used) => "Bursts and pauses as a monitor on the node of rank 0 sees them" + (used.hz ? ", with " + used.hz + " samples per second" : "") + ". Network: share of "
  + (used.leaves_node ? "all NICs of the node." : "the device’s links inside its node.");

/* A figure that the samples cannot carry, with the reason. */
export const refusedCell = (row, key) => add(make("span", "", "–"), make("div", "detail", (row.refused || {})[key] || "refused"));

/* How long a resource without bursts draws or pauses: as long as one looks. */
const steady = (row, key) => key === "burst_amount" || row.pattern === "bursts" ? "" : (row.pattern === "busy") === (key === "burst_s") ? "all the time" : "none";

function figures(element, used) {
  const rows = Object.entries(used.uses).map(([name, figure]) => ({ name, ...figure }));
  const column = (name, key, text) => ({ name, value: (r) => r[key], cell: (r) => r[key] === null ? refusedCell(r, key) : steady(r, key) ? make("span", "", steady(r, key)) : add(make("span", "", text(r[key])), make("div", "detail", span(r.low[key], r.high[key], text))), right: true });
  element.append(table(rows, [
    { name: "Resource", value: (r) => r.name, text: (r) => capital(NAMES[r.name]) },
    { name: "Pattern", value: (r) => r.pattern, text: (r) => r.pattern },
    column("Amount of a burst", "burst_amount", percent), column("Burst lasts", "burst_s", seconds), column("Pause lasts", "idle_s", seconds),
  ], { label: "Bursts and pauses of each resource" }).element);
}

function one(parent, used, row, name, hue) {
  const other = name === "compute" ? row.curves.flops : null;
  const element = useChart(parent, { title: NAMES[name], hue, values: row.curves[name], other, seconds: used.step_s, names: [NAMES[name], NAMES.flops], at: (time) => row.name + " after " + time });
  if (other) element.append(make("p", "hint", "Filled: a kernel runs. Line: share of the peak FLOP rate."));
}

const BOUND = [["forward", "Computation", "computation_s"], ["backward", "Memory access", "memory_access_s"], ["communication", "Communication", "communication_s"], ["optimizer", "Host copies", "host_copies_s"], ["host", "Host", "host_s"]];
const SHOWN = 12;

/* What bounds the step, and its longest operators. */
export function bound(element, split) {
  const parts = [...BOUND.map(([name, title, key]) => [name, title, split[key]]), ["bubble", "Other ranks", split.waiting_s], ["other", "Calibration", split.calibrated_s]].filter((p) => p[2] > 0);
  const total = parts.reduce((sum, p) => sum + p[2], 0);
  add(element, stackedBar(parts, seconds), legend(parts, seconds, total));
  const longest = split.operators[0] ? split.operators[0].seconds : 1;
  element.append(table(split.operators.slice(0, SHOWN), [
    { name: "Operator", value: (r) => r.label, text: (r) => r.label, className: "label" },
    { name: "", cell: (r) => stackedBar(BOUND.map(([name, title, key]) => [name, title, r[key]]), seconds, { room: longest, least: 2 }), className: "share" },
    { name: "Time", value: (r) => r.seconds, text: (r) => seconds(r.seconds), right: true },
    { name: "Bound by", value: (r) => r.bound_by, text: (r) => r.bound_by.replace("_", " ") },
  ], { label: "Operators by what bounds them" }).element);
}
