/* How far a forecast is from a run: errors of every device and class of spans, and the largest of them. */
import { add, make, percent, seconds } from "./base.js";
import { table } from "./table.js";

const FIGURES = ["start", "end", "busy"];
/* A signed error in per cent. */
export const size = (x) => x === null || x === undefined ? "–" : Math.abs(x) < 0.0005 ? "0 %" : (x < 0 ? "−" : "+") + (100 * Math.abs(x)).toFixed(1) + " %";
const device = (rank, ranks) => rank < ranks ? "rank " + rank : "server " + (rank - ranks);

export function disagreements(element, found) {
  const list = make("ol", "worst");
  for (const one of found.worst) {
    const noise = one.figure === "missing" ? "" : " (noise " + percent(one.noise) + ")";
    list.append(add(make("li"), make("b", "", device(one.rank, found.num_ranks) + ", " + one.class), document.createTextNode(": " + sentence(one) + noise)));
  }
  element.append(list);
}
function sentence(one) {
  const share = percent(Math.abs(one.error));
  if (one.figure === "missing") return "only in the " + (one.measured_s === null ? "forecast" : "run") + ", busy for " + share + " of the step";
  const times = " (" + seconds(one.predicted_s) + " instead of " + seconds(one.measured_s) + ")";
  if (one.figure === "busy") return "the forecast is busy " + (one.error > 0 ? "longer" : "shorter") + " by " + share + times;
  return "the forecast " + one.figure + "s " + (one.error > 0 ? "later" : "earlier") + " by " + share + times;
}

export function activities(element, found) {
  const rows = found.by_device.flatMap((d) => d.classes.map((c) => ({ ...c, rank: d.rank }))), ranks = found.num_ranks, largest = Math.max(...rows.map((r) => r.error), 1e-9);
  const whole = (f) => (r) => r.errors[f] === undefined ? null : r.errors[f];
  const times = (side) => (r) => r[side] ? seconds(r[side].busy_s) : "–";
  const summary = table(found.by_device, [
    { name: "Device", value: (d) => d.rank, text: (d) => device(d.rank, ranks) },
    { name: "Error", value: (d) => d.error, text: (d) => percent(d.error), right: true },
    { name: "Noise", value: (d) => d.noise, text: (d) => percent(d.noise), right: true },
    { name: "Shift of spans", value: (d) => d.span_shift, text: (d) => d.span_shift === null ? "–" : percent(d.span_shift), right: true },
    { name: "Idle, run", value: (d) => d.measured_idle_s, text: (d) => seconds(d.measured_idle_s), right: true },
    { name: "Idle, forecast", value: (d) => d.predicted_idle_s, text: (d) => seconds(d.predicted_idle_s), right: true },
  ], { label: "Activity error of each device" });
  const detail = table(rows, [
    { name: "Device", value: (r) => r.rank, text: (r) => device(r.rank, ranks) },
    { name: "Class", value: (r) => r.class, text: (r) => r.class },
    { name: "", cell: (r) => { const i = make("i", "communication"); i.style.width = 100 * r.error / largest + "%"; return add(make("div", "thin"), i); }, className: "share" },
    { name: "Error", value: (r) => r.error, text: (r) => percent(r.error), right: true },
    { name: "Noise", value: (r) => r.noise, text: (r) => percent(r.noise), right: true },
    ...FIGURES.map((f) => ({ name: f[0].toUpperCase() + f.slice(1), value: whole(f), text: (r) => size(whole(f)(r)), right: true })),
    { name: "Busy, run", value: (r) => r.measured && r.measured.busy_s, text: times("measured"), right: true },
    { name: "Busy, forecast", value: (r) => r.predicted && r.predicted.busy_s, text: times("predicted"), right: true },
  ], { label: "Errors of each device and class" });
  element.append(summary.element, make("h3", "", "By class"), detail.element);
}
