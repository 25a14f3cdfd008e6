//! What was measured on a device: which variant of a kernel is best for which problem.
//!
//! A table is plain data, made by measuring ([`Entry`] by entry) and kept as text, one line an entry:
//!
//! ```text
//! tercet tuning 2
//! matmul/f16/nn 4096x4096x4096 128x256x64/block256
//! rows/f32/q4_k 8x14336x4096 few_rows_streamed
//! ```
//!
//! what is computed, its sizes, and the name of the variant; the families say what their sizes are ([`Key`]). A name that a
//! device does not have is passed over, so that a table of another version or device does no harm. Tables of the first
//! version, which had products on cooperative matrices only, are read as well.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tercet_ir::{DType, Scheme};

/// The first line of the text form, and that of the version before.
const HEADER: &str = "tercet tuning 2";
const FIRST_HEADER: &str = "tercet tuning 1";

/// A problem as tables have it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// What is computed, with types and layouts: one word.
    pub what: String,
    /// Its sizes, of the same meaning for the same `what`.
    pub sizes: Vec<usize>,
}

impl Key {
    /// One to eight rows `[m, k]` of a type times `[n, k]` weights, packed or of another type.
    pub fn rows(dtype: DType, weights: Weights, [m, n, k]: [usize; 3]) -> Key {
        Key {
            what: format!("rows/{dtype}/{weights}"),
            sizes: vec![m, n, k],
        }
    }

    /// Many rows of a type, on whatever kernel.
    pub fn many(dtype: DType, weights: Weights, [m, n, k]: [usize; 3]) -> Key {
        Key {
            what: format!("many/{dtype}/{weights}"),
            sizes: vec![m, n, k],
        }
    }

    /// Attention of a type: key heads of all batch entries, query heads of each, queries, keys, elements of a head.
    pub fn attention(dtype: DType, sizes: [usize; 5]) -> Key {
        Key {
            what: format!("attention/{dtype}"),
            sizes: sizes.to_vec(),
        }
    }

    /// A convolution of a type: groups, channels of the result and sums in each, windows of all batch entries, taps.
    pub fn conv(dtype: DType, sizes: [usize; 5]) -> Key {
        Key {
            what: format!("conv/{dtype}"),
            sizes: sizes.to_vec(),
        }
    }

    /// A scan over states of a type, `selective_scan`, `mamba2` or `gated_delta_net`: entries of the batch, steps, heads,
    /// channels of each (one in a selective scan, whose channels are its heads), states of a channel.
    pub fn scan(op: &str, dtype: DType, sizes: [usize; 5]) -> Key {
        Key {
            what: format!("{op}/{dtype}"),
            sizes: sizes.to_vec(),
        }
    }

    /// How far apart the sizes of two problems are, in octaves over all axes; none where one axis is more than one octave
    /// apart or they compute other things.
    fn distance(&self, other: &Key) -> Option<f64> {
        if self.what != other.what || self.sizes.len() != other.sizes.len() {
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

/// `what` and sizes, as in `matmul/f16/nn 4096x768x768`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.what)?;
        for (at, size) in self.sizes.iter().enumerate() {
            let between = if at == 0 { "" } else { "x" };
            write!(f, "{between}{size}")?;
        }
        Ok(())
    }
}

/// The right side of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Weights {
    /// Numbers, whose rows along `k` lie together.
    Along(DType),
    /// Numbers, whose columns lie together.
    Across(DType),
    /// Packed blocks along `k`.
    Packed(Scheme),
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Weights::Along(dtype) => write!(f, "{dtype}nt"),
            Weights::Across(dtype) => write!(f, "{dtype}nn"),
            Weights::Packed(scheme) => f.write_str(scheme.name()),
        }
    }
}

/// A product on cooperative matrices, as far as the choice of a tiling depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmProblem {
    /// The type of both factors.
    pub dtype: DType,
    /// The right factor is `[n, k]`.
    pub b_transposed: bool,
    /// Rows of the result, all batches together.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// The summed size.
    pub k: usize,
}

impl GemmProblem {
    /// The same as tables have it.
    pub fn key(&self) -> Key {
        let layout = if self.b_transposed { "nt" } else { "nn" };
        Key {
            what: format!("matmul/{}/{layout}", self.dtype),
            sizes: vec![self.m, self.n, self.k],
        }
    }
}

/// A problem and the variant that was best for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What was measured.
    pub key: Key,
    /// The name of the best variant.
    pub variant: String,
}

/// A table of measurements. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    entries: Arc<[Entry]>,
    forced: Option<Arc<str>>,
}

impl Tuning {
    /// A table of these entries.
    pub fn new(entries: Vec<Entry>) -> Tuning {
        Tuning {
            entries: entries.into(),
            forced: None,
        }
    }

    /// A table that names one variant for everything: to measure it.
    pub fn always(variant: &str) -> Tuning {
        Tuning {
            entries: Arc::default(),
            forced: Some(variant.into()),
        }
    }

