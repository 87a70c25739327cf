// The tab of training: curves, figures and translations of a run, also while it is being trained.

import { Chart } from "./chart.js";
import { Names } from "./names.js";
import { Poll } from "./poll.js";
import { direction, element } from "../ui/dom.js";
import { formatNumber, t } from "../ui/texts.js";
import { renderTable } from "../ui/findings.js";

// Figures of a validation, by their name in the log: title and digits.
const FIGURES = { step: ["trainingStep", 0], epoch: ["epoch", 2], train_loss: ["trainingLoss", 3], loss: ["validationLoss", 3], perplexity: ["perplexity", 2], bleu_lower: ["bleu", 2], bleu_tokens: ["bleuTokens", 2] };

export class Training {
  // names: of the runs that have a log; page: colours(), unit(), setFragment(text), announce(text)
  constructor(page, root, api, names) {
    Object.assign(this, { page, root, api });
    const part = (name, tag = "div") => (this[name] = element(tag, { class: name }));
    this.names = new Names("run", names, () => this.choose());
    this.loss = new Chart(page, "loss");
    this.bleu = new Chart(page, "bleu");
    const charts = element("div", { class: "charts" }, this.loss.root, this.bleu.root);
    this.section = element("section", { class: "training" }, part("runName", "h2"), part("runState", "p"), part("problem", "p"), charts, part("samples"), part("log"));
    this.problem.setAttribute("role", "alert");
    this.slider = element("input", { type: "range", min: 0, step: 1, "data-control": "sample", oninput: ({ target }) => this.showSample(Number(target.value)) });
    root.replaceChildren(this.names.root, this.section);
    this.poll = new Poll(root, (isOutdated) => this.ask(isOutdated));
    this.forget();
    this.render();
  }

  get fragment() {
    return this.names.fragment;
  }

  restore(fragment) {
    const before = this.names.chosen;
    if (!this.names.restore(fragment)) return false;
    if (this.names.chosen !== before) this.forget();
    this.render();
    return true;
  }

  activate() {
    this.poll.start();
  }

  choose() {
    this.page.setFragment(this.fragment);
    this.forget();
    this.render();
    this.poll.start();
  }

  forget() {
    Object.assign(this, { next: 0, validations: [], translations: [], sample: null, state: null });
    this.problem.hidden = true;
  }

  // New events of the log. Whether there will be more.
  async ask(isOutdated) {
    try {
      const log = await this.api.get(`/runs/${encodeURIComponent(this.names.chosen)}?after=${this.next}`);
      if (isOutdated()) return false;
      if (log.next < this.next) {
        this.forget(); // it was started anew
        return true;
      }
      this.receive(log);
      return !log.finished;
    } catch (error) {
      if (isOutdated()) return false;
      this.problem.textContent = t("failed", error.message);
      this.problem.hidden = false;
      return true;
    }
  }

  receive(log) {
    const wasShown = this.state !== null;
    const added = log.events.filter(({ event }) => event === "validation");
    this.problem.hidden = true;
    Object.assign(this, { next: log.next, state: log, translations: log.samples });
    this.validations.push(...added);
    this.render();
    if (wasShown && added.length > 0) this.page.announce(this.runState.textContent);
  }

  // --- showing ---

  render() {
    this.names.render(t("tabTraining"));
    this.section.setAttribute("aria-label", t("tabTraining"));
    this.runName.textContent = this.names.chosen;
    this.runState.textContent = this.describeState();
    const line = (name, group) => ({ label: t(group), group: t(group), digits: FIGURES[name][1], points: this.validations.filter((one) => name in one).map((one) => [one.step, one[name]]) });
    this.loss.show(t("lossTitle"), [line("train_loss", "trainingLoss"), line("loss", "validationLoss")]);
    const onTokens = this.validations.some((one) => "bleu_tokens" in one);
    this.bleu.show(t("bleuTitle"), [onTokens ? line("bleu_tokens", "bleuTokens") : line("bleu_lower", "bleu")]);
    this.renderSamples();
    this.renderLog();
  }

  redraw() {
    this.loss.render();
    this.bleu.render();
  }

  describeState() {
    if (this.state === null) return t("loadingLog");
    const last = this.validations.at(-1);
    const best = this.validations.reduce((found, one) => (found === null || one.loss < found.loss ? one : found), null);
    const parts = [
      t(this.state.finished ? "isFinished" : "isTraining"),
      last ? t("progress", formatNumber(last.step, 0), formatNumber(last.epoch ?? null, 2)) : t("noValidation"),
      best && t("bestLoss", formatNumber(best.loss, 3), formatNumber(best.step, 0)),
      last?.tokens_per_second && t("tokensPerSecond", formatNumber(last.tokens_per_second, 0)),
    ];
    return parts.filter(Boolean).join(" · ");
  }

  // The newest translations, unless the user has gone back to earlier ones.
  renderSamples() {
    const last = this.translations.length - 1;
    this.samples.hidden = last < 0;
    if (last < 0) return;
    const chosen = this.sample === null ? last : Math.min(this.sample, last);
    const { step, sources, outputs } = this.translations[chosen];
    const stepText = step === null ? t("unknownStep") : t("atStep", formatNumber(step, 0));
    Object.assign(this.slider, { max: last, value: chosen });
    this.slider.setAttribute("aria-label", t("samplesTitle"));
    this.slider.setAttribute("aria-valuetext", stepText);
    if (!this.slider.isConnected) {
      this.sampleStep = element("output", {});
      this.sampleList = element("dl", { class: "sample-list" });
      this.sampleTitle = element("h3", {});
      this.sampleHead = element("div", { class: "sample-head slider" }, this.slider, this.sampleStep);
      this.samples.replaceChildren(this.sampleTitle, this.sampleHead, this.sampleList);
    }
    this.sampleTitle.textContent = t("samplesTitle");
    this.slider.hidden = last === 0;
    this.sampleStep.textContent = stepText;
    this.sampleList.replaceChildren(
      ...sources.map((source, index) =>
        element("div", {}, element("dt", { dir: direction(source) }, source), element("dd", { dir: direction(outputs[index]) }, outputs[index] === "" ? "∅" : outputs[index])),
      ),
    );
  }

  showSample(index) {
    this.sample = index === this.translations.length - 1 ? null : index;
    this.renderSamples();
  }

  renderLog() {
    const names = Object.keys(FIGURES).filter((name) => this.validations.some((one) => name in one));
    this.log.hidden = this.validations.length === 0;
    renderTable(this.log, {
      columns: names.map((name) => t(FIGURES[name][0])),
      rows: this.validations.toReversed().map((one) => names.map((name) => formatNumber(one[name] ?? null, FIGURES[name][1]))),
    });
  }
}
