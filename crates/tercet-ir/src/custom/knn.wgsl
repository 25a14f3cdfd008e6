// k nearest neighbors of each point from its row of distances: indices and distances, nearest
// first. Ties select the lower index, and NaN is the farthest. If a point has fewer than k
// neighbors, the missing ones have index -1 and distance infinity.
//
// A workgroup processes one row and finds one neighbor per pass: the smallest (key, index) greater
// than the previous one. Keys are order-preserving integers of the distances.

struct Params {
    n: u32,
    k: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> distances: array<u32>;
@group(0) @binding(2) var<storage, read_write> numbers: array<u32>;
@group(0) @binding(3) var<storage, read_write> near: array<u32>;

const WORKGROUP: u32 = 64u;
const NONE: u32 = 0xffffffffu;
const INFINITY: u32 = 0x7f800000u;

var<workgroup> keys: array<u32, 64>;
var<workgroup> places: array<u32, 64>;

// Order-preserving integer of a distance: -0 equals 0, and every NaN is the largest.
fn key_of(bits: u32) -> u32 {
    let size = bits & 0x7fffffffu;
    if size > INFINITY {
        return NONE;
    }
    if size == 0u {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits > 0x7fffffffu);
}

fn is_before(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x < b.x || (a.x == b.x && a.y < b.y);
}

@compute @workgroup_size(64)
fn nearest(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = group.y * count.x + group.x;
    if row >= p.n {
        return;
    }
    let start = row * p.n;
    var last = vec2(0u, 0u);
    for (var i = 0u; i < p.k; i += 1u) {
        var best = vec2(NONE, NONE);
        for (var j = local; j < p.n; j += WORKGROUP) {
            let one = vec2(key_of(distances[start + j]), j);
            let is_new = i == 0u || is_before(last, one);
            if j != row && is_new && is_before(one, best) {
                best = one;
            }
        }
        // After this barrier, all threads have read the result of the previous pass.
        workgroupBarrier();
        keys[local] = best.x;
        places[local] = best.y;
        workgroupBarrier();
        for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
            if local < half {
                let other = vec2(keys[local + half], places[local + half]);
                if is_before(other, vec2(keys[local], places[local])) {
                    keys[local] = other.x;
                    places[local] = other.y;
                }
            }
            workgroupBarrier();
        }
        last = vec2(keys[0], places[0]);
        if local == 0u {
            let at = row * p.k + i;
            numbers[at] = last.y;
            near[at] = INFINITY;
            if last.y != NONE {
                near[at] = distances[start + last.y];
            }
        }
    }
}
