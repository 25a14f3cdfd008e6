// Vectorized GEMM for quad_tiles.wgsl. Operands are loaded as vectors of four adjacent elements: a
// along k, b along k or n, y along n.
//
// One fragment defines the vectors of a and y (a_quad, store_quad), another those of b. b_line
// selects a column, or with B_ALONG = 1 four columns, and b_quad loads 4 elements.
//
// With PARTS > 1 (split-K), k is divided into whole steps, and y receives [part, batch, m, n].

override PARTS: u32 = 1u;

// First element and length of the part of k to sum.
var<private> part_first: u32;
var<private> part_length: u32;

fn row_count() -> u32 {
    return p.m;
}

fn column_count() -> u32 {
    return p.n;
}

fn product_count() -> u32 {
    return p.batch * PARTS;
}

fn sum_length() -> u32 {
    return part_length;
}

fn enter_product(product: u32, column: u32) {
    enter_batch(product % p.batch);
    part_first = 0u;
    part_length = p.k;
    if PARTS > 1u {
        let part = product / p.batch;
        let length = ((p.k + STEP - 1u) / STEP + PARTS - 1u) / PARTS * STEP;
        part_first = min(part * length, p.k);
        part_length = min(length, p.k - part_first);
        y_base += part * (p.batch * p.m * p.n);
    }
}

fn first_a(row_first: u32, local: u32, i: u32) -> u32 {
    let own = own_a(local, i);
    return a_base + min(row_first + own.x, p.m - 1u) * p.a_row + own.y;
}

fn first_b(col_first: u32, local: u32, i: u32) -> u32 {
    let own = own_b(local, i);
    if B_ALONG == 1u {
        return b_base + min(col_first + own.x * 4u, p.n - 4u);
    }
    return b_line(min(col_first + own.x, p.n - 1u));
}

// Vector of a for the step at k_first.
fn next_a(first: u32, k_first: u32) -> vec4<f32> {
    return a_quad((first + part_first + k_first) / 4u);
}

fn next_b(first: u32, k_first: u32, k: u32) -> vec4<f32> {
    if B_ALONG == 1u {
        return b_quad(first, (part_first + k_first + k) * p.b_row);
    }
    return b_quad(first, part_first + k_first + k);
}

// Vector of a for the first step, which has `size` elements.
fn first_quad_a(first: u32, k: u32, size: u32) -> vec4<f32> {
    if k >= size {
        return vec4<f32>();
    }
    return next_a(first, 0u);
}

fn first_quad_b(first: u32, k: u32, size: u32) -> vec4<f32> {
    if k >= size {
        return vec4<f32>();
    }
    return next_b(first, 0u, k);
}

fn finish_quad(sums: vec4<f32>, row: u32, col: u32) -> vec4<f32> {
    return vec4<f32>(
        finish(sums.x, row, col),
        finish(sums.y, row, col + 1u),
        finish(sums.z, row, col + 2u),
        finish(sums.w, row, col + 3u),
    );
}

fn store_sums(row: u32, col: u32, sums: vec4<f32>) {
    store_quad((y_base + row * p.n + col) / 4u, finish_quad(sums, row, col));
}
