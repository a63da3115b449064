// Who the NATS client for Node.js may be: `node who.js URL OPTIONS`, where the options are JSON,
// in the words of the tests. Prints `heard` if it hears itself, and `refused` if another is refused.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import nats from "@nats-io/transport-node";
import WebSocket from "ws";

const [servers, given] = [process.argv[2], JSON.parse(process.argv[3])];
const isWebSocket = servers.startsWith("ws");
const isSecure = servers.startsWith("tls") || servers.startsWith("wss");
const DEADLINE_MS = 10_000;

const certificate = given.cert
  ? { cert: readFileSync(given.cert, "utf8"), key: readFileSync(given.key, "utf8") }
  : {};
if (isWebSocket) {
  globalThis.WebSocket = class extends WebSocket {
    constructor(url, protocols) {
      super(url, protocols, certificate);
    }
  };
}

function whoWeAre() {
  const { token, user, password, nkeys_seed: seed, user_credentials: credentials } = given;
  if (token) return { token };
  if (user) return { user, pass: password };
  if (seed) return { authenticator: nats.nkeyAuthenticator(readFileSync(seed)) };
  if (credentials) return { authenticator: nats.credsAuthenticator(readFileSync(credentials)) };
  return {};
}

function connect(who) {
  const options = { servers, reconnect: false, timeout: DEADLINE_MS, ...who };
  if (isWebSocket) return nats.wsconnect(options);
  return nats.connect({ ...options, ...(isSecure && { tls: { caFile: given.ca, ...certificate } }) });
}

const client = await connect(whoWeAre());
const inbox = nats.createInbox();
const messages = nats.syncIterator(client.subscribe(inbox));
client.publish(inbox, "hi");
assert.equal((await messages.next()).string(), "hi");
await client.close();
console.log("heard");

if (given.refuses) {
  await assert.rejects(connect({ user: "nobody", pass: "guess" }), /authorization/i);
  console.log("refused");
}
