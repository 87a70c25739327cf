// The parameters of a lab: a slider over the values that were measured, a switch for yes and no.

import { element } from "./dom.js";
import { formatValue } from "./grid.js";
import { t } from "./texts.js";

export class Sliders {
  // move(parameter, value): indices; show(point)
  constructor(move, show) {
    Object.assign(this, { move, showPoint: show, rows: [] });
    this.root = element("form", { class: "sliders", onsubmit: (event) => event.preventDefault() });
    this.note = element("p", { class: "quiet small", role: "status" });
  }

  // New controls, for another lab or language. buttons: [text, point]
  build(lab, buttons) {
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset.control : null;
    this.lab = lab;
    this.rows = lab.parameters.map((parameter, index) => this.makeRow(parameter, index));
    this.buttons = buttons.map(([text, point]) => [point, element("button", { type: "button", class: "action", "data-control": text, onclick: () => this.showPoint(point) }, t(text))]);
    this.root.replaceChildren(...this.rows.map(({ root }) => root), element("div", { class: "group" }, this.buttons.map(([, button]) => button)), this.note);
    if (focused) this.root.querySelector(`[data-control="${focused}"]`)?.focus({ preventScroll: true });
  }

  // The controls stay, so that a slider can be dragged.
  update(point, note) {
    this.rows.forEach(({ set }, index) => set(this.lab.points[point][index]));
    for (const [target, button] of this.buttons) button.setAttribute("aria-pressed", String(target === point));
    this.note.textContent = note;
  }

  makeRow(parameter, index) {
    const numeric = typeof parameter.values[0] === "number";
    const value = element("output", { hidden: !numeric });
    const { root, set } = numeric ? this.slider(parameter, index) : this.choice(parameter, index);
    const head = element("div", { class: "parameter-head" }, element("span", { class: "parameter-name" }, parameter.name), value);
    return {
      root: element("div", { class: "parameter" }, head, root, element("p", { class: "quiet small", id: `about-${index}` }, parameter.description)),
      set: (chosen) => {
        value.textContent = nameOf(parameter.values[chosen]);
        value.classList.toggle("unusual", chosen !== parameter.default);
        set(chosen);
      },
    };
  }

  slider({ name, values, default: usual }, index) {
    const texts = values.map(formatValue);
    const range = element("input", {
      type: "range",
      ...{ min: 0, max: values.length - 1, step: 1 },
      "data-control": `parameter-${index}`,
      "aria-label": name,
      "aria-describedby": `about-${index}`,
      oninput: ({ target }) => this.move(index, Number(target.value)),
    });
    const marks = texts.map((text, value) => element("span", { class: value === usual ? "usual" : "", onclick: () => this.move(index, value) }, text));
    const root = element("div", { class: "slider" }, range, element("div", { class: "marks", "aria-hidden": "true" }, marks));
    root.style.setProperty("--count", values.length);
    const set = (chosen) => {
      range.value = chosen;
      range.setAttribute("aria-valuetext", texts[chosen]);
    };
    return { root, set };
  }

  choice({ name, values }, index) {
    const inputs = values.map((_, number) =>
      element("input", { type: "radio", name: `choice-${index}`, value: number, "data-control": `parameter-${index}-${number}`, onchange: () => this.move(index, number) }),
    );
    const labels = values.map((value, number) => element("label", {}, inputs[number], element("span", {}, nameOf(value))));
    const root = element("div", { class: "segments", role: "radiogroup", "aria-label": name }, labels);
    return { root, set: (chosen) => (inputs[chosen].checked = true) };
  }
}

function nameOf(value) {
  return typeof value === "boolean" ? t(value ? "yes" : "no") : formatValue(value);
}
