/* The critical path: the works that decide the step time. */
import { add, breakable, legend, make, percent, seconds, whole } from "./base.js";
import { table } from "./table.js";

const COMMUNICATES = /^(tp|dp|cp|pp|ep|push|pull) /;
const KINDS = { forward: "computation", communication: "communication", optimizer: "optimizer", host: "host", other: "all else" };
const kindOf = (label) => label === "host launches" ? "host" : /^(optimizer|update )/.test(label) ? "optimizer" : COMMUNICATES.test(label) ? "communication" : "forward";

export function path(element, report) {
  const rows = report.critical_path.map((entry) => ({ ...entry, kind: kindOf(entry.label) }));
  const left = 1 - rows.reduce((sum, r) => sum + r.share, 0);
  if (left > 0.001) rows.push({ label: "all else", share: left, seconds: left * report.step_s, count: null, kind: "other" });
  const longest = Math.max(...rows.map((r) => r.share), 1e-9);
  const made = table(rows, [
    { name: "Work", value: (r) => r.label, cell: (r) => breakable(make("span"), r.label), className: "label" },
    { name: "", cell: (r) => { const i = make("i", r.kind); i.style.width = Math.min(100, 100 * r.share / longest) + "%"; return add(make("div", "thin"), i); }, className: "share" },
    { name: "Time", value: (r) => r.seconds, text: (r) => seconds(r.seconds), right: true },
    { name: "Share", value: (r) => r.share, text: (r) => percent(r.share), right: true },
    { name: "Count", value: (r) => r.count, text: (r) => r.count === null ? "" : whole(r.count), right: true },
  ], { label: "Works on the critical path" });
  const kinds = [...new Set(rows.map((r) => r.kind))];
  element.append(made.element, legend(kinds.map((kind) => [kind, KINDS[kind]])));
}
