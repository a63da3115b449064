// What a stream is to its users: subjects, the keys of a bucket, the objects of a store.

import {Grid, make} from "./dom.js";
import {number, size, when} from "./format.js";
import {mayRead, messageView} from "./messages.js";

const WAIT_MS = 300;
const OPERATIONS = {DEL: "deleted", PURGE: "purged", MaxAge: "expired"};

// A card that asks for a list once it is looked for, and when the search changes.
function card(app, account, title, what, load) {
  const place = make("div"), note = make("p", {class: "note"});
  const search = make("input", {type: "search", placeholder: "Search, or a pattern with * and >", "aria-label": `Search ${title.toLowerCase()}`});
  const element = make("section", {class: "card"}, make("h2", {}, title));
  let waiting = 0;
  const look = async () => {
    try { note.textContent = await load(place, search.value.trim()); } catch (error) { note.textContent = error.message; }
  };
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(look, WAIT_MS); });
  if (mayRead(app, account, element, what)) {
    element.append(make("div", {class: "tools"}, search), place, note);
    look();
  }
  return element;
}

const said = (shown, matched, total) => shown < matched ? `The first ${number(shown)} of ${number(matched)}; search to see others.`
  : matched < total ? `${number(matched)} of ${number(total)}.` : "";

export function subjects(app, account, stream) {
  const grid = new Grid("Subjects", [
    {id: "subject", title: "Subject", width: "wide", cell: ([name]) => ({text: name, class: "mono"})},
    {id: "messages", title: "Messages", number: true, cell: ([, count]) => number(count)},
  ], {empty: "No subjects."});
  return card(app, account, "Subjects", "see its subjects", async (place, search) => {
    const found = await app.session.post("read", {what: "subjects", stream, search});
    if (!place.firstChild) place.append(grid.element);
    const rows = Object.fromEntries(found.subjects.map((each) => [each[0], each]));
    grid.show(Object.keys(rows), rows);
    return said(found.subjects.length, found.matched, found.total);
  });
}

export function keys(app, account, stream) {
  const prefix = `$KV.${stream.replace(/^KV_/, "")}.`;
  return card(app, account, "Keys", "see its keys", async (place, search) => {
    const isPattern = /[*>]/.test(search);
    const found = await app.session.post("read", {what: "subjects", stream, search: isPattern ? prefix + search : search});
    place.replaceChildren(...found.subjects.map(([subject, count]) => key(app, stream, prefix, subject, count)));
    return found.subjects.length ? said(found.subjects.length, found.matched, found.total) : "No keys.";
  });
}

// A key; opened, its history, the newest first.
function key(app, stream, prefix, subject, count) {
  const body = make("div");
  const element = make("details", {class: "message", toggle: async () => {
    if (!element.open || body.childNodes.length) return;
    const found = await app.session.post("read", {what: "history", stream, subject});
    body.append(...found.messages.map((each) => {
      const operation = each.headers.find(([name]) => /^(KV-Operation|Nats-Marker-Reason)$/.test(name))?.[1];
      return messageView(app, stream, {...each, subject: OPERATIONS[operation] ?? operation ?? "put"});
    }));
    body.querySelector("details")?.setAttribute("open", "");
  }}, make("summary", {}, make("strong", {class: "mono"}, subject.startsWith(prefix) ? subject.slice(prefix.length) : subject),
    make("span", {class: "quiet small"}, count > 1 ? `${number(count)} revisions` : "")), body);
  return element;
}

export function objects(app, account, stream) {
  const grid = new Grid("Objects", [
    {id: "name", title: "Object", width: "wide", cell: (row) => ({text: row.name, title: row.description || row.name, class: row.deleted ? "quiet" : ""})},
    {id: "size", title: "Size", number: true, cell: (row) => row.deleted ? "deleted" : size(row.size)},
    {id: "chunks", title: "Chunks", number: true, cell: (row) => number(row.chunks)},
    {id: "mtime", title: "Changed", cell: (row) => ({text: when(row.mtime), class: "quiet"})},
    {id: "digest", title: "Digest", width: "middle", cell: (row) => ({text: row.digest ?? "", class: "mono"})},
  ], {empty: "No objects."});
  return card(app, account, "Objects", "see its objects", async (place, search) => {
    const found = await app.session.post("read", {what: "objects", stream});
    if (!place.firstChild) place.append(grid.element);
    const chosen = found.objects.filter((each) => String(each.name).toLowerCase().includes(search.toLowerCase()));
    const rows = Object.fromEntries(chosen.map((each) => [each.name, each]));
    grid.show(Object.keys(rows), rows);
    return said(chosen.length, chosen.length, found.total);
  });
}
