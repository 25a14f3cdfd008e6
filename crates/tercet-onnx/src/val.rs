//! Values that names of a model refer to during import.

use std::cell::RefCell;
use std::rc::Rc;

use crate::elem::Narrow;
use crate::padded_value::PaddedValue;
use tercet_ir::{DType, Dim, Tensor, TensorType, Value};

/// A value: computed by the graph, constant, or a symbolic shape.
#[derive(Clone, Debug)]
pub(crate) enum ImportedValue {
    /// An absent optional operand or result.
    Absent,
    /// A value of the graph under construction.
    Graph(Value),
    /// A tensor that is known at import time.
    ConstTensor(Rc<Known>),
    /// I64 or I32 numbers of rank 0 or 1, some of which are symbolic sizes.
    ShapeValue(Rc<Sizes>),
    /// A value of a narrow dtype: a `Graph` value or a known tensor in the carrier dtype.
    Narrow(Narrow, Rc<ImportedValue>),
    /// A graph value with an axis whose valid size depends on data.
    Bounded(Rc<PaddedValue>),
    /// A matrix with a map per row, whose keys name the columns. This variant occurs only as a
    /// model output.
    Maps(Rc<SampleMaps>),
    /// A list of values, known at import time.
    Seq(Rc<Vec<ImportedValue>>),
    /// An unsupported value: nodes that use it fail with this reason.
    Unsupported(Rc<str>),
    /// The result of a failed node. Nodes that use it are skipped without another error.
    Failed,
}

/// Maps, one per sample.
#[derive(Clone, Debug)]
pub(crate) struct SampleMaps {
    /// The key of each column.
    pub(crate) keys: Vec<String>,
    /// A matrix with a row per map.
    pub(crate) value: Value,
}

/// A tensor that is known at import time.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) tensor: Tensor,
    /// The initializer's name, used as the parameter name.
    pub(crate) name: Option<String>,
    /// The graph values created for the tensor, by the serial number of the graph level.
    pub(crate) placed: RefCell<Vec<(usize, Value)>>,
}

/// A shape element: an integer, possibly negative, or a symbolic size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShapeElem {
    /// A known integer.
    Int(i64),
    /// An expression with symbols.
    Dim(Dim),
    /// A size that depends on the data of a run.
    Data(DataSize),
}

/// A size that depends on the data of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DataSize {
    /// The maximum.
    pub(crate) room: Dim,
    /// The size, I32.
    pub(crate) count: Value,
}

impl ShapeElem {
    /// Converts a size to a shape element.
    pub(crate) fn from_dim(dim: &Dim) -> ShapeElem {
        match dim.known().map(i64::try_from) {
            Some(Ok(n)) => ShapeElem::Int(n),
            _ => ShapeElem::Dim(dim.clone()),
        }
    }

    /// The element as a size, unless it is negative.
    pub(crate) fn dim(&self) -> Option<Dim> {
        match self {
            ShapeElem::Int(n) => usize::try_from(*n).ok().map(Dim::Known),
            ShapeElem::Dim(d) => Some(d.clone()),
            ShapeElem::Data(_) => None,
        }
    }

    /// Returns the size if it depends on data.
    pub(crate) fn data(&self) -> Option<&DataSize> {
        match self {
            ShapeElem::Data(size) => Some(size),
            ShapeElem::Int(_) | ShapeElem::Dim(_) => None,
        }
    }

    /// The integer, if the element is not symbolic.
    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            ShapeElem::Int(n) => Some(*n),
            ShapeElem::Dim(_) | ShapeElem::Data(_) => None,
        }
    }
}

/// The elements of a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Whether the shape value is a scalar (rank 0).
    pub(crate) scalar: bool,
    pub(crate) nums: Vec<ShapeElem>,
    /// Dtype of the elements: I64, or I32 after a cast in the file.
    pub(crate) dtype: DType,
}

impl ImportedValue {
    /// A known tensor without a name.
    pub(crate) fn known(tensor: Tensor) -> ImportedValue {
        ImportedValue::named(tensor, None)
    }

    /// A known tensor.
    pub(crate) fn named(tensor: Tensor, name: Option<String>) -> ImportedValue {
        let placed = RefCell::default();
        ImportedValue::ConstTensor(Rc::new(Known {
            tensor,
            name,
            placed,
        }))
    }

