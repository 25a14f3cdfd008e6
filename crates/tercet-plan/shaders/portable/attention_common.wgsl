// Operands and scores of attention, shared by the kernels for many and for few queries.
//
// The query heads of one KV head form a group and are processed together as rows (grouped-query
// attention). Row r of a KV head is query r / group of query head head * group + r % group. Strides
// are in elements and may belong to any view.
// uses attention_grad_params.wgsl or attention_params.wgsl: Params
// uses prelude.wgsl: bits_of, float_of, lane_of, word_of
// uses scalar/hyperbolic.wgsl: f_tanh

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(4) var<storage, read> mask: array<u32>;
@group(0) @binding(5) var<storage, read> lens: array<u32>;

// Dtype of q, k, v and of a bias.
override DTYPE: u32 = 0u;
// Mask operand: 0: none; 1: boolean keep mask; 2: additive bias.
override MASK: u32 = 0u;
// 1: applies a softcap to the scores.
override CAPPED: u32 = 0u;

// Number of elements from index `at` to the end of `size`.
fn left_of(size: u32, at: u32) -> u32 {
    return size - min(size, at);
}

// Offset of the query of a row, in elements. The next two functions return the offsets of keys and
// of values.
fn q_start(batch: u32, head: u32, row: u32) -> u32 {
    let query_head = head * p.group + row % p.group;
    return p.q_offset + batch * p.q_batch + query_head * p.q_head + row / p.group * p.q_seq;
}

fn k_start(batch: u32, head: u32) -> u32 {
    return p.k_offset + batch * p.k_batch + head * p.k_head;
}

fn v_start(batch: u32, head: u32) -> u32 {
    return p.v_offset + batch * p.v_batch + head * p.v_head;
}

// Masked score of a row and a key as an order-preserving integer, computed from q dot k.
fn score(product: f32, batch: u32, head: u32, row: u32, key: i32, seen: vec2<i32>) -> i32 {
    if (key < seen.x || key >= seen.y) {
        return UNSEEN;
    }
    var s = product * p.scale;
    if (CAPPED == 1u) {
        s = p.softcap * f_tanh(s / p.softcap);
    }
    if (MASK != 0u) {
        let query_head = head * p.group + row % p.group;
        let at = p.mask_offset + batch * p.mask_batch + query_head * p.mask_head
            + row / p.group * p.mask_query + u32(key) * p.mask_key;
        if (MASK == 1u) {
            if (bits_of(mask[at / 4u], at % 4u, 1u) == 0u) {
                return UNSEEN;
            }
        } else {
            let bias = float_of(mask[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
            if (bitcast<u32>(bias) == 0xff800000u) {
                return UNSEEN;
            }
            s += bias;
        }
    }
    return key_of(s);
}

// Four elements, or four columns, of each of four rows a to d.
struct Four {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
}

// Adds a value times the weight of each row. Rows that do not attend to the value skip it, because
// it may be NaN.
fn add_seen(sum: Four, weights: vec4<f32>, value: vec4<f32>) -> Four {
    let seen = bitcast<vec4<u32>>(weights) != vec4<u32>(0x80000000u);
    return Four(
        select(sum.a, sum.a + weights.x * value, seen.x),
        select(sum.b, sum.b + weights.y * value, seen.y),
        select(sum.c, sum.c + weights.z * value, seen.z),
        select(sum.d, sum.d + weights.w * value, seen.w),
    );
}

fn scale_rows(sum: Four, by: vec4<f32>) -> Four {
    return Four(sum.a * by.x, sum.b * by.y, sum.c * by.z, sum.d * by.w);
}
