// State rows in 16-byte loads: F32 rows are multiples of four elements, 16-bit rows multiples of
// eight. Same interface as state_rows.wgsl.
// uses prelude.wgsl: F32
// uses states.wgsl: DTYPE

@group(0) @binding(1) var<storage, read> enter_data: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> leave_data: array<vec4<u32>>;

// True: loads return an aligned 16-byte vector.
const ALIGNED: bool = true;
const OF_VECTOR: u32 = select(8u, 4u, DTYPE == F32);

fn enter_words(i: u32, count: u32) -> vec4<u32> {
    return enter_data[i / OF_VECTOR];
}

fn leave_words(i: u32, count: u32) -> vec4<u32> {
    return leave_data[i / OF_VECTOR];
}
