// Rows of queries: one for each query of each query head of a key head.

// Where rows of this batch entry and key head begin.
uint row_of(uint row, uint offset, uint of_batch, uint of_head, uint of_seq) {
    uint query = query_of(row);
    uint query_head = head * p.group + row - query * p.group;
    return offset + batch * of_batch + query_head * of_head + query * of_seq;
}
