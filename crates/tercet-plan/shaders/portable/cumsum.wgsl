// Cumulative sum, product or maximum along rows of any stride: y[k] = f(x[0], .., x[k]), or f(x[0],
// .., x[k - 1]) if p.exclusive is 1. Reversed rows have a negative stride. Numbers are 32 bits
// wide: F32 for floats, wrapping integers otherwise. OUT is a 32-bit dtype.
//
// A workgroup processes 256 / THREADS rows. If rows are split into `parts`, the workgroup processes
// part `group % parts` of `chunk` elements. With CARRY = 1, `carry` contains for each part the result
// of all earlier parts of its row. Each of the THREADS threads of a row takes 8 elements per iteration.
// uses numbers.wgsl: combine, identity, number_of
// uses prelude.wgsl: flat_group, lane_of, word_of
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
    // Element k of row (o, i) of the result has index o * len * inner + i + first + k * step.
    inner: u32,
    first: u32,
    step: u32,
    parts: u32,
    chunk: u32,
    exclusive: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> carry: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

override IN: u32 = 0u;
override CARRY: u32 = 0u;

const EACH: u32 = 8u;

fn element(start: u32, k: u32) -> u32 {
    let at = start + k * p.stride;
    return number_of(x[word_of(at, IN)], lane_of(at, IN), IN);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    take_place(index);
    let flat = flat_group(group, groups);
    let row = (flat / p.parts) * group_rows() + own_row;
    let part = flat % p.parts;
    let begin = min(part * p.chunk, p.len);
    let to = min(part * p.chunk + p.chunk, p.len);
    var start = 0u;
    var target_start = 0u;
    var so_far = identity();
    let live = row < p.rows;
    if live {
        start = row_start(row);
        target_start = (row / p.inner) * p.len * p.inner + row % p.inner + p.first;
        if CARRY == 1u {
            so_far = carry[row * p.parts + part];
        }
    }
    let at_once = THREADS * EACH;
    let turns = (to - begin + at_once - 1u) / at_once;
    for (var turn = 0u; turn < turns; turn += 1u) {
        let first = begin + turn * at_once + thread * EACH;
        var held: array<u32, EACH>;
        var all = identity();
        for (var k = 0u; k < EACH; k += 1u) {
            if live && first + k < to {
                all = combine(all, element(start, first + k));
            }
            held[k] = all;
        }
        let before = before_me(all);
        let base = combine(so_far, before.own);
        for (var k = 0u; k < EACH; k += 1u) {
            if live && first + k < to {
                var value = combine(base, held[k]);
                if p.exclusive == 1u {
                    value = base;
                    if k > 0u {
                        value = combine(base, held[max(k, 1u) - 1u]);
                    }
                }
                y[target_start + (first + k) * p.step] = value;
            }
        }
        so_far = combine(so_far, before.all);
    }
}
