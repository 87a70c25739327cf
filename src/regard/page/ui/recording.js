// A translation made in Python, in the place of a model: it answers every request with itself.

import { decodeBase64 } from "./client.js";

export class Recording {
  constructor({ info, translation }) {
    const attention = Object.entries(translation.attention).map(([mechanism, { shape, data }]) => [mechanism, { shape, data: new Float32Array(decodeBase64(data)) }]);
    this.translation = { ...translation, attention: Object.fromEntries(attention) };
    this.ready = Promise.resolve({ ...info, recorded: true });
  }

  async ask() {
    return this.translation;
  }
}
