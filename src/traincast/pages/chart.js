/* A chart in SVG: grid, axes with units, and a place to draw in. Colours come from the style sheet, so light and dark
   need no redrawing. */
import { add, explain, hideTip, make, onWidth, shape, showTip } from "./base.js";

export function nice(rough, steps = [1, 2, 2.5, 5, 10]) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return steps.map((m) => m * power).find((m) => m >= rough * 0.999);
}
export function ticks(low, high, wanted) {
  const step = nice(Math.max((high - low) / Math.max(1, wanted), 1e-12)), found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(n * step || 0);
  return found;
}
export function logTicks(low, high, wanted) {
  if (high / low < 3) return ticks(low, high, wanted);
  const found = [], several = wanted > 5 ? [1, 1.5, 2, 3, 4, 5, 7] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) for (const m of several) found.push(m * 10 ** power);
  return found.filter((t) => t >= low && t <= high);
}
export const MOMENTS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000, 1728000, 4320000, 8640000];
/* Times since the start, in units that people read clocks in: [[seconds, text] …]. */
export function clockTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(2, wanted), every = MOMENTS.find((t) => t >= rough) || nice(rough), found = [];
  const [scale, unit] = every >= 86400 ? [86400, "d"] : every >= 3600 ? [3600, "h"] : every >= 60 ? [60, "min"] : [1, "s"];
  for (let n = Math.ceil(low / every); n * every <= high; n += 1) found.push([n * every, Number((n * every / scale).toPrecision(6)) + " " + unit]);
  return found;
}

/* Draws a chart into `element` at its width, and again when that changes. `axes(width, height)` returns
   { x: { low, high, log, ticks: [[value, text] …], title }, y: likewise }; `draw(plot)` adds what is to be seen. */
export function chart(element, { height, label, axes, draw, left = 62, bottom = 44, name = "" }) {
  const svg = shape("svg", { role: "img", "aria-label": label }, ("chart " + name).trim());
  element.append(svg);
  const again = (wide) => {
    const high = typeof height === "function" ? height(wide) : height, room = { left, right: 14, top: 12, bottom };
    svg.setAttribute("viewBox", "0 0 " + wide + " " + high);
    svg.setAttribute("height", high);
    svg.replaceChildren();
    const { x, y } = axes(wide - left - room.right, high - room.top - bottom);
    const plot = { svg, wide, high, room, x: scale(x, left, wide - room.right), y: scale(y, high - bottom, room.top) };
    frame(plot, x, y);
    draw(plot);
  };
  onWidth(element, again);
  return () => again(element.clientWidth);
}
function scale({ low, high, log }, from, to) {
  const [a, b] = log ? [Math.log(low), Math.log(high)] : [low, high], wide = b - a || 1;
  const at = (v) => from + (to - from) * ((log ? Math.log(Math.max(v, low * 1e-3)) : v) - a) / wide;
  at.invert = (p) => { const v = a + (p - from) / (to - from) * wide; return log ? Math.exp(v) : v; };
  return at;
}
function text(content, attributes, name) { const node = shape("text", attributes, name); node.textContent = content; return node; }
function frame({ svg, wide, high, room, x, y }, across, along) {
  const foot = high - room.bottom;
  for (const [value, name] of along.ticks) {
    svg.append(shape("line", { x1: room.left, x2: wide - room.right, y1: y(value), y2: y(value) }, "grid"));
    svg.append(text(name, { x: room.left - 7, y: y(value) + 4, "text-anchor": "end" }));
  }
  let reached = -Infinity;
  for (const [value, name] of across.ticks) {
    const half = name.length * 3.4, at = Math.min(Math.max(x(value), half), wide - half);
    if (at - half - reached < 8) continue;
    reached = at + half;
    svg.append(shape("line", { x1: x(value), x2: x(value), y1: room.top, y2: foot }, "grid"));
    svg.append(text(name, { x: at, y: foot + 17, "text-anchor": "middle" }));
  }
  if (across.title) svg.append(text(across.title, { x: (room.left + wide - room.right) / 2, y: high - 6, "text-anchor": "middle" }, "title"));
  if (along.title) svg.append(text(along.title, { "text-anchor": "middle", transform: "translate(13 " + (room.top + foot) / 2 + ") rotate(-90)" }, "title"));
}
/* Text inside a chart. */
export const note = (plot, content, x, y, anchor = "start", name = "note") => { const node = text(content, { x, y, "text-anchor": anchor }, name); plot.svg.append(node); return node; };

/* Tooltips by position: `find(x, y)` returns { tip, mark: [x, top, width, height] } of what is nearest, or nothing.
   `leave()` is called when the pointer has gone. */
export function follow(plot, find, leave = () => {}) {
  const { svg, wide, high, room } = plot;
  const mark = shape("rect", { class: "mark", visibility: "hidden" }), pane = shape("rect", { x: room.left, y: 0, width: Math.max(1, wide - room.left), height: high - room.bottom, fill: "transparent" }, "pane");
  const move = (event) => {
    const box = svg.getBoundingClientRect(), ratio = wide / (box.width || 1), found = find((event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio);
    showTip(found && found.tip, event.clientX, event.clientY);
    mark.setAttribute("visibility", found && found.mark ? "visible" : "hidden");
    if (found && found.mark) ["x", "y", "width", "height"].forEach((key, n) => mark.setAttribute(key, found.mark[n]));
  };
  pane.addEventListener("pointermove", move);
  pane.addEventListener("pointerdown", move);
  pane.addEventListener("pointerleave", (event) => { mark.setAttribute("visibility", "hidden"); leave(); if (event.pointerType !== "touch") hideTip(); });
  add(svg, mark, pane);
}
/* A legend entry with a drawn sign. */
export function sign(markup, content) {
  const box = shape("svg", { viewBox: "0 0 22 12", "aria-hidden": "true" });
  box.append(markup);
  return add(make("li"), box, make("span", "", content));
}
/* A point that a reader can reach by pointer, tap or key. */
export function point(plot, node, content) {
  node.setAttribute("tabindex", "0");
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", content()[0]);
  explain(node, content);
  plot.svg.append(node);
}
