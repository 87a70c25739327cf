// What is known of one token, and what can be done to it.

import { element, formatToken, setOptions } from "./dom.js";
import { isForced, isMasked } from "./interventions.js";
import { largestWeights } from "./scene.js";
import { formatNumber, formatPercent, t } from "./texts.js";

// actions: force(step, token), mask(key), move(query, key)
// Without actions nothing can be changed.
export function renderDetail(root, { translation, scene, selected, interventions, actions }) {
  const content =
    selected === null
      ? [element("p", { class: "quiet" }, t(actions ? "detailHelp" : "detailHelpRecorded"))]
      : selected.kind === "step"
        ? stepDetail(translation, scene, selected.index, interventions, actions)
        : sourceDetail(translation, scene, selected.index, interventions, actions);
  root.replaceChildren(...content.filter(Boolean));
}

function stepDetail(translation, scene, step, interventions, actions) {
  const details = translation.steps?.[step];
  return [
    heading("stepTitle", step, translation.target[step]),
    details && alternatives(details, step, isForced(interventions, step), actions),
    scene !== null && scene.mechanism !== "encoder" && neighbours("attendsTo", scene.keys, largestWeights(scene, { query: step })),
    actions && scene !== null && scene.mechanism !== "encoder" && mover(scene, step, actions),
  ];
}

function sourceDetail(translation, scene, key, interventions, actions) {
  const masked = isMasked(interventions, key);
  const toggle = () => element("button", { type: "button", class: "action", onclick: () => actions.mask(key) }, t(masked ? "unmask" : "mask"));
  const reads = scene?.mechanism === "encoder" || scene?.mechanism === "cross";
  return [
    heading("sourceTitle", key, translation.source[key]),
    actions && element("div", { class: "row" }, toggle()),
    reads && neighbours("attendedBy", scene.queries, largestWeights(scene, { key })),
    scene?.mechanism === "encoder" && neighbours("attendsTo", scene.keys, largestWeights(scene, { query: key })),
    actions && scene?.mechanism === "encoder" && mover(scene, key, actions),
  ];
}

function heading(key, index, token) {
  return element("h2", {}, element("span", { class: "quiet" }, t(key, index + 1)), element("bdi", { class: "big-token" }, formatToken(token ?? "", 40).text));
}

function alternatives(details, step, forced, actions) {
  const listed = details.best.some(({ token }) => token === details.token);
  const candidates = listed ? details.best : [...details.best, { token: details.token, log_prob: details.log_prob }];
  const items = candidates.map(({ token, log_prob }) => {
    const probability = Math.exp(log_prob);
    const chosen = token === details.token;
    const { text, dimmed } = formatToken(token, 24);
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", probability);
    const button = element(
      "button",
      {
        type: "button",
        class: chosen ? "alternative chosen" : "alternative",
        "aria-label": t("forceLabel", text, formatPercent(probability)),
        "aria-pressed": String(chosen),
        title: `${t("logProbability", formatNumber(log_prob, 3))}`,
        onclick: () => actions.force(step, token),
      },
      bar,
      element("bdi", { class: dimmed ? "special" : "" }, text),
      chosen ? element("span", { class: "tag" }, t(forced ? "forced" : "chosen")) : null,
      element("span", { class: "number" }, formatPercent(probability)),
    );
    return element("li", {}, button);
  });
  return element("div", { class: "alternatives" }, element("h3", {}, t("alternatives")), element("ul", { class: "plain" }, items), element("p", { class: "quiet small" }, t("alternativesHelp")));
}

function neighbours(key, labels, weights) {
  const items = weights.map(([index, weight]) =>
    element("li", {}, element("bdi", {}, labels[index].text), element("span", { class: "number" }, formatNumber(weight, 2))),
  );
  return element("div", {}, element("h3", {}, t(key)), element("ul", { class: "plain weights" }, items));
}

function mover(scene, query, actions) {
  const select = element("select", {});
  setOptions(select, scene.keys.map(({ text }, index) => [index, `${index + 1} ${text}`]), largestWeights(scene, { query }, 1)[0]?.[0] ?? 0);
  const button = element("button", { type: "button", class: "action", onclick: () => actions.move(query, Number(select.value)) }, t("move"));
  return element("div", { class: "mover" }, element("label", {}, element("h3", {}, t("moveWeight")), select), button);
}
