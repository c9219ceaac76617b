/* Memory: the peak of each stage by part, and the fullest stage from its first pass to its last. */
import { add, bytes, explain, legend, make, shape, stackedBar, whole } from "./base.js";
import { who } from "./breakdown.js";
import { chart, follow, note, ticks } from "./chart.js";

const MEMORY = [["weights", "Weights"], ["gradients", "Gradients"], ["optimizer", "Optimizer"], ["activations", "Activations"], ["other", "Other"]];
const partsOf = (entry) => MEMORY.map(([name, title]) => [name, title, entry[name]]);

export function memory(element, report) {
  const capacity = report.memory_capacity_bytes, widest = Math.max(capacity, ...report.ranks.map((r) => r.peak_memory_bytes)) * 1.03;
  const stages = report.ranks.filter((r, n) => report.ranks.findIndex((other) => other.stage === r.stage) === n), rows = make("div", "rows");
  for (const entry of stages) {
    const mark = make("div", "capacity"), over = entry.peak_memory_bytes > capacity;
    mark.style.left = 100 * capacity / widest + "%";
    explain(mark, () => ["Capacity of a device", [["memory", bytes(capacity)]]]);
    const place = add(make("div", "place"), stackedBar(partsOf(entry.memory), bytes, { room: widest, least: 0.14 }), mark);
    rows.append(add(make("div", "row"), who(entry), place, make("div", over ? "what bad" : "what", bytes(entry.peak_memory_bytes))));
  }
  element.append(rows, add(legend(partsOf(report.memory), bytes), add(make("li"), make("i", "dashed"), make("span", "", "a device has " + bytes(capacity)))));
  if (stages.length > 1) element.append(make("p", "hint", "Amounts are those of the fullest stage, " + report.fullest_stage + "."));
}

/* Every pass of the fullest stage is a step of a stacked area. */
export function memoryOverTime(element, report) {
  const moments = report.memory_over_time, capacity = report.memory_capacity_bytes, sums = moments.map((m) => MEMORY.reduce((sum, [name]) => sum + m[name], 0));
  const most = Math.max(...sums), unit = most >= 2 ** 31 ? 2 ** 30 : 2 ** 20, far = most < 0.35 * capacity, top = (far ? most * 1.25 : Math.max(capacity, most) * 1.06) / unit;
  const peak = sums.indexOf(most);
  chart(element, {
    height: 220, label: "Memory of stage " + report.fullest_stage + " over its passes", name: "areas",
    axes: (wide, high) => ({
      x: { low: 0, high: moments.length, ticks: ticks(1, moments.length, wide / 70).filter(Number.isInteger).map((n) => [n - 0.5, whole(n)]), title: "passes of stage " + report.fullest_stage + ", in the order of its schedule" },
      y: { low: 0, high: top, ticks: ticks(0, top, high / 40).map((t) => [t, whole(t)]), title: "memory (" + (unit === 2 ** 30 ? "GiB" : "MiB") + ")" },
    }),
    draw: (plot) => {
      const { svg, x, y, wide, room } = plot, level = far ? room.top : y(capacity / unit);
      areas(plot, moments, unit);
      if (!far) svg.append(shape("line", { x1: room.left, x2: wide - room.right, y1: level, y2: level }, "limit"));
      note(plot, "capacity " + bytes(capacity) + (far ? ", above this chart ↑" : ""), wide - room.right - 4, level + (level < 28 ? 14 : -5), "end", "note strong");
      follow(plot, (px) => {
        const n = Math.min(moments.length - 1, Math.max(0, Math.floor(x.invert(px)))), m = moments[n];
        const list = [["pass", whole(n + 1) + " of " + whole(moments.length)], ["memory", bytes(sums[n])], ...MEMORY.map(([name, title]) => [title.toLowerCase(), bytes(m[name])])];
        return { tip: [m.label + (n === peak ? " (the peak)" : ""), list], mark: [x(n), room.top, Math.max(1, x(n + 1) - x(n)), y(0) - room.top] };
      });
    },
  });
  element.append(legend(MEMORY));
  if (!report.peak_tensors.length) return;
  const list = make("ol", "tensors");
  for (const tensor of report.peak_tensors.slice(0, 6)) {
    list.append(add(make("li"), make("b", "", bytes(tensor.nbytes)), document.createTextNode(" " + tensor.label + (tensor.in_flight > 1 ? ", kept for " + tensor.in_flight + " microbatches" : ""))));
  }
  element.append(make("h3", "", "The largest activations at the peak"), list);
}
function areas({ svg, x, y }, moments, unit) {
  const below = moments.map(() => 0);
  for (const [name] of MEMORY) {
    const upper = [], lower = [];
    moments.forEach((m, n) => {
      const from = y(below[n] / unit);
      below[n] += m[name];
      const to = y(below[n] / unit);
      upper.push(x(n).toFixed(1) + "," + to.toFixed(1), x(n + 1).toFixed(1) + "," + to.toFixed(1));
      lower.unshift(x(n + 1).toFixed(1) + "," + from.toFixed(1), x(n).toFixed(1) + "," + from.toFixed(1));
    });
    const area = shape("polygon", { points: upper.concat(lower).join(" ") }, "area");
    area.style.fill = "var(--" + name + ")";
    svg.append(area);
  }
}
