// The tab of labs: claims that were measured at export, over a grid of values of their parameters.

import { PlotImage, assemblePlot, unpack } from "./plot.js";
import { decodePoint, encodePoint, nearestPoint, otherChanges } from "./grid.js";
import { element } from "./dom.js";
import { renderChecks, renderDerivation, renderTable, renderVerdict } from "./findings.js";
import { savePng, saveSvg } from "./save.js";
import { Sliders } from "./sliders.js";
import { t } from "./texts.js";

const ABSENT = 1; // the second point of every lab; the first is its default

export class Labs {
  // data: {labs, glyphs, palettes, seed}; page: shown (the theme), announce(text), setFragment(text), copyAddress()
  constructor(page, root, data) {
    Object.assign(this, { page, data, current: 0, point: 0, measured: new Map(), glyphs: null, plot: null });
    const part = (name, tag = "div") => (this[name] = element(tag, { class: name }));
    this.list = element("nav", { class: "lab-list" });
    this.image = new PlotImage(element("img", { class: "plot-image" }));
    this.frame = element("div", { class: "plot", tabindex: "0", role: "group" }, this.image.root);
    this.sliders = new Sliders((parameter, value) => this.move(parameter, value), (point) => this.show(point));
    this.code = element("code", {});
    part("saving").classList.add("picture-foot");
    const picture = element("div", { class: "lab-picture" }, this.frame, this.saving);
    const stage = element("div", { class: "lab-stage" }, picture, this.sliders.root);
    const text = element("div", { class: "lab-text" }, part("derivation"), part("table"));
    this.section = element("section", { class: "lab" }, part("claim", "h2"), part("verdict"), stage, part("checks"), text);
    root.replaceChildren(this.list, this.section);
    this.render();
  }

  get lab() {
    return this.data.labs[this.current];
  }

  get fragment() {
    return encodePoint(this.lab, this.point);
  }

  // Whether this fragment is one of a lab; if so, its lab is shown.
  restore(fragment) {
    const fields = new URLSearchParams(fragment);
    const points = this.data.labs.map((lab) => decodePoint(lab, fields));
    const found = points.findIndex((point) => point !== null);
    if (found < 0) return false;
    Object.assign(this, { current: found, point: points[found] });
    this.render();
    return true;
  }

  open(lab) {
    Object.assign(this, { current: lab, point: 0 });
    this.page.setFragment(this.fragment);
    this.render();
    this.list.children[lab].focus({ preventScroll: true });
  }

  show(point, moved = []) {
    this.point = point;
    this.page.setFragment(this.fragment);
    this.renderPoint(moved);
  }

  move(parameter, value) {
    const before = this.point;
    const { points, parameters } = this.lab;
    const after = nearestPoint(points, before, parameter, value);
    this.show(after, otherChanges(points, before, after, parameter).map((index) => parameters[index].name));
  }

  // --- showing ---

  render() {
    const { lab } = this;
    this.list.setAttribute("aria-label", t("tabLabs"));
    this.list.replaceChildren(
      ...this.data.labs.map(({ name }, index) =>
        element("button", { type: "button", "aria-current": index === this.current ? "true" : null, onclick: () => this.open(index) }, name),
      ),
    );
    const chosen = this.list.children[this.current];
    this.list.scrollLeft = chosen.offsetLeft - (this.list.clientWidth - chosen.offsetWidth) / 2; // on a phone it is one long row
    this.claim.textContent = lab.claim;
    this.frame.setAttribute("aria-label", t("plot"));
    this.sliders.build(lab, [["toDefault", 0], ["toAbsent", ABSENT]]);
    const actions = { saveSvg: () => this.save("svg"), savePng: () => this.save("png"), copyLink: () => this.copyLink() };
    this.saving.replaceChildren(
      this.code,
      element("div", { class: "saving" }, Object.entries(actions).map(([text, onclick]) => element("button", { type: "button", class: "link", onclick }, t(text)))),
    );
    renderDerivation(this.derivation, lab.derivation);
    this.renderPoint();
  }

  // moved: the names of parameters that had to return, for there is no measurement with them.
  async renderPoint(moved = []) {
    const { lab, point } = this;
    const measured = t(lab.complete ? "measuredAll" : "measuredOne", lab.points.length, this.data.seed);
    this.sliders.update(point, moved.length > 0 ? t("returned", moved.join(", ")) : measured);
    if (!this.measured.has(lab.name)) this.measured.set(lab.name, unpack(lab.results));
    this.glyphs ??= unpack(this.data.glyphs);
    this.section.setAttribute("aria-busy", "true");
    const [results, glyphs] = await Promise.all([this.measured.get(lab.name), this.glyphs]);
    if (lab !== this.lab || point !== this.point) return; // another one is shown by now
    const result = results[point];
    renderVerdict(this.verdict, result);
    renderChecks(this.checks, result);
    renderTable(this.table, result);
    this.code.textContent = result.command;
    this.result = { ...result, glyphs };
    this.renderPlot();
    this.section.setAttribute("aria-busy", "false");
    if (this.section.checkVisibility()) this.page.announce(this.verdict.textContent);
  }

  renderPlot() {
    if (!this.result) return;
    const { shown } = this.page;
    this.plot = assemblePlot(this.result.plot, shown, this.result.glyphs, this.data.palettes[shown]);
    this.image.show(this.plot, this.lab.claim);
  }

  copyLink() {
    this.page.setFragment(this.fragment);
    return this.page.copyAddress();
  }

  save(kind) {
    if (this.plot !== null) (kind === "svg" ? saveSvg : savePng)(this.plot, `regard-${this.lab.name}`);
  }
}
