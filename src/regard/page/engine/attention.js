/* Attention, as in regard/attention: a kind of attention is its score and its normaliser.

       alpha_i = exp(e(q, k_i)) / sum_j exp(e(q, k_j))        a = sum_i alpha_i v_i

   There are no masks: each query has a list of the keys that it may attend to, its `slots` in a cache. */

import { Linear, Matrix, dot, range, selectColumns } from "./tensor.js";
import { POSITIONS, layerPosition } from "./positions.js";
import { NORMALISERS, SCORES } from "./scores.js";

/** The keys and values of tokens, in the order in which they were read, and their positions. */
export class KVCache {
  constructor(keys = null, values = null, positions = []) {
    this.keys = keys;
    this.values = values;
    this.positions = positions;
  }

  append(keys, values, positions) {
    const length = this.positions.length;
    this.keys = appendRows(this.keys, length, keys);
    this.values = appendRows(this.values, length, values);
    this.positions.push(...positions);
  }

  /** A cache to which tokens can be appended without changing this one. */
  copy() {
    const length = this.positions.length;
    const copyRows = (matrix) => appendRows(null, 0, matrix.slice(0, length));
    return new KVCache(copyRows(this.keys), copyRows(this.values), [...this.positions]);
  }
}

/** A matrix whose first `length` rows are those of `buffer`, followed by `rows`; it grows by doubling. */
function appendRows(buffer, length, rows) {
  const needed = length + rows.rows;
  if (buffer === null || buffer.rows < needed) {
    const larger = new Matrix(Math.max(16, 2 * needed), rows.columns);
    if (buffer !== null) larger.data.set(buffer.slice(0, length).data);
    buffer = larger;
  }
  buffer.data.set(rows.data, length * rows.columns);
  return buffer;
}

/** sum_i alpha_i v_i, added to `context`, of values that start at column `offset`. */
function addWeighted(context, weights, { values }, offset, slots) {
  for (let i = 0; i < slots.length; i++) {
    const weight = weights[i];
    if (weight === 0) continue;
    const first = slots[i] * values.columns + offset;
    for (let j = 0; j < context.length; j++) context[j] += weight * values.data[first + j];
  }
}

/** a = attend(e(W_q q, W_k h), h): the values are the encoder states themselves. */
export class SingleHead {
  constructor(weights, table) {
    const score = SCORES[table.score.kind];
    this.query = score.projected ? new Linear(weights, "query") : null;
    this.key = score.projected ? new Linear(weights, "key") : null;
    this.score = new score(weights.under("score"));
    this.normalise = NORMALISERS[table.normaliser.kind];
  }

  /** The cache of the encoder states, with W_k h as keys, computed once per sentence. */
  cache(states) {
    const keys = this.key ? this.key.apply(states) : states;
    return new KVCache(keys, states, range(states.rows));
  }

  /** The context of each row of `x`, the queries of step `step`. */
  attend(x, cache, step, probe) {
    const queries = this.query ? this.query.apply(x) : x;
    const context = new Matrix(x.rows, cache.values.columns);
    const slots = cache.positions;
    for (let row = 0; row < x.rows; row++) {
      const scores = new Float64Array(slots.length);
      this.score.compute(queries.row(row), cache, 0, slots, scores);
      const place = { parts: CROSS, layer: 0, head: 0, position: step, keyPositions: slots };
      probe.normalise(scores, this.normalise, place);
      addWeighted(context.row(row), scores, cache, 0, slots);
    }
    return context;
  }
}

/* The mechanisms of a row of weights. Queries count from `firstQuery`, keys from `firstKey`. */
export const CROSS = [{ mechanism: "cross", firstQuery: 0, firstKey: 0, endKey: Infinity }];

/** h heads in parallel, concatenated, then an output projection. Kinds differ in queries, keys and values. */
class MultiHeadBase {
  /** `table`: that of the model; `layer` null: cross-attention, without positions or window. */
  constructor(weights, table, layer) {
    const { attention } = table;
    this.heads = attention.heads;
    this.headDim = attention.head_dim ?? Math.max(1, Math.floor(table.d_model / this.heads));
    this.positionTable = layerPosition(table.position, layer);
    this.score = new SCORES[attention.score.kind](weights.under("score"));
    this.normalise = NORMALISERS[attention.normaliser.kind];
    this.window = layer === null ? null : attention.window;
    this.output = new Linear(weights, "output");
    this.setUp(weights, attention); // sets kvHeads, keyDim, rotaryFirst and rotaryDim
    const sizes = { dModel: table.d_model, heads: this.heads, headDim: this.rotaryDim || this.headDim };
    const kind = POSITIONS[this.positionTable.kind];
    this.position = new kind(weights.under("position"), this.positionTable, sizes);
  }

  /** Rotates each head of each row in place: the part that rotates. */
  rotate(x, positionIds) {
    const rotation = this.position.rotation();
    if (rotation === null) return x;
    for (let row = 0; row < x.rows; row++) {
      for (let first = this.rotaryFirst; first < x.columns; first += this.keyDim) {
        rotation.apply(x.data, row * x.columns + first, positionIds[row]);
      }
    }
    return x;
  }

