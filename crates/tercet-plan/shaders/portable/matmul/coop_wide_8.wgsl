// Fragments of 8 x 8 of F32, staged as scalars: Metal loads from pointers to scalars only.
// uses attention_coop.wgsl: a_tile, b_tile

alias Staged = f32;
alias Slot = f32;
alias MatA = coop_mat8x8<f32, A>;
alias MatB = coop_mat8x8<f32, B>;
alias MatC = coop_mat8x8<f32, C>;

const SIDE: u32 = 8u;
const SLOT_SHIFT: u32 = 0u;

fn put_a(at: u32, x: vec4<f32>) {
    a_tile[at] = x.x;
    a_tile[at + 1u] = x.y;
    a_tile[at + 2u] = x.z;
    a_tile[at + 3u] = x.w;
}

fn put_b(at: u32, x: vec4<f32>) {
    b_tile[at] = x.x;
    b_tile[at + 1u] = x.y;
    b_tile[at + 2u] = x.z;
    b_tile[at + 3u] = x.w;
}
