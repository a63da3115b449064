// How much of the last hour charts show.

import {make} from "./dom.js";

const RANGES = [["5 min", 300], ["15 min", 900], ["1 h", 3600]];

export class Range {
  constructor(onchange) {
    this.length_s = 900;
    this.buttons = RANGES.map(([title, length_s]) => make("button", {type: "button",
      click: () => { this.length_s = length_s; this.mark(); onchange(); }}, title));
    this.element = make("div", {class: "group", role: "group", "aria-label": "Time shown"}, this.buttons);
    this.mark();
  }
  mark() {
    this.buttons.forEach((button, at) => button.setAttribute("aria-pressed", RANGES[at][1] === this.length_s));
  }
}
