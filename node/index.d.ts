/** Version of the library. */
export const version: string;

/** A device of this machine. */
export interface DeviceInfo {
  /** Name for `Device.open`. */
  name: string;
  /** Description, or the reason why the device cannot be used. */
  description: string;
  usable: boolean;
  /** A GPU emulated on the CPU: correct, but slow. */
  emulated: boolean;
}

/** Lists the devices of this machine, best first. */
export function devices(): Promise<DeviceInfo[]>;

/** Number of live handles of the process, to find leaks in tests. */
export function liveHandles(): number;

/** An error of the library. `TypeError`s are thrown for arguments of a wrong type. */
export interface TercetError extends Error {
  /** Name of the status, such as `TERCET_STATUS_NOT_FOUND`. */
  code: string;
}

/** Owns memory outside of JavaScript until it is closed or collected. */
declare class Handle {
  protected constructor();
  /** Frees the memory at once. Later calls fail; running ones complete. */
  close(): void;
}

/** A device that compiles and runs graphs and models. */
export class Device extends Handle {
  /** Opens a device: `auto` [default], `cpu`, or a name of `devices()`. */
  static open(name?: string): Promise<Device>;
}

export type Dtype = 'f32' | 'f64' | 'i32' | 'u32' | 'i64' | 'i16' | 'i8' | 'u8' | 'bool' | 'f16' | 'bf16';

export type TensorData =
  | Float32Array
  | Float64Array
  | Int32Array
  | Uint32Array
  | BigInt64Array
  | Int16Array
  | Int8Array
  | Uint8Array
  | Uint16Array;

/** Elements in row-major order with a shape. */
export class Tensor {
  /**
   * The shape is `[data.length]` by default. The dtype follows from the array, except for `bool` (a `Uint8Array`) and
   * the bits of `f16` and `bf16` (a `Uint16Array`).
   */
  constructor(data: TensorData, shape?: Iterable<number>, dtype?: Dtype);
  readonly data: TensorData;
  readonly shape: number[];
  readonly dtype: Dtype;
}

/** Name and type of an input or output. */
export interface Port {
  name: string;
  /** Type as text, such as `f32[rows, 3]`. */
  type: string;
  /** `none` if the file does not tell it. */
  dtype: Dtype | 'none';
  /** Sizes, -1 for a symbol; `null` for an unknown rank. */
  shape: number[] | null;
  /** Whether a run may leave out the input. */
  optional: boolean;
}

export interface SessionOptions {
  /** An open device or the name of one [default: `auto`]. */
  device?: Device | string;
  /** Maximum sizes of symbols. */
  bounds?: Record<string, number>;
}

/** A compiled graph or an ONNX model. */
export class Session extends Handle {
  /** Opens a file: a graph (`.tercet`) or an ONNX model (`.onnx`). */
  static open(path: string, options?: SessionOptions): Promise<Session>;
  /** Compiles a graph in text form. */
  static fromText(text: string, options?: SessionOptions): Promise<Session>;
  readonly inputs: Port[];
  readonly outputs: Port[];
  /** Runs on copies of the inputs. Returns the outputs by name: all, or only these. */
  run(inputs: Record<string, Tensor | TensorData>, outputs?: string[]): Promise<Record<string, Tensor>>;
}

export interface ModelOptions {
  /** An open device or the name of one [default: `auto`]. */
  device?: Device | string;
  /** Maximum tokens of prompt and answer, or of a text to embed [default: as many as fit]. */
  context?: number;
}

export interface GenerateOptions {
  /** Maximum number of tokens [default: until the context is full]. */
  maxTokens?: number;
  /** Divisor of the logits [default: 0, greedy]. */
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  repetitionPenalty?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  /** Seed of sampling [default: 0]. */
  seed?: number;
  /** Texts that end the generation. */
  stop?: string | string[];
  /** JSON schema of the text, as an object or JSON. At most one constraint is allowed. */
  jsonSchema?: object | string;
  /** Regular expression that the whole text matches. */
  regex?: string;
  /** Grammar in GBNF or Lark notation. */
  grammar?: string;
  /** Ignores the tokens that end a text. */
  ignoreEnd?: boolean;
}

export interface Message {
  role: 'system' | 'developer' | 'user' | 'assistant' | 'tool';
  content: string;
}

export interface GenerationResult {
  text: string;
  tokens: number[];
  promptTokens: number;
  finish: 'end' | 'stop' | 'length' | 'context' | 'cancelled';
}

/** A generation in progress: iterate over it with `for await` for its pieces. Leaving the loop stops it. */
export class Generation implements AsyncIterable<string> {
  private constructor();
  readonly result: Promise<GenerationResult>;
  /** The whole text. */
  text(): Promise<string>;
  /** Stops the generation; `result` then has the text so far. */
  stop(): void;
  [Symbol.asyncIterator](): AsyncIterator<string>;
}

/** A language model. Generations of one object wait for each other. */
export class Generator extends Handle {
  /** Opens a GGUF file, a Hugging Face folder, or the name of a model in a local cache. */
  static open(path: string, options?: ModelOptions): Promise<Generator>;
  /** Generates text after a prompt. */
  generate(prompt: string, options?: GenerateOptions): Generation;
  /** Answers a conversation. */
  chat(messages: string | Message[], options?: GenerateOptions): Generation;
}

/** A sentence encoder. */
export class Embedder extends Handle {
  static open(path: string, options?: ModelOptions): Promise<Embedder>;
  /** Number of elements of an embedding. */
  readonly width: number;
  /** Maximum tokens of a text. */
  readonly maxTokens: number;
  embed(text: string, options?: { truncate?: boolean }): Promise<Float32Array>;
  embed(texts: string[], options?: { truncate?: boolean }): Promise<Float32Array[]>;
}

export interface TranscribeOptions {
  /** Language code such as `en` [default: detected]. */
  language?: string;
  /** Translates to English. */
  translate?: boolean;
  timestamps?: boolean;
  conditionOnPrevious?: boolean;
  /** Decodes each window greedily once. */
  withoutFallback?: boolean;
  seed?: number;
}

export interface Transcript {
  text: string;
  /** `null` for models of one language. */
  language: string | null;
  seconds: number;
  segments: { start: number; end: number; text: string }[];
}

/** A speech recognition model. */
export class Recognizer extends Handle {
  static open(path: string, options?: { device?: Device | string }): Promise<Recognizer>;
  /** Transcribes a WAV, FLAC or MP3 file, or mono samples at 16,000 Hz. */
  transcribe(audio: string | Float32Array, options?: TranscribeOptions): Promise<Transcript>;
}
