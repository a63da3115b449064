// Streams and consumers, as tables.

import {spark} from "./chart.js";
import {bar, make} from "./dom.js";
import {number, rate, size} from "./format.js";
import {Listing} from "./listing.js";

export const streamLink = (account, name) => `#/streams/${encodeURIComponent(account)}/${encodeURIComponent(name)}`;
const KINDS = {bucket: "KV bucket", objects: "object store"};

export function fill(row) {
  return row.fill < 0 ? {text: "no limit", class: "quiet"} : bar(row.fill, `${Math.round(row.fill * 100)} %`);
}

export function streams(app) {
  const listing = new Listing(app, {
    view: "streams", caption: "Streams", sort: "name", empty: "No streams.",
    columns: [
      {id: "name", title: "Stream", width: "wide", cell: (row) => ({
        text: row.kind === "stream" ? row.name : `${row.title} (${KINDS[row.kind]})`, title: row.name, href: streamLink(row.account, row.name),
        class: row.failure || row.lost ? "bad" : ""})},
      {id: "account", title: "Account", width: "middle", cell: (row) => ({text: row.account, class: "quiet"})},
      {id: "messages", title: "Messages", number: true, cell: (row) => number(row.messages)},
      {id: "bytes", title: "Size", number: true, cell: (row) => size(row.bytes)},
      {id: "fill", title: "Filled", number: true, cell: fill},
      {id: "rate", title: "Stored /s", number: true, cell: (row) => rate(row.rate)},
      {id: "spark", title: "Last hour", sort: false, cell: (row) => spark(row.spark, "stored a second")},
      {id: "last", title: "Last sequence", number: true, cell: (row) => number(row.last)},
      {id: "consumers", title: "Consumers", number: true, cell: (row) => number(row.consumers)},
    ],
  });
  return {
    element: make("div", {}, make("div", {class: "title"}, make("h1", {}, "Streams")),
      make("section", {class: "card"}, listing.element)),
    query: () => listing.query(),
    table: (page) => listing.table(page),
  };
}

// The columns of consumers; a page of one stream leaves the stream out.
export function consumerColumns(isOfStream, actions) {
  const columns = [
    {id: "name", title: "Consumer", width: "wide", cell: (row) => ({text: row.name,
      title: row.filters.length ? `${row.name}: ${row.filters.join(", ")}` : row.name,
      ...(isOfStream ? {} : {href: streamLink(row.account, row.stream)})})},
    {id: "stream", title: "Stream", width: "middle", cell: (row) => ({text: row.stream, class: "quiet"})},
    {id: "account", title: "Account", width: "middle", cell: (row) => ({text: row.account, class: "quiet"})},
    {id: "pending", title: "Behind", number: true, cell: (row) => ({text: number(row.pending), class: row.passed ? "bad" : "",
      title: row.passed ? `a limit removed ${number(row.passed)} unread messages` : ""})},
    {id: "unacked", title: "Unacked", number: true, cell: (row) => ({
      text: row.unacked_max ? `${number(row.unacked)} of ${number(row.unacked_max)}` : number(row.unacked),
      class: row.unacked_max && row.unacked >= row.unacked_max ? "bad" : ""})},
    {id: "redelivered", title: "Again", number: true, cell: (row) => ({text: number(row.redelivered), class: row.redelivered ? "warn" : ""})},
    {id: "rate", title: "Delivered /s", number: true, cell: (row) => rate(row.rate)},
    {id: "waiting", title: "Requests", number: true, cell: (row) => number(row.waiting)},
    {id: "spark", title: "Behind, last hour", sort: false, cell: (row) => spark(row.spark, "messages behind")},
    {id: "state", title: "", sort: false, cell: (row) => ({text: row.is_paused ? "paused" : "", class: "warn"})},
  ];
  const chosen = isOfStream ? columns.filter((each) => !["stream", "account"].includes(each.id)) : columns;
  return actions ? [...chosen, actions] : chosen;
}

export function consumers(app) {
  const listing = new Listing(app, {
    view: "consumers", caption: "Consumers", sort: "-pending", empty: "No consumers.", columns: consumerColumns(false)});
  return {
    element: make("div", {}, make("div", {class: "title"}, make("h1", {}, "Consumers")),
      make("section", {class: "card"}, listing.element)),
    query: () => listing.query(),
    table: (page) => listing.table(page),
  };
}
