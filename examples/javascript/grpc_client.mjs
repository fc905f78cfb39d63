// Penstock over gRPC, from the .proto files themselves: no generated code.
// Usage: node grpc_client.mjs '{"grpc": "host:port", "protos": "…/protos", "tcp": {…}, "token": "…"}'
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import { promisify } from "node:util";
import { work } from "./frames.mjs";

const { grpc: address, protos, tcp, token } = JSON.parse(process.argv[2]);
const options = { keepCase: true, longs: Number, enums: String, defaults: true, includeDirs: [protos] };
const definition = loader.loadSync(["penstock/v1/queues.proto", "penstock/v1/tasks.proto"], options);
const { Queues, Tasks } = grpc.loadPackageDefinition(definition).penstock.v1;
const plain = grpc.credentials.createInsecure(); // grpc.credentials.createSsl(…) where the broker speaks TLS
const queues = new Queues(address, plain);
const tasks = new Tasks(address, plain);
const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${token}`);
const call = (service, method, request) => promisify(service[method].bind(service))(request, metadata);

const pushed = await call(queues, "Push", {
  queue: "mail",
  messages: [{ payload: Buffer.from("one"), key: "ann" }, { payload: Buffer.from("two"), headers: { origin: "node" } }],
});
const received = await new Promise((resolve, reject) => {
  const deliveries = [];
  const stream = queues.Consume({ queue: "mail" }, metadata); // without an end
  stream.on("error", (error) => error.code === grpc.status.CANCELLED || reject(error));
  stream.on("data", async (lease) => {
    deliveries.push(...lease.deliveries);
    if (deliveries.length < 2) return;
    const receipts = deliveries.map((delivery) => delivery.receipt);
    const settled = await call(queues, "Settle", { settlements: [{ receipts, ack: {} }] });
    stream.cancel();
    resolve({ deliveries, settled });
  });
});
const refused = await call(queues, "Push", { queue: "secret", payloads: [Buffer.from("x")] }).catch((error) => error);

const submitted = await call(tasks, "SubmitTasks", {
  tasks: [{ task_type: "add", queue: "jobs", args: Buffer.from("[20, 22]") }],
});
const add = (a, b) => a + b;
const runs = await work({ ...tcp, token, workerId: "node-grpc", queues: ["jobs"], handlers: { add }, tasks: 1 });
const task = await call(tasks, "GetTaskStatus", { task_id: runs[0].task_id });

console.log(
  JSON.stringify({
    pushed: pushed.ids,
    payloads: received.deliveries.map((delivery) => delivery.payload.toString()),
    keys: received.deliveries.map((delivery) => delivery.key),
    settled: received.settled.results.map((result) => result.error?.code ?? "ok"),
    refused: refused.code,
    submitted,
    runs,
    task,
  }),
);
queues.close();
tasks.close();
