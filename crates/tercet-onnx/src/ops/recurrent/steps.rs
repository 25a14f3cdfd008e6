//! One step of a recurrent layer, decomposed: any activation functions, clipped gates, peepholes.

use tercet_ir::scalar::{CompareFn, UnaryFn};
use tercet_ir::{DType, Graph, OpError, Tensor, Value};

use crate::call::ImportNode;
use crate::error::NodeErrorKind;

/// An activation function with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GateActivation {
    name: String,
    alpha: f64,
    beta: f64,
}

/// The activation functions of ONNX with the defaults of their parameters, `None` for those that
/// have none.
const ACTIVATIONS: &[(&str, Option<f64>, Option<f64>)] = &[
    ("relu", None, None),
    ("tanh", None, None),
    ("sigmoid", None, None),
    ("softsign", None, None),
    ("softplus", None, None),
    ("leakyrelu", Some(0.01), None),
    ("thresholdedrelu", Some(1.0), None),
    ("elu", Some(1.0), None),
    ("affine", Some(1.0), Some(0.0)),
    ("scaledtanh", Some(1.0), Some(1.0)),
    ("hardsigmoid", Some(0.2), Some(0.5)),
];

impl GateActivation {
    fn new(name: &str) -> GateActivation {
        GateActivation {
            name: name.to_ascii_lowercase(),
            alpha: 0.0,
            beta: 0.0,
        }
    }

    /// Reads the activation functions of all directions. Parameters are listed only for functions
    /// that have them.
    pub(super) fn read(
        k: &ImportNode<'_, '_>,
        default: &[&str],
        dirs: usize,
    ) -> Result<Vec<Vec<GateActivation>>, NodeErrorKind> {
        let count = default.len();
        let names: Vec<String> = match k.attrs.strings_opt("activations")? {
            Some(list) if !list.is_empty() => list,
            _ => (0..dirs * count)
                .map(|i| default[i % count].to_string())
                .collect(),
        };
        if names.len() != dirs * count {
            let reason = format!("{} functions, expected {}", names.len(), dirs * count);
            return Err(NodeErrorKind::attribute("activations", reason));
        }
        let list = |name: &str| -> Result<Vec<f64>, NodeErrorKind> {
            let list = k.attrs.floats_opt(name)?.unwrap_or_default();
            Ok(list.iter().map(|x| f64::from(*x)).collect())
        };
        let (mut alphas, mut betas) = (
            list("activation_alpha")?.into_iter(),
            list("activation_beta")?.into_iter(),
        );
        let mut all = Vec::with_capacity(names.len());
        for name in &names {
            let mut own = GateActivation::new(name);
            let known = ACTIVATIONS.iter().find(|(known, ..)| *known == own.name);
            let Some((_, alpha, beta)) = known else {
                let known: Vec<&str> = ACTIVATIONS.iter().map(|(name, ..)| *name).collect();
                let reason = format!("`{name}` is not supported, expected one of {known:?}");
                return Err(NodeErrorKind::attribute("activations", reason));
            };
            own.alpha = alpha.map_or(0.0, |default| alphas.next().unwrap_or(default));
            own.beta = beta.map_or(0.0, |default| betas.next().unwrap_or(default));
            all.push(own);
        }
        Ok(all.chunks(count).map(<[GateActivation]>::to_vec).collect())
    }

    /// Whether the activation functions are those with these names.
    pub(super) fn are(list: &[GateActivation], names: &[&str]) -> bool {
        let same = |(own, name): (&GateActivation, &&str)| own.name.eq_ignore_ascii_case(name);
        list.len() == names.len() && list.iter().zip(names).all(same)
    }

    fn apply(&self, g: &mut Graph, x: Value) -> Result<Value, OpError> {
        let dtype = g.ty(x).dtype;
        let scalar = |g: &mut Graph, v: f64| g.scalar(dtype, v);
        match self.name.as_str() {
            "relu" => g.unary(UnaryFn::Relu, x),
            "tanh" => g.tanh(x),
            "sigmoid" => g.sigmoid(x),
            "softplus" => g.unary(UnaryFn::Softplus, x),
            "softsign" => {
                let (size, one) = (g.abs(x)?, scalar(g, 1.0)?);
                let below = g.plus(size, one)?;
                g.div(x, below)
            }
            "leakyrelu" => {
                let (alpha, zero) = (scalar(g, self.alpha)?, scalar(g, 0.0)?);
                let small = g.mul(x, alpha)?;
                let negative = g.compare(CompareFn::Lt, x, zero)?;
                g.where_(negative, small, x)
            }
            "thresholdedrelu" => {
                let (alpha, zero) = (scalar(g, self.alpha)?, scalar(g, 0.0)?);
                let above = g.compare(CompareFn::Gt, x, alpha)?;
                g.where_(above, x, zero)
            }
            "elu" => {
                let (alpha, zero) = (scalar(g, self.alpha)?, scalar(g, 0.0)?);
                let one = scalar(g, 1.0)?;
                let low = g.min(x, zero)?;
                let grown = g.unary(UnaryFn::Exp, low)?;
                let less = g.sub(grown, one)?;
                let small = g.mul(less, alpha)?;
                let negative = g.compare(CompareFn::Lt, x, zero)?;
                g.where_(negative, small, x)
            }
            "scaledtanh" => {
                let (alpha, beta) = (scalar(g, self.alpha)?, scalar(g, self.beta)?);
                let inner = g.mul(x, beta)?;
                let y = g.tanh(inner)?;
                g.mul(y, alpha)
            }
            // Affine and hard sigmoid.
            name => {
                let (alpha, beta) = (scalar(g, self.alpha)?, scalar(g, self.beta)?);
                let scaled = g.mul(x, alpha)?;
                let y = g.plus(scaled, beta)?;
                match name {
                    "hardsigmoid" => g.clamp(y, 0.0, 1.0),
                    _ => Ok(y),
                }
            }
        }
    }
}

