/* Position encodings, as in regard/attention/positions.py. Each acts in one place: added to the embeddings
   (`embed`), rotating queries and keys (`rotation`), or added to the scores (`addTo`). */

import { UserError, dot } from "./tensor.js";

const round32 = Math.fround; // angles in float32, as in Python: a turn more or less would show otherwise

/** NoPE: no position encoding. */
class Position {
  static acts = null; // "embedding", "rotation" or "score"

  constructor() {
    this.maxLength = null;
    this.scoreScale = 1;
  }

  /** Adds to the embeddings, once per model, in place. */
  embed(x, positionIds) {
    return x;
  }

  /** The rotation of queries and keys; null: none. */
  rotation() {
    return null;
  }

  /** The rotation that follows it, for a query that may attend to `keys` keys; null: none. */
  furtherRotation(keys) {
    return null;
  }

  /** Adds to the scores of a query's keys, in place. */
  addTo(scores, { query, head, position, keyPositions }) {}
}

/** x + [sin(t omega_1), cos(t omega_1), sin(t omega_2), ..] */
class Sinusoidal extends Position {
  static acts = "embedding";

  constructor(weights, table, { dModel }) {
    super();
    this.omega = frequencies(dModel, table.base);
  }

  embed(x, positionIds) {
    for (let row = 0; row < x.rows; row++) {
      const values = x.row(row);
      for (let i = 0; i < values.length; i++) {
        const angle = round32(positionIds[row] * this.omega[i >> 1]);
        values[i] += i % 2 ? Math.cos(angle) : Math.sin(angle);
      }
    }
    return x;
  }
}

/** x + P[t], a table with a row for each of the first positions */
class LearnedPosition extends Position {
  static acts = "embedding";

  constructor(weights) {
    super();
    this.table = weights.matrix("table");
    this.maxLength = this.table.rows;
  }

  embed(x, positionIds) {
    for (let row = 0; row < x.rows; row++) {
      if (positionIds[row] >= this.maxLength) {
        throw new UserError(
          `the position "learned" has a table of ${this.maxLength} positions and was asked for position ` +
            `${positionIds[row] + 1}: shorten the text, or train with a larger max_length`,
        );
      }
      const values = x.row(row);
      const encoding = this.table.row(positionIds[row]);
      for (let i = 0; i < values.length; i++) values[i] += encoding[i];
    }
    return x;
  }
}

/** What each form adds to a score, given the table's row of the clipped distance j - i. */
export const RELATIVE_FORMS = {
  bias: (row, { head }) => row[head],
  query: (row, { query }) => dot(query, 0, row, 0, row.length) / Math.sqrt(row.length),
};

/** Learned per clipped distance: a bias per head (T5), or the query's product with a vector (Shaw) */
class RelativePosition extends Position {
  static acts = "score";

  constructor(weights, table) {
    super();
    this.table = weights.matrix("table");
    this.maxDistance = table.max_distance;
    this.term = RELATIVE_FORMS[table.form];
  }

  addTo(scores, row) {
    const limit = this.maxDistance;
    row.keyPositions.forEach((keyPosition, i) => {
      const distance = Math.max(-limit, Math.min(limit, keyPosition - row.position));
      scores[i] += this.term(this.table.row(distance + limit), row);
    });
  }
}

/** e_ij - 2^(-8 h / H) |j - i|, heads h = 1 .. H */
class Alibi extends Position {
  static acts = "score";

  constructor(weights, table, { heads }) {
    super();
    this.slopes = Array.from({ length: heads }, (_, head) => 2 ** ((-8 * (head + 1)) / heads));
  }

  addTo(scores, { head, position, keyPositions }) {
    keyPositions.forEach((keyPosition, i) => {
      scores[i] -= this.slopes[head] * Math.abs(keyPosition - position);
    });
  }
}

/** (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), pair i rotated by t omega_i */
class Rotary extends Position {
  static acts = "rotation";

