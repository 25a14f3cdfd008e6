// Group-limited expert gating of a mixture of experts. choice = sigmoid(logit) + bias. A group's
// score is the sum of its two largest choices. The `keep` best groups remain, and the `k` best of
// their experts are selected in order. The result row has 2 k numbers: the expert indices, then the
// weights sigmoid / (their sum + 1e-20) * scale.
//
// A workgroup processes one row. The output position of an expert is the number of better experts,
// so no sort is needed. Ties select the lower index; NaN ranks as -inf.

struct Params {
    rows: u32,
    groups: u32,
    size: u32,
    keep: u32,
    k: u32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const WORKGROUP: u32 = 64u;

var<workgroup> choice: array<f32, 2048>;
var<workgroup> score: array<f32, 256>;
var<workgroup> is_kept: array<u32, 256>;
var<workgroup> chosen: array<u32, 256>;

fn as_float(bits: u32) -> f32 {
    return bitcast<f32>(bits);
}

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// Sigmoid without overflow of the exponential.
fn sigmoid(x: f32) -> f32 {
    let e = exp(-abs(x));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}

// -inf
fn least() -> f32 {
    return as_float(0xff800000u);
}

// True if value a of index i ranks before value b of index j.
fn is_before(a: f32, i: u32, b: f32, j: u32) -> bool {
    return a > b || (a == b && i < j);
}

fn score_of(group: u32) -> f32 {
    let start = group * p.size;
    var first = choice[start];
    if p.size == 1u {
        return first;
    }
    var second = least();
    for (var i = 1u; i < p.size; i += 1u) {
        let c = choice[start + i];
        if c > first {
            second = first;
            first = c;
        } else if c > second {
            second = c;
        }
    }
    // inf - inf would be NaN.
    let sum = first + second;
    return select(sum, least(), is_nan(sum));
}

// Number of groups that rank before this one.
fn groups_before(group: u32) -> u32 {
    var count = 0u;
    for (var g = 0u; g < p.groups; g += 1u) {
        count += select(0u, 1u, is_before(score[g], g, score[group], group));
    }
    return count;
}

// Number of experts in the remaining groups that rank before this one.
fn experts_before(expert: u32) -> u32 {
    var count = 0u;
    for (var g = 0u; g < p.groups; g += 1u) {
        if is_kept[g] == 0u {
            continue;
        }
        for (var i = g * p.size; i < (g + 1u) * p.size; i += 1u) {
            count += select(0u, 1u, is_before(choice[i], i, choice[expert], expert));
        }
    }
    return count;
}

@compute @workgroup_size(64)
fn gate(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = group.y * count.x + group.x;
    if row >= p.rows {
        return;
    }
    let experts = p.groups * p.size;
    let start = row * experts;
    for (var i = local; i < experts; i += WORKGROUP) {
        let is_number = !is_nan(logits[start + i]) && !is_nan(bias[i]);
        choice[i] = select(least(), sigmoid(logits[start + i]) + bias[i], is_number);
    }
    workgroupBarrier();
    for (var g = local; g < p.groups; g += WORKGROUP) {
        score[g] = score_of(g);
    }
    workgroupBarrier();
    for (var g = local; g < p.groups; g += WORKGROUP) {
        is_kept[g] = select(0u, 1u, groups_before(g) < p.keep);
    }
    workgroupBarrier();
    for (var i = local; i < experts; i += WORKGROUP) {
        if is_kept[i / p.size] == 1u {
            let place = experts_before(i);
            if place < p.k {
                chosen[place] = i;
            }
        }
    }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < p.k; i += 1u) {
        sum += sigmoid(logits[start + chosen[i]]);
    }
    sum += 1e-20;
    for (var i = local; i < p.k; i += WORKGROUP) {
        let at = row * 2u * p.k + i;
        y[at] = f32(chosen[i]);
        y[at + p.k] = sigmoid(logits[start + chosen[i]]) / sum * p.scale;
    }
}
