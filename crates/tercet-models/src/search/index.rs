//! The index: one safetensors file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::SearchError;
use super::files::{Unit, digest, passages, read, text};
use crate::safetensors::write::write_noted;
use crate::safetensors::{SafeDtype, SafeTensors};
use crate::save::{Entry, Storage};

/// Under which name the header has what vectors stand for.
const NOTE: &str = "tercet_search";
/// The version of the form.
const VERSION: u64 = 1;
/// How far from 1 the length of a vector may be.
const UNIT_WITHIN: f32 = 1e-3;

/// Choices that vectors depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchSettings {
    /// What a vector stands for.
    pub unit: Unit,
    /// What was put before each passage.
    pub prompt: String,
    /// Only so many leading elements of vectors, normalized again.
    pub dims: Option<usize>,
    /// Tokens of the longest passage, where it is not what the model says.
    pub most: Option<usize>,
    /// Whether longer passages are cut.
    pub cut: bool,
}

impl SearchSettings {
    /// As a person reads them.
    fn shown(&self) -> String {
        let mut all = vec![self.unit.name().to_string()];
        if !self.prompt.is_empty() {
            all.push(format!("the prompt {:?}", self.prompt));
        }
        if let Some(dims) = self.dims {
            all.push(format!("{dims} dimensions"));
        }
        if let Some(most) = self.most {
            all.push(format!("at most {most} tokens"));
        }
        if self.cut {
            all.push("long passages cut".to_string());
        }
        all.join(", ")
    }
}

/// A file that has vectors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Indexed {
    /// From the folder, with `/` between folders.
    pub(super) path: String,
    /// Of its content.
    pub(super) sha256: String,
    /// Its vectors.
    pub(super) count: usize,
    /// Whether these are all of it.
    pub(super) whole: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    version: u64,
    model: String,
    folder: PathBuf,
    settings: SearchSettings,
    width: usize,
    files: Vec<Indexed>,
}

/// The form of headers of any version.
#[derive(Deserialize)]
struct AnyVersion {
    version: u64,
}

/// Vectors of the passages or pictures of a folder.
#[derive(Clone, Debug)]
pub struct SearchIndex {
    /// Of the model that made it.
    pub(super) model: String,
    pub(super) folder: PathBuf,
    pub(super) settings: SearchSettings,
    pub(super) width: usize,
    pub(super) files: Vec<Indexed>,
    /// `[n, width]`.
    pub(super) vectors: Vec<f32>,
    /// First and last lines, `[n]`; zeros of pictures.
    pub(super) lines: Vec<[i32; 2]>,
}

/// What is near to a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The file, from the folder, with `/` between folders.
    pub file: String,
    /// Its first and last line, from 1 on; none of a picture.
    pub lines: Option<[usize; 2]>,
    /// The cosine of both vectors.
    pub score: f32,
}

/// What became of a passage since it was indexed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passage {
    /// It says this.
    Text(String),
    /// It is a picture.
    Picture,
    /// The file changed, or is gone.
    Changed,
}

impl SearchIndex {
    /// Reads an index.
    ///
    /// # Errors
    /// [`SearchError`]: the file is not there, is no index or a damaged one.
    pub fn open(path: impl AsRef<Path>) -> Result<SearchIndex, SearchError> {
        let path = path.as_ref();
        let file = SafeTensors::open(path).map_err(|source| SearchError::Unreadable {
            path: path.to_path_buf(),
            source,
        })?;
        let damaged = |reason: String| SearchError::Damaged {
            path: path.to_path_buf(),
            reason,
        };
        let Some(note) = file.metadata().get(NOTE) else {
            return Err(damaged(format!("its header has no `{NOTE}`")));
        };
        let header = |e: serde_json::Error| damaged(format!("its header: {e}"));
        let AnyVersion { version } = serde_json::from_str(note).map_err(header)?;
        if version != VERSION {
            return Err(SearchError::Version {
                path: path.to_path_buf(),
                version,
                known: VERSION,
            });
        }
        let Header {
            version: _,
            model,
            folder,
            settings,
            width,
            files,
        } = serde_json::from_str(note).map_err(header)?;
        let rows = files
            .iter()
            .try_fold(0usize, |sum, file| sum.checked_add(file.count));
        let rows = rows.ok_or_else(|| damaged("it has more vectors than can be".to_string()))?;
        let read = contents(&file, settings.unit, [rows, width]);
        let (vectors, lines) = read.map_err(damaged)?;
        Ok(SearchIndex {
            model,
            folder,
            settings,
            width,
            files,
            vectors,
            lines,
        })
    }

