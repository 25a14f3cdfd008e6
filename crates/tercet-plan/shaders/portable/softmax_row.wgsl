// Row statistics of a softmax, reduced across the threads of a row.
// uses prelude.wgsl: magnitude, nan
// uses row_floats.wgsl: GREATEST, SUM, over_row
// uses scalar/log.wgsl: f_ln
// uses softmax_value.wgsl: LOG, Row, exp_below

// Running maximum. `size` detects NaN, because the builtin `max` may drop it.
struct Top {
    greatest: f32,
    size: u32,
}

fn raise(top: Top, x: f32) -> Top {
    return Top(max(top.greatest, x), max(top.size, magnitude(x)));
}

fn greatest_of(top: Top) -> f32 {
    let own = select(top.greatest, nan(), top.size > 0x7f800000u);
    return over_row(vec2<f32>(own, 0.0), GREATEST).x;
}

fn row_of(greatest: f32, own_sum: f32) -> Row {
    let sum = over_row(vec2<f32>(own_sum, 0.0), SUM).x;
    if LOG == 1u {
        return Row(greatest, f_ln(sum));
    }
    return Row(greatest, 1.0 / sum);
}

fn exp_of(part: f32) -> f32 {
    if LOG == 1u {
        return exp_below(part);
    }
    return part;
}
