/* Recurrent encoder-decoder, as in regard/models: cells, encoder, the three forms of the decoder. */

import { SingleHead } from "./attention.js";
import { buildEmbeddingPosition } from "./positions.js";
import { Linear, Matrix, addBias, concatenate, multiplyTransposed } from "./tensor.js";
import { range, relu, selectColumns, sigmoid } from "./tensor.js";

// --- cells ---------------------------------------------------------------------------------------

/* update(W_i x + b_i, W_h h + b_h, state, next) writes the next state of one row. */

/** h' = tanh(W_i x + b_i + W_h h + b_h) */
function updateRnn(input, hidden, state, next) {
  for (let i = 0; i < next.length; i++) next[i] = Math.tanh(input[i] + hidden[i]);
}

/** h' = (1 - z) n + z h, with gates r and z, and n = tanh(W_in x + r (W_hn h + b_hn)) */
function updateGru(input, hidden, state, next) {
  const size = next.length;
  for (let i = 0; i < size; i++) {
    const reset = sigmoid(input[i] + hidden[i]);
    const keep = sigmoid(input[size + i] + hidden[size + i]);
    const fresh = Math.tanh(input[2 * size + i] + reset * hidden[2 * size + i]);
    next[i] = (1 - keep) * fresh + keep * state[i];
  }
}

/** c' = f c + i g and h' = o tanh(c'); the state is [h ; c] */
function updateLstm(input, hidden, state, next) {
  const size = next.length / 2;
  const gate = (number, i) => input[number * size + i] + hidden[number * size + i];
  for (let i = 0; i < size; i++) {
    const kept = sigmoid(gate(1, i)) * state[size + i];
    const c = kept + sigmoid(gate(0, i)) * Math.tanh(gate(2, i));
    next[size + i] = c;
    next[i] = sigmoid(gate(3, i)) * Math.tanh(c);
  }
}

/* [update, state size / hidden size] */
export const CELLS = { rnn: [updateRnn, 1], gru: [updateGru, 1], lstm: [updateLstm, 2] };

class Cell {
  constructor(weights, kind) {
    const parameters = weights.under("cell");
    const [update, parts] = CELLS[kind];
    this.update = update;
    this.inputWeight = parameters.matrix("weight_ih_l0");
    this.hiddenWeight = parameters.matrix("weight_hh_l0");
    this.inputBias = parameters.vector("bias_ih_l0");
    this.hiddenBias = parameters.vector("bias_hh_l0");
    this.hiddenDim = this.hiddenWeight.columns;
    this.stateDim = this.hiddenDim * parts;
  }

  /** W_i x + b_i, for all steps at once. */
  inputs(x) {
    return addBias(multiplyTransposed(x, this.inputWeight), this.inputBias);
  }

  /** The next state of each row. */
  step(inputs, state) {
    const hidden = addBias(multiplyTransposed(this.output(state), this.hiddenWeight), this.hiddenBias);
    const next = new Matrix(state.rows, this.stateDim);
    for (let row = 0; row < state.rows; row++) {
      this.update(inputs.row(row), hidden.row(row), state.row(row), next.row(row));
    }
    return next;
  }

  /** The part of a state that the next layer sees: h. */
  output(state) {
    return this.stateDim === this.hiddenDim ? state : selectColumns(state, 0, this.hiddenDim);
  }

  /** The output at each row of x, read in order from a state of zeros. */
  run(x) {
    const inputs = this.inputs(x);
    const outputs = new Matrix(x.rows, this.hiddenDim);
    let state = new Matrix(1, this.stateDim);
    for (let row = 0; row < x.rows; row++) {
      state = this.step(inputs.slice(row, row + 1), state);
      outputs.row(row).set(state.row(0).subarray(0, this.hiddenDim));
    }
    return outputs;
  }
}

// --- encoder -------------------------------------------------------------------------------------

function reverseRows(matrix) {
  return matrix.select(range(matrix.rows).reverse());
}

/** h_t = [fwd(z)_t ; bwd(z)_t] and, for each layer, the last state [h_fwd_T ; h_bwd_1]. */
class Encoder {
  constructor(weights, table) {
    this.embedding = weights.matrix("embedding.weight");
    const { layers, bidirectional, position } = table.encoder;
    const cells = (name) =>
      range(layers).map((layer) => new Cell(weights.under(`${name}.${layer}`), table.cell));
    this.forwards = cells("forwards");
    this.backwards = bidirectional ? cells("backwards") : [];
    const sizes = { dModel: table.embedding_dim };
    this.position = buildEmbeddingPosition(weights.under("position"), position, sizes);
  }

  run(ids) {
    let x = this.position.embed(this.embedding.select(ids), range(ids.length));
    const last = ids.length - 1;
    const lastStates = this.forwards.map((forwards, layer) => {
      const outputs = [forwards.run(x)];
      const states = [outputs[0].slice(last, last + 1)];
      if (this.backwards.length > 0) {
        const backward = this.backwards[layer].run(reverseRows(x));
        states.push(backward.slice(last, last + 1));
        outputs.push(reverseRows(backward));
      }
      x = concatenate(...outputs);
      return concatenate(...states);
    });
    return { states: x, lastStates };
  }
}

// --- decoders ------------------------------------------------------------------------------------

