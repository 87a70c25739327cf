// Interventions as lists of plain objects (see interventions.py), and what they changed.

import { formatToken } from "./dom.js";
import { mechanismTokens } from "./scene.js";
import { t } from "./texts.js";

const PLACE = ["what", "mechanism", "layer", "head", "step"];

// Add an intervention; it replaces one in the same place.
export function addIntervention(list, added) {
  const sameKeys = (one) => added.what !== "mask" || JSON.stringify(one.keys) === JSON.stringify(added.keys);
  const same = (one) => PLACE.every((name) => (one[name] ?? null) === (added[name] ?? null)) && sameKeys(one);
  return [...list.filter((one) => !same(one)), added];
}

// Another sentence has other positions: only whole heads and layers stay ablated.
export function keepForOtherText(list) {
  return list.filter(({ what, step }) => what === "ablate" && (step ?? null) === null);
}

export function isMasked(list, key) {
  return list.some(({ what, mechanism, layer, head, step, keys }) => {
    const everywhere = [layer, head, step].every((place) => (place ?? null) === null);
    return what === "mask" && (mechanism ?? "cross") === "cross" && everywhere && keys.length === 1 && keys[0] === key;
  });
}

export function isForced(list, step) {
  return list.some((one) => one.what === "force" && one.step === step);
}

export function describeIntervention(one, translation) {
  if (one.what === "force") return t("doForce", one.step + 1, formatToken(String(one.token)).text);
  const mechanism = one.mechanism ?? "cross";
  const tokens = translation === null ? { queries: [], keys: [] } : mechanismTokens(translation, mechanism);
  const name = (list, index) => (list[index] === undefined ? String(index + 1) : formatToken(list[index]).text);
  const keys = one.what === "mask" ? one.keys : Object.keys(one.weights ?? {}).map(Number);
  const keyNames = keys.map((key) => name(tokens.keys, key)).join(", ");
  const step = (one.step ?? null) === null ? t("everyStep") : name(tokens.queries, one.step);
  const what = { mask: t("doMask", keyNames), weights: t("doWeights", step, keyNames), ablate: t("doAblate") }[one.what];
  const layer = (one.layer ?? null) === null ? t("allLayers") : t("whereLayer", one.layer + 1);
  const head = (one.head ?? null) === null ? t("allHeads") : t("whereHead", one.head + 1);
  return `${what} (${t("where", t(mechanism), layer, head)})`;
}

// Which tokens of `after` are not part of the longest common subsequence with `before`.
export function markChanges(before, after) {
  const lengths = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i--) {
    for (let j = after.length - 1; j >= 0; j--) {
      const equal = before[i] === after[j];
      lengths[i][j] = equal ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const changed = new Array(after.length).fill(true);
  for (let i = 0, j = 0; i < before.length && j < after.length; ) {
    if (before[i] === after[j]) {
      changed[j] = false;
      i++;
      j++;
    } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return changed;
}
