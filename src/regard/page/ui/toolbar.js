// The controls above a picture: view, mechanism, layer, head, painting, ablating, saving.

import { element, setOptions } from "./dom.js";
import { MECHANISMS } from "./scene.js";
import { VIEWS } from "./state.js";
import { t } from "./texts.js";

export class Toolbar {
  // actions: set(changes), play(), ablate(), save("svg" or "png"), link()
  constructor(actions, name) {
    this.actions = actions;
    this.name = name;
    this.painting = false;
    this.scope = "all";
    this.root = element("div", { class: "toolbar" });
  }

  show(settings, info, { hasTree, playing, layer }) {
    const focused = document.activeElement?.dataset?.control;
    const { set } = this.actions;
    const [layers, heads] = info.heads[settings.mechanism] ?? [0, 0];
    const views = VIEWS.filter((view) => view !== "tree" || hasTree || settings.view === "tree");
    const numbers = (count, label) => Array.from({ length: count }, (_, index) => [index, label(index + 1)]);
    const picture = settings.view !== "tree" && layers > 0;
    const oneHead = typeof settings.head === "number";
    const controls = [
      this.segments("view", views, settings.view, (view) => set({ view })),
      picture && this.select("mechanism", MECHANISMS.filter((name) => name in info.heads).map((name) => [name, t(name)]), settings.mechanism, (mechanism) => set({ mechanism })),
      picture && this.select("layer", numbers(layers, String), layer, (value) => set({ layer: Number(value) })),
      picture && this.select("head", [["mean", t("headMean")], ["all", t("headAll")], ...numbers(heads, String)], settings.head, (value) => set({ head: Number.isNaN(Number(value)) ? value : Number(value) })),
      this.button("play", t(playing ? "stop" : "play"), this.actions.play),
      element("span", { class: "space" }),
      picture && this.button("paint", t("paint"), () => this.togglePainting(), { "aria-pressed": String(this.painting), title: t("paintHelp") }),
      picture && this.select("scope", [["head", t("scopeHead"), !oneHead], ["layer", t("scopeLayer")], ["all", t("scopeAll")]], this.scope === "head" && !oneHead ? "layer" : this.scope, (scope) => (this.scope = scope)),
      picture && settings.head !== "all" && this.button("ablate", oneHead ? t("ablateHead", settings.head + 1) : t("ablateLayer"), this.actions.ablate),
      element("span", { class: "space" }),
      this.button("svg", t("saveSvg"), () => this.actions.save("svg")),
      this.button("png", t("savePng"), () => this.actions.save("png")),
      this.button("link", t("copyLink"), this.actions.link),
    ];
    this.root.replaceChildren(...controls.filter(Boolean));
    if (focused) this.root.querySelector(`[data-control="${focused}"]`)?.focus({ preventScroll: true });
  }

  togglePainting() {
    this.painting = !this.painting;
    this.root.querySelector('[data-control="paint"]').setAttribute("aria-pressed", String(this.painting));
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
