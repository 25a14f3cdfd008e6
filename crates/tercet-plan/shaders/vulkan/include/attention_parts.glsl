// Split-KV attention: divides the keys into parts, so that few row tiles fill the device. A part
// has a slot of BM rows. Each part stores the F32 result over its keys, and per row the center and
// the sum of the weights. attention_join.wgsl combines the parts of a row.

#if IN_PARTS
#define IS_FIRST_PART (part == 0u)
#define RESULT_AT(row, local) ((first_slot_row() + local) * p.value_dim)

uint first_slot_row() {
    uint tile = (batch * p.kv_heads + head) * p.tiles + first_row / BM;
    return (tile * p.parts + part) * BM;
}

// Restricts the key range to the workgroup's part, in whole steps.
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
