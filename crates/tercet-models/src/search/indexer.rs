//! Incremental update of an index: changed files are embedded, other vectors are reused.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tercet::Device;

use super::embedder::{EmbedderKind, check_pooling, digest_of, document_prompt};
use super::files::{IndexUnit, Passage, digest, is_image, passages, read, text, walk};
use super::index::{IndexedFile as Entry, SearchSettings};
use super::{SearchError, SearchIndex};
use crate::error::Error;
use crate::family::ModelFamily;
use crate::open::{EmbeddingPrompt, EncoderOptions, ModelFiles};
use tercet_networks::ModelError;

/// Number of passages that are embedded together, across file boundaries.
const SLICE: usize = 256;
/// Minimum interval between saves of an unfinished index, as a time and as a multiple of the last
/// save's duration.
const BETWEEN: (Duration, u32) = (Duration::from_secs(10), 20);

/// The progress of indexing.
///
/// ```
/// use tercet_models::search::IndexProgress;
/// let progress = IndexProgress { files: 3, file_count: 4, vectors: 20 };
/// assert!(progress.files < progress.file_count);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexProgress {
    /// Number of finished files, including unchanged ones.
    pub files: usize,
    /// Total number of files.
    pub file_count: usize,
    /// Number of new vectors.
    pub vectors: usize,
}

/// The result of indexing.
///
/// ```
/// use tercet_models::search::IndexStats;
/// let stats = IndexStats { vectors: 20, embedded: 5, finished: true, ..IndexStats::default() };
/// assert_eq!(stats.vectors - stats.embedded, 15);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Number of vectors in the index.
    pub vectors: usize,
    /// Number of new vectors, without reused ones.
    pub embedded: usize,
    /// Number of files in the index.
    pub files: usize,
    /// Files that are not texts or images, or too large; they are not indexed.
    pub skipped: Vec<String>,
    /// Whether all files were indexed.
    pub finished: bool,
}

/// A compiled model with the settings for indexing.
///
/// ```no_run
/// use std::path::Path;
/// use tercet_models::search::{IndexUnit, Indexer};
/// use tercet_models::{EncoderOptions, ModelFiles};
/// let (files, device) = (ModelFiles::open("all-MiniLM-L6-v2")?, tercet::Device::cpu());
/// let options = EncoderOptions::default();
/// let mut indexer = Indexer::new(&files, &device, &options, IndexUnit::Paragraphs)?;
/// let stats = indexer.index(Path::new("notes"), Path::new("notes.index"), &mut |_| true)?;
/// assert!(stats.finished);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Indexer {
    side: EmbedderKind,
    model: String,
    settings: SearchSettings,
}

/// A passage that waits to be embedded.
struct PendingPassage {
    /// Index of the passage's file in the search index.
    file: usize,
    place: Passage,
    /// The text to embed, or the path of an image.
    item: String,
}

impl Indexer {
    /// Compiles the model for passages of `unit`. Vision models index images, other models index
    /// texts. The prompt in `options` applies to passages; by default it is the folder's document
    /// prompt.
    ///
    /// # Errors
    /// [`Error`] of the model; [`ModelError::Unsupported`] if it has no vectors of this unit.
    pub fn new(
        files: &ModelFiles,
        device: &Device,
        options: &EncoderOptions,
        unit: IndexUnit,
    ) -> Result<Indexer, Error> {
        let vision = files.family()? == ModelFamily::Vision;
        if vision != (unit == IndexUnit::Pictures) {
            let what = if vision { "pictures" } else { "texts" };
            let reason = format!(
                "the model can build an index of {what}, not of {}",
                unit.name()
            );
            return Err(ModelError::Unsupported(reason).into());
        }
        check_pooling(files, options.pooling)?;
        let prompt = document_prompt(files, &options.prompt)?;
        let settings = SearchSettings {
            unit,
            prompt: prompt.clone(),
            dims: options.dims,
            most: options.max_tokens,
            cut: options.truncate,
            pooling: options.pooling,
        };
        let options = EncoderOptions {
            prompt: EmbeddingPrompt::Text(prompt),
            ..options.clone()
        };
        let side = match vision {
            true => EmbedderKind::Image(Box::new(files.image_embedder(device, &options)?)),
            false => EmbedderKind::Text(Box::new(files.embedder(device, &options)?)),
        };
        Ok(Indexer {
            side,
            model: digest_of(files)?,
            settings,
        })
    }

