/* The engine as a process: reads a JSON object a line and writes one back. Tests and page-check use it.

   {"load": {"manifest", "weights": a file}}, {"request"}, or {"call": one of CALLS, ..}; a tensor is {shape, data}. */

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const folder = process.argv[2];
const { Engine, REGISTRIES, UNSUPPORTED } = await import(`${folder}/worker.js`);
const { Probe } = await import(`${folder}/interventions.js`);
const { SearchProblem, beam, greedy, uniformDraws } = await import(`${folder}/search.js`);
const { TOKENIZERS } = await import(`${folder}/tokenizer.js`);
const { NORMALISERS } = await import(`${folder}/scores.js`);
const engine = new Engine();
const fieldsRead = new Set();

/** An object that notes which of its fields are read, and of the objects in it. */
function watched(value) {
  if (value === null || typeof value !== "object") return value;
  return new Proxy(value, {
    get(target, name) {
      if (typeof name === "string") fieldsRead.add(name);
      return watched(target[name]);
    },
  });
}

function load({ manifest, weights }) {
  const bytes = readFileSync(weights);
  const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  return engine.answer({ load: { manifest: { ...manifest, model: watched(manifest.model) }, weights: buffer } });
}

function translator({ model }) {
  return engine.translators.get(model);
}

function problem(request) {
  const { model } = translator(request);
  const probe = new Probe(request.interventions ?? []);
  const forced = new Map(Object.entries(request.forced ?? {}).map(([step, ids]) => [Number(step), ids]));
  return new SearchProblem(model, model.encode(request.source, probe), request.max_length, probe, forced);
}

const CALLS = {
  registries: () => ({ REGISTRIES, UNSUPPORTED }),
  fields_read: () => [...fieldsRead],
  /** Attention and log-probabilities of the tokens after BOS and `target`. */
  read: (request) => {
    const { attention, logProbs } = translator(request).readAtOnce(request.source, request.target, request.interventions);
    return { attention, log_probs: { shape: [logProbs.rows, logProbs.columns], data: logProbs.data } };
  },
  /** The log-probabilities of the same, one token at a time. */
  read_stepwise: ({ source, target, ...request }) => {
    const task = problem({ ...request, source, max_length: target.length });
    const state = task.initState();
    const rows = [1, ...target.slice(0, -1)].map((token, step) => [...task.next([token], state, step).data]);
    return { shape: [rows.length, rows[0].length], data: rows.flat() };
  },
  greedy: (request) => greedy(problem(request)),
  beam: (request) => beam(problem(request), request.size, request.nbest ?? 1, request.length_penalty ?? 1),
  normalise: ({ kind, scores }) => NORMALISERS[kind](Float64Array.from(scores, (x) => x ?? -Infinity)),
  uniform: ({ text, count }) => {
    const draw = uniformDraws(text);
    return Array.from({ length: count }, draw);
  },
  tokenize: ({ record, texts }) => {
    const tokenizer = new TOKENIZERS[record.kind](record);
    return texts.map((text) => {
      const ids = tokenizer.encode(text);
      const pieces = tokenizer.parse(text)[1];
      return { ids, pieces, tokens: tokenizer.idsToTokens(ids), text: tokenizer.decode(ids), unknown: tokenizer.unknownPieces(text) };
    });
  },
  pieces: ({ record, texts }) => {
    const tokenizer = new TOKENIZERS[record.kind](record);
    return texts.map((text) => tokenizer.parse(text)[1]);
  },
  vocabulary: ({ record }) => {
    const tokenizer = new TOKENIZERS[record.kind](record);
    return tokenizer.idsToTokens(tokenizer.vocab.map((_, id) => id));
  },
  decode: ({ record, ids }) => {
    const tokenizer = new TOKENIZERS[record.kind](record);
    return ids.map((each) => tokenizer.decode(each));
  },
};

function respond(message) {
  if (message.load) return load(message.load);
  if (message.request) return engine.answer(message);
  try {
    return { response: CALLS[message.call](message) };
  } catch (error) {
    return { error: error.message };
  }
}

/** Typed arrays as lists; numbers that JSON lacks as strings. */
function encode(name, value) {
  if (ArrayBuffer.isView(value)) return Array.from(value, (x) => encode("", x));
  return typeof value === "number" && !Number.isFinite(value) ? String(value) : value;
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(respond(JSON.parse(line)), encode)}\n`);
}
