/* Interventions, as in regard/interventions.py, and the record of attention weights.

   Every row of attention weights passes through a `Probe`, which may change it and keep it. Its `place` is
   {parts, layer, head, position, keyPositions}: in a decoder-only model its parts are cross and decoder. */

import { UserError } from "./tensor.js";

export class Probe {
  /** `shapes`: [layers heads queries keys] of each mechanism whose weights to record; null: none. */
  constructor(interventions = [], shapes = null) {
    this.interventions = interventions.filter(({ what }) => what !== "force");
    this.weights = null;
    if (shapes !== null) {
      const entries = Object.entries(shapes).map(([mechanism, shape]) => {
        const size = shape.reduce((product, length) => product * length, 1);
        return [mechanism, { shape, data: new Float32Array(size) }];
      });
      this.weights = Object.fromEntries(entries);
    }
  }

  /** Scores to weights, in place, with the interventions on this row. */
  normalise(scores, normalise, place) {
    if (this.interventions.length === 0) {
      normalise(scores);
    } else {
      this.#intervene(scores, place, (what) => what === "mask");
      normalise(scores);
      this.#intervene(scores, place, (what) => what !== "mask");
    }
    if (this.weights !== null) this.#record(scores, place);
    return scores;
  }

  #intervene(row, place, isWanted) {
    for (const intervention of this.interventions) {
      if (!isWanted(intervention.what)) continue;
      for (const part of place.parts) {
        if (!appliesTo(intervention, part, place)) continue;
        const change = CHANGES[intervention.what];
        forEachKey(part, place, (i, key) => (row[i] = change(intervention, key, row[i])));
      }
    }
  }

  #record(row, place) {
    for (const part of place.parts) {
      const { shape, data } = this.weights[part.mechanism];
      const [, heads, queries, keys] = shape;
      const query = place.position - part.firstQuery;
      const first = ((place.layer * heads + place.head) * queries + query) * keys;
      forEachKey(part, place, (i, key) => (data[first + key] = row[i]));
    }
  }
}

/** The new score (mask) or weight of a key. */
const CHANGES = {
  mask: ({ keys }, key, score) => (keys.includes(key) ? -Infinity : score),
  weights: ({ weights }, key) => weights[key] ?? 0,
  ablate: () => 0,
};

export const INTERVENTIONS = ["force", ...Object.keys(CHANGES)];

function appliesTo({ mechanism = "cross", layer, head, step }, part, place) {
  return (
    mechanism === part.mechanism &&
    (layer ?? place.layer) === place.layer &&
    (head ?? place.head) === place.head &&
    (step ?? place.position - part.firstQuery) === place.position - part.firstQuery
  );
}

/** f(index in the row, key of the mechanism) for each key of a part of a row. */
function forEachKey({ firstKey, endKey }, { keyPositions }, f) {
  for (let i = 0; i < keyPositions.length; i++) {
    const position = keyPositions[i];
    if (position >= firstKey && position < endKey) f(i, position - firstKey);
  }
}

/** Raises an error for a place that the model does not have; `heads`: [layers, heads] by mechanism. */
export function checkInterventions(interventions, heads, sourceLength) {
  for (const { what, mechanism = "cross", layer, head, step, keys, weights } of interventions) {
    if (!INTERVENTIONS.includes(what)) {
      throw new UserError(`there is no intervention "${what}": choose ${INTERVENTIONS.join(", ")}`);
    }
    if (what === "force") continue;
    if (!(mechanism in heads)) {
      const known = Object.keys(heads).join(", ") || "none";
      throw new UserError(`this model has no attention "${mechanism}"; it has: ${known}`);
    }
    const [layers, headsOfLayer] = heads[mechanism];
    checkIndex(`the layer of "${mechanism}"`, layer, layers);
    checkIndex(`the head of "${mechanism}"`, head, headsOfLayer);
    if (mechanism === "encoder") checkIndex("the step of the encoder", step, sourceLength);
    if (mechanism === "decoder") continue;
    for (const key of keys ?? Object.keys(weights ?? {})) {
      checkIndex("a key, a position in the source,", Number(key), sourceLength);
    }
  }
}

function checkIndex(name, index, length) {
  if (index != null && !(index >= 0 && index < length)) {
    throw new UserError(`${name} must be from 0 to ${length - 1}, not ${index}`);
  }
}

/** The ids that each forced step may have, by step. */
export function forcedTokens(interventions, tokenizer) {
  const forced = new Map();
  for (const { what, step, token } of interventions) {
    if (what !== "force") continue;
    const ids = tokenizer.tokenToIds(token);
    if (ids.length === 0) throw new UserError(`"${token}" is not a token of this model's output`);
    forced.set(step, ids);
  }
  return forced;
}