    /// Writes the index; what was there before stays until it is whole.
    pub(super) fn save(&self, path: &Path) -> Result<(), SearchError> {
        let header = Header {
            version: VERSION,
            model: self.model.clone(),
            folder: self.folder.clone(),
            settings: self.settings.clone(),
            width: self.width,
            files: self.files.clone(),
        };
        let note = serde_json::to_string(&header).map_err(|e| crate::SaveError::Header {
            path: path.to_path_buf(),
            reason: e.to_string(),
        })?;
        let vectors: Vec<u8> = self.vectors.iter().flat_map(|x| x.to_le_bytes()).collect();
        let lines = self.lines.iter().flatten();
        let lines: Vec<u8> = lines.flat_map(|x| x.to_le_bytes()).collect();
        let rows = self.lines.len();
        let of = |name: &str, dtype, shape: [usize; 2], bytes| {
            Entry::of(name, Storage::Safe(dtype), &shape, bytes)
        };
        let mut entries = vec![of("vectors", SafeDtype::F32, [rows, self.width], &vectors)];
        if self.settings.unit != Unit::Pictures {
            entries.push(of("lines", SafeDtype::I32, [rows, 2], &lines));
        }
        Ok(write_noted(path, entries, &[(NOTE, note)])?)
    }

    /// The folder that it is of.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The choices that it was made with.
    pub fn settings(&self) -> &SearchSettings {
        &self.settings
    }

    /// How many vectors there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Elements of a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The `n` nearest to a vector of unit length, the nearest first; of equal ones the first.
    ///
    /// # Panics
    /// Where the vector has another width than the index.
    pub fn nearest(&self, query: &[f32], n: usize) -> Vec<Found> {
        assert_eq!(query.len(), self.width, "the width of a query");
        let rows = self.vectors.chunks_exact(self.width.max(1));
        let mut scores: Vec<(f32, usize)> = rows
            .enumerate()
            .map(|(at, row)| (dot(query, row), at))
            .collect();
        let nearer = |a: &(f32, usize), b: &(f32, usize)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if n < scores.len() {
            scores.select_nth_unstable_by(n, nearer);
            scores.truncate(n);
        }
        scores.sort_by(nearer);
        scores
            .into_iter()
            .map(|(score, at)| self.found(score, at))
            .collect()
    }

    fn found(&self, score: f32, at: usize) -> Found {
        let mut before = 0;
        let file = self.files.iter().find(|file| {
            before += file.count;
            at < before
        });
        let file = file.expect("invariant: files have as many vectors as there are");
        let pictures = self.settings.unit == Unit::Pictures;
        Found {
            file: file.path.clone(),
            lines: (!pictures).then(|| self.lines[at].map(|line| line as usize)),
            score,
        }
    }

