/* Who holds which GPU when: a row for each GPU, or for nodes where there are many. */
import { add, button, colour, explain, isTouch, make, onTheme, onWidth, percent, seconds, three } from "./base.js";
import { clockTicks } from "./chart.js";
import { sized } from "./painter.js";

const AXIS = 24;
const FONT = "px system-ui, sans-serif";

export const occupancyHint = (data) => data.exact ? "A row for each GPU, grouped by node." : (data.rows[0].last !== data.rows[0].name ? "A row for several nodes" : "A row for each node") + ": the share of its GPUs in use.";

/* The window of time that all charts of a page share. */
export class TimeWindow {
  constructor(span) { Object.assign(this, { span, from: 0, to: span, acts: [], pending: false }); }
  on(act) { this.acts.push(act); }
  set(from, to) {
    const wide = Math.min(this.span, Math.max(this.span / 5000, to - from));
    this.from = Math.min(Math.max(0, from), this.span - wide);
    this.to = this.from + wide;
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.acts.forEach((act) => act()); });
  }
  zoom(factor, centre = (this.from + this.to) / 2) { this.set(centre - (centre - this.from) * factor, centre + (this.to - centre) * factor); }
  move(part) { const d = part * (this.to - this.from); this.set(this.from + d, this.to + d); }
  reset() { this.set(0, this.span); }
}

export function occupancy(element, data, choice, time) { return new Occupancy(element, data, choice, time); }

