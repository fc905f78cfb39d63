// The JSON frames of TCP (docs/formats/tcp.md): length u32 big-endian | type u8 | JSON. Answers come in order.
import net from "node:net";

export const Type = { SUBMIT_TASK: 1, CLAIM_TASK: 2, TASK_RESULT: 3, HEARTBEAT: 4, ACK: 5, QUERY_STATUS: 7, AUTH: 10 };

export class Frames {
  static async connect(host, port, token) {
    const frames = new Frames(net.connect({ host, port }));
    await frames.ask(Type.AUTH, { token });
    return frames;
  }

  constructor(socket) {
    this.socket = socket;
    this.received = Buffer.alloc(0);
    this.waiting = [];
    socket.on("data", (data) => this.#take(data));
    socket.on("error", (error) => this.#fail(error));
    socket.on("close", () => this.#fail(new Error("the broker has gone")));
  }

  ask(type, body) {
    const text = Buffer.from(JSON.stringify(body));
    const head = Buffer.alloc(5);
    head.writeUInt32BE(text.length + 1, 0);
    head.writeUInt8(type, 4);
    this.socket.write(Buffer.concat([head, text]));
    return new Promise((resolve, reject) => this.waiting.push({ resolve, reject }));
  }

  close() {
    this.socket.end();
  }

  #take(data) {
    this.received = Buffer.concat([this.received, data]);
    while (this.received.length >= 5 && this.received.length >= 4 + this.received.readUInt32BE(0)) {
      const end = 4 + this.received.readUInt32BE(0);
      const type = this.received.readUInt8(4);
      const body = JSON.parse(this.received.subarray(5, end).toString());
      this.received = this.received.subarray(end);
      const { resolve, reject } = this.waiting.shift();
      if (type === Type.ACK) resolve(body);
      else reject(Object.assign(new Error(body.error.message), { code: body.error.code }));
    }
  }

  #fail(error) {
    for (const { reject } of this.waiting.splice(0)) reject(error);
  }
}

// Claims tasks, keeps their leases by heartbeats on a connection of its own, and reports how each run ended.
export async function work({ host, port, token, workerId, queues, handlers, tasks }) {
  const claims = await Frames.connect(host, port, token);
  const beats = await Frames.connect(host, port, token);
  const receipts = new Set();
  const beat = (more = {}) => beats.ask(Type.HEARTBEAT, { worker_id: workerId, queues, receipts: [...receipts], ...more });
  const timer = setInterval(() => beat().catch(() => clearInterval(timer)), 10_000);
  const ended = [];
  while (ended.length < tasks) {
    const claimed = await claims.ask(Type.CLAIM_TASK, { worker_id: workerId, queues, wait_ms: 20_000 });
    for (const task of claimed.tasks) {
      receipts.add(task.receipt);
      const held = await beat();
      const end = { receipt: task.receipt, task_id: task.task_id };
      try {
        const result = await handlers[task.task_type](...task.args);
        await claims.ask(Type.TASK_RESULT, { ...end, outcome: "completed", result });
      } catch (error) {
        await claims.ask(Type.TASK_RESULT, { ...end, outcome: "failed", error: String(error) });
      }
      receipts.delete(task.receipt);
      ended.push({ task_id: task.task_id, attempt: task.attempt, leases: held.leases });
    }
  }
  clearInterval(timer);
  await beat({ is_leaving: true });
  claims.close();
  beats.close();
  return ended;
}
