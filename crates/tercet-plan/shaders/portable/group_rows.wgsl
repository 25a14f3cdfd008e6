// Sorts rows by key (mixture of experts) with a counting sort, and divides the rows of each key into
// tiles of at most `tile` rows. The table contains `tile_count` tiles (key, first rank, rows, 0),
// then the row of each rank. Unused tiles have no rows. The order of the rows of a key is
// arbitrary: kernels that read the table compute every row alone.
//
// One workgroup; keys are below MAX_KEYS.

struct Params {
    rows: u32,
    tile: u32,
    tile_count: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read_write> table: array<u32>;

const COUNT: u32 = 256u;
const MAX_KEYS: u32 = 1024u;
const OWN_KEYS: u32 = MAX_KEYS / COUNT;

// Rows of each key, then the next rank of each key.
var<workgroup> ranks: array<atomic<u32>, MAX_KEYS>;
// Rows and tiles of the keys of each thread, and of those before them.
var<workgroup> sums: array<vec2<u32>, COUNT>;

fn key_of(row: u32) -> u32 {
    return min(keys[row], MAX_KEYS - 1u);
}

fn store_tile(at: u32, key: u32, first: u32, rows: u32) {
    if at < p.tile_count {
        table[4u * at] = key;
        table[4u * at + 1u] = first;
        table[4u * at + 2u] = rows;
        table[4u * at + 3u] = 0u;
    }
}

@compute @workgroup_size(COUNT)
fn main(@builtin(local_invocation_index) local: u32) {
    for (var i = 0u; i < OWN_KEYS; i += 1u) {
        atomicStore(&ranks[local * OWN_KEYS + i], 0u);
    }
    workgroupBarrier();
    for (var row = local; row < p.rows; row += COUNT) {
        atomicAdd(&ranks[key_of(row)], 1u);
    }
    workgroupBarrier();
    var own = vec2<u32>();
    for (var i = 0u; i < OWN_KEYS; i += 1u) {
        let rows = atomicLoad(&ranks[local * OWN_KEYS + i]);
        own += vec2<u32>(rows, (rows + p.tile - 1u) / p.tile);
    }
    sums[local] = own;
    workgroupBarrier();
    for (var step = 1u; step < COUNT; step *= 2u) {
        var before = vec2<u32>();
        if local >= step {
            before = sums[local - step];
        }
        workgroupBarrier();
        sums[local] += before;
        workgroupBarrier();
    }
    // Next rank, and next tile.
    var next = sums[local] - own;
    for (var i = 0u; i < OWN_KEYS; i += 1u) {
        let key = local * OWN_KEYS + i;
        let rows = atomicLoad(&ranks[key]);
        atomicStore(&ranks[key], next.x);
        for (var done = 0u; done < rows; done += p.tile) {
            store_tile(next.y, key, next.x + done, min(rows - done, p.tile));
            next.y += 1u;
        }
        next.x += rows;
    }
    for (var at = sums[COUNT - 1u].y + local; at < p.tile_count; at += COUNT) {
        store_tile(at, 0u, 0u, 0u);
    }
    workgroupBarrier();
    for (var row = local; row < p.rows; row += COUNT) {
        let rank = atomicAdd(&ranks[key_of(row)], 1u);
        table[4u * p.tile_count + rank] = row;
    }
}
