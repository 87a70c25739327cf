// What pointing at a place of a picture shows: tinted tokens, and a line of text.

import { formatNumber, t } from "./texts.js";
import { largestWeights, weightAt } from "./scene.js";

// Tint the keys that a query attends to, or the queries that attend to a key.
export function tintRows(scene, source, output, { query, key }) {
  const queryRow = scene.mechanism === "encoder" ? source : output;
  const keyRow = scene.mechanism === "decoder" ? output : source;
  const shift = scene.mechanism === "decoder" ? 1 : 0; // the decoder's first key is BOS
  const toKey = (index) => (index + shift < scene.keys.length ? weightAt(scene, query, index + shift) : 0);
  const chosenKey = key === null ? null : key - shift;
  for (const row of [source, output]) {
    if (query !== null && row === keyRow) row.tint(toKey, row === queryRow ? query : chosenKey);
    else if (query === null && key !== null && row === queryRow) row.tint((index) => weightAt(scene, index, key), row === keyRow ? chosenKey : null);
    else row.tint(null, row === queryRow ? query : row === keyRow ? chosenKey : null);
  }
}

export function describePlace(scene, { query, key }) {
  const list = (labels, weights) => weights.map(([index, weight]) => `${labels[index].text} ${formatNumber(weight, 2)}`).join(", ");
  if (query !== null && key !== null) return t("readout", scene.queries[query].text, scene.keys[key].text, formatNumber(weightAt(scene, query, key), 3));
  if (query !== null) return t("readoutQuery", scene.queries[query].text, list(scene.keys, largestWeights(scene, { query })));
  if (key !== null) return t("readoutKey", scene.keys[key].text, list(scene.queries, largestWeights(scene, { key })));
  return t("readoutHelp");
}