  /** The output for each row of `x`; `visible[row]` are the slots of the keys that it may attend to. */
  attend(x, positionIds, cache, visible, place, probe) {
    const queries = this.queries(x, positionIds);
    const context = new Matrix(x.rows, this.heads * this.headDim);
    for (let row = 0; row < x.rows; row++) {
      const position = positionIds[row];
      const slots = this.window === null ? visible[row] : this.near(visible[row], position, cache);
      const keyPositions = slots.map((slot) => cache.positions[slot]);
      const further = this.position.furtherRotation(slots.length);
      for (let head = 0; head < this.heads; head++) {
        const here = { ...place, head, position, keyPositions };
        const weights = this.#weights(queries.row(row), cache, slots, further, here, probe);
        const first = head * this.headDim;
        const into = context.row(row).subarray(first, first + this.headDim);
        addWeighted(into, weights, cache, this.#kvHead(head) * this.headDim, slots);
      }
    }
    return this.output.apply(context);
  }

  /** The key/value head that a head uses. */
  #kvHead(head) {
    return Math.floor((head * this.kvHeads) / this.heads);
  }

  /** The weights of one head of a query on its keys. */
  #weights(queries, cache, slots, further, place, probe) {
    const { head, position, keyPositions } = place;
    let query = queries.subarray(head * this.keyDim, (head + 1) * this.keyDim);
    const offset = this.#kvHead(head) * this.keyDim;
    const scores = new Float64Array(slots.length);
    if (further === null) {
      this.score.compute(query, cache, offset, slots, scores);
    } else {
      query = query.slice();
      further.apply(query, this.rotaryFirst, position);
      const rotated = this.#rotateFurther(cache, offset, slots, keyPositions, further);
      this.score.compute(query, rotated, 0, range(slots.length), scores);
    }
    const scale = this.position.scoreScale;
    if (scale !== 1) for (let i = 0; i < scores.length; i++) scores[i] *= scale;
    this.position.addTo(scores, { query, ...place });
    return probe.normalise(scores, this.normalise, place);
  }

  /** The keys of one head, rotated further. */
  #rotateFurther({ keys }, offset, slots, positions, further) {
    const rotated = new Matrix(slots.length, this.keyDim);
    slots.forEach((slot, i) => {
      const first = slot * keys.columns + offset;
      rotated.row(i).set(keys.data.subarray(first, first + this.keyDim));
      further.apply(rotated.row(i), this.rotaryFirst, positions[i]);
    });
    return { keys: rotated, positions };
  }

  /** The slots of keys at a distance below the window. */
  near(slots, position, { positions }) {
    return slots.filter((slot) => Math.abs(positions[slot] - position) < this.window);
  }
}

/** Queries W_q x for h heads; keys W_k x and values W_v x for g heads, each shared by h / g query heads. */
class MultiHead extends MultiHeadBase {
  setUp(weights, table) {
    this.kvHeads = table.kv_heads ?? this.heads;
    this.keyDim = this.headDim;
    [this.rotaryFirst, this.rotaryDim] = [0, this.headDim];
    this.query = new Linear(weights, "query");
    this.keyValue = new Linear(weights, "key_value");
  }

  queries(x, positionIds) {
    return this.rotate(this.query.apply(x), positionIds);
  }

  /** [keys, values] for the cache */
  keysValues(x, positionIds) {
    const both = this.keyValue.apply(x);
    const half = both.columns / 2;
    const keys = this.rotate(selectColumns(both, 0, half), positionIds);
    return [keys, selectColumns(both, half, both.columns)];
  }
}

/** c = RMSNorm(W_dkv x); for each head keys [W_uk c ; R W_kr x], values W_uv c, queries [W_q x ; R W_qr x].

    The cache holds these keys and values, not the smaller c: a page has the memory, and no time. */
class Latent extends MultiHeadBase {
  setUp(weights, table) {
    const rotates = POSITIONS[this.positionTable.kind].acts === "rotation";
    this.rotaryDim = rotates ? table.rope_dim : 0;
    this.rotaryFirst = this.headDim;
    this.keyDim = this.headDim + this.rotaryDim;
    this.kvHeads = this.heads;
    this.query = new Linear(weights, "query");
    this.down = new Linear(weights, "down");
    this.up = new Linear(weights, "up");
    this.scale = weights.vector("scale");
  }

  queries(x, positionIds) {
    const stored = this.query.apply(x); // the part that rotates comes first
    const queries = new Matrix(x.rows, stored.columns);
    for (let first = 0; first < stored.data.length; first += this.keyDim) {
      const [rotary, plain] = [first + this.rotaryDim, first + this.keyDim];
      queries.data.set(stored.data.subarray(rotary, plain), first);
      queries.data.set(stored.data.subarray(first, rotary), first + this.headDim);
    }
    return this.rotate(queries, positionIds);
  }

  keysValues(x, positionIds) {
    const down = this.down.apply(x);
    const c = normaliseRms(selectColumns(down, this.rotaryDim, down.columns), this.scale);
    const up = this.up.apply(c);
    const half = up.columns / 2;
    const keys = new Matrix(x.rows, this.heads * this.keyDim);
    for (let row = 0; row < x.rows; row++) {
      for (let head = 0; head < this.heads; head++) {
        const key = keys.row(row).subarray(head * this.keyDim, (head + 1) * this.keyDim);
        key.set(up.row(row).subarray(head * this.headDim, (head + 1) * this.headDim));
        key.set(down.row(row).subarray(0, this.rotaryDim), this.headDim);
      }
    }
    return [this.rotate(keys, positionIds), selectColumns(up, half, up.columns)];
  }
}

const RMS_EPS = 1e-6;

/** x / root mean square * g, in place */
export function normaliseRms(x, gain) {
  for (let row = 0; row < x.rows; row++) {
    const values = x.row(row);
    const meanSquare = dot(values, 0, values, 0, values.length) / values.length;
    const scale = 1 / Math.sqrt(meanSquare + RMS_EPS);
    for (let i = 0; i < values.length; i++) values[i] *= scale * gain[i];
  }
  return x;
}

export const HEADS = { "multi-head": MultiHead, latent: Latent };
