// Fused decode attention for one new token: RoPE of query and key, KV cache append and attention in
// one dispatch. rope.wgsl gives the rotation. The KV cache consists of two dense states. If the
// record of a data check reports a failed run, the states are not modified.
//
// SPLITS workgroups process a query head, and each processes every SPLITS-th block of keys. A
// workgroup has 256 threads, and 8 threads share a key and its value, 32 keys per iteration. Each
// group of 8 threads accumulates with a separate maximum; the groups are combined at the end. The
// loads of the first keys are issued before the kernel waits for its inputs. The kernel may load
// cache rows beyond the last key, which are allocated. Rows are multiples of 16 bytes. All threads
// read the new key and value from shared memory, so it does not matter whether the cache already
// contains them.
//
// Queries, keys and values have the dtype FROM and are rounded once, to the dtype of the cache,
// DTYPE. The result is rounded to DTYPE and stored as TO.
//
// In runs with more than APART blocks of keys, a workgroup processes ROWS query heads of one KV
// head together and loads their keys and values once. In shorter runs, one query head per workgroup
// has less latency.
//
// If a head has several blocks, each workgroup stores its sums, maximum and weights in `partial`.
// The last workgroup of a head, found with a counter, combines these partial results in order and
// resets the counter to 0. `partial` contains atomics, and each workgroup passes a storage barrier
// before it increments the counter. The kernel therefore requires a device on which this barrier
// orders memory across workgroups.
//
// The flat group is split * leads + lead. A lead is the group of query heads of one workgroup.
// uses attention_eights.wgsl: SHARES_PRODUCTS, sum_of_eight
// uses attention_halves.wgsl: four
// uses attention_order.wgsl: UNSEEN, center_of, key_of, normalized, rescale, weight
// uses attention_token_alone.wgsl or attention_token_chained.wgsl: faults
// uses chain.wgsl or chain_none.wgsl: await_chain, count_chain
// uses prelude.wgsl: F32, bits_of, flat_group, float_bits, float_of, lane_of, lanes, word_of
// uses rope_turn.wgsl: DTYPE, turn_of, turned_pair

