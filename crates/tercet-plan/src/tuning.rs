//! Autotuning tables: the fastest kernel variant per problem, as measured on a device.
//!
//! A table is plain data, measured entry by entry ([`TuningEntry`]) and stored as text with one line per
//! entry:
//!
//! ```text
//! tercet tuning 2
//! matmul/f16/nn 4096x4096x4096 128x256x64/block256
//! rows/f32/f16nt 8x14336x4096 few_rows_streamed
//! without coop,conv=rows
//! force attention=tiles
//! ```
//!
//! The lines `without`, `force` and `debug` hold [`DeviceSwitches`], which a user may add. Each other line
//! holds the computation, its sizes and the name of the variant. [`TuningKey`] documents
//! what each size means, for every kind of computation. Names unknown to a device are skipped, so a
//! table of another version or device does no harm. Version 1 tables, which contain only
//! cooperative-matrix matmuls, can be read too.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tercet_ir::{DType, DeviceSwitches, Scheme, SwitchError};

/// Family of the tilings of matmuls on cooperative matrices, as in tuning tables.
pub(crate) const TILINGS: &str = "matmul";

/// First line of the text form.
pub const HEADER: &str = "tercet tuning 2";
/// First line of the text form of version 1.
pub const FIRST_HEADER: &str = "tercet tuning 1";

/// Key of a problem in an autotuning table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TuningKey {
    /// Name of the computation with its dtypes and layouts, such as `matmul/f16/nn`.
    pub operation: String,
    /// Sizes of the problem; the computation determines what they mean.
    pub sizes: Vec<usize>,
}

impl TuningKey {
    /// Key of a GEMV or skinny GEMM: one to eight activation rows `[m, k]` times `[n, k]` weights,
    /// which may be quantized.
    pub fn rows(dtype: DType, weights: WeightLayout, [m, n, k]: [usize; 3]) -> TuningKey {
        TuningKey {
            operation: format!("rows/{dtype}/{weights}"),
            sizes: vec![m, n, k],
        }
    }

    /// Key of a large-M GEMM, for the selection among all kernel variants.
    pub fn large_m(dtype: DType, weights: WeightLayout, [m, n, k]: [usize; 3]) -> TuningKey {
        TuningKey {
            operation: format!("many/{dtype}/{weights}"),
            sizes: vec![m, n, k],
        }
    }

    /// Attention of a dtype. Sizes: KV heads of all batch entries, query heads per KV head,
    /// queries, keys, head size.
    pub fn attention(dtype: DType, sizes: [usize; 5]) -> TuningKey {
        TuningKey {
            operation: format!("attention/{dtype}"),
            sizes: sizes.to_vec(),
        }
    }

    /// Key of a convolution in this dtype. Sizes: groups, output channels per group, reduction
    /// length per group, windows of all batch entries, kernel taps.
    pub fn conv(dtype: DType, sizes: [usize; 5]) -> TuningKey {
        TuningKey {
            operation: format!("conv/{dtype}"),
            sizes: sizes.to_vec(),
        }
    }

    /// A scan over states: `selective_scan`, `mamba2` or `gated_delta_net`. Sizes: batch entries,
    /// steps, heads, channels per head, states per channel. A selective scan has one channel per
    /// head.
    pub fn scan(op: &str, dtype: DType, sizes: [usize; 5]) -> TuningKey {
        TuningKey {
            operation: format!("{op}/{dtype}"),
            sizes: sizes.to_vec(),
        }
    }

    /// Distance between the sizes of two problems: the sum over all axes, in octaves. `None` if an
    /// axis differs by more than one octave, or if the computations differ.
    fn distance(&self, other: &TuningKey) -> Option<f64> {
        if self.operation != other.operation || self.sizes.len() != other.sizes.len() {
            return None;
        }
        let mut sum = 0.0;
        for (&a, &b) in self.sizes.iter().zip(&other.sizes) {
            let octaves = (a.max(1) as f64 / b.max(1) as f64).log2().abs();
            if octaves > 1.0 {
                return None;
            }
            sum += octaves;
        }
        Some(sum)
    }
}

/// Prints `what` and the sizes, as in `matmul/f16/nn 4096x768x768`.
impl fmt::Display for TuningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.operation)?;
        for (at, size) in self.sizes.iter().enumerate() {
            let between = if at == 0 { "" } else { "x" };
            write!(f, "{between}{size}")?;
        }
        Ok(())
    }
}

/// Right operand (weights) of a matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightLayout {
    /// Float weights with contiguous rows along `k`.
    KMajor(DType),
    /// Float weights with contiguous columns, i.e. contiguous along `n`.
    NMajor(DType),
    /// Quantized blocks along `k`.
    Packed(Scheme),
}

impl fmt::Display for WeightLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightLayout::KMajor(dtype) => write!(f, "{dtype}nt"),
            WeightLayout::NMajor(dtype) => write!(f, "{dtype}nn"),
            WeightLayout::Packed(scheme) => f.write_str(scheme.name()),
        }
    }
}

/// A matmul on cooperative matrices, with the properties that tiling selection depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmProblem {
    /// Dtype of both operands.
    pub dtype: DType,
    /// The right operand is stored as `[n, k]`.
    pub b_transposed: bool,
    /// Rows of the result, summed over all batches.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Reduction length.
    pub k: usize,
}

impl GemmProblem {
    /// The key that identifies this matmul in autotuning tables.
    pub fn key(&self) -> TuningKey {
        let layout = if self.b_transposed { "nt" } else { "nn" };
        TuningKey {
            operation: format!("matmul/{}/{layout}", self.dtype),
            sizes: vec![self.m, self.n, self.k],
        }
    }
}

