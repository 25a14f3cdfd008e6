//! The index, stored as one safetensors file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::SearchError;
use super::files::{IndexUnit, Passage, digest, read, text};
use tercet_files::safetensors::{SafeDtype, SafeTensors};
use tercet_files::writing::write_noted;
use tercet_files::writing::{SavedTensorEntry, SavedTensorStorage};
use tercet_networks::PoolingMode;

/// The header key of the index's JSON metadata.
const NOTE: &str = "tercet_search";
/// The version of the index format.
const VERSION: u64 = 2;
/// Maximum deviation of a vector's length from 1.
const UNIT_WITHIN: f32 = 1e-3;

/// The settings that determine the vectors.
///
/// ```
/// use tercet_models::search::{IndexUnit, SearchSettings};
/// let (unit, prompt) = (IndexUnit::Lines, "passage: ".to_string());
/// let settings =
///     SearchSettings { unit, prompt, dims: Some(256), most: None, cut: false, pooling: None };
/// assert_eq!(settings.unit.name(), "lines");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchSettings {
    /// The unit that each vector represents.
    pub unit: IndexUnit,
    /// The prompt that was prepended to each passage.
    pub prompt: String,
    /// If set, vectors are truncated to this number of leading elements and normalized again.
    pub dims: Option<usize>,
    /// Maximum passage length in tokens; `None` for the model's limit.
    pub most: Option<usize>,
    /// Whether longer passages are truncated. Otherwise they are cut into overlapping pieces.
    pub cut: bool,
    /// Pooling of the token states; `None` for that of the model's files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pooling: Option<PoolingMode>,
}

impl SearchSettings {
    /// The settings in readable form.
    fn summary(&self) -> String {
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
            all.push("long passages truncated".to_string());
        }
        if let Some(pooling) = self.pooling {
            all.push(format!("{} pooling", pooling.name()));
        }
        all.join(", ")
    }
}

/// A file in the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IndexedFile {
    /// Path relative to the folder, with `/` as separator.
    pub(super) path: String,
    /// SHA-256 digest of the content.
    pub(super) sha256: String,
    /// Number of vectors.
    pub(super) count: usize,
    /// Whether the file is completely indexed.
    pub(super) whole: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexHeader {
    version: u64,
    model: String,
    folder: PathBuf,
    settings: SearchSettings,
    width: usize,
    files: Vec<IndexedFile>,
}

/// The part of the header that all format versions share.
#[derive(Deserialize)]
struct IndexHeaderVersion {
    version: u64,
}

/// An index with the vectors of a folder's passages or images.
///
/// ```no_run
/// use tercet_models::search::SearchIndex;
/// let index = SearchIndex::open("notes.index")?;
/// let mut query = vec![0.0; index.width()];
/// query[0] = 1.0;
/// assert!(index.nearest(&query, 5).len() <= 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SearchIndex {
    /// Digest of the model that produced the index.
    pub(super) model: String,
    pub(super) folder: PathBuf,
    pub(super) settings: SearchSettings,
    pub(super) width: usize,
    pub(super) files: Vec<IndexedFile>,
    /// The vectors, `[n, width]`.
    pub(super) vectors: Vec<f32>,
    /// First and last line of each passage, `[n]`; zeros for images.
    pub(super) lines: Vec<[i32; 2]>,
    /// First byte of each passage in its file, and the byte after its last, `[n]`; zeros for images.
    pub(super) bytes: Vec<[i32; 2]>,
}

/// A search result.
///
/// ```
/// use tercet_models::search::Hit;
/// let (lines, bytes) = (Some([3, 5]), Some([40, 96]));
/// let hit = Hit { file: "notes/todo.md".to_string(), lines, bytes, score: 0.8 };
/// assert_eq!(hit.lines.map(|[first, last]| last - first + 1), Some(3));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// Path of the file relative to the folder, with `/` as separator.
    pub file: String,
    /// First and last line of the passage, from 1; `None` for an image.
    pub lines: Option<[usize; 2]>,
    /// First byte of the passage in the file, and the byte after its last; `None` for an image. A long
    /// line has several passages.
    pub bytes: Option<[usize; 2]>,
    /// Cosine similarity of result and query.
    pub score: f32,
}

/// The current content of an indexed passage.
///
/// ```no_run
/// use tercet_models::search::{PassageState, SearchIndex};
/// let index = SearchIndex::open("notes.index")?;
/// let query = vec![0.0; index.width()];
/// for hit in index.nearest(&query, 5) {
///     assert!(!matches!(index.passage(&hit), PassageState::Changed));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassageState {
    /// The text of the passage.
    Text(String),
    /// The passage is an image.
    Picture,
    /// The file has changed since it was indexed, or no longer exists.
    Changed,
}

impl SearchIndex {
    /// Reads an index.
    ///
    /// # Errors
    /// [`SearchError`]: the file does not exist, is not an index, or is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<SearchIndex, SearchError> {
        let path = path.as_ref();
        if !path.exists() {
            let path = path.to_path_buf();
            return Err(SearchError::NotFound { path });
        }
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
        let IndexHeaderVersion { version } = serde_json::from_str(note).map_err(header)?;
        if version != VERSION {
            return Err(SearchError::Version {
                path: path.to_path_buf(),
                version,
                known: VERSION,
            });
        }
        let IndexHeader {
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
        let rows = rows.ok_or_else(|| damaged("it has too many vectors".to_string()))?;
        let read = contents(&file, settings.unit, [rows, width]);
        let IndexContents {
            vectors,
            lines,
            bytes,
        } = read.map_err(damaged)?;
        Ok(SearchIndex {
            model,
            folder,
            settings,
            width,
            files,
            vectors,
            lines,
            bytes,
        })
    }

