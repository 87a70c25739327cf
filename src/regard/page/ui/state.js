// The state of the view, and the fragment of the address that restores it:
//
//   #text=Guten Tag&decoding=beam&beam=5&model=de-en&layer=4&head=2&interventions=[...]&model2=...
//
// Keys of the second panel end with 2. Layers and heads count from 1, as on the screen.

import { MECHANISMS, findBadField } from "../engine/fields.js";

export const DECODINGS = ["greedy", "beam", "sample"];
export const VIEWS = ["heatmap", "lines", "tree"];

export function newPanel(model) {
  return { model, view: "heatmap", mechanism: "cross", layer: null, head: "mean", interventions: [] };
}

export function newState(models) {
  return {
    text: models[0]?.examples[0] ?? "",
    target: null, // a translation by hand
    decoding: { kind: "greedy", beam: 5, temperature: 1, topK: null, topP: null, seed: 0 },
    panels: models.slice(0, models[0]?.recorded ? 1 : 2).map((_, index) => newPanel(index)),
  };
}

export function toDecoding({ kind, beam, temperature, topK, topP, seed }) {
  if (kind === "beam") return { beam, nbest: 1, sample: null };
  if (kind === "sample") return { beam: 1, nbest: 1, sample: { temperature, top_k: topK, top_p: topP, seed } };
  return { beam: 1, nbest: 1, sample: null };
}

export function encodeState(state, models) {
  const fields = new URLSearchParams();
  fields.set("text", state.text);
  if (state.target !== null) fields.set("target", state.target);
  const { decoding } = state;
  fields.set("decoding", decoding.kind);
  if (decoding.kind === "beam") fields.set("beam", decoding.beam);
  if (decoding.kind === "sample") {
    for (const name of ["temperature", "topK", "topP", "seed"]) if (decoding[name] !== null) fields.set(name, decoding[name]);
  }
  state.panels.forEach((panel, index) => {
    const set = (name, value) => fields.set(index === 0 ? name : `${name}${index + 1}`, value);
    set("model", models[panel.model].name);
    set("view", panel.view);
    set("mechanism", panel.mechanism);
    if (panel.layer !== null) set("layer", panel.layer + 1);
    set("head", typeof panel.head === "number" ? panel.head + 1 : panel.head);
    if (panel.interventions.length > 0) set("interventions", JSON.stringify(panel.interventions));
  });
  return fields.toString();
}

// A fragment is what a stranger may have written: whatever is not valid is left out.
export function decodeState(fragment, models) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const state = newState(models);
  if (!fields.has("text")) return state;
  const number = (name, least, most) => {
    const value = fields.has(name) ? Number(fields.get(name)) : NaN;
    return value >= least && value <= most ? value : null;
  };
  const integer = (name, least, most) => {
    const value = number(name, least, most);
    return Number.isInteger(value) ? value : null;
  };
  const choice = (name, allowed) => (allowed.includes(fields.get(name)) ? fields.get(name) : allowed[0]);
  state.text = fields.get("text");
  state.target = fields.get("target");
  state.decoding = {
    kind: choice("decoding", DECODINGS),
    beam: integer("beam", 1, 32) ?? 5,
    temperature: number("temperature", 0.01, 10) ?? 1,
    topK: integer("topK", 1, 1e6),
    topP: number("topP", 0.001, 1),
    seed: integer("seed", 0, 2 ** 31) ?? 0,
  };
  state.panels = ["", "2"].flatMap((suffix) => {
    const model = models.findIndex(({ name }) => name === fields.get(`model${suffix}`));
    if (model < 0 && suffix !== "") return [];
    const layer = integer(`layer${suffix}`, 1, 1000);
    const head = integer(`head${suffix}`, 1, 1000);
    return {
      model: Math.max(0, model),
      view: choice(`view${suffix}`, VIEWS),
      mechanism: choice(`mechanism${suffix}`, MECHANISMS),
      layer: layer === null ? null : layer - 1,
      head: head === null ? choice(`head${suffix}`, ["mean", "all"]) : head - 1,
      interventions: parseInterventions(fields.get(`interventions${suffix}`), models[Math.max(0, model)].heads),
    };
  });
  return state;
}

function parseInterventions(text, heads) {
  const isValid = (one) => findBadField(one) === null && (one.what === "force" || hasPlace(heads, one));
  try {
    const list = JSON.parse(text ?? "[]");
    return Array.isArray(list) ? list.filter(isValid).slice(0, 200) : [];
  } catch {
    return [];
  }
}

// Whether a model has these heads; steps and keys depend on the text, and the engine checks them.
function hasPlace(heads, { mechanism = "cross", layer, head }) {
  if (!Object.hasOwn(heads, mechanism)) return false;
  const [layers, count] = heads[mechanism];
  return (layer ?? 0) < layers && (head ?? 0) < count;
}
