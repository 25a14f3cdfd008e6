// FlashAttention (Dao et al., 2022) for many queries, with the cooperative matrices of WGSL:
// y = softmax(mask(softcap(scale q k^T))) v. The scores are never stored in global memory.
//
// A workgroup computes ROWS rows of one batch entry and KV head, and a subgroup SIDE of them, with
// all columns of the values. attention_common.wgsl defines rows. The workgroup iterates over the keys
// that any of its rows attends to, KEYS per step. Queries, keys and values are staged in the element
// type of the fragments; sums are F32. A workgroup with rows of the same keys runs close to others
// with these keys, the last tiles first, because they take longest under a causal mask.
//
// WGSL has no access to the elements of a fragment, so scores pass through shared memory. They lie
// there by key, with the rows of a subgroup side by side. Thread `lane` of a subgroup owns row
// lane % SIDE and every (SUBGROUP / SIDE)-th key, so a subgroup accesses consecutive elements. The
// weights take the same places and become left operands.
//
// Weights are exponentials of the score minus the row's center, as in attention.wgsl: the row
// maximum at the time of its last update. Only if a score exceeds its center by more than SLACK, the
// sums pass through shared memory and are scaled there. A masked pair has the weight -0, which no
// exponential yields. If a value is not finite and masked for some rows, the values of the step are
// added one by one, only to the rows that attend to them.
//
// Sums of the value columns are in named variables, because compilers keep them in registers in any
// case. A loop over them rotates the variables.
//
// HEAD and VALUE are the head sizes of queries and values, rounded up to whole fragments. SIDE * SIDE
// is a multiple of SUBGROUP, SUBGROUP of SIDE, and SIDE * KEYS of 4 SUBGROUP; KEYS is SIDE, 2 SIDE or
// 4 SIDE; VALUE is at most 16 SIDE. Offsets, strides and head sizes of the operands are multiples of 4.
//
// Another fragment defines the type of staged elements (Staged), of an element of shared memory
// (Slot) with 2^SLOT_SHIFT of them, SIDE, the fragment types, put_a and put_b.
// uses attention_common.wgsl: CAPPED, MASK, k_start, left_of, p, q_start, score, v_start
// uses attention_coop_half.wgsl or attention_coop_wide.wgsl: k, q, v
// uses attention_store.wgsl: y_four, y_start
// uses matmul/coop_half_16.wgsl or matmul/coop_half_8.wgsl or matmul/coop_wide_8.wgsl: MatA, MatB, MatC, SIDE, SLOT_SHIFT, Slot, Staged, put_a, put_b
// uses prelude.wgsl: order

// Subgroups of a workgroup, and threads of a subgroup.
override SUBGROUPS: u32 = 4u;
override SUBGROUP: u32 = 32u;
override KEYS: u32 = 32u;
override HEAD: u32 = 64u;
override VALUE: u32 = 64u;

const COUNT: u32 = SUBGROUPS * SUBGROUP;
const ROWS: u32 = SUBGROUPS * SIDE;
const FRAGS: u32 = VALUE / SIDE;
const PADDING: u32 = 8u;
const K_LINE: u32 = HEAD + PADDING;
const V_LINE: u32 = VALUE + PADDING;
// Vectors of four of a line.
const K_QUADS: u32 = HEAD / 4u;
const V_QUADS: u32 = VALUE / 4u;
// Vectors of the keys, or of the values, of a step. If a thread loads them at once, it loads those of
// the next step ahead.
const STEP_LOADS: u32 = KEYS * max(K_QUADS, V_QUADS);
const LOADS_AHEAD: bool = STEP_LOADS <= 4u * COUNT;
// The values follow the keys.
const V_AT: u32 = KEYS * K_LINE;
const A_SLOTS: u32 = (ROWS * K_LINE) >> SLOT_SHIFT;
const B_SLOTS: u32 = (V_AT + KEYS * V_LINE) >> SLOT_SHIFT;
// Scores of a subgroup, of a thread, and threads of a row.
const SCORES: u32 = KEYS * SIDE;
const OWN_SCORES: u32 = SCORES / SUBGROUP;
const ACROSS: u32 = SUBGROUP / SIDE;
// Elements of a fragment that a thread scales.
const OWN_SUMS: u32 = SIDE * SIDE / SUBGROUP;

