// A model on the server, in the place of one in a worker: the same requests and answers.

export class Remote {
  constructor(api, info) {
    Object.assign(this, { api, waiting: new Map() }); // slot -> what ends its request
    this.ready = Promise.resolve(info);
  }

  // The answer, or null once a newer request of the same slot has replaced this one: the server then drops it.
  async ask(slot, request) {
    this.waiting.get(slot)?.abort();
    const controller = new AbortController();
    this.waiting.set(slot, controller);
    try {
      return unpackWeights(await this.api.post("/page", request, controller.signal));
    } catch (error) {
      if (controller.signal.aborted) return null;
      throw error;
    }
  }
}

function unpackWeights(translation) {
  const mechanisms = Object.entries(translation.attention ?? {}).map(([name, { shape, data }]) => [name, { shape, data: Float32Array.from(data) }]);
  return { ...translation, attention: Object.fromEntries(mechanisms) };
}
