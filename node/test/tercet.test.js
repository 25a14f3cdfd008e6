'use strict';
// node --test: with the models of the folder TERCET_TEST_DATA.

const assert = require('node:assert/strict');
const path = require('node:path');
const { test } = require('node:test');
const { Worker } = require('node:worker_threads');

const tercet = require('..');

const data = process.env.TERCET_TEST_DATA ?? path.join(__dirname, '..', '..', 'tests', 'data');
const model = path.join(data, 'tiny-rust-llama', 'tiny-rust-llama-q8_0.gguf');
const device = process.env.TERCET_DEVICE ?? 'cpu';

const GRAPH = `graph {
  %x = input{name="x", ty=f32[rows, 2]}()
  %y = unary{f=relu}(%x)
  return %y as "y"
}`;

test('devices', async () => {
  const found = await tercet.devices();
  assert.ok(found.some((entry) => entry.name === 'cpu' && entry.usable));
  assert.match(tercet.version, /^\d+\.\d+\.\d+/);
});

test('a graph in text form', async () => {
  const session = await tercet.Session.fromText(GRAPH, { device, bounds: { rows: 8 } });
  assert.deepEqual(session.inputs, [
    { name: 'x', type: 'f32[rows, 2]', dtype: 'f32', optional: false, shape: [-1, 2] },
  ]);
  const x = new tercet.Tensor(Float32Array.of(1, -2, -3, 4), [2, 2]);
  const { y } = await session.run({ x });
  assert.deepEqual(y, new tercet.Tensor(Float32Array.of(1, 0, 0, 4), [2, 2]));
  const runs = await Promise.all(Array.from({ length: 20 }, () => session.run({ x }, ['y'])));
  assert.ok(runs.every((run) => run.y.data[3] === 4));
  session.close();
});

test('an ONNX model', async () => {
  const session = await tercet.Session.open(path.join(data, 'cases', 'onnx', 'asinh.onnx'), { device });
  const [port] = session.inputs;
  const shape = port.shape.map((size) => (size < 0 ? 2 : size));
  const x = new tercet.Tensor(new Float32Array(shape.reduce((n, size) => n * size, 1)).fill(1), shape);
  const outputs = await session.run({ [port.name]: x });
  const [y] = Object.values(outputs);
  assert.ok(Math.abs(y.data[0] - Math.asinh(1)) < 1e-6);
});

test('text is streamed while the event loop runs', async () => {
  const generator = await tercet.Generator.open(model, { device, context: 512 });
  let ticks = 0;
  const timer = setInterval(() => ++ticks, 1);
  const generation = generator.generate('fn main', { maxTokens: 24 });
  const pieces = [];
  for await (const piece of generation) pieces.push(piece);
  clearInterval(timer);
  const result = await generation.result;
  assert.equal(pieces.join(''), result.text);
  assert.ok(pieces.length > 4);
  assert.ok(ticks > 0, 'the event loop was blocked');
  assert.equal(result.finish, 'length');
  assert.equal(result.tokens.length, 24);

  // Two generators at once, and the same text.
  const other = await tercet.Generator.open(model, { device, context: 256 });
  const both = await Promise.all([generator, other].map((g) => g.generate('fn main', { maxTokens: 24 }).text()));
  assert.deepEqual(both, [result.text, result.text]);

  const stopped = generator.generate('fn main', { ignoreEnd: true });
  for await (const piece of stopped) {
    assert.ok(piece.length > 0);
    break;
  }
  assert.equal((await stopped.result).finish, 'cancelled');

  const answer = await generator.chat('What is a lifetime?', { regex: '[a-z]{6}', temperature: 0.7, seed: 3 }).text();
  assert.match(answer, /^[a-z]{6}$/);
  const json = await generator.chat([{ role: 'user', content: 'JSON' }], {
    jsonSchema: { enum: ['yes'] },
    maxTokens: 16,
  }).text();
  assert.equal(json, '"yes"');
  generator.close();
  other.close();
});

test('embeddings', async () => {
  const embedder = await tercet.Embedder.open(path.join(data, 'encoders', 'sentence-a'), { device });
  const rows = await embedder.embed(['one', 'two'], { truncate: true });
  assert.equal(rows.length, 2);
  assert.equal(rows[0].length, embedder.width);
  assert.deepEqual(await embedder.embed('one', { truncate: true }), rows[0]);
  assert.ok(embedder.maxTokens > 0);
});

