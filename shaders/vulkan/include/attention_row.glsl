// Rows of queries: one for each query of each query head of a key head.

// Where rows of this batch entry and key head begin.
uint row_of(uint row, uint offset, uint of_batch, uint of_head, uint of_seq) {
    uint query_head = head * p.group + row % p.group;
    return offset + batch * of_batch + query_head * of_head + row / p.group * of_seq;
}
