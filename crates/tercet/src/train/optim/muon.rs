//! Muon.

use tercet_ir::{OpError, Value};

use super::{
    AdamW, Optimizer, OptimizerUpdate, TrainedParam, expect, expect_decay, expect_not_negative,
};
use crate::train::error::StepError;

/// Scale of Muon's update for a matrix of `rows` by `columns`.
///
/// ```
/// use tercet::train::{Muon, MuonScale};
/// let muon = Muon { scale: MuonScale::Original, ..Muon::default() };
/// assert_eq!(Muon::default().scale, MuonScale::MatchAdamW);
/// assert_ne!(muon, Muon::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MuonScale {
    /// `0.2 sqrt(max(rows, columns))`. Updates then have the size of AdamW's and can use its
    /// learning rate and decay (Liu and others, "Muon is scalable for LLM training", 2025).
    MatchAdamW,
    /// `sqrt(max(1, rows / columns))`, as in the first publication.
    Original,
}

/// Muon (Jordan and others, "Muon: an optimizer for hidden layers in neural networks", 2024). The
/// update of a matrix is its momentum, orthogonalized by Newton-Schulz iterations. Other tensors
/// use AdamW.
///
/// ```text
/// b = momentum b + (1 - momentum) g
/// u = nesterov ? momentum b + (1 - momentum) g : b
/// x = u / |u|, then `iterations` times x = 3.4445 x - 4.7750 (x x^T) x + 2.0315 (x x^T)^2 x
/// w = w (1 - rate weight_decay) - rate scale x
/// ```
///
/// Tensors of rank 3 are batches of matrices (experts). Tensors of rank 4 or more are flattened to
/// matrices whose rows are the first axis (convolutions). States: `muon.momentum.<name>`, and those
/// of [`AdamW`].
///
/// ```
/// use tercet::train::{Muon, StepOptions, TrainStep};
/// use tercet::{DType, Graph, Type};
/// let mut g = Graph::new();
/// let w = g.state("w", Type::new(DType::F32, [4, 2]))?;
/// let square = g.mul(w, w)?;
/// let loss = g.reduce_sum(square, &[0, 1], false)?;
/// let muon = Muon { momentum: 0.9, ..Muon::default() };
/// let step = TrainStep::build(&g, loss, &["w".into()], &muon, &StepOptions::default())?;
/// assert!(step.states().iter().any(|s| s.name == "muon.momentum.w"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Muon {
    /// Decay of the momentum, `[0, 1)`.
    pub momentum: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
    /// Decoupled weight decay per unit of learning rate, 0 or more.
    pub weight_decay: f64,
    /// Number of Newton-Schulz iterations, at least 1.
    pub iterations: usize,
    /// Scale of updates.
    pub scale: MuonScale,
    /// Matrices whose names contain one of these use AdamW: embeddings and the output head, as the
    /// authors recommend.
    pub by_adamw: Vec<String>,
    /// Optimizer of the other tensors, with a separate weight decay.
    pub adamw: AdamW,
}

impl Default for Muon {
    /// Nesterov momentum of 0.95, a weight decay of 0.1, 5 iterations, updates of AdamW's size.
    /// Names that contain `embed` or `lm_head` use AdamW.
    fn default() -> Muon {
        Muon {
            momentum: 0.95,
            nesterov: true,
            weight_decay: 0.1,
            iterations: 5,
            scale: MuonScale::MatchAdamW,
            by_adamw: vec!["embed".to_string(), "lm_head".to_string()],
            adamw: AdamW::default(),
        }
    }
}

/// A tensor as a batch of matrices.
struct MatrixView {
    /// Shape of the matmul operands.
    shape: Vec<usize>,
    rows: usize,
    columns: usize,
}

impl MatrixView {
    fn new(p: &TrainedParam) -> Option<MatrixView> {
        let sizes = p.ty.shape.as_known()?;
        let shape = match &sizes[..] {
            [_, _] | [_, _, _] => sizes,
            [first, rest @ ..] if rest.len() >= 3 => vec![*first, rest.iter().product()],
            _ => return None,
        };
        let [.., rows, columns] = shape[..] else {
            return None;
        };
        (shape.iter().product::<usize>() > 0).then_some(MatrixView {
            shape,
            rows,
            columns,
        })
    }
}