// Limit by which a score may exceed its row's center before the center changes. SLACK bounds the
// softmax weights by exp(8), which is below 3000.
const SLACK: f32 = 8.0;

// Findings of a step: a center changes; the sums of a row must be scaled; a value is not finite.
const FAR: u32 = 1u;
const RISEN: u32 = 2u;
const SPECIAL: u32 = 4u;

var<workgroup> a_tile: array<Slot, A_SLOTS>;
var<workgroup> b_tile: array<Slot, B_SLOTS>;
// The scores of a step, and later a fragment of sums.
var<workgroup> scores_tile: array<f32, SUBGROUPS * SCORES>;
var<workgroup> weights_tile: array<Staged, SUBGROUPS * SCORES>;
// Largest score of each row that changed its center, as an ordered integer.
var<workgroup> tops: array<atomic<i32>, ROWS>;
// Sums of the weights of each thread.
var<workgroup> gathered: array<f32, COUNT>;
// The findings of a step are the first one. The others keep the arrays of shared memory at multiples
// of 16 bytes: drivers place them one after another, and some load fragments from such places only.
var<workgroup> findings: array<atomic<u32>, 4>;

// Upper limit for the scores of a row. If a score exceeds this limit, the row's center must be
// updated.
fn limit_of(top: i32) -> i32 {
    let is_finite = top > MINUS_INF && top < PLUS_INF;
    return select(top, order(float_at(top) + SLACK), is_finite);
}

fn is_whole(x: vec4<Staged>) -> bool {
    let bits = bitcast<vec4<u32>>(vec4<f32>(x));
    return all((bits & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u));
}

// The scores of a thread at `at` and at the three places after it.
fn four_scores(at: u32) -> vec4<f32> {
    return vec4<f32>(
        scores_tile[at],
        scores_tile[at + SUBGROUP],
        scores_tile[at + 2u * SUBGROUP],
        scores_tile[at + 3u * SUBGROUP],
    );
}

// Adds a column of `count` values from element `at` on to a sum, times the weights from `first` on.
// Skips values that the row does not attend to, because they may be NaN.
fn add_attended(sum: f32, first: u32, count: u32, at: u32) -> f32 {
    var out = sum;
    for (var key = 0u; key < count; key += 1u) {
        let w = f32(weights_tile[first + key * SIDE]);
        if bitcast<u32>(w) != 0x80000000u {
            let i = at + key * p.v_seq;
            out += w * f32(v[i / 4u][i % 4u]);
        }
    }
    return out;
}

// Vector `i` of the keys of a step, or 0 beyond the last key and the last column. The index is clamped
// instead of a branch, so that a thread waits once for all its loads.
fn key_four(k_at: u32, key0: i32, end: i32, i: u32) -> vec4<Staged> {
    let line = i / K_QUADS;
    let d = i % K_QUADS * 4u;
    let key = key0 + i32(line);
    let is_in = line < KEYS && key < end && d < p.head_dim;
    let x = k[select(k_at, k_at + u32(key) * p.k_seq + d, is_in) / 4u];
    return select(vec4<Staged>(), x, is_in);
}

fn value_four(v_at: u32, key0: i32, end: i32, i: u32) -> vec4<Staged> {
    let line = i / V_QUADS;
    let d = i % V_QUADS * 4u;
    let key = key0 + i32(line);
    let is_in = line < KEYS && key < end && d < p.value_dim;
    let x = v[select(v_at, v_at + u32(key) * p.v_seq + d, is_in) / 4u];
    return select(vec4<Staged>(), x, is_in);
}

// Keys and values that a thread loads together.
struct StepLoads {
    k0: vec4<Staged>,
    k1: vec4<Staged>,
    k2: vec4<Staged>,
    k3: vec4<Staged>,
    v0: vec4<Staged>,
    v1: vec4<Staged>,
    v2: vec4<Staged>,
    v3: vec4<Staged>,
}

