/* Lines of policies: over time, and as distributions. The chosen one and the one pointed at are named in the chart. */
import { add, legend, make, percent, seconds, shape } from "./base.js";
import { chart, clockTicks, follow, nice, note } from "./chart.js";

const SHOWN = 12;

/* Draws the line of each policy, cut off at the edges of the chart: `paths` are the lines, `ends` the places of their
   names. Returns a function that draws anew who is chosen and pointed at. */
function draw(plot, choice, { paths, ends }) {
  const { svg, wide, high, room } = plot, width = Math.max(1, wide - room.left - room.right), height = high - room.bottom + 2;
  const layer = shape("svg", { x: room.left, y: 0, width, height, viewBox: [room.left, 0, width, height].join(" ") }), labels = shape("g", {});
  const nodes = paths.map((d, n) => choice.dress(shape("path", { d }), n));
  svg.append(add(layer, ...nodes), labels);
  const again = () => {
    nodes.forEach((node, n) => node.setAttribute("class", choice.role(n)));
    const last = [choice.chosen, choice.lit].filter((n) => n >= 0);
    for (const n of last) layer.append(nodes[n]);
    labels.replaceChildren();
    const taken = [];
    if (choice.policies.length > 1) for (const n of new Set(last)) {
      let [x, y] = ends[n];
      if (taken.some(([u, v]) => Math.abs(u - x) < 80 && Math.abs(v - y) < 14)) y = taken[0][1] < 28 ? taken[0][1] + 15 : taken[0][1] - 15;
      taken.push([x, y]);
      const text = note(plot, choice.policies[n].policy, x, y, "end", "note strong");
      text.style.fill = "var(--c" + n % 10 + ")";
      labels.append(text);
    }
  };
  again();
  return again;
}
/* The rows of a tooltip: all policies, or of many the chosen one, the one pointed at and the extremes. */
function listed(choice, values, format) {
  const rows = choice.policies.map((p, n) => [n, p.policy, values[n]]).sort((a, b) => b[2] - a[2]);
  const kept = rows.length <= SHOWN ? rows : rows.filter(([n], k) => n === choice.chosen || n === choice.lit || k < 5 || k >= rows.length - 5);
  const found = kept.map(([n, name, value]) => [(n === choice.chosen ? "▸ " : n === choice.lit ? "• " : "") + name, format(value)]);
  return kept.length < rows.length ? [...found, ["", (rows.length - kept.length) + " more between"]] : found;
}
/* The policy whose value is nearest to `wanted`, within a tenth of `span`. */
function nearest(values, wanted, span) {
  let best = -1;
  values.forEach((v, n) => { if (Math.abs(v - wanted) < span / 10 && (best < 0 || Math.abs(v - wanted) < Math.abs(values[best] - wanted))) best = n; });
  return best;
}

/* A curve over time. `time` is the shared window: { from, to, span, on(act) }. */
export function curve(element, choice, time, { name, title, label, most, format, outages = false }) {
  const bins = choice.policies[0].curves[name].length, at = (b) => b / bins * time.span;
  let light = () => {};
  const again = chart(element, {
    height: 150, label, left: 62, bottom: 40, name: "curve",
    axes: (wide, high) => {
      const step = most === 1 ? 0.25 : Math.max(1, nice(Math.max(most * 2 / (high / 28) / 2, 1e-9))), marks = [];
      for (let v = 0; v <= most * 1.001; v += step) marks.push([v, format(v)]);
      return { x: { low: time.from, high: time.to, ticks: clockTicks(time.from, time.to, wide / 90), title: "time since the first submission" }, y: { low: 0, high: most * 1.04, ticks: marks, title } };
    },
    draw: (plot) => {
      const { x, y, svg } = plot, place = (values) => {
        let d = "";
        for (let b = 0; b < bins; b += 1) d += (b ? "L" : "M") + x(at(b)).toFixed(1) + " " + y(values[b]).toFixed(1) + "H" + x(at(b + 1)).toFixed(1);
        return d;
      };
      const middle = Math.min(bins - 1, Math.max(0, Math.floor((time.from + (time.to - time.from) * 0.97) / time.span * bins)));
      const ends = choice.policies.map((p) => [x(at(middle)), Math.max(18, y(p.curves[name][middle]) - 6)]);
      light = draw(plot, choice, { paths: choice.policies.map((p) => place(p.curves[name])), ends });
      if (outages && choice.policy.curves.down.some((v) => v > 0)) svg.append(shape("path", { d: place(choice.policy.curves.down) }, "line outage"));
      follow(plot, (px, py) => {
        const b = Math.floor(x.invert(px) / time.span * bins), values = choice.policies.map((p) => p.curves[name][b]);
        if (b < 0 || b >= bins) return null;
        if (choice.policies.length > 1) choice.light(nearest(values, y.invert(py), most));
        const rows = listed(choice, values, format);
        if (outages && choice.policy.curves.down[b] > 0) rows.push(["out of service", percent(choice.policy.curves.down[b])]);
        return { tip: [seconds(at(b + 0.5)), rows], mark: [px - 0.5, plot.room.top, 1, y(0) - plot.room.top] };
      }, () => choice.light(-1));
    },
  });
  choice.on((what) => { if (what === "chosen" && outages) again(); else light(); });
  time.on(again);
}