test('transcription', async () => {
  const recognizer = await tercet.Recognizer.open(path.join(data, 'speech', 'moonshine-a'), { device });
  const transcript = await recognizer.transcribe(path.join(data, 'speech', 'speech.flac'));
  assert.ok(transcript.seconds > 1);
  const samples = new Float32Array(16000);
  assert.equal((await recognizer.transcribe(samples)).seconds, 1);
  await assert.rejects(recognizer.transcribe(new Float64Array(4)), TypeError);
});

test('bad input is an error with a code', async () => {
  const code = (name) => (error) => error instanceof Error && error.code === name && error.message.length > 8;
  await assert.rejects(tercet.Device.open('abacus'), code('TERCET_STATUS_DEVICE'));
  await assert.rejects(tercet.Device.open(3), TypeError);
  await assert.rejects(tercet.Generator.open('no/such.gguf', { device }), code('TERCET_STATUS_NOT_FOUND'));
  await assert.rejects(tercet.Session.fromText('graph {', { device }), code('TERCET_STATUS_GRAPH'));
  await assert.rejects(tercet.Session.fromText(GRAPH, { device }), code('TERCET_STATUS_COMPILE'));
  await assert.rejects(tercet.Session.open(model, { device }), code('TERCET_STATUS_ARGUMENT'));
  await assert.rejects(tercet.Session.fromText(GRAPH, { device, bounds: { rows: 'many' } }), TypeError);

  const session = await tercet.Session.fromText(GRAPH, { device, bounds: { rows: 8 } });
  await assert.rejects(session.run({ x: Int32Array.of(1, 2) }), code('TERCET_STATUS_TYPE'));
  await assert.rejects(session.run({ x: new tercet.Tensor(Float32Array.of(1), [2]) }), code('TERCET_STATUS_TYPE'));
  await assert.rejects(session.run({ z: Float32Array.of(1, 2) }), code('TERCET_STATUS_NAME'));
  await assert.rejects(session.run({}), code('TERCET_STATUS_NAME'));
  await assert.rejects(session.run({ x: [1, 2] }), TypeError);
  assert.throws(() => new tercet.Tensor(new Uint16Array(2)), TypeError);
  assert.throws(() => new tercet.Tensor(new Float32Array(2), [2], 'f64'), TypeError);
  session.close();
  session.close();
  assert.throws(() => session.inputs, code('TERCET_STATUS_NULL'));
  await assert.rejects(session.run({ x: Float32Array.of(1, 2) }, ['y']), code('TERCET_STATUS_NULL'));

  const generator = await tercet.Generator.open(model, { device, context: 64 });
  await assert.rejects(generator.generate('a'.repeat(5000)).text(), code('TERCET_STATUS_ARGUMENT'));
  await assert.rejects(generator.generate('a', { regex: 'a', grammar: 'b' }).text(), code('TERCET_STATUS_ARGUMENT'));
  await assert.rejects(generator.generate('a', { temperature: 'hot' }).text(), TypeError);
  await assert.rejects(generator.generate('a\0b').text(), TypeError);
  await assert.rejects(generator.generate(undefined).text(), TypeError);
  await assert.rejects(generator.chat([]).text(), code('TERCET_STATUS_ARGUMENT'));
  await assert.rejects(generator.chat([{ role: 'user' }]).text(), TypeError);
  await assert.rejects(async () => {
    for await (const piece of generator.generate('a', { minP: -1 })) assert.fail(piece);
  }, code('TERCET_STATUS_ARGUMENT'));
  generator.close();
  await assert.rejects(generator.generate('a').text(), code('TERCET_STATUS_NULL'));
});

test('worker threads', async () => {
  const worker = new Worker(
    `const { parentPort, workerData } = require('node:worker_threads');
     const tercet = require(workerData.module);
     tercet.Generator.open(workerData.model, { device: workerData.device, context: 64 })
       .then((generator) => generator.generate('fn', { maxTokens: 4 }).text())
       .then((text) => parentPort.postMessage(text));`,
    { eval: true, workerData: { module: path.join(__dirname, '..'), model, device } },
  );
  const text = await new Promise((resolve, reject) => {
    worker.on('message', resolve);
    worker.on('error', reject);
  });
  assert.ok(text.length > 0);
});
