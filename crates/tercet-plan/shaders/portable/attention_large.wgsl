// FlashAttention with tiles of 128 rows and 64 value columns: attention.wgsl for very many queries.
// A workgroup has 128 threads. Larger tiles reuse each vector from shared memory more often.
//
// Thread (ty, tx) of 16 x 8 owns the rows ty + 16 i with i < 8. For these rows, the thread computes
// the scores of the keys 4 tx + (0 .. 4) and 32 + 4 tx + (0 .. 4). It also computes the result
// columns with these indices. `low` and `high` name the two halves of a thread's rows; the indices
// 0 and 1 name the halves of its keys and columns. The algorithm is that of attention.wgsl.
// uses attention_common.wgsl: Four, MASK, p, scale_rows
// uses attention_rows.wgsl: Place, add_product, add_seen_products, centers, far, four_scores, four_weights, greatest_of, is_finite, key_part, leave, limits_of, meet, place_of, put_rows, query_part, rescales, special, sums_of, total, value_part
// uses prelude.wgsl: flat_group

const ROWS: u32 = 8u;
const KEYS: u32 = 64u;
// Row pitch of shared tiles: 4 vectors and one of padding against bank conflicts.
const PITCH: u32 = 5u;
// Length of a shared tile of queries or softmax weights; keys or values follow it.
const LINES: u32 = 16u * ROWS * PITCH;
const POOL: u32 = LINES + KEYS * PITCH;
// Offset from the low rows of the shared pool to the high rows.
const HIGH: u32 = 64u * PITCH;
// Keys per staged tile of values.
const PART: u32 = 16u;
// Row pitch of the per-thread row statistics at (ty, tx), the number of threads of a row, and the
// length of the statistics of four rows.
const MEET: u32 = 9u;
const ACROSS: u32 = 8u;
const FOURS: u32 = 16u * MEET;

var<workgroup> pool: array<vec4<f32>, POOL>;
var<workgroup> gathered: array<vec4<i32>, 2u * FOURS>;

// Loads four rows of the shared pool, 16 rows apart.
fn rows_at(at: u32) -> Four {
    return Four(pool[at], pool[at + 16u * PITCH], pool[at + 32u * PITCH], pool[at + 48u * PITCH]);
}

// Loads four keys of the shared pool, transposed: one vector per element of the head dimension.
fn keys_at(at: u32) -> Four {
    let k = rows_at(at);
    return Four(
        vec4<f32>(k.a.x, k.b.x, k.c.x, k.d.x),
        vec4<f32>(k.a.y, k.b.y, k.c.y, k.d.y),
        vec4<f32>(k.a.z, k.b.z, k.c.z, k.d.z),
        vec4<f32>(k.a.w, k.b.w, k.c.w, k.d.w),
    );
}

// Loads vectors of four values from the shared pool.
fn values_at(at: u32) -> Four {
    return Four(pool[at], pool[at + 16u], pool[at + 32u], pool[at + 48u]);
}

fn add_rows(sum: Four, x: Four, y: Four) -> Four {
    return Four(
        add_product(sum.a, x.a, y),
        add_product(sum.b, x.b, y),
        add_product(sum.c, x.c, y),
        add_product(sum.d, x.d, y),
    );
}

fn put_halves(place: Place, row: u32, column: u32, sum0: Four, sum1: Four, weights: vec4<f32>, top: vec4<i32>) {
    put_rows(place, row, column, sum0, weights, top);
    put_rows(place, row, column + 32u, sum1, weights, top);
}