/* Each form: (decoder, x, state, probe) -> features, the input of the output layers; it updates the state.

   parallel        d_i = cell(x_i, d_(i-1))               a_i = Attn(d_i, H)              out = [a_i ; d_i]
   input-feeding   d_i = cell([x_i ; a_(i-1)], d_(i-1))   a_i = Attn(d_i, H)              out = [a_i ; d_i]
   tutorial        d_i = cell(z_i, d_(i-1))               a_i = Attn([d_(i-1) ; x_i], H)  out = d_i
                   z_i = ReLU(W_c [x_i ; a_i] + b_c) */

function stepParallel(decoder, x, state, probe) {
  const hidden = decoder.runCells(x, state);
  return concatenate(decoder.attend(hidden, state, probe), hidden);
}

function stepInputFeeding(decoder, x, state, probe) {
  const hidden = decoder.runCells(concatenate(x, state.context), state);
  state.context = decoder.attend(hidden, state, probe);
  return concatenate(state.context, hidden);
}

function stepTutorial(decoder, x, state, probe) {
  const last = decoder.cells.at(-1).output(state.layers.at(-1));
  const context = decoder.attend(concatenate(last, x), state, probe);
  return decoder.runCells(relu(decoder.combine.apply(concatenate(x, context))), state);
}

export const DECODERS = {
  parallel: stepParallel,
  "input-feeding": stepInputFeeding,
  tutorial: stepTutorial,
};

export const RECURRENT_ATTENTION = {
  "single-head": (weights, table) => new SingleHead(weights, table),
  none: () => null,
};

class RecurrentDecoder {
  constructor(weights, table) {
    this.form = DECODERS[table.decoder.kind];
    this.cells = range(table.decoder.layers).map(
      (layer) => new Cell(weights.under(`cells.${layer}`), table.cell),
    );
    const { attention } = table;
    this.attention = RECURRENT_ATTENTION[attention.kind](weights.under("attention"), attention);
    this.combine = weights.has("combine.weight") ? new Linear(weights, "combine") : null;
  }

  /** `initial`: the first state of each layer. */
  initState(initial, states) {
    const cache = this.attention?.cache(states) ?? null;
    return new RecurrentState(initial, new Matrix(1, cache ? states.columns : 0), cache);
  }

  /** The output of the last layer; the state gets the new state of each. */
  runCells(x, state) {
    this.cells.forEach((cell, layer) => {
      state.layers[layer] = cell.step(cell.inputs(x), state.layers[layer]);
      x = cell.output(state.layers[layer]);
    });
    return x;
  }

  /** The context of each query; without attention, one of dimension 0. */
  attend(queries, state, probe) {
    if (this.attention === null) return new Matrix(queries.rows, 0);
    return this.attention.attend(queries, state.cache, state.length, probe);
  }

  step(x, state, probe) {
    const features = this.form(this, x, state, probe);
    state.length += 1;
    return features;
  }
}

/** The state of each layer and the last context, a row for each hypothesis; the source, shared by all. */
class RecurrentState {
  constructor(layers, context, cache) {
    this.layers = layers;
    this.context = context;
    this.cache = cache;
    this.length = 0; // tokens read
  }

  /** Hypothesis i becomes what hypothesis indices[i] was. */
  reorder(indices) {
    this.layers = this.layers.map((layer) => layer.select(indices));
    this.context = this.context.rows > 0 ? this.context.select(indices) : this.context;
  }
}

// --- model ---------------------------------------------------------------------------------------

export class Recurrent {
  constructor(weights, table) {
    this.encoder = new Encoder(weights.under("encoder"), table);
    this.embedding = weights.matrix("embedding.weight");
    this.decoder = new RecurrentDecoder(weights.under("decoder"), table);
    this.bridge = table.bridge ? new Linear(weights, "bridge") : null;
    this.outputHidden = table.output_hidden_dim ? new Linear(weights, "output_hidden") : null;
    this.output = new Linear(weights, "output");
  }

  get heads() {
    return this.decoder.attention === null ? {} : { cross: [1, 1] };
  }

  maxTargetLength(sourceLength) {
    const { maxLength } = this.encoder.position;
    return maxLength !== null && sourceLength > maxLength ? 0 : null;
  }

  encode(ids, probe) {
    const { states, lastStates } = this.encoder.run(ids);
    return { states, initial: this.bridge === null ? lastStates : this.#bridge(lastStates.at(-1)) };
  }

  /** d_0 = ReLU(W s + b), split into layers. */
  #bridge(last) {
    const all = relu(this.bridge.apply(last));
    const size = this.decoder.cells[0].stateDim;
    return this.decoder.cells.map(
      (_, layer) => new Matrix(1, size, all.data.slice(layer * size, (layer + 1) * size)),
    );
  }

  initState({ states, initial }) {
    return this.decoder.initState([...initial], states);
  }

  project(features) {
    return this.output.apply(features);
  }

  /** Reads one token for each hypothesis; logits [hypotheses vocab] of the next. */
  step(tokens, state, probe) {
    return this.project(this.#features(tokens, state, probe));
  }

  /** Reads several tokens of the only hypothesis; the features of each, the input of `project`. */
  read(tokens, state, probe) {
    const rows = tokens.map((token) => this.#features([token], state, probe));
    const features = new Matrix(rows.length, rows[0].columns);
    rows.forEach((row, i) => features.row(i).set(row.data));
    return features;
  }

  #features(tokens, state, probe) {
    const features = this.decoder.step(this.embedding.select(tokens), state, probe);
    return this.outputHidden === null ? features : relu(this.outputHidden.apply(features));
  }
}
