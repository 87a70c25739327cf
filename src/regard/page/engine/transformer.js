/* Transformers, as in regard/models: encoder-decoder and decoder-only, with attention as token mixer.

   A model reads tokens that follow those in its state: several of one hypothesis (`read`), or one for each of
   several hypotheses (`step`). All hypotheses share a cache: each is the list of its slots there. */

import { CROSS, HEADS, KVCache, normaliseRms } from "./attention.js";
import { buildEmbeddingPosition } from "./positions.js";
import { Linear, Matrix, addInPlace, mapInPlace, multiplyTransposed } from "./tensor.js";
import { range, relu, sigmoid } from "./tensor.js";

// --- layers --------------------------------------------------------------------------------------

const LAYER_EPS = 1e-5;

/** (x - mean) / deviation * g + b, in place */
function normaliseLayer(x, gain, bias) {
  for (let row = 0; row < x.rows; row++) {
    const values = x.row(row);
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length;
    const scale = 1 / Math.sqrt(variance + LAYER_EPS);
    for (let i = 0; i < values.length; i++) {
      values[i] = (values[i] - mean) * scale * gain[i] + bias[i];
    }
  }
  return x;
}

export const NORMS = { layer: normaliseLayer, rms: normaliseRms };

/** x -> norm(x), a new matrix. */
function buildNorm(weights, name, kind) {
  const parameters = ["weight", "bias"].filter((part) => weights.has(`${name}.${part}`));
  const vectors = parameters.map((part) => weights.vector(`${name}.${part}`));
  return (x) => NORMS[kind](new Matrix(x.rows, x.columns, x.data.slice()), ...vectors);
}

/** W_2 f(W_1 x + b_1) + b_2 */
function buildFeedForward(weights, activate) {
  const [up, down] = [new Linear(weights, "up"), new Linear(weights, "down")];
  return (x) => down.apply(activate(up.apply(x)));
}

/** W_2 (silu(W_g x) * W_1 x) */
function buildSwiGlu(weights) {
  const [gate, up, down] = ["gate", "up", "down"].map((name) => new Linear(weights, name));
  return (x) => {
    const inner = up.apply(x);
    const gates = gate.apply(x).data;
    for (let i = 0; i < gates.length; i++) inner.data[i] *= gates[i] * sigmoid(gates[i]);
    return down.apply(inner);
  };
}

/** x Phi(x), with the error function to 1.5e-7 (Abramowitz and Stegun, 7.1.26) */
function gelu(x) {
  const z = Math.abs(x) / Math.SQRT2;
  const t = 1 / (1 + 0.3275911 * z);
  const polynomial =
    t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  const tail = (polynomial * Math.exp(-z * z)) / 2; // 1 - Phi(|x|)
  return x * (x < 0 ? tail : 1 - tail);
}

export const FEED_FORWARDS = {
  relu: (weights) => buildFeedForward(weights, relu),
  gelu: (weights) => buildFeedForward(weights, (x) => mapInPlace(x, gelu)),
  swiglu: buildSwiGlu,
};

/* [norm of a sublayer's input, norm of the sum after it] */
export const NORM_POSITIONS = {
  pre: (norm) => [norm, (x) => x],
  post: (norm) => [(x) => x, norm],
};

export const MIXERS = {
  attention: (weights, table, layer) =>
    new HEADS[table.attention.kind](weights.under("attention"), table, layer),
};

/** Self-attention, cross-attention in a decoder, and a feed-forward network, each with norm and residual. */
class Block {
  constructor(weights, table, layer, hasCross) {
    const norms = (name) => NORM_POSITIONS[table.norm_position](buildNorm(weights, name, table.norm));
    this.layer = layer;
    this.selfAttention = MIXERS[table.mixer.kind](weights.under("mixer"), table, layer);
    this.mixerNorms = norms("mixer_norm");
    if (hasCross) {
      const heads = HEADS[table.attention.kind];
      this.crossAttention = new heads(weights.under("cross_attention"), table, null);
      this.crossNorms = norms("cross_norm");
    }
    this.feedForward = FEED_FORWARDS[table.activation](weights.under("feed_forward"));
    this.feedForwardNorms = norms("feed_forward_norm");
  }

