// Runs the models on a separate thread, so that the page stays responsive.
import init, { Tercet } from "./pkg/web.js";

const MODELS = "models/";
let tercet;

async function bytes(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status} ${response.statusText}`);
  return new Uint8Array(await response.arrayBuffer());
}

// Opens a device and returns it with its name. `wanted` is `auto`, `webgpu` or `cpu`. `auto` skips a GPU that is emulated on the CPU,
// because it is slower than the CPU executor.
async function find(wanted) {
  let why = "requested";
  if (wanted !== "cpu") {
    try {
      const adapter = await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" });
      const { vendor, architecture, description, isFallbackAdapter } = adapter?.info ?? {};
      if (!navigator.gpu) why = "this browser has no WebGPU";
      else if (!adapter) why = "WebGPU found no graphics adapter";
      else if (isFallbackAdapter && wanted !== "webgpu") why = "WebGPU is emulated on the CPU";
      else {
        const name = [description, vendor, architecture].filter(Boolean).join(" ");
        return [await Tercet.webgpu(), `WebGPU (${name || "no name"})`];
      }
    } catch (error) {
      why = error.message;
    }
    if (wanted === "webgpu") throw new Error(why);
  }
  return [Tercet.cpu(), `CPU, one thread: ${why}`];
}

const calls = {
  async open(wanted) {
    await init();
    let name;
    [tercet, name] = await find(wanted);
    return name;
  },
  async openLanguage() {
    tercet.openLanguage(await bytes(`${MODELS}language.gguf`));
  },
  async write(prompt, most, piece) {
    const { tokens, finish } = await tercet.write(prompt, most, piece);
    return { tokens: [...tokens], finish };
  },
  async openSentences() {
    const names = ["config.json", "tokenizer.json", "model.safetensors"];
    const [config, tokenizer, weights] = await Promise.all(
      names.map((name) => bytes(`${MODELS}minilm/${name}`)),
    );
    tercet.openSentences(config, tokenizer, weights);
  },
  embed: (texts) => tercet.embed(texts),
  root: (x) => tercet.root(x),
};

// Calls run one after the other, because a model can process only one call at a time.
let last = Promise.resolve();
addEventListener("message", ({ data: { id, call, args } }) => {
  const piece = (text) => postMessage({ id, piece: text });
  last = last.then(async () => {
    try {
      postMessage({ id, result: await calls[call](...args, piece) });
    } catch (error) {
      postMessage({ id, error: error.message ?? String(error) });
    }
  });
});
