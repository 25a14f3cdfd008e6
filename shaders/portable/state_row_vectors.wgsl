// Rows of states by vectors of 16 bytes: F32 in rows of whole fours, 16 bits in rows of whole eights. As
// state_rows.wgsl.
// uses prelude.wgsl: F32
// uses states.wgsl: DTYPE

@group(0) @binding(1) var<storage, read> enter_data: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> leave_data: array<vec4<u32>>;

// The words that are read are those of a whole vector of so many elements.
const ALIGNED: bool = true;
const OF_VECTOR: u32 = select(8u, 4u, DTYPE == F32);

fn enter_words(i: u32, count: u32) -> vec4<u32> {
    return enter_data[i / OF_VECTOR];
}

fn leave_words(i: u32, count: u32) -> vec4<u32> {
    return leave_data[i / OF_VECTOR];
}
