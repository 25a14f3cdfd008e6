// y = softmax(mask(cap(scale q k^T))) v for many queries, without ever holding the scores (Dao et al.,
// "FlashAttention", 2022).
//
// A workgroup takes 16 ROWS rows of one batch entry and key head (rows: see attention_common.wgsl) and
// up to 64 COLS columns of the values, and walks the keys that any of its rows sees, 64 at a time.
// Invocation (ty, tx) of 16 x 16 holds, of the rows ty + 16 i with i < ROWS, the scores of the keys
// 4 tx + (0 .. 4) and the columns 4 tx + (0 .. 4) + 64 j, j < COLS, of the result.
//
// Products take 16 elements of the head dim at a time through shared memory, weighted values 16 keys of
// the weights and as many of the values as the invocations bring at once. What comes next is loaded
// while one computes. In between, weights are made of scores less the center of their row. It is the greatest
// score only when it was set: where some score of the tile exceeds its center by SLACK, which is seldom after
// the first keys, the greatest scores of each row meet and what was summed is rescaled.
//
// The flat group is (tile * slices + slice) * heads + head, the last tiles first: under a causal mask
// they take longest.
// uses attention_all.wgsl or attention_rest.wgsl: is_left
// uses attention_common.wgsl: Four, MASK, p, scale_rows
// uses attention_rows.wgsl: add_products, add_values, centers, far, four_scores, four_weights, greatest_of, is_finite, key_part, leave, limits_of, meet, place_of, put_rows, query_part, rescales, special, sums_of, total, value_part
// uses prelude.wgsl: flat_group

// Rows of an invocation: 1, 2 or 4.
override ROWS: u32 = 4u;
// Vectors of columns of an invocation: 1, 2 or 4.
override COLS: u32 = 4u;

// Keys of a step.
const KEYS: u32 = 64u;
// Row pitch of shared tiles: 4 vectors and one that keeps invocations off each other's banks.
const PITCH: u32 = 5u;
// Queries or weights, then keys or values.
const LINES: u32 = 16u * ROWS * PITCH;
const POOL: u32 = LINES + KEYS * PITCH;
// Keys of the values that the invocations bring at once.
const PART: u32 = 16u / COLS;
// The pitch of the numbers of rows by (ty, tx), and the invocations of a row.
const MEET: u32 = 17u;
const ACROSS: u32 = 16u;

var<workgroup> pool: array<vec4<f32>, POOL>;
var<workgroup> gathered: array<vec4<i32>, 16u * MEET>;

// Vectors of four values of the pool.
fn values_at(at: u32) -> Four {
    return Four(pool[at], pool[at + 16u * COLS], pool[at + 32u * COLS], pool[at + 48u * COLS]);
}

