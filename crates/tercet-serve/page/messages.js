// Messages of a conversation as elements.

import { button, element, formatted } from "./dom.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool result" };

function picture(url, at) {
  return element("img", { src: url, alt: `Picture ${at + 1}` });
}

function thoughts(message) {
  // An open fold stays open while the answer is written.
  const isOpen = message.isOpen ?? false;
  const fold = element("details", { open: isOpen },
    element("summary", {}, "Thoughts"), element("div", { className: "text" }, message.thoughts));
  fold.addEventListener("toggle", () => {
    message.isOpen = fold.open;
  });
  return fold;
}

// A call, and a form for its result if there is none.
function call(message, of, actions) {
  const shown = element("div", { className: "call" },
    element("strong", {}, `Calls ${of.name}`), element("pre", {}, element("code", {}, of.arguments)));
  if (actions.awaits(message, of)) {
    const text = element("textarea", { rows: 2, "aria-label": `Result of ${of.name}` });
    shown.append(text, element("div", { className: "buttons" },
      button("Send the result", () => actions.result(of, text.value))));
  }
  return shown;
}

function editor(message, actions) {
  const text = element("textarea", { rows: 4, value: message.text, "aria-label": "Edited message" });
  const send = button("Send again", () => actions.edit(message, text.value));
  const keep = button("Cancel", () => actions.show());
  queueMicrotask(() => text.focus());
  return [text, element("div", { className: "buttons" }, keep, send)];
}

// The element of a message. `actions` has the functions of its buttons.
export function messageElement(message, actions) {
  const article = element("article", { className: message.role }, element("h3", {}, NAMES[message.role]));
  article.append(...(message.pictures ?? []).map(picture));
  if (message.thoughts) {
    article.append(thoughts(message));
  }
  article.append(...formatted(message.text));
  const isEmpty = !message.text && !message.thoughts && !message.calls;
  if (message.role === "assistant" && isEmpty && !message.isRunning) {
    article.append(element("em", {}, "an empty answer"));
  }
  article.append(...(message.calls ?? []).map((of) => call(message, of, actions)));
  if (actions.isRunning()) {
    article.classList.toggle("running", message.isRunning ?? false);
    return article;
  }
  const row = element("div", { className: "buttons" });
  if (message.role === "user") {
    row.append(button("Edit", () => article.replaceChildren(...editor(message, actions))));
  } else if (message.role === "assistant") {
    row.append(button("Copy", () => navigator.clipboard?.writeText(message.text)));
    if (actions.isLast(message)) {
      row.append(button("Again", () => actions.again(message)));
    }
  }
  article.append(row);
  return article;
}

// A message as the server reads it.
export function messageJson(message) {
  if (message.role === "tool") {
    return { role: "tool", tool_call_id: message.call, content: message.text };
  }
  if (message.role === "user" && message.pictures?.length) {
    const parts = message.pictures.map((url) => ({ type: "image_url", image_url: { url } }));
    return { role: "user", content: [...parts, { type: "text", text: message.text }] };
  }
  const json = { role: message.role, content: message.text };
  if (message.calls?.length) {
    json.tool_calls = message.calls.map((of) => (
      { id: of.id, type: "function", function: { name: of.name, arguments: of.arguments } }));
  }
  if (message.role === "assistant" && message.thoughts) {
    json.reasoning_content = message.thoughts;
  }
  return json;
}

// Adds an event of a stream to an answer.
export function addEvent(answer, event) {
  const delta = event.choices?.[0]?.delta;
  answer.text += delta?.content ?? "";
  answer.thoughts = (answer.thoughts ?? "") + (delta?.reasoning_content ?? "");
  for (const part of delta?.tool_calls ?? []) {
    const calls = (answer.calls ??= []);
    const of = (calls[part.index] ??= { id: "", name: "", arguments: "" });
    of.id ||= part.id ?? "";
    of.name += part.function?.name ?? "";
    of.arguments += part.function?.arguments ?? "";
  }
}
