// The page of a server: its models, training logs, comparisons and labs come from the API.

import { Api } from "./api.js";
import { Comparisons } from "./comparisons.js";
import { LiveLabs } from "./live-labs.js";
import { Page } from "../ui/page.js";
import { Remote } from "./remote.js";
import { SERVED_TEXTS } from "./served-texts.js";
import { TEXTS, t } from "../ui/texts.js";
import { TokenForm } from "./token-form.js";
import { Training } from "./training.js";
import { element, readJson } from "../ui/dom.js";

const LOOK = 2000; // milliseconds between two looks for models of runs in training

const main = document.getElementById("main");
const api = new Api(readJson("server").api, new TokenForm(main));

const server = {
  runs: [],

  get hasModels() {
    return this.runs.length > 0;
  },

  async openViews(page) {
    const [runs, { comparisons }] = await Promise.all([api.get("/runs"), api.get("/comparisons")]);
    this.runs = runs;
    const logged = runs.filter(({ finished, logged }) => logged || !finished).map(({ name }) => name);
    return {
      ...(logged.length > 0 ? { tabTraining: new Training(page, addSection("training-tab"), api, logged) } : {}),
      ...(comparisons.length > 0 ? { tabComparisons: new Comparisons(page, addSection("comparisons-tab"), api, comparisons) } : {}),
      tabLabs: new LiveLabs(page, document.getElementById("labs-tab"), api),
    };
  },

  // Models of runs in training come later: the first is waited for.
  async connect(page, status) {
    const listed = async () => (await api.get("/models")).models;
    let models = await listed();
    while (models.length === 0 && this.hasModels) {
      status.textContent = t("noModelYet");
      await pause();
      models = await listed();
    }
    if (models.length < this.runs.length) this.lookForMore(page, listed);
    return models.map((info) => new Remote(api, info));
  },

  async lookForMore(page, listed) {
    do {
      await pause();
      const models = await listed().catch(() => []);
      const added = page.models ? models.filter(({ name }) => !page.models.some((known) => known.name === name)) : [];
      page.models?.push(...added);
      page.clients.push(...added.map((info) => new Remote(api, info)));
      if (added.length > 0) for (const panel of page.panels) panel.render();
    } while (page.clients.length < this.runs.length);
  },
};

function addSection(id) {
  const root = element("div", { id, hidden: true });
  main.append(root);
  return root;
}

function pause() {
  return new Promise((resolve) => setTimeout(resolve, LOOK));
}

for (const [language, texts] of Object.entries(SERVED_TEXTS)) Object.assign(TEXTS[language], texts);
new Page(server).load();
