//! Brings an index up to date: what changed in the folder is embedded, the rest kept.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tercet::Device;

use super::files::{Unit, digest, is_picture, passages, read, text, walk};
use super::index::{Indexed as Entry, SearchSettings};
use super::side::{Side, digest_of, document_prompt};
use super::{SearchError, SearchIndex};
use crate::builder::ModelError;
use crate::error::Error;
use crate::open::{EncoderOptions, Family, ModelFiles, Prompt};

/// So many passages are embedded together, of whatever files.
const SLICE: usize = 256;
/// Between two writings of an unfinished index there is at least this long, and so many times as long as writing took.
const BETWEEN: (Duration, u32) = (Duration::from_secs(10), 20);

/// How far an indexing is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files that are done, those that did not change among them.
    pub files: usize,
    /// Files in all.
    pub of_files: usize,
    /// Vectors made.
    pub vectors: usize,
}

/// What became of an indexing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexed {
    /// Vectors of the index.
    pub vectors: usize,
    /// Vectors that were made, not kept.
    pub made: usize,
    /// Files of the index.
    pub files: usize,
    /// Files that are no texts, or no pictures, or too large; they are not indexed.
    pub left_out: Vec<String>,
    /// Whether all was done.
    pub finished: bool,
}

/// What an index is made with.
pub struct Indexer {
    side: Side,
    model: String,
    settings: SearchSettings,
}

/// A passage on its way.
struct Waiting {
    /// Its file, among those of the index.
    file: usize,
    lines: [usize; 2],
    /// What is embedded: the text, or the path of a picture.
    item: String,
}

impl Indexer {
    /// Compiles the model for passages of `unit`; models of pictures index pictures, others texts. Of `options` the
    /// prompt is that of passages: the folder's own for them where none is asked for.
    ///
    /// # Errors
    /// [`Error`] of the model; [`ModelError::Unsupported`] where it has no vectors of this unit.
    pub fn new(
        files: &ModelFiles,
        device: &Device,
        options: &EncoderOptions,
        unit: Unit,
    ) -> Result<Indexer, Error> {
        let vision = files.family()? == Family::Vision;
        if vision != (unit == Unit::Pictures) {
            let what = if vision { "pictures" } else { "texts" };
            let reason = format!("the model makes an index of {what}, not of {}", unit.name());
            return Err(ModelError::Unsupported(reason).into());
        }
        let prompt = document_prompt(files, &options.prompt)?;
        let settings = SearchSettings {
            unit,
            prompt: prompt.clone(),
            dims: options.dims,
            most: options.most,
            cut: options.cut,
        };
        let options = EncoderOptions {
            prompt: Prompt::Text(prompt),
            ..options.clone()
        };
        let side = match vision {
            true => Side::Pictures(Box::new(files.picture_encoder(device, &options)?)),
            false => Side::Texts(Box::new(files.embedder(device, &options)?)),
        };
        Ok(Indexer {
            side,
            model: digest_of(files)?,
            settings,
        })
    }

    /// Makes the index of a folder at `path`, or brings it up to date: files of the same content keep their vectors.
    /// `progress` says with `false` that the rest is for another time; what was made until then is written, as it is now
    /// and then and before an error.
    ///
    /// # Errors
    /// [`Error::Search`] for a folder that cannot be read, an index of another model, folder or choice, and one that
    /// cannot be written; [`Error`] of the model.
    pub fn index(
        &mut self,
        folder: &Path,
        path: &Path,
        progress: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<Indexed, Error> {
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
        };
        let mut report = Indexed::default();
        let changed = kept(old.as_ref(), names, &mut made, &mut report.left_out)?;
        drop(old);
        let mut run = Run {
            side: &mut self.side,
            path,
            made,
            waiting: Vec::new(),
            state: Progress::default(),
            saved: (Instant::now(), Duration::ZERO),
        };
        run.state.files = run.made.files.iter().filter(|file| file.whole).count();
        run.state.of_files = run.state.files + changed.len();
        let went = run.all(&changed, &mut report.left_out, progress);
        // What was made is kept, whatever came between.
        run.save()?;
        report.finished = went?;
        report.vectors = run.made.len();
        report.made = run.state.vectors;
        report.files = run.made.files.len();
        Ok(report)
    }
}

/// Whether a file can have passages of this unit, by its name.
fn is_of(name: &str, unit: Unit) -> bool {
    unit != Unit::Pictures || is_picture(name)
}

/// Moves the vectors of files that did not change to the new index, those of a file that was not done last, and gives the
/// names of those that are to be read.
fn kept(
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
            (true, true) => keep(old, file, at, made),
            (true, false) => partial.push((name, at)),
            (false, _) => changed.push(name),
        }
    }
    // Vectors are made in the order of files: one of them at most was not done.
    for (number, (name, at)) in partial.into_iter().enumerate() {
        if let (0, Some(old)) = (number, old) {
            let file = known.get(name.as_str()).map(|(file, _)| *file);
            file.into_iter().for_each(|file| keep(old, file, at, made));
        }
        changed.insert(number, name);
    }
    Ok(changed)
}

