// Keys in parts, so that few tiles of rows fill the device. A part has a slot of BM rows: what attention makes of its keys alone, as
// F32, and of each row its center and the sum of its weights. attention_join.wgsl puts the parts of a row together.

#if IN_PARTS
#define IS_FIRST_PART (part == 0u)
#define RESULT_AT(row, local) ((first_slot_row() + local) * p.value_dim)

uint first_slot_row() {
    uint tile = (batch * p.kv_heads + head) * p.tiles + first_row / BM;
    return (tile * p.parts + part) * BM;
}

// The keys of the workgroup's part, in whole steps.
void take_part(inout int first, inout int end) {
    int steps = (max(end - first, 0) + int(BN) - 1) / int(BN);
    int own = (steps + int(p.parts) - 1) / int(p.parts) * int(BN);
    first += int(part) * own;
    end = min(end, first + own);
}
#else
#define IS_FIRST_PART true
#define RESULT_AT(row, local) row_of(row, 0u, p.y_batch, p.y_head, p.y_seq)
#endif