struct Params {
    q_offset: u32,
    q_head: u32,
    k_offset: u32,
    k_head: u32,
    v_offset: u32,
    v_head: u32,
    cos_offset: u32,
    sin_offset: u32,
    n_rot: u32,
    adjacent: u32,
    lens_offset: u32,
    keys: u32,
    window: u32,
    scale: f32,
    chain_waits: u32,
    chain_wanted: u32,
    chain_own: u32,
    checks: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<u32>;
@group(0) @binding(2) var<storage, read> k: array<u32>;
@group(0) @binding(3) var<storage, read> v: array<u32>;
@group(0) @binding(4) var<storage, read> cosines: array<u32>;
@group(0) @binding(5) var<storage, read> sines: array<u32>;
@group(0) @binding(6) var<storage, read> starts: array<u32>;
@group(0) @binding(7) var<storage, read> lens: array<u32>;
@group(0) @binding(8) var<storage, read_write> keys: array<vec4<u32>>;
@group(0) @binding(9) var<storage, read_write> values: array<vec4<u32>>;
@group(0) @binding(10) var<storage, read_write> y: array<u32>;
// Per workgroup: HEAD sums, the maximum score and the sum of the weights.
@group(0) @binding(11) var<storage, read_write> partial: array<atomic<u32>>;
// Number of finished workgroups per query head.
@group(0) @binding(12) var<storage, read_write> counts: array<atomic<u32>>;

// Elements of a head: a power of two.
override HEAD: u32 = 64u;
// Query heads per KV head, and number of KV heads.
override GROUP: u32 = 1u;
override KEY_HEADS: u32 = 1u;
// Strides of the states in elements: from key to key, and from head to head.
override KEY_STEP: u32 = 64u;
override HEAD_STEP: u32 = 64u;
// The axis of the states that indexes keys.
override AXIS: u32 = 1u;
// 1: sliding window, only the last p.window keys are visible.
override WINDOWED: u32 = 0u;
// Workgroups per query head. If there are at most ALONE key blocks, one workgroup processes them
// all.
override SPLITS: u32 = 1u;
override ALONE: u32 = 1u;
// Query heads per workgroup in runs with more than APART key blocks: a divisor of GROUP.
override ROWS: u32 = 1u;
override APART: u32 = 0u;
override FROM: u32 = 0u;
// Dtype of the stored result: DTYPE or F32.
override TO: u32 = 0u;

const LANES: u32 = 8u;
const SLOTS: u32 = 256u / LANES;
// Elements of a 16-byte chunk, and vectors of four in it.
const EACH: u32 = select(8u, 4u, DTYPE == F32);
const PARTS: u32 = EACH / 4u;
const CHUNKS: u32 = HEAD / EACH;
// Chunks of a key per thread.
const OWN: u32 = CHUNKS / LANES;
// Keys per thread and iteration.
const TURNS: u32 = select(4u, 2u, OWN > 2u || ROWS > 2u);
const BLOCK: u32 = SLOTS * TURNS;
const WORDS: u32 = CHUNKS * 4u;
const QUADS: u32 = HEAD / 4u;
// Threads that share a result column in the final reduction.
const SHARES: u32 = 256u / HEAD;
const HEADS: u32 = GROUP * KEY_HEADS;
// Vectors of four elements of a thread's part of a head.
const FOURS: u32 = OWN * PARTS;
// Partial results per query head.
const MAX_PARTS: u32 = max(SPLITS, min(SPLITS * ROWS, 32u));
// Words of a workgroup in `partial`.
const PARTIAL: u32 = HEAD + 2u;
// Partial results whose loads are issued together.
const STEP_PARTS: u32 = min(SPLITS, 16u);

// The rotated key, the value and the rotated queries.
var<workgroup> fresh: array<u32, (2u + ROWS) * WORDS>;
// Partial dot products of each query and key; later, partial sums of the result columns.
var<workgroup> products: array<f32, max(ROWS * BLOCK * LANES, 256u)>;
var<workgroup> sums: array<vec4<f32>, SLOTS * QUADS>;
var<workgroup> totals: array<f32, SLOTS>;
var<workgroup> parts: array<f32, SHARES>;
var<workgroup> greatest: array<atomic<i32>, ROWS>;
var<workgroup> failed: atomic<u32>;
var<workgroup> is_last: u32;

var<private> key_chunks: array<vec4<u32>, TURNS * OWN>;
var<private> value_chunks: array<vec4<u32>, TURNS * OWN>;

// Loads this thread's keys of a block, from key `first`. Indices are clamped to `last`.
fn load_keys(first: u32, at: u32, last: u32) {
    for (var turn = 0u; turn < TURNS; turn += 1u) {
        let row = at + min(first + turn * SLOTS, last) * (KEY_STEP / EACH);
        for (var i = 0u; i < OWN; i += 1u) {
            key_chunks[turn * OWN + i] = keys[row + i * LANES];
        }
    }
}

// Loads the values of the same keys.
fn load_values(first: u32, at: u32, last: u32) {
    for (var turn = 0u; turn < TURNS; turn += 1u) {
        let row = at + min(first + turn * SLOTS, last) * (KEY_STEP / EACH);
        for (var i = 0u; i < OWN; i += 1u) {
            value_chunks[turn * OWN + i] = values[row + i * LANES];
        }
    }
}

fn word_at(part: u32, at: u32) -> u32 {
    let word = word_of(at, FROM);
    if part == 0u {
        return q[word];
    }
    if part == 1u {
        return k[word];
    }
    return v[word];
}

fn element(part: u32, at: u32) -> f32 {
    return float_of(word_at(part, at), lane_of(at, FROM), FROM);
}

// Bits of element d of the query, the key or the value, whose first element is at offset `start`.
fn bits_at(part: u32, start: u32, d: u32) -> u32 {
    if part == 2u || d >= p.n_rot {
        let at = start + d;
        if FROM != DTYPE {
            return float_bits(element(part, at), DTYPE);
        }
        return bits_of(word_at(part, at), lane_of(at, DTYPE), 4u / lanes(DTYPE));
    }
    let turn = turn_of(d);
    let own = element(part, start + d);
    let other = element(part, start + turn.other);
    return turned_pair(own, other, p.cos_offset + turn.pair, p.sin_offset + turn.pair, turn.is_b);
}

// Word i of `fresh`; `query_head` is the first query head of the workgroup.
fn fresh_word(i: u32, query_head: u32) -> u32 {
    let piece = i / WORDS;
    let d = i % WORDS * lanes(DTYPE);
    var part = 0u;
    var start = p.q_offset + (query_head + piece - 2u) * p.q_head;
    if piece == 0u {
        part = 1u;
        start = p.k_offset + query_head / GROUP * p.k_head;
    } else if piece == 1u {
        part = 2u;
        start = p.v_offset + query_head / GROUP * p.v_head;
    }
    var bits = bits_at(part, start, d);
    if lanes(DTYPE) == 2u {
        bits |= bits_at(part, start, d + 1u) << 16u;
    }
    return bits;
}

fn fresh_chunk(piece: u32, chunk: u32) -> vec4<u32> {
    let at = piece * WORDS + chunk * 4u;
    return vec4<u32>(fresh[at], fresh[at + 1u], fresh[at + 2u], fresh[at + 3u]);
}

// Stores the result word of the columns at `to`.
fn store(query_head: u32, to: u32, all: vec2<f32>, total: f32, top: i32) {
    if to >= HEAD {
        return;
    }
    let result = normalized(vec4<f32>(all, 0.0, 0.0), total, top);
    let at = query_head * HEAD + to;
    let first = float_bits(result.x, DTYPE);
    if lanes(DTYPE) == 1u {
        y[at] = first;
        return;
    }
    let second = float_bits(result.y, DTYPE);
    if TO == DTYPE {
        y[at / 2u] = first | second << 16u;
        return;
    }
    y[at] = bitcast<u32>(float_of(first, 0u, DTYPE));
    y[at + 1u] = bitcast<u32>(float_of(second, 0u, DTYPE));
}

// Vector f of this thread's part of a query of the workgroup.
fn query_four(row: u32, f: u32, lane: u32) -> vec4<f32> {
    return four(fresh_chunk(2u + row, lane + f / PARTS * LANES), f % PARTS);
}

// Products of the queries with a key, whose partial products start at `at`.
fn products_of(at: u32, is_shared: bool) -> vec4<f32> {
    var sum = vec4<f32>();
    for (var i = 0u; i < LANES; i += 1u) {
        sum.x += products[at + i];
    }
    if is_shared {
        for (var i = 0u; i < LANES; i += 1u) {
            sum.y += products[(1u % ROWS) * BLOCK * LANES + at + i];
            if ROWS > 2u {
                sum.z += products[(2u % ROWS) * BLOCK * LANES + at + i];
                sum.w += products[(3u % ROWS) * BLOCK * LANES + at + i];
            }
        }
    }
    return sum;
}

// Combines the partial results of a query head in the columns at `to`, in order.
fn combine(query_head: u32, to: u32, groups: u32) {
    // Indices are clamped to the last workgroup, so that all loads of a step are issued together.
    let head_at = query_head * MAX_PARTS * PARTIAL;
    var top = UNSEEN;
    var all = vec2<f32>();
    var total = 0.0;
    for (var step = 0u; step < groups; step += STEP_PARTS) {
        var tops: array<i32, STEP_PARTS>;
        var weights: array<f32, STEP_PARTS>;
        var columns: array<vec2<f32>, STEP_PARTS>;
        for (var i = 0u; i < STEP_PARTS; i += 1u) {
            let at = head_at + min(step + i, groups - 1u) * PARTIAL;
            tops[i] = bitcast<i32>(atomicLoad(&partial[at + HEAD]));
            weights[i] = bitcast<f32>(atomicLoad(&partial[at + HEAD + 1u]));
            columns[i].x = bitcast<f32>(atomicLoad(&partial[at + to]));
            if lanes(DTYPE) == 2u {
                columns[i].y = bitcast<f32>(atomicLoad(&partial[at + to + 1u]));
            }
        }
        let before = top;
        for (var i = 0u; i < STEP_PARTS; i += 1u) {
            top = max(top, tops[i]);
        }
        let kept = rescale(before, center_of(top));
        all *= kept;
        total *= kept;
        for (var i = 0u; i < STEP_PARTS; i += 1u) {
            if step + i < groups {
                let by = rescale(tops[i], center_of(top));
                all += by * columns[i];
                total += by * weights[i];
            }
        }
    }
    store(query_head, to, all, total, top);
}

// The kernel is one function: barriers separate its steps, and calls would pass all register state.
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = flat_group(group, count);
    if flat >= HEADS * SPLITS {
        count_chain(local);
        return;
    }
    let n = u32(clamp(bitcast<i32>(lens[p.lens_offset]), 0, i32(p.keys)));
    var begin = 0u;
    if WINDOWED == 1u {
        begin = n - min(n, p.window);
    }
    // Number of workgroups that have keys. Workgroup 0 always runs: it updates the states and
    // writes a result.
    let blocks = (n - begin + BLOCK - 1u) / BLOCK;
    let rows = select(1u, ROWS, blocks > APART);
    let leads = HEADS / rows;
    let query_head = flat % leads * rows;
    let split = flat / leads;
    let head = query_head / GROUP;
    let slot = local / LANES;
    let lane = local % LANES;
    let at = head * (HEAD_STEP / EACH) + lane;
    let most = select(MAX_PARTS, SPLITS, rows == 1u);
    let groups = select(min(blocks, most), 1u, blocks <= ALONE);
    if split >= groups {
        count_chain(local);
        return;
    }
    let step = groups * BLOCK;
    var first = begin + split * BLOCK;
    load_keys(first + slot, at, p.keys - 1u);
    load_values(first + slot, at, p.keys - 1u);
    var place = bitcast<i32>(starts[AXIS]);
    place = clamp(select(place, place + i32(p.keys), place < 0), 0, i32(p.keys) - 1);
    var bad = 0u;
    for (var check = local; check < p.checks; check += 256u) {
        bad |= faults[check * 64u];
    }
    await_chain(local);
    for (var i = local; i < (2u + rows) * WORDS; i += 256u) {
        fresh[i] = fresh_word(i, query_head);
    }
    if local < rows {
        atomicStore(&greatest[local], UNSEEN);
    }
    if local == 0u {
        atomicStore(&failed, 0u);
    }
    workgroupBarrier();
    if bad != 0u {
        atomicMax(&failed, 1u);
    }
    // Compilers keep arrays in registers only if they unroll the loops, so there is an array for
    // each row, and loops are nested at most twice.
    let is_shared = ROWS > 1u && rows > 1u;
    var x0: array<vec4<f32>, FOURS>;
    var x1: array<vec4<f32>, FOURS>;
    var x2: array<vec4<f32>, FOURS>;
    var x3: array<vec4<f32>, FOURS>;
    for (var f = 0u; f < FOURS; f += 1u) {
        x0[f] = query_four(0u, f, lane);
    }
    if is_shared {
        for (var f = 0u; f < FOURS; f += 1u) {
            x1[f] = query_four(1u, f, lane);
            if ROWS > 2u {
                x2[f] = query_four(2u, f, lane);
                x3[f] = query_four(3u, f, lane);
            }
        }
    }

