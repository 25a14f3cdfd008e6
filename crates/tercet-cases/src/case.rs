//! A test case, and the graph that it builds.

use std::collections::BTreeMap;

use tercet_ir::fill::InputFill;
use tercet_ir::{Bindings, DType, Dim, Graph, OpError, Shape, Tensor, Type, Value};

use crate::reader::{CaseFileError, CaseText};

type CaseBuildFn = Box<dyn Fn(&mut CaseGraph) -> Result<(), OpError> + Send + Sync>;

/// Why a case could not be built: the case itself is wrong.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// The builder of a case in Rust failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The text of a case is wrong.
    #[error(transparent)]
    Text(#[from] CaseFileError),
    /// The case does not run with the dtype.
    #[error("the case does not run with {dtype}")]
    DType {
        /// The dtype that was asked for.
        dtype: DType,
    },
}

enum CaseSource {
    Rust(CaseBuildFn),
    /// Texts with disjoint lists of dtypes.
    Text(Vec<CaseText>),
}

/// One test case of an operator: a graph with data for each of several dtypes.
///
/// ```
/// use tercet_cases::OpCase;
/// use tercet_ir::{DType, fill::InputFill};
/// let case = OpCase::new("odd_rows_7x33", |c| {
///     let x = c.input("x", [7usize, 33], InputFill::Normal)?;
///     let y = c.graph.softmax(x, 1)?;
///     c.output(y)
/// });
/// let case = case.only(DType::FLOATS);
/// assert!(case.runs_with(DType::F16) && !case.runs_with(DType::I32));
/// assert_eq!(case.build(DType::F16)?.tensors["x"].shape(), [7, 33]);
/// # Ok::<(), tercet_cases::CaseError>(())
/// ```
pub struct OpCase {
    /// The case's name, unique within the operator: `odd_rows_7x33`.
    pub name: String,
    /// The dtypes that the case runs with; `None` for all dtypes of the operator.
    only: Option<Vec<DType>>,
    source: CaseSource,
}

impl OpCase {
    /// A case that Rust code builds, for every dtype of the operator.
    pub fn new(
        name: impl Into<String>,
        build: impl Fn(&mut CaseGraph) -> Result<(), OpError> + Send + Sync + 'static,
    ) -> OpCase {
        OpCase {
            name: name.into(),
            only: None,
            source: CaseSource::Rust(Box::new(build)),
        }
    }

    /// A case of a file.
    pub(crate) fn from_text(name: String, text: CaseText) -> OpCase {
        OpCase {
            name,
            only: text.dtypes.clone(),
            source: CaseSource::Text(vec![text]),
        }
    }

    /// Adds the graph for other dtypes. Returns false if a dtype has two graphs.
    pub(crate) fn add_text(&mut self, text: CaseText) -> bool {
        let (CaseSource::Text(texts), Some(only), Some(dtypes)) =
            (&mut self.source, &mut self.only, &text.dtypes)
        else {
            return false;
        };
        let is_new = dtypes.iter().all(|dtype| !only.contains(dtype));
        only.extend(dtypes);
        texts.push(text);
        is_new
    }

    /// Restricts the case to these dtypes.
    pub fn only(mut self, dtypes: &[DType]) -> OpCase {
        self.only = Some(dtypes.to_vec());
        self
    }

    /// True if the case runs with `dtype`.
    pub fn runs_with(&self, dtype: DType) -> bool {
        self.only.as_ref().is_none_or(|list| list.contains(&dtype))
    }

    /// The graph and data of the case for `dtype`.
    ///
    /// # Errors
    /// [`CaseError`] when the case itself is wrong.
    pub fn build(&self, dtype: DType) -> Result<CaseGraph, CaseError> {
        let mut c = CaseGraph::new(dtype);
        match &self.source {
            CaseSource::Rust(build) => build(&mut c)?,
            CaseSource::Text(texts) => {
                let text = texts.iter().find(|text| text.runs_with(dtype));
                let text = text.ok_or(CaseError::DType { dtype })?;
                text.build(&mut c)?;
            }
        }
        Ok(c)
    }
}

