// What a picture of attention shows: the rows, columns and heads of one layer of one mechanism.

import { scaleEnd } from "./colours.js";
import { formatToken } from "./dom.js";

// Tokens of the rows and the columns. The decoder's keys are its input: BOS, then the output shifted by one.
export function mechanismTokens(translation, mechanism) {
  const { source, target } = translation;
  return {
    queries: mechanism === "encoder" ? source : target,
    keys: mechanism === "decoder" ? ["<begin>", ...target.slice(0, -1)] : source,
  };
}

export function buildScene(translation, { mechanism, layer, head }) {
  const tensor = translation.attention?.[mechanism];
  if (!tensor || tensor.shape.length !== 4) return null;
  const [layers, count, rows, columns] = tensor.shape;
  const tokens = mechanismTokens(translation, mechanism);
  const shownLayer = Math.min(layer ?? layers - 1, layers - 1);
  const pick = (number) => {
    const start = (shownLayer * count + number) * rows * columns;
    return tensor.data.subarray(start, start + rows * columns);
  };
  const numbers = Array.from({ length: count }, (_, number) => number);
  let heads;
  if (head === "all") heads = numbers.map((number) => ({ number, weights: pick(number) }));
  else if (head === "mean") heads = [{ number: null, weights: mean(numbers.map(pick)) }];
  else heads = [{ number: Math.min(head, count - 1), weights: pick(Math.min(head, count - 1)) }];
  return {
    mechanism,
    layer: shownLayer,
    heads,
    queries: tokens.queries.slice(0, rows).map((token) => formatToken(token)),
    keys: tokens.keys.slice(0, columns).map((token) => formatToken(token)),
    end: scaleEnd(heads.reduce((largest, { weights }) => Math.max(largest, maximum(weights)), 0)),
  };
}

// The weight that hovering shows: of the head in the picture, or the mean of all.
export function weightAt(scene, query, key) {
  const place = query * scene.keys.length + key;
  return scene.heads.reduce((sum, { weights }) => sum + weights[place], 0) / scene.heads.length;
}

// [index, weight] of the largest weights of a query, or of a key.
export function largestWeights(scene, { query = null, key = null }, count = 3) {
  const length = query === null ? scene.queries.length : scene.keys.length;
  const weights = Array.from({ length }, (_, index) => [index, query === null ? weightAt(scene, index, key) : weightAt(scene, query, index)]);
  return weights.sort((a, b) => b[1] - a[1]).slice(0, count);
}

function mean(arrays) {
  const total = new Float32Array(arrays[0].length);
  for (const array of arrays) for (let index = 0; index < total.length; index++) total[index] += array[index] / arrays.length;
  return total;
}

function maximum(array) {
  let largest = 0;
  for (let index = 0; index < array.length; index++) if (array[index] > largest) largest = array[index];
  return largest;
}
