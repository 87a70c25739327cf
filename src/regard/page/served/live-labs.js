// Labs on a server: measured when they are asked for, with any parameters and any seed.

import { LabView } from "../ui/lab-view.js";
import { Parameters, SEED } from "./parameters.js";
import { element } from "../ui/dom.js";
import { formatNumber, t } from "../ui/texts.js";

export class LiveLabs extends LabView {
  constructor(page, root, api) {
    const parameters = new Parameters((name, value) => this.change({ [name]: value }));
    super(page, root, parameters.root);
    Object.assign(this, { api, parameters, values: {}, wanted: "", found: new Map(), isAsking: false, shownLab: null });
    this.message = element("p", { role: "status" }); // in the place of the plot
    this.stage.firstChild.prepend(this.message);
    this.section.hidden = true;
  }

  // The labs are listed when the tab is opened for the first time.
  async activate() {
    if (this.labs.length > 0) return;
    this.list.replaceChildren(element("p", { class: "status" }, t("loadingLog")));
    this.listed ??= this.api.get("/labs");
    try {
      const { labs, palettes } = await this.listed;
      if (this.labs.length > 0) return;
      Object.assign(this, { labs, palettes });
      this.section.hidden = false;
      this.restore(this.wanted) || this.open(0);
      this.render();
    } catch (error) {
      this.listed = undefined; // to be tried again
      this.list.replaceChildren(element("p", { class: "problem", role: "alert" }, t("failed", error.message)));
    }
  }

  get fields() {
    return { ...this.lab.parameters, seed: SEED };
  }

  get defaults() {
    return Object.fromEntries(Object.entries(this.fields).map(([name, field]) => [name, field.default]));
  }

  // --- the address ---

  get fragment() {
    if (this.lab === undefined) return this.wanted || "lab=";
    const changed = Object.entries(this.values).filter(([name, value]) => value !== this.fields[name].default);
    return new URLSearchParams({ lab: this.lab.name, ...Object.fromEntries(changed) }).toString();
  }

  restore(fragment) {
    const fields = new URLSearchParams(fragment);
    if (!fields.has("lab")) return false;
    this.wanted = fragment;
    if (this.labs.length === 0) return true;
    this.open(Math.max(0, this.labs.findIndex(({ name }) => name === fields.get("lab"))));
    for (const [name, field] of Object.entries(this.fields)) if (fields.has(name)) this.values[name] = parseValue(field, fields.get(name));
    this.render();
    return true;
  }

  open(lab) {
    this.current = lab;
    this.values = this.defaults;
  }

  change(values) {
    this.values = { ...this.values, ...values };
    this.page.setFragment(this.fragment);
    this.renderSetting();
  }

  // --- measuring ---

  // A lab that trains or times models takes long: it waits for the button.
  get isSlow() {
    return Object.keys(this.lab.quick).length > 0;
  }

  buildControls() {
    const { quick, absent } = this.lab;
    const go = (values) => () => this.change({ ...this.defaults, seed: this.values.seed, ...values });
    const buttons = [["toDefault", go({})], ["toAbsent", go(absent)]];
    this.parameters.build(this.fields, this.isSlow ? [...buttons, ["toQuick", go(quick)], ["measure", () => this.measure()]] : buttons);
  }

  // While it is measured again, what was found before stays; it goes if there is nothing to wait for.
  renderSetting() {
    const { result, plot, glyphs, seconds, problem } = this.found.get(this.fragment) ?? {};
    const waits = this.isAsking || !this.isSlow;
    const measured = result ? t("measuredNow", formatNumber(seconds, 2), this.values.seed) : "";
    this.parameters.update(this.values, waits && !problem && !result ? t("measuring") : measured);
    this.message.textContent = problem ?? (waits || result ? "" : t("measureHelp"));
    this.message.className = problem ? "problem" : "lab-message";
    this.section.classList.toggle("stale", !result && (Boolean(problem) || !waits || this.shownLab !== this.lab));
    if (result) {
      this.shownLab = this.lab;
      this.renderResult({ ...result, plot, glyphs });
    } else if (!problem && !this.isSlow) this.measure();
  }

  // One at a time; of those that wait, only the newest.
  async measure() {
    if (this.isAsking) return;
    this.isAsking = true;
    this.section.setAttribute("aria-busy", "true");
    this.parameters.note.textContent = t("measuring");
    for (let key = null; key !== this.fragment && !this.found.has(this.fragment); ) {
      key = this.fragment;
      const { seed, ...parameters } = this.values;
      try {
        this.found.set(key, await this.api.post(`/labs/${this.lab.name}`, { seed, parameters }));
      } catch (error) {
        this.found.set(key, { problem: t("failed", error.message) });
      }
      if (this.isSlow) break;
    }
    this.isAsking = false;
    this.section.setAttribute("aria-busy", "false");
    this.renderSetting();
  }
}

// What a stranger may have written into an address; the server checks it.
function parseValue({ type, default: usual }, text) {
  if (type === "boolean") return text === "true";
  if (type === "string") return text;
  const value = Number(text);
  return text !== "" && Number.isFinite(value) ? value : usual;
}
