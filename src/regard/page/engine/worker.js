/* Models behind messages: the requests and responses of regard/page/schema.py. */

import { HEADS } from "./attention.js";
import { Probe, checkInterventions, forcedTokens } from "./interventions.js";
import { POSITIONS, RELATIVE_FORMS, SCALINGS } from "./positions.js";
import { CELLS, DECODERS, RECURRENT_ATTENTION, Recurrent } from "./recurrent.js";
import { NORMALISERS, SCORES } from "./scores.js";
import { SearchProblem, beam, checkFinite, greedy, logSoftmax, sample, topIds } from "./search.js";
import { UserError, Weights } from "./tensor.js";
import { BOS, EOS, TOKENIZERS, TokenizerPair, UNK, isBlank } from "./tokenizer.js";
import { ATTENTION_MASKS, FEED_FORWARDS, MIXERS } from "./transformer.js";
import { NORMS, NORM_POSITIONS, TRANSFORMERS } from "./transformer.js";

const MODELS = { recurrent: Recurrent, ...TRANSFORMERS };

/* What a setting may be here, by setting, and what it may not be, with the reason. */
export const REGISTRIES = {
  model: Object.keys(MODELS),
  tokenizer: Object.keys(TOKENIZERS),
  score: Object.keys(SCORES),
  normaliser: Object.keys(NORMALISERS),
  position: [...Object.keys(POSITIONS), "interleaved"],
  form: Object.keys(RELATIVE_FORMS),
  scaling: Object.keys(SCALINGS),
  heads: Object.keys(HEADS),
  attention: Object.keys(RECURRENT_ATTENTION),
  cell: Object.keys(CELLS),
  decoder: Object.keys(DECODERS),
  mixer: Object.keys(MIXERS),
  activation: Object.keys(FEED_FORWARDS),
  norm: Object.keys(NORMS),
  norm_position: Object.keys(NORM_POSITIONS),
  attention_mask: Object.keys(ATTENTION_MASKS),
};

const NOT_OURS = "its layers and its tokenizer are those of another library";
export const UNSUPPORTED = {
  model: { pretrained: NOT_OURS },
  tokenizer: { pretrained: NOT_OURS },
  mixer: { "state-space": "a state space has no attention weights to show" },
};

/** A run: its tokenizers and its model. */
export class Translator {
  constructor(manifest, buffer) {
    this.info = manifest.info;
    this.search = manifest.search;
    this.tokenizers = new TokenizerPair(manifest.tokenizers);
    const weights = new Weights(manifest.tensors, buffer);
    this.model = new MODELS[manifest.model.kind](weights, manifest.model);
  }

  /** The ids of a text, with its EOS, if this model can read it. */
  encodeSource(text) {
    const { source: tokenizer, maxTokens, sourceEos } = this.tokenizers;
    if (isBlank(text)) throw new UserError("the text is empty: there is nothing to translate");
    const ids = tokenizer.encode(text);
    if (ids.length > maxTokens) {
      throw new UserError(
        `the text has ${ids.length} tokens and this model reads at most ${maxTokens} ` +
          "(tokenizer.max_tokens): shorten or split it",
      );
    }
    if (tokenizer.strict && ids.includes(UNK)) {
      const unknown = tokenizer.unknownPieces(text).slice(0, 5).map((piece) => `"${piece}"`);
      const known = tokenizer.knownCharacters() || tokenizer.pieces.length;
      throw new UserError(
        `the text contains ${unknown.join(", ")}, which is not in this model's vocabulary; ` +
          `it knows ${known}`,
      );
    }
    return sourceEos ? [...ids, EOS] : ids;
  }

  /** Raises an error for a pair with more tokens than the model has positions. */
  checkLengths(sourceLength, targetLength) {
    const limit = this.model.maxTargetLength(sourceLength);
    if (limit !== null && targetLength + 1 > limit) {
      const allowed = limit ? `at most ${limit - 1} after that source` : "fewer in the source";
      throw new UserError(
        `the text is too long for this model's position table: its source has ${sourceLength} tokens and ` +
          `its target ${targetLength}; the table allows ${allowed}. Shorten it`,
      );
    }
  }

  maxOutputLength(sourceLength) {
    const { max_ratio: ratio, max_extra: extra } = this.search;
    const length = Math.max(1, Math.trunc(ratio * sourceLength + extra));
    return Math.min(length, this.model.maxTargetLength(sourceLength) ?? Infinity);
  }

