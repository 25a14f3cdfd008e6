// norm_row.wgsl with 16-byte vectors; see row_vectors.wgsl. The including kernel loads the rows
// with `elements`, which also stores the residual sum if there is one, and defines the location of
// gamma and beta.
// uses norm_alone.wgsl or norm_rounded.wgsl: write_also
// uses norm_held.wgsl: about_row, normalized_all
// uses norm_load.wgsl or norm_residual_vectors.wgsl: elements
// uses norm_plain_vectors.wgsl or norm_residual_vectors.wgsl: BETA, beta, gamma, p, y
// uses prelude.wgsl: flat_group
// uses row_vectors.wgsl: PARTS, VECTORS, floats, held, vectors_in, words_of
// uses rows.wgsl: THREADS, group_rows, own_row, take_place, thread

// Index of a result vector: dense rows, or panels of 32 16-bit elements of all rows, the layout
// that `gemm_laid_f16.comp` reads.
fn place_of(row: u32, unit: u32, first: u32) -> u32 {
    if p.y_panels != 0u {
        return (unit / 4u * p.rows + row) * 4u + unit % 4u;
    }
    return first + unit;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    take_place(index);
    let row = flat_group(group, groups) * group_rows() + own_row;
    let units = vectors_in(p.len);
    elements(row, units);
    let about = about_row(units);
    let first = vectors_in(row * p.len);
    for (var i = 0u; i < VECTORS; i += 1u) {
        let unit = i * THREADS + thread;
        if row < p.rows && unit < units {
            let gains = gamma[unit];
            var a = normalized_all(held[i * PARTS], about) * floats(gains, 0u);
            var b = normalized_all(held[i * PARTS + PARTS - 1u], about) * floats(gains, PARTS - 1u);
            if BETA == 1u {
                let more = beta[unit];
                a += floats(more, 0u);
                b += floats(more, PARTS - 1u);
            }
            y[place_of(row, unit, first)] = words_of(a, b);
            write_also(first + unit, a);
        }
    }
}