// One function: what it keeps in registers from step to step would have to go through every call, and barriers stand between its steps.
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = flat_group(group, count);
    if (flat >= p.groups) {
        return;
    }
    let tx = local % 16u;
    let ty = local / 16u;
    let place = place_of(flat);
    if (!is_left(place.batch, place.head)) {
        return;
    }

    // The pieces of queries and keys that this invocation brings; keys lie where those that one
    // invocation multiplies are 16 apart.
    let piece = local % 4u;
    let line = local / 4u;
    let q_row = place.first_row + line;
    let q_slot = line * PITCH + piece;
    let k_slot = LINES + (line % 4u * 16u + line / 4u) * PITCH + piece;
    let v_line = local / (16u * COLS);
    let v_column = place.slice * 64u * COLS + local % (16u * COLS) * 4u;
    let own = ty * PITCH;
    let row = place.first_row + ty;
    let meeting = ty * MEET;

    var top = vec4<i32>(UNSEEN);
    var weights = vec4<f32>();
    var sums0 = Four();
    var sums1 = Four();
    var sums2 = Four();
    var sums3 = Four();
    // The part of the values.
    var part = 0u;
    if (local == 0u) {
        atomicStore(&special, 0u);
        atomicStore(&far, 0u);
    }
    workgroupBarrier();
    var step = 0u;

    for (var key0 = place.begin; key0 < place.end; key0 += i32(KEYS)) {
        // The products, 16 elements of the head dim at a time.
        var products = Four();
        var next_k = key_part(place, key0 + i32(line), piece * 4u);
        var next_q = vec4<f32>();
        if (line < 16u * ROWS) {
            next_q = query_part(place, q_row, piece * 4u);
        }
        for (var d = 0u; d < p.head_dim; d += 16u) {
            workgroupBarrier();
            pool[k_slot] = next_k;
            if (line < 16u * ROWS) {
                pool[q_slot] = next_q;
            }
            workgroupBarrier();
            let next = d + 16u + piece * 4u;
            if (d + 16u < p.head_dim) {
                next_k = key_part(place, key0 + i32(line), next);
                if (line < 16u * ROWS) {
                    next_q = query_part(place, q_row, next);
                }
            }
            for (var at = 0u; at < 4u; at += 1u) {
                let first = LINES + tx * PITCH + at;
                let a = pool[first];
                let b = pool[first + 16u * PITCH];
                let c = pool[first + 32u * PITCH];
                let e = pool[first + 48u * PITCH];
                // By element of the head dim.
                let keys = Four(
                    vec4<f32>(a.x, b.x, c.x, e.x),
                    vec4<f32>(a.y, b.y, c.y, e.y),
                    vec4<f32>(a.z, b.z, c.z, e.z),
                    vec4<f32>(a.w, b.w, c.w, e.w),
                );
                products = add_products(products, own + at, keys);
            }
        }

        // The scores. The values come meanwhile.
        step += 1u;
        var next_v = value_part(place, key0 + i32(v_line), v_column);
        let on_edge = key0 < place.seen.x || key0 + i32(KEYS) > place.seen.y;
        let guarded = MASK != 0u || on_edge;
        let key = key0 + i32(tx) * 4;
        let scores = four_scores(products, place, row, key, guarded);
        let most = greatest_of(scores, guarded);
        gathered[meeting + tx] = most;
        if (any(most > limits_of(top))) {
            atomicMax(&far, step);
        }
        workgroupBarrier();
        if (atomicLoad(&far) == step) {
            let now = max(top, meet(meeting));
            let by = rescales(top, centers(now));
            top = now;
            weights *= by;
            sums0 = scale_rows(sums0, by);
            if (COLS > 1u) {
                sums1 = scale_rows(sums1, by);
            }
            if (COLS > 2u) {
                sums2 = scale_rows(sums2, by);
                sums3 = scale_rows(sums3, by);
            }
        }

        // The weights.
        let own_weights = four_weights(scores, centers(top), guarded);
        weights += sums_of(own_weights);

        // The weighted values: weights of 16 keys at a time, values of PART.
        for (var done = 0u; done < KEYS; done += PART) {
            part += 1u;
            workgroupBarrier();
            if (done % 16u == 0u && tx / 4u == done / 16u) {
                leave(own + tx % 4u, own_weights);
            }
            pool[LINES + local] = next_v;
            if (guarded && !is_finite(next_v)) {
                atomicMax(&special, part);
            }
            workgroupBarrier();
            if (done + PART < KEYS) {
                next_v = value_part(place, key0 + i32(done + PART + v_line), v_column);
            }
            let is_special = guarded && atomicLoad(&special) == part;
            for (var at = 0u; at < PART; at += 4u) {
                let first = own + (done % 16u + at) / 4u;
                let line0 = LINES + at * 16u * COLS + tx;
                sums0 = add_values(sums0, first, values_at(line0), is_special);
                if (COLS > 1u) {
                    sums1 = add_values(sums1, first, values_at(line0 + 16u), is_special);
                }
                if (COLS > 2u) {
                    sums2 = add_values(sums2, first, values_at(line0 + 32u), is_special);
                    sums3 = add_values(sums3, first, values_at(line0 + 48u), is_special);
                }
            }
        }
    }

    // The weights that the invocations of a row counted, together.
    workgroupBarrier();
    gathered[meeting + tx] = bitcast<vec4<i32>>(weights);
    workgroupBarrier();
    weights = total(meeting);
    let column = place.slice * 64u * COLS + tx * 4u;
    put_rows(place, row, column, sums0, weights, top);
    if (COLS > 1u) {
        put_rows(place, row, column + 64u, sums1, weights, top);
    }
    if (COLS > 2u) {
        put_rows(place, row, column + 128u, sums2, weights, top);
        put_rows(place, row, column + 192u, sums3, weights, top);
    }
}