  constructor(weights, table, { headDim }) {
    super();
    const { base, scaling, factor, original_length: originalLength } = table;
    this.omega = SCALINGS[scaling](frequencies(headDim, base), factor, originalLength);
    this.base = new Rotation(this.omega);
    this.scoreScale = scaling === "yarn" ? (0.1 * Math.log(factor) + 1) ** 2 : 1;
    this.originalLength = scaling === "dynamic-ntk" ? originalLength : null;
    this.further = new Map();
  }

  rotation() {
    return this.base;
  }

  /** By t (ntk(omega, s) - omega), s the smallest power of two at least keys / original length. */
  furtherRotation(keys) {
    if (this.originalLength === null || keys <= this.originalLength) return null;
    let factor = 2;
    while (factor * this.originalLength < keys) factor *= 2;
    if (!this.further.has(factor)) {
      const scaled = scaleNtk(this.omega, factor);
      this.further.set(factor, new Rotation(scaled.map((omega, i) => omega - this.omega[i])));
    }
    return this.further.get(factor);
  }
}

/** Rotation of pairs by t omega_i; the sines and cosines of a position are computed once. */
class Rotation {
  constructor(omega) {
    this.omega = omega;
    this.turns = []; // by position: [cos, sin, cos, sin, ..]
  }

  turn(position) {
    if (this.turns[position] === undefined) {
      const angles = Array.from(this.omega, (omega) => round32(position * omega));
      this.turns[position] = Float32Array.from(angles.flatMap((a) => [Math.cos(a), Math.sin(a)]));
    }
    return this.turns[position];
  }

  /** Rotates the numbers from `offset` on, in place. */
  apply(data, offset, position) {
    const turn = this.turn(position);
    for (let i = 0; i < turn.length; i += 2) {
      const x = data[offset + i];
      const y = data[offset + i + 1];
      data[offset + i] = x * turn[i] - y * turn[i + 1];
      data[offset + i + 1] = y * turn[i] + x * turn[i + 1];
    }
  }
}

/** omega_i = base^(-2i / dim), one for each pair of dimensions */
function frequencies(dim, base) {
  const pairs = Math.ceil(dim / 2);
  return Float32Array.from({ length: pairs }, (_, i) => base ** -round32((2 * i) / dim));
}

/** omega_i s^(-i / last): the highest frequency stays, the lowest is divided by s */
function scaleNtk(omega, factor) {
  const last = Math.max(omega.length - 1, 1);
  return omega.map((value, i) => value * factor ** -(i / last));
}

/** omega_i (g + (1 - g) / s), g rising from 0 to 1 between 1 and 32 rotations over the original length */
function scaleYarn(omega, factor, originalLength) {
  return omega.map((value) => {
    const rotations = (originalLength * value) / (2 * Math.PI);
    const ramp = Math.max(0, Math.min(1, (rotations - 1) / (32 - 1)));
    return value * (ramp + (1 - ramp) / factor);
  });
}

export const SCALINGS = {
  none: (omega) => omega,
  linear: (omega, factor) => omega.map((value) => value / factor),
  ntk: scaleNtk,
  yarn: scaleYarn,
  "dynamic-ntk": (omega) => omega, // up to the original length; beyond, see `Rotary.furtherRotation`
};

export const POSITIONS = {
  none: Position,
  sinusoidal: Sinusoidal,
  learned: LearnedPosition,
  relative: RelativePosition,
  alibi: Alibi,
  rotary: Rotary,
};

/** The position that is added to the embeddings, if this kind is. */
export function buildEmbeddingPosition(weights, table, sizes) {
  const kind = POSITIONS[table.kind]; // interleaved is none here
  return kind?.acts === "embedding" ? new kind(weights, table, sizes) : new Position();
}

/** The table of a layer's position, if it acts in attention; cross-attention (layer null) has none. */
export function layerPosition(table, layer) {
  const none = { kind: "none" };
  if (layer === null) return none;
  if (table.kind === "interleaved") {
    return (layer + 1) % table.nope_interval === 0 ? none : { ...table, kind: "rotary" };
  }
  return POSITIONS[table.kind].acts === "embedding" ? none : table;
}
