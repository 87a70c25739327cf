// What a lab found at one setting: the verdict, every check, the table, and the derivation of its claim.

import { element } from "./dom.js";
import { t } from "./texts.js";

const SIGNS = { "=": "=", "<=": "≤", ">=": "≥" };
const FAILED = { "=": "≠", "<=": ">", ">=": "<" };

export function renderVerdict(root, { law_holds, effect_is_present }) {
  const badge = (passed, text) => element("span", { class: passed ? "badge pass" : "badge fail" }, mark(passed), t(text));
  root.replaceChildren(
    badge(law_holds, law_holds ? "lawHolds" : "lawFails"),
    " ",
    badge(effect_is_present, effect_is_present ? "effectPresent" : "effectAbsent"),
  );
}

export function renderChecks(root, { law, effect, notes }) {
  const list = (title, about, checks) => [
    element("h3", {}, t(title), " ", element("span", { class: "quiet small" }, t(about))),
    element("ul", { class: "plain check-list" }, checks.map(checkItem)),
  ];
  root.replaceChildren(...list("law", "aboutLaw", law), ...list("effect", "aboutEffect", effect), ...notes.map((note) => element("p", { class: "quiet small" }, note)));
}

function checkItem({ name, measured, relation, expected, tolerance, passed, hint }) {
  const within = tolerance === "" ? "" : ` (${t("within", tolerance)})`;
  const figures = `${measured} ${(passed ? SIGNS : FAILED)[relation]} ${expected}${within}`;
  return element("li", { class: passed ? "pass" : "fail" },
    mark(passed),
    element("div", {}, element("span", {}, name), element("span", { class: "figures" }, figures), hint === "" ? null : element("p", { class: "small" }, hint)),
  );
}

function mark(passed) {
  return element("span", { class: "mark" }, element("span", { "aria-hidden": "true" }, passed ? "✓" : "✗"), element("span", { class: "hidden" }, `${t(passed ? "passed" : "failedCheck")}: `));
}

export function renderTable(root, { columns, rows }) {
  const cell = (tag) => (text) => element(tag, {}, text);
  root.replaceChildren(
    element("h3", {}, t("table")),
    element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": t("table") },
      element("table", {},
        element("thead", {}, element("tr", {}, columns.map(cell("th")))),
        element("tbody", {}, rows.map((row) => element("tr", {}, row.map(cell("td"))))),
      ),
    ),
  );
}

// Paragraphs are filled again for the width of the page; what is indented or in columns stays as it is.
export function renderDerivation(root, text) {
  const parts = text.split(/\n\s*\n/).map((part) => {
    const formula = /^ {4}|\S {3,}\S/.test(part);
    return formula ? element("pre", { tabindex: "0" }, part.replace(/^ {4}/gm, "")) : element("p", {}, part.replace(/\s*\n\s*/g, " "));
  });
  root.replaceChildren(element("h3", {}, t("derivation")), ...parts);
}
