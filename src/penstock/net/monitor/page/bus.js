// The event buses: services, their members, how far each is; and the dead letters.

import {Grid, Tiles, make, setText} from "./dom.js";
import {number, rate, span} from "./format.js";
import {letters} from "./letters.js";
import {streamLink} from "./streams.js";

const COLUMNS = [
  {id: "service", title: "Service", width: "middle", cell: (row) => row.service},
  {id: "pattern", title: "Reads", width: "wide", cell: (row) => ({text: row.pattern, title: `${row.pattern} (consumer ${row.consumer})`, class: "mono"})},
  {id: "pending", title: "Waiting", number: true, cell: (row) => number(row.pending)},
  {id: "oldest", title: "Oldest", number: true, cell: (row) => row.oldest_s ? span(row.oldest_s) : ""},
  {id: "unacked", title: "In work", number: true, cell: (row) => ({text: number(row.unacked),
    class: row.unacked_max && row.unacked >= row.unacked_max ? "bad" : ""})},
  {id: "redelivered", title: "Again", number: true, cell: (row) => ({text: number(row.redelivered), class: row.redelivered ? "warn" : ""})},
  {id: "rate", title: "Delivered /s", number: true, cell: (row) => rate(row.rate)},
];

export function bus(app) {
  const place = make("div"), shown = new Map();
  const nothing = make("section", {class: "card", hidden: true}, make("p", {class: "quiet"},
    "No event bus is on this server. Services that use penstock's EventBus appear here."));
  return {
    element: make("div", {}, make("div", {class: "title"}, make("h1", {}, "Bus")), nothing, place),
    query: () => ({view: "bus"}),
    close() { for (const each of shown.values()) each.close(); },
    document(found) {
      const buses = found.buses.filter((each) => !app.account || each.account === app.account);
      nothing.hidden = buses.length > 0;
      for (const each of buses) {
        const key = `${each.account}\n${each.name}`;
        if (!shown.has(key)) {
          shown.set(key, new Bus(app, each));
          place.append(shown.get(key).element);
        }
        shown.get(key).show(each);
      }
    },
  };
}

class Bus {
  constructor(app, found) {
    this.before = {};
    this.tiles = new Tiles();
    this.grid = new Grid(`Services of ${found.name}`, COLUMNS, {empty: "No service reads from it."});
    this.members = make("div");
    this.letters = letters(app, found);
    this.element = make("section", {class: "card"},
      make("div", {class: "title"}, make("h2", {}, make("a", {href: streamLink(found.account, found.name)}, found.name)),
        make("span", {class: "quiet small"}, found.account)),
      this.tiles.element, this.grid.element, this.members, this.letters.element);
  }

  close() { this.letters.close?.(); }

  show(found) {
    const reads = found.services.flatMap((service) => service.reads);
    const sum = (field) => reads.reduce((all, each) => all + each[field], 0);
    this.tiles.show([
      ["events kept", number(found.messages)], ["events /s", rate(found.rate)], ["services", number(found.services.length)],
      ["waiting", number(sum("pending"))], ["delivered again", number(sum("redelivered"))], ["dead letters", number(found.dead)],
    ]);
    const rows = Object.fromEntries(found.services.flatMap((service) => service.reads.map((each) =>
      [`${service.name}\n${each.stream}\n${each.consumer}`, {...each, service: service.name}])));
    const changed = Object.fromEntries(Object.entries(rows).filter(([key, row]) => JSON.stringify(this.before[key]) !== JSON.stringify(row)));
    this.grid.show(Object.keys(rows), changed);
    this.before = rows;
    this.showMembers(found.services);
    this.letters.count(found);
  }

  showMembers(services) {
    const key = JSON.stringify(services.map((each) => [each.name, each.members]));
    if (key === this.known) return;
    this.known = key;
    const active = services.filter((each) => each.members.length);
    this.members.replaceChildren(...(active.length ? [make("h3", {}, "Members")] : []), ...active.map((service) => make("p", {},
      make("strong", {}, service.name), " ", service.members.map((each) => make("span", {class: "chip"}, memberText(each))))));
  }
}

function memberText(each) {
  return [each.name, each.leads ? "leads" : "", `${number(each.slots)} slots`].filter(Boolean).join(" · ");
}
