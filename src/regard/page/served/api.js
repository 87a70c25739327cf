// Requests to the server's API. Every error is an Error with a sentence for the user.

import { t } from "../ui/texts.js";

const TOKEN = "regard-token"; // in sessionStorage: until the tab is closed, never in the address

export class Api {
  // form: ask(isWrong) -> the token that the user typed
  constructor(root, form) {
    Object.assign(this, { root, form, token: recallToken(), asking: null });
  }

  get(path, signal = null) {
    return this.send(path, { signal });
  }

  post(path, body, signal = null) {
    return this.send(path, { method: "POST", body: JSON.stringify(body), signal });
  }

  // The answer; without the right token, after the user has given it.
  async send(path, options) {
    for (;;) {
      const { token } = this;
      const response = await this.request(path, options, token);
      if (response.status !== 401) return readAnswer(response);
      if (token === this.token) await this.renewToken();
    }
  }

  async request(path, options, token) {
    const headers = { "Content-Type": "application/json", ...(token === null ? {} : { Authorization: `Bearer ${token}` }) };
    try {
      return await fetch(this.root + path, { ...options, headers });
    } catch (error) {
      throw error.name === "AbortError" ? error : new Error(t("unreachable"));
    }
  }

  // One form for all requests that wait for it.
  renewToken() {
    this.asking ??= this.form.ask(this.token !== null).then((token) => {
      Object.assign(this, { token, asking: null });
      rememberToken(token);
    });
    return this.asking;
  }
}

async function readAnswer(response) {
  const answer = await response.json().catch(() => null); // a proxy may have answered
  if (response.ok && answer !== null) return answer;
  const seconds = response.headers.get("Retry-After");
  const message = answer?.error ?? `HTTP ${response.status}`;
  throw new Error(seconds === null ? message : `${message}. ${t("retryAfter", seconds)}`);
}

function recallToken() {
  try {
    return window.sessionStorage.getItem(TOKEN);
  } catch {
    return null; // not allowed here
  }
}

function rememberToken(token) {
  try {
    window.sessionStorage.setItem(TOKEN, token);
  } catch {
    // not allowed here: until the page is closed
  }
}
