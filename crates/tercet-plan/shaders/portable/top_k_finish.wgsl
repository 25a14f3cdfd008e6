// Final steps of a bitonic merge: orders the pairs of each chunk of 1024 (key, index) pairs at
// distances of 512, 256, ... 1. A workgroup processes one chunk.
// uses prelude.wgsl: flat_group

struct Params {
    chunks: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> keys: array<u32>;
@group(0) @binding(2) var<storage, read_write> indices: array<u32>;

const CHUNK: u32 = 1024u;

var<workgroup> key: array<u32, CHUNK>;
var<workgroup> index: array<u32, CHUNK>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let chunk = flat_group(group, count);
    if chunk >= p.chunks {
        return;
    }
    for (var at = local; at < CHUNK; at += 256u) {
        key[at] = keys[chunk * CHUNK + at];
        index[at] = indices[chunk * CHUNK + at];
    }
    workgroupBarrier();
    for (var step = CHUNK / 2u; step > 0u; step /= 2u) {
        for (var pair = local; pair < CHUNK / 2u; pair += 256u) {
            let a = pair / step * step * 2u + pair % step;
            let b = a + step;
            if key[b] < key[a] || (key[b] == key[a] && index[b] < index[a]) {
                let k = key[a];
                let i = index[a];
                key[a] = key[b];
                index[a] = index[b];
                key[b] = k;
                index[b] = i;
            }
        }
        workgroupBarrier();
    }
    for (var at = local; at < CHUNK; at += 256u) {
        keys[chunk * CHUNK + at] = key[at];
        indices[chunk * CHUNK + at] = index[at];
    }
}