class Occupancy {
  constructor(element, data, choice, time) {
    Object.assign(this, { data, choice, time, mode: "job", rows: data.rows, first: [], heats: {}, gutter: 62 });
    let count = 0;
    for (const row of data.rows) { this.first.push(count); count += row.gpus; }
    this.count = data.exact ? count : data.rows.length;
    this.vcs = data.jobs ? [...new Set(data.jobs.vc)] : [];
    this.sizes = data.jobs ? [...new Set(data.jobs.gpus)].sort((a, b) => a - b) : [];
    this.build(element);
    this.palette();
    onWidth(this.canvas, () => this.draw());
    onTheme(() => { this.palette(); this.draw(); });
    choice.on((what) => { if (what === "chosen") { this.key(); this.draw(); } });
    time.on(() => this.draw());
    this.steer();
  }
  build(element) {
    const { time, data } = this, modes = make("span", "modes"), push = make("div", "push");
    modes.style.cssText = "display:flex;gap:6px;flex-wrap:wrap";
    const buttons = !data.exact ? [] : [["job", "Colour by job"], ["size", "by GPUs asked for"], ...(this.vcs.length > 1 ? [["vc", "by virtual cluster"]] : [])].map(([mode, title]) => {
      const node = button(title, () => { this.mode = mode; press(); this.key(); this.draw(); });
      node.dataset.mode = mode;
      return node;
    });
    const press = () => buttons.forEach((node) => node.setAttribute("aria-pressed", String(node.dataset.mode === this.mode)));
    press();
    push.append(button("+", () => time.zoom(0.5), "Zoom in (+)"), button("−", () => time.zoom(2), "Zoom out (−)"), button("All", () => time.reset(), "Show all of it (0)"));
    this.list = make("ul", "key");
    this.canvas = make("canvas", "occupancy");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", "Occupancy of the cluster over time");
    element.append(add(make("div", "tools"), add(modes, ...buttons), push), this.canvas, this.list);
    element.append(make("p", "hint", isTouch ? "Drag sideways to move, + and − to zoom, tap to see a job." : "Ctrl and wheel, or + and −, to zoom; drag or ← → to move; 0 for all. Point at a job to see it."));
    this.key();
    explain(this.canvas, (event) => event.offsetX === undefined ? null : this.where(event.offsetX, event.offsetY));
  }
  key() {
    const { data, mode, list } = this, entry = (style, text) => { const i = make("i"); i.style.background = style; return add(make("li"), i, make("span", "", text)); };
    list.replaceChildren();
    if (!data.exact) list.append(add(make("li"), make("span", "", "free"), make("span", "ramp"), make("span", "", "in use")));
    else if (mode === "job") list.append(make("li", "", "Neighbouring jobs have different colours; ten colours repeat."));
    else {
      const names = mode === "vc" ? this.vcs : this.sizes.map((n) => three(n) + (n === 1 ? " GPU" : " GPUs"));
      names.slice(0, 10).forEach((name, n) => list.append(entry("var(--c" + n + ")", String(name) || "–")));
      if (names.length > 10) list.append(make("li", "", "and " + (names.length - 10) + " more, in the same colours again"));
    }
    if (data.exact) list.append(entry("var(--track)", "free"));
    if (data.exact && this.choice.policy.down.length) list.append(add(make("li"), make("i", "down"), make("span", "", "out of service")));
  }
  palette() {
    this.hues = [...Array(10).keys()].map((n) => colour("c" + n));
    this.colours = {};
    for (const name of ["ink", "soft", "line", "track", "card", "accent", "down"]) this.colours[name] = colour(name);
  }
  hueOf(job) {
    const { jobs } = this.data;
    return this.hues[(this.mode === "vc" ? this.vcs.indexOf(jobs.vc[job]) : this.mode === "size" ? this.sizes.indexOf(jobs.gpus[job]) : job) % 10];
  }
  heat() {
    const n = this.choice.chosen;
    this.heats[n] = this.heats[n] || Uint8Array.from(atob(this.choice.policy.heat), (c) => c.charCodeAt(0));
    return this.heats[n];
  }
  node(row) { let n = 0; while (n + 1 < this.first.length && this.first[n + 1] <= row) n += 1; return n; }
  draw() {
    const { data, canvas, time, count } = this;
    const gap = data.exact && this.rows.length > 1 && count <= 128 ? 5 : 0, tall = Math.max(data.exact ? 2.4 : 4, Math.min(22, 420 / count)), height = AXIS + count * tall + gap * this.rows.length + 4;
    [this.pen, this.width] = sized(canvas, height);
    Object.assign(this, { tall, gap, height, scale: (this.width - this.gutter - 14) / (time.to - time.from), tops: [...Array(count).keys()].map((r) => AXIS + r * tall + (data.exact ? this.node(r) * gap : 0)) });
    const { pen, colours, tops, gutter } = this;
    pen.fillStyle = colours.track;
    for (let r = 0; r < count; r += 1) pen.fillRect(gutter, tops[r], this.width - gutter - 14, tall - (tall > 4 ? 0.5 : 0));
    pen.save(); pen.beginPath(); pen.rect(gutter, 0, this.width - gutter - 14, height); pen.clip();
    if (data.exact) { this.jobs(); this.outages(); } else this.shade();
    pen.restore();
    this.axis();
    this.names();
  }
  at(t) { return this.gutter + (t - this.time.from) * this.scale; }
  jobs() {
    const { pen, data, time, tops, tall, count, colours, gutter } = this, s = this.choice.policy.spans;
    for (let i = 0; i < s.job.length; i += 1) {
      if (s.end[i] < time.from || s.start[i] > time.to) continue;
      const x = this.at(s.start[i]), w = Math.max(0.6, this.at(s.end[i]) - x), h = (tops[s.row[i] + s.rows[i] - 1] || tops[count - 1]) + tall - tops[s.row[i]], part = s.share[i] < 1;
      pen.fillStyle = this.hueOf(s.job[i]);
      pen.fillRect(x, tops[s.row[i]] + (part ? h * s.offset[i] : 0), w - (w > 4 ? 0.8 : 0), (part ? h * s.share[i] : h) - (h > 5 ? 0.8 : 0));
      if (w > 46 && h > 12 && !part) {
        pen.fillStyle = colours.card; pen.font = "600 11" + FONT; pen.textAlign = "left"; pen.textBaseline = "middle";
        pen.save(); pen.beginPath(); pen.rect(x, tops[s.row[i]], w - 4, h); pen.clip(); pen.fillText(data.jobs.job_id[s.job[i]], Math.max(x, gutter) + 5, tops[s.row[i]] + h / 2); pen.restore();
      }
    }
  }
  outages() {
    const { pen, tops, tall, colours } = this;
    for (const [row, number, from, to] of this.choice.policy.down) {
      const x = this.at(from), w = Math.max(1.5, this.at(to) - x), h = tops[row + number - 1] + tall - tops[row];
      pen.globalAlpha = 0.22; pen.fillStyle = colours.down; pen.fillRect(x, tops[row], w, h); pen.globalAlpha = 1;
      pen.fillRect(x, tops[row], 1.5, h);
    }
  }
  shade() {
    const { pen, time, tops, tall, colours } = this, heat = this.heat(), bins = heat.length / this.rows.length, w = time.span / bins * this.scale;
    pen.fillStyle = colours.accent;
    for (let r = 0; r < this.rows.length; r += 1) {
      for (let b = 0; b < bins; b += 1) {
        const share = heat[r * bins + b] / 255, x = this.at(b / bins * time.span);
        if (!share || x > this.width || x + w < this.gutter) continue;
        pen.globalAlpha = share; pen.fillRect(x, tops[r], w + 0.3, tall - (tall > 6 ? 1 : 0));
      }
    }
    pen.globalAlpha = 1;
  }
  axis() {
    const { pen, time, width, gutter, colours } = this;
    pen.font = "12" + FONT; pen.textBaseline = "middle"; pen.textAlign = "center";
    for (const [t, text] of clockTicks(time.from, time.to, (width - gutter) / 90)) {
      const x = this.at(t);
      pen.fillStyle = colours.line; pen.fillRect(Math.round(x), AXIS - 5, 1, 5);
      pen.fillStyle = colours.soft;
      if (x < width - 24) pen.fillText(text, Math.max(x, gutter + 10), 10);
    }
  }
  names() {
    const { pen, data, tops, tall, gutter, colours } = this;
    let last = -99;
    pen.font = "12" + FONT; pen.textAlign = "right"; pen.textBaseline = "middle"; pen.fillStyle = colours.soft;
    this.rows.forEach((row, n) => {
      const top = data.exact ? tops[this.first[n]] : tops[n], y = top + (data.exact ? row.gpus * tall : tall) / 2;
      if (y - last < 13 || !row.gpus) return;
      last = y;
      const name = row.last && row.last !== row.name ? row.name + " …" : row.name;
      pen.fillText(name.length > 10 ? name.slice(0, 9) + "…" : name, gutter - 6, y, gutter - 8);
    });
  }
  /* What a tooltip says of a place on the canvas. */
  where(x, y) {
    const { data, tops, tall, gap, time, rows, first } = this, t = time.from + (x - this.gutter) / this.scale;
    if (x < this.gutter || y < AXIS || t > time.to) return null;
    let r = -1;
    for (let n = 0; n < this.count; n += 1) if (y >= tops[n] && y < tops[n] + tall + gap) r = n;
    if (r < 0) return null;
    if (!data.exact) {
      const heat = this.heat(), bins = heat.length / rows.length, b = Math.min(bins - 1, Math.max(0, Math.floor(t / time.span * bins)));
      return [rows[r].name + (rows[r].last !== rows[r].name ? " … " + rows[r].last : ""), [["at", seconds(t)], ["in use", percent(heat[r * bins + b] / 255) + " of " + rows[r].gpus + " GPUs"], ...(rows[r].type ? [["type", rows[r].type]] : [])]];
    }
    const n = this.node(r), place = rows[n].name + ", GPU " + (r - first[n]);
    for (const [row, number, from, to] of this.choice.policy.down) if (r >= row && r < row + number && t >= from && t < to) return ["Out of service", [["on", place], ["from", seconds(from)], ["to", seconds(to)]]];
    return this.job(this.jobAt(r, t, (y - tops[r]) / tall), place, t);
  }
  jobAt(r, t, inRow) {
    const s = this.choice.policy.spans;
    let found = -1;
    for (let i = 0; i < s.job.length; i += 1) {
      if (t < s.start[i] || t >= s.end[i] || r < s.row[i] || r >= s.row[i] + s.rows[i]) continue;
      if (s.share[i] === 1 || (inRow >= s.offset[i] && inRow < s.offset[i] + s.share[i])) found = s.job[i];
    }
    return found;
  }
  job(n, place, t) {
    if (n < 0) return ["Free", [["on", place], ["at", seconds(t)]]];
    const { jobs } = this.data, fate = this.choice.policy.fates;
    return ["Job " + jobs.job_id[n], [["on", place], ["GPUs", three(jobs.gpus[n])], ...(jobs.vc[n] ? [["virtual cluster", jobs.vc[n]]] : []), ["submitted", seconds(jobs.submit[n])], ["first started", seconds(fate.start[n])],
      ["ended", seconds(fate.end[n])], ["completion time", seconds(fate.end[n] - jobs.submit[n])], ...(fate.stops[n] ? [["stopped", fate.stops[n] + " times"]] : [])]];
  }
  steer() {
    const { canvas, time } = this;
    let grabbed = null;
    canvas.addEventListener("keydown", (event) => {
      const act = { "+": () => time.zoom(0.5), "=": () => time.zoom(0.5), "-": () => time.zoom(2), "0": () => time.reset(), ArrowLeft: () => time.move(-0.2), ArrowRight: () => time.move(0.2) }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      time.zoom(event.deltaY > 0 ? 1.25 : 0.8, time.from + (event.offsetX - this.gutter) / this.scale);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { grabbed = { x: event.clientX, from: time.from, to: time.to }; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (!grabbed || Math.abs(event.clientX - grabbed.x) < 3) return;
      const shift = (grabbed.x - event.clientX) / this.scale;
      time.set(grabbed.from + shift, grabbed.to + shift);
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { grabbed = null; });
  }
}