const STOPS = [[0.001, "1 ms"], [0.01, "10 ms"], [0.1, "0.1 s"], [1, "1 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"], [3600, "1 h"], [21600, "6 h"], [86400, "1 d"], [604800, "7 d"], [2592000, "30 d"], [31536000, "1 y"]];

/* The share of jobs below a time, on a scale of powers of ten. */
export function distribution(element, choice, { name, title, label }) {
  const all = choice.policies.flatMap((p) => p[name]), most = all.reduce((a, b) => Math.max(a, b), 1), positive = all.filter((v) => v > 0), least = Math.max(positive.reduce((a, b) => Math.min(a, b), most), most / 1e6, 1e-3);
  const low = least * 0.9, high = Math.max(most, low * 3);
  let light = () => {};
  chart(element, {
    height: 250, label, name: "distribution",
    axes: () => ({
      x: { low, high, log: true, ticks: STOPS.filter(([t]) => t >= low && t <= high), title: title + " (logarithmic)" },
      y: { low: 0, high: 1, ticks: [0, 0.25, 0.5, 0.75, 1].map((q) => [q, 100 * q + " %"]), title: "share of jobs" },
    }),
    draw: (plot) => {
      const { x, y, wide, room } = plot, last = choice.policies[0][name].length - 1, at = (v) => x(Math.max(v, low));
      const paths = choice.policies.map((p) => p[name].map((v, k) => (k ? "L" : "M") + at(v).toFixed(1) + " " + y(k / last).toFixed(1)).join("") + "H" + (wide - room.right));
      const ends = choice.policies.map((p) => { const k = Math.round(last * 0.8); return [Math.max(room.left + 80, at(p[name][k]) - 6), y(k / last) - 4]; });
      light = draw(plot, choice, { paths, ends });
      follow(plot, (px, py) => {
        const t = x.invert(px), values = choice.policies.map((p) => p[name].filter((v) => v <= t).length / (last + 1));
        if (choice.policies.length > 1) choice.light(nearest(values, y.invert(py), 1));
        return { tip: ["Within " + seconds(t), listed(choice, values, percent)], mark: [px - 0.5, room.top, 1, y(0) - room.top] };
      }, () => choice.light(-1));
    },
  });
  choice.on(() => light());
}

/* The legend of all lines; an entry lights its line, and shows its policy when pressed. */
export function lineLegend(element, choice) {
  const outer = make("ul", "key");
  const fails = choice.policies.some((p) => p.curves.down.some((v) => v > 0));
  if (choice.many) outer.append(make("li", "", "All policies are drawn; grey lines get their colour when you point at them, at a row of the table, or at a button at the top."));
  else if (choice.policies.length > 1) choice.policies.forEach((p, n) => {
    const svg = shape("svg", { viewBox: "0 0 22 12", "aria-hidden": "true" });
    svg.append(choice.dress(shape("path", { d: "M0 6H22" }), n));
    outer.append(add(make("li"), svg, make("span", "", p.policy)));
  });
  if (fails) outer.append(...legend([["down", "out of service (dashed)"]]).children);
  element.append(outer);
}
