//! State-space scans: `SelectiveScan` with a decay for each state, `Mamba2` with a decay for each
//! head.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Dim, Shape, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::{Gradient, rules};
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::util::{expect_dtype, expect_equal, expect_rank, expect_same_dtype, with_optional};

attrs! {
    /// The scan of Mamba (Gu and Dao, 2023). For each channel, from states that are an operand or
    /// zeros: `h = exp(delta a) h + delta b x`, `y = c h`.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [1, 9, 64]))?;
    /// let delta = g.input("delta", Type::new(DType::F32, [1, 9, 64]))?;
    /// let a = g.param("a", Type::new(DType::F32, [64, 16]))?;
    /// let b = g.input("b", Type::new(DType::F32, [1, 9, 16]))?;
    /// let c = g.input("c", Type::new(DType::F32, [1, 9, 16]))?;
    /// let y = g.selective_scan_from([x, delta, a, b, c], None, true)?;
    /// assert_eq!(g.ty(y), g.ty(x));
    /// assert_eq!(g.ty(y.port(1)).to_string(), "f32[1, 64, 16]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct SelectiveScan {
        /// Number of states per channel.
        pub n: usize,
        /// Returns the final states as a second result if true.
        pub carry: bool,
    }
}

attrs! {
    /// The scan of Mamba-2 (Dao and Gu, 2024). For each head, from a state `[P, N]` that is an
    /// operand or zeros: `S = exp(dt a) S + (dt x) outer b`, `y = S c`. Groups of consecutive heads
    /// share `b` and `c`.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Type};
    /// let mut g = Graph::new();
    /// let x = g.input("x", Type::new(DType::F32, [1, 9, 4, 8]))?;
    /// let dt = g.input("dt", Type::new(DType::F32, [1, 9, 4]))?;
    /// let a = g.param("a", Type::new(DType::F32, [4]))?;
    /// let b = g.input("b", Type::new(DType::F32, [1, 9, 1, 16]))?;
    /// let c = g.input("c", Type::new(DType::F32, [1, 9, 1, 16]))?;
    /// let y = g.mamba2_from([x, dt, a, b, c], None, true)?;
    /// assert_eq!(g.ty(y), g.ty(x));
    /// assert_eq!(g.ty(y.port(1)).to_string(), "f32[1, 4, 8, 16]");
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Mamba2 {
        /// Returns the final states as a second result if true.
        pub carry: bool,
    }
}

/// The sizes of a scan over channels. For `SelectiveScan`, `P` is 1 and there is one group.
///
/// ```
/// use tercet_ir::{DType, Dim, Type, ops::ScanSizes};
/// let of = |sizes: &[usize]| Type::new(DType::F32, sizes);
/// let (x, delta, a) = (of(&[1, 9, 64]), of(&[1, 9, 64]), of(&[64, 16]));
/// let (b, c) = (of(&[1, 9, 16]), of(&[1, 9, 16]));
/// let sizes = ScanSizes::from_operands(&[&x, &delta, &a, &b, &c]).expect("the sizes are known");
/// assert_eq!((sizes.channels(), sizes.states), (64, 16));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanSizes {
    /// Number of heads, or of channels if each channel has a separate step size.
    pub heads: usize,
    /// Number of channels per head.
    pub per_head: usize,
    /// Number of groups of heads that share `b` and `c`.
    pub groups: usize,
    /// Number of states per channel.
    pub states: usize,
}

impl ScanSizes {
    /// The sizes of a `SelectiveScan` or `Mamba2` node with these operands.
    pub fn from_operands(operands: &[&Type]) -> Option<ScanSizes> {
        let [x, _, a, b, _, ..] = operands else {
            return None;
        };
        let size = |dim: &Dim| dim.known();
        Some(match &x.shape[..] {
            [_, _, heads] => ScanSizes {
                heads: size(heads)?,
                per_head: 1,
                groups: 1,
                states: size(a.shape.get(1)?)?,
            },
            [_, _, heads, per_head] => ScanSizes {
                heads: size(heads)?,
                per_head: size(per_head)?,
                groups: size(&b.shape[2])?,
                states: size(&b.shape[3])?,
            },
            _ => return None,
        })
    }

    /// Total number of channels of all heads.
    pub fn channels(self) -> usize {
        self.heads * self.per_head
    }
}

fn expect_known(operands: &[&Type]) -> Result<ScanSizes, TypeError> {
    ScanSizes::from_operands(operands).ok_or_else(|| {
        let reason = "all sizes except batch and sequence must be known";
        TypeError::Other(reason.to_string())
    })
}

