// DynamicUpdate in place: overwrites a window of the dense state y with `update`, a strided operand
// of RANK axes, bit for bit. `starts` contains the window's position. If the record of a data check
// reports a failed run, nothing is written.
//
// A thread owns one word of one row of the window. If a word also contains elements of an earlier
// row, the thread of that row writes the elements of both. Elements outside the window are
// preserved.
// uses prelude.wgsl: bits_of, flat_group
// uses window.wgsl: size_of, start_of, window_of

struct Params {
    sizes: array<vec4<u32>, 2>,
    window: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
    row_words: u32,
    items: u32,
    checks: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> update: array<u32>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;
@group(0) @binding(4) var<storage, read> faults: array<u32>;

override ELEM_BYTES: u32 = 4u;
override RANK: u32 = 2u;

const OUTSIDE: u32 = 0xffffffffu;

// Source element of state element `i`, or OUTSIDE if `i` is not in the window. Strides may be
// negative: the sum wraps modulo 2^32.
fn source_of(i: u32) -> u32 {
    var rest = i;
    var at = p.offset;
    var inside = true;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        // Indices before the window wrap to large numbers.
        let local = rest % size_of(axis) - start_of(axis);
        rest /= size_of(axis);
        inside = inside && local < window_of(axis);
        at += local * p.strides[axis / 4u][axis % 4u];
    }
    return select(OUTSIDE, at, inside);
}

// State element at the start of a row of the window.
fn first_of(row: u32) -> u32 {
    var rest = row;
    var at = start_of(RANK - 1u);
    var stride = 1u;
    for (var k = 1u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        stride *= size_of(axis + 1u);
        at += (start_of(axis) + rest % window_of(axis)) * stride;
        rest /= window_of(axis);
    }
    return at;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let item = flat_group(group, count) * 256u + local;
    if item >= p.items {
        return;
    }
    for (var check = 0u; check < p.checks; check += 1u) {
        if faults[check * 64u] != 0u {
            return;
        }
    }
    let lanes = 4u / ELEM_BYTES;
    let first = first_of(item / p.row_words);
    let word = first / lanes + item % p.row_words;
    if word * lanes >= first + window_of(RANK - 1u) {
        return;
    }
    var keep = 0xffffffffu;
    var out = 0u;
    for (var lane = 0u; lane < lanes; lane += 1u) {
        let i = word * lanes + lane;
        if i < p.numel {
            let at = source_of(i);
            if at != OUTSIDE {
                if i < first {
                    return;
                }
                let bits = bits_of(update[at / lanes], at % lanes, ELEM_BYTES);
                let shift = lane * ELEM_BYTES * 8u;
                out |= bits << shift;
                keep &= ~(bits_of(0xffffffffu, 0u, ELEM_BYTES) << shift);
            }
        }
    }
    if keep != 0xffffffffu {
        y[word] = (y[word] & keep) | out;
    }
}
