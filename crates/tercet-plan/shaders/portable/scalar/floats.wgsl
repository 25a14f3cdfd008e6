// True for devices whose native F32 addition, subtraction and multiplication preserve subnormal
// numbers; set by `native_ops.rs`.
const NATIVE_FLOATS: bool = false;
