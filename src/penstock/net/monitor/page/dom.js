// Elements and tables. Whatever comes from the server is text here, never markup.

// Make an element; properties that are functions listen to events.
export function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (name === "class") made.className = value;
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

// Change a text only if it differs: a selection in it stays.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Show `code` in a sentence as code.
export function sentence(text) {
  return text.split("`").map((part, at) => at % 2 ? make("code", {}, part) : part);
}

// Tiles: a figure and what it is, patched in place.
export class Tiles {
  constructor(kind = "") {
    this.element = make("div", {class: `tiles ${kind}`.trim()});
    this.known = new Map();
  }
  show(pairs) {
    for (const [what, figure] of pairs) {
      if (!this.known.has(what)) {
        const strong = make("strong");
        this.known.set(what, strong);
        this.element.append(make("div", {class: "tile"}, strong, make("span", {}, what)));
      }
      setText(this.known.get(what), figure);
    }
  }
}

// A table that is patched cell by cell. A column has `id`, `title`, and `cell(row)`, which
// returns a text, or an object with text, title, href, class, or a node with the key it was made of.
export class Grid {
  constructor(caption, columns, {sort, onsort, empty = "Nothing here."} = {}) {
    this.columns = columns;
    this.rows = new Map();
    this.body = make("tbody");
    this.heads = new Map();
    const line = make("tr");
    for (const column of columns) {
      const isSorted = onsort && column.sort !== false;
      const inner = isSorted
        ? make("button", {type: "button", click: () => onsort(column.id, column.number)}, column.title)
        : column.title;
      const head = make("th", {scope: "col", class: column.number ? "number" : ""}, inner);
      this.heads.set(column.id, head);
      line.append(head);
    }
    this.table = make("table", {class: "rows"}, make("caption", {}, caption), make("thead", {}, line), this.body);
    this.note = make("p", {class: "note", hidden: true});
    this.empty = empty;
    this.element = make("div", {}, make("div", {class: "scroll"}, this.table), this.note);
    this.sorted(sort);
  }

  sorted(sort) {
    const [id, order] = sort?.startsWith("-") ? [sort.slice(1), "descending"] : [sort, "ascending"];
    for (const [name, head] of this.heads) {
      if (name === id) head.setAttribute("aria-sort", order);
      else head.removeAttribute("aria-sort");
    }
  }

  // Show rows in an order; `changed` are those that are new or differ.
  show(order, changed, said = "") {
    for (const [key, row] of this.rows) {
      if (!order.includes(key)) { row.remove(); this.rows.delete(key); }
    }
    let place = this.body.firstChild;
    for (const key of order) {
      let row = this.rows.get(key);
      if (!row) {
        row = make("tr");
        row.append(...this.columns.map((column) => make("td", {
          "class": `${column.number ? "number" : ""} ${column.width ?? ""}`.trim(), "data-label": column.title})));
        this.rows.set(key, row);
      }
      if (key in changed) this.fill(row, changed[key]);
      if (row === place) place = place.nextSibling;
      else this.body.insertBefore(row, place);
    }
    const text = order.length ? said : this.empty;
    this.note.hidden = !text;
    setText(this.note, text);
    this.table.hidden = !order.length;
  }

  fill(row, values) {
    this.columns.forEach((column, at) => fillCell(row.children[at], column.cell(values)));
  }
}

function fillCell(cell, found) {
  const value = typeof found === "object" && found !== null ? found : {text: String(found ?? "")};
  const key = value.node ? value.key : `${value.text}\n${value.href ?? ""}`;
  const tone = value.class ?? "";
  if (cell.tone !== tone) {
    if (cell.tone) cell.classList.remove(cell.tone);
    if (tone) cell.classList.add(tone);
    cell.tone = tone;
  }
  if (cell.key === key) return;
  cell.key = key;
  if (value.node) {
    cell.replaceChildren(value.node());
    return;
  }
  const title = value.title ?? value.text;
  let inner = cell.firstElementChild;
  if (!inner || (inner.tagName === "A") !== Boolean(value.href)) {
    inner = make(value.href ? "a" : "span", {class: "cut"});
    cell.replaceChildren(...(value.text ? [inner] : []));
  }
  if (value.href) inner.setAttribute("href", value.href);
  inner.setAttribute("title", title);
  setText(inner, value.text);
  if (value.text && !inner.parentNode) cell.append(inner);
}

export const bar = (share, text) => ({
  key: `${share.toFixed(2)} ${text}`,
  node: () => {
    const inner = make("i");
    inner.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
    return make("span", {}, make("span", {class: share >= .9 ? "bar full" : "bar"}, inner), text);
  },
});

let saying = 0;
export function say(text) {
  const said = document.getElementById("said");
  said.textContent = text;
  clearTimeout(saying);
  saying = setTimeout(() => { said.textContent = ""; }, 6000);
}
