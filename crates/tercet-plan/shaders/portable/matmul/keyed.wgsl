// Expert-indexed GEMV: each batch is one row, and its key selects the right operand from a stack.
// The second batch size tells how many adjacent batches share a row of the left operand.
// uses matmul/operands.wgsl: a_base, b_base, p, y_base

@group(0) @binding(6) var<storage, read> keys: array<u32>;

fn enter_batch(batch: u32) {
    a_base = p.a_offset + batch / p.batch_sizes[0].y * p.a_batches[0].x;
    b_base = p.b_offset + keys[batch] * p.b_batches[0].x;
    y_base = batch * p.n;
}
