/* Scores e(q, k), and normalisers, which turn scores into weights: as in regard/attention. */

import { Linear, Matrix, UserError, dot, multiplyTransposed } from "./tensor.js";

// --- scores --------------------------------------------------------------------------------------

/* score.compute(query, cache, offset, slots, scores): e(q, k) of a query, as an array, and the keys of these
   slots, which start at column `offset`. `projected`: does it take W_q q and W_k h, or q and h themselves? */

class Dummy {
  static projected = false;

  compute(query, cache, offset, slots, scores) {
    scores.fill(-Infinity);
  }
}

class Mean {
  static projected = false;

  compute(query, cache, offset, slots, scores) {
    scores.fill(0);
  }
}

/** e_i = (W q + b)_i, i = the position of the key: ignores the keys */
class Location {
  static projected = false;

  constructor(weights) {
    this.indexScores = new Linear(weights, "index_scores");
  }

  compute(query, cache, offset, slots, scores) {
    const byPosition = this.indexScores.apply(new Matrix(1, query.length, query)).data;
    for (let i = 0; i < slots.length; i++) {
      const position = cache.positions[slots[i]];
      if (position >= byPosition.length) {
        throw new UserError(
          `the score "location" supports at most ${byPosition.length} keys and got ${position + 1}: ` +
            "shorten the text, or train with a larger max_length",
        );
      }
      scores[i] = byPosition[position];
    }
  }
}

/** e = v . tanh(q + k) */
class Additive {
  static projected = true;

  constructor(weights) {
    this.v = weights.vector("v");
  }

  compute(query, { keys }, offset, slots, scores) {
    for (let i = 0; i < slots.length; i++) {
      const first = slots[i] * keys.columns + offset;
      scores[i] = this.v.reduce((sum, v, j) => sum + v * Math.tanh(query[j] + keys.data[first + j]), 0);
    }
  }
}

/** e = q . k */
class Dot {
  static projected = true;

  compute(query, { keys }, offset, slots, scores) {
    for (let i = 0; i < slots.length; i++) {
      scores[i] = dot(query, 0, keys.data, slots[i] * keys.columns + offset, query.length);
    }
  }
}

/** e = q . k / sqrt(d) */
class ScaledDot extends Dot {
  compute(query, cache, offset, slots, scores) {
    super.compute(query, cache, offset, slots, scores);
    const scale = Math.sqrt(query.length);
    for (let i = 0; i < scores.length; i++) scores[i] /= scale;
  }
}

/** e = q . W k = (W^T q) . k */
class Bilinear extends Dot {
  static projected = false;

  constructor(weights) {
    super();
    this.transposed = transpose(weights.matrix("linear.weight"));
  }

  compute(query, cache, offset, slots, scores) {
    const mapped = multiplyTransposed(new Matrix(1, query.length, query), this.transposed);
    super.compute(mapped.data, cache, offset, slots, scores);
  }
}

function transpose(matrix) {
  const result = new Matrix(matrix.columns, matrix.rows);
  for (let row = 0; row < result.rows; row++) {
    for (let i = 0; i < result.columns; i++) {
      result.data[row * result.columns + i] = matrix.data[i * matrix.columns + row];
    }
  }
  return result;
}

export const SCORES = {
  dummy: Dummy,
  mean: Mean,
  location: Location,
  additive: Additive,
  dot: Dot,
  "scaled-dot": ScaledDot,
  bilinear: Bilinear,
};

// --- normalisers ---------------------------------------------------------------------------------

/* Scores to weights, in place. Minus infinity gives weight 0; a query with no other score gets zeros. */

function largest(scores) {
  return scores.reduce((best, score) => (score > best || Number.isNaN(score) ? score : best), -Infinity);
}

function softmax(scores) {
  const best = largest(scores);
  if (best === -Infinity) return scores.fill(0);
  let sum = 0;
  for (let i = 0; i < scores.length; i++) sum += scores[i] = Math.exp(scores[i] - best);
  for (let i = 0; i < scores.length; i++) scores[i] /= sum;
  return scores;
}

/** One-hot at the highest score, the first of equal ones. */
function argmax(scores) {
  const best = largest(scores);
  if (best === -Infinity) return scores.fill(0);
  const index = scores.indexOf(best);
  if (index < 0) return scores.fill(NaN);
  scores.fill(0)[index] = 1;
  return scores;
}

/** max(e_i - tau, 0), the Euclidean projection onto the simplex */
function sparsemax(scores) {
  const best = largest(scores);
  if (best === -Infinity) return scores.fill(0);
  const shifted = scores.map((score) => Math.max(score - best, -1));
  let cumulative = 0;
  let tau = NaN;
  shifted.slice().sort().reverse().forEach((score, i) => {
    cumulative += score;
    if (i === 0 || 1 + (i + 1) * score > cumulative) tau = (cumulative - 1) / (i + 1);
  });
  for (let i = 0; i < scores.length; i++) scores[i] = Math.max(shifted[i] - tau, 0);
  return scores;
}

/** The raw scores, with 0 for masked ones. */
function unnormalised(scores) {
  for (let i = 0; i < scores.length; i++) if (scores[i] === -Infinity) scores[i] = 0;
  return scores;
}

export const NORMALISERS = { softmax, argmax, sparsemax, none: unnormalised };
