//! Weights that are trained, and adapters beside weights.

use std::collections::BTreeSet;
use std::sync::Arc;

use tercet::{DType, Tensor, TensorType, Type, Value};

use super::chosen::Choices;
use super::{Builder, ModelError};
use crate::adapter::rows::{Rows, to_f32};
use crate::adapter::{Adapter, AdapterError};

/// An adapter in use, and how strongly it counts.
#[derive(Clone, Debug)]
pub struct ScaledAdapter {
    /// The adapter.
    pub adapter: Arc<Adapter>,
    /// What its own scale is multiplied by; 1 as it was trained, 0 for none of it.
    pub scale: f64,
}

impl ScaledAdapter {
    /// The adapter as it was trained.
    pub fn new(adapter: Adapter) -> ScaledAdapter {
        let adapter = Arc::new(adapter);
        ScaledAdapter {
            adapter,
            scale: 1.0,
        }
    }

    /// Counts so strongly.
    #[must_use]
    pub fn scaled(self, scale: f64) -> ScaledAdapter {
        ScaledAdapter { scale, ..self }
    }
}

/// Low-rank matrices to be trained (Hu and others, 2021): `A` starts uniform within `1 / sqrt(inputs)` either way, `B` as
/// zeros, so that the first loss is that of the model alone.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraOptions {
    /// Rows of each `A`.
    pub rank: usize,
    /// The change is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Last components of the names of projections, `q_proj` and the like; none for all projections of the layers.
    pub targets: Vec<String>,
    /// The probability with which elements of what enters `A` are dropped in training.
    pub dropout: f64,
    /// Seed of the first values, and of what is dropped.
    pub seed: u64,
}

impl LoraOptions {
    /// All projections, `alpha` twice the rank, nothing dropped, seed 0.
    pub fn new(rank: usize) -> LoraOptions {
        LoraOptions {
            rank,
            alpha: 2.0 * rank as f64,
            targets: Vec::new(),
            dropout: 0.0,
            seed: 0,
        }
    }

    /// Whether the projection is trained; `layer` says that it is one of a layer.
    fn targets(&self, module: &str, layer: bool) -> bool {
        match self.targets.is_empty() {
            true => layer,
            false => self.targets.iter().any(|target| is_called(module, target)),
        }
    }
}

/// Whether a module has this name, or ends with it.
pub(crate) fn is_called(module: &str, name: &str) -> bool {
    let head = module.strip_suffix(name);
    head.is_some_and(|head| head.is_empty() || head.ends_with('.'))
}

