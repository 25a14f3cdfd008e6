// Forms of the page and their results. With `?test`, runs the cases of `cases.json` and posts the results.
const worker = new Worker("worker.js", { type: "module" });
const waiting = new Map();
let calls = 0;

worker.addEventListener("message", ({ data: { id, piece, result, error } }) => {
  const { resolve, reject, heard } = waiting.get(id);
  if (piece !== undefined) return heard?.(piece);
  waiting.delete(id);
  if (error !== undefined) reject(new Error(error));
  else resolve(result);
});
worker.addEventListener("error", (event) => {
  for (const { reject } of waiting.values()) reject(new Error(event.message ?? "the worker failed"));
  waiting.clear();
});

function call(name, args = [], heard) {
  return new Promise((resolve, reject) => {
    waiting.set(++calls, { resolve, reject, heard });
    worker.postMessage({ id: calls, call: name, args });
  });
}

// Models are opened at their first use.
const opened = new Map();
function open(name) {
  if (!opened.has(name)) opened.set(name, call(name));
  return opened.get(name);
}

const element = (id) => document.getElementById(id);

function failed(at, error) {
  at.textContent = error.message;
  at.classList.add("error");
}

// Runs `run` when a form is submitted. The button is disabled meanwhile.
function on(id, shown, run) {
  const form = element(id);
  const button = form.querySelector("button");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const at = element(shown);
    button.disabled = true;
    at.classList.remove("error");
    at.textContent = "…";
    try {
      await run(new FormData(form), at);
    } catch (error) {
      failed(at, error);
    }
    button.disabled = false;
  });
  button.disabled = false;
}

async function write(form, at) {
  await open("openLanguage");
  at.textContent = form.get("prompt");
  const began = performance.now();
  const heard = (piece) => at.append(piece);
  const { tokens, finish } = await call("write", [form.get("prompt"), +form.get("most")], heard);
  const seconds = (performance.now() - began) / 1000;
  const rate = (tokens.length / seconds).toFixed(1);
  element("speed").textContent = `${tokens.length} tokens, ${rate} tokens/s (${finish})`;
}

async function compare(form, at) {
  const lines = form.get("lines").split("\n").filter((line) => line.trim());
  await open("openSentences");
  const [first, ...others] = await call("embed", [lines]);
  const near = (other) => other.reduce((sum, x, i) => sum + x * first[i], 0);
  at.replaceChildren(
    ...others.map((other, i) => {
      const item = document.createElement("li");
      item.textContent = `${near(other).toFixed(3)}  ${lines[i + 1]}`;
      return item;
    }),
  );
}

async function root(form, at) {
  const [y, iterations, total] = await call("root", [+form.get("x")]);
  at.textContent = `${y}, in ${iterations} iterations; ${total} so far`;
}

// Runs all test cases on a device and measures their times.
async function test() {
  const result = { seconds: {} };
  const timed = async (name, run) => {
    const began = performance.now();
    const value = await run();
    result.seconds[name] = (performance.now() - began) / 1000;
    return value;
  };
  try {
    result.device = await timed("open", () => openDevice());
    const cases = await (await fetch("cases.json")).json();
    result.roots = await timed("roots", async () => {
      const all = [];
      for (const x of cases.roots) all.push([...(await call("root", [x]))]);
      return all;
    });
    result.refused = await call("root", [cases.refused]).then(String, (error) => error.message);
    await timed("open language", () => open("openLanguage"));
    result.texts = await timed("texts", async () => {
      const all = [];
      for (const { prompt, most } of cases.texts) {
        let text = "";
        const { tokens } = await call("write", [prompt, most], (piece) => (text += piece));
        all.push({ tokens, text });
      }
      return all;
    });
    result.embeddings = [];
    if (cases.sentences.length > 0) {
      await timed("open sentences", () => open("openSentences"));
      const embeddings = await timed("sentences", () => call("embed", [cases.sentences]));
      result.embeddings = embeddings.map((embedding) => [...embedding]);
    }
  } catch (error) {
    result.error = error.message;
  }
  await fetch("result", { method: "POST", body: JSON.stringify(result) });
}

const query = new URLSearchParams(location.search);
async function openDevice() {
  const name = await call("open", [query.get("device") ?? "auto"]);
  element("device").textContent = name;
  return name;
}

if (query.has("test")) {
  await test();
} else {
  try {
    await openDevice();
    on("language", "text", write);
    on("sentences", "near", compare);
    on("roots", "root", root);
  } catch (error) {
    failed(element("device"), error);
  }
}
