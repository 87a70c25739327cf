// One model: its output, the picture of its attention, and what is changed in it.

import { Figure } from "./figure.js";
import { TokenRow } from "./tokens.js";
import { Toolbar } from "./toolbar.js";
import { addIntervention, isForced, isMasked, markChanges } from "./interventions.js";
import { buildScene } from "./scene.js";
import { describePlace, tintRows } from "./pointing.js";
import { direction, element, formatToken, setOptions } from "./dom.js";
import { drawSvg, savePng, saveSvg } from "./save.js";
import { factTitle, formatCount, formatNumber, kindName, t } from "./texts.js";
import { heatmap } from "./heatmap.js";
import { lines } from "./lines.js";
import { pathTo, tree } from "./tree.js";
import { renderChanges, renderHypotheses } from "./changes.js";
import { renderDetail } from "./detail.js";
import { toDecoding } from "./state.js";

const PICTURES = { heatmap, lines, tree };
const PACE = 650; // milliseconds for each token when playing
const ALTERNATIVES = 8;

export class Panel {
  // page: models, clients, state, colours(), unit(), changed(), announce(text)
  constructor(page, index) {
    Object.assign(this, { page, index, translation: null, baseline: null, scene: null, selected: null, timer: null, asked: 0 });
    this.source = new TokenRow({ hover: (key) => this.hover(this.placeOfSource(key)), select: (key) => this.select({ kind: "source", index: key }) });
    this.output = new TokenRow({ hover: (step) => this.hover(this.placeOfOutput(step)), select: (step) => this.select({ kind: "step", index: step }) });
    this.figure = new Figure({
      hover: (place) => this.hover(place),
      select: (place) => this.selectPlace(place),
      paint: (cells) => this.paint(cells),
      paintable: () => this.toolbar.painting && this.settings.view === "heatmap" && this.settings.head !== "all",
    });
    this.toolbar = new Toolbar(
      { set: (changes) => this.set(changes), ablate: () => this.ablate(), save: (kind) => this.save(kind), link: () => this.page.copyLink() },
      `panel-${index}`,
    );
    this.build();
  }

  get settings() {
    return this.page.state.panels[this.index];
  }

  get info() {
    return this.page.models[this.settings.model];
  }

  build() {
    const part = (name, tag = "div") => (this[name] = element(tag, { class: name }));
    this.model = element("select", { onchange: (event) => this.chooseModel(Number(event.target.value)) });
    this.modelLabel = element("span", { class: "hidden" });
    const head = element("header", { class: "panel-head" }, element("label", { class: "model" }, this.modelLabel, this.model), part("facts", "p"), part("about", "details"), part("busy", "p"));
    this.player = element("button", { type: "button", class: "link", onclick: () => this.play() });
    const output = element("div", { class: "output-head" }, part("outputTitle", "p"), this.player, part("scores", "p"));
    const texts = element("div", { class: "texts" }, part("sourceTitle", "p"), this.source.root, output, part("result", "p"), this.output.root);
    const foot = element("div", { class: "picture-foot" }, part("readout", "p"), this.toolbar.saving);
    const picture = element("div", { class: "picture" }, this.toolbar.root, this.figure.root, foot, part("hypotheses", "ol"));
    this.stage = element("div", { class: "stage" }, part("detail"), picture);
    this.root = element("section", { class: "panel" }, head, part("problem", "p"), texts, part("changes"), this.stage);
    this.problem.setAttribute("role", "alert");
    this.problem.hidden = true;
  }

  // --- asking ---

  request(interventions) {
    const { text, target, decoding } = this.page.state;
    const common = { model: this.info.name, text, interventions, best: ALTERNATIVES };
    if (target !== null && target.trim() !== "") return { kind: "explain", target, ...common };
    return { kind: "translate", decoding: toDecoding(decoding), ...common };
  }

  // An answer counts only until the next call, which may be for another model or for no text.
  async refresh() {
    const number = ++this.asked;
    const isOutdated = () => number !== this.asked;
    const { interventions } = this.settings;
    const plain = JSON.stringify([this.settings.model, this.request([])]);
    if (this.page.state.text.trim() === "") return this.receive(null);
    this.setBusy(true);
    try {
      const client = this.page.clients[this.settings.model];
      const translation = await client.ask(`${this.index}`, this.request(interventions));
      if (translation === null || isOutdated()) return;
      if (interventions.length === 0) this.baseline = { plain, translation };
      this.receive(translation);
      if (interventions.length > 0 && this.baseline?.plain !== plain) {
        const before = await client.ask(`${this.index}-before`, this.request([]));
        if (before === null || isOutdated()) return;
        this.baseline = { plain, translation: before };
        this.render();
      }
      this.setBusy(false);
    } catch (error) {
      if (isOutdated()) return;
      this.setBusy(false);
      this.renderChanges();
      this.problem.textContent = t("failed", error.message);
      this.problem.hidden = false;
    }
  }

