// Fragments of 16 x 16 with F16 operands and F32 sums, staged as vectors.
// uses attention_coop.wgsl: a_tile, b_tile

alias Staged = f16;
alias Slot = vec4<f16>;
alias MatA = coop_mat16x16<f16, A>;
alias MatB = coop_mat16x16<f16, B>;
alias MatC = coop_mat16x16<f32, C>;

const SIDE: u32 = 16u;
const SLOT_SHIFT: u32 = 2u;

fn put_a(at: u32, x: vec4<f16>) {
    a_tile[at / 4u] = x;
}

fn put_b(at: u32, x: vec4<f16>) {
    b_tile[at / 4u] = x;
}
