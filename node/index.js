'use strict';

const native = require('./build/tercet.node');

// Handles are freed when their object is collected, or by `close`.
const finalizers = new FinalizationRegistry((handle) => native.free(handle));

class Handle {
  #handle;

  constructor(handle) {
    this.#handle = handle;
    finalizers.register(this, handle, this);
  }

  // 0 after `close`, which the library rejects.
  get _handle() {
    return this.#handle;
  }

  close() {
    if (this.#handle === 0) return;
    finalizers.unregister(this);
    native.free(this.#handle);
    this.#handle = 0;
  }

  [Symbol.dispose ?? Symbol('dispose')]() {
    this.close();
  }
}

const ARRAYS = {
  f32: Float32Array,
  f64: Float64Array,
  i32: Int32Array,
  u32: Uint32Array,
  i64: BigInt64Array,
  i16: Int16Array,
  i8: Int8Array,
  u8: Uint8Array,
  bool: Uint8Array,
  // The bits of 16-bit floats.
  f16: Uint16Array,
  bf16: Uint16Array,
};

function dtypeOf(data) {
  const found = Object.entries(ARRAYS).find(([, array]) => data instanceof array);
  if (!found || data instanceof Uint16Array) {
    throw new TypeError('a tensor needs `dtype` with this array: a typed array of f32, f64, i32, u32, i64, i16, i8 or u8');
  }
  return found[0];
}

class Tensor {
  constructor(data, shape, dtype) {
    if (!ArrayBuffer.isView(data) || data instanceof DataView) {
      throw new TypeError('the data of a tensor is a typed array');
    }
    this.dtype = dtype ?? dtypeOf(data);
    const array = ARRAYS[this.dtype];
    if (!array) throw new TypeError(`unknown dtype \`${this.dtype}\`; expected one of ${Object.keys(ARRAYS).join(', ')}`);
    if (!(data instanceof array)) {
      throw new TypeError(`the data of a tensor of ${this.dtype} is a ${array.name}, not a ${data.constructor.name}`);
    }
    this.shape = shape ? Array.from(shape) : [data.length];
    this.data = data;
  }
}

class Device extends Handle {
  static async open(name = 'auto') {
    return new Device(await native.openDevice(name));
  }
}

// Calls `use` with a device: an open one, or one that is opened by name for this call.
async function withDevice(device, use) {
  if (device instanceof Device) return use(device._handle);
  const opened = await Device.open(device);
  try {
    return await use(opened._handle);
  } finally {
    opened.close();
  }
}

class Session extends Handle {
  static async open(path, { device, bounds = {} } = {}) {
    return new Session(
      await withDevice(device, (handle) => native.openSession(handle, path, Object.entries(bounds), true)),
    );
  }

  static async fromText(text, { device, bounds = {} } = {}) {
    return new Session(
      await withDevice(device, (handle) => native.openSession(handle, text, Object.entries(bounds), false)),
    );
  }

  get inputs() {
    return native.ports(this._handle, 0);
  }

  get outputs() {
    return native.ports(this._handle, 1);
  }

  async run(inputs, outputs) {
    const given = Object.entries(inputs).map(([name, value]) => {
      const { data, shape, dtype } = value instanceof Tensor ? value : new Tensor(value);
      return { name, data, shape, dtype };
    });
    const names = outputs ?? this.outputs.map((port) => port.name);
    const results = await native.run(this._handle, given, names);
    return Object.fromEntries(
      results.map(({ name, dtype, shape, buffer }) => [name, new Tensor(new ARRAYS[dtype](buffer), shape, dtype)]),
    );
  }
}

// A generation in progress: an async iterable of pieces of text, and a promise of the whole.
class Generation {
  #pieces = [];
  #wake = null;
  #isDone = false;
  #generator;

  constructor(generator, input, options) {
    this.#generator = generator;
    const listener = (piece) => {
      this.#pieces.push(piece);
      this.#wake?.();
    };
    let promise;
    try {
      promise = native.generate(generator._handle, input, options, listener);
    } catch (error) {
      promise = Promise.reject(error);
    }
    this.result = promise.finally(() => {
      this.#isDone = true;
      this.#wake?.();
    });
    // The error is thrown by the iteration too; a program that only iterates leaves `result` alone.
    this.result.catch(() => {});
  }

  stop() {
    if (!this.#isDone) native.stop(this.#generator._handle);
  }

  async text() {
    return (await this.result).text;
  }

  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        while (this.#pieces.length > 0) yield this.#pieces.shift();
        if (this.#isDone) break;
        await new Promise((resolve) => {
          this.#wake = resolve;
        });
      }
    } finally {
      // A loop that ends early stops the generation.
      this.stop();
    }
    await this.result;
  }
}

class Generator extends Handle {
  static async open(path, { device, context = 0 } = {}) {
    return new Generator(await withDevice(device, (handle) => native.openGenerator(handle, path, { context })));
  }

  generate(prompt, options = {}) {
    return new Generation(this, prompt, forAddon(options));
  }

  chat(messages, options = {}) {
    const list = typeof messages === 'string' ? [{ role: 'user', content: messages }] : messages;
    return new Generation(this, list, forAddon(options));
  }
}

function forAddon({ stop, jsonSchema, ...options }) {
  return {
    ...options,
    stop: typeof stop === 'string' ? [stop] : stop,
    jsonSchema: jsonSchema === undefined || typeof jsonSchema === 'string' ? jsonSchema : JSON.stringify(jsonSchema),
  };
}

class Embedder extends Handle {
  static async open(path, { device, context = 0 } = {}) {
    return new Embedder(await withDevice(device, (handle) => native.openEmbedder(handle, path, { context })));
  }

  get width() {
    return native.embedderInfo(this._handle).width;
  }

  get maxTokens() {
    return native.embedderInfo(this._handle).maxTokens;
  }

  async embed(texts, options = {}) {
    const list = typeof texts === 'string' ? [texts] : texts;
    const width = this.width;
    const all = new Float32Array(await native.embed(this._handle, list, options));
    const rows = list.map((_, row) => all.subarray(row * width, (row + 1) * width));
    return typeof texts === 'string' ? rows[0] : rows;
  }
}

class Recognizer extends Handle {
  static async open(path, { device } = {}) {
    return new Recognizer(await withDevice(device, (handle) => native.openRecognizer(handle, path, {})));
  }

  async transcribe(audio, options = {}) {
    return native.transcribe(this._handle, audio, options);
  }
}

module.exports = {
  version: native.version(),
  devices: native.devices,
  liveHandles: native.liveHandles,
  Device,
  Tensor,
  Session,
  Generator,
  Generation,
  Embedder,
  Recognizer,
};