    var own0: array<vec4<f32>, FOURS>;
    var own1: array<vec4<f32>, FOURS>;
    var own2: array<vec4<f32>, FOURS>;
    var own3: array<vec4<f32>, FOURS>;
    var sum_of_weights = vec4<f32>();
    var top = vec4<i32>(UNSEEN);
    loop {
        if u32(place) - first < BLOCK {
            for (var turn = 0u; turn < TURNS; turn += 1u) {
                if first + turn * SLOTS + slot == u32(place) {
                    for (var i = 0u; i < OWN; i += 1u) {
                        key_chunks[turn * OWN + i] = fresh_chunk(0u, lane + i * LANES);
                        value_chunks[turn * OWN + i] = fresh_chunk(1u, lane + i * LANES);
                    }
                }
            }
        }
        var whole: array<vec4<f32>, TURNS>;
        for (var turn = 0u; turn < TURNS; turn += 1u) {
            var dots = vec4<f32>();
            for (var f = 0u; f < FOURS; f += 1u) {
                dots.x += dot(four(key_chunks[turn * OWN + f / PARTS], f % PARTS), x0[f]);
            }
            if is_shared {
                for (var f = 0u; f < FOURS; f += 1u) {
                    let key = four(key_chunks[turn * OWN + f / PARTS], f % PARTS);
                    dots.y += dot(key, x1[f]);
                    if ROWS > 2u {
                        dots.z += dot(key, x2[f]);
                        dots.w += dot(key, x3[f]);
                    }
                }
            }
            if SHARES_PRODUCTS {
                dots.x = sum_of_eight(dots.x);
                if is_shared {
                    dots.y = sum_of_eight(dots.y);
                    if ROWS > 2u {
                        dots.z = sum_of_eight(dots.z);
                        dots.w = sum_of_eight(dots.w);
                    }
                }
                whole[turn] = dots;
            } else {
                let to = (turn * SLOTS + slot) * LANES + lane;
                products[to] = dots.x;
                if is_shared {
                    products[(1u % ROWS) * BLOCK * LANES + to] = dots.y;
                    if ROWS > 2u {
                        products[(2u % ROWS) * BLOCK * LANES + to] = dots.z;
                        products[(3u % ROWS) * BLOCK * LANES + to] = dots.w;
                    }
                }
            }
        }
        // Prefetch of the next block. Indices beyond the end are clamped to the last key.
        load_keys(first + step + slot, at, max(n, 1u) - 1u);
        if !SHARES_PRODUCTS {
            workgroupBarrier();
        }
        var scores: array<vec4<i32>, TURNS>;
        let before = top;
        for (var turn = 0u; turn < TURNS; turn += 1u) {
            var product = whole[turn];
            if !SHARES_PRODUCTS {
                product = products_of((turn * SLOTS + slot) * LANES, is_shared);
            }
            let is_seen = first + turn * SLOTS + slot < n;
            var score = vec4<i32>(UNSEEN);
            score.x = key_of(product.x * p.scale);
            if is_shared {
                score.y = key_of(product.y * p.scale);
                score.z = key_of(product.z * p.scale);
                score.w = key_of(product.w * p.scale);
            }
            scores[turn] = select(vec4<i32>(UNSEEN), score, is_seen);
            top = max(top, scores[turn]);
        }
        var center = vec4<f32>(center_of(top.x), 0.0, 0.0, 0.0);
        var by = vec4<f32>(rescale(before.x, center.x), 0.0, 0.0, 0.0);
        if is_shared {
            center.y = center_of(top.y);
            by.y = rescale(before.y, center.y);
            if ROWS > 2u {
                center.z = center_of(top.z);
                center.w = center_of(top.w);
                by.z = rescale(before.z, center.z);
                by.w = rescale(before.w, center.w);
            }
        }
        sum_of_weights *= by;
        for (var f = 0u; f < FOURS; f += 1u) {
            own0[f] *= by.x;
        }
        if is_shared {
            for (var f = 0u; f < FOURS; f += 1u) {
                own1[f] *= by.y;
                own2[f] *= by.z;
                own3[f] *= by.w;
            }
        }
        for (var turn = 0u; turn < TURNS; turn += 1u) {
            // Masked values may be NaN.
            if scores[turn].x != UNSEEN {
                var own = vec4<f32>(weight(scores[turn].x, center.x), 0.0, 0.0, 0.0);
                for (var f = 0u; f < FOURS; f += 1u) {
                    own0[f] += own.x * four(value_chunks[turn * OWN + f / PARTS], f % PARTS);
                }
                if is_shared {
                    own.y = weight(scores[turn].y, center.y);
                    if ROWS > 2u {
                        own.z = weight(scores[turn].z, center.z);
                        own.w = weight(scores[turn].w, center.w);
                    }
                    for (var f = 0u; f < FOURS; f += 1u) {
                        let value = four(value_chunks[turn * OWN + f / PARTS], f % PARTS);
                        own1[f] += own.y * value;
                        if ROWS > 2u {
                            own2[f] += own.z * value;
                            own3[f] += own.w * value;
                        }
                    }
                }
                sum_of_weights += own;
            }
        }
        load_values(first + step + slot, at, max(n, 1u) - 1u);
        first += step;
        if first >= n {
            break;
        }
        if !SHARES_PRODUCTS {
            workgroupBarrier();
        }
    }