  receive(translation) {
    this.problem.hidden = true;
    this.setBusy(false);
    this.translation = translation;
    const length = { step: translation?.target.length ?? 0, source: translation?.source.length ?? 0 };
    if (this.selected !== null && this.selected.index >= length[this.selected.kind]) this.selected = null;
    this.render();
    if (translation !== null) this.page.announce(translation.text);
  }

  setBusy(busy) {
    this.root.setAttribute("aria-busy", String(busy));
    this.busy.textContent = busy ? t("working") : "";
  }

  // --- showing ---

  render() {
    const { models } = this.page;
    const { translation, info } = this;
    this.root.setAttribute("aria-label", info.name);
    this.modelLabel.textContent = t(info.recorded ? "hypotheses" : "model");
    this.model.parentElement.hidden = Boolean(info.recorded) && models.length === 1;
    setOptions(this.model, models.map(({ name }, index) => [index, name]), this.settings.model);
    const sizes = Object.entries(info.heads).map(([name, [layers, heads]]) => `${t(name)} ${layers} × ${heads}`);
    this.facts.textContent = info.recorded ? "" : t("modelFacts", kindName(info.kind), formatCount(info.parameters));
    const facts = info.recorded ? {} : { heads: sizes.join(", "), ...info.facts };
    const lines = Object.entries(facts).filter(([, text]) => text !== "").map(([key, text]) => element("div", {}, element("dt", {}, factTitle(key)), element("dd", {}, text)));
    this.about.hidden = lines.length === 0;
    this.about.replaceChildren(element("summary", {}, t("about")), element("dl", {}, lines));
    this.root.classList.toggle("empty", translation === null);
    this.renderChanges();
    if (translation === null) return;
    this.renderTexts();
    this.renderPicture();
    this.renderDetail();
  }

  renderTexts() {
    const { translation, settings, selected } = this;
    const { interventions } = settings;
    const changed = this.changedTokens();
    const marksOf = (pairs) => pairs.filter(([holds]) => holds).map(([, name, words]) => [name, t(words)]);
    const chosen = (kind) => (selected?.kind === kind ? selected.index : null);
    this.sourceTitle.textContent = t("sourceTokens");
    this.outputTitle.textContent = t("outputTokens");
    this.source.show(t("sourceTokens"), translation.source, {
      text: this.page.state.text,
      selected: chosen("source"),
      marks: translation.source.map((_, key) => marksOf([[isMasked(interventions, key), "masked", "maskedMark"]])),
    });
    this.result.textContent = translation.text;
    this.result.dir = direction(translation.text);
    this.output.show(t("outputTokens"), translation.target, {
      text: translation.text,
      selected: chosen("step"),
      marks: translation.target.map((_, step) =>
        marksOf([[changed[step], "changed", "changedMark"], [isForced(interventions, step), "forced", "forcedMark"]]),
      ),
      shares: translation.steps?.map(({ log_prob }) => Math.exp(log_prob)),
    });
    const time = Object.values(translation.milliseconds ?? {}).reduce((sum, one) => sum + one, 0);
    const parts = [
      translation.score !== null && t("logProbability", formatNumber(translation.score, 2)),
      translation.score !== null && t("perToken", formatNumber(translation.score / Math.max(1, translation.target.length), 2)),
      time > 0 && t("milliseconds", formatNumber(time, 0)),
    ];
    this.scores.textContent = parts.filter(Boolean).join(" · ");
    this.showPlayer();
  }

  changedTokens() {
    const plain = JSON.stringify([this.settings.model, this.request([])]);
    if (this.translation === null || this.settings.interventions.length === 0 || this.baseline?.plain !== plain) return [];
    return markChanges(this.baseline.translation.target, this.translation.target);
  }

  renderChanges() {
    const { interventions } = this.settings;
    const changed = this.changedTokens();
    const before = changed.length > 0 ? this.baseline.translation : null;
    renderChanges(this.changes, { interventions, translation: this.translation, before, changed, intervene: (list) => this.intervene(list) });
  }

  renderPicture() {
    const { settings, translation, page } = this;
    const hasTree = Boolean(translation.tree?.length);
    if (!(settings.mechanism in (translation.attention ?? {}))) settings.mechanism = Object.keys(translation.attention ?? {})[0] ?? "cross";
    this.scene = buildScene(translation, settings);
    this.toolbar.show(settings, this.info, { hasTree, layer: this.scene?.layer ?? 0 });
    renderHypotheses(this.hypotheses, settings.view === "tree" ? (translation.tree ?? []) : []);
    this.stage.classList.toggle("wide", settings.view === "tree");
    const missing = settings.view === "tree" ? !hasTree : this.scene === null;
    this.figure.root.hidden = missing;
    this.setReadout(missing ? t(settings.view === "tree" ? "noTree" : "noAttention") : t("readoutHelp"));
    if (missing) return;
    const view = PICTURES[settings.view];
    const width = this.figure.root.clientWidth || 600;
    const layout = view.layout(settings.view === "tree" ? translation.tree : this.scene, width, page.unit(), window.innerHeight / 2);
    this.figure.show(view, layout, page.colours(), t("figureLabel", t(settings.view)));
  }

