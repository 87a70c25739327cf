/* The fields of interventions, as in regard/interventions.py: also for the view, which reads them from links. */

export const MAX_WEIGHT = 1000;
export const MECHANISMS = ["cross", "encoder", "decoder"];

const isIndex = (value) => Number.isInteger(value) && value >= 0;
const isOptionalIndex = (value) => value == null || isIndex(value);
const isWeight = (value) => Number.isFinite(value) && value >= 0 && value <= MAX_WEIGHT;

const PLACE_FIELDS = {
  mechanism: (value) => value === undefined || MECHANISMS.includes(value),
  layer: isOptionalIndex,
  head: isOptionalIndex,
  step: isOptionalIndex,
};

/** Whether a value is valid, by kind of intervention and field. */
const FIELDS = {
  force: { step: isIndex, token: (value) => typeof value === "string" },
  mask: { ...PLACE_FIELDS, keys: (value) => Array.isArray(value) && value.length > 0 && value.every(isIndex) },
  weights: { ...PLACE_FIELDS, weights: isWeightByKey },
  ablate: PLACE_FIELDS,
};

export const INTERVENTIONS = Object.keys(FIELDS);

function isWeightByKey(value) {
  if (value === null || typeof value !== "object") return false;
  const entries = Object.entries(value);
  return entries.length > 0 && entries.every(([key, weight]) => /^\d+$/.test(key) && isWeight(weight));
}

/** The first field of an intervention that is not valid, missing or unknown; null: all are valid. */
export function findBadField(intervention) {
  if (!INTERVENTIONS.includes(intervention?.what)) return "what";
  const { what, ...values } = intervention;
  const fields = FIELDS[what];
  const unknown = Object.keys(values).find((name) => !Object.hasOwn(fields, name));
  return unknown ?? Object.keys(fields).find((name) => !fields[name](values[name])) ?? null;
}
