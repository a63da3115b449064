// Charts with axes, in the pixels of the screen: text keeps its size on a phone.

import {clock, short} from "./format.js";
import {make, setText} from "./dom.js";

const SPACE = "http://www.w3.org/2000/svg";
const TONES = ["", "second", "third"];
const LEFT = 58, BOTTOM = 22, TOP = 8, RIGHT = 10;

function draw(tag, attributes, text) {
  const made = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// The top of an axis: 1, 2 or 5 with zeros; of bytes, that many of a unit.
export function ceiling(value, unit = 1) {
  let scale = 1;
  while (unit > 1 && value / scale >= unit) scale *= unit;
  const least = Math.max(value / scale, 1), power = 10 ** Math.floor(Math.log10(least));
  const found = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least);
  return Math.min(found, unit > 1 ? unit : Infinity) * scale;
}

// A line with gaps where nothing is known.
function path(numbers, x, y) {
  let made = "", isDown = false;
  numbers.forEach((value, at) => {
    if (value === null || value === undefined) { isDown = false; return; }
    made += `${isDown ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    isDown = true;
  });
  return made;
}

// A series beside the others, with the area below it.
function area(numbers, x, y, base) {
  const known = numbers.flatMap((value, at) => value === null || value === undefined ? [] : [at]);
  if (known.length < 2) return "";
  const line = known.map((at) => `${x(at).toFixed(1)} ${y(numbers[at]).toFixed(1)}`).join("L");
  return `M${x(known[0]).toFixed(1)} ${base}L${line}L${x(known.at(-1)).toFixed(1)} ${base}Z`;
}

export class Chart {
  constructor(title, names, show = short, unit = 1) {
    this.names = names;
    this.unit = unit;
    this.format = show;
    this.svg = draw("svg", {class: "chart", role: "img", "aria-label": `${title}, over time`});
    this.read = make("span", {class: "small quiet"});
    const key = make("div", {class: "key"}, names.map((name, at) => make("b", {class: TONES[at % 3]}, name)));
    this.element = make("section", {class: "card"}, make("h2", {}, title), this.svg,
      make("div", {class: "title"}, key, make("span", {class: "grow"}), this.read));
    this.element.querySelector(".title").style.margin = "6px 0 0";
    this.series = [];
    new ResizeObserver(() => this.paint()).observe(this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => { this.at = undefined; this.paint(); });
  }

  // Show series of equal length; the last number is of the step that ends at `end_s`.
  show(series, end_s, step_s) {
    this.series = series;
    this.end_s = end_s;
    this.step_s = step_s;
    this.paint();
  }

  point(event) {
    const box = this.svg.getBoundingClientRect(), count = this.series[0]?.length ?? 0;
    if (count < 2) return;
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    this.at = Math.round(Math.min(Math.max(share, 0), 1) * (count - 1));
    this.paint();
  }

  paint() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    const count = this.series[0]?.length ?? 0;
    if (!width || count < 2) return;
    const all = this.series.flat().filter((each) => each !== null && each !== undefined);
    const top = ceiling(all.reduce((most, each) => Math.max(most, each), 1), this.unit);
    const base = height - BOTTOM;
    const x = (at) => LEFT + at * (width - LEFT - RIGHT) / (count - 1);
    const y = (value) => base - value / top * (base - TOP);
    const parts = [];
    for (const share of [0, .5, 1]) {
      const level = y(top * share);
      parts.push(draw("path", {class: "grid", d: `M${LEFT} ${level}H${width - RIGHT}`}));
      parts.push(draw("text", {x: LEFT - 8, y: level + 4, "text-anchor": "end"}, this.format(top * share)));
    }
    const length = count * this.step_s, every = tickOf(length, width);
    for (let time = Math.ceil((this.end_s - length) / every) * every; time < this.end_s; time += every) {
      const place = x((time - this.end_s) / this.step_s + count - 1);
      if (place < LEFT + 16 || place > width - 22) continue;
      parts.push(draw("path", {class: "grid", d: `M${place} ${base}v4`}));
      parts.push(draw("text", {x: place, y: height - 5, "text-anchor": "middle"}, clock(time)));
    }
    this.series.forEach((numbers, at) => {
      const tone = TONES[at % 3];
      if (this.series.length < 3) parts.push(draw("path", {class: `area ${tone}`, d: area(numbers, x, y, base)}));
      parts.push(draw("path", {class: `line ${tone}`, d: path(numbers, x, y)}));
    });
    if (this.at !== undefined) parts.push(draw("path", {class: "hair", d: `M${x(this.at)} ${TOP}V${base}`}));
    this.svg.replaceChildren(...parts);
    this.tell(count);
  }

  // Tell the numbers under the pointer, else the latest.
  tell(count) {
    const at = this.at ?? count - 1;
    const found = this.series.map((numbers, index) => {
      const value = numbers[at] ?? (this.at === undefined ? numbers[at - 1] : undefined);
      return `${this.names[index]} ${value === null || value === undefined ? "–" : this.format(value)}`;
    });
    const time = clock(this.end_s - (count - 1 - at) * this.step_s, true);
    setText(this.read, `${time}: ${found.join(", ")}`);
  }
}

function tickOf(length_s, width) {
  const room = Math.max(2, Math.floor(width / 90));
  return [60, 120, 300, 600, 900, 1800, 3600].find((each) => length_s / each <= room) ?? 3600;
}

// A small line without axes, for a cell.
export function spark(numbers, what) {
  const known = numbers.filter((each) => each !== null);
  return {
    key: numbers.join(),
    node: () => {
      const svg = draw("svg", {class: "spark", viewBox: "0 0 96 22", role: "img",
        "aria-label": known.length ? `${what}: ${short(known.at(-1))} now, at most ${short(Math.max(...known))}` : what});
      const top = Math.max(1, ...known);
      const x = (at) => 95 - (numbers.length - 1 - at) * 94 / 59;
      const y = (value) => 20 - value / top * 17;
      svg.append(draw("path", {class: "area", d: area(numbers, x, y, 21)}), draw("path", {class: "line", d: path(numbers, x, y)}));
      return svg;
    },
  };
}
