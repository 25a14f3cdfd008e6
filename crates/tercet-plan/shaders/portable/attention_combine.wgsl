// Split-KV reduction: y = the combined partial results of attention_decode.wgsl.
//
// A workgroup computes 64 words of a row. The flat group is row * blocks + block. Rows have the
// same order as the partial results. There are at most 256 key ranges, and their scale factors are
// computed once per workgroup. Four threads then share a word of the result. Each of them reads
// every fourth range, with four loads in flight.
// uses prelude.wgsl: flat_group, float_bits, lanes, word_of

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

// Dtype of y. F16 and BF16 require an even `value_dim`.
override OUT: u32 = 0u;

// Partial sums of two columns and of the softmax weights.
var<workgroup> parts: array<vec4<f32>, 256>;
// Scale factor of each key range, and its sum of weights times that factor. A negative factor marks
// a fully masked range.
var<workgroup> factors: array<vec2<f32>, 256>;
var<workgroup> top: atomic<i32>;

// Scaled contribution of a key range, or 0 if `place` is not below `count`. Partial results of
// fully masked ranges are uninitialized, so they are not used.
fn share(place: u32, count: u32, at: u32) -> vec4<f32> {
    let split = min(place, count - 1u);
    let x = bitcast<f32>(sums[at + split * p.value_dim]);
    var y = 0.0;
    if (lanes(OUT) == 2u) {
        y = bitcast<f32>(sums[at + split * p.value_dim + 1u]);
    }
    let factor = factors[split];
    let counts = place < count && factor.x >= 0.0;
    return select(vec4<f32>(), vec4<f32>(factor.x * x, factor.x * y, 0.0, factor.y), counts);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = flat_group(group, groups);
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
    let count = last - first;
    let place = part_row * p.splits + first;
    var own = UNSEEN;
    var weights = 0.0;
    if (local < count) {
        own = bitcast<i32>(stats[(place + local) * 2u]);
        weights = bitcast<f32>(stats[(place + local) * 2u + 1u]);
        atomicMax(&top, own);
    }
    workgroupBarrier();
    let greatest = atomicLoad(&top);
    let by = select(rescale(own, center_of(greatest)), -1.0, own == UNSEEN);
    factors[local] = vec2<f32>(by, by * weights);
    workgroupBarrier();

    let word = flat % p.blocks * 64u + local % 64u;
    let column = word * lanes(OUT);
    var sum = vec4<f32>();
    if (column < p.value_dim) {
        let at = place * p.value_dim + column;
        for (var split = local / 64u; split < count; split += 16u) {
            let a = share(split, count, at);
            let b = share(split + 4u, count, at);
            let c = share(split + 8u, count, at);
            sum += (a + b) + (c + share(split + 12u, count, at));
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
