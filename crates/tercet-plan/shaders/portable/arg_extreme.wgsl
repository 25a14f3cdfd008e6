// ArgMax (LEAST = 0) or ArgMin of each row: y = index of the extreme element. Rows may have any
// stride. arg_extreme_key.wgsl defines the order of the elements.
//
// A workgroup processes 256 / THREADS rows. If rows are split into `parts`, the workgroup processes
// part `group % parts`, `chunk` elements long. With KEYS = 1, y receives the (key, index) pair of
// each part instead. With PAIRS = 1, x contains such pairs.
// uses arg_extreme_key.wgsl: better, element, over_row, p, x
// uses prelude.wgsl: flat_group
// uses rows.wgsl: THREADS, group_rows, own_row, take_place, thread
// uses strided.wgsl: row_start

@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override KEYS: u32 = 0u;
override PAIRS: u32 = 0u;

fn candidate(start: u32, i: u32) -> vec2<u32> {
    if PAIRS == 1u {
        return vec2<u32>(x[start + i * 2u], x[start + i * 2u + 1u]);
    }
    return element(start, i);
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
    var best = vec2<u32>(0u, 0xffffffffu);
    let live = row < p.rows;
    if live {
        let start = row_start(row);
        let begin = min(part * p.chunk, p.len) + thread;
        let to = min(part * p.chunk + p.chunk, p.len);
        for (var i = begin; i < to; i += THREADS) {
            best = better(best, candidate(start, i));
        }
    }
    best = over_row(best);
    if live && thread == 0u {
        let at = row * p.parts + part;
        if KEYS == 1u {
            y[at * 2u] = best.x;
            y[at * 2u + 1u] = best.y;
        } else {
            y[at] = best.y;
        }
    }
}
