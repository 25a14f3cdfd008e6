// Conversations and settings in the browser's storage. The key of the server stays in the tab.

const CONVERSATIONS = "tercet.conversations";
const SETTINGS = "tercet.settings";
const CURRENT = "tercet.current";
const KEY = "tercet.key";

export const DEFAULTS = {
  system: "", temperature: "", top_p: "", max_tokens: "", seed: "", thinking: "", theme: "", tools: "",
  tool_choice: "auto",
};

function read(name, otherwise) {
  try {
    const value = JSON.parse(localStorage.getItem(name));
    return value !== null && typeof value === typeof otherwise ? value : otherwise;
  } catch {
    return otherwise;
  }
}

// The saved conversations, without entries that another version or program wrote.
function saved() {
  const all = read(CONVERSATIONS, []);
  const isMessage = (m) => m && typeof m.role === "string" && typeof m.text === "string";
  const isConversation = (c) =>
    c && typeof c.id === "string" && Array.isArray(c.messages) && c.messages.every(isMessage);
  return Array.isArray(all) ? all.filter(isConversation) : [];
}

export const store = {
  conversations: saved(),
  settings: { ...DEFAULTS, ...read(SETTINGS, {}) },
  key: sessionStorage.getItem(KEY) ?? "",

  current() {
    const id = localStorage.getItem(CURRENT);
    return this.conversations.find((c) => c.id === id) ?? null;
  },

  select(conversation) {
    localStorage.setItem(CURRENT, conversation?.id ?? "");
  },

  begin() {
    const conversation = { id: crypto.randomUUID?.() ?? String(Math.random()), title: "New chat", messages: [] };
    this.conversations.unshift(conversation);
    this.select(conversation);
    return conversation;
  },

  remove(conversation) {
    this.conversations = this.conversations.filter((c) => c !== conversation);
  },

  // Saves all conversations. False if the storage is full.
  save() {
    const full = this.conversations.filter((c) => c.messages.length > 0);
    try {
      localStorage.setItem(CONVERSATIONS, JSON.stringify(full));
      return true;
    } catch {
      return false;
    }
  },

  saveSettings() {
    localStorage.setItem(SETTINGS, JSON.stringify(this.settings));
    sessionStorage.setItem(KEY, this.key);
  },
};