    /// Creates the index of a folder at `path`, or updates it: files with the same content keep
    /// their vectors.
    ///
    /// If `progress` returns `false`, indexing stops early. The unfinished index is saved then,
    /// before an error is returned, and at intervals.
    ///
    /// # Errors
    /// [`Error::Search`] if the folder cannot be read, the index belongs to another model, folder
    /// or settings, or it cannot be written. [`Error`] of the model.
    pub fn index(
        &mut self,
        folder: &Path,
        path: &Path,
        progress: &mut dyn FnMut(IndexProgress) -> bool,
    ) -> Result<IndexStats, Error> {
        let folder = std::fs::canonicalize(folder).map_err(|source| SearchError::Folder {
            path: folder.to_path_buf(),
            source,
        })?;
        let old = match path.exists() {
            true => Some(SearchIndex::open(path)?),
            false => None,
        };
        if let Some(old) = &old {
            old.check(path, &self.model, Some((&folder, &self.settings)))?;
        }
        let names = walk(&folder, path)?;
        let mut made = SearchIndex {
            model: self.model.clone(),
            folder,
            settings: self.settings.clone(),
            width: self.side.width(),
            files: Vec::new(),
            vectors: Vec::new(),
            lines: Vec::new(),
            bytes: Vec::new(),
        };
        let mut report = IndexStats::default();
        let changed = reused_vectors(old.as_ref(), names, &mut made, &mut report.skipped)?;
        drop(old);
        let mut run = IndexRun {
            side: &mut self.side,
            path,
            index: made,
            waiting: Vec::new(),
            state: IndexProgress::default(),
            saved: (Instant::now(), Duration::ZERO),
        };
        run.state.files = run.index.files.iter().filter(|file| file.whole).count();
        run.state.file_count = run.state.files + changed.len();
        let went = run.all(&changed, &mut report.skipped, progress);
        // Save the finished vectors even after an error or an early stop. An index without vectors
        // would answer every question with nothing.
        let empty = run.index.is_empty();
        if !empty {
            run.save()?;
        }
        report.finished = went?;
        if empty && report.finished {
            return Err(SearchError::NothingIndexed {
                path: run.index.folder.clone(),
                unit: self.settings.unit.name(),
            }
            .into());
        }
        report.vectors = run.index.len();
        report.embedded = run.state.vectors;
        report.files = run.index.files.len();
        Ok(report)
    }
}

/// Whether a file may have passages of this unit, by its name.
fn is_of(name: &str, unit: IndexUnit) -> bool {
    unit != IndexUnit::Pictures || is_image(name)
}

/// Copies the vectors of unchanged files to the new index, and then those of the partly indexed
/// file. Returns the names of the files to read.
fn reused_vectors(
    old: Option<&SearchIndex>,
    names: Vec<String>,
    made: &mut SearchIndex,
    left_out: &mut Vec<String>,
) -> Result<Vec<String>, SearchError> {
    let mut known = std::collections::HashMap::new();
    let mut at = 0;
    for file in old.iter().flat_map(|old| &old.files) {
        known.insert(file.path.as_str(), (file, at));
        at += file.count;
    }
    let (mut changed, mut partial) = (Vec::new(), Vec::new());
    for name in names {
        if !is_of(&name, made.settings.unit) {
            left_out.push(name);
            continue;
        }
        let found = known.get(name.as_str());
        let Some((old, (file, at))) = old.zip(found.copied()) else {
            changed.push(name);
            continue;
        };
        let same = read(&made.folder, &name)?.is_some_and(|bytes| digest(&bytes) == file.sha256);
        match (same, file.whole) {
            (true, true) => reuse_vector(old, file, at, made),
            (true, false) => partial.push((name, at)),
            (false, _) => changed.push(name),
        }
    }
    // Files are indexed in order, so at most one of them is partly indexed.
    for (number, (name, at)) in partial.into_iter().enumerate() {
        if let (0, Some(old)) = (number, old) {
            let file = known.get(name.as_str()).map(|(file, _)| *file);
            file.into_iter()
                .for_each(|file| reuse_vector(old, file, at, made));
        }
        changed.insert(number, name);
    }
    Ok(changed)
}

