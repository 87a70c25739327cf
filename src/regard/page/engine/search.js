/* Search, as in regard/search: greedy search, beam search and sampling, for one sentence.

   `model.step(tokens, state, probe)` gives the logits of the next token of each hypothesis. */

import { BOS, EOS } from "./tokenizer.js";
import { UserError } from "./tensor.js";

/** Log-probabilities, in place of logits. */
export function logSoftmax(logits) {
  for (let row = 0; row < logits.rows; row++) {
    const values = logits.row(row);
    let best = -Infinity;
    for (let i = 0; i < values.length; i++) if (values[i] > best) best = values[i];
    let sum = 0;
    for (let i = 0; i < values.length; i++) sum += Math.exp(values[i] - best);
    const shift = best + Math.log(sum);
    for (let i = 0; i < values.length; i++) values[i] -= shift;
  }
  return logits;
}

/** Padding (id 0) and BOS are never generated. */
function excludeNeverGenerated(logProbs) {
  for (let row = 0; row < logProbs.rows; row++) {
    const values = logProbs.row(row);
    values[0] = values[BOS] = -Infinity;
  }
  return logProbs;
}

/** The ids of the `count` largest values, largest first; the first of equal ones. */
export function topIds(values, count) {
  const best = [];
  for (let id = 0; id < values.length; id++) {
    if (best.length === count && !(values[id] > values[best[count - 1]])) continue;
    let at = best.length;
    while (at > 0 && values[id] > values[best[at - 1]]) at--;
    best.splice(at, 0, id);
    if (best.length > count) best.pop();
  }
  return best;
}

/** One of forced.get(step) at each of these steps; so no output ends before the last of them. */
function constrain(logProbs, step, forced) {
  const last = Math.max(-1, ...forced.keys());
  for (let row = 0; row < logProbs.rows; row++) {
    const values = logProbs.row(row);
    if (forced.has(step)) {
      const kept = forced.get(step).map((id) => [id, values[id]]);
      values.fill(-Infinity);
      for (const [id, value] of kept) values[id] = value;
    } else if (step < last) {
      values[EOS] = -Infinity;
    }
  }
  return logProbs;
}

export function checkFinite(number) {
  if (!Number.isFinite(number)) {
    throw new UserError(
      "the model's output is not finite (NaN or infinity): its weights are damaged, training diverged, or " +
        "an intervention leaves no token",
    );
  }
}

/** What a search needs to know about a model and its sentence. */
export class SearchProblem {
  /** `forced`: the ids that a step may have, by step. */
  constructor(model, memory, maxLength, probe, forced = new Map()) {
    Object.assign(this, { model, memory, maxLength, probe, forced });
  }

  initState() {
    return this.model.initState(this.memory);
  }

  /** Log-probabilities of the next token of each hypothesis. */
  next(tokens, state, step) {
    const logits = this.model.step(tokens, state, this.probe);
    return constrain(excludeNeverGenerated(logSoftmax(logits)), step, this.forced);
  }
}

// --- one output ----------------------------------------------------------------------------------

/** Generates until EOS or the maximum length; choose(log-probs) is the next token. */
function generate(problem, choose) {
  const state = problem.initState();
  const ids = [];
  let token = BOS;
  let score = 0;
  while (ids.length < problem.maxLength && token !== EOS) {
    const logProbs = problem.next([token], state, ids.length).row(0);
    token = choose(logProbs);
    score += logProbs[token];
    ids.push(token);
    checkFinite(score);
  }
  return { ids, score, normalised: score };
}

/** The most probable token at every step. */
export function greedy(problem) {
  return generate(problem, (logProbs) => topIds(logProbs, 1)[0]);
}

/** `count` samples, most probable first. Each has its own generator of uniform draws, so that more samples
    leave the first ones as they are. The generator is not PyTorch's: samples differ from Python's. */
export function sample(problem, count, { temperature = 1, top_k = null, top_p = null, seed = 0 }) {
  const samples = Array.from({ length: count }, (_, number) => {
    const draw = uniformDraws(`${seed}/${number}`);
    return generate(problem, (logProbs) => {
      const candidates = truncate(softenedProbs(logProbs, temperature), top_k, top_p);
      return drawFrom(candidates, draw());
    });
  });
  return samples.sort((a, b) => b.normalised - a.normalised);
}

