// The list of interventions, what they changed, and the hypotheses of a beam.

import { describeIntervention } from "./interventions.js";
import { element, formatToken } from "./dom.js";
import { formatNumber, t } from "./texts.js";
import { pathTo } from "./tree.js";

// before: the translation without interventions, once it is known; changed: which tokens are new.
export function renderChanges(root, { interventions, translation, before, changed, intervene }) {
  root.hidden = interventions.length === 0;
  const items = interventions.map((one, number) => {
    const text = describeIntervention(one, translation);
    const remove = () => intervene(interventions.filter((_, index) => index !== number));
    return element("li", {}, element("bdi", {}, text), element("button", { type: "button", "aria-label": t("remove", text), onclick: remove }, "×"));
  });
  const all = element("button", { type: "button", class: "link", onclick: () => intervene([]) }, t("removeAll"));
  root.replaceChildren(
    element("h2", {}, t("interventions")),
    element("ul", { class: "pills" }, items, element("li", { class: "bare" }, all)),
    ...(before === null ? [] : compareWith(before, translation, changed)),
  );
}

function compareWith(before, translation, changed) {
  const count = changed.filter(Boolean).length;
  const same = before.text === translation.text && count === 0;
  const difference = translation.score - before.score;
  const score = t("scoreChange", `${difference >= 0 ? "+" : ""}${formatNumber(difference, 2)}`);
  const summary = `${same ? t("unchanged") : t("changedCount", count, changed.length)} · ${score}`;
  const old = same ? [] : [element("p", { class: "before" }, element("span", { class: "quiet" }, `${t("before")}:`), element("bdi", {}, before.text))];
  return [element("p", { class: "quiet small" }, summary), ...old];
}

// The finished hypotheses of a beam, best first.
export function renderHypotheses(root, nodes) {
  const finished = nodes.map((node, index) => ({ ...node, index })).filter((node) => node.finished);
  const items = finished.sort((a, b) => b.score - a.score).map(({ index, score }) => {
    const tokens = pathTo(nodes, index).slice(0, -1).map(({ token }) => formatToken(token).text);
    return element("li", {}, element("bdi", {}, tokens.join(" ")), element("span", { class: "number quiet" }, formatNumber(score, 2)));
  });
  root.hidden = items.length === 0;
  root.setAttribute("aria-label", t("hypotheses"));
  root.replaceChildren(...items);
}