// The kernel is one function: barriers separate its steps, and calls would pass all register state.
@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = flat_group(group, count);
    if (flat >= p.groups) {
        return;
    }
    let tx = local % 8u;
    let ty = local / 8u;
    let place = place_of(flat);

    // The 16-byte pieces that this thread loads: query rows `line`, `line` + 32, + 64 and + 96, and
    // keys `line` and `line` + 32. The shared tile is permuted so that the keys of one thread are
    // 16 apart.
    let piece = local % 4u;
    let line = local / 4u;
    let q_row = place.first_row + line;
    let q_slot = line * PITCH + piece;
    let k_slot = LINES + (line % 4u * 16u + line / 4u) * PITCH + piece;
    let v_line = local / 16u;
    let v_column = place.slice * 64u + local % 16u * 4u;
    let own = ty * PITCH;
    let row = place.first_row + ty;
    let meeting = ty * MEET;

    var low_top = vec4<i32>(UNSEEN);
    var high_top = vec4<i32>(UNSEEN);
    var low_weights = vec4<f32>();
    var high_weights = vec4<f32>();
    var low0 = Four();
    var low1 = Four();
    var high0 = Four();
    var high1 = Four();
    var part = 0u;
    if (local == 0u) {
        atomicStore(&special, 0u);
        atomicStore(&far, 0u);
    }
    workgroupBarrier();
    var step = 0u;

    for (var key0 = place.begin; key0 < place.end; key0 += i32(KEYS)) {
        // q k^T, 16 elements of the head dimension per iteration.
        var a0 = Four();
        var a1 = Four();
        var b0 = Four();
        var b1 = Four();
        let k_line = key0 + i32(line);
        var next_k = key_part(place, k_line, piece * 4u);
        var next_k2 = key_part(place, k_line + 32, piece * 4u);
        var next_q = query_part(place, q_row, piece * 4u);
        var next_q2 = query_part(place, q_row + 32u, piece * 4u);
        var next_q3 = query_part(place, q_row + 64u, piece * 4u);
        var next_q4 = query_part(place, q_row + 96u, piece * 4u);
        for (var d = 0u; d < p.head_dim; d += 16u) {
            workgroupBarrier();
            pool[k_slot] = next_k;
            pool[k_slot + 8u * PITCH] = next_k2;
            pool[q_slot] = next_q;
            pool[q_slot + 32u * PITCH] = next_q2;
            pool[q_slot + 64u * PITCH] = next_q3;
            pool[q_slot + 96u * PITCH] = next_q4;
            workgroupBarrier();
            let next = d + 16u + piece * 4u;
            if (d + 16u < p.head_dim) {
                next_k = key_part(place, k_line, next);
                next_k2 = key_part(place, k_line + 32, next);
                next_q = query_part(place, q_row, next);
                next_q2 = query_part(place, q_row + 32u, next);
                next_q3 = query_part(place, q_row + 64u, next);
                next_q4 = query_part(place, q_row + 96u, next);
            }
            for (var at = 0u; at < 4u; at += 1u) {
                let low_q = rows_at(own + at);
                let high_q = rows_at(own + HIGH + at);
                let keys0 = keys_at(LINES + tx * PITCH + at);
                a0 = add_rows(a0, low_q, keys0);
                b0 = add_rows(b0, high_q, keys0);
                let keys1 = keys_at(LINES + (tx + 8u) * PITCH + at);
                a1 = add_rows(a1, low_q, keys1);
                b1 = add_rows(b1, high_q, keys1);
            }
        }

        // Masked scores. The loads of the values overlap with this arithmetic.
        step += 1u;
        var next_v = value_part(place, key0 + i32(v_line), v_column);
        var next_v2 = value_part(place, key0 + i32(v_line + 8u), v_column);
        let on_edge = key0 < place.seen.x || key0 + i32(KEYS) > place.seen.y;
        let guarded = MASK != 0u || on_edge;
        let key = key0 + i32(tx) * 4;
        let low_scores0 = four_scores(a0, place, row, key, guarded);
        let low_scores1 = four_scores(a1, place, row, key + 32, guarded);
        let high_scores0 = four_scores(b0, place, row + 64u, key, guarded);
        let high_scores1 = four_scores(b1, place, row + 64u, key + 32, guarded);
        let low_most = max(greatest_of(low_scores0, guarded), greatest_of(low_scores1, guarded));
        let high_most = max(greatest_of(high_scores0, guarded), greatest_of(high_scores1, guarded));
        gathered[meeting + tx] = low_most;
        gathered[FOURS + meeting + tx] = high_most;
        if (any(low_most > limits_of(low_top)) || any(high_most > limits_of(high_top))) {
            atomicMax(&far, step);
        }
        workgroupBarrier();
        if (atomicLoad(&far) == step) {
            let low_now = max(low_top, meet(meeting));
            let low_by = rescales(low_top, centers(low_now));
            low_top = low_now;
            low_weights *= low_by;
            low0 = scale_rows(low0, low_by);
            low1 = scale_rows(low1, low_by);
            let high_now = max(high_top, meet(FOURS + meeting));
            let high_by = rescales(high_top, centers(high_now));
            high_top = high_now;
            high_weights *= high_by;
            high0 = scale_rows(high0, high_by);
            high1 = scale_rows(high1, high_by);
        }

        // The softmax weights.
        let low_centers = centers(low_top);
        let low_part0 = four_weights(low_scores0, low_centers, guarded);
        let low_part1 = four_weights(low_scores1, low_centers, guarded);
        low_weights += sums_of(low_part0) + sums_of(low_part1);
        let high_centers = centers(high_top);
        let high_part0 = four_weights(high_scores0, high_centers, guarded);
        let high_part1 = four_weights(high_scores1, high_centers, guarded);
        high_weights += sums_of(high_part0) + sums_of(high_part1);

        // Weights times values, 16 keys per iteration.
        for (var done = 0u; done < KEYS; done += PART) {
            part += 1u;
            workgroupBarrier();
            if (tx / 4u == done / 16u % 2u) {
                if (done < 32u) {
                    leave(own + tx % 4u, low_part0);
                    leave(own + HIGH + tx % 4u, high_part0);
                } else {
                    leave(own + tx % 4u, low_part1);
                    leave(own + HIGH + tx % 4u, high_part1);
                }
            }
            pool[LINES + local] = next_v;
            pool[LINES + 128u + local] = next_v2;
            if (guarded && !(is_finite(next_v) && is_finite(next_v2))) {
                atomicMax(&special, part);
            }
            workgroupBarrier();
            if (done + PART < KEYS) {
                let next = key0 + i32(done + PART + v_line);
                next_v = value_part(place, next, v_column);
                next_v2 = value_part(place, next + 8, v_column);
            }
            if (guarded && atomicLoad(&special) == part) {
                for (var at = 0u; at < 4u; at += 1u) {
                    let first = LINES + at * 64u + tx;
                    let values0 = values_at(first);
                    low0 = add_seen_products(low0, own + at, values0);
                    high0 = add_seen_products(high0, own + HIGH + at, values0);
                    let values1 = values_at(first + 8u);
                    low1 = add_seen_products(low1, own + at, values1);
                    high1 = add_seen_products(high1, own + HIGH + at, values1);
                }
            } else {
                for (var at = 0u; at < 4u; at += 1u) {
                    let low_w = rows_at(own + at);
                    let high_w = rows_at(own + HIGH + at);
                    let first = LINES + at * 64u + tx;
                    let values0 = values_at(first);
                    low0 = add_rows(low0, low_w, values0);
                    high0 = add_rows(high0, high_w, values0);
                    let values1 = values_at(first + 8u);
                    low1 = add_rows(low1, low_w, values1);
                    high1 = add_rows(high1, high_w, values1);
                }
            }
        }
    }

    // Adds the sums of the weights over the threads of a row.
    workgroupBarrier();
    gathered[meeting + tx] = bitcast<vec4<i32>>(low_weights);
    gathered[FOURS + meeting + tx] = bitcast<vec4<i32>>(high_weights);
    workgroupBarrier();
    let column = place.slice * 64u + tx * 4u;
    put_halves(place, row, column, low0, low1, total(meeting), low_top);
    put_halves(place, row + 64u, column, high0, high1, total(FOURS + meeting), high_top);
}