    /// What a passage says, read from the folder.
    pub fn passage(&self, found: &Found) -> Passage {
        let Some(lines) = found.lines else {
            return Passage::Picture;
        };
        let known = self.files.iter().find(|file| file.path == found.file);
        // The name comes from a file that anyone may have written.
        let plain = found
            .file
            .split('/')
            .all(|part| !part.is_empty() && part != "..");
        let bytes = (known.is_some() && plain).then(|| read(&self.folder, &found.file));
        let Some((Ok(Some(bytes)), known)) = bytes.zip(known) else {
            return Passage::Changed;
        };
        if digest(&bytes) != known.sha256 {
            return Passage::Changed;
        }
        let all = text(bytes).map(|text| passages(&text, self.settings.unit));
        let own = all.and_then(|all| all.into_iter().find(|(at, _)| *at == lines));
        own.map_or(Passage::Changed, |(_, text)| Passage::Text(text))
    }

    /// Refuses an index of another model, folder or choice.
    pub(super) fn check(
        &self,
        path: &Path,
        model: &str,
        of: Option<(&Path, &SearchSettings)>,
    ) -> Result<(), SearchError> {
        let path = path.to_path_buf();
        if self.model != model {
            return Err(SearchError::OtherModel { path });
        }
        let Some((folder, settings)) = of else {
            return Ok(());
        };
        if self.folder != folder {
            let folder = self.folder.clone();
            return Err(SearchError::OtherFolder { path, folder });
        }
        if self.settings != *settings {
            let (made, asked) = (self.settings.shown(), settings.shown());
            return Err(SearchError::OtherSettings { path, made, asked });
        }
        Ok(())
    }
}

/// The vectors and lines of a file that has nothing else; or what is wrong.
fn contents(
    file: &SafeTensors,
    unit: Unit,
    [rows, width]: [usize; 2],
) -> Result<(Vec<f32>, Vec<[i32; 2]>), String> {
    let pictures = unit == Unit::Pictures;
    let wanted: &[(&str, SafeDtype, [usize; 2])] = match pictures {
        true => &[("vectors", SafeDtype::F32, [rows, width])],
        false => &[
            ("lines", SafeDtype::I32, [rows, 2]),
            ("vectors", SafeDtype::F32, [rows, width]),
        ],
    };
    let found = file.tensors();
    let fits = found.len() == wanted.len()
        && (found.iter().zip(wanted)).all(|(info, (name, dtype, shape))| {
            info.name() == *name && info.dtype() == *dtype && info.shape() == shape
        });
    // Without a width there may be any number of vectors in no bytes.
    if !fits || width == 0 {
        let shown: Vec<String> = (found.iter().take(4))
            .map(|info| format!("{} {:?}", info.name(), info.shape()))
            .collect();
        let shown = crate::gguf::clip(&shown.join(", "));
        return Err(format!(
            "its files have {rows} vectors of {width} elements, its tensors are {shown}"
        ));
    }
    let words = |name: &str| {
        let bytes = file.find(name).map_or(&[][..], |info| file.data(info));
        bytes.as_chunks::<4>().0.iter().copied()
    };
    let vectors: Vec<f32> = words("vectors").map(f32::from_le_bytes).collect();
    let of_unit_length = |row: &[f32]| (dot(row, row) - 1.0).abs() <= UNIT_WITHIN;
    if !vectors.chunks_exact(width).all(of_unit_length) {
        return Err("a vector is not of length 1".to_string());
    }
    let numbers: Vec<i32> = words("lines").map(i32::from_le_bytes).collect();
    let lines = match pictures {
        true => vec![[0; 2]; rows],
        false => numbers.as_chunks::<2>().0.to_vec(),
    };
    let sound = |of: &[i32; 2]| pictures || (of[0] >= 1 && of[0] <= of[1]);
    match lines.iter().all(sound) {
        true => Ok((vectors, lines)),
        false => Err("lines are not from 1 on, or backwards".to_string()),
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Eight sums at a time, as vector units have them.
    let mut sums = [0.0f32; 8];
    let (a, b) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    for (x, y) in a.0.iter().zip(b.0) {
        for i in 0..8 {
            sums[i] += x[i] * y[i];
        }
    }
    let rest: f32 = a.1.iter().zip(b.1).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f32>() + rest
}