impl Muon {
    fn matrices(&self, p: &TrainedParam) -> Option<MatrixView> {
        let other = self.by_adamw.iter().any(|part| p.name.contains(part));
        if other { None } else { MatrixView::new(p) }
    }

    /// Newton-Schulz orthogonalization: a matrix with the same singular vectors and singular values
    /// of about 1.
    fn orthogonal(
        &self,
        u: &mut OptimizerUpdate<'_>,
        x: Value,
        of: &MatrixView,
    ) -> Result<Value, OpError> {
        let (a, b, c) = (3.4445, -4.7750, 2.0315);
        let rank = of.shape.len();
        let mut swap: Vec<usize> = (0..rank).collect();
        swap.swap(rank - 2, rank - 1);
        let mut x = u.graph().reshape(x, &of.shape[..])?;
        // Transpose tall matrices, so that the Gram matrix has the size of the shorter side.
        let tall = of.rows > of.columns;
        if tall {
            x = u.graph().transpose(x, &swap)?;
        }
        let square = u.graph().mul(x, x)?;
        let norm = u.graph().reduce_sum(square, &[rank - 2, rank - 1], true)?;
        let norm = u.graph().sqrt(norm)?;
        let least = u.number(1e-7)?;
        let norm = u.graph().max(norm, least)?;
        x = u.graph().div(x, norm)?;
        for _ in 0..self.iterations {
            let across = u.graph().transpose(x, &swap)?;
            let gram = u.graph().matmul(x, across)?;
            let gram_square = u.graph().matmul(gram, gram)?;
            let factor = u.blend(gram, b, gram_square, c)?;
            let rest = u.graph().matmul(factor, x)?;
            x = u.blend(x, a, rest, 1.0)?;
        }
        if tall {
            x = u.graph().transpose(x, &swap)?;
        }
        Ok(x)
    }

    fn update_one(
        &self,
        u: &mut OptimizerUpdate<'_>,
        p: &TrainedParam,
        of: &MatrixView,
    ) -> Result<(), StepError> {
        let rate = u.learning_rate(&p.group)?;
        let kept = u.decay(&p.group, self.weight_decay)?;
        let g = u.gradient(p)?;
        let b = u.state(&format!("muon.momentum.{}", p.name), p.ty.clone())?;
        let new = u.blend(b, self.momentum, g, 1.0 - self.momentum)?;
        let new = u.assign(b, new)?;
        let direction = match self.nesterov {
            true => u.blend(new, self.momentum, g, 1.0 - self.momentum)?,
            false => new,
        };
        let x = self.orthogonal(u, direction, of)?;
        let x = u.graph().reshape(x, p.ty.shape.clone())?;
        let (rows, columns) = (of.rows as f64, of.columns as f64);
        let scale = match self.scale {
            MuonScale::MatchAdamW => 0.2 * rows.max(columns).sqrt(),
            MuonScale::Original => (rows / columns).max(1.0).sqrt(),
        };
        let rate = u.times(rate, scale)?;
        let w = u.stepped(p.weight, kept, rate, x)?;
        u.assign(p.weight, w)?;
        Ok(())
    }
}

impl Optimizer for Muon {
    fn name(&self) -> &'static str {
        "muon"
    }

    fn check(&self) -> Result<(), StepError> {
        expect_decay("the momentum of Muon", self.momentum)?;
        expect_not_negative("the weight decay of Muon", self.weight_decay)?;
        let iterations = self.iterations as f64;
        expect("the iterations of Muon", iterations, "1 to 100", |x| {
            (1.0..=100.0).contains(&x)
        })?;
        self.adamw.check()
    }

    fn update(
        &self,
        u: &mut OptimizerUpdate<'_>,
        params: &[TrainedParam],
    ) -> Result<(), StepError> {
        for p in params {
            if let Some(of) = self.matrices(p) {
                self.update_one(u, p, &of)?;
            }
        }
        let rest = params.iter().filter(|p| self.matrices(p).is_none());
        self.adamw.update_all(u, rest)
    }
}