// Vectors `i`, `i + COUNT` and so on of the keys and the values from `key0` on.
fn load_step(k_at: u32, v_at: u32, key0: i32, end: i32, i: u32) -> StepLoads {
    return StepLoads(
        key_four(k_at, key0, end, i),
        key_four(k_at, key0, end, i + COUNT),
        key_four(k_at, key0, end, i + 2u * COUNT),
        key_four(k_at, key0, end, i + 3u * COUNT),
        value_four(v_at, key0, end, i),
        value_four(v_at, key0, end, i + COUNT),
        value_four(v_at, key0, end, i + 2u * COUNT),
        value_four(v_at, key0, end, i + 3u * COUNT),
    );
}

fn put_key(i: u32, x: vec4<Staged>) {
    if i < KEYS * K_QUADS {
        put_b(i / K_QUADS * K_LINE + i % K_QUADS * 4u, x);
    }
}

fn put_value(i: u32, x: vec4<Staged>) {
    if i < KEYS * V_QUADS {
        put_b(V_AT + i / V_QUADS * V_LINE + i % V_QUADS * 4u, x);
    }
}

// Stages loaded vectors. True if no value is looked at, or all are finite.
fn put_step(i: u32, x: StepLoads, guarded: bool) -> bool {
    put_key(i, x.k0);
    put_key(i + COUNT, x.k1);
    put_key(i + 2u * COUNT, x.k2);
    put_key(i + 3u * COUNT, x.k3);
    put_value(i, x.v0);
    put_value(i + COUNT, x.v1);
    put_value(i + 2u * COUNT, x.v2);
    put_value(i + 3u * COUNT, x.v3);
    return !guarded || (is_whole(x.v0) && is_whole(x.v1) && is_whole(x.v2) && is_whole(x.v3));
}

