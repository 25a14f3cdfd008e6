// softmax.wgsl with 16-byte vectors; see row_vectors.wgsl.
// uses prelude.wgsl: as_float, flat_group
// uses row_vectors.wgsl: PARTS, VECTORS, floats, held, sum_of, vectors_in, words_of
// uses rows.wgsl: THREADS, group_rows, own_row, take_place, thread
// uses softmax_row.wgsl: Top, exp_of, greatest_of, raise, row_of
// uses softmax_value.wgsl: Row, part_of, value_of
// uses strided.wgsl: row_start

struct Params {
    sizes: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    kept: u32,
    offset: u32,
    rows: u32,
    len: u32,
    stride: u32,
    inner: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<u32>>;

fn parts_of(v: vec4<f32>, greatest: f32) -> vec4<f32> {
    return vec4<f32>(
        part_of(v.x, greatest),
        part_of(v.y, greatest),
        part_of(v.z, greatest),
        part_of(v.w, greatest),
    );
}

fn exps_of(v: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(exp_of(v.x), exp_of(v.y), exp_of(v.z), exp_of(v.w));
}

fn values_of(v: vec4<f32>, about: Row) -> vec4<f32> {
    return vec4<f32>(
        value_of(v.x, about),
        value_of(v.y, about),
        value_of(v.z, about),
        value_of(v.w, about),
    );
}

fn raise_all(top: Top, v: vec4<f32>) -> Top {
    return raise(raise(raise(raise(top, v.x), v.y), v.z), v.w);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    take_place(index);
    let row = flat_group(group, groups) * group_rows() + own_row;
    let start = vectors_in(row_start(min(row, p.rows - 1u)));
    let units = vectors_in(p.len);
    var words: array<vec4<u32>, VECTORS>;
    for (var i = 0u; i < VECTORS; i += 1u) {
        words[i] = x[start + min(i * THREADS + thread, units - 1u)];
    }
    let none = vec4<f32>(as_float(0xff800000u));
    var top = Top(none.x, 0u);
    for (var i = 0u; i < VECTORS; i += 1u) {
        for (var part = 0u; part < PARTS; part += 1u) {
            let v = select(none, floats(words[i], part), i * THREADS + thread < units);
            held[i * PARTS + part] = v;
            top = raise_all(top, v);
        }
    }
    let greatest = greatest_of(top);
    var sum = 0.0;
    for (var i = 0u; i < VECTORS * PARTS; i += 1u) {
        let v = parts_of(held[i], greatest);
        held[i] = v;
        sum += sum_of(exps_of(v));
    }
    let about = row_of(greatest, sum);
    let first = vectors_in(row * p.len);
    for (var i = 0u; i < VECTORS; i += 1u) {
        let unit = i * THREADS + thread;
        if row < p.rows && unit < units {
            let a = values_of(held[i * PARTS], about);
            let b = values_of(held[i * PARTS + PARTS - 1u], about);
            y[first + unit] = words_of(a, b);
        }
    }
}
