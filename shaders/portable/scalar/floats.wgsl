// True for devices whose sums, differences and products of F32 keep subnormal numbers (`natives.rs`).
const NATIVE_FLOATS: bool = false;
