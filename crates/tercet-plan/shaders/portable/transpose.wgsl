// Tiled transpose: y = x with another innermost axis, bit for bit. The unit-stride axes of x and y
// differ. Tiles of 32 x 32 elements in shared memory make both loads and stores coalesced.
//
// Tile rows run along the unit-stride axis of x, tile columns along the last axis of y; other axes
// are batches. A workgroup moves one tile. Columns are whole words.
// uses prelude.wgsl: flat_group

struct Params {
    sizes: array<vec4<u32>, 2>,
    // Strides of the batch axes, in x and in y.
    strides: array<vec4<u32>, 2>,
    targets: array<vec4<u32>, 2>,
    axes: u32,
    batches: u32,
    offset: u32,
    rows: u32,
    columns: u32,
    // Stride of the columns in x, and of the rows in y.
    column_step: u32,
    row_step: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override ELEM_BYTES: u32 = 4u;

const SIDE: u32 = 32u;
// Row pitch with one word of padding, so that the words of a column are in different banks.
const PITCH: u32 = 33u;

var<workgroup> tile: array<u32, 1056>;

// Offsets of a batch in x and y. Strides may be negative: the sum wraps modulo 2^32.
fn starts(batch: u32) -> vec2<u32> {
    var rest = batch;
    var at = vec2<u32>(p.offset, 0u);
    for (var k = p.axes; k > 0u; k -= 1u) {
        let axis = k - 1u;
        let size = p.sizes[axis / 4u][axis % 4u];
        let index = rest % size;
        at += index * vec2<u32>(p.strides[axis / 4u][axis % 4u], p.targets[axis / 4u][axis % 4u]);
        rest /= size;
    }
    return at;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = flat_group(group, groups);
    let across = (p.columns + SIDE - 1u) / SIDE;
    let down = (p.rows + SIDE - 1u) / SIDE;
    let batch = flat / (across * down);
    let own = flat % (across * down);
    let column = (own % across) * SIDE;
    let row = (own / across) * SIDE;
    let live = batch < p.batches;
    var at = vec2<u32>();
    if live {
        at = starts(batch);
    }
    let per = 4u / ELEM_BYTES;
    let bits = 8u * ELEM_BYTES;
    let r = local % SIDE;
    for (var turn = 0u; turn < 4u; turn += 1u) {
        let c = local / SIDE + turn * 8u;
        if live && row + r < p.rows && column + c < p.columns {
            let source = at.x + row + r + (column + c) * p.column_step;
            tile[c * PITCH + r] = x[source / per] >> ((source % per) * bits);
        }
    }
    workgroupBarrier();
    let words = SIDE / per;
    let mask = 0xffffffffu >> (32u - bits);
    for (var turn = 0u; turn < words / 8u; turn += 1u) {
        let to_row = local / words + turn * (256u / words);
        let c = (local % words) * per;
        if live && row + to_row < p.rows && column + c < p.columns {
            var out = 0u;
            for (var lane = 0u; lane < per; lane += 1u) {
                out |= (tile[(c + lane) * PITCH + to_row] & mask) << (lane * bits);
            }
            y[(at.y + (row + to_row) * p.row_step + column + c) / per] = out;
        }
    }
}
