// Single-query attention without a mask operand. The kernel minimizes instructions and issues all
// loads of a step together.
//
// A workgroup computes ROWS query heads of one KV head and batch entry, with 256 threads per query
// head. The query heads then share cached keys and values. The workgroup processes one range of
// `split_keys` keys, 128 per step. 8 threads share a key. VALUE_CHUNKS threads share a value row,
// one 16-byte chunk each. Rows are multiples of 16 bytes.
//
// With one key range, y is the result. With several key ranges, y and `stats` have the layout of
// attention_decode.wgsl, and fully masked ranges are marked UNSEEN.
//
// The flat group is (split * batch + batch entry) * (query heads / ROWS) + index of the query
// heads.
// uses attention_common.wgsl: DTYPE, k_start, p, v_start
// uses attention_halves.wgsl: four
// uses prelude.wgsl: F32, flat_group, float_bits, lanes, word_of

@group(0) @binding(1) var<storage, read> q: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read_write> y: array<u32>;
@group(0) @binding(7) var<storage, read_write> stats: array<u32>;

// Dtype of y.
override OUT: u32 = 0u;
// 1: y receives the partial result of one of several key ranges.
override SPLIT: u32 = 0u;
// Elements of a head of queries and keys, and of a head of values.
override HEAD: u32 = 64u;
override VALUE: u32 = 64u;
// Query heads per workgroup: a divisor of the query heads per KV head.
override ROWS: u32 = 1u;
// Copies of p.group and p.kv_heads as constants: divisions by values unknown to the compiler are
// slow.
override GROUP: u32 = 1u;
override KEY_HEADS: u32 = 1u;

const INVOCATIONS: u32 = 256u * ROWS;
const HEADS: u32 = KEY_HEADS * GROUP;
const TILES: u32 = HEADS / ROWS;
const BLOCK: u32 = 128u;
// Elements of a 16-byte chunk, and vectors of four in it.
const EACH: u32 = select(8u, 4u, DTYPE == F32);
const PARTS: u32 = EACH / 4u;
const KEY_TURNS: u32 = HEAD / EACH / 8u;
const VALUE_CHUNKS: u32 = VALUE / EACH;
const SUBSETS: u32 = 256u / VALUE_CHUNKS;
const VALUE_TURNS: u32 = BLOCK / SUBSETS;

// Partial dot products of each key, padded to a stride of 9 against bank conflicts. After the
// scores, the same memory stores the sums of the key subsets.
const PRODUCT_ROW: u32 = max(BLOCK * 9u, 256u * EACH);

var<workgroup> query: array<vec4<f32>, ROWS * HEAD / 4u>;
var<workgroup> products: array<f32, ROWS * PRODUCT_ROW>;
var<workgroup> weights: array<f32, ROWS * BLOCK>;
var<workgroup> totals: array<f32, ROWS * SUBSETS>;
var<workgroup> greatest: array<atomic<i32>, ROWS>;

// The kernel is one function: barriers separate its steps, and calls would pass all register state.
@compute @workgroup_size(INVOCATIONS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let flat = flat_group(group, count);
    if flat >= p.groups {
        return;
    }
    let own_row = index / 256u;
    let local = index % 256u;
    let query_head = flat % TILES * ROWS + own_row;
    let head = query_head / GROUP;
    let split = flat / TILES / p.batch;
    let batch = flat / TILES - split * p.batch;
    let part = (batch * HEADS + query_head) * p.splits + split;

    let seen = seen_by(0u, common_keys_of(batch));
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
        let at = p.q_offset + batch * p.q_batch + query_head * p.q_head;
        let chunk = q[at / EACH + local];
        for (var i = 0u; i < PARTS; i += 1u) {
            query[own_row * (HEAD / 4u) + local * PARTS + i] = four(chunk, i);
        }
    }
    if local == 0u {
        atomicStore(&greatest[own_row], UNSEEN);
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
                    product += dot(four(chunk, n), query[own_row * (HEAD / 4u) + (i * 8u + local % 8u) * PARTS + n]);
                }
            }
            products[own_row * PRODUCT_ROW + key * 9u + local % 8u] = product;
        }
        // The loads of the values overlap with the softmax.
        var chunks: array<vec4<u32>, VALUE_TURNS>;
        for (var turn = 0u; turn < VALUE_TURNS; turn += 1u) {
            chunks[turn] = v[v_at + min(u32(key0) + turn * SUBSETS + subset, last) * (p.v_seq / EACH)];
        }
        workgroupBarrier();
        var score = UNSEEN;
        if local < BLOCK && key0 + i32(local) < end {
            // Tree summation: scores are exponents, so the rounding error of a sequential sum would
            // be visible.
            let at = own_row * PRODUCT_ROW + local * 9u;
            let low = vec4<f32>(products[at], products[at + 1u], products[at + 2u], products[at + 3u]);
            let high = vec4<f32>(products[at + 4u], products[at + 5u], products[at + 6u], products[at + 7u]);
            let sums = low + high;
            score = key_of(((sums.x + sums.z) + (sums.y + sums.w)) * p.scale);
            atomicMax(&greatest[own_row], score);
        }
        workgroupBarrier();
        let before = top;
        top = atomicLoad(&greatest[own_row]);
        let center = center_of(top);
        if local < BLOCK {
            weights[own_row * BLOCK + local] = weight(score, center);
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
            let by = weights[own_row * BLOCK + key];
            if at <= last {
                total += by;
                for (var n = 0u; n < PARTS; n += 1u) {
                    own[n] += by * four(chunks[turn], n);
                }
            }
        }
    }

    // Reduces the key subsets, one column per thread.
    for (var n = 0u; n < EACH; n += 1u) {
        products[own_row * PRODUCT_ROW + subset * VALUE + local % VALUE_CHUNKS * EACH + n] = own[n / 4u][n % 4u];
    }
    if local % VALUE_CHUNKS == 0u {
        totals[own_row * SUBSETS + subset] = total;
    }
    workgroupBarrier();
    let column = local * lanes(OUT);
    if column >= VALUE {
        return;
    }
    var all = vec2<f32>();
    total = 0.0;
    for (var s = 0u; s < SUBSETS; s += 1u) {
        all.x += products[own_row * PRODUCT_ROW + s * VALUE + column];
        if lanes(OUT) == 2u {
            all.y += products[own_row * PRODUCT_ROW + s * VALUE + column + 1u];
        }
        total += totals[own_row * SUBSETS + s];
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
