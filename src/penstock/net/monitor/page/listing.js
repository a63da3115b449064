// A table of the server's: search, sort and "more" are asked of the server; cells are patched.

import {Grid, make} from "./dom.js";
import {number} from "./format.js";

const ROWS = 100, ROWS_MAX = 1000, WAIT_MS = 250;

export class Listing {
  constructor(app, {view, caption, columns, sort, extra = () => ({}), tools = [], placeholder, empty}) {
    this.app = app;
    this.view = view;
    this.extra = extra;
    this.standard = sort;
    this.rows = {};
    this.grid = new Grid(caption, columns, {sort: this.sort, empty, onsort: (id, isNumber) => this.by(id, isNumber)});
    this.search = make("input", {type: "search", placeholder: placeholder ?? "Search (press /)", "aria-label": "Search",
      value: app.options.search ?? "", input: () => this.later()});
    const choices = columns.filter((each) => each.sort !== false)
      .flatMap((each) => [[each.id, `${each.title} ↑`], [`-${each.id}`, `${each.title} ↓`]]);
    this.choice = make("select", {"aria-label": "Sort by", class: "narrow-only", change: () => this.go(this.choice.value)},
      choices.map(([id, title]) => make("option", {value: id, selected: id === this.sort}, title)));
    this.more = make("button", {type: "button", hidden: true, click: () => app.change({limit: String(Math.min(this.limit * 2, ROWS_MAX))})}, "Show more");
    this.element = make("div", {}, make("div", {class: "tools"}, this.search, this.choice, tools),
      this.grid.element, this.more);
  }

  get sort() { return this.app.options.sort ?? this.standard; }
  get limit() { return Number(this.app.options.limit ?? ROWS); }

  later() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.app.change({search: this.search.value}), WAIT_MS);
  }

  by(id, isNumber) {
    const first = isNumber ? `-${id}` : id, other = isNumber ? id : `-${id}`;
    this.go(this.sort === first ? other : first);
  }

  go(sort) {
    this.choice.value = sort;
    this.app.change({sort});
    this.grid.sorted(this.sort);
  }

  query() {
    const {search, limit} = this.app.options;
    return {view: this.view, sort: this.sort, ...(search ? {search} : {}), ...(limit ? {limit} : {}), ...this.extra()};
  }

  table(page) {
    const shown = page.order.length;
    let said = "";
    if (shown < page.matched) said = `The first ${number(shown)} of ${number(page.matched)}${this.limit >= ROWS_MAX ? "; search to see others" : ""}.`;
    else if (page.matched < page.total) said = `${number(page.matched)} of ${number(page.total)} match.`;
    this.grid.show(page.order, page.rows, said);
    this.more.hidden = shown >= page.matched || this.limit >= ROWS_MAX;
  }
}
