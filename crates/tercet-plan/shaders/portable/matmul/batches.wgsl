// Offsets of the operands for a batch index over up to six axes.
// uses matmul/operands.wgsl: a_base, b_base, p, y_base

fn enter_batch(batch: u32) {
    var rest = batch;
    a_base = p.a_offset;
    b_base = p.b_offset;
    y_base = batch * p.m * p.n;
    for (var left = p.batch_axes; left > 0u; left -= 1u) {
        let axis = left - 1u;
        let size = p.batch_sizes[axis / 4u][axis % 4u];
        let at = rest % size;
        rest /= size;
        a_base += at * p.a_batches[axis / 4u][axis % 4u];
        b_base += at * p.b_batches[axis / 4u][axis % 4u];
    }
}
