/* Interventions, as in regard/interventions.py, and the record of attention weights.

   Every row of attention weights passes through a `Probe`, which may change it and keep it. Its `place` is
   {parts, layer, head, position, keyPositions}: in a decoder-only model its parts are cross and decoder. */

import { MAX_WEIGHT, findBadField } from "./fields.js";
import { UserError } from "./tensor.js";
import { BOS, EOS } from "./tokenizer.js";

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

/* The checks of regard/intervention_checks.py. `NAMES` are those of Python's classes. */

const NAMES = { force: "Force", mask: "Mask", weights: "SetWeights", ablate: "Ablate" };

const INDEX = "it is a whole number, from 0";
const ALLOWED = {
  mechanism: "choose cross, encoder or decoder",
  ...{ layer: INDEX, head: INDEX, step: INDEX },
  keys: "it is a list of positions, from 0, with one at least",
  weights: `it is a weight for each key, from 0 to at most ${MAX_WEIGHT}, with one at least`,
  token: "it is a text",
};

/** Raises an error for an intervention that has wrong fields, or a place that the model does not have.

    `heads`: [layers, heads] by mechanism. `lengths`: {source, target}, the target at most; `isGiven`: the
    target is not generated but given, so that no token of it can be forced. */
export function checkInterventions(interventions, heads, lengths, isGiven = false) {
  for (const intervention of interventions) {
    checkFields(intervention);
    if (intervention.what !== "force") checkModel(intervention, heads);
    else if (isGiven) fail(intervention, "a given translation has its own tokens, so none can be forced");
    checkText(intervention, lengths, isGiven ? "the target" : "the longest output");
  }
}

function fail({ what }, reason) {
  throw new UserError(`${NAMES[what] ?? "intervention"}: ${reason}`);
}

function checkFields(intervention) {
  const field = findBadField(intervention);
  if (field === null) return;
  if (field === "what") fail({}, `there is no "${intervention?.what}": choose ${Object.keys(NAMES).join(", ")}`);
  const given = JSON.stringify(intervention[field]) ?? "nothing";
  fail(intervention, `${field}: got ${given}; ${ALLOWED[field] ?? "there is no such field"}`);
}

function checkModel(intervention, heads) {
  const { mechanism = "cross", layer, head } = intervention;
  if (!Object.hasOwn(heads, mechanism)) {
    const known = Object.keys(heads).join(", ") || "no attention at all";
    fail(intervention, `this model has no "${mechanism}" attention; it has ${known}`);
  }
  const where = `the ${mechanism} attention of this model`;
  checkIndex(intervention, "layer", layer, heads[mechanism][0], where);
  checkIndex(intervention, "head", head, heads[mechanism][1], where);
}

function checkText(intervention, { source, target }, output) {
  const { mechanism = "cross", step, keys, weights = {} } = intervention;
  const queries = mechanism === "encoder" ? [source, "the source"] : [target, output];
  checkIndex(intervention, "step", step, ...queries);
  let allowed = [source, "the source"];
  if (mechanism === "decoder") allowed = step == null ? [target, output] : [step + 1, `the decoder's input at step ${step}`];
  for (const key of keys ?? Object.keys(weights)) checkIndex(intervention, "key", Number(key), ...allowed);
}

/** 'there is no layer 7: the cross attention of this model has 4, from 0 to 3' */
function checkIndex(intervention, noun, index, count, where) {
  if (index == null || index < count) return;
  const has = count > 1 ? `${count}, from 0 to ${count - 1}` : count ? `only ${noun} 0` : "none";
  fail(intervention, `there is no ${noun} ${index}: ${where} has ${has}`);
}

/** The ids that each forced step may have, by step. */
export function forcedTokens(interventions, tokenizer) {
  const forced = new Map();
  for (const one of interventions.filter(({ what }) => what === "force")) {
    const ids = tokenizer.tokenToIds(one.token).filter((id) => id > BOS); // not padding
    if (ids.length === 0) fail(one, `"${one.token}" is not a token of the target vocabulary`);
    if (forced.has(one.step)) fail(one, `two tokens are forced at step ${one.step}`);
    forced.set(one.step, ids);
  }
  const last = Math.max(-1, ...forced.keys());
  for (const [step, ids] of forced) {
    if (ids.includes(EOS) && step < last) {
      throw new UserError(`Force: the output ends at step ${step}, and a token is forced at step ${last}`);
    }
  }
  return forced;
}
