//! Exports operators with sums: reductions, norms, matmuls, convolutions, pools and transforms.

use tercet_ir::ops::{
    Conv, ConvTranspose, CumSum, Dequantize, Fft, LayerNorm, Pool, PoolFn, Reduce, ReduceFn,
    Resize, ResizeMode, ScanFn,
};
use tercet_ir::{DType, DTypeClass, Op, Scheme, Shape};

use super::elementwise::unary_of;
use super::node::ExportNode;
use super::proto::{OnnxAttrValue, code};
use super::writer::{ExportNodeError, ExportNodeResult};

type ExportWindowResult = Result<String, ExportNodeError>;

fn ints(values: &[usize]) -> OnnxAttrValue {
    OnnxAttrValue::Ints(values.iter().map(|v| *v as i64).collect())
}

fn is_float(dtype: DType) -> bool {
    dtype.class() == DTypeClass::Float
}

/// Casts 8-bit and 16-bit integer operands to I32 for sums; true if it did. The cast back wraps to the same
/// result.
fn widened(at: &mut ExportNode<'_>) -> bool {
    let is_small = matches!(at.ty(0).dtype, DType::I16 | DType::I8 | DType::U8);
    if is_small {
        at.names = (0..at.operands())
            .map(|operand| at.cast_to(operand, DType::I32))
            .collect();
    }
    is_small
}

fn narrowed(at: &mut ExportNode<'_>, y: String, is_small: bool) -> String {
    match is_small {
        true => at.w.cast(&y, code(at.ty(0).dtype)),
        false => y,
    }
}

pub(super) fn reduce(at: &mut ExportNode<'_>, o: &Reduce) -> ExportWindowResult {
    let op = match o.f {
        ReduceFn::Sum => "ReduceSum",
        ReduceFn::Mean => "ReduceMean",
        ReduceFn::Max => "ReduceMax",
        ReduceFn::Min => "ReduceMin",
        ReduceFn::Prod => "ReduceProd",
    };
    let sums = matches!(o.f, ReduceFn::Sum | ReduceFn::Prod);
    let is_small = sums && widened(at);
    let axes: Vec<i64> = o.axes.iter().map(|a| *a as i64).collect();
    let axes = at.w.list(&axes);
    let x = at.x(0).to_string();
    let attrs = vec![
        ("keepdims", OnnxAttrValue::Int(i64::from(o.keep_dim))),
        ("noop_with_empty_axes", OnnxAttrValue::Int(1)),
    ];
    let y = at.w.add(op, &[&x, &axes], attrs);
    Ok(narrowed(at, y, is_small))
}

pub(super) fn cum_sum(at: &mut ExportNode<'_>, o: &CumSum) -> ExportWindowResult {
    if o.f != ScanFn::Sum {
        let what = format!("ONNX has no cumulative `{}`", o.f.name());
        return ExportNodeError::because(what);
    }
    let is_small = widened(at);
    let axis = at.w.integer(DType::I64, o.axis as i64);
    let x = at.x(0).to_string();
    let attrs = vec![
        ("exclusive", OnnxAttrValue::Int(i64::from(o.exclusive))),
        ("reverse", OnnxAttrValue::Int(i64::from(o.reverse))),
    ];
    let y = at.w.add("CumSum", &[&x, &axis], attrs);
    Ok(narrowed(at, y, is_small))
}

/// Exports a softmax. ONNX returns NaN for a row of only `-inf`; such rows are replaced by
/// `of_nothing`.
pub(super) fn softmax(at: &mut ExportNode<'_>, axis: usize, op: &str, of_nothing: f64) -> String {
    let dtype = at.ty(0).dtype;
    let y = at.plain(op, vec![("axis", OnnxAttrValue::Int(axis as i64))]);
    let axes = at.w.list(&[axis as i64]);
    let x = at.x(0).to_string();
    let w = &mut *at.w;
    let most = w.add("ReduceMax", &[&x, &axes], Vec::new());
    let [nothing, value] = [f64::NEG_INFINITY, of_nothing].map(|v| w.number(dtype, v));
    let is_nothing = w.add("Equal", &[&most, &nothing], Vec::new());
    w.add("Where", &[&is_nothing, &value, &y], Vec::new())
}

/// Rejects F64. ONNX attributes are F32, which is too inexact for a term that is added to F64.
fn has_digits(at: &ExportNode<'_>) -> Result<(), ExportNodeError> {
    match at.ty(0).dtype {
        DType::F64 => ExportNodeError::because("ONNX supports only F32 for the epsilon of a norm"),
        _ => Ok(()),
    }
}

pub(super) fn layer_norm(at: &mut ExportNode<'_>, o: &LayerNorm) -> ExportWindowResult {
    has_digits(at)?;
    let attrs = vec![
        ("axis", OnnxAttrValue::Int(o.axis as i64)),
        ("epsilon", OnnxAttrValue::Float(o.eps.0 as f32)),
    ];
    Ok(at.plain("LayerNormalization", attrs))
}

