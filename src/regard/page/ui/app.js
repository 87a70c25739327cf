// The page: loads the models into workers, and keeps state, address and panels in step.

import { Client, decodeBase64 } from "./client.js";
import { Controls } from "./controls.js";
import { Panel } from "./panel.js";
import { TEXTS, setLanguage, t } from "./texts.js";
import { decodeState, encodeState, newPanel } from "./state.js";
import { element, readJson, setOptions } from "./dom.js";
import { keepForOtherText } from "./interventions.js";
import { mountLabs } from "./labs.js";

const THEME_TEXTS = { auto: "themeAuto", light: "themeLight", dark: "themeDark" };

class Page {
  constructor() {
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
    this.showTabs();
  }

  async load() {
    const status = element("p", { class: "status" }, t("loading"));
    this.root.replaceChildren(status);
    const [engine, manifests] = [readJson("engine"), readJson("models")];
    try {
      this.clients = manifests.map((manifest, index) => new Client(engine, manifest, takeWeights(index)));
      this.models = await Promise.all(this.clients.map(({ ready }) => ready));
    } catch (error) {
      status.textContent = t("failed", error.message);
      return;
    }
    this.controls = new Controls(this, (kind, value) => this.onChange(kind, value));
    this.root.replaceChildren(this.controls.root, this.panelRow);
    this.restore();
    window.addEventListener("hashchange", () => this.restore());
    new ResizeObserver(() => this.redraw()).observe(this.panelRow);
  }

  // --- state and address ---

  restore() {
    const fragment = window.location.hash.slice(1);
    if (fragment === this.fragment && this.state) return;
    if (fragment === "main") return;
    this.state = decodeState(fragment, this.models);
    this.fragment = fragment;
    this.controls.show();
    this.showPanels();
    this.refresh();
  }

  changed() {
    this.fragment = encodeState(this.state, this.models);
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
  }

  setLanguage(name) {
    document.documentElement.lang = setLanguage(name);
    for (const node of document.querySelectorAll("[data-text]")) node.textContent = t(node.dataset.text);
    setOptions(document.getElementById("language"), Object.entries(TEXTS).map(([code, { languageName }]) => [code, languageName]), document.documentElement.lang);
    setOptions(document.getElementById("theme"), Object.entries(THEME_TEXTS).map(([key, text]) => [key, t(text)]), this.theme);
    this.controls?.show();
    for (const panel of this.panels) panel.render();
  }

  colours() {
    return this.themes[this.shown];
  }

  // Pictures grow with the type.
  unit() {
    return parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
  }

  showTabs() {
    const labs = readJson("labs");
    if (labs === null) return;
    const tabs = document.getElementById("tabs");
    const sections = { tabTranslate: this.root, tabLabs: document.getElementById("labs-tab") };
    const open = (chosen) => {
      for (const button of tabs.children) {
        const current = button.dataset.text === chosen;
        button.setAttribute("aria-selected", String(current));
        button.tabIndex = current ? 0 : -1;
        sections[button.dataset.text].hidden = !current;
      }
      this.redraw();
    };
    for (const [key, section] of Object.entries(sections)) {
      section.setAttribute("role", "tabpanel");
      section.setAttribute("aria-labelledby", key);
      tabs.append(element("button", { type: "button", role: "tab", id: key, "data-text": key, "aria-controls": section.id, onclick: () => open(key) }, t(key)));
    }
    tabs.addEventListener("keydown", ({ key }) => {
      if (key !== "ArrowLeft" && key !== "ArrowRight") return;
      const other = tabs.querySelector('[aria-selected="false"]');
      open(other.dataset.text);
      other.focus();
    });
    mountLabs(sections.tabLabs, labs);
    tabs.hidden = false;
    open("tabTranslate");
  }

  // --- for the panels ---

  announce(text) {
    document.getElementById("announce").textContent = text;
  }

  async copyLink() {
    this.changed();
    try {
      await navigator.clipboard.writeText(window.location.href);
      this.announce(t("linkCopied"));
    } catch {
      this.announce(window.location.href); // the address bar has it
    }
  }
}

function takeWeights(index) {
  const node = document.getElementById(`weights-${index}`);
  const weights = decodeBase64(node.textContent);
  node.remove();
  return weights;
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

new Page().load();
