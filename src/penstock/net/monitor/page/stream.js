// One stream: state, settings, consumers with their lag over time, and what is in it.

import {Chart} from "./chart.js";
import {ask} from "./dialog.js";
import {Grid, Tiles, make, say, setText} from "./dom.js";
import {number, rate, size, span} from "./format.js";
import {keys, objects, subjects} from "./inside.js";
import {browser, facts} from "./messages.js";
import {Range} from "./range.js";
import {consumerColumns} from "./streams.js";

const LINES = 3;

export function stream(app, [account, name]) {
  const title = make("h1", {}, name), sub = make("span", {class: "quiet"}), tiles = new Tiles("five");
  const lost = make("ul", {class: "findings"});
  const stored = new Chart("Stored a second", ["messages"], (value) => rate(value));
  const settings = make("section", {class: "card"}, make("h2", {}, "Settings"), make("div"));
  const actions = app.session.user && app.session.account === account;
  const grid = new Grid(`Consumers of ${name}`, consumerColumns(true, actions ? {id: "act", title: "", cell: (row) => ({
    key: `${row.name} ${row.is_paused}`, node: () => consumerTools(row)})} : null), {empty: "No consumers."});
  const lag = make("div");
  const consumers = make("section", {class: "card"}, make("h2", {}, "Consumers"), grid.element);
  const content = make("div"), tools = make("div", {class: "tools"});
  const range = new Range(() => load());
  let before = {}, kind = "", known = "", lines = "", loaded = 0;

  const consumerTools = (row) => make("span", {class: "group"},
    make("button", {type: "button", click: () => pause(row)}, row.is_paused ? "Resume" : "Pause"),
    make("button", {type: "button", class: "danger", click: () => confirm("Delete a consumer", `Consumer \`${row.name}\` is deleted, and with it how far it was.`,
      row.name, "Delete", {action: "delete_consumer", stream: name, consumer: row.name})}, "Delete"));

  async function confirm(heading, text, typed, action, fields) {
    const done = await ask({title: heading, text, name: typed, action, isDangerous: true,
      act: (_, value) => app.session.post("do", {...fields, confirm: value})});
    if (done) say("Done.");
    return done;
  }

  async function pause(row) {
    const fields = row.is_paused ? [] : [{name: "minutes", title: "Minutes", value: "60"}];
    const done = await ask({
      title: row.is_paused ? "Resume a consumer" : "Pause a consumer", fields, name: row.name, action: row.is_paused ? "Resume" : "Pause",
      text: row.is_paused ? "It delivers again at once." : "It delivers nothing until then; messages wait in the stream.",
      act: (values, typed) => app.session.post("do", {action: "pause", stream: name, consumer: row.name, confirm: typed,
        seconds: row.is_paused ? 0 : Math.round(Number(values.minutes) * 60)}),
    });
    if (done) say("Done.");
  }

  function showTools() {
    if (!actions) return;
    tools.append(
      make("button", {type: "button", click: () => publish()}, "Publish"),
      make("button", {type: "button", class: "danger", click: () => ask({
        title: "Purge", name, action: "Purge", isDangerous: true, text: `Messages of \`${name}\` are deleted for good.`,
        fields: [{name: "subject", title: "Only of this subject (empty: all messages)", placeholder: "orders.>"}],
        act: async (values, typed) => {
          const found = await app.session.post("do", {action: "purge", stream: name, confirm: typed, ...values});
          say(`${number(found.purged)} messages were purged.`);
        }})}, "Purge"),
      make("button", {type: "button", class: "danger", click: async () => {
        const done = await confirm("Delete the stream", `Stream \`${name}\` is deleted with all its messages and consumers.`, name, "Delete", {action: "delete_stream", stream: name});
        if (done) location.hash = "#/streams";
      }}, "Delete"));
  }

  const publish = () => ask({
    title: "Publish", action: "Publish",
    fields: [{name: "subject", title: "Subject"}, {name: "headers", title: "Headers, as Name: value; Name: value"}, {name: "payload", title: "Payload", type: "textarea"}],
    act: async ({subject, headers, payload}) => {
      const pairs = headers.split(";").map((each) => each.split(/:(.*)/s).map((part) => part.trim())).filter(([key]) => key);
      await app.session.post("do", {action: "publish", subject, payload, headers: pairs.map(([key, value]) => [key, value ?? ""])});
      say(`Published to ${subject}.`);
    },
  });

  async function load() {
    const found = await (await fetch(`historyz?${new URLSearchParams({account, stream: name})}`, {cache: "no-store"})).json();
    const cut = (series) => series.slice(-range.length_s / found.step_s);
    stored.show([cut(found.stored)], found.end_s, found.step_s);
    const most = found.consumers.slice(0, LINES), names = most.map((each) => each.name);
    if (!names.length) return;
    if (lines !== names.join()) {
      lines = names.join();
      lag.chart = new Chart(found.consumers.length > LINES ? `Behind: the ${LINES} furthest` : "Behind", names);
      lag.replaceChildren(lag.chart.element);
    }
    lag.chart.show(most.map((each) => cut(each.pending)), found.end_s, found.step_s);
  }

  showTools();
  return {
    element: make("div", {}, make("div", {class: "title"}, make("a", {class: "crumb", href: "#/streams"}, "← Streams"), title, sub,
      make("span", {class: "grow"}), tools), lost, tiles.element, make("div", {class: "tools"}, range.element), make("div", {class: "columns"}, stored.element, lag), consumers, content, settings),
    query: () => ({view: "stream", account, stream: name}),
    head(head) {
      // The history has a new number every few seconds.
      if (head.at_s - loaded < head.step_s) return;
      loaded = head.at_s;
      load().catch(() => {});
    },
    document(found) {
      if (found.is_gone) {
        setText(sub, "This stream does not exist any more.");
        return;
      }
      setText(title, found.title);
      setText(sub, [{bucket: "KV bucket", objects: "object store", stream: ""}[found.kind], account, found.storage, found.retention].filter(Boolean).join(" · "));
      tiles.show([
        ["messages", number(found.messages)], ["size", size(found.bytes)], ["filled", found.fill < 0 ? "no limit" : `${Math.round(found.fill * 100)} %`],
        ["stored /s", rate(found.rate)], ["subjects", number(found.subjects)], ["first sequence", number(found.first)],
        ["last sequence", number(found.last)], ["oldest", ago(found.first_time)], ["newest", ago(found.last_time)], ["created", ago(found.created)],
      ]);
      const problems = [found.failure && `It cannot store: ${found.failure}`, found.lost && `${number(found.lost)} messages are damaged on disk.`, ...found.damage].filter(Boolean);
      if (known !== JSON.stringify([problems, found.config])) {
        known = JSON.stringify([problems, found.config]);
        lost.replaceChildren(...problems.map((each) => make("li", {class: "critical"}, each)));
        settings.lastChild.replaceWith(facts(settingsOf(found.config)));
      }
      const rows = Object.fromEntries(found.consumer_rows.map((each) => [each.name, each]));
      const changed = Object.fromEntries(Object.entries(rows).filter(([key, row]) => JSON.stringify(before[key]) !== JSON.stringify(row)));
      const hidden = found.consumers - found.consumer_rows.length;
      grid.show(Object.keys(rows), changed, hidden > 0 ? `and ${number(hidden)} more, which are less behind` : "");
      before = rows;
      if (kind !== found.kind) {
        kind = found.kind;
        const inside = {bucket: () => [keys(app, account, name)], objects: () => [objects(app, account, name)], stream: () => []}[kind]();
        content.replaceChildren(...inside, browser(app, account, name), ...(kind === "stream" ? [subjects(app, account, name)] : []));
      }
    },
  };
}

const ago = (time) => time ? `${span(Math.max(0, (Date.now() - Date.parse(time)) / 1000))} ago` : "–";

const DURATIONS = new Set(["max_age", "duplicate_window", "subject_delete_marker_ttl"]);
const SIZES = new Set(["max_bytes", "max_msg_size"]);

// The settings, those that are set to something first.
function settingsOf(config) {
  return Object.entries(config).map(([name, value]) => [name, shown(name, value)]).filter(([, value]) => value !== "");
}

function shown(name, value) {
  if (value === null || value === "" || (Array.isArray(value) && !value.length)) return "";
  if (DURATIONS.has(name)) return value > 0 ? span(value / 1e9) : "no limit";
  if (value === -1) return "no limit";
  if (SIZES.has(name)) return size(value);
  if (Array.isArray(value) && value.every((each) => typeof each === "string")) return value.join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
