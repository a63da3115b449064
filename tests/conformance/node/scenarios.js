// What the NATS client for Node.js does with a server: `node scenarios.js URL [OPTIONS]`, where
// the options are JSON. Over WebSocket it is the client for browsers, with `ws` for a browser.
// Prints one line for each scenario, `ok name` or `not ok name: why`.

import assert from "node:assert/strict";
import nats from "@nats-io/transport-node";
import WebSocket from "ws";

const { Empty, createInbox, headers, syncIterator } = nats;

const servers = process.argv[2];
const given = JSON.parse(process.argv[3] ?? "{}");
const isWebSocket = servers.startsWith("ws");
if (isWebSocket) globalThis.WebSocket = WebSocket;
const connect = (options) =>
  (isWebSocket ? nats.wsconnect : nats.connect)({ ...given, ...options });
const DEADLINE_MS = 10_000;

const scenarios = {
  async "messages arrive in order"(publisher, subscriber) {
    const messages = await listen(subscriber, "order.*");
    const sent = Array.from({ length: 2000 }, (_, number) => `${number}`);
    sent.forEach((payload) => publisher.publish("order.a", payload));

    assert.deepEqual(await take(messages, sent.length), sent);
  },

  async "headers and reply arrive as they were sent"(client) {
    const messages = syncIterator(client.subscribe("headers"));
    const sent = headers();
    sent.append("First", "one");
    sent.append("First", "two");
    sent.set("Second", "zwei");
    client.publish("headers", "body", { headers: sent, reply: "answer.here" });

    const message = await messages.next();
    assert.equal(message.string(), "body");
    assert.equal(message.reply, "answer.here");
    assert.deepEqual(message.headers.values("First"), ["one", "two"]);
    assert.equal(message.headers.get("Second"), "zwei");
  },

  async "a message is traced, and a dry run only traced"(client) {
    const traces = syncIterator(client.subscribe("traces"));
    const messages = [];
    client.subscribe("traced", { callback: (_, message) => messages.push(message.string()) });
    client.publish("traced", "really", { traceDestination: "traces" });
    client.publish("traced", "never", { traceDestination: "traces", traceOnly: true });
    await client.flush();
    for (const only of [undefined, ["true"]]) {
      const { request, events } = (await traces.next()).json();
      assert.deepEqual(request.header["Nats-Trace-Only"], only);
      assert.deepEqual(events.map((event) => event.type), ["in", "eg"]);
    }
    assert.deepEqual(messages, ["really"]);
  },

  async "a thousand requests at once are each answered"(client, service) {
    service.subscribe("service", {
      callback: (_, message) => message.respond(`to ${message.string()}`),
    });
    await service.flush();
    const requests = Array.from({ length: 1000 }, (_, number) =>
      client.request("service", `${number}`, { timeout: DEADLINE_MS }));

    const answers = (await Promise.all(requests)).map((message) => message.string());
    assert.deepEqual(answers, requests.map((_, number) => `to ${number}`));
  },

  async "several answers come to one request"(client, service) {
    service.subscribe("many", {
      callback: (_, message) => ["one", "two", "three"].forEach((word) => message.respond(word)),
    });
    await service.flush();
    const answers = [];
    const options = { strategy: "count", maxMessages: 3, maxWait: DEADLINE_MS };
    for await (const message of await client.requestMany("many", Empty, options)) {
      answers.push(message.string());
    }

    assert.deepEqual(answers, ["one", "two", "three"]);
  },

  async "a request that nobody answers fails at once"(client) {
    const started = Date.now();

    await assert.rejects(client.request("nobody.here", Empty, { timeout: DEADLINE_MS }), /no responders/i);
    assert.ok(Date.now() - started < DEADLINE_MS / 2);
  },

  async "a queue group shares messages out"(publisher, one, two) {
    const received = { one: [], two: [] };
    for (const [name, member] of Object.entries({ one, two })) {
      member.subscribe("work.*", {
        queue: "workers",
        callback: (_, message) => received[name].push(message.string()),
      });
      await member.flush();
    }
    const sent = Array.from({ length: 400 }, (_, number) => `${number}`);
    sent.forEach((payload) => publisher.publish("work.now", payload));
    await publisher.flush();
    await Promise.all([one.flush(), two.flush()]);

    assert.deepEqual([...received.one, ...received.two].sort(), [...sent].sort());
    assert.ok(received.one.length > 0 && received.two.length > 0);
  },

  async "a subscription ends after its maximum"(client) {
    const received = [];
    const subscription = client.subscribe("some", { max: 3 });
    const done = (async () => {
      for await (const message of subscription) received.push(message.string());
    })();
    for (let number = 0; number < 6; number++) client.publish("some", `${number}`);
    await done;

    assert.deepEqual(received, ["0", "1", "2"]);
  },

  async "a drained subscription has handled everything"(publisher, subscriber) {
    const received = [];
    const subscription = subscriber.subscribe("drain");
    const done = (async () => {
      for await (const message of subscription) received.push(message.string());
    })();
    await subscriber.flush();
    for (let number = 0; number < 500; number++) publisher.publish("drain", `${number}`);
    await publisher.flush();
    await subscription.drain();
    await done;

    assert.deepEqual(received, Array.from({ length: 500 }, (_, number) => `${number}`));
  },

  async "interest that comes and goes is followed"(publisher, subscriber) {
    for (let number = 0; number < 100; number++) {
      const subject = `churn.${number % 7}.${number}`;
      const pattern = ["churn.*.*", `churn.${number % 7}.>`, subject][number % 3];
      const subscription = subscriber.subscribe(pattern);
      const messages = syncIterator(subscription);
      await subscriber.flush();
      publisher.publish(subject, `${number}`);

      assert.equal((await messages.next()).string(), `${number}`);
      subscription.unsubscribe();
    }
  },

  async "the largest payload passes"(client) {
    const messages = syncIterator(client.subscribe("large"));
    const payload = new Uint8Array(client.info.max_payload).fill(120);
    client.publish("large", payload);

    assert.deepEqual((await messages.next()).data, payload);
  },

  async "a client without echo does not hear itself"(publisher, subscriber) {
    const deaf = await connect({ servers, noEcho: true });
    const heard = syncIterator(deaf.subscribe("echo"));
    const messages = await listen(subscriber, "echo");
    await deaf.flush();
    deaf.publish("echo", "from itself");
    await deaf.flush();
    publisher.publish("echo", "from another");

    assert.equal((await heard.next()).string(), "from another");
    assert.deepEqual(await take(messages, 2), ["from itself", "from another"]);
    await deaf.close();
  },

  async "a verbose and pedantic client is served too"(publisher) {
    const client = await connect({ servers, verbose: true, pedantic: true });
    const inbox = createInbox();
    const messages = await listen(client, inbox);
    publisher.publish(inbox, "hello");

    assert.deepEqual(await take(messages, 1), ["hello"]);
    assert.ok((await client.rtt()) >= 0);
    await client.close();
  },
};

async function listen(client, subject) {
  const messages = syncIterator(client.subscribe(subject));
  await client.flush();
  return messages;
}

async function take(messages, count) {
  const payloads = [];
  while (payloads.length < count) payloads.push((await messages.next()).string());
  return payloads;
}

async function run(scenario) {
  const clients = await Promise.all(Array.from({ length: scenario.length }, () => connect({ servers })));
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("too late")), DEADLINE_MS);
  });
  try {
    await Promise.race([scenario(...clients), late]);
  } finally {
    clearTimeout(timer);
    await Promise.all(clients.map((client) => client.close()));
  }
}

for (const [name, scenario] of Object.entries(scenarios)) {
  try {
    await run(scenario);
    console.log(`ok ${name}`);
  } catch (error) {
    console.log(`not ok ${name}: ${error.stack}`);
    process.exitCode = 1;
  }
}
