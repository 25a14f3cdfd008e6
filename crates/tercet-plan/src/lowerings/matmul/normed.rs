//! One row times weights that lie along n, with the norm that the row comes from: every workgroup computes the norm
//! again, which takes less time than a step of its own, and the first one stores the sum that it is of.

use tercet_ir::ops::Op;
use tercet_ir::{CompileError, Node};

use super::activation_of;
use super::gemv::{has_strips, strips};
use super::kernels::strips::{STRIPS_NORMED_ACTIVATED, STRIPS_NORMED_PLAIN};
use super::portable::{Pair, given};
use super::product::Product;
use crate::emit::{Emit, View};
use crate::families::code;
use crate::num::Num;

static NORMED: Pair = Pair {
    plain: &STRIPS_NORMED_PLAIN,
    activated: &STRIPS_NORMED_ACTIVATED,
};

/// The most elements of a row that workgroups hold, in F32 beside their sums.
const MOST: usize = 2048;
/// The buffers of the kernel.
const BUFFERS: u32 = 8;
/// Invocations that tell each other sums by shuffles, at least: with fewer of them the norm takes longer than a step.
const LEAST_CLUSTER: u32 = 8;

/// A norm with the product of one row that reads it.
pub(crate) struct Normed {
    product: Product,
    residual: Option<View>,
    gamma: View,
    beta: Option<View>,
    eps: f32,
    len: u32,
}

impl Normed {
    /// None where the kernel does not take them.
    ///
    /// # Errors
    /// Symbols without bounds.
    pub(crate) fn of(
        e: &mut Emit<'_>,
        norm: &Node,
        product: &Node,
    ) -> Result<Option<Normed>, CompileError> {
        let (eps, residual, weights) = match &norm.op {
            Op::LayerNorm(op) => (op.eps, None, 1),
            Op::ResidualLayerNorm(op) => (op.eps, Some(1), 2),
            _ => return Ok(None),
        };
        let x = e.view(norm.inputs[0]);
        let residual = residual.map(|at: usize| e.view(norm.inputs[at]));
        let gamma = e.view(norm.inputs[weights]);
        let beta = norm.inputs.get(weights + 1).map(|v| e.view(*v));
        let b = e.view(product.inputs[1]);
        let bias = product.inputs.get(2).map(|v| e.view(*v));
        let len = x.layout.shape().last().and_then(|dim| dim.known());
        let Some(len) = len.filter(|len| (2..=MOST).contains(len) && len.is_multiple_of(2)) else {
            return Ok(None);
        };
        let others = || residual.iter().chain(&beta).chain([&gamma]);
        let is_row = |v: &View| v.layout.is_contiguous() && v.dtype == x.dtype;
        let are_rows = is_row(&x) && others().all(is_row);
        let mut starts = Vec::new();
        for view in others() {
            starts.push(e.offset(view));
        }
        let begin = starts.iter().all(|start| *start == Num::ZERO);
        let apart = others().all(|v| v.slot != b.slot);
        let caps = e.caps;
        let able = caps.max_storage_buffers >= BUFFERS && caps.cluster() >= LEAST_CLUSTER;
        if !are_rows || !begin || !apart || !able {
            return Ok(None);
        }
        let product = Product::of(e, &x, &b, bias, activation_of(&product.op))?;
        let is_row = product.m.is_one()
            && product.batch.is_empty()
            && product.a.is_multiple(2, product.a.own);
        if !is_row || !has_strips(e, &product)? {
            return Ok(None);
        }
        Ok(Some(Normed {
            product,
            residual,
            gamma,
            beta,
            eps: eps.0 as f32,
            len: len as u32,
        }))
    }

    /// Emits both, with the sum that the norm is of where it has one.
    ///
    /// # Errors
    /// Those of [`Emit::temp`].
    pub(crate) fn emit(
        &self,
        e: &mut Emit<'_>,
        y: &View,
        sum: Option<&View>,
    ) -> Result<(), CompileError> {
        let p = &self.product;
        let mut given = given(e, p, y)?;
        given.params.eps = self.eps;
        let [lanes, depth, columns] = strips(e, p)?;
        let mut consts = given.consts.to_vec();
        consts.extend([code(p.b.dtype), lanes, depth]);
        let has = [self.beta.is_some(), self.residual.is_some()].map(u32::from);
        // THREADS and ACROSS of rows, and RMS.
        consts.extend([256, 0, 0, has[0], has[1], self.len]);
        let mut args = given.args.to_vec();
        args.push(self.gamma.slot);
        for view in [&self.beta, &self.residual] {
            args.push(match view {
                Some(view) => view.slot,
                None => e.absent()?,
            });
        }
        args.push(match sum {
            Some(sum) => sum.slot,
            // Nothing is written there.
            None => e.temp(tercet_ir::DType::U32, &[])?.slot,
        });
        let all = e.num(&p.n);
        let groups = e.tape().ceil_div(all, columns);
        let [gx, gy, _] = e.flat_grid(groups);
        let kernel = NORMED.pick(p.activation);
        e.dispatch(kernel, &consts, &args, &given.params, [gx, gy, Num::ONE]);
        Ok(())
    }
}
