// How pairs of the first n_rot elements of a head are turned: elements (i, i + n_rot / 2), or (2 i, 2 i + 1)
// where `adjacent`. Includes have p, cosines and sines.
// uses attention_token.wgsl or rope.wgsl or rope_append.wgsl: cosines, p, sines
// uses prelude.wgsl: float_bits, float_of, lane_of, word_of

override DTYPE: u32 = 0u;
override COS: u32 = 0u;
override SIN: u32 = 0u;

struct Turn {
    pair: u32,
    // The other element of the pair, and whether this is its second.
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

// The bits of the element `own`, turned with the other one of its pair by the tables' numbers there.
fn turned_pair(own: f32, other: f32, cos_at: u32, sin_at: u32, is_b: bool) -> u32 {
    let kept = own * float_of(cosines[word_of(cos_at, COS)], lane_of(cos_at, COS), COS);
    let mixed = other * float_of(sines[word_of(sin_at, SIN)], lane_of(sin_at, SIN), SIN);
    return float_bits(select(kept - mixed, kept + mixed, is_b), DTYPE);
}