/// A case under construction, and the result: a graph with its data and expectations.
///
/// ```
/// use tercet_cases::{CaseGraph, OpCase};
/// use tercet_ir::{DType, fill::InputFill};
/// let case = OpCase::new("symbolic", |c| {
///     let rows = c.sym("rows", 5, 8);
///     let x = c.input("x", [rows], InputFill::Normal)?;
///     let y = c.graph.exp(x)?;
///     c.output(y)
/// });
/// let built: CaseGraph = case.build(DType::F32)?;
/// assert_eq!((built.tensors["x"].shape(), built.runs), (&[5][..], 1));
/// # Ok::<(), tercet_cases::CaseError>(())
/// ```
pub struct CaseGraph {
    /// The dtype that the case is built for.
    pub dtype: DType,
    /// The graph under test.
    pub graph: Graph,
    /// Data of inputs, parameters and (initial) states by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Sizes of the symbols in this case.
    pub sizes: Bindings,
    /// Upper bounds of the symbols.
    pub bounds: Bindings,
    /// Expected values of outputs, by output index. The reference interpreter must produce these
    /// values.
    pub expected: Vec<(usize, Vec<f64>)>,
    /// A part of the message of the run error that every executor must return.
    pub expected_fault: Option<String>,
    /// The number of runs of the graph; outputs are compared after each.
    pub runs: usize,
}

impl CaseGraph {
    fn new(dtype: DType) -> CaseGraph {
        CaseGraph {
            dtype,
            graph: Graph::new(),
            tensors: BTreeMap::new(),
            sizes: Bindings::new(),
            bounds: Bindings::new(),
            expected: Vec::new(),
            expected_fault: None,
            runs: 1,
        }
    }

    /// Adds a symbol with its size in this case and its upper bound.
    pub fn sym(&mut self, name: &str, size: usize, bound: usize) -> Dim {
        let dim = Dim::sym(name);
        dim.for_each_symbol(|s| {
            self.sizes.set(s, size);
            self.bounds.set(s, bound);
        });
        dim
    }

    /// Adds an input of the case's dtype.
    ///
    /// # Errors
    /// [`OpError`] when the name is already in use.
    pub fn input(
        &mut self,
        name: &str,
        shape: impl Into<Shape>,
        fill: InputFill,
    ) -> Result<Value, OpError> {
        self.input_of(name, Type::new(self.dtype, shape), fill)
    }

    /// Adds an input of any type.
    ///
    /// # Errors
    /// [`OpError`] when the name is already in use.
    pub fn input_of(&mut self, name: &str, ty: Type, fill: InputFill) -> Result<Value, OpError> {
        self.tensors
            .insert(name.to_string(), self.data(name, &ty, &fill));
        self.graph.input(name, ty)
    }

    /// Adds a parameter of any type, for operands that models store as weights.
    ///
    /// # Errors
    /// [`OpError`] when the name is already in use.
    pub fn param_of(&mut self, name: &str, ty: Type, fill: InputFill) -> Result<Value, OpError> {
        self.tensors
            .insert(name.to_string(), self.data(name, &ty, &fill));
        self.graph.param(name, ty)
    }

    /// Adds a value as output `out0`, `out1`, ...
    ///
    /// # Errors
    /// [`OpError`] never in practice: the generated names are unique.
    pub fn output(&mut self, value: Value) -> Result<(), OpError> {
        let name = format!("out{}", self.graph.outputs().len());
        self.graph.output(&name, value)
    }

    fn data(&self, name: &str, ty: &Type, fill: &InputFill) -> Tensor {
        let ty = ty
            .eval(&self.sizes)
            .expect("invariant: a case sizes its symbols first");
        fill.tensor(name, ty)
    }
}
