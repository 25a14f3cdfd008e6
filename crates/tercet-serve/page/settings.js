// The dialog of settings, and the fields of requests that they set.

import { $ } from "./dom.js";
import { store } from "./store.js";

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

export function applyTheme() {
  document.documentElement.dataset.theme = store.settings.theme;
}

// The fields that the settings add to a request.
export function settingFields() {
  const { settings } = store;
  const fields = {};
  for (const name of NUMBERS) {
    if (settings[name] !== "" && Number.isFinite(Number(settings[name]))) {
      fields[name] = Number(settings[name]);
    }
  }
  if (settings.thinking) {
    fields.enable_thinking = settings.thinking === "on";
  }
  if (settings.tools.trim()) {
    fields.tools = parsedTools(settings.tools);
    fields.tool_choice = settings.tool_choice;
  }
  return fields;
}

// Tools as the server reads them; a list of bare functions is wrapped.
function parsedTools(text) {
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (e) {
    throw new Error(`the tools in the settings are no JSON: ${e.message}`);
  }
  if (!Array.isArray(tools)) {
    throw new Error("the tools in the settings are no JSON list");
  }
  return tools.map((tool) => (tool?.function ? tool : { type: "function", function: tool }));
}

export function setUpSettings({ deleteAll, closed }) {
  const dialog = $("settings");
  const form = dialog.querySelector("form");
  const named = () => [...form.elements].filter((field) => field.name);
  $("open-settings").addEventListener("click", () => {
    for (const field of named()) {
      field.value = field.name === "key" ? store.key : store.settings[field.name];
    }
    dialog.showModal();
  });
  form.addEventListener("input", () => {
    for (const field of named()) {
      if (field.name === "key") {
        store.key = field.value.trim();
      } else {
        store.settings[field.name] = field.value;
      }
    }
    applyTheme();
    store.saveSettings();
  });
  dialog.addEventListener("close", closed);
  $("delete-all").addEventListener("click", () => {
    if (confirm("Delete all conversations of this browser?")) {
      deleteAll();
      dialog.close();
    }
  });
}
