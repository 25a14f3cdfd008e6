// One row times columns that lie along k: everything is read in quads of words straight from memory, where the
// row soon is in the nearest cache. Offsets, columns and k are whole pieces of b, 4 or 8 elements. Pieces of
// each column are asked for BATCH at a time before any is used.

override B_TYPE: u32 = 0u;
override UNITS: u32 = 8u;
override PER: u32 = 1u;
override GATED: u32 = 0u;

@group(0) @binding(2) var<storage, read> b_data: array<vec4<u32>>;

const ACROSS: u32 = 0u;
const X_QUADS: u32 = 0u;
// Every unit takes all of the row.
const SQUARE_UNITS: u32 = 1u;
const BATCH: u32 = 4u;
const QUADS: u32 = 1u + (B_TYPE + 1u) / 2u;
const PIECE: u32 = 4u * QUADS;

fn b_four(words: vec4<u32>, quad: u32) -> vec4<f32> {
    if B_TYPE == F32 {
        return bitcast<vec4<f32>>(words);
    }
    return four_floats(select(words.xy, words.zw, quad == 1u), B_TYPE);
}

fn accumulate(col: u32, slice: u32, local: u32, fresh: bool) {
    let pieces = p.k / PIECE;
    let last = max(pieces, 1u) - 1u;
    let u = (b_base + col * p.b_col) / PIECE;
    let v = (b_base + beside(col) * p.b_col) / PIECE;
    for (var first = slice; first < pieces; first += BATCH * SLICES) {
        var us: array<vec4<u32>, BATCH>;
        var vs: array<vec4<u32>, BATCH>;
        for (var j = 0u; j < BATCH; j += 1u) {
            let piece = min(first + j * SLICES, last);
            us[j] = b_data[u + piece];
            if PER == 2u {
                vs[j] = b_data[v + piece];
            }
        }
        for (var j = 0u; j < BATCH; j += 1u) {
            let piece = min(first + j * SLICES, last);
            let inside = first + j * SLICES <= last;
            for (var quad = 0u; quad < QUADS; quad += 1u) {
                let k = piece * PIECE + quad * 4u;
                let x = prepared(select(vec4<f32>(), a_four(k), inside), k);
                first_low.x += dot(select(vec4<f32>(), b_four(us[j], quad), inside), x);
                if PER == 2u {
                    second_low.x += dot(select(vec4<f32>(), b_four(vs[j], quad), inside), x);
                }
            }
        }
    }
}
