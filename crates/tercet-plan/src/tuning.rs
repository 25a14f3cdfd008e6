//! What was measured on a device: which way of a kernel is best for which size.
//!
//! A table is plain data, made by measuring ([`Entry`] by entry) and kept as text, one line an entry:
//!
//! ```text
//! tercet tuning 1
//! f16 nn 4096 4096 4096 128x256x64/block256
//! ```
//!
//! the type of the factors, whether B is `[k, n]` (`nn`) or `[n, k]` (`nt`), m, n, k, and the name of
//! the way. A name that a device does not have is passed over, so that a table of another version or
//! device does no harm.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tercet_ir::DType;

/// The first line of the text form.
const HEADER: &str = "tercet tuning 1";

/// A product, as far as the choice of a way depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
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

impl Problem {
    /// How far apart two sizes are, in octaves over the three axes; none where one axis is more than
    /// one octave apart or the kinds differ.
    fn distance(&self, other: &Problem) -> Option<f64> {
        if (self.dtype, self.b_transposed) != (other.dtype, other.b_transposed) {
            return None;
        }
        let mut sum = 0.0;
        for (a, b) in [(self.m, other.m), (self.n, other.n), (self.k, other.k)] {
            let octaves = (a.max(1) as f64 / b.max(1) as f64).log2().abs();
            if octaves > 1.0 {
                return None;
            }
            sum += octaves;
        }
        Some(sum)
    }
}

/// A size and the way that was best for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What was measured.
    pub problem: Problem,
    /// The name of the best way.
    pub way: String,
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

    /// A table that names one way for everything: to measure it.
    pub fn always(way: &str) -> Tuning {
        Tuning {
            entries: Arc::default(),
            forced: Some(way.into()),
        }
    }

    /// The entries in the order given.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The way of the nearest size that was measured, at most an octave off along each axis.
    pub fn find(&self, problem: &Problem) -> Option<&str> {
        if let Some(way) = &self.forced {
            return Some(way);
        }
        let near = self.entries.iter().filter_map(|e| {
            let distance = e.problem.distance(problem)?;
            Some((distance, e))
        });
        let nearest = near.min_by(|a, b| a.0.total_cmp(&b.0));
        nearest.map(|(_, e)| e.way.as_str())
    }
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        for Entry { problem: p, way } in self.entries.iter() {
            let layout = if p.b_transposed { "nt" } else { "nn" };
            writeln!(f, "{} {layout} {} {} {} {way}", p.dtype, p.m, p.n, p.k)?;
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
        let mut lines = text.lines().zip(1..);
        if lines.next().map(|(first, _)| first) != Some(HEADER) {
            return Err(TuningError {
                line: 1,
                problem: "is not `tercet tuning 1`",
            });
        }
        let mut entries = Vec::new();
        for (text, line) in lines.filter(|(text, _)| !text.trim().is_empty()) {
            let entry = entry_of(text).ok_or(TuningError {
                line,
                problem: "is not a type, `nn` or `nt`, three sizes and a name",
            })?;
            entries.push(entry);
        }
        Ok(Tuning::new(entries))
    }
}

fn entry_of(line: &str) -> Option<Entry> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [dtype, layout, m, n, k, way] = fields[..] else {
        return None;
    };
    let b_transposed = match layout {
        "nn" => false,
        "nt" => true,
        _ => return None,
    };
    Some(Entry {
        problem: Problem {
            dtype: DType::from_name(dtype)?,
            b_transposed,
            m: m.parse().ok()?,
            n: n.parse().ok()?,
            k: k.parse().ok()?,
        },
        way: way.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(dtype: DType, size: usize, way: &str) -> Entry {
        Entry {
            problem: Problem {
                dtype,
                b_transposed: false,
                m: size,
                n: size,
                k: size,
            },
            way: way.to_string(),
        }
    }

    #[test]
    fn a_table_is_found_by_the_nearest_size_and_survives_its_text() {
        let table = Tuning::new(vec![
            entry(DType::F16, 1024, "small"),
            entry(DType::F16, 4096, "large"),
            entry(DType::BF16, 1024, "other"),
        ]);
        let find = |dtype, size| {
            table
                .find(&entry(dtype, size, "").problem)
                .map(String::from)
        };
        assert_eq!(find(DType::F16, 1100).as_deref(), Some("small"));
        assert_eq!(find(DType::F16, 2900).as_deref(), Some("large"));
        assert_eq!(find(DType::BF16, 512).as_deref(), Some("other"));
        assert_eq!(find(DType::F16, 500), None);
        assert_eq!(find(DType::F32, 1024), None);
        assert_eq!(table.to_string().parse(), Ok(table));
    }

    #[test]
    fn a_damaged_table_is_refused_with_its_line() {
        assert_eq!("".parse::<Tuning>().unwrap_err().line, 1);
        for damaged in [
            "f16 nn 1 2 3",
            "f16 nx 1 2 3 w",
            "f99 nn 1 2 3 w",
            "f16 nn 1 -2 3 w",
        ] {
            let text = format!("{HEADER}\n\n{damaged}\n");
            assert_eq!(text.parse::<Tuning>().unwrap_err().line, 3, "{damaged}");
        }
    }
}
