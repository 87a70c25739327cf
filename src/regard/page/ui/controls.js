// What is translated and how: the sentence, examples, decoding, a translation by hand, one or two models.

import { DECODINGS } from "./state.js";
import { direction, element, setOptions } from "./dom.js";
import { t } from "./texts.js";

const DELAY = 250; // milliseconds after the last key

export class Controls {
  // page: models, state; changed(kind) with kind "text", "decoding" or "panels"
  constructor(page, changed) {
    this.page = page;
    this.changed = changed;
    this.timer = null;
    this.root = element("form", { class: "controls", onsubmit: (event) => event.preventDefault() });
    this.text = this.textArea("input", (value) => (page.state.text = value), "text");
    this.target = this.textArea("target", (value) => (page.state.target = value), "decoding");
  }

  textArea(name, store, kind) {
    return element("textarea", {
      id: name,
      rows: "1",
      dir: "auto",
      spellcheck: "false",
      autocomplete: "off",
      oninput: ({ target }) => {
        grow(target);
        clearTimeout(this.timer);
        this.timer = setTimeout(() => {
          store(target.value);
          this.changed(kind);
        }, DELAY);
      },
    });
  }

  show() {
    const { state, models } = this.page;
    const examples = [...new Set(state.panels.flatMap(({ model }) => models[model].examples))];
    const parts = [
      element("label", { class: "sentence" }, element("span", { class: "title" }, t("inputLabel")), this.text),
      element("div", { class: "options" },
        examples.length > 0 ? this.exampleList(examples) : null,
        this.decodings(),
        ...this.decodingFields(),
        element("span", { class: "space" }),
        this.check("byHand", state.target !== null, (on) => this.setByHand(on)),
        this.check("compare", state.panels.length > 1, (on) => this.changed("panels", on)),
      ),
      state.target !== null && element("label", { class: "sentence second" }, element("span", { class: "title" }, t("byHandLabel")), this.target),
    ];
    const active = this.root.contains(document.activeElement) ? document.activeElement : null;
    const focused = active?.dataset.control ?? active?.id;
    this.root.replaceChildren(...parts.filter(Boolean));
    this.fillText(this.text, state.text, "inputPlaceholder");
    this.fillText(this.target, state.target ?? "", "byHandPlaceholder");
    if (focused) this.root.querySelector(`[data-control="${focused}"], textarea[id="${focused}"]`)?.focus({ preventScroll: true });
  }

  fillText(area, value, placeholder) {
    if (area.value !== value) area.value = value;
    area.placeholder = t(placeholder);
    grow(area);
  }

  exampleList(examples) {
    const select = element("select", { "data-control": "example", onchange: ({ target }) => this.takeExample(target.value) });
    setOptions(select, [["", t("exampleChoose")], ...examples.map((text) => [text, text])], examples.includes(this.page.state.text) ? this.page.state.text : "");
    return element("label", { class: "field example" }, element("span", {}, t("example")), select);
  }

  takeExample(text) {
    if (text === "") return;
    clearTimeout(this.timer);
    this.page.state.text = text;
    this.fillText(this.text, text, "inputPlaceholder");
    this.changed("text");
  }

  setByHand(on) {
    this.page.state.target = on ? "" : null;
    this.show();
    if (on) this.target.focus();
    this.changed("decoding");
  }

  decodings() {
    const { decoding } = this.page.state;
    const choices = DECODINGS.map((kind) =>
      element("label", {},
        element("input", { type: "radio", name: "decoding", value: kind, checked: kind === decoding.kind, "data-control": `decoding-${kind}`, onchange: () => this.setDecoding({ kind }) }),
        element("span", {}, t(kind)),
      ),
    );
    return element("div", { class: "segments", role: "radiogroup", "aria-label": t("decoding") }, choices);
  }

  decodingFields() {
    const { decoding } = this.page.state;
    if (decoding.kind === "beam") return [this.number("beam", "beamWidth", { min: 1, max: 32, step: 1 })];
    if (decoding.kind !== "sample") return [];
    return [
      this.number("temperature", "temperature", { min: 0.1, max: 5, step: 0.1 }),
      this.number("topK", "topK", { min: 1, max: 1000, step: 1, placeholder: t("all") }),
      this.number("topP", "topP", { min: 0.05, max: 1, step: 0.05, placeholder: t("all") }),
      this.number("seed", "seed", { min: 0, max: 1000000, step: 1 }),
    ];
  }

  number(name, label, limits) {
    const value = this.page.state.decoding[name];
    const store = ({ target }) => {
      if (target.value === "" && "placeholder" in limits) return this.setDecoding({ [name]: null });
      const number = Number(target.value);
      const valid = target.value !== "" && number >= limits.min && number <= limits.max && (limits.step !== 1 || Number.isInteger(number));
      if (valid) this.setDecoding({ [name]: number });
      else target.value = this.page.state.decoding[name] ?? "";
    };
    const input = element("input", { type: "number", "data-control": name, value: value ?? "", ...limits, onchange: store });
    return element("label", { class: "field" }, element("span", {}, t(label)), input);
  }

  check(key, checked, choose) {
    const input = element("input", { type: "checkbox", "data-control": key, checked, onchange: ({ target }) => choose(target.checked) });
    return element("label", { class: "check" }, input, element("span", {}, t(key)));
  }

  setDecoding(changes) {
    Object.assign(this.page.state.decoding, changes);
    this.show();
    this.changed("decoding");
  }
}

function grow(area) {
  area.dir = direction(area.value);
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}
