// Prepack of a slice of activations for few_rows_laid.glsl. A slice is 256 elements of a row, stored as F16
// numbers with one power-of-two scale. `units` contains, per row and slice, the number that a
// stored 1 represents. This number is negative if the format has minima and the slice contains
// infinity or NaN. `sums` contains, divided by 64 and as two F16 numbers, the sums of elements that
// share a minimum.
//
//     numbers: [block of ROWS rows, slice, step of 8, row / 8, number, row % 8, lane of 4]: 16 bytes;
//     units:   [block, slice, row % ROWS], in F32;
//     sums:    [block, slice, row % ROWS, pair of 4]: 8 bytes.
//
// ORDER selects the elements of a lane in each step, as x_at, X_NEXT, X_FIRST and X_SECOND of the
// format's GLSL file do. 32 threads process a slice of a row: lane t of step s is thread 4 s + t.
// The including kernel defines WORKGROUP, the parameters `slices`, `units_at` and `sums_at`, `laid` for the
// prepacked rows, and IS_SCALED, which is false if the elements are F16 numbers.
// uses matmul/lay_rows.wgsl or norm_lay.wgsl: IS_SCALED, WORKGROUP, laid, p
// uses prelude.wgsl: as_float, magnitude, to_half

// Order of the elements: 0 F16, 1 Q4_0 blocks, 2 Q8_0, 3 Q4_K, 4 Q6_K.
override ORDER: u32 = 0u;
override NUMBERS: u32 = 1u;
override ROWS: u32 = 32u;

const SLICE: u32 = 256u;
const TEAM: u32 = 32u;
const GROUPS: u32 = ROWS / 8u;
const HAS_MINIMA: bool = ORDER == 3u;
const SUM_UNIT: f32 = 64.0;

var<workgroup> sizes: array<vec4<u32>, WORKGROUP / 4u>;
var<workgroup> pair_sums: array<f32, WORKGROUP>;

fn first_at(step: u32, t: u32) -> u32 {
    switch ORDER {
        case 1u: { return 32u * step + 4u * t; }
        case 4u: { return 128u * (step / 4u) + 16u * (step % 4u) + 4u * t; }
        default: { return 32u * step + 8u * t; }
    }
}

fn next_after() -> u32 {
    switch ORDER {
        case 1u: { return 16u; }
        case 4u: { return 64u; }
        default: { return 4u; }
    }
}

// Reorders four elements so that each F16 pair has the elements that the weight format pairs.
fn in_pairs(x: vec4<f32>) -> vec4<f32> {
    if ORDER == 0u {
        return x;
    }
    return x.xzyw;
}

fn first_of(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0xffffe000u);
}

fn halves_of(x: f32, y: f32) -> u32 {
    return to_half(x) | (to_half(y) << 16u);
}

// The first F16 numbers of four elements, as two packed pairs. With NUMBERS = 1, an element is
// rounded to one F16 number.
fn firsts(x: vec4<f32>) -> vec2<u32> {
    if NUMBERS == 1u {
        return vec2<u32>(halves_of(x.x, x.y), halves_of(x.z, x.w));
    }
    return vec2<u32>(halves_of(first_of(x.x), first_of(x.y)), halves_of(first_of(x.z), first_of(x.w)));
}

fn second_of(x: f32) -> f32 {
    return x - first_of(x);
}

fn seconds(x: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(halves_of(second_of(x.x), second_of(x.y)), halves_of(second_of(x.z), second_of(x.w)));
}

fn put(at: u32, x: vec2<u32>, next: vec2<u32>) {
    laid[at] = x.x;
    laid[at + 1u] = x.y;
    laid[at + 2u] = next.x;
    laid[at + 3u] = next.y;
}

// Prepacks this thread's 8 elements of a slice of a row, as thread `local` of the workgroup. All threads of the
// workgroup must call this function; those that are not `is_some` store nothing.
fn lay_slice(row: u32, slice: u32, is_some: bool, local: u32, first: vec4<f32>, second: vec4<f32>) {
    let own = local % TEAM;
    let step = own / 4u;
    let t = own % 4u;
    var x = first;
    var next = second;
    var size = 0u;
    for (var i = 0u; i < 4u; i += 1u) {
        size = max(size, max(magnitude(x[i]), magnitude(next[i])));
    }
    // The last slice's sizes were read before the barrier of its sums.
    sizes[local / 4u][local % 4u] = size;
    workgroupBarrier();
    let first_size = (local - own) / 4u;
    var most = vec4<u32>();
    for (var i = 0u; i < TEAM / 4u; i += 1u) {
        most = max(most, sizes[first_size + i]);
    }
    size = max(max(most.x, most.y), max(most.z, most.w));
    workgroupBarrier();
    let is_finite = size < 0x7f800000u;
    var unit = 1.0;
    if IS_SCALED {
        // Scales the largest element to near 2^14.
        let exponent = max(size >> 23u, 15u);
        let scale = as_float((268u - exponent) << 23u);
        x *= scale;
        next *= scale;
        unit = as_float((exponent - 14u) << 23u);
    }
    if HAS_MINIMA && !is_finite {
        x = vec4<f32>();
        next = vec4<f32>();
        unit = -1.0;
    }
    let place = (row / ROWS * p.slices + slice) * ROWS + row % ROWS;
    if is_some {
        let line = (place / ROWS * 8u + step) * GROUPS + row % ROWS / 8u;
        let at = (line * NUMBERS * TEAM + row % 8u * 4u + t) * 4u;
        let pairs = in_pairs(x);
        let next_pairs = in_pairs(next);
        put(at, firsts(pairs), firsts(next_pairs));
        if NUMBERS == 2u {
            if is_finite {
                put(at + TEAM * 4u, seconds(pairs), seconds(next_pairs));
            } else {
                put(at + TEAM * 4u, vec2<u32>(), vec2<u32>());
            }
        }
        if own == 0u {
            laid[p.units_at + place] = bitcast<u32>(unit);
        }
    }
    if HAS_MINIMA {
        pair_sums[local] = (((x.x + x.y) + (x.z + x.w)) + ((next.x + next.y) + (next.z + next.w))) / SUM_UNIT;
        workgroupBarrier();
        // The elements of a step share a minimum; a pair of steps has a place.
        if is_some && own % 8u == 0u {
            var sum = vec2<f32>();
            for (var i = 0u; i < 4u; i += 1u) {
                sum += vec2<f32>(pair_sums[local + i], pair_sums[local + 4u + i]);
            }
            let to = p.sums_at + (place * 4u + own / 8u) * 2u;
            laid[to] = halves_of(first_of(sum.x), first_of(sum.y));
            laid[to + 1u] = halves_of(second_of(sum.x), second_of(sum.y));
        }
    }
}
