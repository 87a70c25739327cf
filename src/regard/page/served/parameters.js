// The parameters of a lab on a server: any value, typed or by a slider over the whole range.

import { element } from "../ui/dom.js";
import { formatValue } from "../ui/grid.js";
import { t } from "../ui/texts.js";

const MOST_VALUES = 64; // of a slider that stops at each
const SLIDER_STEPS = 300; // of others
const CURVE = 3; // the first half of a slider is an eighth of the range: small values matter

export const SEED = { type: "integer", default: 0, minimum: 0, maximum: 2 ** 31 - 1 };

export class Parameters {
  // change(name, value)
  constructor(change) {
    Object.assign(this, { change, rows: {} });
    this.root = element("form", { class: "sliders free", onsubmit: (event) => event.preventDefault() });
    this.note = element("p", { class: "quiet small", role: "status" });
  }

  // fields: JSON schemas by name; buttons: [text, onclick]
  build(fields, buttons) {
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset.control : null;
    const rows = Object.entries(fields).map(([name, field]) => [name, this.makeRow(name, field)]);
    this.rows = Object.fromEntries(rows);
    const actions = buttons.map(([text, onclick]) => element("button", { type: "button", class: "action", "data-control": text, onclick }, t(text)));
    this.root.replaceChildren(...rows.map(([, { root }]) => root), element("div", { class: "group" }, actions), this.note);
    if (focused) this.root.querySelector(`[data-control="${focused}"]`)?.focus({ preventScroll: true });
  }

  update(values, note) {
    for (const [name, { set }] of Object.entries(this.rows)) set(values[name]);
    this.note.textContent = note;
  }

  makeRow(name, field) {
    const choices = field.type === "boolean" ? [false, true] : field.enum;
    const { input, below, set } = choices ? this.choice(name, choices) : this.input(name, field);
    const about = element("p", { class: "quiet small", id: `about-${name}` }, name === "seed" ? t("aboutSeed") : (field.description ?? ""));
    const head = element("div", { class: "parameter-head" }, element("label", { class: "parameter-name", for: choices ? null : `parameter-${name}` }, name), input);
    return { root: element("div", { class: "parameter" }, head, below, about), set };
  }

  // A number, or a text.
  input(name, field) {
    const isNumber = field.type !== "string";
    const { minimum: min, maximum: max, multipleOf } = field;
    const read = (text) => (isNumber ? Number(text) : text.trim());
    const input = element("input", {
      ...{ type: isNumber ? "number" : "text", id: `parameter-${name}`, "data-control": name, "aria-describedby": `about-${name}` },
      ...(isNumber ? { min, max, step: field.type === "integer" ? (multipleOf ?? 1) : "any" } : {}),
      onchange: ({ target }) => target.value.trim() !== "" && this.change(name, read(target.value)),
    });
    const slider = isNumber && name !== "seed" ? this.slider(name, field) : null;
    const set = (value) => {
      input.value = value;
      input.classList.toggle("unusual", value !== field.default);
      slider?.set(value);
    };
    return { input, below: slider?.root ?? null, set };
  }

  slider(name, field) {
    const least = field.minimum ?? field.exclusiveMinimum;
    const width = field.maximum - least;
    const values = field.type === "integer" ? width / (field.multipleOf ?? 1) : Infinity;
    const [steps, curve] = values <= MOST_VALUES ? [values, 1] : [SLIDER_STEPS, CURVE];
    const range = element("input", {
      ...{ type: "range", min: field.minimum === undefined ? 1 : 0, max: steps, step: 1, "data-control": `slider-${name}`, "aria-label": name },
      oninput: ({ target }) => this.change(name, roundTo(field, least + width * (Number(target.value) / steps) ** curve)),
    });
    const set = (value) => {
      if (document.activeElement !== range) range.value = Math.round(steps * Math.max(0, (value - least) / width) ** (1 / curve));
      range.setAttribute("aria-valuetext", formatValue(value));
    };
    return { root: element("div", { class: "slider" }, range), set };
  }

  choice(name, values) {
    const inputs = values.map((value, index) =>
      element("input", { type: "radio", name: `choice-${name}`, value: index, "data-control": `${name}-${index}`, onchange: () => this.change(name, value) }),
    );
    const labels = values.map((value, index) => element("label", {}, inputs[index], element("span", {}, typeof value === "boolean" ? t(value ? "yes" : "no") : value)));
    const input = element("div", { class: "segments", role: "radiogroup", "aria-label": name }, labels);
    return { input, below: null, set: (value) => inputs.forEach((one, index) => (one.checked = values[index] === value)) };
  }
}

function roundTo({ type, multipleOf = 1 }, value) {
  return type === "integer" ? Math.round(value / multipleOf) * multipleOf : Number(value.toPrecision(3));
}