  /** `cache`: keys and values of the tokens so far, and then of x; `source`: those of the source. */
  run(x, { positionIds, visible, parts }, cache, source, probe) {
    const place = { parts, layer: this.layer };
    x = this.#sublayer(x, this.mixerNorms, (normed) => {
      cache.append(...this.selfAttention.keysValues(normed, positionIds), positionIds);
      return this.selfAttention.attend(normed, positionIds, cache, visible, place, probe);
    });
    if (source !== undefined) {
      const everything = positionIds.map(() => source.positions); // a slot of the source is its position
      const cross = { parts: CROSS, layer: this.layer };
      x = this.#sublayer(x, this.crossNorms, (normed) =>
        this.crossAttention.attend(normed, positionIds, source, everything, cross, probe),
      );
    }
    return this.#sublayer(x, this.feedForwardNorms, this.feedForward);
  }

  #sublayer(x, [normInput, normSum], compute) {
    return normSum(addInPlace(compute(normInput(x)), x));
  }
}

// --- state ---------------------------------------------------------------------------------------

/** The cache of each layer, and the slots and the next position of each hypothesis. */
class TransformerState {
  constructor(caches, sourceCaches, prefixLength, parts) {
    this.caches = caches;
    this.sourceCaches = sourceCaches;
    this.parts = parts;
    this.hypotheses = [range(prefixLength)];
    this.nextPosition = prefixLength;
    this.nextSlot = prefixLength;
  }

  /** Hypothesis i becomes what hypothesis indices[i] was. */
  reorder(indices) {
    this.hypotheses = indices.map((index) => [...this.hypotheses[index]]);
  }

  /** One token for each hypothesis. */
  appendOnePerHypothesis() {
    const position = this.nextPosition++;
    const visible = this.hypotheses;
    for (const slots of visible) slots.push(this.nextSlot++);
    return { positionIds: visible.map(() => position), visible, parts: this.parts };
  }

  /** `count` tokens of the only hypothesis, each of which sees those before it. */
  appendTokens(count) {
    const positionIds = range(count, this.nextPosition);
    const [slots] = this.hypotheses;
    const visible = positionIds.map(() => [...slots, ...range(count, this.nextSlot)]);
    visible.forEach((seen, i) => (seen.length = slots.length + i + 1));
    slots.push(...range(count, this.nextSlot));
    this.nextPosition += count;
    this.nextSlot += count;
    return { positionIds, visible, parts: this.parts };
  }
}

// --- models --------------------------------------------------------------------------------------

class TransformerBase {
  constructor(weights, table) {
    const embeddings = ["source_embedding.weight", "target_embedding.weight"];
    // A joint vocabulary has one embedding, under its first name.
    const [source, target] = embeddings.map((name) => (weights.has(name) ? name : embeddings[0]));
    this.sourceEmbedding = weights.matrix(source);
    this.targetEmbedding = weights.matrix(target);
    this.output = table.tie_embeddings ? this.targetEmbedding : weights.matrix("output.weight");
    this.table = table;
    const { d_model: dModel } = table;
    this.position = buildEmbeddingPosition(weights.under("position"), table.position, { dModel });
    this.headsPerLayer = table.attention.heads;
  }

  /** A norm after the last block; a post-norm block ends with one already. */
  finalNorm(weights, name) {
    const isPre = this.table.norm_position === "pre";
    return isPre ? buildNorm(weights, name, this.table.norm) : (x) => x;
  }

  embed(embedding, ids, positionIds) {
    const scale = Math.sqrt(embedding.columns);
    return this.position.embed(mapInPlace(embedding.select(ids), (x) => x * scale), positionIds);
  }

  project(features) {
    return multiplyTransposed(features, this.output);
  }

  /** Reads one token for each hypothesis; logits [hypotheses vocab] of the next. */
  step(tokens, state, probe) {
    return this.project(this.#decode(tokens, state.appendOnePerHypothesis(), state, probe));
  }

  /** Reads several tokens of the only hypothesis; the features of each, the input of `project`. */
  read(tokens, state, probe) {
    return this.#decode(tokens, state.appendTokens(tokens.length), state, probe);
  }

  #decode(tokens, inputs, { caches, sourceCaches }, probe) {
    const x = this.embed(this.targetEmbedding, tokens, inputs.positionIds);
    return this.decoderNorm(runBlocks(this.decoder, x, inputs, caches, sourceCaches, probe));
  }
}