fn reuse_vector(old: &SearchIndex, file: &Entry, at: usize, made: &mut SearchIndex) {
    let width = old.width;
    let rows = at..at + file.count;
    made.lines.extend_from_slice(&old.lines[rows.clone()]);
    made.bytes.extend_from_slice(&old.bytes[rows.clone()]);
    made.vectors
        .extend_from_slice(&old.vectors[rows.start * width..rows.end * width]);
    made.files.push(file.clone());
}

/// The state of an indexing run.
struct IndexRun<'a> {
    side: &'a mut EmbedderKind,
    path: &'a Path,
    index: SearchIndex,
    waiting: Vec<PendingPassage>,
    state: IndexProgress,
    /// Time and duration of the last save.
    saved: (Instant, Duration),
}

impl IndexRun<'_> {
    /// Reads and embeds these files; returns false after an early stop.
    fn all(
        &mut self,
        changed: &[String],
        left_out: &mut Vec<String>,
        progress: &mut dyn FnMut(IndexProgress) -> bool,
    ) -> Result<bool, Error> {
        for name in changed {
            let bytes = read(&self.index.folder, name)?;
            let sha256 = bytes.as_deref().map(digest);
            let found = match bytes {
                Some(bytes) => self.found(name, bytes)?,
                None => None,
            };
            let Some((sha256, found)) = sha256.zip(found) else {
                left_out.push(name.clone());
                self.state.file_count -= 1;
                continue;
            };
            let done = self.begin(name, sha256);
            let file = self.index.files.len() - 1;
            let last = found.len();
            for (number, (place, item)) in found.into_iter().enumerate().skip(done) {
                self.waiting.push(PendingPassage { file, place, item });
                let full = self.waiting.len() >= SLICE;
                if full && !self.embed((number + 1 == last).then_some(file), progress)? {
                    return Ok(false);
                }
            }
            if self.waiting.iter().all(|waiting| waiting.file != file) {
                self.close(file);
            }
        }
        match self.waiting.last().map(|waiting| waiting.file) {
            Some(file) => self.embed(Some(file), progress),
            None => Ok(true),
        }
    }

    /// The passages of a file, or overlapping pieces of them where they exceed the model's length, with
    /// their texts; `None` if the file has none of this unit.
    fn found(&self, name: &str, bytes: Vec<u8>) -> Result<Option<Vec<(Passage, String)>>, Error> {
        let SearchSettings { unit, cut, .. } = self.index.settings;
        if unit == IndexUnit::Pictures {
            let path = self.index.folder.join(name).display().to_string();
            let place = Passage {
                lines: [0; 2],
                bytes: 0..0,
            };
            return Ok(Some(vec![(place, path)]));
        }
        let Some(text) = text(bytes) else {
            return Ok(None);
        };
        let mut found = Vec::new();
        for passage in passages(&text, unit) {
            let pieces = match (cut, &*self.side) {
                (false, EmbedderKind::Text(embedder)) => {
                    embedder.pieces(&text[passage.bytes.clone()])?
                }
                _ => std::iter::once(0..passage.bytes.len()).collect(),
            };
            let pieces = pieces.into_iter().map(|piece| passage.part(&text, piece));
            found.extend(pieces.map(|piece| (piece.clone(), piece.text(&text))));
        }
        Ok(Some(found))
    }

    /// Starts a file and returns the number of its vectors that the index already has.
    fn begin(&mut self, name: &str, sha256: String) -> usize {
        let last = self.index.files.last_mut();
        if let Some(last) = last.filter(|f| !f.whole && f.path == name) {
            if last.sha256 == sha256 {
                return last.count;
            }
            let rows = self.index.lines.len() - last.count;
            self.index.lines.truncate(rows);
            self.index.bytes.truncate(rows);
            self.index.vectors.truncate(rows * self.index.width);
            self.index.files.pop();
        }
        self.index.files.push(Entry {
            path: name.to_string(),
            sha256,
            count: 0,
            whole: false,
        });
        0
    }

    /// Marks a file as completely indexed.
    fn close(&mut self, file: usize) {
        let file = &mut self.index.files[file];
        if !std::mem::replace(&mut file.whole, true) {
            self.state.files += 1;
        }
    }

    /// Embeds the waiting passages. Files before the last passage's file are complete afterwards,
    /// and that file too if it is `done`. Returns false after an early stop.
    fn embed(
        &mut self,
        done: Option<usize>,
        progress: &mut dyn FnMut(IndexProgress) -> bool,
    ) -> Result<bool, Error> {
        let waiting = std::mem::take(&mut self.waiting);
        let items: Vec<String> = waiting.iter().map(|waiting| waiting.item.clone()).collect();
        let (state, mut wanted) = (self.state, true);
        let rows = self.side.unit_vectors(&items, &mut |count| {
            wanted = progress(IndexProgress {
                vectors: state.vectors + count,
                ..state
            });
            wanted
        });
        let rows = rows.map_err(|e| self.placed(e, &waiting))?;
        // An aborted batch has vectors in arbitrary order, so it is discarded.
        if !wanted {
            return Ok(false);
        }
        let end = waiting.last().map_or(0, |waiting| waiting.file);
        for (waiting, row) in waiting.iter().zip(rows) {
            let row = row.ok_or_else(|| SearchError::NoDirection {
                what: format!("a passage of {}", self.place(waiting).display()),
            })?;
            self.index.vectors.extend_from_slice(&row);
            let Passage { lines, bytes } = &waiting.place;
            // A file has at most 256 MiB.
            let number = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
            self.index.lines.push(lines.map(number));
            self.index.bytes.push([bytes.start, bytes.end].map(number));
            self.index.files[waiting.file].count += 1;
            self.state.vectors += 1;
        }
        for waiting in &waiting {
            if waiting.file < end || done == Some(waiting.file) {
                self.close(waiting.file);
            }
        }
        wanted = progress(self.state);
        let (last, took) = self.saved;
        if last.elapsed() > BETWEEN.0.max(took * BETWEEN.1) {
            self.save()?;
        }
        Ok(wanted)
    }

    fn place(&self, waiting: &PendingPassage) -> PathBuf {
        self.index.folder.join(&self.index.files[waiting.file].path)
    }

    /// Adds the location of the passage to an error.
    fn placed(&self, e: Error, waiting: &[PendingPassage]) -> Error {
        let (text, most, length) = match e {
            Error::Model(ModelError::TextTooLong { text, tokens, most }) => {
                (text, most, format!("{tokens} tokens"))
            }
            Error::Model(ModelError::TextTooManyBytes { text, bytes, most }) => {
                (text, most, format!("{bytes} bytes"))
            }
            e => return e,
        };
        let Some(of) = text.checked_sub(1).and_then(|at| waiting.get(at)) else {
            return e;
        };
        let (path, line) = (self.place(of), of.place.lines[0]);
        let error = SearchError::TooLong {
            path,
            line,
            length,
            most,
        };
        error.into()
    }

    fn save(&mut self) -> Result<(), SearchError> {
        let started = Instant::now();
        // An incomplete file without vectors is not listed.
        self.index.files.retain(|file| file.whole || file.count > 0);
        self.index.save(self.path)?;
        self.saved = (Instant::now(), started.elapsed());
        Ok(())
    }
}
