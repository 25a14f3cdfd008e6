//! Trainable weights, and LoRA adapters on frozen weights.

use std::collections::BTreeSet;
use std::sync::Arc;

use tercet::{DType, Tensor, TensorType, Type, Value};

use super::multi_lora::MultiLora;
use super::{ModelBuilder, ModelError};
use crate::config::decoder::rows::{ProjectionRowOrder, to_f32};
use crate::low_rank::{Adapter, AdapterError, matches_module, unknown_target};

/// An adapter in use and its strength.
///
/// ```
/// use tercet_networks::{Adapter, ScaledAdapter};
/// let adapter = ScaledAdapter::new(Adapter::default()).scaled(0.5);
/// assert_eq!(adapter.scale, 0.5);
/// ```
#[derive(Clone, Debug)]
pub struct ScaledAdapter {
    /// The low-rank adapter.
    pub adapter: Arc<Adapter>,
    /// Factor on the adapter's own scale: 1 applies it as trained, 0 disables it.
    pub scale: f64,
}

impl ScaledAdapter {
    /// The adapter at its trained strength.
    pub fn new(adapter: Adapter) -> ScaledAdapter {
        let adapter = Arc::new(adapter);
        ScaledAdapter {
            adapter,
            scale: 1.0,
        }
    }

    /// Sets the strength of the adapter.
    #[must_use]
    pub fn scaled(self, scale: f64) -> ScaledAdapter {
        ScaledAdapter { scale, ..self }
    }
}

/// Options for LoRA training (Hu et al. 2021). `A` starts uniform in `[-1 / sqrt(inputs), 1 /
/// sqrt(inputs)]` and `B` starts as zeros. The first loss therefore equals the loss of the base
/// model.
///
/// ```
/// use tercet_networks::training::LoraOptions;
/// let options = LoraOptions { dropout: 0.05, ..LoraOptions::new(8) };
/// assert_eq!((options.rank, options.alpha), (8, 16.0));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LoraOptions {
    /// Rank of the low-rank matrices: the number of rows of each `A`.
    pub rank: usize,
    /// Scale numerator: the low-rank update is multiplied by `alpha / rank`.
    pub alpha: f64,
    /// Last name components of the trained projections, for example `q_proj`. An empty list selects
    /// all projections of the layers.
    pub targets: Vec<String>,
    /// Dropout probability for the input of `A` during training.
    pub dropout: f64,
    /// Seed of the initial values and of dropout.
    pub seed: u64,
}

impl LoraOptions {
    /// LoRA on all layer projections with `alpha` twice the rank, no dropout and seed 0.
    pub fn new(rank: usize) -> LoraOptions {
        LoraOptions {
            rank,
            alpha: 2.0 * rank as f64,
            targets: Vec::new(),
            dropout: 0.0,
            seed: 0,
        }
    }

    /// True if the projection is trained; `layer` marks the projections of a layer.
    fn targets(&self, module: &str, layer: bool) -> bool {
        match self.targets.is_empty() {
            true => layer,
            false => self
                .targets
                .iter()
                .any(|target| matches_module(module, target)),
        }
    }
}