  renderDetail() {
    const { translation, scene, selected } = this;
    renderDetail(this.detail, {
      ...{ translation, scene, selected },
      interventions: this.settings.interventions,
      actions: this.info.recorded ? null : {
        force: (step, token) => this.add({ what: "force", step, token }),
        mask: (key) => this.toggleMask(key),
        move: (query, key) => this.paint([[query, key]]),
      },
    });
  }

  setReadout(text) {
    this.readout.textContent = text;
  }

  // --- pointing and choosing ---

  placeOfSource(index) {
    const query = this.scene?.mechanism === "encoder";
    const none = index === null || this.scene?.mechanism === "decoder";
    return { query: query && !none ? index : null, key: query || none ? null : index, head: null };
  }

  placeOfOutput(step) {
    return { query: this.scene?.mechanism === "encoder" ? null : step, key: null, head: null };
  }

  hover(place) {
    const { scene, translation } = this;
    if (translation === null) return;
    if (this.settings.view === "tree") this.hoverNode(place);
    if (!this.figure.root.hidden) this.figure.highlight(place);
    if (scene === null) return;
    tintRows(scene, this.source, this.output, place);
    if (this.settings.view !== "tree") this.setReadout(describePlace(scene, place));
  }

  hoverNode({ node = null }) {
    if (node === null) return this.setReadout(t("readoutHelp"));
    const path = pathTo(this.translation.tree, node);
    this.setReadout(t("readoutNode", path.map(({ token }) => formatToken(token).text).join(" "), formatNumber(path.at(-1).score, 2)));
  }

  select(selected) {
    const same = selected !== null && this.selected?.kind === selected.kind && this.selected.index === selected.index;
    this.selected = same ? null : selected;
    this.renderTexts();
    this.renderDetail();
  }

  selectPlace({ query, key, head, node = null }) {
    if (node !== null) return this.follow(node);
    if (this.settings.head === "all" && head !== null) return this.set({ head });
    if (query !== null) this.select({ kind: this.scene.mechanism === "encoder" ? "source" : "step", index: query });
    else if (this.scene.mechanism !== "decoder") this.select({ kind: "source", index: key });
  }

  // --- changing ---

  set(changes) {
    Object.assign(this.settings, changes);
    this.page.changed();
    this.renderPicture();
    this.renderDetail();
  }

  chooseModel(model) {
    Object.assign(this.settings, { model, layer: null, head: "mean", interventions: [] });
    this.selected = null;
    this.page.changed();
    this.refresh();
  }

  intervene(interventions) {
    this.settings.interventions = interventions;
    this.page.changed();
    this.refresh();
  }

  add(intervention) {
    this.intervene(addIntervention(this.settings.interventions, intervention));
  }

  toggleMask(key) {
    const { interventions } = this.settings;
    if (!isMasked(interventions, key)) return this.add({ what: "mask", mechanism: "cross", layer: null, head: null, step: null, keys: [key] });
    this.intervene(interventions.filter((one) => !isMasked([one], key)));
  }

  paint(cells) {
    const place = this.toolbar.placeOfChange(this.scene, this.settings);
    const added = cells.map(([step, key]) => ({ what: "weights", ...place, step, weights: { [key]: 1 } }));
    this.intervene(added.reduce(addIntervention, this.settings.interventions));
  }

  ablate() {
    const { head } = this.settings;
    this.add({ what: "ablate", mechanism: this.scene.mechanism, layer: this.scene.layer, head: typeof head === "number" ? head : null, step: null });
  }

  // Force the tokens of a branch of the tree.
  follow(node) {
    const path = pathTo(this.translation.tree, node);
    const forced = path.filter(({ step, token }) => this.translation.target[step] !== token);
    this.intervene(forced.map(({ step, token }) => ({ what: "force", step, token })).reduce(addIntervention, this.settings.interventions));
  }

  play() {
    const stop = () => {
      clearInterval(this.timer);
      this.timer = null;
      this.output.buttons.forEach((button) => button.classList.remove("later"));
      this.showPlayer();
    };
    if (this.timer !== null) return stop();
    let step = 0;
    const show = () => {
      if (this.translation === null || step >= this.translation.target.length) return stop();
      this.output.buttons.forEach((button, index) => button.classList.toggle("later", index > step));
      this.hover(this.placeOfOutput(step++));
    };
    this.timer = setInterval(show, PACE);
    this.showPlayer();
    show();
  }

  showPlayer() {
    this.player.textContent = t(this.timer === null ? "play" : "stop");
  }

  save(kind) {
    const view = PICTURES[this.settings.view];
    const layout = this.figure.layout;
    if (!layout || this.figure.root.hidden) return;
    const picture = drawSvg(view, layout, this.page.colours(), `${this.info.name}: ${this.translation.text}`);
    (kind === "svg" ? saveSvg : savePng)(picture, `regard-${this.settings.view}`);
  }
}