    /// The entries in the order given.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The variant of the nearest problem that was measured, at most an octave off along each axis.
    pub fn find(&self, key: impl FnOnce() -> Key) -> Option<&str> {
        if let Some(variant) = &self.forced {
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

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        for Entry { key, variant } in self.entries.iter() {
            writeln!(f, "{key} {variant}")?;
        }
        Ok(())
    }
}

/// Why a text is not a tuning table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the tuning table {problem}; measure again to replace the table")]
pub struct TuningError {
    /// The line, from 1.
    pub line: usize,
    problem: &'static str,
}

impl FromStr for Tuning {
    type Err = TuningError;

    fn from_str(text: &str) -> Result<Tuning, TuningError> {
        type Read = (fn(&str) -> Option<Entry>, &'static str);
        let mut lines = text.lines().zip(1..);
        let (read, problem): Read = match lines.next().map(|(first, _)| first) {
            Some(HEADER) => (entry_of, "is not a problem, its sizes and a name"),
            Some(FIRST_HEADER) => (
                first_entry_of,
                "is not a type, `nn` or `nt`, three sizes and a name",
            ),
            Some(_) | None => {
                return Err(TuningError {
                    line: 1,
                    problem: "is not `tercet tuning 2`",
                });
            }
        };
        let mut entries = Vec::new();
        for (text, line) in lines.filter(|(text, _)| !text.trim().is_empty()) {
            entries.push(read(text).ok_or(TuningError { line, problem })?);
        }
        Ok(Tuning::new(entries))
    }
}

fn entry_of(line: &str) -> Option<Entry> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [what, sizes, variant] = fields[..] else {
        return None;
    };
    let sizes: Result<Vec<usize>, _> = sizes.split('x').map(str::parse).collect();
    Some(Entry {
        key: Key {
            what: what.to_string(),
            sizes: sizes.ok()?,
        },
        variant: variant.to_string(),
    })
}

/// A line of the first version, which had products on cooperative matrices only.
fn first_entry_of(line: &str) -> Option<Entry> {
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
    Some(Entry {
        key: problem.key(),
        variant: variant.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(dtype: DType, size: usize) -> GemmProblem {
        GemmProblem {
            dtype,
            b_transposed: false,
            m: size,
            n: size,
            k: size,
        }
    }

    fn entry(dtype: DType, size: usize, variant: &str) -> Entry {
        Entry {
            key: problem(dtype, size).key(),
            variant: variant.to_string(),
        }
    }

    #[test]
    fn a_table_is_found_by_the_nearest_size_and_survives_its_text() {
        let table = Tuning::new(vec![
            entry(DType::F16, 1024, "small"),
            entry(DType::F16, 4096, "large"),
            entry(DType::BF16, 1024, "other"),
            Entry {
                key: Key::rows(DType::F32, Weights::Packed(Scheme::Q4K), [8, 14336, 4096]),
                variant: "few".to_string(),
            },
        ]);
        let find = |dtype, size| table.find(|| problem(dtype, size).key());
        assert_eq!(find(DType::F16, 1100), Some("small"));
        assert_eq!(find(DType::F16, 2900), Some("large"));
        assert_eq!(find(DType::BF16, 512), Some("other"));
        assert_eq!(find(DType::F16, 500), None);
        assert_eq!(find(DType::F32, 1024), None);
        let rows =
            |scheme| table.find(|| Key::rows(DType::F32, Weights::Packed(scheme), [5, 8192, 4096]));
        assert_eq!(rows(Scheme::Q4K), Some("few"));
        assert_eq!(rows(Scheme::Q6K), None);
        assert_eq!(table.to_string().parse(), Ok(table));
    }

    #[test]
    fn tables_of_the_first_version_are_read() {
        let text = "tercet tuning 1\nf16 nt 512 4096 4096 128x128x32/64x64\n";
        let table: Tuning = text.parse().unwrap();
        let problem = GemmProblem {
            b_transposed: true,
            m: 512,
            ..problem(DType::F16, 4096)
        };
        assert_eq!(table.find(|| problem.key()), Some("128x128x32/64x64"));
        assert!(table.to_string().starts_with(HEADER));
    }

    #[test]
    fn a_damaged_table_is_refused_with_its_line() {
        assert_eq!("".parse::<Tuning>().unwrap_err().line, 1);
        assert_eq!("tercet tuning 3\n".parse::<Tuning>().unwrap_err().line, 1);
        let damaged = [
            (HEADER, "matmul/f16/nn 1x2x3"),
            (HEADER, "matmul/f16/nn 1x-2x3 w"),
            (HEADER, "matmul/f16/nn 1 2 3 w"),
            (FIRST_HEADER, "f16 nn 1 2 3"),
            (FIRST_HEADER, "f16 nx 1 2 3 w"),
            (FIRST_HEADER, "f99 nn 1 2 3 w"),
            (FIRST_HEADER, "f16 nn 1 -2 3 w"),
        ];
        for (header, damaged) in damaged {
            let text = format!("{header}\n\n{damaged}\n");
            assert_eq!(text.parse::<Tuning>().unwrap_err().line, 3, "{damaged}");
        }
    }
}
