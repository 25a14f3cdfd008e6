// Rows of states by vectors: F32, rows of whole vectors. As state_rows.wgsl.

@group(0) @binding(1) var<storage, read> enter_data: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> leave_data: array<vec4<u32>>;

fn enter_words(i: u32, count: u32) -> vec4<u32> {
    return enter_data[i / 4u];
}

fn leave_words(i: u32, count: u32) -> vec4<u32> {
    return leave_data[i / 4u];
}
