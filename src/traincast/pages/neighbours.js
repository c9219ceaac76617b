/* The measured runs nearest to this one: how far away they are, and how far their forecasts were off. */
import { add, breakable, code, make, seconds, shape, three, whole } from "./base.js";
import { chart, note, point, ticks } from "./chart.js";
import { table } from "./table.js";

export const neighboursHint = "Each point is a measured run. The further right, the less it is like this one; the further up, the more its forecast was too long. The band is this forecast’s 90 % interval.";
const signed = (x) => (Math.abs(x) < 0.005 ? "" : x < 0 ? "−" : "+") + (100 * Math.abs(x)).toFixed(0) + " %";
const off = (run) => run.predicted_s / run.measured_s - 1;

export function neighbours(element, { evidence: runs, evidence_words: words, step_s: step, low_s: low, high_s: high }) {
  const [first, ...rest] = words, list = make("ul", "worst");
  element.append(make("p", "say", first[0].toUpperCase() + first.slice(1) + "."));
  const bottom = step / high - 1, top = step / low - 1, all = [0, bottom, top, ...runs.map(off)];
  const reach = [Math.min(...all), Math.max(...all)], room = 0.12 * (reach[1] - reach[0]), far = Math.max(1, ...runs.map((r) => r.distance)) * 1.12;
  chart(element, {
    height: 190, left: 62, label: "Errors of the forecasts of " + runs.length + " measured runs by their distance from this one", name: "strip",
    axes: (wide, tall) => ({
      x: { low: 0, high: far, ticks: ticks(0, far, wide / 90).map((t) => [t, three(t)]), title: "distance from this run" },
      y: { low: reach[0] - room, high: reach[1] + room, ticks: ticks(reach[0] - room, reach[1] + room, tall / 34).map((t) => [t, signed(t)]), title: "forecast off by" },
    }),
    draw: (plot) => {
      const { svg, x, y, wide, room: edge } = plot;
      add(svg, shape("rect", { x: x(0), y: y(top), width: wide - edge.right - x(0), height: Math.max(1, y(bottom) - y(top)) }, "wide"), shape("line", { x1: x(0), x2: wide - edge.right, y1: y(0), y2: y(0) }, "limit"));
      note(plot, "as measured", wide - edge.right - 4, y(0) - 5, "end");
      for (const run of runs) point(plot, shape("circle", { cx: x(run.distance), cy: y(off(run)), r: 6 }, "dot"), () => about(run));
    },
  });
  const made = table(runs, [
    { name: "Source", value: (r) => r.source, text: (r) => r.source, className: "label" },
    { name: "Run", value: (r) => r.model, cell: (r) => breakable(make("span"), r.model + " on " + whole(r.devices) + " " + r.device), className: "label" },
    { name: "Strategy", value: (r) => r.strategy, cell: (r) => code(r.strategy) },
    { name: "Measured", value: (r) => r.measured_s, text: (r) => seconds(r.measured_s), right: true },
    { name: "Forecast off by", value: off, text: (r) => signed(off(r)), right: true },
    { name: "Distance", value: (r) => r.distance, text: (r) => r.distance.toFixed(1), right: true },
  ], { label: "Nearest measured runs" });
  element.append(made.element);
  for (const text of rest) list.append(breakable(make("li"), text));
  if (rest.length) add(element, make("h3", "", "What nobody measured"), list);
}
function about(run) {
  return [run.source, [["run", run.model], ["on", whole(run.devices) + " " + run.device], ["measured", seconds(run.measured_s)], ["forecast", seconds(run.predicted_s) + ", " + signed(off(run))], ["distance", run.distance.toFixed(1)]],
    run.differs.length ? "Differs: " + run.differs.join(", ") + "." : "The same settings as here."];
}
