/* Paints a timeline onto its two canvases: tens of thousands of spans, so no elements. */
import { colour, three } from "./base.js";
import { after } from "./lanes.js";

export const AXIS = 26;
const MAP = 46;
const SHORT = { forward: "F", backward: "B", optimizer: "opt", communication: "", host: "", wait: "" };
const BRIEF = { compute: "comp.", communication: "comm.", "send forward": "send →", "send backward": "send ←" };
const FONT = "px system-ui, sans-serif";

/* Makes a canvas as sharp as the screen; returns its pen and its width. */
export function sized(element, height) {
  const ratio = window.devicePixelRatio || 1, wide = element.clientWidth, pen = element.getContext("2d");
  element.style.height = height + "px";
  element.width = Math.round(wide * ratio);
  element.height = Math.round(height * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [pen, wide];
}

export class Painter {
  constructor(owner) {
    Object.assign(this, { owner, data: owner.data, line: owner.line, gutter: 158, profile: null });
    this.widest = String(this.line.microbatch.reduce((a, b) => Math.max(a, b), 0)).replace(/./g, "0");
    this.palette();
  }
  palette() {
    this.colours = {};
    for (const name of ["ink", "soft", "faint", "line", "track", "card", "accent", "bad"]) this.colours[name] = colour(name);
    for (const c of this.line.categories) { this.colours[c] = colour(c); this.colours["on-" + c] = colour("on-" + c); }
  }
  get scale() { return (this.width - this.gutter) / (this.owner.view.to - this.owner.view.from); }
  resize() {
    const { owner } = this;
    [this.pen, this.width] = sized(owner.canvas, owner.height);
    [this.mapPen, this.mapWidth] = sized(owner.map, MAP);
    owner.width = this.width;
    this.gutter = this.width < 620 ? 92 : 158;
  }
  paint() {
    const { owner, pen, colours } = this, { view, height, total } = owner;
    pen.clearRect(0, 0, this.width, height);
    this.axis();
    pen.save();
    pen.beginPath(); pen.rect(0, AXIS, this.width, height - AXIS); pen.clip();
    pen.translate(0, AXIS - view.top);
    for (const lane of owner.shown) if (lane.top + lane.height > view.top && lane.top < view.top + height - AXIS) this.lane(lane);
    this.marks();
    this.names();
    this.outline(owner.hover, colours.ink); this.outline(owner.pinned, colours.accent);
    pen.restore();
    if (total > height - AXIS) {
      const part = (height - AXIS) / total;
      pen.fillStyle = colours.faint;
      pen.fillRect(this.width - 4, AXIS + view.top * part, 4, (height - AXIS) * part);
    }
    this.overview();
  }
  axis() {
    const { pen, colours, owner, width, gutter, scale } = this, { view } = owner;
    const rough = (view.to - view.from) / Math.max(2, (width - gutter) / 110), power = 10 ** Math.floor(Math.log10(rough));
    const every = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough), unit = view.to > 1e9 ? [1e9, "s"] : view.to > 1e6 ? [1e6, "ms"] : [1e3, "µs"];
    const digits = Math.max(0, -Math.floor(Math.log10(every / unit[0]) + 1e-9));
    pen.font = "12" + FONT; pen.textBaseline = "middle"; pen.textAlign = "center";
    for (let t = Math.ceil(view.from / every) * every; t <= view.to; t += every) {
      const x = gutter + (t - view.from) * scale;
      pen.fillStyle = colours.line; pen.fillRect(Math.round(x), AXIS - 4, 1, owner.height);
      pen.fillStyle = colours.soft;
      if (x < width - 24) pen.fillText((t / unit[0]).toFixed(digits) + " " + unit[1], Math.max(x, gutter + 14), 11);
    }
    pen.textAlign = "right"; pen.fillStyle = colours.soft;
    pen.fillText("time", gutter - 8, 11);
  }
  /* Spans that are wide enough one by one; of the others, each pixel gets the colour of what covers it most. */
  lane(lane) {
    const { pen, colours, owner, data, line, gutter, width, scale } = this, { view, showPath } = owner, { top, height: tall } = lane, cover = new Float64Array(line.categories.length);
    let column = -1, covered = 0;
    const flush = () => {
      if (column < 0 || covered <= 0) return;
      let most = 0;
      for (let c = 1; c < cover.length; c += 1) if (cover[c] > cover[most]) most = c;
      pen.globalAlpha = Math.min(1, 0.12 + 0.88 * covered);
      pen.fillStyle = colours[line.categories[most]]; pen.fillRect(gutter + column, top, 1, tall);
      pen.globalAlpha = 1; cover.fill(0); covered = 0;
    };
    pen.fillStyle = colours.track; pen.fillRect(gutter, top, width - gutter, tall);
    pen.textBaseline = "middle"; pen.textAlign = "left";
    for (let i = after(view.from, lane.from, lane.to, data.finishOf); i < lane.to && data.begin[i] < view.to; i += 1) {
      const a = Math.max(0, (data.begin[i] - view.from) * scale), b = Math.min(width - gutter, (data.finish[i] - view.from) * scale), c = line.category[i];
      if (b - a >= 1.5) {
        flush(); column = -1;
        this.span(lane, i, a, b);
        continue;
      }
      const at = Math.floor(a), part = (b - a) * data.busy(i);
      if (at !== column) { flush(); column = at; }
      cover[c] += part; covered += part;
      if (showPath && data.critical[i]) { pen.fillStyle = colours.ink; pen.fillRect(gutter + at, top + tall - 3, 1, 3); }
    }
    flush();
    if (tall > 20) this.blocks(lane);
  }
  span(lane, i, a, b) {
    const { pen, colours, data, line, gutter } = this, { top, height: tall } = lane, name = line.categories[line.category[i]], gap = b - a > 5 ? 0.7 : 0;
    pen.globalAlpha = Math.min(1, 0.12 + 0.88 * data.busy(i));
    pen.fillStyle = colours[name]; pen.fillRect(gutter + a, top, b - a - gap, tall);
    pen.globalAlpha = 1;
    if (this.owner.showPath && data.critical[i]) { pen.fillStyle = colours.ink; pen.fillRect(gutter + a, top + tall - 3, b - a - gap, 3); }
    if (b - a > 44 && tall > 10) this.write(data.label(i), gutter + a + 5, top + tall / 2, b - a - 9, colours["on-" + name], tall > 20 ? 12 : 10.5);
  }
  /* The pipeline's picture: F3 is the forward of microbatch 3, shown while single works are too small to read. */
  blocks(lane) {
    const { pen, colours, line, gutter, width, scale } = this, { view } = this.owner, { blocks } = lane;
    pen.textAlign = "center"; pen.textBaseline = "middle"; pen.font = "600 12" + FONT;
    for (let n = after(view.from, 0, blocks.length, (k) => blocks[k].finish); n < blocks.length && blocks[n].begin < view.to; n += 1) {
      const block = blocks[n], a = (block.begin - view.from) * scale, b = (block.finish - view.from) * scale;
      if (b - a < 5 || (b - a) / (block.to - block.from) > 14) continue;
      pen.fillStyle = colours.card;
      if (a > 0) pen.fillRect(gutter + a - 0.5, lane.top, 1, lane.height);
      const name = line.categories[block.category], number = block.microbatch >= 0 ? String(block.microbatch) : "", l = Math.max(0, a), r = Math.min(width - gutter, b);
      const room = (prefix) => pen.measureText(prefix + (number && this.widest)).width + 2 <= r - l; // the same for all blocks of a size
      const text = room(SHORT[name]) ? SHORT[name] + number : room("") ? number : "";
      if (!SHORT[name] || !text) continue;
      const wide = Math.min(r - l, pen.measureText(text).width + 6), x = gutter + (l + r) / 2, y = lane.top + lane.height / 2;
      pen.fillStyle = colours[name]; pen.globalAlpha = 0.85; pen.fillRect(x - wide / 2, y - 8, wide, 16); pen.globalAlpha = 1;
      pen.fillStyle = colours["on-" + name]; pen.fillText(text, x, y + 0.5);
    }
  }
  write(text, x, y, room, ink, points) {
    const { pen } = this, fits = Math.floor(room / (points * 0.55));
    pen.font = points + FONT; pen.fillStyle = ink; pen.textAlign = "left";
    while (text.length > fits && /^[^ ]*\./.test(text)) text = text.replace(/^[^.]*\.(\d+\.)?/, ""); // the end of a module's path says most
    if (fits >= 3) pen.fillText(text.length > fits ? text.slice(0, fits - 1) + "…" : text, x, y + 0.5, room);
  }
  names() {
    const { pen, colours, line, gutter, owner } = this, wide = gutter > 100;
    let row = -1;
    pen.textBaseline = "middle";
    for (const lane of owner.shown) {
      if (lane.row !== row) {
        row = lane.row;
        const { rank, stage, server } = line.rows[row], factor = owner.slow.get(rank);
        pen.textAlign = "left"; pen.fillStyle = colours.ink; pen.font = "600 12" + FONT;
        pen.fillText(server !== undefined ? (wide ? "Server " : "Sv") + server : (wide ? "Stage " : "S") + stage, 0, lane.top + 8);
        pen.fillStyle = factor ? colours.bad : colours.soft; pen.font = (factor ? "600 12" : "12") + FONT;
        if (server === undefined) pen.fillText((wide ? "rank " : "r") + rank, 0, lane.top + 23);
        if (factor) pen.fillText(three(factor) + "× slow", 0, lane.top + 38, wide ? 58 : 50);
      }
      pen.textAlign = "right"; pen.fillStyle = colours.soft; pen.font = (lane.height < 12 ? 10 : 11.5) + FONT;
      const name = wide ? lane.stream : BRIEF[lane.stream] || lane.stream;
      pen.fillText(lane.side === "forecast" ? lane.side : name, gutter - 8, lane.top + lane.height / 2 + 0.5);
    }
  }
  /* Dashed lines at times that the data names. */
  marks() {
    const { pen, colours, line, gutter, width, scale, owner } = this;
    for (const { at, name } of line.marks || []) {
      const x = gutter + (at - owner.view.from) * scale;
      if (x < gutter || x > width + 1) continue;
      pen.strokeStyle = name === "forecast" ? colours.accent : colours.ink; pen.lineWidth = 1.5; pen.setLineDash([5, 4]);
      pen.beginPath(); pen.moveTo(Math.min(x, width - 1), owner.view.top); pen.lineTo(Math.min(x, width - 1), owner.view.top + owner.height); pen.stroke();
      pen.setLineDash([]);
    }
  }
  outline(item, ink) {
    const { pen, gutter, width, scale, owner } = this;
    if (!item || !owner.shown.includes(item.lane)) return;
    const a = Math.max(-2, (item.begin - owner.view.from) * scale), b = Math.min(width - gutter + 2, (item.finish - owner.view.from) * scale);
    if (b < 0 || a > width - gutter) return;
    pen.strokeStyle = ink; pen.lineWidth = 2;
    pen.strokeRect(gutter + Math.max(a, 0), item.lane.top - 1, Math.max(2, b - Math.max(a, 0)), item.lane.height + 2);
  }
  /* The map: the share of ranks that compute, over the whole step, and the part in view. */
  overview() {
    const { mapPen: pen, colours, line, gutter: left, data, owner } = this, wide = Math.max(1, Math.round(this.mapWidth - left)), rows = Math.max(1, line.rows.filter((r) => r.server === undefined).length);
    if (!this.profile || this.profile.columns !== wide) this.profile = data.profile(wide);
    pen.clearRect(0, 0, this.mapWidth, MAP);
    const base = new Float64Array(wide);
    line.categories.forEach((name, c) => {
      pen.fillStyle = colours[name];
      for (let x = 0; x < wide; x += 1) {
        const h = 40 * this.profile.sums[c][x] / rows;
        if (h > 0) { pen.fillRect(left + x, 44 - base[x] - h, 1, h); base[x] += h; }
      }
    });
    pen.font = "11.5" + FONT; pen.textAlign = "right"; pen.textBaseline = "middle"; pen.fillStyle = colours.soft;
    pen.fillText(left > 100 ? "ranks computing" : "computing", left - 8, 14);
    pen.fillText("0 – 100 %", left - 8, 31);
    const a = left + wide * owner.view.from / data.whole, b = left + wide * owner.view.to / data.whole;
    if (b - a >= wide - 0.5) return;
    pen.fillStyle = colours.card; pen.globalAlpha = 0.65;
    pen.fillRect(left, 0, a - left, MAP); pen.fillRect(b, 0, left + wide - b, MAP);
    pen.globalAlpha = 1;
    pen.strokeStyle = colours.ink; pen.lineWidth = 2; pen.strokeRect(a, 1, Math.max(3, b - a), MAP - 2);
  }
}
