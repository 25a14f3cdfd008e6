// y = the results of the ranges of keys that attention_one.wgsl left, put together; ranges in which no key is
// seen are marked UNSEEN. A workgroup takes the row of one batch entry and query head, an invocation a word of it.

struct Params {
    y_batch: u32,
    y_head: u32,
    heads: u32,
    splits: u32,
    groups: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> sums: array<f32>;
@group(0) @binding(2) var<storage, read> stats: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

// The dtype of y; F16 and BF16 with an even VALUE only.
override OUT: u32 = 0u;
// Elements of a row: up to 128.
override VALUE: u32 = 64u;

const MOST_SPLITS: u32 = 16u;

var<workgroup> tops: array<i32, MOST_SPLITS>;
// The factor of each range, and what its weights come to.
var<workgroup> factors: array<vec2<f32>, MOST_SPLITS>;

@compute @workgroup_size(128)
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
        tops[local] = bitcast<i32>(own.x);
    }
    workgroupBarrier();
    var top = UNSEEN;
    for (var s = 0u; s < p.splits; s += 1u) {
        top = max(top, tops[s]);
    }
    if local < p.splits {
        let by = rescale(bitcast<i32>(own.x), center_of(top));
        factors[local] = vec2<f32>(by, by * bitcast<f32>(own.y));
    }
    workgroupBarrier();
    let column = local * lanes(OUT);
    if column >= VALUE {
        return;
    }
    var all = vec2<f32>();
    var total = 0.0;
    for (var s = 0u; s < p.splits; s += 1u) {
        if tops[s] != UNSEEN {
            let at = (first + s) * VALUE + column;
            all.x += factors[s].x * sums[at];
            if lanes(OUT) == 2u {
                all.y += factors[s].x * sums[at + 1u];
            }
            total += factors[s].y;
        }
    }
    let x = normalized(vec4<f32>(all, 0.0, 0.0), total, top);
    var bits = float_bits(x.x, OUT);
    if lanes(OUT) == 2u {
        bits |= float_bits(x.y, OUT) << 16u;
    }
    y[word_of(row / p.heads * p.y_batch + row % p.heads * p.y_head + column, OUT)] = bits;
}
