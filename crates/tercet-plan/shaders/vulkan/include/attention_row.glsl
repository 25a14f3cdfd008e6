// Query rows of a KV head: one per query and query head.

// Offset of a query row of this batch entry and KV head.
uint row_of(uint row, uint offset, uint of_batch, uint of_head, uint of_seq) {
    uint query = query_of(row);
    uint query_head = head * p.group + row - query * p.group;
    return offset + batch * of_batch + query_head * of_head + query * of_seq;
}
