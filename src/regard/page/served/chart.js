// Lines over training steps, as SVG: axes, a legend, and a cursor for pointer and keyboard.

import { FONT, textWidth } from "../ui/surface.js";
import { element, svgElement } from "../ui/dom.js";
import { formatNumber, t } from "../ui/texts.js";
import { makeAxis, widen } from "./axis.js";
import { savePng, saveSvg } from "../ui/save.js";

const HEIGHT = 280; // of the part with the lines, in units of the type, like all sizes here
const EDGE = { left: 52, right: 24, bottom: 44 };
const MOST_DOTS = 40;

export class Chart {
  // page: colours(), unit(); name: of saved files
  constructor(page, name) {
    Object.assign(this, { page, name, series: [], cursor: null });
    this.heading = element("h3", {});
    this.frame = element("div", {
      ...{ class: "chart-frame", tabindex: "0", role: "application" },
      onpointermove: (event) => this.point(event),
      onpointerleave: () => this.moveTo(null),
      onkeydown: (event) => this.onKey(event),
    });
    this.readout = element("p", { class: "readout", role: "status" });
    this.saving = element("div", { class: "saving" });
    this.root = element("figure", { class: "chart", hidden: true }, this.heading, this.frame, element("div", { class: "chart-foot" }, this.readout, this.saving));
    new ResizeObserver(() => this.frame.clientWidth !== this.width && this.render()).observe(this.root);
  }

  // series: [{label, group, digits, points: [[step, value], ..]}]; those of one group have one colour, and one entry in the legend.
  show(title, series) {
    this.title = title;
    this.series = series.map((one) => ({ ...one, points: one.points.filter(([, value]) => Number.isFinite(value)) })).filter(({ points }) => points.length > 0);
    this.groups = [...new Set(this.series.map(({ group }) => group))];
    this.steps = [...new Set(this.series.flatMap(({ points }) => points.map(([step]) => step)))].sort((one, other) => one - other);
    if (!this.steps.includes(this.cursor)) this.cursor = null;
    this.render();
  }

  render() {
    this.root.hidden = this.series.length === 0;
    if (this.root.hidden) return;
    this.heading.textContent = this.title;
    this.frame.setAttribute("aria-label", t("chartLabel", this.title));
    this.width = this.frame.clientWidth || 640;
    this.frame.replaceChildren(this.draw());
    const save = (text, write) => element("button", { type: "button", class: "link", onclick: () => write(this.toFile(), `regard-${this.name}`) }, t(text));
    this.saving.replaceChildren(save("saveSvg", saveSvg), save("savePng", savePng));
    this.moveTo(this.cursor);
  }

  colourOf(group) {
    const { series } = this.page.colours();
    return series[this.groups.indexOf(group) % series.length];
  }

  // --- drawing ---

  draw() {
    const [unit, colours] = [this.page.unit(), this.page.colours()];
    const values = this.series.flatMap(({ points }) => points.map(([, value]) => value));
    const legend = this.placeLegend(unit);
    this.top = legend.height + 8 * unit;
    this.bottom = this.top + HEIGHT * unit;
    const [left, right] = [EDGE.left * unit, this.width - EDGE.right * unit];
    this.height = this.bottom + EDGE.bottom * unit;
    this.x = makeAxis(Math.min(0, this.steps[0]), Math.max(1, this.steps.at(-1)), left, right, Math.max(2, this.width / (120 * unit)));
    this.y = makeAxis(...widen(Math.min(...values), Math.max(...values)), this.bottom, this.top, 5);
    const { x, y } = this;
    const style = { "font-size": 13 * unit, "font-family": FONT, fill: colours.quiet };
    const text = (place, height, anchor, words) => svgElement("text", { ...style, x: place, y: height, "text-anchor": anchor }, words);
    const rule = (height) => svgElement("line", { x1: left, x2: right, y1: height, y2: height, stroke: colours.quiet, "stroke-opacity": 0.25 });
    this.mark = svgElement("g", {});
    return svgElement("svg", { viewBox: `0 0 ${this.width} ${this.height}`, width: this.width, height: this.height, "aria-hidden": "true" },
      svgElement("rect", { width: this.width, height: this.height, fill: colours.background }),
      legend.entries.map(([group, place, height]) => [
        svgElement("rect", { x: place, y: height - 10 * unit, width: 14 * unit, height: 10 * unit, rx: 3, fill: this.colourOf(group) }),
        text(place + 20 * unit, height, "start", group),
      ]),
      y.ticks.map((tick) => [rule(y.at(tick)), text(left - 8 * unit, y.at(tick) + 4 * unit, "end", formatNumber(tick, y.digits))]),
      x.ticks.map((tick) => text(x.at(tick), this.bottom + 20 * unit, "middle", formatNumber(tick, x.digits))),
      text((left + right) / 2, this.height - 6 * unit, "middle", t("trainingStep")),
      this.series.map((one) => this.drawLine(one, unit)),
      this.mark,
    );
  }

