// A sentence as a row of tokens, each a button. Tab enters the row, arrow keys move inside it.

import { direction, element, formatToken } from "./dom.js";

export class TokenRow {
  // events: hover(index or null), select(index)
  constructor(events) {
    this.events = events;
    this.buttons = [];
    this.root = element("div", { class: "tokens", role: "group", onkeydown: (event) => this.onKey(event) });
  }

  // marks[index]: [class, spoken words] of what happened to the token; shares[index]: a bar below it.
  show(label, tokens, { text = "", selected = null, marks = [], shares = [] }) {
    const focused = this.buttons.indexOf(document.activeElement);
    this.weights = new Float32Array(tokens.length);
    this.root.setAttribute("aria-label", label);
    this.root.dir = direction(text || tokens.join(" "));
    this.buttons = tokens.map((token, index) => this.makeButton(token, index, selected, marks[index] ?? [], shares[index]));
    this.root.replaceChildren(...this.buttons);
    const entry = this.buttons[focused] ?? this.buttons[selected ?? 0] ?? this.buttons[0];
    if (entry) entry.tabIndex = 0;
    if (focused >= 0) this.buttons[focused]?.focus({ preventScroll: true });
  }

  makeButton(token, index, selected, marks, share) {
    const { text, dimmed } = formatToken(token, 40);
    const classes = ["token", dimmed ? "special" : "", ...marks.map(([name]) => name)];
    const button = element(
      "button",
      {
        type: "button",
        class: classes.filter(Boolean).join(" "),
        tabindex: "-1",
        "aria-pressed": String(index === selected),
        onpointerenter: () => this.events.hover(index),
        onpointerleave: () => this.events.hover(null),
        onfocus: () => this.events.hover(index),
        onblur: () => this.events.hover(null),
        onclick: () => this.events.select(index),
      },
      element("bdi", {}, text),
      marks.map(([, words]) => element("span", { class: "hidden" }, ` (${words})`)),
    );
    if (share !== undefined) {
      const bar = element("span", { class: "share", "aria-hidden": "true" });
      bar.style.setProperty("--share", share);
      button.append(bar);
    }
    return button;
  }

  // Tint the tokens by weights, or not at all.
  tint(weights, chosen = null) {
    this.buttons.forEach((button, index) => {
      const weight = weights === null ? 0 : Math.round(100 * Math.min(1, weights(index))) / 100;
      if (this.weights[index] !== weight) button.style.setProperty("--weight", weight);
      this.weights[index] = weight;
      if (button.classList.contains("hovered") !== (index === chosen)) button.classList.toggle("hovered");
    });
  }

  onKey(event) {
    const forward = this.root.dir === "rtl" ? "ArrowLeft" : "ArrowRight";
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    const move = Number.isFinite(moves[event.key]) ? (event.key === forward ? 1 : -1) : moves[event.key];
    const now = this.buttons.indexOf(document.activeElement);
    const next = Math.max(0, Math.min(this.buttons.length - 1, now + move));
    event.preventDefault();
    this.buttons.forEach((button, index) => (button.tabIndex = index === next ? 0 : -1));
    this.buttons[next]?.focus();
  }
}
