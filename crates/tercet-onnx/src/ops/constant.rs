//! Constants and tensor generators.

use tercet_ir::{DType, Tensor, TensorType};

use super::{OpsetEntry, op};
use crate::call::{ImportNode, NodeOutputs, one};
use crate::elem::{self, Narrow};
use crate::error::NodeErrorKind;
use crate::external::ExternalDataFolder;
use crate::proto::SparseTensorProto;
use crate::tensor;
use crate::val::{ImportedValue, ShapeElem};

pub(crate) const TABLE: &[OpsetEntry] = &[
    op("Constant", 1, constant).without_folding(),
    op("ConstantOfShape", 9, constant_of_shape),
    op("EyeLike", 9, eye_like).without_folding(),
    op("Range", 11, range).without_folding(),
    op("RandomUniformLike", 1, random_uniform_like).without_folding(),
    op("RandomNormalLike", 1, random_normal_like).without_folding(),
];

fn constant(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    if let Some(proto) = k.attrs.tensor_opt("value")? {
        let made = tensor::decode(proto, &k.c.folder, &k.c.strings);
        // Report unsupported constants only if they are used, because strings are often unused.
        return Ok(vec![match made {
            Ok(made) => ImportedValue::decoded(made, k.node.output.first().cloned()),
            Err(why) => ImportedValue::Unsupported(why.into()),
        }]);
    }
    if let Some(strings) = texts(k)? {
        return Ok(vec![strings]);
    }
    let tensor = if let Some(x) = k.attrs.float_opt("value_float")? {
        Tensor::scalar(x as f32)
    } else if let Some(x) = k.attrs.int_opt("value_int")? {
        Tensor::scalar(x)
    } else if let Some(xs) = k.attrs.floats_opt("value_floats")? {
        Tensor::from_slice(&[xs.len()], xs)?
    } else if let Some(xs) = k.attrs.ints_opt("value_ints")? {
        Tensor::from_slice(&[xs.len()], xs)?
    } else if let Some(proto) = k.attrs.sparse_opt("sparse_value")? {
        sparse(proto, &k.c.folder).map_err(|e| NodeErrorKind::attribute("sparse_value", e))?
    } else {
        return Err(NodeErrorKind::unsupported(
            "this type of constant is not supported; use a numeric one",
        ));
    };
    Ok(vec![ImportedValue::known(tensor)])
}

/// A constant string or list of strings.
fn texts(k: &ImportNode<'_, '_>) -> Result<Option<ImportedValue>, NodeErrorKind> {
    let places = if let Some(text) = k.attrs.string_opt("value_string")? {
        Tensor::scalar(k.c.strings.place(&text))
    } else if let Some(texts) = k.attrs.strings_opt("value_strings")? {
        Tensor::from_slice(&[texts.len()], &k.c.strings.places(&texts))?
    } else {
        return Ok(None);
    };
    Ok(Some(ImportedValue::decoded(
        (places, Some(Narrow::Text)),
        None,
    )))
}

/// Converts a sparse tensor to a dense one.
pub(crate) fn sparse(
    proto: &SparseTensorProto,
    folder: &ExternalDataFolder,
) -> Result<Tensor, String> {
    const MAX_ELEMENTS: usize = 1 << 24;
    let (Some(values), Some(indices)) = (&proto.values, &proto.indices) else {
        return Err("a sparse tensor without values or indices".into());
    };
    let (values, indices) = (
        tensor::plain(values, folder)?,
        tensor::plain(indices, folder)?,
    );
    let ty = TensorType::new(values.dtype(), &tensor::sizes(&proto.dims)?);
    if ty.saturating_bytes() > MAX_ELEMENTS as u64 {
        return Err(format!(
            "a sparse tensor of {ty} is too large to convert to dense"
        ));
    }
    let width = ty.dtype.size_bytes();
    let strides = tercet_ir::row_major_strides(&ty.shape);
    let rows: Vec<i64> = indices.to_i64s();
    let places: Vec<i64> = match indices.shape() {
        [_] => rows,
        [_, rank] if *rank == strides.len() && *rank > 0 => {
            let place = |row: &[i64]| {
                row.iter()
                    .zip(&strides)
                    .map(|(i, s)| i.wrapping_mul(*s as i64))
                    .sum()
            };
            rows.chunks(*rank).map(place).collect()
        }
        _ => return Err("the indices of a sparse tensor have the wrong shape".into()),
    };
    let mut dense = Tensor::zeros(ty).map_err(|e| e.to_string())?;
    if places.len() != values.numel() {
        return Err("a sparse tensor must have one index per value".into());
    }
    let bytes = dense.bytes_mut();
    for (place, value) in places.iter().zip(values.bytes().chunks(width)) {
        let at = usize::try_from(*place)
            .ok()
            .and_then(|p| p.checked_mul(width));
        let to = at.and_then(|at| bytes.get_mut(at..at.checked_add(width)?));
        to.ok_or("an index of a sparse tensor is out of range")?
            .copy_from_slice(value);
    }
    Ok(dense)
}

