//! GEMV with a fused norm prologue, for weights that are contiguous along n. Every workgroup
//! computes the norm of the whole row again, which takes less time than a separate step. Only the
//! first workgroup stores the residual sum, which is the input of the norm.

use tercet_ir::ops::Op;
use tercet_ir::{CompileError, Node};

use super::activation_of;
use super::gemv::{has_strips, strips};
use super::kernels::strips::{STRIPS_NORMED_ACTIVATED, STRIPS_NORMED_PLAIN};
use super::portable::{EpilogueKernels, matmul_args};
use super::product::MatMulProblem;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::code;
use tercet_program::SymInt;

static NORMED: EpilogueKernels = EpilogueKernels {
    plain: &STRIPS_NORMED_PLAIN,
    activated: &STRIPS_NORMED_ACTIVATED,
};

/// Maximum length of the activation row; each workgroup stores the row in F32 beside its partial
/// sums.
const MAX_ROW_ELEMENTS: usize = 2048;
/// Number of storage buffers that the kernel binds.
const BUFFERS: u32 = 8;
/// Minimum cluster size (threads that exchange sums by shuffles). With smaller clusters, the fused
/// norm takes longer than a separate step.
const MIN_CLUSTER_SIZE: u32 = 8;

/// A norm that is fused into the GEMV that reads its result.
pub(crate) struct NormGemv {
    product: MatMulProblem,
    residual: Option<SlotView>,
    gamma: SlotView,
    beta: Option<SlotView>,
    eps: f32,
    len: u32,
}

impl NormGemv {
    /// Fuses a norm with the GEMV that reads it; `None` if the kernel does not support the
    /// combination.
    ///
    /// # Errors
    /// [`CompileError`] for symbols without bounds.
    pub(crate) fn new(
        e: &mut LoweringCtx<'_>,
        norm: &Node,
        product: &Node,
    ) -> Result<Option<NormGemv>, CompileError> {
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
        let Some(len) =
            len.filter(|len| (2..=MAX_ROW_ELEMENTS).contains(len) && len.is_multiple_of(2))
        else {
            return Ok(None);
        };
        let others = || residual.iter().chain(&beta).chain([&gamma]);
        let is_row = |v: &SlotView| v.layout.is_contiguous() && v.dtype == x.dtype;
        let are_rows = is_row(&x) && others().all(is_row);
        let mut starts = Vec::new();
        for view in others() {
            starts.push(e.offset(view));
        }
        let begin = starts.iter().all(|start| *start == SymInt::ZERO);
        let apart = others().all(|v| v.slot != b.slot);
        let caps = e.caps;
        let able = caps.max_storage_buffers >= BUFFERS && caps.cluster() >= MIN_CLUSTER_SIZE;
        if !are_rows || !begin || !apart || !able {
            return Ok(None);
        }
        let product = MatMulProblem::new(e, &x, &b, bias, activation_of(&product.op))?;
        let is_row = product.m.is_one()
            && product.batch.is_empty()
            && product.a.is_multiple(2, product.a.own_axis);
        if !is_row || !has_strips(e, &product)? {
            return Ok(None);
        }
        Ok(Some(NormGemv {
            product,
            residual,
            gamma,
            beta,
            eps: eps.0 as f32,
            len: len as u32,
        }))
    }

    /// Emits the fused kernel. The kernel also writes the residual sum if the norm has one.
    ///
    /// # Errors
    /// Those of [`LoweringCtx::temp`].
    pub(crate) fn emit(
        &self,
        e: &mut LoweringCtx<'_>,
        y: &SlotView,
        sum: Option<&SlotView>,
    ) -> Result<(), CompileError> {
        let p = &self.product;
        let mut given = matmul_args(e, p, y)?;
        given.params.eps = self.eps;
        let [lanes, depth, columns] = strips(e, p)?;
        let mut consts = given.consts.to_vec();
        consts.extend([code(p.b.dtype), lanes, depth]);
        let has = [self.beta.is_some(), self.residual.is_some()].map(u32::from);
        // The first three values are the constants `THREADS` and `ACROSS` of the row fragments, and
        // `RMS`.
        consts.extend([256, 0, 0, has[0], has[1], self.len]);
        let mut args = given.args.to_vec();
        args.push(self.gamma.slot);
        for view in [&self.beta, &self.residual] {
            args.push(match view {
                Some(view) => view.slot,
                None => e.placeholder_slot()?,
            });
        }
        args.push(match sum {
            Some(sum) => sum.slot,
            // A dummy slot; nothing is written to it.
            None => e.temp(tercet_ir::DType::U32, &[])?.slot,
        });
        let all = e.num(&p.n);
        let groups = e.tape().ceil_div(all, columns);
        let [gx, gy, _] = e.flat_grid(groups);
        let kernel = NORMED.select(p.activation);
        e.dispatch(kernel, &consts, &args, &given.params, [gx, gy, SymInt::ONE]);
        Ok(())
    }
}
