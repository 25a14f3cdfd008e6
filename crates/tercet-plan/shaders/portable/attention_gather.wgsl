// Split-KV reduction: y = the combined partial results of attention_one.wgsl. Fully masked key
// ranges are marked UNSEEN.
//
// A workgroup computes the row of one batch entry and query head. A thread sums four elements over
// every PARTS-th range, then reduces one word over the threads.
// uses attention_order.wgsl: UNSEEN, center_of, normalized, rescale
// uses prelude.wgsl: flat_group, float_bits, lanes, word_of

struct Params {
    y_batch: u32,
    y_head: u32,
    splits: u32,
    groups: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> sums: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> stats: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

// Dtype of y. F16 and BF16 require an even VALUE.
override OUT: u32 = 0u;
// Elements of a row: a power of two from 32 to 128.
override VALUE: u32 = 64u;

// Query heads of a batch entry.
override HEADS: u32 = 1u;

const MOST_SPLITS: u32 = 16u;
const QUADS: u32 = VALUE / 4u;
const PARTS: u32 = 256u / QUADS;
const TURNS: u32 = max(MOST_SPLITS / PARTS, 1u);

// Maximum score of each key range, then its scale factor and its scaled sum of weights.
var<workgroup> tops: array<i32, MOST_SPLITS>;
var<workgroup> factors: array<f32, MOST_SPLITS>;
var<workgroup> totals: array<f32, MOST_SPLITS>;
var<workgroup> partial: array<vec4<f32>, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = flat_group(group, count);
    if row >= p.groups {
        return;
    }
    let first = row * p.splits;
    var own = vec2<u32>(bitcast<u32>(UNSEEN), 0u);
    if local < p.splits {
        own = stats[first + local];
    }
    // The sums of fully masked ranges are uninitialized, so the values loaded for them are
    // discarded below.
    var values: array<vec4<f32>, TURNS>;
    for (var i = 0u; i < TURNS; i += 1u) {
        let split = min(i * PARTS + local / QUADS, max(p.splits, 1u) - 1u);
        values[i] = sums[(first + split) * QUADS + local % QUADS];
    }
    if local < MOST_SPLITS {
        tops[local] = bitcast<i32>(own.x);
    }
    workgroupBarrier();
    var top = UNSEEN;
    for (var s = 0u; s < MOST_SPLITS; s += 1u) {
        top = max(top, tops[s]);
    }
    if local < MOST_SPLITS {
        let by = rescale(bitcast<i32>(own.x), center_of(top));
        factors[local] = by;
        totals[local] = by * bitcast<f32>(own.y);
    }
    workgroupBarrier();
    var sum = vec4<f32>();
    for (var i = 0u; i < TURNS; i += 1u) {
        let split = i * PARTS + local / QUADS;
        if split < p.splits && tops[min(split, MOST_SPLITS - 1u)] != UNSEEN {
            sum += factors[split] * values[i];
        }
    }
    partial[local] = sum;
    workgroupBarrier();
    let column = local * lanes(OUT);
    if column >= VALUE {
        return;
    }
    var total = 0.0;
    for (var s = 0u; s < MOST_SPLITS; s += 1u) {
        total += totals[s];
    }
    var all = vec2<f32>();
    for (var part = 0u; part < PARTS; part += 1u) {
        let at = part * QUADS + column / 4u;
        all.x += partial[at][column % 4u];
        if lanes(OUT) == 2u {
            all.y += partial[at][column % 4u + 1u];
        }
    }
    let x = normalized(vec4<f32>(all, 0.0, 0.0), total, top);
    var bits = float_bits(x.x, OUT);
    if lanes(OUT) == 2u {
        bits |= float_bits(x.y, OUT) << 16u;
    }
    y[word_of(row / HEADS * p.y_batch + row % HEADS * p.y_head + column, OUT)] = bits;
}
