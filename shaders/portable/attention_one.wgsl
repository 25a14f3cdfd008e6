// Attention of one query a batch entry, without a mask operand: few instructions, all loads of a step at once.
//
// A workgroup takes one query head of one batch entry and one range of `split_keys` keys, 128 at a time.
// Of the keys, 8 invocations share one; of the values, VALUE_CHUNKS, each with 16 bytes. Rows are whole
// chunks of 16 bytes. Where there is one range, y is the result; else y and `stats` are as
// attention_decode.wgsl leaves them, but that a range without a key that is seen is marked UNSEEN.
//
// The flat group is (split * batch + batch entry) * query heads + query head.

@group(0) @binding(1) var<storage, read> q: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read_write> y: array<u32>;
@group(0) @binding(7) var<storage, read_write> stats: array<u32>;

// The dtype of y.
override OUT: u32 = 0u;
// 1: y is of one range of many.
override SPLIT: u32 = 0u;
// Elements of a head: of queries and keys, and of values.
override HEAD: u32 = 64u;
override VALUE: u32 = 64u;

const BLOCK: u32 = 128u;
// Elements of a chunk, and vectors of four.
const EACH: u32 = select(8u, 4u, DTYPE == F32);
const PARTS: u32 = EACH / 4u;
const KEY_TURNS: u32 = HEAD / EACH / 8u;
const VALUE_CHUNKS: u32 = VALUE / EACH;
const SUBSETS: u32 = 256u / VALUE_CHUNKS;
const VALUE_TURNS: u32 = BLOCK / SUBSETS;

var<workgroup> query: array<vec4<f32>, HEAD / 4u>;
// The parts of the products of each key, 9 apart so that neighbours meet in no bank.
var<workgroup> products: array<f32, BLOCK * 9u>;
var<workgroup> weights: array<f32, BLOCK>;
var<workgroup> sums: array<f32, 256u * EACH>;
var<workgroup> totals: array<f32, SUBSETS>;
var<workgroup> greatest: atomic<i32>;

fn four(chunk: vec4<u32>, part: u32) -> vec4<f32> {
    if DTYPE == F32 {
        return bitcast<vec4<f32>>(chunk);
    }
    let two = select(chunk.xy, chunk.zw, part == 1u);
    return halves(two.x, two.y);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = flat_group(group, count);
    if flat >= p.groups {
        return;
    }
    let heads = p.kv_heads * p.group;
    let query_head = flat % heads;
    let head = query_head / p.group;
    let row = query_head % p.group;
    let batch = flat / heads % p.batch;
    let split = flat / (heads * p.batch);
    let part = (batch * heads + query_head) * p.splits + split;

    let seen = seen_by(0u, keys_of(batch));
    let start = max(seen.x, i32(split * p.split_keys));
    let end = min(seen.y, i32((split + 1u) * p.split_keys));
    if SPLIT == 1u && start >= end {
        if local == 0u {
            stats[part * 2u] = bitcast<u32>(UNSEEN);
            stats[part * 2u + 1u] = 0u;
        }
        return;
    }
    if local < HEAD / EACH {
        let chunk = q[q_start(batch, head, row) / EACH + local];
        for (var i = 0u; i < PARTS; i += 1u) {
            query[local * PARTS + i] = four(chunk, i);
        }
    }
    if local == 0u {
        atomicStore(&greatest, UNSEEN);
    }
    workgroupBarrier();

    let k_at = k_start(batch, head) / EACH + local % 8u;
    let v_at = v_start(batch, head) / EACH + local % VALUE_CHUNKS;
    let subset = local / VALUE_CHUNKS;
    var own: array<vec4<f32>, PARTS>;
    var total = 0.0;
    var top = UNSEEN;
    for (var key0 = start; key0 < end; key0 += i32(BLOCK)) {
        let last = u32(end - 1);
        for (var turn = 0u; turn < BLOCK / 32u; turn += 1u) {
            let key = turn * 32u + local / 8u;
            let at = k_at + min(u32(key0) + key, last) * (p.k_seq / EACH);
            var product = 0.0;
            for (var i = 0u; i < KEY_TURNS; i += 1u) {
                let chunk = k[at + i * 8u];
                for (var n = 0u; n < PARTS; n += 1u) {
                    product += dot(four(chunk, n), query[(i * 8u + local % 8u) * PARTS + n]);
                }
            }
            products[key * 9u + local % 8u] = product;
        }
        workgroupBarrier();
        var score = UNSEEN;
        if local < BLOCK && key0 + i32(local) < end {
            var product = 0.0;
            for (var i = 0u; i < 8u; i += 1u) {
                product += products[local * 9u + i];
            }
            score = key_of(product * p.scale);
            atomicMax(&greatest, score);
        }
        workgroupBarrier();
        let before = top;
        top = atomicLoad(&greatest);
        let center = center_of(top);
        if local < BLOCK {
            weights[local] = weight(score, center);
        }
        let by = rescale(before, center);
        total *= by;
        for (var n = 0u; n < PARTS; n += 1u) {
            own[n] *= by;
        }
        workgroupBarrier();
        for (var turn = 0u; turn < VALUE_TURNS; turn += 1u) {
            let key = turn * SUBSETS + subset;
            let at = u32(key0) + key;
            let chunk = v[v_at + min(at, last) * (p.v_seq / EACH)];
            let by = weights[key];
            if at <= last {
                total += by;
                for (var n = 0u; n < PARTS; n += 1u) {
                    own[n] += by * four(chunk, n);
                }
            }
        }
    }

    // The subsets together, a column an invocation.
    for (var n = 0u; n < EACH; n += 1u) {
        sums[subset * VALUE + local % VALUE_CHUNKS * EACH + n] = own[n / 4u][n % 4u];
    }
    if local % VALUE_CHUNKS == 0u {
        totals[subset] = total;
    }
    workgroupBarrier();
    let column = local * lanes(OUT);
    if column >= VALUE {
        return;
    }
    var all = vec2<f32>();
    total = 0.0;
    for (var s = 0u; s < SUBSETS; s += 1u) {
        all.x += sums[s * VALUE + column];
        if lanes(OUT) == 2u {
            all.y += sums[s * VALUE + column + 1u];
        }
        total += totals[s];
    }
    if SPLIT == 1u {
        y[part * VALUE + column] = bitcast<u32>(all.x);
        if local == 0u {
            stats[part * 2u] = bitcast<u32>(top);
            stats[part * 2u + 1u] = bitcast<u32>(total);
        }
        return;
    }
    let x = normalized(vec4<f32>(all, 0.0, 0.0), total, top);
    var bits = float_bits(x.x, OUT);
    if lanes(OUT) == 2u {
        bits |= float_bits(x.y, OUT) << 16u;
    }
    let at = batch * p.y_batch + query_head * p.y_head + column;
    y[word_of(at, OUT)] = bits;
}
