// Calls of the server that served the page.

import { store } from "./store.js";

function headers() {
  const all = { "Content-Type": "application/json" };
  if (store.key) {
    all.Authorization = `Bearer ${store.key}`;
  }
  return all;
}

async function request(path, body, signal) {
  const method = body === undefined ? "GET" : "POST";
  const response = await fetch(path, {
    method, headers: headers(), signal, body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (response.ok) {
    return response;
  }
  const text = await response.text();
  let message = `${response.status} ${response.statusText}`;
  try {
    message = JSON.parse(text).error.message ?? message;
  } catch {
    // An answer of something between the page and the server.
  }
  const hint = response.status === 401 ? "; set the API key in the settings" : "";
  throw new Error(message + hint);
}

export async function models() {
  return (await (await request("v1/models")).json()).data;
}

export async function embed(model, input) {
  const answer = await (await request("v1/embeddings", { model, input })).json();
  return answer.data.map((item) => item.embedding);
}

// Streams an answer; `onEvent` gets each event.
export async function chat(body, signal, onEvent) {
  const response = await request("v1/chat/completions", body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) {
      return;
    }
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data:") ? line.slice(5).trim() : "";
      if (!data || data === "[DONE]") {
        continue;
      }
      const event = JSON.parse(data);
      if (event.error) {
        throw new Error(event.error.message ?? "the answer failed");
      }
      onEvent(event);
    }
  }
}
