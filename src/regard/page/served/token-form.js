// Asks for the server's token, above everything else.

import { element } from "../ui/dom.js";
import { t } from "../ui/texts.js";

export class TokenForm {
  constructor(parent) {
    this.parent = parent;
  }

  // The token that the user types: printable ASCII, as every token is.
  ask(isWrong) {
    return new Promise((resolve) => {
      const named = (tag, text, properties = {}) => element(tag, { ...properties, "data-text": text }, t(text));
      const input = element("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
      const problem = named("p", "tokenWrong", { class: "problem", role: "alert", hidden: !isWrong });
      const onsubmit = (event) => {
        event.preventDefault();
        const token = input.value.trim();
        problem.hidden = /^[\x20-\x7e]+$/.test(token);
        if (!problem.hidden) return input.select();
        form.remove();
        resolve(token);
      };
      const field = element("div", { class: "group" }, input, named("button", "tokenSend", { class: "action" }));
      const form = element("form", { class: "token-form", onsubmit }, element("label", { for: "token" }, named("span", "tokenLabel")), field, problem, named("p", "tokenAbout", { class: "quiet small" }));
      this.parent.prepend(form);
      input.focus();
    });
  }
}
