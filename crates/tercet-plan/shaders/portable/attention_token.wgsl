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
// If a head has several blocks, each workgroup stores its sums, maximum and weights in `partial`.
// The last workgroup of a head, found with a counter, combines these partial results in order and
// resets the counter to 0. `partial` contains atomics, and each workgroup passes a storage barrier
// before it increments the counter. The kernel therefore requires a device on which this barrier
// orders memory across workgroups.
//
// The flat group is split * query heads + query head.
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

const LANES: u32 = 8u;
const SLOTS: u32 = 256u / LANES;
// Elements of a 16-byte chunk, and vectors of four in it.
const EACH: u32 = select(8u, 4u, DTYPE == F32);
const PARTS: u32 = EACH / 4u;
const CHUNKS: u32 = HEAD / EACH;
// Chunks of a key per thread.
const OWN: u32 = CHUNKS / LANES;
// Keys per thread and iteration.
const TURNS: u32 = select(4u, 2u, OWN > 2u);
const BLOCK: u32 = SLOTS * TURNS;
const WORDS: u32 = CHUNKS * 4u;
const QUADS: u32 = HEAD / 4u;
// Threads that share a result column in the final reduction.
const SHARES: u32 = 256u / HEAD;
const HEADS: u32 = GROUP * KEY_HEADS;
// Words of a workgroup in `partial`.
const PARTIAL: u32 = HEAD + 2u;

// The rotated query, the rotated key and the value.
var<workgroup> fresh: array<u32, 3u * WORDS>;
// Partial dot products of each key; later, partial sums of the result columns.
var<workgroup> products: array<f32, max(BLOCK * LANES, 256u)>;
var<workgroup> sums: array<vec4<f32>, SLOTS * QUADS>;
var<workgroup> totals: array<f32, SLOTS>;
var<workgroup> parts: array<f32, SHARES>;
var<workgroup> greatest: atomic<i32>;
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
    let word = word_of(at, DTYPE);
    if part == 0u {
        return q[word];
    }
    if part == 1u {
        return k[word];
    }
    return v[word];
}

fn element(part: u32, at: u32) -> f32 {
    return float_of(word_at(part, at), lane_of(at, DTYPE), DTYPE);
}

// Bits of element d of the query, the key or the value, whose first element is at offset `start`.
fn bits_at(part: u32, start: u32, d: u32) -> u32 {
    if part == 2u || d >= p.n_rot {
        let at = start + d;
        return bits_of(word_at(part, at), lane_of(at, DTYPE), 4u / lanes(DTYPE));
    }
    let turn = turn_of(d);
    let own = element(part, start + d);
    let other = element(part, start + turn.other);
    return turned_pair(own, other, p.cos_offset + turn.pair, p.sin_offset + turn.pair, turn.is_b);
}

fn fresh_word(i: u32, head: u32) -> u32 {
    let part = i / WORDS;
    let d = i % WORDS * lanes(DTYPE);
    var start = p.q_offset + head * p.q_head;
    if part == 1u {
        start = p.k_offset + head / GROUP * p.k_head;
    } else if part == 2u {
        start = p.v_offset + head / GROUP * p.v_head;
    }
    var bits = bits_at(part, start, d);
    if lanes(DTYPE) == 2u {
        bits |= bits_at(part, start, d + 1u) << 16u;
    }
    return bits;
}

fn fresh_chunk(part: u32, chunk: u32) -> vec4<u32> {
    let at = part * WORDS + chunk * 4u;
    return vec4<u32>(fresh[at], fresh[at + 1u], fresh[at + 2u], fresh[at + 3u]);
}

