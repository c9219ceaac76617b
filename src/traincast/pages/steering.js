/* How a reader moves about in a timeline: pointer, wheel, fingers and keys. */
import { hideTip } from "./base.js";
import { after } from "./lanes.js";
import { AXIS } from "./painter.js";

const place = (event, element) => { const box = element.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };

export function steer(line) {
  pointers(line);
  wheel(line);
  map(line);
  keys(line);
}

function pointers(line) {
  const { canvas, view } = line;
  let drag = null;
  const drop = () => { drag = null; canvas.classList.remove("drag"); };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    drag = { x: event.clientX, y: event.clientY, from: view.from, to: view.to, top: view.top, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event, canvas);
    if (drag) {
      const dx = event.clientX - drag.x, dy = event.clientY - drag.y, span = drag.to - drag.from;
      if (!drag.moved && Math.hypot(dx, dy) < 4) return;
      drag.moved = true; canvas.classList.add("drag"); hideTip();
      view.from = Math.min(Math.max(0, drag.from - dx * span / (line.width - line.painter.gutter)), line.data.whole - span);
      view.to = view.from + span;
      view.top = drag.top - dy;
      line.draw();
      return;
    }
    const found = line.find(x, y), old = line.hover, same = found && old ? found.lane === old.lane && found.begin === old.begin && found.finish === old.finish : found === old;
    line.hover = found;
    line.point(found, event.clientX, event.clientY);
    if (!same) line.draw();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) {
      const found = line.find(...place(event, canvas));
      line.pin(found);
      line.point(found, event.clientX, event.clientY);
    }
    drop();
  });
  canvas.addEventListener("pointercancel", drop);
  canvas.addEventListener("pointerleave", (event) => { line.hover = null; if (event.pointerType !== "touch") hideTip(); line.draw(); });
  canvas.addEventListener("dblclick", (event) => {
    const item = line.find(...place(event, canvas));
    if (!item) return;
    const room = (item.finish - item.begin) * 0.1;
    view.from = item.begin - room; view.to = item.finish + room;
    line.draw();
  });
}
function wheel(line) {
  const { canvas, view } = line;
  canvas.addEventListener("wheel", (event) => {
    const step = event.deltaMode === 1 ? 16 : 1, dx = event.deltaX * step, dy = event.deltaY * step;
    if (event.shiftKey && line.total > line.height - AXIS) view.top += dy || dx;
    else if (Math.abs(dx) > Math.abs(dy)) line.pan(dx / (line.width - line.painter.gutter));
    else if (dy > 0 && view.to - view.from >= line.data.whole) return; // nothing left to zoom out of: let the page scroll
    else line.zoom(Math.exp(Math.max(-80, Math.min(80, dy)) * 0.004), place(event, canvas)[0]);
    event.preventDefault();
    hideTip();
    line.draw();
  }, { passive: false });
}
function map(line) {
  const { map: element, view } = line;
  const jump = (event) => {
    const { gutter, mapWidth } = line.painter, whole = line.data.whole, t = (place(event, element)[0] - gutter) / (mapWidth - gutter) * whole, half = (view.to - view.from) / 2;
    view.from = Math.min(Math.max(0, t - half), whole - 2 * half); view.to = view.from + 2 * half;
    line.draw();
  };
  element.addEventListener("pointerdown", (event) => { element.setPointerCapture(event.pointerId); jump(event); });
  element.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });
}
function chooseLane(line, by) {
  const { shown, view, data, pinned, height } = line;
  if (!shown.length) return;
  const at = shown.indexOf(data.lanes[line.current]), next = shown[Math.min(shown.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
  if (next.top < view.top) view.top = next.top;
  else if (next.top + next.height > view.top + height - AXIS) view.top = next.top + next.height - height + AXIS + 6;
  const t = pinned ? Math.max(pinned.begin, view.from) : view.from;
  line.pin(data.span(next, Math.min(after(t, next.from, next.to, data.finishOf), next.to - 1)));
}
function chooseSpan(line, by) {
  const { pinned, data, view } = line;
  if (!pinned || pinned.span === undefined) { chooseLane(line, 0); return; }
  const lane = pinned.lane, i = Math.min(lane.to - 1, Math.max(lane.from, pinned.span + by)), span = view.to - view.from;
  if (data.begin[i] < view.from || data.finish[i] > view.to) { view.from = data.begin[i] - span * 0.2; view.to = view.from + span; }
  line.pin(data.span(lane, i));
}
function keys(line) {
  const acts = {
    "+": () => line.zoom(0.6), "=": () => line.zoom(0.6), "-": () => line.zoom(1 / 0.6), "−": () => line.zoom(1 / 0.6), "0": () => line.reset(), Home: () => line.reset(),
    ArrowLeft: () => line.pan(-0.15), ArrowRight: () => line.pan(0.15), ArrowUp: () => chooseLane(line, -1), ArrowDown: () => chooseLane(line, 1),
    "[": () => chooseSpan(line, -1), "]": () => chooseSpan(line, 1), Escape: () => { line.hover = null; hideTip(); line.pin(null); },
  };
  line.canvas.addEventListener("keydown", (event) => {
    const act = acts[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
}
