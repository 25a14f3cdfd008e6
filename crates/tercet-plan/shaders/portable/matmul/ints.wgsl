// Integer matmul with wrapping arithmetic. A thread computes one word of y. f is the identity (0)
// or ReLU (1).
// uses matmul/b_words.wgsl: b_data
// uses prelude.wgsl: I32, I8, flat_group, int_bits, int_of, lane_of, lanes, sign_extend8, word_of

override DTYPE: u32 = 3u;

// Arithmetic modulo 2^32 yields the low bits of wider sums.
fn sum_of(row: u32, col: u32) -> u32 {
    var sum = 0u;
    for (var k = 0u; k < p.k; k += 1u) {
        let i = a_base + row * p.a_row + k * p.a_col;
        let j = b_base + k * p.b_row + col * p.b_col;
        let left = int_of(a_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
        let right = int_of(b_data[word_of(j, DTYPE)], lane_of(j, DTYPE), DTYPE);
        sum += bitcast<u32>(left) * bitcast<u32>(right);
    }
    if BIAS == 1u {
        let at = p.bias_offset + col * p.bias_stride;
        sum += bitcast<u32>(int_of(bias_data[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE));
    }
    return sum;
}

fn finished(sum: u32) -> u32 {
    var value = bitcast<i32>(sum);
    if DTYPE == I8 {
        value = sign_extend8(sum);
    }
    if ACTIVATION == 1u && (DTYPE == I8 || DTYPE == I32) {
        value = max(value, 0);
    }
    return bitcast<u32>(int_bits(value, DTYPE));
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let at = flat_group(group, groups) * 64u + local;
    let count = p.batch * p.m * p.n;
    let first = at * lanes(DTYPE);
    if first >= count {
        return;
    }
    var word = 0u;
    for (var lane = 0u; lane < lanes(DTYPE); lane += 1u) {
        let i = first + lane;
        if i < count {
            enter_batch(i / (p.m * p.n));
            let within = i % (p.m * p.n);
            word |= finished(sum_of(within / p.n, within % p.n)) << (8u * lane);
        }
    }
    y_data[at] = word;
}