    /// Writes the index atomically; until it is complete the previous file stays.
    pub(super) fn save(&self, path: &Path) -> Result<(), SearchError> {
        let header = IndexHeader {
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
        let pairs = |pairs: &[[i32; 2]]| -> Vec<u8> {
            let numbers = pairs.iter().flatten();
            numbers.flat_map(|x| x.to_le_bytes()).collect()
        };
        let (lines, bytes) = (pairs(&self.lines), pairs(&self.bytes));
        let rows = self.lines.len();
        let of = |name: &str, dtype, shape: [usize; 2], bytes| {
            SavedTensorEntry::new(name, SavedTensorStorage::Safe(dtype), &shape, bytes)
        };
        let mut entries = vec![of("vectors", SafeDtype::F32, [rows, self.width], &vectors)];
        if self.settings.unit != IndexUnit::Pictures {
            entries.push(of("bytes", SafeDtype::I32, [rows, 2], &bytes));
            entries.push(of("lines", SafeDtype::I32, [rows, 2], &lines));
        }
        Ok(write_noted(path, entries, &[(NOTE, note)])?)
    }

    /// The indexed folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The settings of the index.
    pub fn settings(&self) -> &SearchSettings {
        &self.settings
    }

    /// Number of vectors.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether the index has no vectors.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Number of elements per vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The `n` nearest results for a query vector of unit length, best first; ties are in index
    /// order.
    ///
    /// # Panics
    /// Panics if the query's width differs from the index's.
    pub fn nearest(&self, query: &[f32], n: usize) -> Vec<Hit> {
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

    fn found(&self, score: f32, at: usize) -> Hit {
        let mut before = 0;
        let file = self.files.iter().find(|file| {
            before += file.count;
            at < before
        });
        let file = file.expect("invariant: files have as many vectors as there are");
        let pictures = self.settings.unit == IndexUnit::Pictures;
        Hit {
            file: file.path.clone(),
            lines: (!pictures).then(|| self.lines[at].map(|line| line as usize)),
            bytes: (!pictures).then(|| self.bytes[at].map(|byte| byte as usize)),
            score,
        }
    }

    /// Reads the current content of a result from the folder.
    pub fn passage(&self, found: &Hit) -> PassageState {
        let (Some(lines), Some([start, end])) = (found.lines, found.bytes) else {
            return PassageState::Picture;
        };
        let known = self.files.iter().find(|file| file.path == found.file);
        // The path comes from an untrusted file.
        let plain = found
            .file
            .split('/')
            .all(|part| !part.is_empty() && part != "..");
        let bytes = (known.is_some() && plain).then(|| read(&self.folder, &found.file));
        let Some((Ok(Some(bytes)), known)) = bytes.zip(known) else {
            return PassageState::Changed;
        };
        if digest(&bytes) != known.sha256 {
            return PassageState::Changed;
        }
        let passage = Passage {
            lines,
            bytes: start..end,
        };
        let text = text(bytes).filter(|text| text.get(start..end).is_some());
        text.map_or(PassageState::Changed, |text| {
            PassageState::Text(passage.text(&text))
        })
    }

    /// Checks that the index matches the model, folder and settings.
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
            let (made, asked) = (self.settings.summary(), settings.summary());
            return Err(SearchError::OtherSettings { path, made, asked });
        }
        Ok(())
    }
}

/// The tensors of an index.
struct IndexContents {
    vectors: Vec<f32>,
    lines: Vec<[i32; 2]>,
    bytes: Vec<[i32; 2]>,
}

/// The contents of a file without other tensors; an error message otherwise.
fn contents(
    file: &SafeTensors,
    unit: IndexUnit,
    [rows, width]: [usize; 2],
) -> Result<IndexContents, String> {
    let pictures = unit == IndexUnit::Pictures;
    let wanted: &[(&str, SafeDtype, [usize; 2])] = match pictures {
        true => &[("vectors", SafeDtype::F32, [rows, width])],
        false => &[
            ("bytes", SafeDtype::I32, [rows, 2]),
            ("lines", SafeDtype::I32, [rows, 2]),
            ("vectors", SafeDtype::F32, [rows, width]),
        ],
    };
    let found = file.tensors();
    let fits = found.len() == wanted.len()
        && (found.iter().zip(wanted)).all(|(info, (name, dtype, shape))| {
            info.name() == *name && info.dtype() == *dtype && info.shape() == shape
        });
    // With a width of 0, any number of vectors would fit into 0 bytes.
    if !fits || width == 0 {
        let shown: Vec<String> = (found.iter().take(4))
            .map(|info| format!("{} {:?}", info.name(), info.shape()))
            .collect();
        let shown = tercet_files::clip(&shown.join(", "));
        return Err(format!(
            "its files have {rows} vectors of {width} elements, but its tensors are {shown}"
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
    let pairs = |name: &str| match pictures {
        true => vec![[0; 2]; rows],
        false => {
            let numbers: Vec<i32> = words(name).map(i32::from_le_bytes).collect();
            numbers.as_chunks::<2>().0.to_vec()
        }
    };
    let (lines, bytes) = (pairs("lines"), pairs("bytes"));
    let rises = |of: &[i32; 2], least: i32| pictures || (of[0] >= least && of[0] <= of[1]);
    if !lines.iter().all(|of| rises(of, 1)) {
        return Err("line numbers are below 1 or reversed".to_string());
    }
    if !bytes.iter().all(|of| rises(of, 0)) {
        return Err("byte positions are below 0 or reversed".to_string());
    }
    Ok(IndexContents {
        vectors,
        lines,
        bytes,
    })
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Eight independent sums, so that the compiler can vectorize.
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
