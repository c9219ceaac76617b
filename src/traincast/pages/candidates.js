/* The best strategies of a search: a table to sort, filter and copy from, and where their steps go. */
import { add, behind, button, bytes, code, copyButton, legend, make, money, percent, seconds, stackedBar, three, whole } from "./base.js";
import { table } from "./table.js";

export const place = (c) => whole(c.num_nodes) + " × " + c.cluster;
const PARTS = [["compute", "Compute"], ["communication", "Exposed communication"], ["bubble", "Bubble (waiting)"], ["optimizer", "Optimizer"], ["host", "Overhead"]];

/* `lit` is called with a candidate that the reader points at, or null. */
export function candidates(element, data, lit = () => {}) {
  const rows = data.candidates.map((c, n) => ({ ...c, number: n + 1 })), several = data.clusters.length > 1;
  const columns = [
    { name: "#", value: (c) => c.number, text: (c) => String(c.number), right: true, title: "rank" },
    ...(several ? [{ name: "Cluster", value: place, text: place, className: "where" }] : []),
    { name: "Strategy", value: (c) => c.strategy, cell: strategy, text: (c) => c.strategy + (c.marked ? " *" : "") },
    { name: "Step", value: (c) => c.step_s, text: (c) => seconds(c.step_s), right: true, better: "low" },
    { name: "90 % interval", value: (c) => c.high_s, text: (c) => seconds(c.low_s) + " … " + seconds(c.high_s), right: true, title: "upper end of the interval" },
    { name: "MFU", value: (c) => c.mfu, text: (c) => (100 * c.mfu).toFixed(1) + " %", right: true, better: "high", title: "model FLOPs utilization" },
    { name: "Memory", value: (c) => c.peak_memory_bytes, text: (c) => bytes(c.peak_memory_bytes), right: true, better: "low" },
    { name: "Limited by", value: (c) => c.limiter, text: (c) => c.limiter },
    ...(data.num_steps ? [{ name: "Job", value: (c) => c.job_s, text: (c) => seconds(c.job_s), right: true, better: "low" }] : []),
    ...(data.num_steps ? [{ name: "Cost", value: (c) => c.cost, text: (c) => money(c.cost), right: true, better: "low" }] : []),
    { name: "Behind", value: (c) => c.behind, text: (c) => c.number > 1 ? behind(c.behind) : "", right: true, title: "distance from the best" },
    { name: "Chance", value: (c) => c.chance, cell: chance, text: (c) => percent(c.chance), right: true, title: "chance to be the best" },
    { name: "Regret", value: (c) => c.regret, text: (c) => c.regret === null ? "–" : (100 * c.regret).toFixed(1) + " %", right: true, better: "low", title: "expected loss against the best" },
    { name: "Command", cell: (c) => copyButton(c.command || c.strategy, c.command ? "Copy" : "Copy strategy", c.command ? "Copy the command line that forecasts this strategy" : "Copy the strategy") },
  ];
  const made = table(rows, columns, {
    label: "The best strategies", rowName: (c) => c.number === 1 ? "first" : "",
    onRow: (tr, c) => { tr.addEventListener("pointerenter", () => lit(c)); tr.addEventListener("pointerleave", () => lit(null)); tr.addEventListener("focusin", () => lit(c)); tr.addEventListener("focusout", () => lit(null)); },
  });
  element.append(filters(made, rows, columns), made.element);
}
/* A strategy; techniques without evidence are named when the reader points at the mark. */
function strategy(c) {
  const node = add(make("span"), code(c.strategy));
  if (!c.marked) return node;
  const mark = make("span", "tie", "no evidence");
  mark.title = c.evidence.filter((e) => e.words).map((e) => e.words).join("; ");
  return add(node, " ", mark);
}
function chance(c) {
  const node = make("span", "", c.chance >= 0.005 ? percent(c.chance) : c.tie ? "" : "–");
  return c.tie ? add(node, make("span", "tie", "tie")) : node;
}
/* A text such as "tp=4 zero" keeps the rows that have every word of it. */
function filters(made, rows, columns) {
  const input = make("input"), tell = make("span", "hint");
  input.type = "search";
  input.placeholder = "Filter, such as tp=4 zero=1";
  input.setAttribute("aria-label", "Filter the strategies");
  tell.setAttribute("aria-live", "polite");
  let shown = rows;
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    shown = made.filter((c) => words.every((word) => [c.strategy, c.limiter, place(c), c.tie ? "tie" : "", c.marked ? "no evidence" : ""].join(" ").toLowerCase().includes(word)));
    tell.textContent = (shown.length < rows.length ? shown.length + " of " : "") + rows.length + (rows.length === 1 ? " strategy" : " strategies");
  };
  input.addEventListener("input", apply);
  apply();
  const lines = () => [columns.filter((c) => c.text).map((c) => c.name), ...shown.map((r) => columns.filter((c) => c.text).map((c) => c.text(r)))].map((line) => line.join("\t")).join("\n");
  const clear = button("Clear", () => { input.value = ""; apply(); input.focus(); });
  return add(make("div", "tools"), input, clear, tell, add(make("div", "push"), copyButton(lines, "Copy table", "Copy the rows shown, for a spreadsheet")));
}

