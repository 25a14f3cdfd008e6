// y = the results of the ranges of keys that attention_decode.wgsl left, put together.
//
// A workgroup takes 64 words of a row: flat group row * blocks + block, rows in the order of the
// ranges' results. Four invocations share a word, each with every fourth range.

struct Params {
    y_batch: u32,
    y_head: u32,
    y_seq: u32,
    lens_offset: u32,
    lens_stride: u32,
    has_lens: u32,
    causal: u32,
    window: u32,
    queries: u32,
    keys: u32,
    kv_heads: u32,
    group: u32,
    value_dim: u32,
    splits: u32,
    split_keys: u32,
    blocks: u32,
    groups: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> sums: array<u32>;
@group(0) @binding(2) var<storage, read> stats: array<u32>;
@group(0) @binding(3) var<storage, read> lens: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<u32>;

// The dtype of y; F16 and BF16 with an even `value_dim` only.
override OUT: u32 = 0u;

// Two columns and the weights.
var<workgroup> parts: array<vec4<f32>, 256>;
var<workgroup> top: atomic<i32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = flat_group(group, count);
    if (flat >= p.groups) {
        return;
    }
    let rows = p.queries * p.group;
    let part_row = flat / p.blocks;
    let row = part_row % rows;
    let head = part_row / rows % p.kv_heads;
    let batch = part_row / rows / p.kv_heads;
    let seen = seen_by(row / p.group, keys_of(batch));
    var first = u32(max(seen.x, 0)) / p.split_keys;
    var last = (u32(max(seen.y, 0)) + p.split_keys - 1u) / p.split_keys;
    if (seen.x >= seen.y) {
        last = first;
    }

    if (local == 0u) {
        atomicStore(&top, UNSEEN);
    }
    workgroupBarrier();
    for (var split = first + local; split < last; split += 256u) {
        atomicMax(&top, bitcast<i32>(stats[(part_row * p.splits + split) * 2u]));
    }
    workgroupBarrier();
    let greatest = atomicLoad(&top);
    let center = center_of(greatest);

    let word = flat % p.blocks * 64u + local % 64u;
    let column = word * lanes(OUT);
    var sum = vec4<f32>();
    if (column < p.value_dim) {
        for (var split = first + local / 64u; split < last; split += 4u) {
            let part = part_row * p.splits + split;
            let own = bitcast<i32>(stats[part * 2u]);
            if (own != UNSEEN) {
                let by = rescale(own, center);
                let at = part * p.value_dim + column;
                sum.x += by * bitcast<f32>(sums[at]);
                if (lanes(OUT) == 2u) {
                    sum.y += by * bitcast<f32>(sums[at + 1u]);
                }
                sum.w += by * bitcast<f32>(stats[part * 2u + 1u]);
            }
        }
    }
    parts[local] = sum;
    workgroupBarrier();
    if (local < 64u && column < p.value_dim) {
        let all = (sum + parts[local + 64u]) + (parts[local + 128u] + parts[local + 192u]);
        let x = normalized(all, all.w, greatest);
        let query_head = head * p.group + row % p.group;
        let at = batch * p.y_batch + query_head * p.y_head + row / p.group * p.y_seq + column;
        var bits = float_bits(x.x, OUT);
        if (lanes(OUT) == 2u) {
            bits |= float_bits(x.y, OUT) << 16u;
        }
        y[word_of(at, OUT)] = bits;
    }
}