/// How a step computes.
pub(super) struct RecurrentStep {
    /// The size of the state.
    pub(super) hidden: usize,
    pub(super) activations: Vec<GateActivation>,
    /// The bound of the gates before their activation.
    pub(super) clip: Option<f64>,
    /// Whether the forget gate is one minus the input gate.
    pub(super) coupled: bool,
    /// Whether the state is quantized to 8 bits before each matmul.
    pub(super) quantized: bool,
    /// The recurrent weights of a quantized step, if they are known.
    pub(super) integers: Option<QuantizedRecurrence>,
}

/// A constant matrix of small integers, with a scale per column or a single one.
#[derive(Clone, Debug)]
pub(super) struct QuantizedRecurrence {
    /// I32 `[rows, columns]`.
    pub(super) weights: Tensor,
    /// F32 `[columns]` or `[1]`.
    pub(super) scale: Tensor,
}

impl QuantizedRecurrence {
    /// The product of dynamically quantized values with the matrix: an exact sum of integers, scaled once. `weights`
    /// is the matrix in the graph.
    pub(super) fn product(
        &self,
        g: &mut Graph,
        x: Value,
        weights: Value,
    ) -> Result<Value, OpError> {
        let (code, scale) = dynamic_codes(g, x)?;
        let code = g.cast(code, DType::I32)?;
        let sum = g.matmul(code, weights)?;
        let sum = g.cast(sum, DType::F32)?;
        let own = g.constant(self.scale.clone())?;
        let scale = g.mul(own, scale)?;
        g.mul(sum, scale)
    }
}

impl RecurrentStep {
    /// The product of a state with recurrent weights.
    fn product(&self, g: &mut Graph, h: Value, r: Value) -> Result<Value, OpError> {
        if let Some(matrix) = &self.integers {
            let weights = g.constant(matrix.weights.clone())?;
            return matrix.product(g, h, weights);
        }
        let h = match self.quantized {
            true => through_codes(g, h)?,
            false => h,
        };
        g.matmul(h, r)
    }

    fn gate(&self, g: &mut Graph, x: Value, function: usize) -> Result<Value, OpError> {
        let x = match self.clip {
            Some(bound) => g.clamp(x, -bound, bound)?,
            None => x,
        };
        self.activations[function].apply(g, x)
    }

    /// An LSTM step. The operands are states h and c, gates i, f, g, o, recurrent weights, bias and
    /// optionally peepholes of i, o, f.
    pub(super) fn lstm(&self, g: &mut Graph, given: &[Value]) -> Result<Vec<Value>, OpError> {
        let n = self.hidden;
        let (h, c, x, r, bias) = (given[0], given[1], given[2], given[3], given[4]);
        let product = self.product(g, h, r)?;
        let sum = g.plus(product, x)?;
        let sum = g.plus(sum, bias)?;
        let peep = |g: &mut Graph, place: usize, gate: Value, c: Value| match given.get(5) {
            Some(p) => {
                let p = g.narrow(*p, 0, place * n, n)?;
                let part = g.mul(p, c)?;
                g.plus(gate, part)
            }
            None => Ok(gate),
        };
        let mut gates = [sum; 4];
        for (i, gate) in gates.iter_mut().enumerate() {
            *gate = g.narrow(sum, 1, i * n, n)?;
        }
        let [i, f, new, o] = gates;
        let i = peep(g, 0, i, c)?;
        let i = self.gate(g, i, 0)?;
        let f = match self.coupled {
            true => {
                let one = g.scalar(g.ty(i).dtype, 1.0)?;
                g.sub(one, i)?
            }
            false => {
                let f = peep(g, 2, f, c)?;
                self.gate(g, f, 0)?
            }
        };
        let new = self.gate(g, new, 1)?;
        let (kept, added) = (g.mul(f, c)?, g.mul(i, new)?);
        let c = g.plus(kept, added)?;
        let o = peep(g, 1, o, c)?;
        let o = self.gate(g, o, 0)?;
        let bounded = self.activations[2].apply(g, c)?;
        Ok(vec![g.mul(o, bounded)?, c])
    }

