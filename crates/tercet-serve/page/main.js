// The page of the server: conversations, their answers, and the views.

import * as api from "./api.js";
import { $, button, element, notice } from "./dom.js";
import { addEvent, messageElement, messageJson } from "./messages.js";
import { allowPictures, setUpPictures, takePictures } from "./pictures.js";
import { applyTheme, settingFields, setUpSettings } from "./settings.js";
import { store } from "./store.js";
import { setUpVectors } from "./vectors.js";

const TITLE_CHARS = 48;

let conversation = store.current() ?? store.begin();
let models = [];
// Stops the running answer; null if none runs.
let running = null;

const actions = {
  isRunning: () => running !== null,
  isLast: (message) => conversation.messages.at(-1) === message,
  // Whether a call has no result yet, and the conversation has not gone on without it.
  awaits: (message, of) => {
    const after = conversation.messages.slice(conversation.messages.indexOf(message) + 1);
    const isAnswered = after.some((m) => m.role === "tool" && m.call === of.id);
    return running === null && !isAnswered && after.every((m) => m.role === "tool");
  },
  show: () => showMessages(),
  again: (message) => {
    cutAt(message);
    answer();
  },
  edit: (message, text) => {
    cutAt(message);
    say({ ...message, text });
  },
  result: (of, text) => {
    conversation.messages.push({ role: "tool", call: of.id, text });
    const calls = conversation.messages.findLast((m) => m.role === "assistant").calls;
    const isDone = (c) => conversation.messages.some((m) => m.role === "tool" && m.call === c.id);
    if (calls.every(isDone)) {
      answer();
    } else {
      save();
      showMessages();
    }
  },
};

// Removes a message and all later ones.
function cutAt(message) {
  conversation.messages.splice(conversation.messages.indexOf(message));
}

function save() {
  if (!store.save()) {
    notice("The browser's storage is full: this conversation is not saved. Delete older ones.");
  }
}

function showMessages() {
  const list = $("messages");
  list.replaceChildren(...conversation.messages.map((message) => messageElement(message, actions)));
  list.scrollTop = list.scrollHeight;
  $("stop").hidden = running === null;
  $("send").disabled = running !== null;
}

// Replaces the last message, which is the answer that is written.
function showAnswer() {
  const list = $("messages");
  const follows = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
  list.lastElementChild?.replaceWith(messageElement(conversation.messages.at(-1), actions));
  if (follows) {
    list.scrollTop = list.scrollHeight;
  }
}

function showConversations() {
  const items = store.conversations.map((of) => {
    const open = button(of.title, () => openConversation(of));
    open.setAttribute("aria-current", String(of === conversation));
    return element("li", {}, open, button("×", () => remove(of), `Delete ${of.title}`));
  });
  $("conversations").replaceChildren(...items);
}

function openConversation(of) {
  running?.abort();
  running = null;
  conversation = of;
  store.select(of);
  notice("");
  $("speed").textContent = "";
  showView("chat");
  showConversations();
  showMessages();
}

function remove(of) {
  store.remove(of);
  save();
  if (of === conversation) {
    openConversation(store.conversations[0] ?? store.begin());
  } else {
    showConversations();
  }
}

function say(message) {
  if (conversation.messages.length === 0) {
    conversation.title = message.text.slice(0, TITLE_CHARS) || "Picture";
  }
  conversation.messages.push(message);
  showConversations();
  answer();
}

function speedText(tokens, milliseconds) {
  const rate = milliseconds > 0 ? ` ${((tokens * 1000) / milliseconds).toFixed(1)} tokens a second` : "";
  return `${tokens} tokens${rate && ","}${rate}`;
}

