// cumsum.wgsl with vectors of four 32-bit numbers, for forward rows that are not split. Each of the
// THREADS threads of a row takes one vector per iteration. The next vectors are prefetched.
// uses numbers.wgsl: combine, identity
// uses prelude.wgsl: flat_group
// uses rows.wgsl: THREADS, group_rows, own_row, take_place, thread
// uses scan.wgsl: before_me
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
    first: u32,
    step: u32,
    parts: u32,
    chunk: u32,
    exclusive: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<u32>>;

override IN: u32 = 0u;

const AHEAD: u32 = 4u;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    take_place(index);
    let row = flat_group(group, groups) * group_rows() + own_row;
    let start = row_start(min(row, p.rows - 1u)) / 4u;
    let units = p.len / 4u;
    let first = row * units;
    var so_far = identity();
    for (var done = 0u; done < units; done += AHEAD * THREADS) {
        var words: array<vec4<u32>, AHEAD>;
        for (var k = 0u; k < AHEAD; k += 1u) {
            words[k] = x[start + min(done + k * THREADS + thread, units - 1u)];
        }
        for (var k = 0u; k < AHEAD; k += 1u) {
            let unit = done + k * THREADS + thread;
            let live = unit < units;
            let w = words[k];
            let b = combine(w.x, w.y);
            let c = combine(b, w.z);
            let d = combine(c, w.w);
            let before = before_me(select(identity(), d, live));
            let base = combine(so_far, before.own);
            let sums = vec4<u32>(combine(base, w.x), combine(base, b), combine(base, c), combine(base, d));
            if row < p.rows && live {
                y[first + unit] = select(sums, vec4<u32>(base, sums.xyz), p.exclusive == 1u);
            }
            so_far = combine(so_far, before.all);
        }
    }
}
