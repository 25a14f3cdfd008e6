// Elements without markup in strings: texts of models never become markup.

export const $ = (id) => document.getElementById(id);

// An element with properties (`aria-` ones and `role` as attributes) and children.
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("aria-") || key === "role") {
      made.setAttribute(key, value);
    } else {
      made[key] = value;
    }
  }
  made.append(...children);
  return made;
}

export function button(text, onclick, label) {
  const made = element("button", { type: "button", onclick }, text);
  if (label) {
    made.setAttribute("aria-label", label);
  }
  return made;
}

// A text with its fenced code blocks as blocks and its `code` as code.
export function formatted(text) {
  const parts = text.split(/^```[^\n]*\n?/m);
  return parts.map((part, at) => {
    if (at % 2 === 1) {
      return element("pre", {}, element("code", {}, part));
    }
    const spans = part.split(/`([^`\n]+)`/);
    return element("div", { className: "text" },
      ...spans.map((span, i) => (i % 2 === 1 ? element("code", {}, span) : span)));
  });
}

export function notice(text) {
  $("notice").textContent = text;
}