// Asks for the answer to the conversation, and writes it as it comes.
async function answer() {
  const own = conversation;
  const stop = new AbortController();
  const system = store.settings.system.trim();
  const messages = own.messages.map(messageJson);
  if (system) {
    messages.unshift({ role: "system", content: system });
  }
  const written = { role: "assistant", text: "", isRunning: true };
  notice("");
  let usage = null;
  let first = 0;
  let isShown = true;
  let isCut = false;
  try {
    const body = { model: $("model").value, messages, stream: true, ...settingFields() };
    body.stream_options = { include_usage: true };
    own.messages.push(written);
    running = stop;
    showMessages();
    await api.chat(body, stop.signal, (event) => {
      first ||= performance.now();
      usage = event.usage ?? usage;
      addEvent(written, event);
      if (isShown && running === stop) {
        isShown = false;
        requestAnimationFrame(() => {
          isShown = true;
          if (own === conversation) {
            showAnswer();
          }
        });
      }
    });
  } catch (e) {
    isCut = true;
    if (e.name !== "AbortError") {
      notice(e.message);
    }
  }
  delete written.isRunning;
  if (isCut && !written.text && !written.thoughts && !written.calls) {
    own.messages = own.messages.filter((message) => message !== written);
  }
  save();
  if (running === stop) {
    running = null;
  }
  if (own !== conversation) {
    return;
  }
  $("speed").textContent = usage ? speedText(usage.completion_tokens, performance.now() - first) : "";
  showMessages();
}

function send() {
  const text = $("prompt").value.trim();
  const pictures = takePictures();
  if (running || (!text && pictures.length === 0)) {
    return;
  }
  $("prompt").value = "";
  say({ role: "user", text, ...(pictures.length && { pictures }) });
}

function showView(name) {
  for (const view of ["chat", "vectors"]) {
    $(view).hidden = view !== name;
    $(`${view}-tab`).setAttribute("aria-selected", String(view === name));
    $(`${view}-tab`).tabIndex = view === name ? 0 : -1;
  }
}

function chooseModel() {
  const chosen = models.find((model) => model.id === $("model").value);
  allowPictures(chosen?.input_modalities?.includes("image") ?? false);
  store.settings.model = $("model").value;
  store.saveSettings();
}

async function loadModels() {
  try {
    models = await api.models();
  } catch (e) {
    notice(e.message);
    return;
  }
  const fill = (select, task, chosen) => {
    const fitting = models.filter((model) => model.task === task);
    select.replaceChildren(...fitting.map((model) => element("option", { value: model.id }, model.id)));
    if (fitting.some((model) => model.id === chosen)) {
      select.value = chosen;
    }
    return fitting.length > 0;
  };
  const hasLanguage = fill($("model"), "text-generation", store.settings.model);
  const hasEncoder = fill($("encoder"), "feature-extraction");
  $("prompt").disabled = !hasLanguage;
  $("compare").querySelector("button").disabled = !hasEncoder;
  if (!hasLanguage && hasEncoder) {
    showView("vectors");
  }
  chooseModel();
}

function setUpKeys() {
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running && !$("settings").open) {
      running.abort();
    }
  });
  // Arrows move between the tabs, as a tab list does.
  document.querySelector(".tabs").addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const other = $("chat").hidden ? "chat" : "vectors";
      showView(other);
      $(`${other}-tab`).focus();
    }
  });
}

applyTheme();
showConversations();
showMessages();
setUpPictures();
setUpVectors();
setUpKeys();
setUpSettings({
  deleteAll: () => {
    store.conversations = [];
    save();
    openConversation(store.begin());
  },
  closed: () => loadModels(),
});
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("stop").addEventListener("click", () => running?.abort());
$("new-chat").addEventListener("click", () => {
  const empty = store.conversations.find((of) => of.messages.length === 0);
  openConversation(empty ?? store.begin());
  $("prompt").focus();
});
$("chat-tab").addEventListener("click", () => showView("chat"));
$("vectors-tab").addEventListener("click", () => showView("vectors"));
$("model").addEventListener("change", chooseModel);
window.addEventListener("pagehide", () => store.save());
await loadModels();
