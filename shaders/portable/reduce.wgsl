// y = sum, product, greatest or least of the elements of each row, of any axes and strides. Numbers are
// handled as 32 bits: f32 for floats, integers that wrap; a row's result is rounded or cut once.
//
// A workgroup takes 256 / THREADS rows, or the part number group % parts of them: then y has `parts` results a
// row, each of `chunk` units. A unit is a whole word of PER elements where rows are dense and aligned,
// else one element.

struct Params {
    sizes: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    // The axes that number the rows come first, then those along them.
    kept: u32,
    along: u32,
    offset: u32,
    rows: u32,
    len: u32,
    parts: u32,
    chunk: u32,
    // 1 where the result is divided by `count`.
    mean: u32,
    count: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override IN: u32 = 0u;
override OUT: u32 = 0u;
override PER: u32 = 1u;

// Where element `i` of a row lies behind the row's first one.
fn step_to(i: u32) -> u32 {
    var rest = i;
    var at = 0u;
    for (var k = p.along; k > 1u; k -= 1u) {
        let axis = p.kept + k - 1u;
        let size = p.sizes[axis / 4u][axis % 4u];
        at += (rest % size) * p.strides[axis / 4u][axis % 4u];
        rest /= size;
    }
    return at + rest * p.strides[p.kept / 4u][p.kept % 4u];
}

// The result over unit `i` of the row that begins at `start`.
fn unit_at(start: u32, i: u32) -> u32 {
    if PER == 1u {
        let at = start + step_to(i);
        return number_of(x[word_of(at, IN)], lane_of(at, IN), IN);
    }
    let word = x[word_of(start, IN) + i];
    var all = number_of(word, 0u, IN);
    for (var lane = 1u; lane < PER; lane += 1u) {
        all = combine(all, number_of(word, lane, IN));
    }
    return all;
}

// Units from `first` on, every THREADS-th, `count` of them, by blocks of 16 of 16: the error of a sum grows
// slowly.
fn over_units(start: u32, first: u32, count: u32) -> u32 {
    var all = identity();
    for (var done = 0u; done < count; done += 256u) {
        var some = identity();
        let blocks = min((count - done + 15u) / 16u, 16u);
        for (var block = 0u; block < blocks; block += 1u) {
            var few = identity();
            for (var k = 0u; k < 16u; k += 1u) {
                let n = done + block * 16u + k;
                if n < count {
                    few = combine(few, unit_at(start, first + n * THREADS));
                }
            }
            some = combine(some, few);
        }
        all = combine(all, some);
    }
    return all;
}

fn finished(all: u32) -> u32 {
    if IN > BF16 {
        return int_bits(bitcast<i32>(all), OUT);
    }
    var value = bitcast<f32>(all);
    if p.mean == 1u {
        value = select(value / f32(p.count), nan(), p.count == 0u);
    }
    return float_bits(value, OUT);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    take_place(index);
    let flat = flat_group(group, groups);
    let first_row = (flat / p.parts) * group_rows();
    let part = flat % p.parts;
    let row = first_row + own_row;
    var own = identity();
    if row < p.rows {
        let units = p.len / PER;
        let begin = min(part * p.chunk, units) + thread;
        let to = min(part * p.chunk + p.chunk, units);
        if begin < to {
            own = over_units(row_start(row), begin, (to - begin + THREADS - 1u) / THREADS);
        }
    }
    let all = finished(over_row(own));
    let per = lanes(OUT);
    if per == 1u {
        if thread == 0u && row < p.rows {
            y[row * p.parts + part] = all;
        }
        return;
    }
    // Several rows to a word; there are no parts.
    workgroupBarrier();
    if thread == 0u {
        pool[own_row] = select(0u, all, row < p.rows);
    }
    workgroupBarrier();
    let word = first_row / per + local;
    if local < group_rows() / per && word * per < p.rows {
        var out = 0u;
        for (var lane = 0u; lane < per; lane += 1u) {
            out |= pool[local * per + lane] << ((32u / per) * lane);
        }
        y[word] = out;
    }
}
