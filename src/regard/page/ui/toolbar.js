// The controls above a picture: view, mechanism, layer, head, painting, ablating, saving.

import { element, setOptions } from "./dom.js";
import { MECHANISMS } from "../engine/fields.js";
import { VIEWS } from "./state.js";
import { t } from "./texts.js";

export class Toolbar {
  // actions: set(changes), ablate(), save("svg" or "png"), link()
  constructor(actions, name) {
    this.actions = actions;
    this.name = name;
    this.painting = false;
    this.scope = "all";
    this.root = element("div", { class: "toolbar" });
    this.saving = element("div", { class: "saving" });
  }

  show(settings, info, { hasTree, layer }) {
    const inside = this.root.contains(document.activeElement) || this.saving.contains(document.activeElement);
    const focused = inside ? document.activeElement.dataset.control : null;
    const { set } = this.actions;
    const [layers, heads] = info.heads[settings.mechanism] ?? [0, 0];
    const views = VIEWS.filter((view) => view !== "tree" || hasTree || settings.view === "tree");
    const numbers = (count, label) => Array.from({ length: count }, (_, index) => [index, label(index + 1)]);
    const picture = settings.view !== "tree" && layers > 0;
    const oneHead = typeof settings.head === "number";
    const can = picture && !info.recorded; // change anything
    const reading = [
      this.segments("view", views, settings.view, (view) => set({ view })),
      picture && this.select("mechanism", MECHANISMS.filter((name) => name in info.heads).map((name) => [name, t(name)]), settings.mechanism, (mechanism) => set({ mechanism })),
      picture && this.select("layer", numbers(layers, String), layer, (value) => set({ layer: Number(value) })),
      picture && this.select("head", [["mean", t("headMean")], ["all", t("headAll")], ...numbers(heads, String)], settings.head, (value) => set({ head: Number.isNaN(Number(value)) ? value : Number(value) })),
    ];
    const interventions = [
      can && settings.view === "heatmap" && settings.head !== "all" && this.button("paint", t("paint"), () => this.togglePainting(), { "aria-pressed": String(this.painting), title: t("paintHelp") }),
      can && this.select("scope", [["head", t("scopeHead"), !oneHead], ["layer", t("scopeLayer")], ["all", t("scopeAll")]], this.scope === "head" && !oneHead ? "layer" : this.scope, (scope) => (this.scope = scope)),
      can && settings.head !== "all" && this.button("ablate", oneHead ? t("ablateHead", settings.head + 1) : t("ablateLayer"), this.actions.ablate),
    ];
    const saving = [
      this.button("svg", t("saveSvg"), () => this.actions.save("svg"), { class: "link" }),
      this.button("png", t("savePng"), () => this.actions.save("png"), { class: "link" }),
      window.location.protocol !== "about:" && this.button("link", t("copyLink"), this.actions.link, { class: "link" }), // a notebook's frame has no address
    ].filter(Boolean);
    const group = (controls) => element("div", { class: "group" }, controls.filter(Boolean));
    this.root.replaceChildren(group(reading), group(interventions));
    this.saving.replaceChildren(...saving);
    if (focused) this.find(focused)?.focus({ preventScroll: true });
  }

  togglePainting() {
    this.painting = !this.painting;
    this.find("paint").setAttribute("aria-pressed", String(this.painting));
  }

  find(control) {
    return this.root.querySelector(`[data-control="${control}"]`) ?? this.saving.querySelector(`[data-control="${control}"]`);
  }

  // Where a change in the picture applies: a head, a layer, or everything.
  placeOfChange(scene, settings) {
    const oneHead = typeof settings.head === "number";
    return {
      mechanism: scene.mechanism,
      layer: this.scope === "all" ? null : scene.layer,
      head: this.scope === "head" && oneHead ? settings.head : null,
    };
  }

  segments(key, values, chosen, choose) {
    const inputs = values.map((value) =>
      element("label", {},
        element("input", { type: "radio", name: `${this.name}-${key}`, value, checked: value === chosen, "data-control": `${key}-${value}`, onchange: () => choose(value) }),
        element("span", {}, t(value)),
      ),
    );
    return element("div", { class: "segments", role: "radiogroup", "aria-label": t(key) }, inputs);
  }

  select(key, options, chosen, choose) {
    const select = element("select", { "data-control": key, onchange: (event) => choose(event.target.value) });
    setOptions(select, options, chosen);
    return element("label", { class: "field" }, element("span", {}, t(key)), select);
  }

  button(key, label, onclick, properties = {}) {
    return element("button", { type: "button", "data-control": key, onclick: () => onclick(), ...properties }, label);
  }
}