pub(super) fn batch_norm(at: &mut ExportNode<'_>, eps: f64) -> ExportWindowResult {
    has_digits(at)?;
    let eps = vec![("epsilon", OnnxAttrValue::Float(eps as f32))];
    Ok(at.plain("BatchNormalization", eps))
}

pub(super) fn mat_mul(at: &mut ExportNode<'_>) -> String {
    let is_small = widened(at);
    let y = at.plain("MatMul", Vec::new());
    narrowed(at, y, is_small)
}

/// Exports a grouped matmul as a gather of each row's matrix, followed by a batched matmul of
/// single rows.
pub(super) fn grouped_mat_mul(at: &mut ExportNode<'_>) -> ExportWindowResult {
    let expert = at.cast_to(2, DType::I64);
    let [x, weights] = [0, 1].map(|operand| at.x(operand).to_string());
    let w = &mut *at.w;
    let one = w.list(&[1]);
    let own = w.add("Gather", &[&weights, &expert], Vec::new());
    let rows = w.add("Unsqueeze", &[&x, &one], Vec::new());
    let y = w.add("MatMul", &[&rows, &own], Vec::new());
    Ok(w.add("Squeeze", &[&y, &one], Vec::new()))
}

fn places(before: &[usize], after: &[usize]) -> OnnxAttrValue {
    ints(&[before, after].concat())
}

pub(super) fn conv(at: &mut ExportNode<'_>, o: &Conv) -> ExportWindowResult {
    let dtype = at.ty(0).dtype;
    if !is_float(dtype) {
        return ExportNodeError::because(format!("ONNX has no convolution of {dtype}"));
    }
    let attrs = vec![
        ("strides", ints(&o.stride)),
        ("pads", places(&o.pad_before, &o.pad_after)),
        ("dilations", ints(&o.dilation)),
        ("group", OnnxAttrValue::Int(o.groups as i64)),
    ];
    let y = at.plain("Conv", attrs);
    match o.activation {
        Some(f) => unary_of(at, f, &y, dtype),
        None => Ok(y),
    }
}

pub(super) fn conv_transpose(at: &mut ExportNode<'_>, o: &ConvTranspose) -> ExportWindowResult {
    let dtype = at.ty(0).dtype;
    if !is_float(dtype) {
        return ExportNodeError::because(format!("ONNX has no transposed convolution of {dtype}"));
    }
    let attrs = vec![
        ("strides", ints(&o.stride)),
        ("pads", places(&o.pad_before, &o.pad_after)),
        ("dilations", ints(&o.dilation)),
        ("output_padding", ints(&o.output_padding)),
        ("group", OnnxAttrValue::Int(o.groups as i64)),
    ];
    Ok(at.plain("ConvTranspose", attrs))
}

/// Exports a pool. A minimum is the negated maximum of the negated operand. A sum is the mean over
/// all taps, including zero padding, times the number of taps.
pub(super) fn pool(at: &mut ExportNode<'_>, o: &Pool) -> ExportWindowResult {
    let dtype = at.ty(0).dtype;
    if !is_float(dtype) {
        return ExportNodeError::because(format!("ONNX does not pool {dtype}"));
    }
    if o.ceil && o.f == PoolFn::Sum {
        return ExportNodeError::because(
            "ONNX does not define the sum of a window beyond the padding",
        );
    }
    if o.f == PoolFn::Prod {
        return ExportNodeError::because("ONNX has no pool of products");
    }
    let common = || {
        vec![
            ("kernel_shape", ints(&o.kernel)),
            ("strides", ints(&o.stride)),
            ("pads", places(&o.pad_before, &o.pad_after)),
            ("dilations", ints(&o.dilation)),
            ("ceil_mode", OnnxAttrValue::Int(i64::from(o.ceil))),
        ]
    };
    let averaged = |padding: bool| {
        let mut attrs = common();
        attrs.push(("count_include_pad", OnnxAttrValue::Int(i64::from(padding))));
        attrs
    };
    Ok(match o.f {
        // Products were refused above.
        PoolFn::Max | PoolFn::Prod => at.plain("MaxPool", common()),
        PoolFn::Mean => at.plain("AveragePool", averaged(o.count_include_pad)),
        PoolFn::Sum => {
            let mean = at.plain("AveragePool", averaged(true));
            let taps =
                at.w.number(dtype, o.kernel.iter().product::<usize>() as f64);
            at.w.add("Mul", &[&mean, &taps], Vec::new())
        }
        PoolFn::Min => {
            at.names[0] = at.plain("Neg", Vec::new());
            let most = at.plain("MaxPool", common());
            at.w.add("Neg", &[&most], Vec::new())
        }
    })
}

