/* The forecast of a step on a scale: where it lies, its interval, and the floor that no step can beat. */
import { add, explain, legend, make, seconds, shape } from "./base.js";
import { chart, note, ticks } from "./chart.js";

export function interval(element, { step_s: step, low_s: low, high_s: high, floor_s: floor }) {
  if (!(high > 0) || !(step > 0)) return;
  const top = Math.max(high, step) * 1.08;
  chart(element, {
    height: 92, left: 14, bottom: 42, label: "Step time " + seconds(step) + ", between " + seconds(low) + " and " + seconds(high), name: "interval",
    axes: (wide) => ({
      x: { low: 0, high: top, ticks: ticks(0, top, wide / 110).map((t) => [t, seconds(t)]), title: "step time (shorter is better)" },
      y: { low: 0, high: 1, ticks: [] },
    }),
    draw: (plot) => {
      const { svg, x, y } = plot, middle = (y(0) + y(1)) / 2;
      const band = shape("rect", { x: x(low), y: middle - 9, width: Math.max(2, x(high) - x(low)), height: 18, rx: 5 }, "band");
      explain(band, () => ["90 % interval", [["from", seconds(low)], ["to", seconds(high)]], "Nine of ten measured steps lie in intervals made like this one."]);
      const mark = shape("rect", { x: x(step) - 2, y: middle - 14, width: 4, height: 28, rx: 2 }, "forecast");
      explain(mark, () => ["Forecast", [["step time", seconds(step)]]]);
      svg.append(band, mark);
      if (floor > 0) {
        const line = shape("line", { x1: x(floor), x2: x(floor), y1: y(1), y2: y(0) }, "limit");
        explain(line, () => ["Floor", [["step time", seconds(floor)]], "No step of this plan can be shorter on these devices."]);
        svg.append(line);
      }
      const left = x(step) > plot.wide * 0.75;
      note(plot, seconds(step), x(step) + (left ? -7 : 7), middle - 13 + 4, left ? "end" : "start", "note strong");
    },
  });
  const dashed = make("li");
  add(dashed, make("i", "dashed"), make("span", "", "floor: no step can be shorter"));
  element.append(add(legend([["forecast-key", "forecast"], ["band-key", "90 % interval"]]), floor > 0 ? dashed : null));
}