    if lane == 0u {
        atomicMax(&greatest[0], top.x);
        if is_shared {
            atomicMax(&greatest[1u % ROWS], top.y);
            if ROWS > 2u {
                atomicMax(&greatest[2u % ROWS], top.z);
                atomicMax(&greatest[3u % ROWS], top.w);
            }
        }
    }
    workgroupBarrier();
    if split == 0u && query_head % GROUP == 0u && local < 2u * CHUNKS && atomicLoad(&failed) == 0u {
        let chunk = local % CHUNKS;
        let to = u32(place) * (KEY_STEP / EACH) + head * (HEAD_STEP / EACH) + chunk;
        if local < CHUNKS {
            keys[to] = fresh_chunk(0u, chunk);
        } else {
            values[to] = fresh_chunk(1u, chunk);
        }
    }
    let to = local * lanes(DTYPE);
    for (var r = 0u; r < ROWS; r += 1u) {
        if r >= rows {
            break;
        }
        if r > 0u {
            workgroupBarrier();
        }
        let greatest_of_all = atomicLoad(&greatest[r]);
        let own_top = select(select(top.x, top.y, r == 1u), select(top.z, top.w, r == 3u), r >= 2u);
        let by = rescale(own_top, center_of(greatest_of_all));
        for (var f = 0u; f < FOURS; f += 1u) {
            var sum = own0[f];
            if ROWS > 1u {
                sum = select(sum, own1[f], r == 1u);
            }
            if ROWS > 2u {
                sum = select(sum, select(own2[f], own3[f], r == 3u), r >= 2u);
            }
            sums[slot * QUADS + (lane + f / PARTS * LANES) * PARTS + f % PARTS] = by * sum;
        }
        if lane == 0u {
            let low = select(sum_of_weights.x, sum_of_weights.y, r == 1u);
            let high = select(sum_of_weights.z, sum_of_weights.w, r == 3u);
            totals[slot] = by * select(low, high, r >= 2u);
        }
        workgroupBarrier();
        let column = local % HEAD;
        let share = local / HEAD;
        var sum = 0.0;
        var total = 0.0;
        for (var i = 0u; i < SLOTS / SHARES; i += 1u) {
            let other = share * (SLOTS / SHARES) + i;
            sum += sums[other * QUADS + column / 4u][column % 4u];
            total += totals[other];
        }
        products[local] = sum;
        if column == 0u {
            parts[share] = total;
        }
        workgroupBarrier();
        if to < HEAD {
            var all = vec2<f32>();
            total = 0.0;
            for (var i = 0u; i < SHARES; i += 1u) {
                all.x += products[i * HEAD + to];
                if lanes(DTYPE) == 2u {
                    all.y += products[i * HEAD + to + 1u];
                }
                total += parts[i];
            }
            if SPLITS == 1u || groups == 1u {
                store(query_head + r, to, all, total, greatest_of_all);
            } else {
                let own_at = ((query_head + r) * MAX_PARTS + split) * PARTIAL;
                atomicStore(&partial[own_at + to], bitcast<u32>(all.x));
                if lanes(DTYPE) == 2u {
                    atomicStore(&partial[own_at + to + 1u], bitcast<u32>(all.y));
                }
                if to == 0u {
                    atomicStore(&partial[own_at + HEAD], bitcast<u32>(greatest_of_all));
                    atomicStore(&partial[own_at + HEAD + 1u], bitcast<u32>(total));
                }
            }
        }
    }
    if SPLITS == 1u || groups == 1u {
        count_chain(local);
        return;
    }
    storageBarrier();
    if local == 0u {
        let before = atomicAdd(&counts[query_head], 1u);
        is_last = u32(before + 1u == groups);
        if before + 1u == groups {
            atomicStore(&counts[query_head], 0u);
        }
    }
    storageBarrier();
    workgroupBarrier();
    if is_last == 1u {
        // A thread combines the columns of one word of one query head.
        for (var item = local; item < rows * (HEAD / lanes(DTYPE)); item += 256u) {
            let of_head = query_head + item / (HEAD / lanes(DTYPE));
            combine(of_head, item % (HEAD / lanes(DTYPE)) * lanes(DTYPE), groups);
        }
    }
    count_chain(local);
}