fn constant_of_shape(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let dims = k.shape_operand(0)?;
    let value = match k.attrs.tensor_opt("value")? {
        Some(proto) => {
            tensor::plain(proto, &k.c.folder).map_err(|e| NodeErrorKind::attribute("value", e))?
        }
        None => Tensor::scalar(0f32),
    };
    let value = k.g().constant(value.reshaped(&[])?)?;
    one(k.g().expand(value, dims)?)
}

/// The dtype in the attribute `dtype`, otherwise the dtype of the operand.
fn dtype_or_own(k: &mut ImportNode<'_, '_>) -> Result<DType, NodeErrorKind> {
    match k.attrs.int_opt("dtype")? {
        Some(number) => elem::dtype(number).map_err(|e| NodeErrorKind::attribute("dtype", e)),
        None => {
            let x = k.x(0)?;
            Ok(k.dtype(x))
        }
    }
}

fn eye_like(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let dtype = dtype_or_own(k)?;
    let x = k.x(0)?;
    let sizes = k.known_dims(x)?;
    let [rows, cols] = sizes.as_slice() else {
        return Err(NodeErrorKind::operand(0, "must be a matrix"));
    };
    let diagonal = k.attrs.int("k", 0)?;
    let (rows, cols) = (*rows, *cols);
    if !k.c.spend(rows.saturating_mul(cols)) {
        return Err(NodeErrorKind::unsupported("the matrix is too large"));
    }
    let at = |i: usize, j: usize| i64::from(j as i64 - i as i64 == diagonal);
    let values: Vec<i64> = (0..rows)
        .flat_map(|i| (0..cols).map(move |j| at(i, j)))
        .collect();
    Ok(vec![ImportedValue::known(Tensor::from_i64s(
        TensorType::new(dtype, &[rows, cols]),
        &values,
    )?)])
}

fn range(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    const MAX_ELEMENTS: f64 = 8_388_608.0;
    if let (Some(start), Some(end), Some(step)) = (
        k.val(0).as_sizes(),
        k.val(1).as_sizes(),
        k.val(2).as_sizes(),
    ) {
        let symbolic = [&start, &end, &step]
            .iter()
            .any(|s| s.nums.iter().any(|n| n.int().is_none()));
        if symbolic {
            return symbolic_range(k, &start.nums, &end.nums, &step.nums);
        }
    }
    let (start, end, step) = (
        k.const_operand(0)?,
        k.const_operand(1)?,
        k.const_operand(2)?,
    );
    let dtype = start.dtype();
    let (from, to, by) = (k.float(0)?, k.float(1)?, k.float(2)?);
    let count = ((to - from) / by).ceil().max(0.0);
    if count.is_nan() || count > MAX_ELEMENTS || end.dtype() != dtype || step.dtype() != dtype {
        return Err(NodeErrorKind::unsupported(format!(
            "a range from {from} to {to} by {by} is not supported"
        )));
    }
    if !k.c.spend(count as usize) {
        return Err(NodeErrorKind::unsupported("the range is too long"));
    }
    let values: Vec<f64> = (0..count as usize).map(|i| from + i as f64 * by).collect();
    Ok(vec![ImportedValue::known(Tensor::from_f64s(
        TensorType::new(dtype, &[values.len()]),
        &values,
    )?)])
}

/// A range with a known start and a symbolic size, as a cumulative sum of ones.
fn symbolic_range(
    k: &mut ImportNode<'_, '_>,
    start: &[ShapeElem],
    end: &[ShapeElem],
    step: &[ShapeElem],
) -> NodeOutputs {
    let ([ShapeElem::Int(start)], [end], [ShapeElem::Int(1)]) = (start, end, step) else {
        return Err(NodeErrorKind::unsupported(
            "a range of symbolic size must have a known start and a step of 1",
        ));
    };
    let (start, end) = (*start, end.dim());
    let first = ShapeElem::Int(start).dim();
    let count = end
        .zip(first)
        .and_then(|(end, first)| end.checked_sub(&first));
    let count = count
        .ok_or_else(|| NodeErrorKind::unsupported("the size of the range cannot be expressed"))?;
    let one_ = k.g().constant(Tensor::from_slice(&[1], &[1i64])?)?;
    let ones = k.g().expand(one_, [count])?;
    let sums = k.g().cum_sum(ones, 0)?;
    let shift = k.g().constant(Tensor::scalar(start - 1))?;
    one(k.g().plus(sums, shift)?)
}

fn random_uniform_like(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let dtype = dtype_or_own(k)?;
    let x = k.x(0)?;
    let dims = k.dims(x);
    let (lo, hi) = (k.attrs.float("low", 0.0)?, k.attrs.float("high", 1.0)?);
    let seed = k.attrs.float("seed", 0.0)?.to_bits();
    one(k.g().rng_uniform(dims, dtype, lo, hi, seed)?)
}

fn random_normal_like(k: &mut ImportNode<'_, '_>) -> NodeOutputs {
    let dtype = dtype_or_own(k)?;
    let x = k.x(0)?;
    let dims = k.dims(x);
    let (mean, scale) = (k.attrs.float("mean", 0.0)?, k.attrs.float("scale", 1.0)?);
    let seed = k.attrs.float("seed", 0.0)?.to_bits();
    one(k.g().rng_normal(dims, dtype, mean, scale, seed)?)
}
