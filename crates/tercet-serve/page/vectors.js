// Embeddings of texts, compared by the cosine of their angle.

import { embed } from "./api.js";
import { $, element, notice } from "./dom.js";

function cosine(a, b) {
  let [dot, aa, bb] = [0, 0, 0];
  a.forEach((x, i) => {
    dot += x * b[i];
    aa += x * x;
    bb += b[i] * b[i];
  });
  return dot / Math.sqrt(aa * bb || 1);
}

function table(texts, rows) {
  const head = texts.map((text) => element("th", { title: text, scope: "col" }, text));
  const lines = rows.map((row, at) => {
    const cells = rows.map((other) => {
      const value = cosine(row, other);
      const meter = element("meter", { min: 0, max: 1, value, "aria-hidden": "true" });
      return element("td", {}, value.toFixed(3), " ", meter);
    });
    return element("tr", {}, element("th", { title: texts[at], scope: "row" }, texts[at]), ...cells);
  });
  return element("table", {}, element("caption", {}, "Cosine similarity"),
    element("thead", {}, element("tr", {}, element("td"), ...head)), element("tbody", {}, ...lines));
}

export function setUpVectors() {
  $("compare").addEventListener("submit", async (event) => {
    event.preventDefault();
    const texts = $("texts").value.split("\n").map((text) => text.trim()).filter(Boolean);
    if (texts.length < 2) {
      notice("Enter at least two texts, one on a line.");
      return;
    }
    notice("");
    try {
      const rows = await embed($("encoder").value, texts);
      $("similarities").replaceChildren(table(texts, rows));
    } catch (e) {
      notice(e.message);
    }
  });
}
