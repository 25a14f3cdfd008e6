// Normalized row in shared memory for gemv_strips.wgsl: the norm (norm_value.wgsl) times gains,
// with BETA = 1 plus beta. With RESIDUAL = 1, the norm is of a + residual, rounded to their dtype;
// the first workgroup stores this sum. All operands are dense, word-aligned rows.

override LENGTH: u32 = 4u;
override BETA: u32 = 0u;
override RESIDUAL: u32 = 0u;

@group(0) @binding(5) var<storage, read> gains: array<u32>;
@group(0) @binding(6) var<storage, read> beta: array<u32>;
@group(0) @binding(7) var<storage, read> residual: array<u32>;
@group(0) @binding(8) var<storage, read_write> sum_data: array<u32>;

// Until the barrier, each thread accesses only the elements that it wrote.
var<workgroup> row_data: array<f32, LENGTH>;

// Word `at` of the row.
fn summed(at: u32, is_first: bool) -> u32 {
    let word = a_data[word_of(a_base, A_TYPE) + at];
    if RESIDUAL == 0u {
        return word;
    }
    let other = residual[at];
    var sum = 0u;
    if A_TYPE == F32 {
        sum = bitcast<u32>(bitcast<f32>(word) + bitcast<f32>(other));
    } else {
        let pair = pair_of(word, A_TYPE) + pair_of(other, A_TYPE);
        sum = float_bits(pair.x, A_TYPE) | (float_bits(pair.y, A_TYPE) << 16u);
    }
    if is_first {
        sum_data[at] = sum;
    }
    return sum;
}

fn weight_at(word: u32, k: u32) -> f32 {
    return element_of(word, k, A_TYPE);
}

fn finished(k: u32, about: Row) -> f32 {
    var value = normalized(row_data[k], about) * weight_at(gains[word_of(k, A_TYPE)], k);
    if BETA == 1u {
        value += weight_at(beta[word_of(k, A_TYPE)], k);
    }
    return value;
}

// Computes the row. All threads of the workgroup must call this function.
fn prepare(is_first: bool, index: u32) {
    take_place(index);
    let per = lanes(A_TYPE);
    let words = p.k / per;
    var size = 0.0;
    for (var at = index; at < words; at += 256u) {
        let word = summed(at, is_first);
        for (var lane = 0u; lane < per; lane += 1u) {
            let v = element_of(word, lane, A_TYPE);
            row_data[at * per + lane] = v;
            size = as_float(max(magnitude(size), magnitude(v)));
        }
    }
    // Squares of F16 values cannot overflow F32.
    var scale = 1.0;
    if A_TYPE != F16 {
        scale = scale_for(over_row(vec2<f32>(size, 0.0), GREATEST).x);
    }
    var sum = 0.0;
    for (var k = index * per; k < p.k; k += 256u * per) {
        for (var lane = 0u; lane < per; lane += 1u) {
            sum += row_data[k + lane] * scale;
        }
    }
    var mean = 0.0;
    if RMS == 0u {
        mean = over_row(vec2<f32>(sum, 0.0), SUM).x / f32(p.k);
    }
    var sums = vec2<f32>();
    for (var k = index * per; k < p.k; k += 256u * per) {
        for (var lane = 0u; lane < per; lane += 1u) {
            let apart = row_data[k + lane] * scale - mean;
            sums += vec2<f32>(apart, apart * apart);
        }
    }
    let means = over_row(sums, SUM) / f32(p.k);
    let rest = select(means.x, 0.0, RMS == 1u);
    let variance = max(means.y - rest * rest, 0.0);
    let spread = select(variance, means.y, RMS == 1u || is_nan(means.y));
    let about = Row(scale, mean, rest, inverseSqrt(spread + scaled_eps(p.eps, scale)));
    for (var k = index * per; k < p.k; k += 256u * per) {
        for (var lane = 0u; lane < per; lane += 1u) {
            row_data[k + lane] = finished(k + lane, about);
        }
    }
    workgroupBarrier();
}

// Element k of the row; 0 beyond its end.
fn row_at(k: u32) -> f32 {
    return select(0.0, row_data[min(k, p.k - 1u)], k < p.k);
}
