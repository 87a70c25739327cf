// Labs of an exported page: claims that were measured at export, over a grid of values of their parameters.

import { LabView } from "./lab-view.js";
import { Sliders } from "./sliders.js";
import { decodePoint, encodePoint, nearestPoint, otherChanges } from "./grid.js";
import { t } from "./texts.js";
import { unpack } from "./plot.js";

const ABSENT = 1; // the second point of every lab; the first is its default

export class Labs extends LabView {
  // data: {labs, glyphs, palettes, seed}
  constructor(page, root, data) {
    const sliders = new Sliders((parameter, value) => this.move(parameter, value), (point) => this.show(point));
    super(page, root, sliders.root);
    Object.assign(this, { data, sliders, labs: data.labs, palettes: data.palettes, point: 0, measured: new Map(), glyphs: null });
    this.render();
  }

  get fragment() {
    return encodePoint(this.lab, this.point);
  }

  // Whether this fragment is one of a lab; if so, its lab is shown.
  restore(fragment) {
    const fields = new URLSearchParams(fragment);
    const points = this.labs.map((lab) => decodePoint(lab, fields));
    const found = points.findIndex((point) => point !== null);
    if (found < 0) return false;
    Object.assign(this, { current: found, point: points[found] });
    this.render();
    return true;
  }

  open(lab) {
    Object.assign(this, { current: lab, point: 0 });
  }

  show(point, moved = []) {
    this.point = point;
    this.page.setFragment(this.fragment);
    this.renderSetting(moved);
  }

  move(parameter, value) {
    const before = this.point;
    const { points, parameters } = this.lab;
    const after = nearestPoint(points, before, parameter, value);
    this.show(after, otherChanges(points, before, after, parameter).map((index) => parameters[index].name));
  }

  // --- showing ---

  buildControls() {
    this.sliders.build(this.lab, [["toDefault", 0], ["toAbsent", ABSENT]]);
  }

  // moved: the names of parameters that had to return, for there is no measurement with them.
  async renderSetting(moved = []) {
    const { lab, point } = this;
    const measured = t(lab.complete ? "measuredAll" : "measuredOne", lab.points.length, this.data.seed);
    this.sliders.update(point, moved.length > 0 ? t("returned", moved.join(", ")) : measured);
    if (!this.measured.has(lab.name)) this.measured.set(lab.name, unpack(lab.results));
    this.glyphs ??= unpack(this.data.glyphs);
    this.section.setAttribute("aria-busy", "true");
    const [results, glyphs] = await Promise.all([this.measured.get(lab.name), this.glyphs]);
    if (lab !== this.lab || point !== this.point) return; // another one is shown by now
    this.renderResult({ ...results[point], glyphs });
  }
}