/// The dtype of the states of a scan with operands of dtype `x`: 16 bits are too few to accumulate
/// many small steps.
fn dtype_of_states(x: DType) -> DType {
    match x {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// Checks the initial states of a scan. Returns the result types: `y`, and the final states if they
/// are returned.
fn with_states(
    x: &Type,
    state: Option<&Type>,
    shape: &[&Dim],
    carry: bool,
) -> Result<Vec<Type>, TypeError> {
    let dtype = dtype_of_states(x.dtype);
    if let Some(state) = state {
        let accepted: &[DType] = match dtype {
            DType::F64 => &[DType::F64],
            _ => &[DType::F32],
        };
        expect_dtype("state", state, accepted)?;
        expect_shape("state", state, shape)?;
    }
    let shape: Shape = shape.iter().copied().cloned().collect();
    let last = carry.then(|| Type::new(dtype, shape));
    Ok([x.clone()].into_iter().chain(last).collect())
}

fn expect_floats(operands: [&Type; 5], names: [&'static str; 5]) -> Result<(), TypeError> {
    expect_dtype(names[0], operands[0], DType::FLOATS)?;
    let rest = operands.iter().zip(names).skip(1);
    rest.into_iter()
        .try_for_each(|(ty, name)| expect_same_dtype(name, ty, operands[0]))
}

fn expect_shape(name: &'static str, ty: &Type, shape: &[&Dim]) -> Result<(), TypeError> {
    expect_rank(name, ty, shape.len())?;
    let axes = ty.shape.iter().zip(shape).enumerate();
    axes.into_iter().try_for_each(|(axis, (own, want))| {
        expect_equal(&format!("axis {axis} of {name}"), own, want)
    })
}

/// Runs the scan. `decay` computes the decay of a state from the head, the state and the step size.
fn scan(
    operands: &[&Tensor],
    sizes: ScanSizes,
    results: &[TensorType],
    decay: impl Fn(&[f64], usize, usize) -> f64,
) -> Result<Vec<Tensor>, EvalError> {
    let [x, dt, a, b, c] = [0, 1, 2, 3, 4].map(|i| operands[i].to_f64s());
    let (batch, steps) = (results[0].shape[0], results[0].shape[1]);
    let ScanSizes {
        heads,
        per_head,
        groups,
        states,
    } = sizes;
    let channels = sizes.channels();
    let mut y = vec![0.0; results[0].numel()];
    let mut all = match operands.get(5) {
        Some(state) => state.to_f64s(),
        None => vec![0.0; batch * channels * states],
    };
    for row in 0..batch {
        let h = &mut all[row * channels * states..][..channels * states];
        for at in row * steps..(row + 1) * steps {
            for channel in 0..channels {
                let head = channel / per_head;
                let group = head * groups / heads;
                let own = &mut h[channel * states..][..states];
                let (dt, x) = (dt[at * heads + head], x[at * channels + channel]);
                let (b, c) = (
                    &b[(at * groups + group) * states..][..states],
                    &c[(at * groups + group) * states..][..states],
                );
                for (n, h) in own.iter_mut().enumerate() {
                    *h = (dt * decay(&a, head, n)).exp() * *h + dt * b[n] * x;
                }
                y[at * channels + channel] = own.iter().zip(c).map(|(h, c)| h * c).sum();
            }
        }
    }
    let mut out = vec![Tensor::from_f64s(results[0].clone(), &y)?];
    if let Some(ty) = results.get(1) {
        out.push(Tensor::from_f64s(ty.clone(), &all)?);
    }
    Ok(out)
}

impl OpSpec for SelectiveScan {
    const DOC: OpDoc = OpDoc {
        name: "selective_scan",
        text: "The scan of Mamba over `x [B,S,H]`, `delta [B,S,H]`, `a [H,N]`, `b [B,S,N]` and `c \
               [B,S,N]`. For each channel: `h = exp(delta a) h + delta b x`, `y = c h`, from \
               `state [B,H,N]` or zeros. Also returns the final states if `carry`. States are F32 \
               (F64 for F64).",
        operands: &["x", "delta", "a", "b", "c", "state?"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::recurrent::selective_scan);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, delta, a, b, c], [state]) = with_optional::<5, 1>(operands)?;
        expect_floats([x, delta, a, b, c], ["x", "delta", "a", "b", "c"])?;
        expect_rank("x", x, 3)?;
        let n = Dim::Known(self.n);
        let [batch, steps, heads] = [0, 1, 2].map(|i| &x.shape[i]);
        expect_shape("delta", delta, &[batch, steps, heads])?;
        expect_shape("a", a, &[heads, &n])?;
        expect_shape("b", b, &[batch, steps, &n])?;
        expect_shape("c", c, &[batch, steps, &n])?;
        expect_known(operands)?;
        with_states(x, state, &[batch, heads, &n], self.carry)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let sizes = ScanSizes {
            heads: operands[0].shape()[2],
            per_head: 1,
            groups: 1,
            states: self.n,
        };
        let n = self.n;
        scan(operands, sizes, results, |a, head, state| {
            a[head * n + state]
        })
    }
}

impl OpSpec for Mamba2 {
    const DOC: OpDoc = OpDoc {
        name: "mamba2",
        text: "The scan of Mamba-2 over `x [B,S,H,P]`, `dt [B,S,H]`, `a [H]`, `b [B,S,G,N]` and `c \
               [B,S,G,N]`. For each head: `S = exp(dt a) S + (dt x) outer b`, `y = S c`, from \
               `state [B,H,P,N]` or zeros. Also returns the final states if `carry`. States are \
               F32 (F64 for F64).",
        operands: &["x", "dt", "a", "b", "c", "state?"],
        dtypes: DType::FLOATS,
        accuracy: Accuracy::Contraction,
        tier: Tier::Core,
    };

    const GRADIENT: Gradient<Self> = Gradient::Rule(rules::recurrent::mamba2);

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let ([x, dt, a, b, c], [state]) = with_optional::<5, 1>(operands)?;
        expect_floats([x, dt, a, b, c], ["x", "dt", "a", "b", "c"])?;
        expect_rank("x", x, 4)?;
        expect_rank("b", b, 4)?;
        let [batch, steps, heads] = [0, 1, 2].map(|i| &x.shape[i]);
        let [groups, states] = [2, 3].map(|i| &b.shape[i]);
        expect_shape("dt", dt, &[batch, steps, heads])?;
        expect_shape("a", a, &[heads])?;
        expect_shape("b", b, &[batch, steps, groups, states])?;
        expect_shape("c", c, &[batch, steps, groups, states])?;
        let sizes = expect_known(operands)?;
        if sizes.groups == 0 || !sizes.heads.is_multiple_of(sizes.groups) {
            let reason = format!("{heads} heads are not a multiple of {groups} groups");
            return Err(TypeError::Other(reason));
        }
        with_states(x, state, &[batch, heads, &x.shape[3], states], self.carry)
    }

    fn eval(
        &self,
        _: &EvalCtx,
        operands: &[&Tensor],
        results: &[TensorType],
    ) -> Result<Vec<Tensor>, EvalError> {
        let (x, b) = (operands[0].shape(), operands[3].shape());
        let sizes = ScanSizes {
            heads: x[2],
            per_head: x[3],
            groups: b[2],
            states: b[3],
        };
        scan(operands, sizes, results, |a, head, _| a[head])
    }
}

