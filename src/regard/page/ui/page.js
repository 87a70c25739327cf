// The page: connects to its models, and keeps state, address, tabs and panels in step.

import { Controls } from "./controls.js";
import { Panel } from "./panel.js";
import { TEXTS, setLanguage, t } from "./texts.js";
import { decodeState, encodeState, newPanel } from "./state.js";
import { element, readJson, setOptions } from "./dom.js";
import { keepForOtherText } from "./interventions.js";
import { mountTabs } from "./tabs.js";

const TRANSLATE = "tabTranslate";
const THEME_TEXTS = { auto: "themeAuto", light: "themeLight", dark: "themeDark" };

export class Page {
  // backend: connect(page, status) -> clients, openViews(page) -> {tab: view}, each with
  // root, fragment, restore(fragment), render(), redraw(), and maybe activate()
  constructor(backend) {
    this.backend = backend;
    this.views = {};
    this.themes = readJson("themes");
    this.preferDark = window.matchMedia("(prefers-color-scheme: dark)");
    this.root = document.getElementById("translate");
    this.panelRow = element("div", { class: "panels" });
    this.panels = [];
    this.fragment = null;
    this.setTheme(recall("theme") ?? "auto");
    this.setLanguage(recall("language") ?? navigator.language.slice(0, 2));
    this.preferDark.addEventListener("change", () => this.setTheme(this.theme));
    document.getElementById("language").addEventListener("change", ({ target }) => this.setLanguage(remember("language", target.value)));
    document.getElementById("theme").addEventListener("change", ({ target }) => this.setTheme(remember("theme", target.value)));
    window.addEventListener("hashchange", () => this.restore());
  }

  async load() {
    const status = element("p", { class: "status" }, t("loading"));
    this.root.replaceChildren(status);
    try {
      this.mount(await this.backend.openViews(this));
      this.clients = await this.backend.connect(this, status);
      const models = await Promise.all(this.clients.map(({ ready }) => ready));
      if (models.length === 0) return status.remove(); // a page of labs
      this.models = models;
    } catch (error) {
      status.textContent = t("failed", error.message);
      return;
    }
    this.controls = new Controls(this, (kind, value) => this.onChange(kind, value));
    this.root.replaceChildren(...(this.models[0].recorded ? [] : [this.controls.root]), this.panelRow);
    this.restore();
    new ResizeObserver(() => this.redraw()).observe(this.panelRow);
  }

  // --- state and address ---

  restore() {
    const fragment = window.location.hash.slice(1);
    if (fragment === "main" || (fragment === this.fragment && this.state)) return;
    const tabs = Object.keys(this.views);
    const tab = tabs.find((key) => this.views[key].restore(fragment)) ?? (this.backend.hasModels ? TRANSLATE : tabs[0]);
    this.openTab?.(tab);
    this.views[tab]?.activate?.();
    if (!this.models || (tab !== TRANSLATE && this.state)) return;
    this.state = decodeState(fragment, this.models);
    this.fragment = fragment;
    this.controls.show();
    this.showPanels();
    this.refresh();
  }

  changed() {
    this.setFragment(encodeState(this.state, this.models));
  }

  setFragment(fragment) {
    this.fragment = fragment;
    try {
      window.history.replaceState(null, "", `#${this.fragment}`);
    } catch {
      // A notebook's frame has no address of its own.
    }
  }

  onChange(kind, value) {
    if (kind === "text") {
      for (const panel of this.state.panels) panel.interventions = keepForOtherText(panel.interventions);
    }
    if (kind === "panels") {
      const other = this.models.length > 1 ? (this.state.panels[0].model + 1) % this.models.length : 0;
      this.state.panels = value ? [this.state.panels[0], newPanel(other)] : this.state.panels.slice(0, 1);
      this.showPanels();
    }
    const { decoding } = this.state;
    for (const panel of this.state.panels) if (panel.view === "tree" && decoding.kind !== "beam") panel.view = "heatmap";
    this.changed();
    this.refresh();
  }

  refresh() {
    for (const panel of this.panels) panel.refresh();
  }

  showPanels() {
    this.panels = this.state.panels.map((_, index) => this.panels[index] ?? new Panel(this, index));
    this.panelRow.replaceChildren(...this.panels.map(({ root }) => root));
    for (const panel of this.panels) panel.render();
  }

  redraw() {
    for (const panel of this.panels) if (panel.translation !== null) panel.renderPicture();
  }

  // --- theme, language, tabs ---

  setTheme(theme) {
    this.theme = theme in THEME_TEXTS ? theme : "auto";
    this.shown = this.theme === "auto" ? (this.preferDark.matches ? "dark" : "light") : this.theme;
    document.documentElement.dataset.theme = this.shown;
    this.redraw();
    for (const view of Object.values(this.views)) view.redraw();
  }

  setLanguage(name) {
    document.documentElement.lang = setLanguage(name);
    for (const node of document.querySelectorAll("[data-text]")) node.textContent = t(node.dataset.text);
    setOptions(document.getElementById("language"), Object.entries(TEXTS).map(([code, { languageName }]) => [code, languageName]), document.documentElement.lang);
    setOptions(document.getElementById("theme"), Object.entries(THEME_TEXTS).map(([key, text]) => [key, t(text)]), this.theme);
    this.controls?.show();
    for (const panel of this.panels) panel.render();
    for (const view of Object.values(this.views)) view.render();
  }

  colours() {
    return this.themes[this.shown];
  }

  // Pictures grow with the type.
  unit() {
    return parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
  }

  // Other views than translating: in tabs, or one alone.
  mount(views) {
    this.views = views;
    const sections = Object.fromEntries(Object.entries(views).map(([key, { root }]) => [key, root]));
    const all = this.backend.hasModels ? { [TRANSLATE]: this.root, ...sections } : sections;
    if (Object.keys(all).length > 1) this.openTab = mountTabs(document.getElementById("tabs"), all, (key) => this.onTab(key));
    else for (const root of Object.values(sections)) root.hidden = false;
    if (Object.keys(views).length > 0) this.restore();
  }

  onTab(key) {
    const view = this.views[key];
    if (view) this.setFragment(view.fragment);
    else if (this.state) this.changed();
    view?.activate?.();
    this.redraw();
  }

  // --- for the panels ---

  announce(text) {
    document.getElementById("announce").textContent = text;
  }

  copyLink() {
    this.changed();
    return this.copyAddress();
  }

  async copyAddress() {
    try {
      await navigator.clipboard.writeText(window.location.href);
      this.announce(t("linkCopied"));
    } catch {
      this.announce(window.location.href); // the address bar has it
    }
  }
}

function recall(name) {
  try {
    return window.localStorage.getItem(`regard-${name}`);
  } catch {
    return null; // not allowed here
  }
}

function remember(name, value) {
  try {
    window.localStorage.setItem(`regard-${name}`, value);
  } catch {
    // not allowed here
  }
  return value;
}