  /** Answers a TranslateRequest. */
  translate({ text, decoding = {}, interventions = [], best = 5 }) {
    const clock = new Clock();
    const source = this.encodeSource(text);
    this.checkLengths(source.length, 0);
    const limit = this.maxOutputLength(source.length);
    checkInterventions(interventions, this.model.heads, { source: source.length, target: limit });
    const forced = forcedTokens(interventions, this.tokenizers.target);
    const probe = new Probe(interventions);
    const memory = clock.time("encode", () => this.model.encode(source, probe));
    const problem = new SearchProblem(this.model, memory, limit, probe, forced);
    const { hypotheses, tree } = clock.time("search", () => this.#search(problem, decoding));
    const outputs = clock.time("attention", () =>
      hypotheses.map((one) => this.#describe(source, one, interventions, best)),
    );
    return {
      ...outputs[0],
      alternatives: outputs.slice(1),
      ...(tree ? { tree: this.#describeTree(tree) } : {}),
      milliseconds: clock.milliseconds,
    };
  }

  #search(problem, { beam: size = 1, nbest = 1, sample: sampling = null }) {
    if (sampling !== null && size > 1) throw new UserError("choose either beam search or sampling");
    if (sampling === null && nbest > size) {
      throw new UserError(`nbest (${nbest}) is above the beam size (${size}): raise it`);
    }
    if (sampling !== null) return { hypotheses: sample(problem, nbest, sampling) };
    if (size === 1) return { hypotheses: [greedy(problem)] };
    return beam(problem, size, nbest, this.search.length_penalty);
  }

  /** Answers an ExplainRequest: a given translation with its score and attention. */
  explain({ text, target, interventions = [], best = 5 }) {
    const source = this.encodeSource(text);
    const ids = [...this.tokenizers.target.encode(target), EOS];
    this.checkLengths(source.length, ids.length - 1);
    checkInterventions(interventions, this.model.heads, { source: source.length, target: ids.length }, true);
    const clock = new Clock();
    const output = clock.time("attention", () => {
      const described = this.#describe(source, { ids }, interventions, best);
      const score = described.steps.reduce((sum, { log_prob }) => sum + log_prob, 0);
      checkFinite(score);
      return { ...described, score, normalised: score / ids.length ** this.search.length_penalty };
    });
    return { ...output, milliseconds: clock.milliseconds };
  }

  /** One pass over a finished output: its tokens, their alternatives, and all attention weights. */
  #describe(source, { ids, score, normalised }, interventions, best) {
    const { attention, logProbs } = this.readAtOnce(source, ids, interventions);
    const { target } = this.tokenizers;
    const steps = ids.map((id, step) => {
      const values = logProbs.row(step);
      const logProb = values[id];
      values[0] = values[BOS] = -Infinity; // never generated, so no alternatives
      const candidates = topIds(values, best).map((other) => ({
        token: target.idToToken(other),
        log_prob: values[other],
      }));
      return { token: target.idToToken(id), log_prob: logProb, best: candidates };
    });
    return {
      text: target.decode(ids),
      source: this.tokenizers.source.idsToTokens(source),
      target: target.idsToTokens(ids),
      score,
      normalised,
      alternatives: [],
      attention,
      steps,
    };
  }

  /** {attention, logProbs [target vocab]}: teacher forcing, from BOS, then all tokens but the last. */
  readAtOnce(source, ids, interventions = []) {
    const lengths = { source: source.length, target: ids.length };
    const shapes = Object.entries(this.model.heads).map(([mechanism, heads]) => {
      const queries = lengths[mechanism === "encoder" ? "source" : "target"];
      const keys = lengths[mechanism === "decoder" ? "target" : "source"];
      return [mechanism, [...heads, queries, keys]];
    });
    const probe = new Probe(interventions, Object.fromEntries(shapes));
    const state = this.model.initState(this.model.encode(source, probe));
    const features = this.model.read([BOS, ...ids.slice(0, -1)], state, probe);
    return { attention: probe.weights, logProbs: logSoftmax(this.model.project(features)) };
  }

  #describeTree(nodes) {
    return nodes.map(({ parent, step, id, score, finished = false, onBest = false }) => ({
      parent,
      step,
      token: this.tokenizers.target.idToToken(id),
      score,
      finished,
      on_best: onBest,
    }));
  }
}

class Clock {
  constructor() {
    this.milliseconds = {};
  }

  time(name, compute) {
    const start = performance.now();
    const result = compute();
    this.milliseconds[name] = performance.now() - start;
    return result;
  }
}

/** All loaded models, by name, and the answer to each message. */
export class Engine {
  constructor() {
    this.translators = new Map();
  }

  /** {"id", "load"} or {"id", "request"} -> {"id", "response"} or {"id", "error"} */
  answer({ id, load, request }) {
    try {
      return { id, response: load ? this.load(load) : this.respond(request) };
    } catch (error) {
      if (error instanceof UserError) return { id, error: error.message };
      console.error(error);
      return { id, error: `the engine failed: ${error.message}` };
    }
  }

  load({ manifest, weights }) {
    this.translators.set(manifest.info.name, new Translator(manifest, weights));
    return manifest.info;
  }

  respond({ kind, model, ...request }) {
    if (kind === "models") return { models: [...this.translators.values()].map(({ info }) => info) };
    const translator = this.translators.get(model);
    if (translator === undefined) throw new UserError(`there is no model "${model}"`);
    if (kind === "translate") return translator.translate(request);
    if (kind === "explain") return translator.explain(request);
    throw new UserError(`there is no request "${kind}": choose models, translate or explain`);
  }
}

/** The buffers of a translation's attention weights, which need not be copied to the page. */
function attentionBuffers({ attention, alternatives = [] } = {}) {
  const own = Object.values(attention ?? {}).map(({ data }) => data.buffer);
  return [...own, ...alternatives.flatMap(attentionBuffers)];
}

if (typeof WorkerGlobalScope !== "undefined") {
  const engine = new Engine();
  self.onmessage = ({ data }) => {
    const answer = engine.answer(data);
    self.postMessage(answer, attentionBuffers(answer.response));
  };
}
