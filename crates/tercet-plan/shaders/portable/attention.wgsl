// FlashAttention for many queries (Dao et al., 2022): y = softmax(mask(softcap(scale q k^T))) v.
// The scores are never stored in global memory.
//
// A workgroup computes 16 ROWS rows of one batch entry and KV head, and up to 64 COLS columns of
// the values. attention_common.wgsl defines rows. The workgroup iterates over the keys that any of
// its rows attends to, 64 per step. Thread (ty, tx) of 16 x 16 owns the rows ty + 16 i with i <
// ROWS. For these rows, the thread computes the scores of the keys 4 tx + (0 .. 4). It also
// computes the result columns 4 tx + (0 .. 4) + 64 j with j < COLS.
//
// Shared memory stages 16 elements of the head dimension for q k^T, and 16 keys of the weights for
// the product with the values. The next tile is loaded during the arithmetic of the current tile.
// The softmax weights are exponentials of the score minus a reference value per row. The reference
// value is the row maximum at the time of its last update. The reference value changes only if a
// score exceeds it by more than SLACK, which is rare after the first keys. The row maxima are only
// reduced, and the accumulators rescaled, if the reference value changes.
//
// The flat group is (tile * slices + slice) * heads + head, in descending order of tiles: under a
// causal mask the last tiles take longest, so they start first.
// uses attention_all.wgsl or attention_all_lse.wgsl or attention_rest.wgsl: is_left, put_lse
// uses attention_common.wgsl: Four, MASK, p, scale_rows
// uses attention_rows.wgsl: add_products, add_values, centers, far, four_scores, four_weights, greatest_of, is_finite, key_part, leave, limits_of, meet, place_of, put_rows, query_part, rescales, special, sums_of, total, value_part
// uses prelude.wgsl: flat_group

// Rows per thread: 1, 2 or 4.
override ROWS: u32 = 4u;
// Vectors of four result columns per thread: 1, 2 or 4.
override COLS: u32 = 4u;

// Keys per step.
const KEYS: u32 = 64u;
// Row pitch of shared tiles: 4 vectors and one of padding against bank conflicts.
const PITCH: u32 = 5u;
// Length of a shared tile of queries or softmax weights; keys or values follow it.
const LINES: u32 = 16u * ROWS * PITCH;
const POOL: u32 = LINES + KEYS * PITCH;
// Keys per staged tile of values.
const PART: u32 = 16u / COLS;
// Row pitch of the per-thread row statistics at (ty, tx), and the number of threads of a row.
const MEET: u32 = 17u;
const ACROSS: u32 = 16u;

var<workgroup> pool: array<vec4<f32>, POOL>;
var<workgroup> gathered: array<vec4<i32>, 16u * MEET>;

// Loads vectors of four values from the shared pool.
fn values_at(at: u32) -> Four {
    return Four(pool[at], pool[at + 16u * COLS], pool[at + 32u * COLS], pool[at + 48u * COLS]);
}

// The kernel is one function: barriers separate its steps, and calls would pass all register state.
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

    // The 16-byte pieces of queries and keys that this thread loads. The shared tile is permuted so
    // that the keys of one thread are 16 apart.
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
    // Index of the staged tile of values.
    var part = 0u;
    if (local == 0u) {
        atomicStore(&special, 0u);
        atomicStore(&far, 0u);
    }
    workgroupBarrier();
    var step = 0u;

    for (var key0 = place.begin; key0 < place.end; key0 += i32(KEYS)) {
        // q k^T, 16 elements of the head dimension per iteration.
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
                // Transposes four keys: one vector per element of the head dimension.
                let keys = Four(
                    vec4<f32>(a.x, b.x, c.x, e.x),
                    vec4<f32>(a.y, b.y, c.y, e.y),
                    vec4<f32>(a.z, b.z, c.z, e.z),
                    vec4<f32>(a.w, b.w, c.w, e.w),
                );
                products = add_products(products, own + at, keys);
            }
        }

        // Masked scores. The loads of the values overlap with this arithmetic.
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

        // The softmax weights.
        let own_weights = four_weights(scores, centers(top), guarded);
        weights += sums_of(own_weights);

        // Weights times values: 16 keys of the weights and PART keys of the values are staged per
        // iteration.
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

    // Adds the sums of the weights over the threads of a row.
    workgroupBarrier();
    gathered[meeting + tx] = bitcast<vec4<i32>>(weights);
    workgroupBarrier();
    weights = total(meeting);
    if (place.slice == 0u && tx == 0u) {
        put_lse(place, row, weights, top);
    }
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
