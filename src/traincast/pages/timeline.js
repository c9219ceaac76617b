/* The timeline of a step: lanes of devices, a map of the whole step above them, and the keys to move about. */
import { add, button, capital, hideTip, isTouch, legend, make, onTheme, onWidth, seconds, showTip, whole } from "./base.js";
import { Lanes } from "./lanes.js";
import { Painter, AXIS } from "./painter.js";
import { steer } from "./steering.js";

const ROOM = 620;

export function timelineHint(line) {
  const workers = line.rows.filter((r) => r.server === undefined).length, hints = [];
  if (line.num_servers) hints.push("One steady step of the slowest worker: " + workers + " of " + whole(line.num_ranks) + " workers, then the servers. Messages that run at once share links.");
  else if (line.rows.length < line.num_rows) hints.push("Some ranks of each stage, " + line.rows.length + " of " + whole(line.num_rows) + ".");
  else hints.push(line.num_rows < line.num_ranks ? "One rank of each stage; the others do the same." : "Every rank.");
  if (line.merged_below_s) hints.push("Of " + whole(line.num_tasks) + " tasks, those shorter than " + seconds(line.merged_below_s) + " are merged with their neighbours to keep the page small; a trace file has them all.");
  return hints.join(" ");
}

export function timeline(element, line, report) {
  return new Timeline(element, line, new Map((report.conditions ? report.conditions.slow : []).map((s) => [s.rank, s.factor])));
}

class Timeline {
  constructor(element, line, slow) {
    this.line = line;
    this.data = new Lanes(line);
    this.slow = slow;
    this.view = { from: 0, to: this.data.whole, top: 0 };
    this.hiddenStreams = new Set();
    Object.assign(this, { showPath: false, shown: [], total: 0, height: 0, width: 0, full: false, hover: null, pinned: null, current: -1, pending: false });
    this.build(element);
    this.painter = new Painter(this);
    this.layout();
    onWidth(this.canvas, () => this.layout());
    onTheme(() => { this.painter.palette(); this.draw(); });
    steer(this);
  }
  build(element) {
    const { line, data } = this, push = make("div", "push"), switches = make("div", "tools");
    push.append(button("+", () => this.zoom(0.5), "Zoom in (+)"), button("−", () => this.zoom(2), "Zoom out (−)"), button("Whole step", () => this.reset(), "Show the whole step (0)"));
    const seen = line.categories.filter((c, n) => line.category.includes(n));
    element.append(add(make("div", "tools"), legend(seen.map((c) => [c, capital(c)])), push), switches);
    for (const stream of data.streams) {
      switches.append(this.box(stream, true, (on) => { if (on) this.hiddenStreams.delete(stream); else this.hiddenStreams.add(stream); this.layout(); }));
    }
    for (const row of line.rows.filter((r) => this.slow.has(r.rank)).slice(0, 3)) switches.append(button("Go to slow rank " + row.rank, () => this.go(row)));
    if (line.critical.length) switches.append(this.box("mark the critical path", false, (on) => { this.showPath = on; this.draw(); }));
    this.map = make("canvas", "map");
    this.map.setAttribute("aria-hidden", "true");
    this.canvas = make("canvas", "lanes");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", "Timeline of " + line.rows.length + " ranks over " + seconds(data.whole / 1e9));
    this.note = make("p", "pinned");
    this.note.setAttribute("aria-live", "polite");
    const keys = make("p", "hint"), key = (...names) => names.flatMap((name) => [make("kbd", "", name), document.createTextNode(" ")]);
    if (isTouch) keys.textContent = "Drag sideways to move, + and − to zoom, tap a span to see what it is. Drag the map above to jump.";
    else add(keys, "Wheel to zoom, drag to move, click to pin, Shift and wheel for the rows below, double-click to zoom to a span. ", ...key("+", "−"), "zoom, ", ...key("←", "→"), "move, ", ...key("↑", "↓"), "change lane, ", ...key("[", "]"), "previous and next span, ", ...key("0"), "whole step.");
    this.more = button("Show all rows", () => {
      this.full = !this.full;
      this.more.textContent = this.full ? "Show fewer rows" : "Show all rows";
      this.layout();
    });
    switches.append(this.more);
    element.append(this.map, this.canvas, this.note, keys);
  }
  box(text, checked, act) {
    const box = make("input");
    box.type = "checkbox";
    box.checked = checked;
    box.addEventListener("change", () => act(box.checked));
    return add(make("label"), box, document.createTextNode(text));
  }
  layout() {
    let y = 4, row = -1;
    this.shown = this.data.lanes.filter((lane) => !this.hiddenStreams.has(lane.stream));
    for (const lane of this.shown) {
      if (lane.row !== row) { y += row < 0 ? 0 : 9; row = lane.row; }
      lane.top = y;
      y += lane.height + (lane.side === "run" ? 1 : lane.side ? 6 : 3); // a run and its forecast stand together
    }
    this.total = y + 2;
    const most = this.full ? 12000 / (window.devicePixelRatio || 1) : ROOM; // beyond that browsers draw no canvas
    this.more.hidden = this.total <= ROOM;
    this.height = AXIS + Math.min(this.total, most);
    this.painter.resize();
    this.render();
  }
  /* Scrolls to the lanes of a row. */
  go(row) {
    const lane = this.shown.find((l) => this.line.rows[l.row] === row);
    if (lane) { this.view.top = lane.top - 40; this.draw(); }
  }
  clamp() {
    const { view } = this, whole = this.data.whole, span = Math.min(whole, Math.max(20, whole / 1e7, view.to - view.from));
    view.from = Math.min(Math.max(0, view.from), whole - span);
    view.to = view.from + span;
    view.top = Math.min(Math.max(0, view.top), Math.max(0, this.total - (this.height - AXIS)));
  }
  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.render(); });
  }
  render() { this.clamp(); this.painter.paint(); }

  find(x, y) {
    const { view } = this, gutter = this.painter.gutter, at = y - AXIS + view.top;
    const lane = y < AXIS || x < gutter ? null : this.shown.find((l) => at >= l.top - 1 && at < l.top + l.height + 2);
    if (!lane) return null;
    const scale = this.painter.scale;
    return this.data.at(lane, view.from + (x - gutter) / scale, scale);
  }
  point(item, x, y) { if (item) showTip(this.data.facts(item), x, y); else hideTip(); }
  pin(item) {
    this.pinned = item;
    if (item) this.current = this.data.lanes.indexOf(item.lane);
    const [title, list] = item ? this.data.facts(item) : ["", []];
    this.note.textContent = item ? title + ": " + list.map(([name, value]) => name === "path" ? value : name + " " + value).join(" · ") : "";
    this.draw();
  }
  zoom(factor, x = this.painter.gutter + (this.width - this.painter.gutter) / 2) {
    const { view, painter } = this, part = Math.min(1, Math.max(0, (x - painter.gutter) / (this.width - painter.gutter))), t = view.from + part * (view.to - view.from);
    const span = Math.min(this.data.whole, Math.max(20, this.data.whole / 1e7, (view.to - view.from) * factor));
    view.from = t - part * span;
    view.to = view.from + span;
    this.draw();
  }
  pan(part) { const d = part * (this.view.to - this.view.from); this.view.from += d; this.view.to += d; this.draw(); }
  reset() { Object.assign(this.view, { from: 0, to: this.data.whole, top: 0 }); this.draw(); }
}
