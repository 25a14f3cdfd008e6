// RoPE pair rotation. The pairs of the first n_rot elements of a head are (i, i + n_rot / 2), or (2
// i, 2 i + 1) if `adjacent`. The including shader declares p, cosines and sines.
// uses attention_token.wgsl or rope.wgsl or rope_append.wgsl: cosines, p, sines
// uses prelude.wgsl: float_bits, float_of, lane_of, word_of

override DTYPE: u32 = 0u;
override COS: u32 = 0u;
override SIN: u32 = 0u;

struct Turn {
    pair: u32,
    // Index of the pair's other element, and whether this element is the second one.
    other: u32,
    is_b: bool,
}

fn turn_of(d: u32) -> Turn {
    if p.adjacent == 1u {
        let is_b = d % 2u == 1u;
        return Turn(d / 2u, select(d + 1u, d - 1u, is_b), is_b);
    }
    let half = p.n_rot / 2u;
    let is_b = d >= half;
    return Turn(select(d, d - half, is_b), select(d + half, d - half, is_b), is_b);
}

// Bits of the rotated element `own` of a pair. `cos_at` and `sin_at` index the tables.
fn turned_pair(own: f32, other: f32, cos_at: u32, sin_at: u32, is_b: bool) -> u32 {
    let kept = own * float_of(cosines[word_of(cos_at, COS)], lane_of(cos_at, COS), COS);
    let mixed = other * float_of(sines[word_of(sin_at, SIN)], lane_of(sin_at, SIN), SIN);
    return float_bits(select(kept - mixed, kept + mixed, is_b), DTYPE);
}
