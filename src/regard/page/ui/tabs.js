// The tabs of the page: translating, labs, and what a server has.

import { element } from "./dom.js";
import { t } from "./texts.js";

// sections: by the key of their title's text. Returns open(key); chosen(key) is called when the user opens one.
export function mountTabs(root, sections, chosen) {
  const open = (key) => {
    for (const button of root.children) {
      const current = button.dataset.text === key;
      button.setAttribute("aria-selected", String(current));
      button.tabIndex = current ? 0 : -1;
      sections[button.dataset.text].hidden = !current;
    }
  };
  const choose = (key) => {
    open(key);
    chosen(key);
  };
  for (const [key, section] of Object.entries(sections)) {
    section.setAttribute("role", "tabpanel");
    section.setAttribute("aria-labelledby", key);
    root.append(element("button", { type: "button", role: "tab", id: key, "data-text": key, "aria-controls": section.id, onclick: () => choose(key) }, t(key)));
  }
  root.addEventListener("keydown", ({ key }) => {
    if (key !== "ArrowLeft" && key !== "ArrowRight") return;
    const buttons = [...root.children];
    const step = key === "ArrowRight" ? 1 : -1;
    const current = buttons.findIndex((button) => button.tabIndex === 0);
    const other = buttons.at((current + step) % buttons.length);
    choose(other.dataset.text);
    other.focus();
  });
  root.hidden = false;
  return open;
}
