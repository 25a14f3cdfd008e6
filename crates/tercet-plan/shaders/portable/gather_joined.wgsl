// Gather along an axis of two joined operands, which are dense: result row j is row idx[j] of x, or of `more`
// if the index is beyond the rows of x. Indices are as in gather.wgsl. A thread reads a word. With WIDENS = 1,
// the word contains two 16-bit floats of dtype IN, and the result is F32.
// uses named.wgsl: named
// uses prelude.wgsl: flat_group, float_of

struct Params {
    numel: u32,
    count: u32,
    inner: u32,
    len: u32,
    more_len: u32,
    offset: u32,
    more_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> more: array<u32>;
@group(0) @binding(3) var<storage, read> idx: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<u32>;

override IN: u32 = 0u;
override WIDENS: u32 = 0u;

// Word `i` of the result, before it is widened.
fn word_at(i: u32) -> u32 {
    let len = p.len + p.more_len;
    // An empty axis has no valid index.
    if len == 0u {
        return 0u;
    }
    let row = i / p.inner;
    let outer = row / p.count;
    let place = named(idx[row % p.count], len);
    if place < p.len {
        return x[p.offset + (outer * p.len + place) * p.inner + i % p.inner];
    }
    return more[p.more_offset + (outer * p.more_len + (place - p.len)) * p.inner + i % p.inner];
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat_group(group, groups) * 256u + local;
    if i >= p.numel {
        return;
    }
    let word = word_at(i);
    if WIDENS == 0u {
        y[i] = word;
        return;
    }
    y[2u * i] = bitcast<u32>(float_of(word, 0u, IN));
    y[2u * i + 1u] = bitcast<u32>(float_of(word, 1u, IN));
}
