// The first view: what needs attention, the figures, and the last hour.

import {Chart} from "./chart.js";
import {Tiles, make, sentence, setText} from "./dom.js";
import {number, rate, size, span} from "./format.js";
import {Range} from "./range.js";

const TITLES = {
  store_failure: "Cannot store", damage: "Damage", disk: "Disk", losing: "Losing messages", stuck: "Stuck",
  behind: "Behind", dead_letters: "Dead letters", slow_consumers: "Slow clients", standstill: "Standstill",
};
const KEPT = ["in_rate", "out_rate", "in_bytes_rate", "out_bytes_rate", "memory_bytes", "cpu_percent"];

export function link(found) {
  if (found.rule === "dead_letters") return "#/bus";
  if (found.rule === "standstill") return "#/pipelines";
  if (found.rule === "slow_consumers") return "#/connections?state=closed&search=slow";
  if (!found.stream) return "#/streams?sort=-bytes";
  return `#/streams/${encodeURIComponent(found.account)}/${encodeURIComponent(found.stream)}`;
}

export function overview(app) {
  const list = make("ul", {class: "findings"}), all = make("p", {class: "well"}, "All is well.");
  const more = make("p", {class: "note"});
  const attention = make("section", {class: "card"}, make("h2", {}, "Attention"), all, list, more);
  const tiles = new Tiles();
  const messages = new Chart("Messages a second", ["in", "out"]);
  const bytes = new Chart("Bytes a second", ["in", "out"], size, 1024);
  const memory = new Chart("Memory", ["resident"], size, 1024);
  const processor = new Chart("Processor", ["percent of one core"], (value) => `${Math.round(value)} %`);
  const range = new Range(() => paint());
  const series = {};
  let last = -1, end_s = 0, step_s = 5, key;

  function paint() {
    if (!series.in_rate) return;
    const count = Math.min(range.length_s / step_s, series.in_rate.length);
    const cut = (name) => series[name].slice(-count);
    messages.show([cut("in_rate"), cut("out_rate")], end_s, step_s);
    bytes.show([cut("in_bytes_rate"), cut("out_bytes_rate")], end_s, step_s);
    memory.show([cut("memory_bytes")], end_s, step_s);
    processor.show([cut("cpu_percent")], end_s, step_s);
  }

  async function load() {
    const found = await (await fetch("historyz", {cache: "no-store"})).json();
    for (const name of KEPT) series[name] = found[name];
    ({end_s, step_s} = found);
    last = end_s / step_s - 1;
    paint();
  }

  // What comes after the history was read is added here, so it is asked for once.
  function add(head) {
    if (last < 0) return;
    const step = Math.floor(head.at_s / step_s);
    for (; last < step; last += 1) for (const name of KEPT) { series[name].push(null); series[name].shift(); }
    for (const name of KEPT) series[name][series[name].length - 1] = head.figures[name];
    end_s = (last + 1) * step_s;
    paint();
  }

  load().catch(() => {});
  return {
    element: make("div", {}, make("div", {class: "title"}, make("h1", {}, "Overview")), attention, tiles.element,
      make("div", {class: "tools"}, range.element),
      make("div", {class: "columns"}, messages.element, bytes.element, memory.element, processor.element)),
    query: () => ({}),
    head(head) {
      const figures = head.figures;
      const chosen = head.findings.filter((each) => !app.account || !each.account || each.account === app.account);
      all.hidden = chosen.length > 0;
      setText(more, head.more_findings ? `and ${number(head.more_findings)} more` : "");
      more.hidden = !head.more_findings;
      if (key !== JSON.stringify(chosen)) {
        key = JSON.stringify(chosen);
        list.replaceChildren(...chosen.map(finding));
      }
      tiles.show([
        ["messages in /s", rate(figures.in_rate)], ["messages out /s", rate(figures.out_rate)],
        ["in /s", size(figures.in_bytes_rate)], ["out /s", size(figures.out_bytes_rate)],
        ["stored /s", rate(figures.stored)], ["stored on disk", size(figures.storage_bytes)],
        ["free on disk", figures.disk_free < 0 ? "–" : size(figures.disk_free)],
        ["disk full in", figures.disk_full_s < 0 ? "–" : span(figures.disk_full_s)],
        ["connections", number(figures.connections)], ["subscriptions", number(figures.subscriptions)],
        ["memory", size(figures.memory_bytes)], ["processor", `${figures.cpu_percent} %`],
      ]);
      add(head);
    },
  };
}

function finding(found) {
  return make("li", {class: found.severity},
    make("span", {class: "kind"}, TITLES[found.rule] ?? found.rule), sentence(found.text), " ",
    make("a", {href: link(found)}, "Look"));
}
