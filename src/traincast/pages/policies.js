/* Policies side by side: which one is shown, what each looks like in charts, and their figures in tables. */
import { add, button, card, make, percent, seconds, shape, three, whole } from "./base.js";
import { table } from "./table.js";

export const hours = (x) => x < 0.1 ? "0 GPU h" : (x >= 3.6e6 ? whole(x / 3600) : three(x / 3600)) + " GPU h";
const DASHES = ["none", "7 3", "2 3", "9 3 2 3"];
const FEW = 6;

/* Which policy is chosen and which one is pointed at; `on(act)` runs `act` when either changes. */
export class Choice {
  constructor(policies) { Object.assign(this, { policies, chosen: 0, lit: -1, acts: [] }); }
  on(act) { this.acts.push(act); }
  choose(n) { this.chosen = n; this.acts.forEach((act) => act("chosen")); }
  light(n) { if (n !== this.lit) { this.lit = n; this.acts.forEach((act) => act("lit")); } }
  get policy() { return this.policies[this.chosen]; }
  get many() { return this.policies.length > FEW; }
  /* Colour and dashes of a policy: ten colours, then the same with dashes. */
  dress(node, n) { node.style.setProperty("--hue", "var(--c" + n % 10 + ")"); node.style.setProperty("--dash", DASHES[Math.floor(n / 10) % DASHES.length]); node.setAttribute("class", "line"); return node; }
  /* The class of a policy's line: of many policies, all but the chosen one and the one pointed at are grey. */
  role(n) { return "line" + (n === this.chosen ? " chosen" : "") + (n === this.lit ? " lit" : "") + (this.many && n !== this.chosen && n !== this.lit ? " quiet" : ""); }
}

export function choose(element, choice) {
  const nav = make("nav", "choose");
  nav.setAttribute("aria-label", "Policy shown");
  const buttons = choice.policies.map((policy, n) => {
    const node = button("", () => choice.choose(n)), swatch = shape("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" });
    swatch.append(choice.dress(shape("path", { d: "M0 5H26" }), n));
    add(node, swatch, policy.policy);
    for (const [name, act] of [["pointerenter", n], ["focus", n], ["pointerleave", -1], ["blur", -1]]) node.addEventListener(name, () => choice.light(act));
    return node;
  });
  const press = () => buttons.forEach((node, n) => node.setAttribute("aria-pressed", String(n === choice.chosen)));
  choice.on(press);
  press();
  element.append(add(nav, ...buttons));
}

const COLUMNS = [["Mean completion", "mean_jct_s", seconds, "low"], ["Median", "median_jct_s", seconds, "low"], ["99th percentile", "p99_jct_s", seconds, "low"],
  ["Mean queueing", "mean_queue_s", seconds, "low"], ["Makespan", "makespan_s", seconds, "low"], ["In use", "utilization", percent, ""], ["Goodput", "goodput", percent, "high"],
  ["Fragmented", "fragmentation", percent, "low"], ["Preemptions", "preemptions", whole, ""], ["Restarts", "restarts", whole, ""],
  ["Lost", "lost_gpu_s", hours, "low"], ["Mean ρ", "mean_rho", three, "low"], ["Max ρ", "max_rho", three, "low"]];
function columnsFor(policies, without = []) {
  const fails = policies.some((p) => p.restarts > 0), left = [...without, ...(fails ? [] : ["restarts", "lost_gpu_s"])];
  return COLUMNS.filter(([, key]) => !left.includes(key)).map(([name, key, format, better]) => ({ name, value: (p) => p[key], text: (p) => format(p[key]), right: true, better }));
}
export function compare(element, choice) {
  const worst = Math.max(...choice.policies.map((p) => p.mean_jct_s)) || 1, number = new Map(choice.policies.map((p, n) => [p, n]));
  const bar = (p) => { const i = make("i", "forward"); i.style.width = 100 * p.mean_jct_s / worst + "%"; return add(make("div", "thin"), i); };
  const [first, ...others] = columnsFor(choice.policies);
  const made = table(choice.policies, [{ name: "Policy", value: (p) => p.policy, text: (p) => p.policy }, first, { name: "(longer is worse)", cell: bar, className: "share" }, ...others], {
    label: "Policies side by side", rowName: (p) => (number.get(p) === choice.chosen ? "chosen" : ""),
    onRow: (tr, p) => { tr.addEventListener("pointerenter", () => choice.light(number.get(p))); tr.addEventListener("pointerleave", () => choice.light(-1)); },
  });
  choice.on((what) => { if (what === "chosen") made.redraw(); });
  element.append(made.element);
}
export function virtualClusters(element, choice) {
  if (choice.policies.every((p) => Object.keys(p.virtual_clusters).length < 2)) return;
  const outer = make("div");
  const draw = () => {
    const p = choice.policy, vcs = Object.entries(p.virtual_clusters).map(([name, m]) => ({ name, ...m })).sort((a, b) => b.num_jobs - a.num_jobs);
    const box = card(make("div"), "Virtual clusters", "Under " + p.policy + ". “In use” is a share of the whole cluster." + (vcs.length > 40 ? " The 40 with the most jobs of " + vcs.length + "." : ""));
    const columns = columnsFor(choice.policies, ["fragmentation", "makespan_s"]).map((c) => ({ ...c, better: "" }));
    box.append(table(vcs.slice(0, 40), [{ name: "Virtual cluster", value: (m) => m.name, text: (m) => m.name || "–" }, { name: "Jobs", value: (m) => m.num_jobs, text: (m) => whole(m.num_jobs), right: true }, ...columns],
      { label: "Virtual clusters" }).element);
    outer.replaceChildren(box);
  };
  choice.on((what) => { if (what === "chosen") draw(); });
  draw();
  element.append(outer);
}