/// What becomes of weights besides being read.
#[derive(Clone, Copy)]
pub(crate) enum Mode<'a> {
    /// Nothing.
    Frozen,
    /// Projections are changed by these.
    Adapted(&'a [ScaledAdapter]),
    /// Each row of a projection is changed by one of these, or none.
    Chosen(Choices<'a>),
    /// All are trained, in F32.
    Full,
    /// Low-rank matrices beside projections are trained.
    Lora(&'a LoraOptions),
}

/// A projection of a model.
pub(crate) struct Site<'a> {
    /// Its name in a Hugging Face folder, without a task's prefix.
    pub(crate) module: &'a str,
    /// Outputs and inputs.
    pub(crate) shape: [usize; 2],
    /// The order of its rows.
    pub(crate) rows: Rows,
    /// Whether it is one of a layer.
    pub(crate) layer: bool,
}

/// A projection whose low-rank matrices are trained.
#[derive(Clone, Debug)]
pub(crate) struct LoraSite {
    pub(crate) module: String,
    pub(crate) a: String,
    pub(crate) b: String,
    pub(crate) rows: Rows,
}

/// What a builder found to be tuned.
#[derive(Default)]
pub(crate) struct Tuned {
    /// The parameters that are to be trained.
    pub(crate) trained: Vec<String>,
    /// Of low rank, the projections.
    pub(crate) sites: Vec<LoraSite>,
    /// The rows of trained tables that the graph of states reads.
    pub(crate) late: Vec<Late>,
    /// The projections that were met.
    met: BTreeSet<String>,
}

/// Rows of a trained table: an input stands for them until arithmetic is narrow, so that they are read, and their
/// gradients added up, in F32, and not all of the table is cast.
pub(crate) struct Late {
    pub(crate) input: String,
    pub(crate) table: String,
    pub(crate) ids: Value,
}

impl Builder<'_> {
    /// The result of a projection of `x` with what adapters add to it.
    pub(crate) fn adapted(
        &mut self,
        x: Value,
        y: Value,
        site: &Site<'_>,
    ) -> Result<Value, ModelError> {
        self.tuned.met.insert(site.module.to_string());
        match self.mode {
            Mode::Frozen | Mode::Full => Ok(y),
            Mode::Adapted(adapters) => self.with_adapters(x, y, site, adapters),
            Mode::Chosen(choices) => self.with_chosen(x, y, site, choices),
            Mode::Lora(options) if options.targets(site.module, site.layer) => {
                self.with_trained(x, y, site, options)
            }
            Mode::Lora(_) => Ok(y),
        }
    }

    fn with_adapters(
        &mut self,
        x: Value,
        y: Value,
        site: &Site<'_>,
        adapters: &[ScaledAdapter],
    ) -> Result<Value, ModelError> {
        let mut sum = y;
        for (i, applied) in adapters.iter().enumerate() {
            let Some(low) = applied.adapter.modules().get(site.module) else {
                continue;
            };
            low.expect_shape(site.module, site.shape)?;
            let name = |side: &str| format!("adapter.{i}.{}.{side}", site.module);
            let narrow = |side: &str, tensor: &Tensor| {
                to_f32(tensor).map_err(|source| AdapterError::Tensor {
                    tensor: name(side),
                    source,
                })
            };
            let a = narrow("lora_A", low.a())?;
            let b = narrow("lora_B", &site.rows.apply(low.b()))?;
            let a = self.param(&name("lora_A"), a)?;
            let b = self.param(&name("lora_B"), b)?;
            sum = self.plus_low_rank(x, sum, [a, b], low.scale() * applied.scale)?;
        }
        Ok(sum)
    }

    fn with_trained(
        &mut self,
        x: Value,
        y: Value,
        site: &Site<'_>,
        options: &LoraOptions,
    ) -> Result<Value, ModelError> {
        let ([rows, cols], rank) = (site.shape, options.rank);
        let most = rows.min(cols);
        if rank == 0 || rank > most {
            return Err(AdapterError::BadRank { rank, most }.into());
        }
        let [a, b] = ["lora_A", "lora_B"].map(|side| format!("{}.{side}", site.module));
        let of_a = self.trained_param(&a, first_a(&a, options.seed, rank, cols)?)?;
        let zeros = Tensor::zeros(TensorType::new(DType::F32, &[rows, rank]));
        let zeros = zeros.map_err(|e| super::weights::bytes_error(&b, e))?;
        let of_b = self.trained_param(&b, zeros)?;
        if !self.tuned.sites.iter().any(|s| s.module == site.module) {
            self.tuned.sites.push(LoraSite {
                module: site.module.to_string(),
                a,
                b,
                rows: site.rows,
            });
        }
        let p = super::check_dropout(options.dropout)?;
        let x = self.graph.dropout(x, p, options.seed)?;
        self.plus_low_rank(x, y, [of_a, of_b], options.alpha / rank as f64)
    }

    /// A parameter that is trained.
    pub(crate) fn trained_param(
        &mut self,
        name: &str,
        tensor: Tensor,
    ) -> Result<Value, ModelError> {
        if !self.tuned.trained.iter().any(|trained| trained == name) {
            self.tuned.trained.push(name.to_string());
            self.params.push((name.to_string(), tensor));
        }
        if let Some(node) = self.graph.leaf(name) {
            return Ok(Value { node, port: 0 });
        }
        let (_, tensor) = self.params.iter().find(|(n, _)| n == name).ok_or_else(|| {
            let tensor = name.to_string();
            ModelError::MissingWeight { tensor }
        })?;
        let ty = Type::from(tensor.ty());
        Ok(self.graph.param(name, ty)?)
    }

    /// The rows of a trained embedding at `ids`.
    pub(crate) fn trained_embedding(
        &mut self,
        ids: Value,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Value, ModelError> {
        let table = self.weights.dense_f32(name, &shape)?;
        if !self.tuned.trained.iter().any(|trained| trained == name) {
            self.tuned.trained.push(name.to_string());
            self.params.push((name.to_string(), table));
        }
        let mut dims = self.graph.ty(ids).shape.to_vec();
        dims.push(shape[1].into());
        let input = format!("rows {} of {name}", self.tuned.late.len());
        let rows = self.graph.input(&input, Type::new(DType::F32, dims))?;
        let table = name.to_string();
        self.tuned.late.push(Late { input, table, ids });
        Ok(rows)
    }

    /// `y + scale (x a^T) b^T`, scaled where it is narrow.
    fn plus_low_rank(
        &mut self,
        x: Value,
        y: Value,
        [a, b]: [Value; 2],
        scale: f64,
    ) -> Result<Value, ModelError> {
        if !scale.is_finite() {
            let (what, found) = ("the scale of an adapter".to_string(), scale);
            return Err(AdapterError::Number { what, found }.into());
        }
        let g = &mut self.graph;
        let a = g.transpose(a, &[1, 0])?;
        let low = g.matmul(x, a)?;
        let scale = g.scalar(DType::F32, scale)?;
        let low = g.mul(low, scale)?;
        let b = g.transpose(b, &[1, 0])?;
        let change = g.matmul(low, b)?;
        Ok(g.plus(y, change)?)
    }

    /// Refuses adapters that change what the model does not have, and targets that no projection is called.
    pub(crate) fn check_tuned(&self) -> Result<(), ModelError> {
        let met = &self.tuned.met;
        match self.mode {
            Mode::Frozen | Mode::Full => {}
            Mode::Adapted(adapters) | Mode::Chosen(Choices { adapters, .. }) => {
                for applied in adapters {
                    expect_known(&applied.adapter, met)?;
                }
            }
            Mode::Lora(options) => {
                if !options.alpha.is_finite() {
                    let (what, found) = ("alpha".to_string(), options.alpha);
                    return Err(AdapterError::Number { what, found }.into());
                }
                let unknown = |t: &&String| !met.iter().any(|module| is_called(module, t));
                if let Some(target) = options.targets.iter().find(unknown) {
                    let last = |m: &String| m.rsplit('.').next().unwrap_or_default().to_string();
                    let known: BTreeSet<String> = met.iter().map(last).collect();
                    return Err(AdapterError::NoTarget {
                        target: crate::gguf::clip(target),
                        known: known.into_iter().collect::<Vec<_>>().join(", "),
                    }
                    .into());
                }
            }
        }
        Ok(())
    }
}

/// Refuses an adapter of modules that are not among these, or with tensors beside them, which only merging takes.
fn expect_known(adapter: &Adapter, met: &BTreeSet<String>) -> Result<(), AdapterError> {
    if let Some(module) = adapter.modules().keys().find(|m| !met.contains(*m)) {
        return Err(unknown_target(adapter, module));
    }
    match adapter.saved().keys().next() {
        None => Ok(()),
        Some(tensor) => Err(AdapterError::Stray {
            tensor: crate::gguf::clip(tensor),
            reason: "a whole tensor, not of low rank; merge the adapter into its model",
        }),
    }
}

pub(crate) fn unknown_target(adapter: &Adapter, module: &str) -> AdapterError {
    let hint = adapter
        .base()
        .map(|base| format!(" (`{}`)", crate::gguf::clip(base)));
    AdapterError::UnknownTarget {
        module: crate::gguf::clip(module),
        hint: hint.unwrap_or_default(),
    }
}

/// Uniform numbers of a bound of `1 / sqrt(cols)`: Kaiming's for a slope of `sqrt(5)`, as PEFT draws them.
fn first_a(name: &str, seed: u64, rows: usize, cols: usize) -> Result<Tensor, ModelError> {
    let failed = |e| super::weights::bytes_error(name, e);
    let mut a = Tensor::zeros(TensorType::new(DType::F32, &[rows, cols])).map_err(failed)?;
    uniform(
        name,
        seed,
        1.0 / (cols as f64).sqrt(),
        a.as_slice_mut().map_err(failed)?,
    );
    Ok(a)
}

/// Fills with numbers within the bound either way, by the seed and the name alone (SplitMix64).
pub(crate) fn uniform(name: &str, seed: u64, bound: f64, to: &mut [f32]) {
    const FNV: (u64, u64) = (0xcbf2_9ce4_8422_2325, 0x0000_0100_0000_01b3);
    let hash = name
        .bytes()
        .fold(FNV.0, |h, b| (h ^ u64::from(b)).wrapping_mul(FNV.1));
    let mut state = mixed(hash ^ mixed(seed));
    for x in to {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let unit = (mixed(state) >> 11) as f64 / (1u64 << 53) as f64;
        *x = (bound * (2.0 * unit - 1.0)) as f32;
    }
}

fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::{is_called, uniform};

    #[test]
    fn first_values_follow_seed_and_name() {
        let draw = |name: &str, seed| {
            let mut to = [0f32; 1000];
            uniform(name, seed, 0.25, &mut to);
            to
        };
        let first = draw("a", 0);
        assert_eq!(first, draw("a", 0));
        assert_ne!(first, draw("b", 0));
        assert_ne!(first, draw("a", 1));
        assert!(first.iter().all(|x| x.abs() <= 0.25));
        let mean = first.iter().map(|x| f64::from(*x)).sum::<f64>() / 1000.0;
        let square = first.iter().map(|x| f64::from(x * x)).sum::<f64>() / 1000.0;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((square - 0.0625 / 3.0).abs() < 0.002, "{square}");
    }

    #[test]
    fn targets_are_whole_components() {
        assert!(is_called("model.layers.0.self_attn.q_proj", "q_proj"));
        assert!(is_called(
            "model.layers.0.self_attn.q_proj",
            "self_attn.q_proj"
        ));
        assert!(is_called("lm_head", "lm_head"));
        assert!(!is_called("model.layers.0.self_attn.q_proj", "proj"));
    }
}