/* Where the steps of the ten best go; bars are as long as the steps, so a longer bar is a slower step. */
export function shares(element, data) {
  const best = data.candidates.slice(0, 10), longest = Math.max(...best.map((c) => c.step_s)), rows = make("div", "rows whole");
  best.forEach((c, n) => {
    const parts = PARTS.map(([name, title]) => [name, title, c.shares[name] * c.step_s]);
    rows.append(add(make("div", "row numbered"), make("b", "", String(n + 1)), add(make("div", "who"), code(c.strategy)), stackedBar(parts, seconds, { room: longest, open: true }), make("div", "what", seconds(c.step_s))));
  });
  element.append(rows, legend(PARTS));
}

/* Small tables: what people do without a search, the front, and the clusters. */
export function naive(element, data) {
  const columns = [
    { name: "Choice", value: (n) => n.name, text: (n) => n.name },
    { name: "Strategy", value: (n) => n.candidate ? n.candidate.strategy : null, cell: (n) => n.candidate ? code(n.candidate.strategy) : make("span", "no", n.reason) },
    { name: "Step", value: (n) => n.candidate && n.candidate.step_s, text: (n) => n.candidate ? seconds(n.candidate.step_s) : "–", right: true },
    { name: "Memory", value: (n) => n.candidate && n.candidate.peak_memory_bytes, text: (n) => n.candidate ? bytes(n.candidate.peak_memory_bytes) : "–", right: true },
    { name: "Behind the best", value: (n) => n.candidate && n.candidate.behind, cell: (n) => make("span", n.reason ? "no" : "", !n.candidate ? "" : n.reason || (Math.abs(n.candidate.behind) < 0.0005 ? "as good" : behind(n.candidate.behind))) },
  ];
  element.append(table(data.naive, columns, { label: "Without a search" }).element);
}
export function front(element, data) {
  const several = data.clusters.length > 1;
  element.append(table(data.pareto, [
    ...(several ? [{ name: "Cluster", value: place, text: place, className: "where" }] : []),
    { name: "Strategy", value: (c) => c.strategy, cell: (c) => code(c.strategy) },
    { name: "Step", value: (c) => c.step_s, text: (c) => seconds(c.step_s), right: true, better: "low" },
    { name: "Memory", value: (c) => c.peak_memory_bytes, text: (c) => bytes(c.peak_memory_bytes), right: true, better: "low" },
    { name: data.num_steps ? "Cost of the job" : "Cost of a step", value: (c) => c.cost, text: (c) => money(c.cost), right: true, better: "low" },
    { name: "Command", cell: (c) => copyButton(c.command || c.strategy, c.command ? "Copy" : "Copy strategy", c.command ? "Copy the command line that forecasts this strategy" : "Copy the strategy") },
  ], { label: "The front" }).element);
}
export function clusters(element, data) {
  const isFirst = (c) => c.ratio && c.ratio[0] === 1 && c.ratio[1] === 1, of = (key) => (c) => c.best && c.best[key];
  const against = (c) => c.status !== "ok" ? "" : isFirst(c) ? "the best" : c.ratio ? three(c.ratio[0]) + " … " + three(c.ratio[1]) + " ×" : behind(c.best.behind);
  element.append(table(data.clusters, [
    { name: "Cluster", value: place, text: place },
    { name: "Device", value: (c) => c.device, text: (c) => c.device, className: "where" },
    { name: "Step", value: of("step_s"), text: (c) => seconds(of("step_s")(c)), right: true, better: "low" },
    ...(data.num_steps ? [{ name: "Job", value: of("job_s"), text: (c) => seconds(of("job_s")(c)), right: true, better: "low" }] : []),
    { name: "Cost", value: of("cost"), text: (c) => money(of("cost")(c)), right: true, better: "low" },
    { name: "Against the best", value: (c) => c.ratio && c.ratio[1], text: against, right: true },
    { name: "Chance", value: (c) => c.chance, text: (c) => c.status === "ok" && c.ratio ? percent(c.chance) : "–", right: true },
    { name: "Remarks", value: (c) => c.status, cell: (c) => make("span", "no", c.status === "ok" ? "" : c.status + ": " + c.reason) },
  ], { label: "The clusters", rowName: (c) => isFirst(c) ? "first" : "" }).element);
}
