// LayerNorm: y = (v - mean) / sqrt(mean((v - mean)^2) + eps) * gamma + beta, of dense rows. RMSNorm
// (RMS = 1): y = v / sqrt(mean(v^2) + eps) * gamma + beta. The including kernel defines v with
// `element` and `keep`, and stores the results with `finish`.
//
// A workgroup processes 256 / THREADS rows. A unit is a whole word of PER elements if rows are
// dense and aligned, else one element. Rows of at most CACHE units per thread are read once. Longer
// rows (CACHE = 0) are read several times. A second pass corrects the mean by the mean of the
// residuals, so that large means lose no precision.
// uses channel_norm_stats.wgsl or norm.wgsl or norm_residual.wgsl: element, finish, finish_row, keep, p, weigh
// uses norm_about.wgsl: about_size, mean_of, row_of, size_of, sums_of
// uses norm_value.wgsl: RMS, normalized
// uses prelude.wgsl: flat_group, float_bits
// uses row_floats.wgsl: Total, add
// uses rows.wgsl: THREADS, group_rows, own_row, take_place, thread

override DTYPE: u32 = 0u;
override PER: u32 = 1u;
override CACHE: u32 = 4u;
// Maximum of CACHE * PER.
const HELD: u32 = 32u;

fn held_rows(row: u32, units: u32) {
    var held: array<f32, HELD>;
    var size = 0.0;
    for (var i = 0u; i < CACHE; i += 1u) {
        let unit = i * THREADS + thread;
        for (var lane = 0u; lane < PER; lane += 1u) {
            var v = 0.0;
            if unit < units {
                v = element(row, unit, lane);
            }
            held[i * PER + lane] = v;
            size = size_of(size, v);
        }
        if unit < units {
            var word = 0u;
            for (var lane = 0u; lane < PER; lane += 1u) {
                word |= float_bits(held[i * PER + lane], DTYPE) << (16u * lane);
            }
            keep(row, unit, word);
        }
    }
    let scale = about_size(size);
    var sum = 0.0;
    if RMS == 0u {
        for (var i = 0u; i < CACHE * PER; i += 1u) {
            sum += held[i] * scale;
        }
    }
    let mean = mean_of(sum);
    var sums = vec2<f32>();
    for (var i = 0u; i < CACHE; i += 1u) {
        if i * THREADS + thread < units {
            for (var lane = 0u; lane < PER; lane += 1u) {
                sums += sums_of(held[i * PER + lane] * scale - mean);
            }
        }
    }
    let about = row_of(scale, mean, sums);
    finish_row(row, about);
    for (var i = 0u; i < CACHE; i += 1u) {
        let unit = i * THREADS + thread;
        if unit < units {
            var word = 0u;
            for (var lane = 0u; lane < PER; lane += 1u) {
                let v = normalized(held[i * PER + lane], about);
                word |= float_bits(weigh(v, unit, lane), DTYPE) << (16u * lane);
            }
            finish(row, unit, word);
        }
    }
}

fn long_rows(row: u32, units: u32) {
    var size = 0.0;
    for (var unit = thread; unit < units; unit += THREADS) {
        var word = 0u;
        for (var lane = 0u; lane < PER; lane += 1u) {
            let v = element(row, unit, lane);
            size = size_of(size, v);
            word |= float_bits(v, DTYPE) << (16u * lane);
        }
        keep(row, unit, word);
    }
    let scale = about_size(size);
    var total: Total;
    if RMS == 0u {
        for (var unit = thread; unit < units; unit += THREADS) {
            for (var lane = 0u; lane < PER; lane += 1u) {
                total = add(total, vec2<f32>(element(row, unit, lane) * scale, 0.0));
            }
        }
    }
    let mean = mean_of(total.high.x + total.low.x);
    total = Total();
    for (var unit = thread; unit < units; unit += THREADS) {
        for (var lane = 0u; lane < PER; lane += 1u) {
            total = add(total, sums_of(element(row, unit, lane) * scale - mean));
        }
    }
    let about = row_of(scale, mean, total.high + total.low);
    finish_row(row, about);
    for (var unit = thread; unit < units; unit += THREADS) {
        var word = 0u;
        for (var lane = 0u; lane < PER; lane += 1u) {
            let v = normalized(element(row, unit, lane), about);
            word |= float_bits(weigh(v, unit, lane), DTYPE) << (16u * lane);
        }
        finish(row, unit, word);
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    take_place(index);
    let row = flat_group(group, groups) * group_rows() + own_row;
    let units = select(0u, p.len / PER, row < p.rows);
    if CACHE > 0u {
        held_rows(row, units);
    } else {
        long_rows(row, units);
    }
}