  drawLine({ group, points }, unit) {
    const colour = this.colourOf(group);
    const places = points.map(([step, value]) => [this.x.at(step), this.y.at(value)].map((place) => Math.round(place * 10) / 10));
    const dots = places.length <= MOST_DOTS ? places.map(([cx, cy]) => svgElement("circle", { cx, cy, r: 2.5 * unit, fill: colour })) : [];
    return [svgElement("polyline", { points: places.join(" "), fill: "none", stroke: colour, "stroke-width": 2 * unit, "stroke-linejoin": "round" }), dots];
  }

  // Entries one after the other, in as many rows as they need.
  placeLegend(unit) {
    let [place, height] = [EDGE.left * unit, 16 * unit];
    const entries = this.groups.map((group) => {
      const width = textWidth(group, 13 * unit) + 44 * unit;
      if (place + width > this.width && place > EDGE.left * unit) [place, height] = [EDGE.left * unit, height + 22 * unit];
      place += width;
      return [group, place - width, height];
    });
    return { entries, height: height + 4 * unit };
  }

  // --- the cursor ---

  point(event) {
    const distance = (step) => Math.abs(this.x.at(step) - (event.clientX - this.frame.firstChild.getBoundingClientRect().left));
    this.moveTo(this.steps.reduce((best, step) => (distance(step) < distance(best) ? step : best)));
  }

  onKey(event) {
    const last = this.steps.length - 1;
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -last - 1, End: last + 1 };
    if (event.key === "Escape") return this.moveTo(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    const from = this.cursor === null ? (moves[event.key] > 0 ? -1 : last + 1) : this.steps.indexOf(this.cursor);
    this.moveTo(this.steps[Math.max(0, Math.min(last, from + moves[event.key]))]);
  }

  moveTo(step) {
    this.cursor = step;
    this.mark.replaceChildren();
    if (step === null) {
      this.readout.textContent = t("chartHelp");
      return;
    }
    const found = this.series.map((one) => ({ ...one, value: new Map(one.points).get(step) })).filter(({ value }) => value !== undefined);
    const [place, unit] = [this.x.at(step), this.page.unit()];
    this.mark.append(
      svgElement("line", { x1: place, x2: place, y1: this.top, y2: this.bottom, stroke: this.page.colours().text, "stroke-opacity": 0.6 }),
      ...found.map(({ group, value }) => svgElement("circle", { cx: place, cy: this.y.at(value), r: 4.5 * unit, fill: this.colourOf(group) })),
    );
    const values = found.map(({ label, value, digits }) => `${label} ${formatNumber(value, digits)}`);
    this.readout.textContent = `${t("atStep", formatNumber(step, 0))}: ${values.join(" · ")}`;
  }

  toFile() {
    this.moveTo(null);
    return { text: new XMLSerializer().serializeToString(this.frame.firstChild), width: this.width, height: this.height };
  }
}
