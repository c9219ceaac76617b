/* The page of a sampled run: what it drew over time and, beside it, what its forecast says. */
import { add, capital, card, header, make, percent, seconds, secondsParts, shape, tile, tiles, warnings, whole } from "./base.js";
import { chart, follow, ticks } from "./chart.js";
import { table } from "./table.js";

const NAMES = { compute: "compute", memory: "memory traffic", receive: "network received", send: "network sent", processor: "processor (cores)", held: "memory held by processes" };
const HUES = { compute: 0, memory: 1, receive: 2, send: 3, processor: 4, held: 6 };

export function sampled(root, data) {
  const { about } = data, found = data.comparison;
  header(root, { kind: found ? "comparison" : "monitored run", title: about.title || about.command, facts: about.facts || [["samples", whole(about.samples)], ["processes", whole(about.processes)]] });
  const row = tiles(root);
  if (found) {
    tile(row, "Measured step", secondsParts(found.measured_step_s), about.steps || "");
    tile(row, "Forecast step", secondsParts(found.predicted_step_s), about.source || "");
    for (const curve of data.curves) if (curve.correlation !== null && curve.correlation !== undefined) tile(row, "Correlation, " + NAMES[curve.name], [curve.correlation.toFixed(3)], "");
  } else {
    tile(row, "Time sampled", secondsParts(data.seconds), whole(about.samples) + " readings");
    tile(row, "Processor time", secondsParts(about.processor_s), "");
    tile(row, "Cost of sampling", percent(about.sampler_cpu_share).split(" "), "of a core");
  }
  warnings(root, about.warnings || []);
  figures(card(root, "Bursts and pauses", "Amounts are shares of the peak. " + whole(data.hz) + " samples per second."), data);
  const place = add(card(root, found ? "One step" : "Use over time", found ? "Filled: mean of the measured steps. Line: forecast." : ""), make("div", "small-charts")).lastChild;
  for (const curve of data.curves) if (curve.measured) one(place, data, curve, curve.name);
  if (data.held) one(place, data, { measured: data.held.values, unit: data.held.peak }, "held");
  root.append(make("footer", "", (found ? "A measured run beside its forecast." : "A run as a sampler saw it.") + " This file is complete: it loads nothing and sends nothing."));
}

function figures(element, data) {
  const found = data.comparison, uses = found ? found.measured : data.uses;
  const rows = Object.entries(uses).filter(([, use]) => use).map(([name, use]) => ({ name, ...use, other: found ? found.predicted[name] : null, errors: found ? found.errors[name] : null }));
  const size = (error) => error === null ? "" : (error > 0 ? "+" : "−") + percent(Math.abs(error));
  const column = (name, key, text) => ({
    name, right: true, value: (r) => r[key],
    cell: (r) => add(make("span", "", text(r[key])), r.other ? make("div", "detail", text(r.other[key]) + " forecast " + size(r.errors[key])) : make("div")),
  });
  element.append(table(rows, [
    { name: "Resource", value: (r) => r.name, text: (r) => capital(NAMES[r.name]) },
    { name: "Pattern", value: (r) => r.pattern, text: (r) => r.other && r.other.pattern !== r.pattern ? r.pattern + " (forecast: " + r.other.pattern + ")" : r.pattern },
    column("Amount of a burst", "burst_amount", percent), column("Burst lasts", "burst_s", seconds), column("Pause lasts", "idle_s", seconds),
  ], { label: "Bursts and pauses of each resource" }).element);
}

function one(parent, data, curve, name) {
  const values = curve.measured, other = curve.predicted, element = make("div");
  parent.append(element);
  add(element, make("h3", "", capital(NAMES[name])));
  const most = Math.max(1e-6, ...values, ...(other || [])), top = most < 0.25 ? most * 1.15 : Math.max(1, most) * 1.03;
  const at = (n) => n / values.length * data.seconds;
  chart(element, {
    height: 132, label: NAMES[name] + " over time", left: 46, bottom: 32, name: "use",
    axes: (wide) => ({
      x: { low: 0, high: data.seconds, ticks: ticks(0, data.seconds, wide / 80).map((t) => [t, seconds(t)]) },
      y: { low: 0, high: top, ticks: ticks(0, top, 3).map((v) => [v, Number((100 * v).toPrecision(3)) + " %"]) },
    }),
    draw: (plot) => {
      const { svg, x, y } = plot, line = (v) => v.map((level, n) => (n ? "L" : "M") + x(at(n)).toFixed(1) + " " + y(level).toFixed(1) + "H" + x(at(n + 1)).toFixed(1)).join("");
      const area = shape("path", { d: line(values) + "V" + y(0) + "H" + x(0) + "Z" }, "area");
      area.style.fill = "var(--c" + HUES[name] + ")";
      area.style.fillOpacity = 0.55;
      svg.append(area);
      if (other) { const path = shape("path", { d: line(other) }, "line"); path.style.setProperty("--hue", "var(--ink)"); svg.append(path); }
      follow(plot, (px) => {
        const n = Math.min(values.length - 1, Math.max(0, Math.floor(x.invert(px) / data.seconds * values.length)));
        const rows = [[other ? "measured" : NAMES[name], percent(values[n])], ...(other ? [["forecast", percent(other[n])]] : [])];
        return { tip: ["after " + seconds(at(n)), rows], mark: [x(at(n)), plot.room.top, Math.max(1, x(at(n + 1)) - x(at(n))), y(0) - plot.room.top] };
      });
    },
  });
  if (curve.unit) element.append(make("p", "hint", "100 % is " + (curve.unit / 2 ** 30).toFixed(2) + " GiB."));
}