    /// A tensor decoded from a file, with its name.
    pub(crate) fn decoded(
        (tensor, narrow): (Tensor, Option<Narrow>),
        name: Option<String>,
    ) -> ImportedValue {
        let val = ImportedValue::named(tensor, name);
        match narrow {
            Some(narrow) => ImportedValue::Narrow(narrow, Rc::new(val)),
            None => val,
        }
    }

    /// Shape elements; a constant tensor if all are known.
    pub(crate) fn sizes(nums: Vec<ShapeElem>, scalar: bool) -> ImportedValue {
        ImportedValue::sizes_of(nums, scalar, DType::I64)
    }

    /// Shape elements of a given dtype.
    pub(crate) fn sizes_of(nums: Vec<ShapeElem>, scalar: bool, dtype: DType) -> ImportedValue {
        let known: Option<Vec<i64>> = nums.iter().map(ShapeElem::int).collect();
        match known {
            None => ImportedValue::ShapeValue(Rc::new(Sizes {
                scalar,
                nums,
                dtype,
            })),
            Some(values) => {
                let shape: &[usize] = if scalar { &[] } else { &[values.len()] };
                match Tensor::from_i64s(TensorType::new(dtype, shape), &values) {
                    Ok(t) => ImportedValue::known(t),
                    Err(e) => ImportedValue::Unsupported(e.to_string().into()),
                }
            }
        }
    }

    /// The shape elements, if this is an integer value of rank 0 or 1.
    pub(crate) fn as_sizes(&self) -> Option<Sizes> {
        match self {
            ImportedValue::ShapeValue(s) => Some((**s).clone()),
            ImportedValue::ConstTensor(k)
                if k.tensor.dtype().is_int() && k.tensor.shape().len() <= 1 =>
            {
                let nums = k.tensor.to_i64s().into_iter().map(ShapeElem::Int).collect();
                let scalar = k.tensor.shape().is_empty();
                let dtype = k.tensor.dtype();
                Some(Sizes {
                    scalar,
                    nums,
                    dtype,
                })
            }
            _ => None,
        }
    }
}

impl ImportedValue {
    /// Appends the graph values that it consists of.
    pub(crate) fn parts(&self, found: &mut Vec<Value>) {
        match self {
            ImportedValue::Graph(value) => found.push(*value),
            ImportedValue::Bounded(own) => found.extend([own.value, own.count]),
            ImportedValue::ShapeValue(sizes) => {
                found.extend(sizes.nums.iter().filter_map(|n| Some(n.data()?.count)));
            }
            ImportedValue::Narrow(_, inner) => inner.parts(found),
            ImportedValue::Seq(list) => list.iter().for_each(|v| v.parts(found)),
            ImportedValue::Maps(maps) => found.push(maps.value),
            ImportedValue::Absent
            | ImportedValue::ConstTensor(_)
            | ImportedValue::Unsupported(_)
            | ImportedValue::Failed => {}
        }
    }

    /// The same value with other graph values, in the order of [`ImportedValue::parts`].
    pub(crate) fn with_parts(&self, parts: &mut impl Iterator<Item = Value>) -> ImportedValue {
        let mut next = |value: &Value| parts.next().unwrap_or(*value);
        match self {
            ImportedValue::Graph(value) => next(value).into(),
            ImportedValue::Bounded(own) => {
                let (value, count) = (next(&own.value), next(&own.count));
                PaddedValue::val(value, own.axis, count)
            }
            ImportedValue::ShapeValue(sizes) => {
                let mut sizes = (**sizes).clone();
                for num in &mut sizes.nums {
                    if let ShapeElem::Data(size) = num {
                        size.count = next(&size.count);
                    }
                }
                ImportedValue::ShapeValue(Rc::new(sizes))
            }
            ImportedValue::Narrow(narrow, inner) => {
                ImportedValue::Narrow(*narrow, Rc::new(inner.with_parts(parts)))
            }
            ImportedValue::Seq(list) => {
                let list = list.iter().map(|v| v.with_parts(parts));
                ImportedValue::Seq(Rc::new(list.collect()))
            }
            ImportedValue::Maps(maps) => ImportedValue::Maps(Rc::new(SampleMaps {
                keys: maps.keys.clone(),
                value: next(&maps.value),
            })),
            other => other.clone(),
        }
    }
}

impl From<Value> for ImportedValue {
    fn from(value: Value) -> ImportedValue {
        ImportedValue::Graph(value)
    }
}