pub(super) fn resize(at: &mut ExportNode<'_>, o: &Resize) -> ExportWindowResult {
    let x = at.x(0).to_string();
    let known = |shape: &Shape| -> Vec<i64> {
        let size = |axis: usize| shape[axis].known().unwrap_or_default() as i64;
        o.axes(&at.ty(0).shape).into_iter().map(size).collect()
    };
    let axes = o.axes(&at.ty(0).shape);
    let sizes = known(&o.sizes);
    let mut attrs = vec![
        ("axes", ints(&axes)),
        ("mode", OnnxAttrValue::Text(o.mode.name())),
        (
            "coordinate_transformation_mode",
            OnnxAttrValue::Text(o.coordinates.name()),
        ),
        (
            "exclude_outside",
            OnnxAttrValue::Int(i64::from(o.exclude_outside)),
        ),
    ];
    match o.mode {
        ResizeMode::Nearest => attrs.push(("nearest_mode", OnnxAttrValue::Text(o.rounding.name()))),
        ResizeMode::Cubic => {
            attrs.push(("cubic_coeff_a", OnnxAttrValue::Float(o.cubic_a.0 as f32)))
        }
        ResizeMode::Linear => {}
    }
    if axes.is_empty() {
        return Ok(x);
    }
    if o.scales.is_empty() {
        if axes.iter().any(|axis| o.sizes[*axis].known().is_none()) {
            return ExportNodeError::because(
                "sizes of a resize are symbolic; fix them with `Graph::with_sizes`",
            );
        }
        let sizes = at.w.list(&sizes);
        return Ok(at.w.add("Resize", &[&x, "", "", &sizes], attrs));
    }
    if o.scales.iter().any(|s| f64::from(s.0 as f32) != s.0) {
        return ExportNodeError::because("ONNX supports only F32 for the scales of a resize");
    }
    let scales: Vec<f32> = axes.iter().map(|axis| o.scales[*axis].0 as f32).collect();
    let scales = tercet_ir::Tensor::from_slice(&[scales.len()], &scales);
    let scales = scales.expect("invariant: the list has the number of values in its shape");
    let scales = at.w.constant(&scales);
    Ok(at.w.add("Resize", &[&x, "", &scales], attrs))
}

/// Exports a Fourier transform. In ONNX the forward transform is not scaled; the inverse is divided
/// by the length.
pub(super) fn fft(at: &mut ExportNode<'_>, o: &Fft) -> ExportWindowResult {
    let ty = at.ty(0);
    let axis = ty.rank() - 2;
    let Some(n) = ty.shape[axis].known() else {
        return ExportNodeError::because("the length of the transform is symbolic");
    };
    let mut x = at.x(0).to_string();
    let first = at.w.list(&[0]);
    if axis == 0 {
        x = at.w.add("Unsqueeze", &[&x, &first], Vec::new());
    }
    let along = at.w.integer(DType::I64, axis.max(1) as i64);
    let inverse = vec![("inverse", OnnxAttrValue::Int(i64::from(o.inverse)))];
    let mut y = at.w.add("DFT", &[&x, "", &along], inverse);
    let own = if o.inverse { 1.0 / n as f64 } else { 1.0 };
    let factor = o.norm.scale(o.inverse, n) / own;
    if factor != 1.0 {
        let factor = at.w.number(ty.dtype, factor);
        y = at.w.add("Mul", &[&y, &factor], Vec::new());
    }
    Ok(match axis {
        0 => at.w.add("Squeeze", &[&y, &first], Vec::new()),
        _ => y,
    })
}

/// Exports dequantization. Packed parameters are unpacked to initializers; rows gathered from one
/// are gathered from its values.
pub(super) fn dequantize(at: &mut ExportNode<'_>, o: &Dequantize) -> ExportNodeResult {
    match at.source(0) {
        (Op::Param(leaf), _) => at.w.unpacked(&leaf.name, o),
        (Op::Gather(gather), [table, rows]) if gather.axis == 0 => {
            let Op::Param(leaf) = at.op_of(*table) else {
                return no_blocks(o.scheme);
            };
            let values = at.w.unpacked(&leaf.name, o)?.remove(0);
            let rows = at.w.name(*rows);
            Ok(vec![at.w.add("Gather", &[&values, &rows], Vec::new())])
        }
        _ => no_blocks(o.scheme),
    }
}

fn no_blocks(scheme: Scheme) -> ExportNodeResult {
    let what = format!("ONNX has no {scheme:?} blocks, and the operand is not a parameter");
    ExportNodeError::because(what)
}

/// Exports random numbers. ONNX defines only the distribution of random numbers, so the values
/// differ.
pub(super) fn random(
    at: &mut ExportNode<'_>,
    op: &str,
    dtype: DType,
    shape: &Shape,
    of: [(&str, f64); 2],
) -> ExportWindowResult {
    let shape = at.w.shape(shape)?;
    let like = at.w.add("ConstantOfShape", &[&shape], Vec::new());
    let mut attrs = vec![("dtype", OnnxAttrValue::Int(i64::from(code(dtype))))];
    attrs.extend(of.map(|(name, value)| (name, OnnxAttrValue::Float(value as f32))));
    Ok(at.w.add(op, &[&like], attrs))
}