fn keep(old: &SearchIndex, file: &Entry, at: usize, made: &mut SearchIndex) {
    let width = old.width;
    let rows = at..at + file.count;
    made.lines.extend_from_slice(&old.lines[rows.clone()]);
    made.vectors
        .extend_from_slice(&old.vectors[rows.start * width..rows.end * width]);
    made.files.push(file.clone());
}

/// An indexing under way.
struct Run<'a> {
    side: &'a mut Side,
    path: &'a Path,
    made: SearchIndex,
    waiting: Vec<Waiting>,
    state: Progress,
    /// When the index was written last, and how long that took.
    saved: (Instant, Duration),
}

impl Run<'_> {
    /// Reads and embeds these files; false where the rest is for another time.
    fn all(
        &mut self,
        changed: &[String],
        left_out: &mut Vec<String>,
        progress: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<bool, Error> {
        for name in changed {
            let bytes = read(&self.made.folder, name)?;
            let sha256 = bytes.as_deref().map(digest);
            let found = bytes.and_then(|bytes| self.found(name, bytes));
            let Some((sha256, found)) = sha256.zip(found) else {
                left_out.push(name.clone());
                self.state.of_files -= 1;
                continue;
            };
            let done = self.begin(name, sha256);
            let file = self.made.files.len() - 1;
            let last = found.len();
            for (number, (lines, item)) in found.into_iter().enumerate().skip(done) {
                self.waiting.push(Waiting { file, lines, item });
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

    /// The passages of a file; none where it has none of this kind.
    fn found(&self, name: &str, bytes: Vec<u8>) -> Option<Vec<([usize; 2], String)>> {
        match self.made.settings.unit {
            Unit::Pictures => {
                let path = self.made.folder.join(name).display().to_string();
                Some(vec![([0; 2], path)])
            }
            unit => Some(passages(&text(bytes)?, unit)),
        }
    }

    /// A file's vectors follow; so many are there already.
    fn begin(&mut self, name: &str, sha256: String) -> usize {
        let last = self.made.files.last_mut();
        if let Some(last) = last.filter(|f| !f.whole && f.path == name) {
            if last.sha256 == sha256 {
                return last.count;
            }
            let rows = self.made.lines.len() - last.count;
            self.made.lines.truncate(rows);
            self.made.vectors.truncate(rows * self.made.width);
            self.made.files.pop();
        }
        self.made.files.push(Entry {
            path: name.to_string(),
            sha256,
            count: 0,
            whole: false,
        });
        0
    }

    /// All vectors of a file are there.
    fn close(&mut self, file: usize) {
        let file = &mut self.made.files[file];
        if !std::mem::replace(&mut file.whole, true) {
            self.state.files += 1;
        }
    }

    /// Embeds what waits; files before the last of it are whole then, and that one if it is `done`. False where no more is
    /// wanted.
    fn embed(
        &mut self,
        done: Option<usize>,
        progress: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<bool, Error> {
        let waiting = std::mem::take(&mut self.waiting);
        let items: Vec<String> = waiting.iter().map(|waiting| waiting.item.clone()).collect();
        let (state, mut wanted) = (self.state, true);
        let rows = self.side.unit_vectors(&items, &mut |count| {
            wanted = progress(Progress {
                vectors: state.vectors + count,
                ..state
            });
            wanted
        });
        let rows = rows.map_err(|e| self.placed(e, &waiting))?;
        // Of a slice that was not finished some vectors are there, in no order: none is taken.
        if !wanted {
            return Ok(false);
        }
        let end = waiting.last().map_or(0, |waiting| waiting.file);
        for (waiting, row) in waiting.iter().zip(rows) {
            let row = row.ok_or_else(|| SearchError::NoDirection {
                what: format!("a passage of {}", self.place(waiting).display()),
            })?;
            self.made.vectors.extend_from_slice(&row);
            let lines = waiting
                .lines
                .map(|line| i32::try_from(line).unwrap_or(i32::MAX));
            self.made.lines.push(lines);
            self.made.files[waiting.file].count += 1;
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

    fn place(&self, waiting: &Waiting) -> PathBuf {
        self.made.folder.join(&self.made.files[waiting.file].path)
    }

    /// An error that says which passage it is about.
    fn placed(&self, e: Error, waiting: &[Waiting]) -> Error {
        let Error::Model(ModelError::TextTooLong { text, tokens, most }) = e else {
            return e;
        };
        let Some(of) = text.checked_sub(1).and_then(|at| waiting.get(at)) else {
            return e;
        };
        let (path, line) = (self.place(of), of.lines[0]);
        let error = SearchError::TooLong {
            path,
            line,
            tokens,
            most,
        };
        error.into()
    }

    fn save(&mut self) -> Result<(), SearchError> {
        let started = Instant::now();
        // A file without a vector that is not done is not there yet.
        self.made.files.retain(|file| file.whole || file.count > 0);
        self.made.save(self.path)?;
        self.saved = (Instant::now(), started.elapsed());
        Ok(())
    }
}
