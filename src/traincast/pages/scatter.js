/* Time against memory: every strategy that fits, the front, and the best. */
import { add, bytes, explain, make, money, seconds, shape, three, whole } from "./base.js";
import { chart, logTicks, note, point, sign, ticks } from "./chart.js";
import { place } from "./candidates.js";

export function scatterHint(plot) {
  return whole(plot.drawn) + " strategies that fit; a stronger point stands for more of them. Down and to the left is better."
    + (plot.slower ? " " + whole(plot.slower) + " that take more than " + plot.slowest + " times the shortest step are not drawn." : "");
}

/* Returns a function that marks a candidate in the plot, or none. */
export function scatter(element, data) {
  const { plot: cloud, best } = data, marks = [...data.pareto, best].filter((c) => c.step_s <= cloud.slowest * 1.01 * cloud.edge[0][0]);
  const times = cloud.cells.map((c) => c[0]).concat(marks.map((c) => c.step_s)), sizes = cloud.cells.map((c) => c[1]).concat(marks.map((c) => c.peak_memory_bytes));
  const low = Math.min(...times), high = Math.max(...times), spread = Math.log(high / low) || 0.1, t0 = low * Math.exp(-0.03 * spread), t1 = high * Math.exp(0.03 * spread);
  const unit = Math.max(...sizes) >= 2 ** 30 ? 2 ** 30 : 2 ** 20, top = Math.max(...sizes) * 1.06 / unit;
  let lit = null, seen = null;
  chart(element, {
    height: (wide) => Math.round(Math.min(440, Math.max(290, wide * 0.42))), label: "Step time and memory of all strategies that fit", name: "cloud",
    axes: (wide, tall) => ({
      x: { low: t0, high: t1, log: true, ticks: logTicks(t0, t1, wide / 110).map((t) => [t, seconds(t)]), title: "step time" + (t1 / t0 > 1.5 ? " (logarithmic)" : "") },
      y: { low: 0, high: top, ticks: ticks(0, top, tall / 60).map((t) => [t, three(t)]), title: "memory per device (" + (unit === 2 ** 30 ? "GiB" : "MiB") + ")" },
    }),
    draw: (plot) => {
      seen = plot;
      cells(plot, data, unit);
      edge(plot, data, unit, top);
      for (const c of marks.filter((m) => m !== best)) point(plot, shape("circle", { cx: plot.x(c.step_s), cy: plot.y(c.peak_memory_bytes / unit), r: 5 }, "front"), () => about(data, c, "On the front"));
      if (marks.includes(best)) point(plot, shape("polygon", { points: star(plot.x(best.step_s), plot.y(best.peak_memory_bytes / unit)) }, "star"), () => about(data, best, "The best"));
      lit = shape("circle", { r: 10, visibility: "hidden" }, "ring");
      plot.svg.append(lit);
    },
  });
  element.append(key());
  return (c) => {
    lit.setAttribute("visibility", c ? "visible" : "hidden");
    if (c) { lit.setAttribute("cx", seen.x(c.step_s)); lit.setAttribute("cy", seen.y(c.peak_memory_bytes / unit)); }
  };
}
function about(data, c, title) {
  const list = [...(data.clusters.length > 1 ? [["on", place(c)]] : []), ["step", seconds(c.step_s)], ["memory", bytes(c.peak_memory_bytes)], [data.num_steps ? "job costs" : "step costs", money(c.cost)]];
  return [title, list, c.strategy];
}
/* A point stands for the strategies of one small cell; it lies where the fastest of them does. */
function cells({ svg, x, y, wide, room }, data, unit) {
  const { cells: all, columns } = data.plot, most = Math.max(...all.map((c) => c[2])), size = Math.max(2.4, (wide - room.left) / 260), names = Object.keys(columns), layer = shape("g", {});
  const text = (n) => names.filter((name) => columns[name][n] !== "" && columns[name][n] !== null).map((name) => name + "=" + columns[name][n]).join(", ");
  all.forEach(([t, b, n], k) => {
    const dot = shape("circle", { cx: x(t).toFixed(1), cy: y(b / unit).toFixed(1), r: size.toFixed(1), "fill-opacity": (0.22 + 0.6 * Math.log1p(n - 1) / Math.max(1, Math.log1p(most - 1))).toFixed(2) }, "dot");
    dot.dataset.cell = k;
    layer.append(dot);
  });
  svg.append(layer);
  const said = (k) => [all[k][2] === 1 ? "One strategy" : "The fastest of " + whole(all[k][2]) + " strategies", [["step", seconds(all[k][0])], ["memory", bytes(all[k][1])]], text(k)];
  explain(layer, ({ target }) => target.dataset.cell === undefined ? null : said(Number(target.dataset.cell)));
}
function edge(plot, data, unit, top) {
  const { svg, x, y, wide, room } = plot, capacity = data.best.memory_capacity_bytes / unit;
  if (data.clusters.length === 1 && capacity <= top) {
    svg.append(shape("line", { x1: room.left, x2: wide - room.right, y1: y(capacity), y2: y(capacity) }, "limit"));
    note(plot, "a device has " + bytes(capacity * unit), wide - room.right - 4, y(capacity) - 5, "end", "note strong");
  }
  let path = "";
  data.plot.edge.forEach(([t, b], n) => { path += n ? "H" + x(t).toFixed(1) + "V" + y(b / unit).toFixed(1) : "M" + x(t).toFixed(1) + " " + y(b / unit).toFixed(1); });
  svg.append(shape("path", { d: path }, "edge"));
}
function star(cx, cy) {
  const points = [];
  for (let k = 0; k < 10; k += 1) { const r = k % 2 ? 4.6 : 11, a = Math.PI * (k / 5 - 0.5); points.push((cx + r * Math.cos(a)).toFixed(1) + "," + (cy + r * Math.sin(a)).toFixed(1)); }
  return points.join(" ");
}
function key() {
  const styled = (node, css) => { node.style.cssText = css; return node; };
  return add(make("ul", "key"),
    sign(styled(shape("circle", { cx: 11, cy: 6, r: 4 }), "fill:var(--accent);opacity:.6"), "a strategy, or several"),
    sign(styled(shape("polygon", { points: "11,0 12.7,4 17,4.4 13.7,7.2 14.7,11.5 11,9.2 7.3,11.5 8.3,7.2 5,4.4 9.3,4" }), "fill:var(--optimizer)"), "the best"),
    sign(styled(shape("path", { d: "M0 6H22" }), "stroke:var(--communication);stroke-width:2"), "least memory for each time"),
    sign(styled(shape("circle", { cx: 11, cy: 6, r: 4 }), "fill:var(--card);stroke:var(--communication);stroke-width:2"), "on the front of time, memory and cost"));
}