// Stores the result word of the columns at `to`.
fn store(query_head: u32, to: u32, all: vec2<f32>, total: f32, top: i32) {
    if to >= HEAD {
        return;
    }
    let result = normalized(vec4<f32>(all, 0.0, 0.0), total, top);
    var bits = float_bits(result.x, DTYPE);
    if lanes(DTYPE) == 2u {
        bits |= float_bits(result.y, DTYPE) << 16u;
    }
    y[word_of(query_head * HEAD + to, DTYPE)] = bits;
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
    let query_head = flat % HEADS;
    let split = flat / HEADS;
    let head = query_head / GROUP;
    let slot = local / LANES;
    let lane = local % LANES;
    let at = head * (HEAD_STEP / EACH) + lane;
    let n = u32(clamp(bitcast<i32>(lens[p.lens_offset]), 0, i32(p.keys)));
    var begin = 0u;
    if WINDOWED == 1u {
        begin = n - min(n, p.window);
    }
    // Number of workgroups that have keys. Workgroup 0 always runs: it updates the states and
    // writes a result.
    let blocks = (n - begin + BLOCK - 1u) / BLOCK;
    let groups = select(min(blocks, SPLITS), 1u, blocks <= ALONE);
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
    for (var i = local; i < 3u * WORDS; i += 256u) {
        fresh[i] = fresh_word(i, query_head);
    }
    if local == 0u {
        atomicStore(&greatest, UNSEEN);
        atomicStore(&failed, 0u);
    }
    workgroupBarrier();
    if bad != 0u {
        atomicMax(&failed, 1u);
    }
    var x: array<vec4<f32>, OWN * PARTS>;
    for (var i = 0u; i < OWN; i += 1u) {
        let chunk = fresh_chunk(0u, lane + i * LANES);
        for (var part = 0u; part < PARTS; part += 1u) {
            x[i * PARTS + part] = four(chunk, part);
        }
    }

    var own: array<vec4<f32>, OWN * PARTS>;
    var total = 0.0;
    var top = UNSEEN;
    loop {
        if u32(place) - first < BLOCK {
            for (var turn = 0u; turn < TURNS; turn += 1u) {
                if first + turn * SLOTS + slot == u32(place) {
                    for (var i = 0u; i < OWN; i += 1u) {
                        key_chunks[turn * OWN + i] = fresh_chunk(1u, lane + i * LANES);
                        value_chunks[turn * OWN + i] = fresh_chunk(2u, lane + i * LANES);
                    }
                }
            }
        }
        var whole: array<f32, TURNS>;
        for (var turn = 0u; turn < TURNS; turn += 1u) {
            var product = 0.0;
            for (var i = 0u; i < OWN; i += 1u) {
                for (var part = 0u; part < PARTS; part += 1u) {
                    product += dot(four(key_chunks[turn * OWN + i], part), x[i * PARTS + part]);
                }
            }
            if SHARES_PRODUCTS {
                whole[turn] = sum_of_eight(product);
            } else {
                products[(turn * SLOTS + slot) * LANES + lane] = product;
            }
        }
        // Prefetch of the next block. Indices beyond the end are clamped to the last key.
        load_keys(first + step + slot, at, max(n, 1u) - 1u);
        if !SHARES_PRODUCTS {
            workgroupBarrier();
        }
        var scores: array<i32, TURNS>;
        let before = top;
        for (var turn = 0u; turn < TURNS; turn += 1u) {
            var product = whole[turn];
            for (var i = 0u; i < LANES && !SHARES_PRODUCTS; i += 1u) {
                product += products[(turn * SLOTS + slot) * LANES + i];
            }
            let is_seen = first + turn * SLOTS + slot < n;
            scores[turn] = select(UNSEEN, key_of(product * p.scale), is_seen);
            top = max(top, scores[turn]);
        }
        let center = center_of(top);
        let by = rescale(before, center);
        total *= by;
        for (var i = 0u; i < OWN * PARTS; i += 1u) {
            own[i] *= by;
        }
        for (var turn = 0u; turn < TURNS; turn += 1u) {
            // Masked values may be NaN.
            if scores[turn] != UNSEEN {
                let by = weight(scores[turn], center);
                total += by;
                for (var i = 0u; i < OWN; i += 1u) {
                    for (var part = 0u; part < PARTS; part += 1u) {
                        own[i * PARTS + part] += by * four(value_chunks[turn * OWN + i], part);
                    }
                }
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
        atomicMax(&greatest, top);
    }
    workgroupBarrier();
    if split == 0u && query_head % GROUP == 0u && local < 2u * CHUNKS && atomicLoad(&failed) == 0u {
        let chunk = local % CHUNKS;
        let to = u32(place) * (KEY_STEP / EACH) + head * (HEAD_STEP / EACH) + chunk;
        if local < CHUNKS {
            keys[to] = fresh_chunk(1u, chunk);
        } else {
            values[to] = fresh_chunk(2u, chunk);
        }
    }
    let greatest_of_all = atomicLoad(&greatest);
    let by = rescale(top, center_of(greatest_of_all));
    for (var i = 0u; i < OWN; i += 1u) {
        for (var part = 0u; part < PARTS; part += 1u) {
            sums[slot * QUADS + (lane + i * LANES) * PARTS + part] = by * own[i * PARTS + part];
        }
    }
    if lane == 0u {
        totals[slot] = by * total;
    }
    workgroupBarrier();
    let column = local % HEAD;
    let share = local / HEAD;
    var sum = 0.0;
    total = 0.0;
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
    let to = local * lanes(DTYPE);
    var all = vec2<f32>();
    total = 0.0;
    if to < HEAD {
        for (var i = 0u; i < SHARES; i += 1u) {
            all.x += products[i * HEAD + to];
            if lanes(DTYPE) == 2u {
                all.y += products[i * HEAD + to + 1u];
            }
            total += parts[i];
        }
    }
    if SPLITS == 1u || groups == 1u {
        store(query_head, to, all, total, greatest_of_all);
        count_chain(local);
        return;
    }
    let own_at = (query_head * SPLITS + split) * PARTIAL;
    if to < HEAD {
        atomicStore(&partial[own_at + to], bitcast<u32>(all.x));
        if lanes(DTYPE) == 2u {
            atomicStore(&partial[own_at + to + 1u], bitcast<u32>(all.y));
        }
        if to == 0u {
            atomicStore(&partial[own_at + HEAD], bitcast<u32>(greatest_of_all));
            atomicStore(&partial[own_at + HEAD + 1u], bitcast<u32>(total));
        }
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
    if is_last == 1u && to < HEAD {
        // Indices are clamped to the last workgroup, so that all loads are issued together.
        let head_at = query_head * SPLITS * PARTIAL;
        var tops: array<i32, SPLITS>;
        var weights: array<f32, SPLITS>;
        var columns: array<vec2<f32>, SPLITS>;
        for (var i = 0u; i < SPLITS; i += 1u) {
            let at = head_at + min(i, groups - 1u) * PARTIAL;
            tops[i] = bitcast<i32>(atomicLoad(&partial[at + HEAD]));
            weights[i] = bitcast<f32>(atomicLoad(&partial[at + HEAD + 1u]));
            columns[i].x = bitcast<f32>(atomicLoad(&partial[at + to]));
            if lanes(DTYPE) == 2u {
                columns[i].y = bitcast<f32>(atomicLoad(&partial[at + to + 1u]));
            }
        }
        top = UNSEEN;
        for (var i = 0u; i < SPLITS; i += 1u) {
            top = max(top, tops[i]);
        }
        all = vec2<f32>();
        total = 0.0;
        for (var i = 0u; i < SPLITS; i += 1u) {
            if i < groups {
                let by = rescale(tops[i], center_of(top));
                all += by * columns[i];
                total += by * weights[i];
            }
        }
        store(query_head, to, all, total, top);
    }
    count_chain(local);
}
