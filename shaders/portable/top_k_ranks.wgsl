// The first `k` elements of each row of at most 256 words, in order, and their indices; ties by index. `shape` and `strides`
// are those of the RANK axes of rows. LANES invocations, a power of two and 8 at least, have a row, one element each: it goes where the
// number of those before it says. Elements that neighbour along the axis are `inner` apart in the results.
// uses prelude.wgsl: flat_group
// uses top_k_key.wgsl: key_of
// uses top_k_place.wgsl: place_of

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    rows: u32,
    offset: u32,
    along: u32,
    len: u32,
    inner: u32,
    k: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;
@group(0) @binding(3) var<storage, read_write> indices: array<u32>;

override LANES: u32 = 128u;

const WORKGROUP: u32 = 256u;

const EACH: u32 = 8u;

var<workgroup> keys: array<u32, WORKGROUP>;
var<private> others: array<u32, EACH>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = flat_group(group, count) * (WORKGROUP / LANES) + local / LANES;
    let own = local % LANES;
    let is_some = row < p.rows && own < p.len;
    var word = 0u;
    var key = 0u;
    if is_some {
        word = x[place_of(row) + own * p.along];
        key = key_of(word, 0u);
    }
    // Places beyond the row come after everything.
    keys[local] = select(0xffffffffu, key, is_some);
    workgroupBarrier();
    if !is_some {
        return;
    }
    let first = local - own;
    var rank = 0u;
    for (var i = 0u; i < LANES; i += EACH) {
        // At once, so that nobody waits for each.
        for (var j = 0u; j < EACH; j += 1u) {
            others[j] = keys[first + i + j];
        }
        for (var j = 0u; j < EACH; j += 1u) {
            let is_before = others[j] < key || (others[j] == key && i + j < own);
            rank += select(0u, 1u, is_before);
        }
    }
    if rank < p.k {
        let to = (row / p.inner * p.k + rank) * p.inner + row % p.inner;
        values[to] = word;
        indices[to] = own;
    }
}