impl Graph {
    /// The selective scan of `x [B,S,H]` with step sizes `delta [B,S,H]`, `a [H,N]`, `b [B,S,N]`
    /// and `c [B,S,N]`, all of one float dtype, from zero states. The result has the type of `x`.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match, or `H` or `N` is not known.
    pub fn selective_scan(
        &mut self,
        x: Value,
        delta: Value,
        a: Value,
        b: Value,
        c: Value,
    ) -> Result<Value, OpError> {
        self.selective_scan_from([x, delta, a, b, c], None, false)
    }

    /// As [`Graph::selective_scan`] from `state [B,H,N]` or zeros, with the final states as port 1
    /// if `carry`. Initial and final states are F32, or F64 if `x` is F64.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match, or `H` or `N` is not known.
    pub fn selective_scan_from(
        &mut self,
        [x, delta, a, b, c]: [Value; 5],
        state: Option<Value>,
        carry: bool,
    ) -> Result<Value, OpError> {
        let n = self.get_type(a).and_then(|ty| ty.shape.get(1)?.known());
        let n = n.unwrap_or(0);
        let mut inputs = vec![x, delta, a, b, c];
        inputs.extend(state);
        self.add(SelectiveScan { n, carry }, &inputs)
    }

    /// The scan of Mamba-2 of `x [B,S,H,P]` with step sizes `dt [B,S,H]`, `a [H]`, `b [B,S,G,N]`
    /// and `c [B,S,G,N]`, all of one float dtype, from zero states. The result has the type of `x`.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match, or a size other than `B` and `S` is not
    /// known. [`OpError`] also when the number of groups does not divide the number of heads.
    pub fn mamba2(
        &mut self,
        x: Value,
        dt: Value,
        a: Value,
        b: Value,
        c: Value,
    ) -> Result<Value, OpError> {
        self.mamba2_from([x, dt, a, b, c], None, false)
    }

    /// As [`Graph::mamba2`] from `state [B,H,P,N]` or zeros, with the final states as port 1 if
    /// `carry`. Initial and final states are F32, or F64 if `x` is F64.
    ///
    /// # Errors
    /// [`OpError`] when dtypes or sizes do not match, or a size other than `B` and `S` is not
    /// known. [`OpError`] also when the number of groups does not divide the number of heads.
    pub fn mamba2_from(
        &mut self,
        [x, dt, a, b, c]: [Value; 5],
        state: Option<Value>,
        carry: bool,
    ) -> Result<Value, OpError> {
        let mut inputs = vec![x, dt, a, b, c];
        inputs.extend(state);
        self.add(Mamba2 { carry }, &inputs)
    }
}
