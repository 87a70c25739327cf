// A model in a worker of its own. One request at a time; of those that wait, only the newest of each slot stays.

const PATIENCE = 1500; // milliseconds that an outdated request may still hold up the next one

export class Client {
  constructor(engine, manifest, weights) {
    this.script = URL.createObjectURL(new Blob([engine], { type: "text/javascript" }));
    this.pack = { manifest, weights };
    this.waiting = new Map(); // slot -> {request, resolve, reject}
    this.current = null;
    this.count = 0;
    this.start();
  }

  start() {
    this.worker = new Worker(this.script);
    this.worker.onmessage = ({ data }) => this.receive(data);
    this.worker.onerror = (event) => this.fail(event.message ?? "");
    this.ready = new Promise((resolve, reject) => {
      this.current = { id: 0, slot: null, resolve, reject };
      this.worker.postMessage({ id: 0, load: this.pack });
    });
  }

  // The answer, or null once a newer request of the same slot has replaced this one.
  ask(slot, request) {
    this.waiting.get(slot)?.resolve(null);
    return new Promise((resolve, reject) => {
      this.waiting.set(slot, { request, resolve, reject });
      if (this.current?.slot === slot) this.outdate();
      this.next();
    });
  }

  outdate() {
    const { current } = this;
    current.resolve(null);
    current.timer ??= setTimeout(() => {
      if (this.current !== current) return;
      this.worker.terminate();
      this.start();
    }, PATIENCE);
  }

  next() {
    if (this.current !== null || this.waiting.size === 0) return;
    const [slot, { request, resolve, reject }] = this.waiting.entries().next().value;
    this.waiting.delete(slot);
    this.current = { id: ++this.count, slot, resolve, reject };
    this.worker.postMessage({ id: this.current.id, request });
  }

  receive({ id, response, error }) {
    if (this.current?.id !== id) return;
    const { resolve, reject, timer } = this.current;
    clearTimeout(timer);
    this.current = null;
    if (error === undefined) resolve(response);
    else reject(new Error(error));
    this.next();
  }

  fail(message) {
    this.current?.reject(new Error(message));
    this.current = null;
    this.next();
  }
}

export function decodeBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < bytes.length; index++) bytes[index] = binary.charCodeAt(index);
  return bytes.buffer;
}
