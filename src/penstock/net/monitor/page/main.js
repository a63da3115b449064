// The frame of the page: which view is shown, the event stream that feeds it, and who is signed in.

import {make, say, setText} from "./dom.js";
import {clock, number} from "./format.js";
import {session} from "./session.js";
import {overview} from "./overview.js";
import {consumers, streams} from "./streams.js";
import {stream} from "./stream.js";
import {bus} from "./bus.js";
import {connections} from "./connections.js";
import {accounts, config, pipelines} from "./others.js";

const SILENT_MS = 20_000;
const VIEWS = [
  ["", "Overview", overview, (head) => head.findings.length + head.more_findings],
  ["streams", "Streams", streams, (head) => head.figures.streams],
  ["consumers", "Consumers", consumers, (head) => head.figures.consumers],
  ["bus", "Bus", bus],
  ["connections", "Connections", connections, (head) => head.figures.connections],
  ["pipelines", "Pipelines", pipelines],
  ["accounts", "Accounts", accounts],
  ["config", "Config", config],
];
const byId = (id) => document.getElementById(id);

// What all views share.
const app = {
  head: null,
  session,
  get account() { return sessionStorage.getItem("account") ?? ""; },
  options: {},
  // Change options of the view; they are in the address, so that it can be kept and sent.
  change(options) {
    const merged = new URLSearchParams({...this.options, ...options});
    for (const [name, value] of [...merged]) if (!value) merged.delete(name);
    history.replaceState(null, "", `#/${this.place.map(encodeURIComponent).join("/")}${merged.size ? `?${merged}` : ""}`);
    readAddress();
    feed();
  },
  restart() { show(); },
};
let shown = null, source = null, heard = Date.now(), silence = 0;

function readAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  app.place = path.split("/").map(decodeURIComponent);
  app.options = Object.fromEntries(new URLSearchParams(query ?? ""));
}

function show() {
  readAddress();
  const [name, ...rest] = app.place;
  const known = VIEWS.find(([id]) => id === name) ?? VIEWS[0];
  const build = name === "streams" && rest.length === 2 ? stream : known[2];
  shown?.close?.();
  shown = build(app, rest);
  byId("main").replaceChildren(shown.element);
  for (const link of byId("views").querySelectorAll("a")) {
    if (link.dataset.view === known[0]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (app.head) shown.head?.(app.head);
  feed();
}

// Open the one event stream, for the view that is shown.
function feed() {
  source?.close();
  const asked = new URLSearchParams({...(app.account ? {account: app.account} : {}), ...shown.query()});
  const current = source = new EventSource(`eventz?${asked}`);
  const on = (name, act) => current.addEventListener(name, (event) => {
    if (current === source) { live(); act(JSON.parse(event.data)); }
  });
  on("head", (head) => { app.head = head; showHead(head); shown.head?.(head); });
  on("table", (page) => shown.table?.(page));
  on("document", (found) => shown.document?.(found));
  current.onerror = () => {
    if (current !== source) return;
    gone();
    if (current.readyState === EventSource.CLOSED) setTimeout(() => { if (current === source) feed(); }, 3000);
  };
}

function live() {
  heard = Date.now();
  clearTimeout(silence);
  silence = setTimeout(gone, SILENT_MS);
  if (!document.body.classList.contains("is-gone")) return;
  document.body.classList.remove("is-gone");
  byId("gone").hidden = true;
  session.refresh();
}

// Grey, and since when: figures of a server that is gone must not look alive.
function gone() {
  document.body.classList.add("is-gone");
  const since = clock(heard / 1000, true);
  setText(byId("gone"), `The server does not answer. What you see is from ${since}; trying again…`);
  byId("gone").hidden = false;
}

function showHead(head) {
  document.title = `${head.name} · Penstock`;
  setText(byId("server"), `${head.name} · ${head.version} · speaks NATS ${head.nats_version} · up ${head.uptime}`);
  for (const [id, , , count] of VIEWS) {
    const found = byId("views").querySelector(`a[data-view="${id}"] .count`);
    const value = count?.(head);
    setText(found, value ? number(value) : "");
    found.classList.toggle("bad", id === "" && value > 0);
  }
  const choice = byId("account"), names = ["", ...head.accounts];
  byId("account-choice").hidden = head.accounts.length < 3;
  if (choice.names !== names.join("\n")) {
    choice.names = names.join("\n");
    choice.replaceChildren(...names.map((name) => make("option", {value: name}, name || "all")));
    choice.value = app.account;
  }
}

byId("views").append(...VIEWS.map(([id, title]) => make("li", {},
  make("a", {href: `#/${id}`, "data-view": id}, title, make("span", {class: "count"})))));
byId("account").addEventListener("change", (event) => {
  sessionStorage.setItem("account", event.target.value);
  show();
});
byId("sign-in").addEventListener("click", () => session.toggle());
session.changed = () => {
  byId("sign-in").hidden = !session.isOffered;
  setText(byId("sign-in"), session.user ? `${session.user} · sign out` : "Sign in");
  show();
};
addEventListener("hashchange", () => { show(); byId("main").focus({preventScroll: true}); scrollTo(0, 0); });
addEventListener("keydown", (event) => {
  const isWriting = /INPUT|SELECT|TEXTAREA/.test(document.activeElement?.tagName);
  if (event.key !== "/" || isWriting || event.ctrlKey || event.metaKey) return;
  const search = document.querySelector("main input[type=search]");
  if (search) { event.preventDefault(); search.focus(); }
});
addEventListener("unhandledrejection", (event) => say(String(event.reason?.message ?? event.reason)));
await session.refresh();
if (!shown) show();
