// Dead letters: grouped by cause, with the attempts and the traceback; sent back or discarded.

import {ask} from "./dialog.js";
import {make, say, setText} from "./dom.js";
import {number, when} from "./format.js";
import {mayRead, messageView} from "./messages.js";

export function letters(app, bus) {
  const place = make("div", {class: "below"}), button = make("button", {type: "button", hidden: true, click: () => look()}, "");
  const element = make("div", {}, make("h3", {}, "Dead letters"), make("p", {class: "quiet"}), button, place);
  let chosen = new Set(), isOpen = false, shown = [];

  async function look() {
    place.replaceChildren();
    if (!mayRead(app, bus.account, place, "see dead letters")) return;
    try {
      const found = await app.session.post("read", {what: "letters", bus: bus.name});
      shown = found.letters;
      isOpen = true;
      paint(found.total);
    } catch (error) {
      place.replaceChildren(make("p", {class: "bad"}, error.message));
    }
  }

  function paint(total) {
    chosen = new Set();
    const groups = Map.groupBy ? Map.groupBy(shown, causeOf) : group(shown);
    const act = (action, title, isDangerous) => make("button", {type: "button", class: isDangerous ? "danger" : "main", disabled: true,
      click: () => confirm(action, title, isDangerous)}, title);
    const tools = [act("replay", "Replay", false), act("discard", "Discard", true)];
    const count = make("span", {class: "quiet", role: "status"});
    const mark = () => {
      setText(count, chosen.size ? `${number(chosen.size)} selected` : "Select what to replay or discard.");
      for (const tool of tools) tool.disabled = !chosen.size;
    };
    const left = total - shown.length;
    setText(button, "Look again");
    place.replaceChildren(make("div", {class: "tools"}, ...tools, count),
      ...[...groups].map(([cause, some]) => groupView(cause, some, mark)),
      left > 0 ? make("p", {class: "note"}, `The newest ${number(shown.length)}; ${number(left)} more are older.`) : "");
    mark();
  }

  function groupView(cause, some, mark) {
    const boxes = [];
    const all = make("input", {type: "checkbox", "aria-label": `All with cause ${cause}`, change: () => {
      for (const box of boxes) { box.checked = all.checked; box.dispatchEvent(new Event("change")); }
    }});
    const rows = some.map((letter) => {
      const box = make("input", {type: "checkbox", "aria-label": `Letter ${letter.sequence}`, change: () => {
        if (box.checked) chosen.add(letter.sequence); else chosen.delete(letter.sequence);
        mark();
      }});
      boxes.push(box);
      return make("div", {class: "letter"}, box, letterView(app, `${bus.name}-dead`, letter));
    });
    return make("details", {class: "message", open: some.length <= 3},
      make("summary", {}, make("strong", {}, number(some.length)), make("span", {}, cause),
        make("span", {class: "quiet small"}, [...new Set(some.map((each) => header(each, "Topic")))].join(", "))),
      make("div", {}, make("label", {class: "tools"}, all, "all of these"), rows));
  }

  async function confirm(action, title, isDangerous) {
    const sequences = [...chosen];
    const done = await ask({
      title: `${title} ${number(sequences.length)} dead letters`, name: bus.name, action: title, isDangerous,
      text: action === "replay" ? "Each goes back to its topic, behind what came since, for every service that reads it." : "They are deleted for good.",
      act: (_, typed) => app.session.post("do", {action, bus: bus.name, letters: sequences, confirm: typed}),
    });
    if (done) { say(`${title}: ${number(sequences.length)} done.`); look(); }
  }

  return {
    element,
    count(found) {
      element.hidden = !found.dead && !isOpen;
      setText(element.children[1], found.dead ? `${number(found.dead)} kept${found.newest ? `, the newest ${found.newest.replaceAll("`", "")}` : ""}.` : "None.");
      button.hidden = !found.dead;
      setText(button, isOpen ? "Look again" : "Show them");
    },
  };
}

const header = (letter, name) => letter.headers.find(([each]) => each === `Dead-Letter-${name}`)?.[1] ?? "";

// Of a cause, numbers differ from letter to letter; what is left is the same mistake.
const causeOf = (letter) => header(letter, "Cause").replace(/\d+/g, "…") || "no cause was kept";

function group(some) {
  const groups = new Map();
  for (const each of some) groups.set(causeOf(each), [...(groups.get(causeOf(each)) ?? []), each]);
  return groups;
}

function letterView(app, stream, letter) {
  const attempts = letter.headers.filter(([name]) => name === "Dead-Letter-Attempt").map(([, value]) => value);
  let trace = header(letter, "Traceback");
  try { trace = JSON.parse(trace); } catch { /* It is shown as it is. */ }
  const plain = {...letter, headers: letter.headers.filter(([name]) => !/^Dead-Letter-(Attempt|Traceback)$/.test(name))};
  const element = messageView(app, stream, plain);
  element.querySelector("summary").append(make("span", {class: "small"}, `${header(letter, "Service")} · ${header(letter, "Cause")}`));
  element.querySelector("summary").after(make("div", {},
    attempts.length ? make("h3", {}, `${number(attempts.length)} attempts, until ${when(header(letter, "Time"))}`) : "",
    attempts.length ? make("ol", {}, attempts.map((each) => make("li", {class: "mono"}, each))) : "",
    trace ? make("h3", {}, "Traceback of the last") : "", trace ? make("pre", {}, String(trace)) : ""));
  return element;
}
