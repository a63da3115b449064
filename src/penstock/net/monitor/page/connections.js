// Connections: open ones, and closed ones with their reason.

import {ask} from "./dialog.js";
import {make, say} from "./dom.js";
import {milliseconds, number, rate, size, span, when} from "./format.js";
import {Listing} from "./listing.js";

export function connections(app) {
  const isClosed = app.options.state === "closed";
  const before = new Map();
  const perSecond = (row, field) => {
    const key = `${row.cid} ${field}`, now = app.head?.at_s ?? 0, [then, was] = before.get(key) ?? [now, row[field]];
    before.set(key, [now, row[field]]);
    return now > then ? Math.max(0, (row[field] - was) / (now - then)) : 0;
  };
  const columns = [
    {id: "name", title: "Client", width: "wide", cell: (row) => ({text: row.name || `connection ${row.cid}`, title: `${row.name} ${row.client}`.trim()})},
    {id: "cid", title: "Number", number: true, cell: (row) => String(row.cid)},
    {id: "address", title: "Address", width: "middle", cell: (row) => ({text: row.address, class: "quiet"})},
    {id: "user", title: "User", sort: false, width: "middle", cell: (row) => ({
      text: [row.user, row.account].filter(Boolean).join(" @ "), class: "quiet"})},
    {id: "in", title: isClosed ? "In" : "In /s", number: true, cell: (row) => isClosed ? number(row.in) : rate(perSecond(row, "in"))},
    {id: "out", title: isClosed ? "Out" : "Out /s", number: true, cell: (row) => isClosed ? number(row.out) : rate(perSecond(row, "out"))},
    {id: "waiting", title: "Waiting", number: true, cell: (row) => ({text: size(row.waiting), class: row.waiting > 1 << 20 ? "bad" : ""})},
    {id: "subscriptions", title: "Subscriptions", number: true, cell: (row) => ({
      key: `${row.subscriptions} ${row.subjects.join()}`, node: () => subjects(row)})},
  ];
  if (isClosed) {
    columns.push({id: "reason", title: "Reason", width: "middle", cell: (row) => ({text: row.reason, class: /slow|error|violation/i.test(row.reason) ? "bad" : ""})});
    columns.push({id: "closed", title: "Closed", sort: false, cell: (row) => ({text: when(row.closed), class: "quiet"})});
  } else {
    columns.push({id: "rtt", title: "Round trip", number: true, cell: (row) => milliseconds(row.rtt)});
    columns.push({id: "idle", title: "Idle", number: true, sort: false, cell: (row) => span(row.idle_s)});
    if (app.session.isOperator) columns.push({id: "kick", title: "", sort: false, cell: (row) => ({key: row.cid,
      node: () => make("button", {type: "button", class: "danger", click: () => kick(app, row)}, "Kick")})});
  }
  const states = ["open", "closed"].map((state) => make("button", {type: "button", "aria-pressed": String((state === "closed") === isClosed),
    click: () => { app.change({state: state === "closed" ? state : "", sort: "", search: ""}); app.restart(); }}, state));
  const listing = new Listing(app, {
    view: "connections", caption: `Connections, ${isClosed ? "closed" : "open"}`, sort: "cid", columns, empty: "No connections.",
    placeholder: "Name, address, user, reason (press /)", extra: () => isClosed ? {state: "closed"} : {},
    tools: [make("div", {class: "group", role: "group", "aria-label": "Which connections"}, states)],
  });
  return {
    element: make("div", {}, make("div", {class: "title"}, make("h1", {}, "Connections")), make("section", {class: "card"}, listing.element)),
    query: () => listing.query(),
    table: (page) => listing.table(page),
  };
}

function subjects(row) {
  if (!row.subjects.length) return make("span", {}, number(row.subscriptions));
  const left = row.subscriptions - row.subjects.length;
  return make("details", {}, make("summary", {}, number(row.subscriptions)),
    row.subjects.map((each) => make("span", {class: "chip mono"}, each)),
    left > 0 ? make("span", {class: "quiet small"}, `and ${number(left)} more`) : null);
}

async function kick(app, row) {
  const done = await ask({
    title: "Kick a connection", name: String(row.cid), action: "Kick", isDangerous: true,
    text: `Connection \`${row.cid}\` (${row.name || "no name"}, ${row.address}) is closed. Most clients connect again.`,
    act: (_, confirm) => app.session.post("do", {action: "kick", cid: row.cid, confirm}),
  });
  if (done) say(`Connection ${row.cid} was kicked.`);
}