/** [id, probability] of every token at this temperature, most probable first. */
function softenedProbs(logProbs, temperature) {
  const best = logProbs[topIds(logProbs, 1)[0]];
  checkFinite(best);
  const mass = Array.from(logProbs, (value) => Math.exp((value - best) / temperature));
  const sum = mass.reduce((total, value) => total + value, 0);
  return mass.map((value, id) => [id, value / sum]).sort((a, b) => b[1] - a[1]);
}

/** The top k of them, then the nucleus: a token stays if the more probable ones sum to less than top_p. */
function truncate(candidates, topK, topP) {
  const kept = candidates.slice(0, topK ?? candidates.length);
  if (topP === null) return kept;
  let before = 0;
  const end = kept.findIndex(([, prob]) => before >= topP || ((before += prob), false));
  return end < 0 ? kept : kept.slice(0, end);
}

/** Inverse transform sampling over the remaining mass. */
function drawFrom(candidates, uniform) {
  const possible = candidates.filter(([, prob]) => prob > 0);
  let threshold = uniform * possible.reduce((sum, [, prob]) => sum + prob, 0);
  for (const [id, prob] of possible) {
    threshold -= prob;
    if (threshold < 0) return id;
  }
  return possible.at(-1)[0];
}

/** Uniform draws from [0, 1): mulberry32, seeded with the 32-bit FNV-1a hash of a text. */
export function uniformDraws(text) {
  let state = 0x811c9dc5;
  for (const character of text) state = Math.imul(state ^ character.codePointAt(0), 0x01000193);
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// --- beam search ---------------------------------------------------------------------------------

/** The `nbest` hypotheses, best first, and the tree of all that were kept.

    At each step all extensions of the live hypotheses are ranked together and the best `size` kept. Those
    that end with EOS are finished, and ranked by score / length^lengthPenalty. The search is over when no live
    one can still win: score / maxLength^lengthPenalty is an upper bound for every continuation. */
export function beam(problem, size, nbest, lengthPenalty) {
  const state = problem.initState();
  const nodes = [];
  let finished = [];
  let live = [{ ids: [], score: 0, node: null }];
  const finish = (hypotheses) => {
    const ranked = hypotheses.map((one) => {
      nodes[one.node].finished = true;
      return { ...one, normalised: one.score / one.ids.length ** lengthPenalty };
    });
    // A stable sort: of equal ones, the earlier ranks first.
    finished = [...finished, ...ranked].sort((a, b) => b.normalised - a.normalised).slice(0, nbest);
  };
  for (let length = 1; live.length > 0; length++) {
    const tokens = live.map(({ ids }) => ids.at(-1) ?? BOS);
    const logProbs = problem.next(tokens, state, length - 1);
    const extensions = bestExtensions(live, logProbs, size);
    if (extensions.length === 0) checkFinite(NaN);
    for (const one of extensions) {
      const { parent, score } = one;
      one.node = nodes.push({ parent, step: length - 1, id: one.ids.at(-1), score }) - 1;
    }
    finish(extensions.filter(({ ids }) => ids.at(-1) === EOS));
    live = extensions.filter(({ ids }) => ids.at(-1) !== EOS);
    if (length >= problem.maxLength) {
      if (finished.length === 0) finish(live); // truncated ones count only if none has ended
      break;
    }
    const bound = Math.max(...live.map(({ score }) => score)) / problem.maxLength ** lengthPenalty;
    if (finished.length === nbest && finished[nbest - 1].normalised >= bound) break;
    state.reorder(live.map(({ row }) => row));
  }
  for (const { score } of finished) checkFinite(score);
  return { hypotheses: finished, tree: markBest(nodes, finished[0].node) };
}

/** The `size` best extensions of all live hypotheses by one token. */
function bestExtensions(live, logProbs, size) {
  const extensions = live.flatMap(({ ids, score, node }, row) => {
    const values = logProbs.row(row);
    return topIds(values, size).map((id) => ({ ids, id, row, parent: node, score: score + values[id] }));
  });
  const possible = extensions.filter(({ score }) => score !== -Infinity);
  const best = possible.sort((a, b) => b.score - a.score).slice(0, size);
  return best.map(({ ids, id, ...rest }) => ({ ...rest, ids: [...ids, id] }));
}

/** The nodes, those of the best output marked. */
function markBest(nodes, last) {
  for (let node = last; node !== null; node = nodes[node].parent) nodes[node].onBest = true;
  return nodes;
}
