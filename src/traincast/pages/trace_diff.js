/* The page of two traces, or of a trace and a forecast: where both steps go, and what each operator takes. */
import { add, capital, card, header, legend, make, percent, seconds, secondsParts, stackedBar, tile, tiles, warnings } from "./base.js";
import { table } from "./table.js";

const HUES = ["compute", "exposed_communication", "bubble", "optimizer", "overhead", "other"];
const signed = (s) => (s < 0 ? "−" : s > 0 ? "+" : "") + seconds(Math.abs(s));
const change = (d) => d.after_s - d.before_s;
const times = (d) => d.before_s > 0 ? (d.after_s / d.before_s).toFixed(2) + " ×" : d.after_s > 0 ? "new" : "–";

export function trace_diff(root, data) {
  header(root, { kind: "comparison", title: "Two steps side by side", facts: [["before", data.before], ["after", data.after]] });
  const row = tiles(root), step = data.step;
  tile(row, "Step before", secondsParts(step.before_s), "");
  tile(row, "Step after", secondsParts(step.after_s), times(step));
  tile(row, "Change", [signed(change(step)).replace(/ .*/, ""), signed(change(step)).replace(/^\S* /, "")], step.before_s > 0 ? (change(step) < 0 ? "−" : "+") + percent(Math.abs(change(step)) / step.before_s) : "");
  warnings(root, data.notes);
  parts(card(root, "Where the steps go", "Bars have one scale."), data);
  if (data.operators.length) operators(card(root, "Operators", "Time on the device per step, the largest change first." + (data.left_out ? " " + data.left_out + " with smaller changes are left out." : "")), data);
  root.append(make("footer", "", "A comparison of recorded steps. This file is complete: it loads nothing and sends nothing."));
}

function parts(element, data) {
  const room = Math.max(...["before_s", "after_s"].map((side) => data.parts.reduce((sum, p) => sum + Math.max(0, p[side]), 0))), rows = make("div", "rows");
  const of = (side) => data.parts.map((p, n) => [HUES[n % HUES.length], capital(p.name), Math.max(0, p[side])]);
  for (const [name, side] of [["Before", "before_s"], ["After", "after_s"]]) {
    rows.append(add(make("div", "row"), add(make("div", "who"), make("b", "", name)), stackedBar(of(side), seconds, { room }), make("div", "what", seconds(data.step[side]))));
  }
  add(element, rows, legend(of("after_s")), listed(data.parts, "part", "Parts of a step"));
}

function operators(element, data) { element.append(listed(data.operators, "operator", "Operators by change", true)); }

function listed(rows, what, label, kernels = false) {
  const columns = [
    { name: capital(what), value: (d) => d.name, text: (d) => capital(d.name) },
    { name: "Before", right: true, value: (d) => d.before_s, text: (d) => seconds(d.before_s) },
    { name: "After", right: true, value: (d) => d.after_s, text: (d) => seconds(d.after_s) },
    { name: "Change", right: true, value: change, text: (d) => signed(change(d)) },
    { name: "Times", right: true, value: (d) => d.before_s > 0 ? d.after_s / d.before_s : Infinity, text: times },
  ];
  if (kernels) {
    columns[0].text = (d) => d.name;
    columns.push({ name: "Kernels", right: true, value: (d) => d.count_after - d.count_before, text: (d) => Math.round(d.count_before) + " → " + Math.round(d.count_after) });
  }
  return table(rows, columns, { label }).element;
}
