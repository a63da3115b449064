// Messages of a stream: found by sequence, time or subject, and opened.

import {ask} from "./dialog.js";
import {make, say} from "./dom.js";
import {number, size, when} from "./format.js";

const ENVELOPE = ["event_id", "aggregate_id", "event_type"];
const COUNT = 25;

// One message: folded, with its first line; opened, with all of it.
export function messageView(app, stream, found, {tools = []} = {}) {
  const head = make("summary", {}, make("strong", {}, `#${number(found.sequence)}`), make("span", {class: "mono"}, found.subject),
    make("span", {class: "quiet small"}, when(found.time)), make("span", {class: "quiet small"}, size(found.size)));
  const event = envelope(found);
  if (event) head.append(make("span", {class: "chip"}, `${event.event_type} · ${event.aggregate_id}`));
  const body = make("div");
  const element = make("details", {class: "message", toggle: () => {
    if (element.open && !body.childNodes.length) body.append(...open(app, stream, found, event, tools));
  }}, head, body);
  return element;
}

function open(app, stream, found, event, tools) {
  const parts = [];
  if (found.headers.length) parts.push(make("h3", {}, "Headers"), facts(found.headers));
  if (event) {
    const {payload, ...rest} = event;
    parts.push(make("h3", {}, "Envelope"), facts(Object.entries(rest).map(([name, value]) => [name, text(value)])),
      make("h3", {}, "Payload of the event"), make("pre", {}, JSON.stringify(payload, null, 2)));
  } else {
    parts.push(make("h3", {}, found.base64 === undefined ? "Payload" : "Payload, not text: in base64"), make("pre", {}, pretty(found)));
  }
  if (found.opened) parts.push(make("p", {class: "note"}, found.opened));
  if (found.is_cut) {
    const whole = make("button", {type: "button", click: async () => {
      const all = await app.session.post("read", {what: "message", stream, sequence: found.sequence});
      whole.parentNode.replaceWith(make("div", {}, ...open(app, stream, all, envelope(all), tools)));
    }}, "Show more of it");
    parts.push(make("p", {class: "note"}, "This is its beginning. ", whole));
  }
  if (tools.length) parts.push(make("div", {class: "tools"}, tools.map((tool) => tool(found))));
  return [make("div", {}, parts)];
}

const text = (value) => typeof value === "string" ? value : JSON.stringify(value);

export function facts(pairs) {
  return make("dl", {class: "facts"}, pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {class: "mono"}, value)]));
}

function parsed(found) {
  if (found.text === undefined || found.is_cut) return undefined;
  try { return JSON.parse(found.text); } catch { return undefined; }
}

function envelope(found) {
  const value = parsed(found);
  return value && typeof value === "object" && ENVELOPE.every((name) => typeof value[name] === "string") ? value : null;
}

function pretty(found) {
  const value = parsed(found);
  // A number that JavaScript cannot hold would be another one: then the text stays as it is.
  if (value !== undefined && !/\d{16}/.test(found.text)) return JSON.stringify(value, null, 2);
  return found.text ?? found.base64;
}

// The browser: where to begin, what to show, and further back or on.
export function browser(app, account, stream) {
  const list = make("div"), note = make("p", {class: "note"});
  const place = make("input", {placeholder: "newest", "aria-label": "From sequence or time", size: "22",
    title: "A sequence, or a time such as 2026-01-31T12:00:00Z; empty for the newest"});
  const subject = make("input", {placeholder: "any subject, such as orders.>", "aria-label": "Subject", size: "26", type: "search"});
  const older = make("button", {type: "button"}, "Older"), newer = make("button", {type: "button"}, "Newer");
  const form = make("form", {class: "tools", submit: (event) => { event.preventDefault(); look(start()); }},
    make("label", {}, "From ", place), make("label", {}, "Subject ", subject),
    make("button", {type: "submit", class: "main"}, "Show"), older, newer);
  const element = make("section", {class: "card"}, make("h2", {}, "Messages"));

  function start() {
    const value = place.value.trim();
    if (!value) return {};
    return /^\d+$/.test(value) ? {sequence: value} : {time: value};
  }

  async function look(from) {
    try {
      const found = await app.session.post("read", {what: "messages", stream, subject: subject.value.trim(), count: COUNT, ...from});
      const sequences = found.messages.map((each) => each.sequence);
      const low = Math.min(...sequences), high = Math.max(...sequences);
      list.replaceChildren(...found.messages.map((each) => messageView(app, stream, each, {tools: [remove]})));
      older.disabled = !sequences.length || low <= found.first;
      newer.disabled = !sequences.length || high >= found.last;
      older.onclick = () => look({before: low});
      newer.onclick = () => look({sequence: high + 1});
      note.textContent = sequences.length ? `${number(sequences.length)} messages, of sequences ${number(found.first)} to ${number(found.last)}.` : "No message is there.";
    } catch (error) {
      list.replaceChildren();
      note.textContent = error.message;
    }
  }

  const remove = (found) => make("button", {type: "button", class: "danger", click: async () => {
    const done = await ask({
      title: "Delete a message", name: String(found.sequence), action: "Delete", isDangerous: true,
      text: `Message ${found.sequence} of \`${stream}\` is erased for good.`,
      act: (_, confirm) => app.session.post("do", {action: "delete_message", stream, sequence: found.sequence, confirm}),
    });
    if (done) { say("The message was deleted."); look(start()); }
  }}, "Delete");

  if (mayRead(app, account, element, "read its messages")) {
    element.append(form, list, note);
    look({});
  }
  return element;
}

// Say why nothing can be read here, if it cannot.
export function mayRead(app, account, element, what) {
  if (app.session.user && app.session.account === account) return true;
  let said = `Sign in as a user of ${account} to ${what}.`;
  if (!app.session.isOffered) said = `To ${what} here, set \`monitor { actions: true }\`; or use the command line.`.replaceAll("`", "");
  else if (app.session.user) said = `You are signed in to account ${app.session.account}; sign in as a user of ${account} to ${what}.`;
  element.append(make("p", {class: "quiet"}, said));
  return false;
}