/// Use of the weights in a graph: frozen, trained, or combined with adapters.
#[derive(Clone, Copy)]
pub(crate) enum WeightUse<'a> {
    /// Weights are constant.
    Frozen,
    /// All rows use the same adapters on the projections.
    Adapted(&'a [ScaledAdapter]),
    /// Each row uses one of these adapters on the projections, or none.
    MultiLora(MultiLora<'a>),
    /// All weights are trained, in F32.
    Full,
    /// Weights are constant; low-rank matrices on projections are trained.
    Lora(&'a LoraOptions),
}

/// A projection that an adapter can apply to.
pub(crate) struct ProjectionSite<'a> {
    /// Module name in a Hugging Face folder, without the task prefix.
    pub(crate) module: &'a str,
    /// Shape of the weight: outputs and inputs.
    pub(crate) shape: [usize; 2],
    /// Order of the weight's rows.
    pub(crate) rows: ProjectionRowOrder,
    /// True if the projection belongs to a layer.
    pub(crate) layer: bool,
}

/// A projection with trained low-rank matrices.
#[derive(Clone, Debug)]
pub(crate) struct LoraSite {
    pub(crate) module: String,
    pub(crate) a: String,
    pub(crate) b: String,
    pub(crate) rows: ProjectionRowOrder,
}

/// Trainable weights and LoRA sites found by a builder.
#[derive(Default)]
pub(crate) struct TrainableSet {
    /// Names of the trained parameters.
    pub(crate) trained: Vec<String>,
    /// Projections with trained low-rank matrices.
    pub(crate) sites: Vec<LoraSite>,
    /// Lookups of trained embedding tables in the hidden-state graph.
    pub(crate) deferred_lookups: Vec<DeferredLookup>,
    /// Module names of all projections built so far.
    met: BTreeSet<String>,
}

/// A lookup in a trained embedding table, deferred until after the precision cast. Until the cast a
/// graph input stands for the rows that the lookup returns. Rows are therefore read, and their
/// gradients accumulated, in F32, and the cast does not cover the whole table.
pub(crate) struct DeferredLookup {
    pub(crate) input: String,
    pub(crate) table: String,
    pub(crate) ids: Value,
}

impl ModelBuilder<'_> {
    /// Projection result `y` of `x` plus the contributions of the adapters.
    pub(crate) fn adapted(
        &mut self,
        x: Value,
        y: Value,
        site: &ProjectionSite<'_>,
    ) -> Result<Value, ModelError> {
        self.tuned.met.insert(site.module.to_string());
        match self.mode {
            WeightUse::Frozen | WeightUse::Full => Ok(y),
            WeightUse::Adapted(adapters) => self.with_adapters(x, y, site, adapters),
            WeightUse::MultiLora(choices) => self.with_multi_lora(x, y, site, choices),
            WeightUse::Lora(options) if options.targets(site.module, site.layer) => {
                self.with_trained(x, y, site, options)
            }
            WeightUse::Lora(_) => Ok(y),
        }
    }

    fn with_adapters(
        &mut self,
        x: Value,
        y: Value,
        site: &ProjectionSite<'_>,
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
        site: &ProjectionSite<'_>,
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

    /// Adds a trained parameter to the graph; repeated calls return the same parameter.
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

    /// Rows of a trained embedding table at `ids`.
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
        let input = format!("rows {} of {name}", self.tuned.deferred_lookups.len());
        let rows = self.graph.input(&input, Type::new(DType::F32, dims))?;
        let table = name.to_string();
        self.tuned
            .deferred_lookups
            .push(DeferredLookup { input, table, ids });
        Ok(rows)
    }

    /// `y + scale (x a^T) b^T`. The scale multiplies the low-rank intermediate, the smaller tensor.
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

    /// Checks that all adapters and LoRA targets match projections of the model.
    pub(crate) fn check_tuned(&self) -> Result<(), ModelError> {
        let met = &self.tuned.met;
        match self.mode {
            WeightUse::Frozen | WeightUse::Full => {}
            WeightUse::Adapted(adapters) | WeightUse::MultiLora(MultiLora { adapters, .. }) => {
                for applied in adapters {
                    expect_known(&applied.adapter, met)?;
                }
            }
            WeightUse::Lora(options) => {
                if !options.alpha.is_finite() {
                    let (what, found) = ("alpha".to_string(), options.alpha);
                    return Err(AdapterError::Number { what, found }.into());
                }
                let unknown = |t: &&String| !met.iter().any(|module| matches_module(module, t));
                if let Some(target) = options.targets.iter().find(unknown) {
                    let last = |m: &String| m.rsplit('.').next().unwrap_or_default().to_string();
                    let known: BTreeSet<String> = met.iter().map(last).collect();
                    return Err(AdapterError::NoTarget {
                        target: tercet_files::clip(target),
                        known: known.into_iter().collect::<Vec<_>>().join(", "),
                    }
                    .into());
                }
            }
        }
        Ok(())
    }
}

/// Returns an error if the adapter targets an unknown module, or contains whole tensors. Only
/// merging supports whole tensors.
fn expect_known(adapter: &Adapter, met: &BTreeSet<String>) -> Result<(), AdapterError> {
    if let Some(module) = adapter.modules().keys().find(|m| !met.contains(*m)) {
        return Err(unknown_target(adapter, module));
    }
    match adapter.saved().keys().next() {
        None => Ok(()),
        Some(tensor) => Err(AdapterError::Stray {
            tensor: tercet_files::clip(tensor),
            reason: "a whole tensor and not a low-rank matrix; merge the adapter into its model",
        }),
    }
}

/// Initial `A`, uniform within `1 / sqrt(cols)`: Kaiming initialization with slope `sqrt(5)`, as in
/// PEFT.
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

/// Fills `to` with uniform values in `[-bound, bound]` that depend only on the seed and the name
/// (SplitMix64).
pub fn uniform(name: &str, seed: u64, bound: f64, to: &mut [f32]) {
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