@compute @workgroup_size(COUNT)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    // Not by a function: naga accepts matrices behind this return only if it sees that all threads
    // of a workgroup agree.
    let flat = group.y * groups.x + group.x;
    if flat >= p.groups {
        return;
    }
    let heads = p.batch * p.kv_heads;
    let batch = flat % heads / p.kv_heads;
    let head = flat % p.kv_heads;
    let first_row = (p.tiles - 1u - flat / heads) * ROWS;
    let rows = p.queries * p.group;
    let keys = keys_of(batch);
    let first_seen = seen_by(first_row / p.group, keys);
    let last_seen = seen_by((min(first_row + ROWS, rows) - 1u) / p.group, keys);
    let end = last_seen.y;
    let k_at = k_start(batch, head);
    let v_at = v_start(batch, head);

    let unit = local / SUBGROUP;
    let lane = local % SUBGROUP;
    let own = unit * SCORES;
    let own_row = unit * SIDE + lane % SIDE;
    let own_key = lane / SIDE;
    let row = first_row + own_row;
    let seen = seen_by(row / p.group, keys);

    for (var i = local; i < ROWS * K_QUADS; i += COUNT) {
        let line = i / K_QUADS;
        let d = i % K_QUADS * 4u;
        var x = vec4<Staged>();
        if first_row + line < rows && d < p.head_dim {
            x = q[(q_start(batch, head, first_row + line) + d) / 4u];
        }
        put_a(line * K_LINE + d, x);
    }
    for (var i = local; i < ROWS; i += COUNT) {
        atomicStore(&tops[i], UNSEEN);
    }
    if local == 0u {
        atomicStore(&findings[0], 0u);
    }
    var top = UNSEEN;
    var weights = 0.0;
    var o0 = MatC();
    var o1 = MatC();
    var o2 = MatC();
    var o3 = MatC();
    var o4 = MatC();
    var o5 = MatC();
    var o6 = MatC();
    var o7 = MatC();
    var o8 = MatC();
    var o9 = MatC();
    var o10 = MatC();
    var o11 = MatC();
    var o12 = MatC();
    var o13 = MatC();
    var o14 = MatC();
    var o15 = MatC();

    var at_hand: StepLoads;
    if LOADS_AHEAD {
        at_hand = load_step(k_at, v_at, first_seen.x, end, local);
    }
    for (var key0 = first_seen.x; key0 < end; key0 += i32(KEYS)) {
        let on_edge = key0 < last_seen.x || key0 + i32(KEYS) > min(first_seen.y, end);
        let guarded = MASK != 0u || on_edge;
        // After this barrier, all threads have read the keys, the values and the weights of the
        // previous step.
        workgroupBarrier();
        if !LOADS_AHEAD {
            at_hand = load_step(k_at, v_at, key0, end, local);
        }
        var are_whole = put_step(local, at_hand, guarded);
        for (var i = local + 4u * COUNT; i < STEP_LOADS; i += 4u * COUNT) {
            are_whole = put_step(i, load_step(k_at, v_at, key0, end, i), guarded) && are_whole;
        }
        if !are_whole {
            atomicOr(&findings[0], SPECIAL);
        }
        workgroupBarrier();

        // q k^T.
        var s0 = MatC();
        var s1 = MatC();
        var s2 = MatC();
        var s3 = MatC();
        for (var d = 0u; d < HEAD; d += SIDE) {
            let x = coopLoadT<MatA>(&a_tile[(unit * SIDE * K_LINE + d) >> SLOT_SHIFT], K_LINE >> SLOT_SHIFT);
            s0 = coopMultiplyAdd(x, coopLoad<MatB>(&b_tile[d >> SLOT_SHIFT], K_LINE >> SLOT_SHIFT), s0);
            if KEYS > SIDE {
                s1 = coopMultiplyAdd(x, coopLoad<MatB>(&b_tile[(1u * SIDE * K_LINE + d) >> SLOT_SHIFT], K_LINE >> SLOT_SHIFT), s1);
            }
            if KEYS > 2u * SIDE {
                s2 = coopMultiplyAdd(x, coopLoad<MatB>(&b_tile[(2u * SIDE * K_LINE + d) >> SLOT_SHIFT], K_LINE >> SLOT_SHIFT), s2);
                s3 = coopMultiplyAdd(x, coopLoad<MatB>(&b_tile[(3u * SIDE * K_LINE + d) >> SLOT_SHIFT], K_LINE >> SLOT_SHIFT), s3);
            }
        }
        coopStore(s0, &scores_tile[own], SIDE);
        if KEYS > SIDE {
            coopStore(s1, &scores_tile[own + 1u * SIDE * SIDE], SIDE);
        }
        if KEYS > 2u * SIDE {
            coopStore(s2, &scores_tile[own + 2u * SIDE * SIDE], SIDE);
            coopStore(s3, &scores_tile[own + 3u * SIDE * SIDE], SIDE);
        }
        workgroupBarrier();

        // Masked scores as ordered integers, and their maximum.
        if LOADS_AHEAD {
            at_hand = load_step(k_at, v_at, key0 + i32(KEYS), end, local);
        }
        let is_kept = guarded || CAPPED == 1u;
        var most = UNSEEN;
        if is_kept {
            for (var i = 0u; i < OWN_SCORES; i += 1u) {
                let at = own + i * SUBGROUP + lane;
                var key = UNSEEN;
                if row < rows {
                    key = score(scores_tile[at], batch, head, row, key0 + i32(i * ACROSS + own_key), seen);
                }
                scores_tile[at] = bitcast<f32>(key);
                most = max(most, key);
            }
        } else {
            // Four at once, so that a thread waits once for them.
            for (var i = 0u; i < OWN_SCORES; i += 4u) {
                let keys = keys_in_order(four_scores(own + i * SUBGROUP + lane) * p.scale);
                let pair = max(keys.xy, keys.zw);
                most = max(most, max(pair.x, pair.y));
            }
        }
        if most > limit_of(top) {
            atomicMax(&tops[own_row], most);
            atomicOr(&findings[0], select(FAR, FAR | RISEN, top > MINUS_INF));
        }
        workgroupBarrier();
        let found = atomicLoad(&findings[0]);
        var by = 1.0;
        if (found & FAR) != 0u {
            let now = max(top, atomicLoad(&tops[own_row]));
            by = rescale(top, center_of(now));
            top = now;
            weights *= by;
        }

        // The softmax weights. exp(x) rounds to 0 in F32 for x < -104.
        let center = center_of(top);
        for (var i = 0u; i < OWN_SCORES; i += 4u) {
            let at = own + i * SUBGROUP + lane;
            let x = four_scores(at);
            var w: vec4<f32>;
            if is_kept {
                let keys = bitcast<vec4<i32>>(x);
                w = vec4<f32>(
                    weight(keys.x, center),
                    weight(keys.y, center),
                    weight(keys.z, center),
                    weight(keys.w, center),
                );
            } else {
                w = exp(max(x * p.scale - center, vec4<f32>(-104.0)));
            }
            // The sum is that of the rounded weights, so that a row with one large weight is exact.
            let staged = vec4<Staged>(w);
            let rounded_weights = vec4<f32>(staged);
            weights += (rounded_weights.x + rounded_weights.y) + (rounded_weights.z + rounded_weights.w);
            weights_tile[at] = staged.x;
            weights_tile[at + SUBGROUP] = staged.y;
            weights_tile[at + 2u * SUBGROUP] = staged.z;
            weights_tile[at + 3u * SUBGROUP] = staged.w;
        }
        // After this barrier, all threads have read the findings, and the weights are complete.
        workgroupBarrier();
        if local == 0u {
            atomicStore(&findings[0], 0u);
        }
        if (found & (RISEN | SPECIAL)) != 0u {
            let count = u32(min(end - key0, i32(KEYS)));
            for (var f = 0u; f < FRAGS; f += 1u) {
                workgroupBarrier();
                coopStore(o0, &scores_tile[own], SIDE);
                workgroupBarrier();
                for (var i = 0u; i < OWN_SUMS; i += 1u) {
                    let at = own + i * SUBGROUP + lane;
                    let column = f * SIDE + i * ACROSS + own_key;
                    var sum = scores_tile[at];
                    if by != 1.0 {
                        sum *= by;
                    }
                    if (found & SPECIAL) != 0u && column < p.value_dim {
                        let first = own + lane % SIDE;
                        sum = add_attended(sum, first, count, v_at + u32(key0) * p.v_seq + column);
                    }
                    scores_tile[at] = sum;
                }
                workgroupBarrier();
                let revised = coopLoad<MatC>(&scores_tile[own], SIDE);
                if FRAGS > 1u {
                    o0 = o1;
                }
                if FRAGS > 2u {
                    o1 = o2;
                }
                if FRAGS > 3u {
                    o2 = o3;
                }
                if FRAGS > 4u {
                    o3 = o4;
                }
                if FRAGS > 5u {
                    o4 = o5;
                }
                if FRAGS > 6u {
                    o5 = o6;
                }
                if FRAGS > 7u {
                    o6 = o7;
                }
                if FRAGS > 8u {
                    o7 = o8;
                }
                if FRAGS > 9u {
                    o8 = o9;
                }
                if FRAGS > 10u {
                    o9 = o10;
                }
                if FRAGS > 11u {
                    o10 = o11;
                }
                if FRAGS > 12u {
                    o11 = o12;
                }
                if FRAGS > 13u {
                    o12 = o13;
                }
                if FRAGS > 14u {
                    o13 = o14;
                }
                if FRAGS > 15u {
                    o14 = o15;
                }
                if FRAGS == 1u {
                    o0 = revised;
                }
                if FRAGS == 2u {
                    o1 = revised;
                }
                if FRAGS == 3u {
                    o2 = revised;
                }
                if FRAGS == 4u {
                    o3 = revised;
                }
                if FRAGS == 5u {
                    o4 = revised;
                }
                if FRAGS == 6u {
                    o5 = revised;
                }
                if FRAGS == 7u {
                    o6 = revised;
                }
                if FRAGS == 8u {
                    o7 = revised;
                }
                if FRAGS == 9u {
                    o8 = revised;
                }
                if FRAGS == 10u {
                    o9 = revised;
                }
                if FRAGS == 11u {
                    o10 = revised;
                }
                if FRAGS == 12u {
                    o11 = revised;
                }
                if FRAGS == 13u {
                    o12 = revised;
                }
                if FRAGS == 14u {
                    o13 = revised;
                }
                if FRAGS == 15u {
                    o14 = revised;
                }
                if FRAGS == 16u {
                    o15 = revised;
                }
            }
        }

        // Weights times values.
        if (found & SPECIAL) == 0u {
            for (var key = 0u; key < KEYS; key += SIDE) {
                let w = coopLoad<MatA>(&weights_tile[own + key * SIDE], SIDE);
                let at = V_AT + key * V_LINE;
                o0 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 0u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o0);
                if FRAGS > 1u {
                    o1 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 1u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o1);
                }
                if FRAGS > 2u {
                    o2 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 2u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o2);
                }
                if FRAGS > 3u {
                    o3 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 3u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o3);
                }
                if FRAGS > 4u {
                    o4 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 4u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o4);
                }
                if FRAGS > 5u {
                    o5 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 5u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o5);
                }
                if FRAGS > 6u {
                    o6 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 6u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o6);
                }
                if FRAGS > 7u {
                    o7 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 7u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o7);
                }
                if FRAGS > 8u {
                    o8 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 8u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o8);
                }
                if FRAGS > 9u {
                    o9 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 9u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o9);
                }
                if FRAGS > 10u {
                    o10 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 10u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o10);
                }
                if FRAGS > 11u {
                    o11 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 11u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o11);
                }
                if FRAGS > 12u {
                    o12 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 12u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o12);
                }
                if FRAGS > 13u {
                    o13 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 13u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o13);
                }
                if FRAGS > 14u {
                    o14 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 14u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o14);
                }
                if FRAGS > 15u {
                    o15 = coopMultiplyAdd(w, coopLoadT<MatB>(&b_tile[(at + 15u * SIDE) >> SLOT_SHIFT], V_LINE >> SLOT_SHIFT), o15);
                }
            }
        }
    }

    gathered[local] = weights;
    for (var f = 0u; f < FRAGS; f += 1u) {
        workgroupBarrier();
        coopStoreT(o0, &scores_tile[own], SIDE);
        workgroupBarrier();
        for (var i = lane; i < SIDE * SIDE / 4u; i += SUBGROUP) {
            let line = i / (SIDE / 4u);
            let column = f * SIDE + i % (SIDE / 4u) * 4u;
            let to = first_row + unit * SIDE + line;
            if to < rows && column < p.value_dim {
                var all = 0.0;
                for (var part = 0u; part < ACROSS; part += 1u) {
                    all += gathered[unit * SUBGROUP + part * SIDE + line];
                }
                let at = own + i * 4u;
                let sums = vec4<f32>(scores_tile[at], scores_tile[at + 1u], scores_tile[at + 2u], scores_tile[at + 3u]);
                let highest = atomicLoad(&tops[unit * SIDE + line]);
                let count = left_of(p.value_dim, column);
                y_four(y_start(batch, head, to, column), count, normalized(sums, all, highest));
            }
        }
        if FRAGS > 1u {
            o0 = o1;
        }
        if FRAGS > 2u {
            o1 = o2;
        }
        if FRAGS > 3u {
            o2 = o3;
        }
        if FRAGS > 4u {
            o3 = o4;
        }
        if FRAGS > 5u {
            o4 = o5;
        }
        if FRAGS > 6u {
            o5 = o6;
        }
        if FRAGS > 7u {
            o6 = o7;
        }
        if FRAGS > 8u {
            o7 = o8;
        }
        if FRAGS > 9u {
            o8 = o9;
        }
        if FRAGS > 10u {
            o9 = o10;
        }
        if FRAGS > 11u {
            o10 = o11;
        }
        if FRAGS > 12u {
            o11 = o12;
        }
        if FRAGS > 13u {
            o12 = o13;
        }
        if FRAGS > 14u {
            o13 = o14;
        }
        if FRAGS > 15u {
            o14 = o15;
        }
    }
}
