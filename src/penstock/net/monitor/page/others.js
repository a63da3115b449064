// The smaller views: pipelines, accounts, settings.

import {ask} from "./dialog.js";
import {Grid, make, say} from "./dom.js";
import {number, rate, size, span} from "./format.js";
import {Listing} from "./listing.js";
import {streamLink} from "./streams.js";

const STILL_S = 60;

// A view whose rows come as one document.
function listed(title, grid, rowsOf, tools = null) {
  let before = {};
  return {
    element: make("div", {}, make("div", {class: "title"}, make("h1", {}, title), make("span", {class: "grow"}), tools),
      make("section", {class: "card"}, grid.element)),
    document(found) {
      const rows = Object.fromEntries(rowsOf(found));
      const changed = Object.fromEntries(Object.entries(rows).filter(([key, row]) => JSON.stringify(before[key]) !== JSON.stringify(row)));
      grid.show(Object.keys(rows), changed);
      before = rows;
    },
  };
}

export function pipelines(app) {
  const grid = new Grid("Pipelines", [
    {id: "name", title: "Pipeline", width: "wide", cell: (row) => row.name},
    {id: "stream", title: "Stream", width: "middle", cell: (row) => ({text: row.stream, href: streamLink(row.account, row.stream)})},
    {id: "account", title: "Account", cell: (row) => ({text: row.account, class: "quiet"})},
    {id: "behind", title: "Behind", number: true, cell: (row) => number(row.behind_messages)},
    {id: "behind_s", title: "Behind by", number: true, cell: (row) => span(row.behind_s)},
    {id: "rows", title: "Rows /s", number: true, cell: (row) => rate(row.rows_per_s)},
    {id: "batch", title: "Last batch", number: true, cell: (row) => number(row.batch)},
    {id: "age", title: "Reported", number: true, cell: (row) => ({text: `${span(row.age_s)} ago`, class: row.age_s > STILL_S ? "warn" : ""})},
  ], {empty: "No pipeline has reported. `penstock pipeline run` does so after every batch."});
  const view = listed("Pipelines", grid, (found) => found.pipelines
    .filter((each) => !app.account || each.account === app.account).map((each) => [`${each.account}\n${each.name}`, each]));
  return {...view, query: () => ({view: "pipelines"})};
}

export function accounts(app) {
  const choose = (name) => { sessionStorage.setItem("account", name); document.getElementById("account").value = name; app.restart(); };
  const listing = new Listing(app, {
    view: "accounts", caption: "Accounts", sort: "name",
    columns: [
      {id: "name", title: "Account", width: "wide", cell: (row) => ({text: row.label || row.name, title: row.name})},
      {id: "kind", title: "", sort: false, cell: (row) => ({text: row.is_system ? "system" : "", class: "quiet"})},
      {id: "connections", title: "Connections", number: true, cell: (row) => number(row.connections)},
      {id: "subscriptions", title: "Subscriptions", number: true, cell: (row) => number(row.subscriptions)},
      {id: "streams", title: "Streams", number: true, cell: (row) => number(row.streams)},
      {id: "bytes", title: "Stored", number: true, cell: (row) => size(row.bytes)},
      {id: "slow_consumers", title: "Slow clients", number: true, cell: (row) => ({text: number(row.slow_consumers), class: row.slow_consumers ? "warn" : ""})},
      {id: "switch", title: "", sort: false, cell: (row) => ({key: `${row.name} ${app.account}`, node: () =>
        app.account === row.name
          ? make("button", {type: "button", click: () => choose("")}, "Show all")
          : make("button", {type: "button", click: () => choose(row.name)}, "Show only this")})},
    ],
  });
  return {
    element: make("div", {}, make("div", {class: "title"}, make("h1", {}, "Accounts")),
      make("section", {class: "card"}, listing.element)),
    query: () => ({...listing.query(), account: ""}),
    table: (page) => listing.table(page),
  };
}

export function config(app) {
  const grid = new Grid("Settings", [
    {id: "setting", title: "Setting", cell: ([name]) => ({text: name, class: "mono"})},
    {id: "value", title: "Value", width: "wide", cell: ([, value]) => text(value)},
    {id: "from", title: "From", width: "middle", cell: ([, , from]) => ({text: from, class: from === "default" ? "quiet" : ""})},
  ]);
  const set = make("input", {type: "checkbox", change: () => show()});
  const warnings = make("ul", {class: "findings"});
  const reload = app.session.isOperator ? make("button", {type: "button", click: () => reloadConfig(app)}, "Read the file again") : null;
  let found = null;
  const view = listed("Config", grid, (document) => document.settings
    .filter(([, , from]) => !set.checked || from !== "default").map((row) => [row[0], row]), reload);
  view.element.children[0].append(make("label", {}, set, " only what is set"));
  view.element.append(warnings);
  const show = () => { if (found) view.document(found); };
  return {
    ...view,
    query: () => ({view: "config"}),
    document(document) {
      found = document;
      show();
      warnings.replaceChildren(...document.warnings.map((each) => make("li", {}, each)));
    },
  };
}

function text(value) {
  if (value === null) return "";
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value === "object") return Object.entries(value).map(([name, each]) => `${name}: ${each}`).join(", ");
  return String(value);
}

async function reloadConfig(app) {
  const done = await ask({
    title: "Read the configuration again", name: "reload", action: "Reload",
    text: "As on SIGHUP: users, permissions, limits and certificates change at once; other settings wait for a restart.",
    act: (_, confirm) => app.session.post("do", {action: "reload", confirm}),
  });
  if (done) say("The configuration was read again.");
}
