//! What a name of a model stands for while it is imported.

use std::cell::RefCell;
use std::rc::Rc;

use crate::bounded::PaddedValue;
use crate::elem::Narrow;
use tercet_ir::{DType, Dim, Tensor, TensorType, Value};

/// A value: of the graph, known, or a shape that is known but for symbols.
#[derive(Clone, Debug)]
pub(crate) enum ImportedValue {
    /// An optional operand or result that is not there.
    Absent,
    /// A value of the graph being built.
    Graph(Value),
    /// A tensor that is known now.
    ConstTensor(Rc<Known>),
    /// I64 or I32 numbers of which some are sizes with symbols; the rank is 0 or 1.
    ShapeValue(Rc<Sizes>),
    /// Of a dtype that the graph does not have: `Graph` or `Known`, held in its carrier.
    Narrow(Narrow, Rc<ImportedValue>),
    /// A value of the graph with more room on an axis than data uses.
    Bounded(Rc<PaddedValue>),
    /// A matrix whose rows stand for maps from keys to its columns: results only.
    Maps(Rc<SampleMaps>),
    /// A list of values, which never runs.
    Seq(Rc<Vec<ImportedValue>>),
    /// Something that whoever uses it is refused for, with the reason.
    Unsupported(Rc<str>),
    /// The result of a node that failed; its users are passed over in silence.
    Failed,
}

/// Maps of samples.
#[derive(Clone, Debug)]
pub(crate) struct SampleMaps {
    /// The keys, one for each column.
    pub(crate) keys: Vec<String>,
    /// A row for each map.
    pub(crate) value: Value,
}

/// A tensor that is known when importing.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) tensor: Tensor,
    /// The initializer's name: what a parameter would be called.
    pub(crate) name: Option<String>,
    /// Where it was put, by the serial number of the graph.
    pub(crate) placed: RefCell<Vec<(usize, Value)>>,
}

/// A number of a shape: an integer, which can be negative, or a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShapeElem {
    /// A known number.
    Int(i64),
    /// An expression with symbols.
    Dim(Dim),
}

impl ShapeElem {
    /// The number of a size.
    pub(crate) fn from_dim(dim: &Dim) -> ShapeElem {
        match dim.known().map(i64::try_from) {
            Some(Ok(n)) => ShapeElem::Int(n),
            _ => ShapeElem::Dim(dim.clone()),
        }
    }

    /// The size, unless it is a negative number.
    pub(crate) fn dim(&self) -> Option<Dim> {
        match self {
            ShapeElem::Int(n) => usize::try_from(*n).ok().map(Dim::Known),
            ShapeElem::Dim(d) => Some(d.clone()),
        }
    }

    /// The number, if it is known.
    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            ShapeElem::Int(n) => Some(*n),
            ShapeElem::Dim(_) => None,
        }
    }
}

/// Numbers of a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Whether it is one number, of rank 0.
    pub(crate) scalar: bool,
    pub(crate) nums: Vec<ShapeElem>,
    /// I64, or I32 where a file has cast it.
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

    /// A tensor of a file, with its name.
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

    /// Numbers of a shape: a tensor where all are known.
    pub(crate) fn sizes(nums: Vec<ShapeElem>, scalar: bool) -> ImportedValue {
        ImportedValue::sizes_of(nums, scalar, DType::I64)
    }

    /// Numbers of a shape, of a dtype.
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

    /// The numbers, of integers of rank 0 or 1.
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

impl From<Value> for ImportedValue {
    fn from(value: Value) -> ImportedValue {
        ImportedValue::Graph(value)
    }
}
