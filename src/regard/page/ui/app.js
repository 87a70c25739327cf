// The exported page: its models run in workers, and its labs were measured when it was made.

import { Client, decodeBase64 } from "./client.js";
import { Labs } from "./labs.js";
import { Page } from "./page.js";
import { Recording } from "./recording.js";
import { readJson } from "./dom.js";

const recordings = readJson("translations");
const manifests = readJson("models");

const file = {
  hasModels: recordings !== null || manifests.length > 0,

  openViews(page) {
    const data = readJson("labs");
    return data === null ? {} : { tabLabs: new Labs(page, document.getElementById("labs-tab"), data) };
  },

  connect() {
    const engine = readJson("engine");
    return recordings?.map((one) => new Recording(one)) ?? manifests.map((manifest, index) => new Client(engine, manifest, takeWeights(index)));
  },
};

function takeWeights(index) {
  const node = document.getElementById(`weights-${index}`);
  const weights = decodeBase64(node.textContent);
  node.remove();
  return weights;
}

new Page(file).load();
