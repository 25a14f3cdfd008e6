// What scans over states share. A workgroup of 128 invocations takes CHANNELS channels; LANES invocations
// share the states of each, which lie in registers, QUADS times four an invocation: state 4 (lane QUADS +
// q) + i. Invocation lane * CHANNELS + channel, so that neighbours are neighbouring channels. The sequence
// comes in blocks of STEPS, the next one loaded while one is worked on.

override DTYPE: u32 = 0u;
override LANES: u32 = 4u;
override QUADS: u32 = 1u;
override STEPS: u32 = 16u;

const THREADS: u32 = 128u;
const CHANNELS: u32 = THREADS / LANES;
// Vectors of four states of a channel.
const WIDTH: u32 = LANES * QUADS;
// Elements of a block that each invocation loads: of its channels, and of its states.
const OF_CHANNELS: u32 = (STEPS * CHANNELS + THREADS - 1u) / THREADS;
const OF_STATES: u32 = (STEPS * WIDTH + THREADS - 1u) / THREADS;
const LOG2_E: f32 = 1.442695;
