// Penstock over HTTP, with the client that `npm run generate` makes of /openapi.json, and deliveries over WebSocket.
// Usage: node openapi_client.mjs '{"http": "http://…", "tcp": {"host": "…", "port": …}, "token": "…"}'
import WebSocket from "ws";
import { Api } from "./generated/client.js";
import { Frames, Type, work } from "./frames.mjs";

const { http, tcp, token } = JSON.parse(process.argv[2]);
const authorization = `Bearer ${token}`;
const client = new Api({ baseUrl: http, baseApiParams: { headers: { authorization }, format: "json" } });

// Push, and receive over a stream with credit; acknowledge by HTTP.
const pushed = await client.api.pushMessages("mail", {
  messages: [{ payload: { order: 7 }, key: "ann" }, { payload: { order: 8 }, headers: { origin: "node" } }],
});
const socket = new WebSocket(`${http.replace("http", "ws")}/api/v1/stream`, { headers: { authorization } });
const received = await new Promise((resolve, reject) => {
  const messages = [];
  socket.on("error", reject);
  socket.on("open", () =>
    socket.send(JSON.stringify({ type: "subscribe", subscription: "orders", queue: "mail", credit: 10 })),
  );
  socket.on("message", (data) => {
    const said = JSON.parse(data.toString());
    if (said.type === "error") reject(new Error(said.error.message));
    if (said.type === "delivery") messages.push(...said.messages);
    if (messages.length === 2) resolve(messages);
  });
});
const acked = await client.api.ackMessages({ receipts: received.map((message) => message.receipt) });
socket.close();

// Without the right to it, a request is refused.
const refused = await client.api.pushMessages("secret", { messages: [{ payload: 1 }] }).catch((response) => response);

// A task: submitted by HTTP, run by a worker on JSON frames.
const submitted = await client.api.submitTasks({ tasks: [{ task_type: "add", queue: "jobs", args: [2, 3] }] });
const add = (a, b) => a + b;
const runs = await work({ ...tcp, token, workerId: "node-http", queues: ["jobs"], handlers: { add }, tasks: 1 });
const frames = await Frames.connect(tcp.host, tcp.port, token);
const task = await frames.ask(Type.QUERY_STATUS, { task_id: runs[0].task_id });
frames.close();

console.log(
  JSON.stringify({
    pushed: pushed.data.results.map((result) => result.id),
    payloads: received.map((message) => message.payload),
    keys: received.map((message) => message.key),
    acked: acked.data.results.map((result) => result.status),
    refused: [refused.status, refused.error?.error?.code],
    submitted: submitted.data.tasks.map((task) => task.is_new),
    runs,
    task: [task.status, task.result],
  }),
);
