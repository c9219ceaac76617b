/* The page of a sampled run: what it drew over time and, beside it, what its forecast says. */
import { add, capital, card, header, make, percent, seconds, secondsParts, tile, tiles, warnings, whole } from "./base.js";
import { table } from "./table.js";
import { refusedCell } from "./use.js";
import { useChart } from "./use_chart.js";

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
  const rows = Object.entries(uses).filter(([, use]) => use).map(([name, use]) => ({ name, ...use, other: found ? found.predicted[name] : null, errors: found ? found.errors[name] : null, ...(found ? { refused: found.refused[name] } : {}) }));
  const size = (error) => error === null ? "" : (error > 0 ? "+" : "−") + percent(Math.abs(error));
  const column = (name, key, text) => ({
    name, right: true, value: (r) => r[key],
    cell: (r) => r[key] === null ? refusedCell(r, key) : add(make("span", "", text(r[key])), r.other ? make("div", "detail", (r.other[key] === null ? "–" : text(r.other[key])) + " forecast " + size(r.errors[key])) : make("div")),
  });
  element.append(table(rows, [
    { name: "Resource", value: (r) => r.name, text: (r) => capital(NAMES[r.name]) },
    { name: "Pattern", value: (r) => r.pattern, text: (r) => r.other && r.other.pattern !== r.pattern ? r.pattern + " (forecast: " + r.other.pattern + ")" : r.pattern },
    column("Amount of a burst", "burst_amount", percent), column("Burst lasts", "burst_s", seconds), column("Pause lasts", "idle_s", seconds),
  ], { label: "Bursts and pauses of each resource" }).element);
}

function one(parent, data, curve, name) {
  const element = useChart(parent, {
    title: NAMES[name], hue: HUES[name], values: curve.measured, other: curve.predicted, seconds: data.seconds,
    names: curve.predicted ? ["measured", "forecast"] : [NAMES[name]], at: (time) => "after " + time,
  });
  if (curve.unit) element.append(make("p", "hint", "100 % is " + (curve.unit / 2 ** 30).toFixed(2) + " GiB."));
}
