// Top-p sampling: y[row] = index drawn from a sorted row by its weights (`sample_weights.wgsl`).
// The kernel keeps the shortest prefix whose weight reaches `top_p` (in units of 2^-63) of the
// total. The kernel returns the first index at which the running weight exceeds u times the weight
// of the prefix. All arithmetic is in integers, so the result does not depend on the order of sums.
// A workgroup draws one row.
// uses philox.wgsl: philox
// uses prelude.wgsl: flat_group
// uses wide64.wgsl: add64, less64, mul64

struct Params {
    rows: u32,
    kept: u32,
    blocks: u32,
    row_stride: u32,
    top_p_low: u32,
    top_p_high: u32,
    seed_low: u32,
    seed_high: u32,
    stream: u32,
    step_low: u32,
    step_high: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read> indices: array<u32>;
@group(0) @binding(3) var<storage, read> weights: array<u32>;
@group(0) @binding(4) var<storage, read> sums: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<u32>;

// The key of -inf.
const LOWEST: u32 = 0xff800000u;

var<workgroup> part: array<vec2<u32>, 256>;
// Search state: the current position, and the sum of the weights before it.
var<workgroup> place: u32;
var<workgroup> running: vec2<u32>;

fn sum_of_block(row: u32, block: u32) -> vec2<u32> {
    if block >= p.blocks {
        return vec2(0u, 0u);
    }
    let at = (row * p.blocks + block) * 2u;
    return vec2(sums[at], sums[at + 1u]);
}

fn weight_of(row: u32, i: u32) -> vec2<u32> {
    if i >= p.kept {
        return vec2(0u, 0u);
    }
    let at = (row * p.kept + i) * 2u;
    return vec2(weights[at], weights[at + 1u]);
}

// Total weight of the row; every thread receives it.
fn total_of(row: u32, local: u32) -> vec2<u32> {
    var own = vec2(0u, 0u);
    for (var block = local; block < p.blocks; block += 256u) {
        own = add64(own, sum_of_block(row, block));
    }
    part[local] = own;
    workgroupBarrier();
    for (var step = 128u; step > 0u; step /= 2u) {
        if local < step {
            part[local] = add64(part[local], part[local + step]);
        }
        workgroupBarrier();
    }
    let total = part[0];
    workgroupBarrier();
    return total;
}

// Advances the search over the `count` sums in `part`. One thread increments `place` and `running`
// until the next addition would reach `least`.
fn walk(count: u32, least: vec2<u32>) {
    for (var i = 0u; i < count; i += 1u) {
        let next = add64(running, part[i]);
        if !less64(next, least) {
            return;
        }
        running = next;
        place += 1u;
    }
}

// Sets `place` to the first element at which the running weight is at least `least`, and `running`
// to the weight before it.
fn search(row: u32, local: u32, least: vec2<u32>) {
    if local == 0u {
        place = 0u;
        running = vec2(0u, 0u);
    }
    for (var first = 0u; first < p.blocks; first += 256u) {
        part[local] = sum_of_block(row, first + local);
        workgroupBarrier();
        if local == 0u && place == first {
            walk(min(256u, p.blocks - first), least);
        }
        workgroupBarrier();
    }
    let block = workgroupUniformLoad(&place);
    part[local] = weight_of(row, block * 256u + local);
    workgroupBarrier();
    if local == 0u {
        place = block * 256u;
        if place < p.kept {
            walk(min(256u, p.kept - place), least);
        }
        place = min(place, p.kept - 1u);
    }
    workgroupBarrier();
}

// floor(a top_p)
fn share(a: vec2<u32>) -> vec2<u32> {
    let product = mul64(a, vec2(p.top_p_low, p.top_p_high));
    return vec2((product.z << 1u) | (product.y >> 31u), (product.w << 1u) | (product.z >> 31u));
}

// floor(a unit / 2^24)
fn part_of(a: vec2<u32>, unit: u32) -> vec2<u32> {
    let product = mul64(a, vec2(unit, 0u));
    return vec2((product.x >> 24u) | (product.y << 8u), (product.y >> 24u) | (product.z << 8u));
}

fn unit_of(row: u32) -> u32 {
    let counter = vec4(row / 4u, p.stream, p.step_low, p.step_high);
    return philox(counter, vec2(p.seed_low, p.seed_high))[row % 4u] >> 8u;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = flat_group(group, count);
    if row >= p.rows {
        return;
    }
    search(row, local, share(total_of(row, local)));
    if local == 0u {
        running = add64(running, weight_of(row, place));
    }
    let stayed = workgroupUniformLoad(&running);
    let threshold = part_of(stayed, unit_of(row));
    search(row, local, add64(threshold, vec2(1u, 0u)));
    if local == 0u {
        let is_masked = keys[row * p.row_stride] == LOWEST;
        y[row] = indices[row * p.row_stride + select(place, 0u, is_masked)];
    }
}