function runBlocks(blocks, x, inputs, caches, sourceCaches, probe) {
  return blocks.reduce(
    (states, block, i) => block.run(states, inputs, caches[i], sourceCaches?.[i], probe),
    x,
  );
}

const ENCODER = [{ mechanism: "encoder", firstQuery: 0, firstKey: 0, endKey: Infinity }];
const DECODER = [{ mechanism: "decoder", firstQuery: 0, firstKey: 0, endKey: Infinity }];

class Transformer extends TransformerBase {
  constructor(weights, table) {
    super(weights, table);
    this.encoder = range(table.encoder.layers).map(
      (layer) => new Block(weights.under(`encoder.${layer}`), table, layer, false),
    );
    this.decoder = range(table.decoder.layers).map(
      (layer) => new Block(weights.under(`decoder.${layer}`), table, layer, true),
    );
    this.encoderNorm = this.finalNorm(weights, "encoder_norm");
    this.decoderNorm = this.finalNorm(weights, "decoder_norm");
  }

  get heads() {
    const decoder = [this.decoder.length, this.headsPerLayer];
    return { cross: decoder, encoder: [this.encoder.length, this.headsPerLayer], decoder };
  }

  maxTargetLength(sourceLength) {
    const { maxLength } = this.position;
    return maxLength !== null && sourceLength > maxLength ? 0 : maxLength;
  }

  /** The encoder's states, a row for each source token. */
  encode(ids, probe) {
    const positionIds = range(ids.length);
    const inputs = { positionIds, visible: ids.map(() => positionIds), parts: ENCODER };
    const x = this.embed(this.sourceEmbedding, ids, positionIds);
    const caches = this.encoder.map(() => new KVCache());
    return { states: this.encoderNorm(runBlocks(this.encoder, x, inputs, caches, null, probe)) };
  }

  initState({ states }) {
    const positionIds = range(states.rows);
    const sourceCaches = this.decoder.map(({ crossAttention }) => {
      const [keys, values] = crossAttention.keysValues(states, positionIds);
      return new KVCache(keys, values, positionIds);
    });
    return new TransformerState(this.decoder.map(() => new KVCache()), sourceCaches, 0, DECODER);
  }
}

/* What a source token may attend to. */
export const ATTENTION_MASKS = {
  causal: (length) => range(length).map((i) => range(i + 1)),
  prefix: (length) => range(length).map(() => range(length)),
};

/** Source and target in one sequence with causal self-attention. */
class DecoderOnly extends TransformerBase {
  constructor(weights, table) {
    super(weights, table);
    this.decoder = range(table.decoder.layers).map(
      (layer) => new Block(weights.under(`decoder.${layer}`), table, layer, false),
    );
    this.decoderNorm = this.finalNorm(weights, "norm");
  }

  get heads() {
    const heads = [this.decoder.length, this.headsPerLayer];
    return { cross: heads, encoder: heads, decoder: heads };
  }

  maxTargetLength(sourceLength) {
    const { maxLength } = this.position;
    return maxLength === null ? null : Math.max(0, maxLength - sourceLength);
  }

  encode(ids, probe) {
    const positionIds = range(ids.length);
    const visible = ATTENTION_MASKS[this.table.attention_mask](ids.length);
    const x = this.embed(this.sourceEmbedding, ids, positionIds);
    const caches = this.decoder.map(() => new KVCache());
    const inputs = { positionIds, visible, parts: ENCODER };
    const states = this.decoderNorm(runBlocks(this.decoder, x, inputs, caches, null, probe));
    return { states, caches };
  }

  initState({ states, caches }) {
    const length = states.rows;
    const parts = [
      { mechanism: "cross", firstQuery: length, firstKey: 0, endKey: length },
      { mechanism: "decoder", firstQuery: length, firstKey: length, endKey: Infinity },
    ];
    return new TransformerState(caches.map((cache) => cache.copy()), null, length, parts);
  }
}

export const TRANSFORMERS = { transformer: Transformer, "decoder-only": DecoderOnly };
