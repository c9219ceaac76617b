/* What a step draws from its machines: the bursts and pauses of each resource, and its use over one step. */
import { add, capital, legend, make, percent, seconds, shape, stackedBar } from "./base.js";
import { chart, follow, ticks } from "./chart.js";
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

function figures(element, used) {
  const rows = Object.entries(used.uses).map(([name, figure]) => ({ name, ...figure }));
  const column = (name, key, text) => ({ name, value: (r) => r[key], cell: (r) => add(make("span", "", text(r[key])), make("div", "detail", span(r.low[key], r.high[key], text))), right: true });
  element.append(table(rows, [
    { name: "Resource", value: (r) => r.name, text: (r) => capital(NAMES[r.name]) },
    { name: "Pattern", value: (r) => r.pattern, text: (r) => r.pattern },
    column("Amount of a burst", "burst_amount", percent), column("Burst lasts", "burst_s", seconds), column("Pause lasts", "idle_s", seconds),
  ], { label: "Bursts and pauses of each resource" }).element);
}

function one(parent, used, row, name, hue) {
  const values = row.curves[name], other = name === "compute" ? row.curves.flops : null, element = make("div");
  parent.append(element);
  add(element, make("h3", "", capital(NAMES[name])));
  const most = Math.max(1e-6, ...values), top = most > 0.001 && most < 0.25 ? most * 1.15 : Math.max(1, most) * 1.03, at = (n) => n / values.length * used.step_s;
  chart(element, {
    height: 132, label: NAMES[name] + " over one step", left: 46, bottom: 32, name: "use",
    axes: (wide) => ({
      x: { low: 0, high: used.step_s, ticks: ticks(0, used.step_s, wide / 80).map((t) => [t, seconds(t)]) },
      y: { low: 0, high: top, ticks: ticks(0, top, 3).map((v) => [v, Number((100 * v).toPrecision(3)) + " %"]) },
    }),
    draw: (plot) => {
      const { svg, x, y } = plot, line = (v) => v.map((level, n) => (n ? "L" : "M") + x(at(n)).toFixed(1) + " " + y(level).toFixed(1) + "H" + x(at(n + 1)).toFixed(1)).join("");
      const area = shape("path", { d: line(values) + "V" + y(0) + "H" + x(0) + "Z" }, "area");
      area.style.fill = "var(--c" + hue + ")";
      area.style.fillOpacity = 0.55;
      svg.append(area);
      if (other) { const path = shape("path", { d: line(other) }, "line"); path.style.setProperty("--hue", "var(--ink)"); svg.append(path); }
      follow(plot, (px) => {
        const n = Math.min(values.length - 1, Math.max(0, Math.floor(x.invert(px) / used.step_s * values.length)));
        const rows = [[NAMES[name], percent(values[n])], ...(other ? [[NAMES.flops, percent(other[n])]] : [])];
        return { tip: [row.name + " after " + seconds(at(n)), rows], mark: [x(at(n)), plot.room.top, Math.max(1, x(at(n + 1)) - x(at(n))), y(0) - plot.room.top] };
      });
    },
  });
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
