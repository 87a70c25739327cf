// The tab of labs: a claim, its plot, its parameters, what was measured, the derivation. Where results come from
// is for subclasses: from the file, or from a server.

import { PlotImage, assemblePlot } from "./plot.js";
import { element } from "./dom.js";
import { renderChecks, renderDerivation, renderTable, renderVerdict } from "./findings.js";
import { savePng, saveSvg } from "./save.js";
import { t } from "./texts.js";

export class LabView {
  // page: shown (the theme), announce(text), setFragment(text), copyAddress(); controls: the element of the parameters
  // A subclass has `fragment`, open(lab), buildControls() and renderSetting().
  constructor(page, root, controls) {
    Object.assign(this, { page, root, labs: [], palettes: {}, current: 0, result: null, plot: null });
    const part = (name, tag = "div") => (this[name] = element(tag, { class: name }));
    this.list = element("nav", { class: "lab-list" });
    this.image = new PlotImage(element("img", { class: "plot-image" }));
    this.frame = element("div", { class: "plot", tabindex: "0", role: "group" }, this.image.root);
    this.code = element("code", {});
    part("saving").classList.add("picture-foot");
    const picture = element("div", { class: "lab-picture" }, this.frame, this.saving);
    this.stage = element("div", { class: "lab-stage" }, picture, controls);
    const text = element("div", { class: "lab-text" }, part("derivation"), part("table"));
    this.section = element("section", { class: "lab" }, part("claim", "h2"), part("verdict"), this.stage, part("checks"), text);
    root.replaceChildren(this.list, this.section);
  }

  get lab() {
    return this.labs[this.current];
  }

  choose(lab) {
    this.open(lab);
    this.page.setFragment(this.fragment);
    this.render();
    this.list.children[lab].focus({ preventScroll: true });
  }

  render() {
    const { lab } = this;
    if (lab === undefined) return;
    this.list.setAttribute("aria-label", t("tabLabs"));
    this.list.replaceChildren(
      ...this.labs.map(({ name }, index) =>
        element("button", { type: "button", "aria-current": index === this.current ? "true" : null, onclick: () => this.choose(index) }, name),
      ),
    );
    const chosen = this.list.children[this.current];
    this.list.scrollLeft = chosen.offsetLeft - (this.list.clientWidth - chosen.offsetWidth) / 2; // on a phone it is one long row
    this.claim.textContent = lab.claim;
    this.frame.setAttribute("aria-label", t("plot"));
    this.buildControls();
    const actions = { saveSvg: () => this.save("svg"), savePng: () => this.save("png"), copyLink: () => this.copyLink() };
    this.saving.replaceChildren(
      this.code,
      element("div", { class: "saving" }, Object.entries(actions).map(([text, onclick]) => element("button", { type: "button", class: "link", onclick }, t(text)))),
    );
    renderDerivation(this.derivation, lab.derivation);
    this.renderSetting();
  }

  // result: what was found, with its plot and glyphs
  renderResult(result) {
    renderVerdict(this.verdict, result);
    renderChecks(this.checks, result);
    renderTable(this.table, result);
    this.code.textContent = result.command;
    this.result = result;
    this.redraw();
    this.section.setAttribute("aria-busy", "false");
    if (this.section.checkVisibility()) this.page.announce(this.verdict.textContent);
  }

  redraw() {
    if (this.result === null) return;
    const { shown } = this.page;
    this.plot = assemblePlot(this.result.plot, shown, this.result.glyphs, this.palettes[shown]);
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
