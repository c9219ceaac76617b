/* A curve of use over time, filled, and perhaps another one as a line over it. */
import { add, capital, make, percent, seconds, shape } from "./base.js";
import { chart, follow, ticks } from "./chart.js";

/* `given` is { title, hue, values, other, seconds, names: [of values, of other], at: (text of a time) => head of a tip }. */
export function useChart(parent, given) {
  const { values, other } = given, element = make("div");
  parent.append(element);
  add(element, make("h3", "", capital(given.title)));
  const most = Math.max(1e-6, ...values, ...(other || [])), top = most > 0.001 && most < 0.25 ? most * 1.15 : Math.max(1, most) * 1.03, at = (n) => n / values.length * given.seconds;
  chart(element, {
    height: 132, label: given.title + " over time", left: 46, bottom: 32, name: "use",
    axes: (wide) => ({
      x: { low: 0, high: given.seconds, ticks: ticks(0, given.seconds, wide / 80).map((t) => [t, seconds(t)]) },
      y: { low: 0, high: top, ticks: ticks(0, top, 3).map((v) => [v, Number((100 * v).toPrecision(3)) + " %"]) },
    }),
    draw: (plot) => {
      const { svg, x, y } = plot, line = (v) => v.map((level, n) => (n ? "L" : "M") + x(at(n)).toFixed(1) + " " + y(level).toFixed(1) + "H" + x(at(n + 1)).toFixed(1)).join("");
      const area = shape("path", { d: line(values) + "V" + y(0) + "H" + x(0) + "Z" }, "area");
      area.style.fill = "var(--c" + given.hue + ")";
      area.style.fillOpacity = 0.55;
      svg.append(area);
      if (other) { const path = shape("path", { d: line(other) }, "line"); path.style.setProperty("--hue", "var(--ink)"); svg.append(path); }
      follow(plot, (px) => {
        const n = Math.min(values.length - 1, Math.max(0, Math.floor(x.invert(px) / given.seconds * values.length)));
        const rows = [[given.names[0], percent(values[n])], ...(other ? [[given.names[1], percent(other[n])]] : [])];
        return { tip: [given.at(seconds(at(n))), rows], mark: [x(at(n)), plot.room.top, Math.max(1, x(at(n + 1)) - x(at(n))), y(0) - plot.room.top] };
      });
    },
  });
  return element;
}
