// The tab of comparisons: tables and learning curves of folders of `regard compare`, also while they grow.

import { Chart } from "./chart.js";
import { Names } from "./names.js";
import { Poll } from "./poll.js";
import { element } from "../ui/dom.js";
import { renderTable } from "../ui/findings.js";
import { t } from "../ui/texts.js";

export class Comparisons {
  // page: colours(), unit(), setFragment(text)
  constructor(page, root, api, names) {
    Object.assign(this, { page, root, api, comparison: null });
    const part = (name, tag = "div") => (this[name] = element(tag, { class: name }));
    this.names = new Names("comparison", names, () => this.choose());
    this.curves = new Chart(page, "curves");
    this.section = element("section", { class: "comparison" }, part("title", "h2"), part("state", "p"), part("problem", "p"), part("table"), part("notes"), this.curves.root);
    this.problem.setAttribute("role", "alert");
    this.problem.hidden = true;
    root.replaceChildren(this.names.root, this.section);
    this.poll = new Poll(root, (isOutdated) => this.ask(isOutdated));
    this.render();
  }

  get fragment() {
    return this.names.fragment;
  }

  restore(fragment) {
    const before = this.names.chosen;
    if (!this.names.restore(fragment)) return false;
    if (this.names.chosen !== before) this.comparison = null;
    this.render();
    return true;
  }

  activate() {
    this.poll.start();
  }

  choose() {
    this.comparison = null;
    this.page.setFragment(this.fragment);
    this.render();
    this.poll.start();
  }

  async ask(isOutdated) {
    let again = true;
    try {
      const comparison = await this.api.get(`/comparisons/${encodeURIComponent(this.names.chosen)}`);
      if (isOutdated()) return false;
      this.comparison = comparison;
      again = !comparison.finished;
      this.problem.hidden = true;
    } catch (error) {
      if (isOutdated()) return false;
      this.problem.textContent = t("failed", error.message);
      this.problem.hidden = false;
    }
    this.render();
    return again;
  }

  render() {
    const { comparison } = this;
    this.names.render(t("tabComparisons"));
    this.section.setAttribute("aria-label", t("tabComparisons"));
    this.title.textContent = this.names.chosen;
    this.state.textContent = t(comparison === null ? "loadingLog" : comparison.finished ? "isComplete" : "isRunning");
    this.table.hidden = !comparison?.rows.length;
    if (!this.table.hidden) renderTable(this.table, comparison);
    this.notes.replaceChildren(
      ...(comparison?.notes ?? []).map((note) => element("p", { class: "quiet small" }, note.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part)))),
      ...(comparison?.results?.command ? [element("p", {}, element("code", {}, comparison.results.command))] : []),
    );
    this.curves.show(t("curvesTitle"), Object.entries(comparison?.curves ?? {}).map(toSeries));
  }

  redraw() {
    this.curves.render();
  }
}

// "runs/case-rnn-1a2b3c4d/seed-0": the runs of a system share a colour.
function toSeries([folder, points]) {
  const [system, seed] = folder.split("/").slice(-2);
  return { label: `${system}, ${seed}`, group: system, digits: 3, points };
}