/// A measured problem with its fastest variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuningEntry {
    /// The measured problem.
    pub key: TuningKey,
    /// Name of the fastest variant.
    pub variant: String,
}

/// An autotuning table; cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuningTable {
    entries: Arc<[TuningEntry]>,
    forced_variant: Option<Arc<str>>,
    switches: DeviceSwitches,
}

impl TuningTable {
    /// A table with these entries.
    pub fn new(entries: Vec<TuningEntry>) -> TuningTable {
        TuningTable {
            entries: entries.into(),
            forced_variant: None,
            switches: DeviceSwitches::default(),
        }
    }

    /// A table that selects one variant for every problem, so that this variant can be measured.
    pub fn always(variant: &str) -> TuningTable {
        TuningTable {
            entries: Arc::default(),
            forced_variant: Some(variant.into()),
            switches: DeviceSwitches::default(),
        }
    }

    /// True for a table of [`TuningTable::always`].
    pub(crate) fn is_always(&self) -> bool {
        self.forced_variant.is_some()
    }

    /// The same entries with these switches.
    #[must_use]
    pub fn with_switches(self, switches: DeviceSwitches) -> TuningTable {
        TuningTable { switches, ..self }
    }

    /// The switches of the table, which are below those of the options of a device.
    pub fn switches(&self) -> &DeviceSwitches {
        &self.switches
    }

    /// The entries in insertion order.
    pub fn entries(&self) -> &[TuningEntry] {
        &self.entries
    }

    /// The variant of the nearest measured problem, at most one octave away along each axis.
    pub fn find(&self, key: impl FnOnce() -> TuningKey) -> Option<&str> {
        if let Some(variant) = &self.forced_variant {
            return Some(variant);
        }
        if self.entries.is_empty() {
            return None;
        }
        let key = key();
        let near = self.entries.iter();
        let near = near.filter_map(|e| Some((e.key.distance(&key)?, e)));
        let nearest = near.min_by(|a, b| a.0.total_cmp(&b.0));
        nearest.map(|(_, e)| e.variant.as_str())
    }
}

impl fmt::Display for TuningTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        for TuningEntry { key, variant } in self.entries.iter() {
            writeln!(f, "{key} {variant}")?;
        }
        let switches = self.switches.to_string();
        let lines = switches.split("; ").filter(|line| !line.is_empty());
        for line in lines {
            writeln!(f, "{}", line.replace(", ", ","))?;
        }
        Ok(())
    }
}

/// Error of a text that is not a valid autotuning table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the tuning table {problem}; rerun the autotuner to replace the table")]
pub struct TuningError {
    /// Line number of the error, starting at 1.
    pub line: usize,
    problem: Cow<'static, str>,
    /// The switch that does not exist, if the line has one.
    #[source]
    pub switch: Option<SwitchError>,
}

impl FromStr for TuningTable {
    type Err = TuningError;

    fn from_str(text: &str) -> Result<TuningTable, TuningError> {
        type Read = (fn(&str) -> Option<TuningEntry>, &'static str);
        let mut lines = text.lines().zip(1..);
        let (read, problem): Read = match lines.next().map(|(first, _)| first) {
            Some(HEADER) => (entry_of, "is not `problem sizes variant`"),
            Some(FIRST_HEADER) => (first_entry_of, "is not `type nn-or-nt m n k variant`"),
            Some(_) | None => {
                return Err(TuningError {
                    line: 1,
                    problem: "is not `tercet tuning 2`".into(),
                    switch: None,
                });
            }
        };
        let mut entries = Vec::new();
        let mut switches = DeviceSwitches::default();
        for (text, line) in lines.filter(|(text, _)| !text.trim().is_empty()) {
            let own = switches_of(text).map_err(|switch| TuningError {
                line,
                problem: "has an invalid switch".into(),
                switch: Some(switch),
            })?;
            if let Some(own) = own {
                switches = own.over(&switches);
                continue;
            }
            entries.push(read(text).ok_or(TuningError {
                line,
                problem: problem.into(),
                switch: None,
            })?);
        }
        Ok(TuningTable::new(entries).with_switches(switches))
    }
}

/// The switches of a line `without LIST`, `force LIST` or `debug LIST`; `None` for any other line.
fn switches_of(line: &str) -> Result<Option<DeviceSwitches>, SwitchError> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    match fields[..] {
        ["without", list] => DeviceSwitches::parse(list, "").map(Some),
        ["force", list] => DeviceSwitches::parse("", list).map(Some),
        ["debug", list] => {
            let debug = list.parse()?;
            Ok(Some(DeviceSwitches::default().with_debug(debug)))
        }
        _ => Ok(None),
    }
}

fn entry_of(line: &str) -> Option<TuningEntry> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [what, sizes, variant] = fields[..] else {
        return None;
    };
    let sizes: Result<Vec<usize>, _> = sizes.split('x').map(str::parse).collect();
    Some(TuningEntry {
        key: TuningKey {
            operation: what.to_string(),
            sizes: sizes.ok()?,
        },
        variant: variant.to_string(),
    })
}

/// Parses a line of a version 1 table (cooperative-matrix matmuls only).
fn first_entry_of(line: &str) -> Option<TuningEntry> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [dtype, layout, m, n, k, variant] = fields[..] else {
        return None;
    };
    let b_transposed = match layout {
        "nn" => false,
        "nt" => true,
        _ => return None,
    };
    let problem = GemmProblem {
        dtype: DType::from_name(dtype)?,
        b_transposed,
        m: m.parse().ok()?,
        n: n.parse().ok()?,
        k: k.parse().ok()?,
    };
    Some(TuningEntry {
        key: problem.key(),
        variant: variant.to_string(),
    })
}