    /// A GRU step with the reset gate before the matmul. The operands are the state, gates r, z, n,
    /// recurrent weights and bias.
    pub(super) fn gru_before(&self, g: &mut Graph, given: &[Value]) -> Result<Vec<Value>, OpError> {
        let n = self.hidden;
        let (h, x, r, bias) = (given[0], given[1], given[2], given[3]);
        let x = g.plus(x, bias)?;
        let (r_gates, r_new) = (g.narrow(r, 1, 0, 2 * n)?, g.narrow(r, 1, 2 * n, n)?);
        let (x_gates, x_new) = (g.narrow(x, 1, 0, 2 * n)?, g.narrow(x, 1, 2 * n, n)?);
        let product = g.matmul(h, r_gates)?;
        let sum = g.plus(product, x_gates)?;
        let gates = self.gate(g, sum, 0)?;
        let (reset, z) = (g.narrow(gates, 1, 0, n)?, g.narrow(gates, 1, n, n)?);
        let part = g.mul(reset, h)?;
        let product = g.matmul(part, r_new)?;
        let sum = g.plus(product, x_new)?;
        self.moved(g, h, z, sum)
    }

    /// A GRU step with the reset gate after the matmul; operands as in
    /// [`RecurrentStep::gru_before`].
    pub(super) fn gru_after(&self, g: &mut Graph, given: &[Value]) -> Result<Vec<Value>, OpError> {
        let n = self.hidden;
        let (h, x, r, bias) = (given[0], given[1], given[2], given[3]);
        let product = g.matmul(h, r)?;
        let of_state = g.plus(product, bias)?;
        let parts = |g: &mut Graph, v: Value| -> Result<[Value; 2], OpError> {
            Ok([g.narrow(v, 1, 0, 2 * n)?, g.narrow(v, 1, 2 * n, n)?])
        };
        let ([h_gates, h_new], [x_gates, x_new]) = (parts(g, of_state)?, parts(g, x)?);
        let sum = g.plus(h_gates, x_gates)?;
        let gates = self.gate(g, sum, 0)?;
        let (reset, z) = (g.narrow(gates, 1, 0, n)?, g.narrow(gates, 1, n, n)?);
        let part = g.mul(reset, h_new)?;
        let sum = g.plus(part, x_new)?;
        self.moved(g, h, z, sum)
    }

    /// The next state of a GRU: `(1 - z) n + z h = n + z (h - n)`.
    fn moved(&self, g: &mut Graph, h: Value, z: Value, sum: Value) -> Result<Vec<Value>, OpError> {
        let new = self.gate(g, sum, 1)?;
        let difference = g.sub(h, new)?;
        let moved = g.mul(z, difference)?;
        Ok(vec![g.plus(new, moved)?])
    }

    /// A step of a layer with one gate. The operands are the state, the gate, recurrent weights and
    /// bias.
    pub(super) fn rnn(&self, g: &mut Graph, given: &[Value]) -> Result<Vec<Value>, OpError> {
        let product = g.matmul(given[0], given[2])?;
        let sum = g.plus(product, given[1])?;
        let sum = g.plus(sum, given[3])?;
        Ok(vec![self.gate(g, sum, 0)?])
    }
}

/// The values after dynamic quantization to U8.
pub(super) fn through_codes(g: &mut Graph, x: Value) -> Result<Value, OpError> {
    let (code, scale) = dynamic_codes(g, x)?;
    g.mul(code, scale)
}

/// Dynamic quantization to U8: whole numbers minus their zero point, and the scale. Scale and zero point follow from
/// the range of all values, which includes 0.
fn dynamic_codes(g: &mut Graph, x: Value) -> Result<(Value, Value), OpError> {
    use tercet_ir::ops::ReduceFn;
    let ty = g.ty(x).clone();
    let list: Vec<usize> = (0..ty.rank()).collect();
    let (zero, one, range) = (
        g.scalar(ty.dtype, 0.0)?,
        g.scalar(ty.dtype, 1.0)?,
        g.scalar(ty.dtype, 255.0)?,
    );
    let (greatest, least) = (
        g.reduce(ReduceFn::Max, x, &list, false)?,
        g.reduce(ReduceFn::Min, x, &list, false)?,
    );
    let (greatest, least) = (g.max(greatest, zero)?, g.min(least, zero)?);
    let span = g.sub(greatest, least)?;
    let flat = g.compare(CompareFn::Eq, span, zero)?;
    let scale = g.div(span, range)?;
    let scale = g.where_(flat, one, scale)?;
    let below = g.neg(least)?;
    let point = g.div(below, scale)?;
    let point = g.round(point)?;
    let scaled = g.div(x, scale)?;
    let code = g.round(scaled)?;
    let code = g.plus(code, point)?;
    let code = g.clamp(code, 0.0, 255.0)?;
    Ok((g.sub(code, point)?, scale))
}
