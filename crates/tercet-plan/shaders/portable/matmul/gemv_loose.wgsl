// Activation rows read from global memory, with any strides.

const UNITS: u32 = 8u + 8u * ACROSS;
const X_QUADS: u32 = 0u;
const GATED: u32 = 0u;

// Column k of a: rows 0 to 3, and 4 to 7. Rows beyond m are 0.
fn low_rows(k: u32) -> vec4<f32> {
    if ROWS == 1u {
        return vec4<f32>(a_at(0u, k), 0.0, 0.0, 0.0);
    }
    return vec4<f32>(a_at(0u, k), a_at(1u, k), a_at(2u, k), a_at(3u, k));
}

fn high_rows(k: u32) -> vec4<f32> {
    return vec4<f32>(a_at(4u, k), a_at(5u, k), a_at(6u, k), a_at(7u, k));
}
