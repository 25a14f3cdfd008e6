//! Split models: several GGUF files `NAME-00001-of-0000N.gguf`, as `llama-gguf-split` writes them.
//!
//! Every part stores its number from 0 (`split.no`), the number of parts (`split.count`) and the
//! total number of tensors (`split.tensors.count`). The first part has the model's metadata; any
//! part may have tensors. Opening any part maps all of them into one [`Gguf`]. It is an error if a
//! part is missing, if a part's keys differ from its file name, or if parts contradict each other.

use std::path::{Path, PathBuf};

use super::error::GgufError;
use super::tensors::GgufTensors;
use super::{Gguf, GgufMetadata, MAX_ENTRIES};
use crate::foreign::clip;
use crate::mmap::{FileError, MappedFile};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// The keys of a part that an unsplit file does not have.
pub(crate) const KEYS: [&str; 3] = [NUMBER, COUNT, TENSORS];
/// Maximum number of parts: part numbers in file names have five digits.
const MAX_PARTS: u32 = 99_999;

/// The part number and part count of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GgufSplitIndex {
    /// The part number, from 0 and below `count`.
    number: u32,
    /// The number of parts; at least 2.
    count: u32,
}

impl GgufSplitIndex {
    /// Reads the split keys; `None` for an unsplit or merged file.
    pub(super) fn read(metadata: &GgufMetadata) -> Result<Option<GgufSplitIndex>, GgufError> {
        let count = metadata.opt_u32(COUNT)?.unwrap_or(1);
        // `llama-gguf-split --merge` keeps the keys of the first part and sets the count to 0.
        if count <= 1 {
            return Ok(None);
        }
        let number = metadata.opt_u32(NUMBER)?.unwrap_or(0);
        if count > MAX_PARTS || number >= count {
            return Err(GgufError::BadSplit { number, count });
        }
        Ok(Some(GgufSplitIndex { number, count }))
    }

    /// The error for a part whose other parts cannot be located.
    pub(super) fn missing_parts_error(self) -> GgufError {
        GgufError::PartAlone {
            number: self.number + 1,
            count: self.count,
        }
    }

    fn suffix(self) -> String {
        format!("-{:05}-of-{:05}.gguf", self.number + 1, self.count)
    }
}

/// Joins all parts of the split model to which `part`, the file at `path`, belongs.
pub(super) fn join(part: Gguf, place: GgufSplitIndex, path: &Path) -> Result<Gguf, GgufError> {
    let suffix = place.suffix();
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(stem) = name.and_then(|name| name.strip_suffix(&suffix)) else {
        return Err(GgufError::PartName {
            path: path.to_path_buf(),
            number: place.number + 1,
            count: place.count,
            suffix,
        });
    };
    let mut opened = Some(part);
    let mut whole: Option<GgufSplitJoiner> = None;
    for number in 0..place.count {
        let at = GgufSplitIndex { number, ..place };
        let (part, path) = match opened.take_if(|_| number == place.number) {
            Some(part) => (part, path.to_path_buf()),
            None => {
                let path = path.with_file_name(format!("{stem}{}", at.suffix()));
                (open(&path, at)?, path)
            }
        };
        match &mut whole {
            None => whole = Some(GgufSplitJoiner::new(part, path)?),
            Some(whole) => whole.add(part, path)?,
        }
    }
    // There are at least two parts.
    whole.ok_or_else(|| place.missing_parts_error())?.finish()
}

/// Opens another part of the model.
fn open(path: &Path, at: GgufSplitIndex) -> Result<Gguf, GgufError> {
    let (number, count) = (at.number + 1, at.count);
    let damaged = |source: GgufError| GgufError::Part {
        path: path.to_path_buf(),
        number,
        count,
        source: Box::new(source),
    };
    let file = match MappedFile::open(path) {
        Ok(file) => file,
        Err(FileError::NotFound { path }) => {
            return Err(GgufError::MissingPart {
                path,
                number,
                count,
            });
        }
        Err(other) => return Err(damaged(other.into())),
    };
    let part = Gguf::parse_part(file).map_err(damaged)?;
    match GgufSplitIndex::read(&part.metadata).map_err(damaged)? {
        Some(found) if found == at => Ok(part),
        Some(found) => Err(mismatch(
            path,
            format!(
                "its metadata has part {} of {}",
                found.number + 1,
                found.count
            ),
        )),
        None => Err(mismatch(
            path,
            "its metadata is that of a whole file".to_owned(),
        )),
    }
}

fn mismatch(path: &Path, reason: String) -> GgufError {
    GgufError::PartMismatch {
        path: path.to_path_buf(),
        reason,
    }
}

/// Accumulator that starts with the first part and adds the others.
struct GgufSplitJoiner {
    first: Gguf,
    /// The expected total number of tensors.
    expected: Option<u64>,
    paths: Vec<PathBuf>,
    tensors: Vec<GgufTensors>,
}

impl GgufSplitJoiner {
    fn new(first: Gguf, path: PathBuf) -> Result<GgufSplitJoiner, GgufError> {
        Ok(GgufSplitJoiner {
            expected: first.metadata.opt_u64(TENSORS)?,
            tensors: vec![first.tensors.clone()],
            paths: vec![path],
            first,
        })
    }

    /// Adds a part, after a check that its metadata agrees with the first part's.
    fn add(&mut self, part: Gguf, path: PathBuf) -> Result<(), GgufError> {
        for (key, value) in part.metadata.iter().filter(|(key, _)| *key != NUMBER) {
            // Each part may have a different alignment.
            if key == "general.alignment" {
                continue;
            }
            match self.first.metadata.get(key) {
                Some(same) if same == value => {}
                Some(_) => {
                    let key = clip(key);
                    return Err(mismatch(
                        &path,
                        format!("its `{key}` differs from that of the first part"),
                    ));
                }
                None => {
                    let key = clip(key);
                    return Err(mismatch(
                        &path,
                        format!("it has `{key}`, which the first part does not have"),
                    ));
                }
            }
        }
        self.first.parts.extend(part.parts);
        self.tensors.push(part.tensors);
        self.paths.push(path);
        Ok(())
    }

    fn finish(self) -> Result<Gguf, GgufError> {
        let GgufSplitJoiner {
            mut first,
            expected,
            paths,
            tensors,
        } = self;
        let count: u64 = tensors.iter().map(|t| t.infos().len() as u64).sum();
        let expected = expected.unwrap_or(count);
        if count != expected || count > MAX_ENTRIES {
            return Err(mismatch(
                &paths[0],
                format!(
                    "its `{TENSORS}` is {expected}, but all parts together have {count} (at most \
                     {MAX_ENTRIES} are supported)"
                ),
            ));
        }
        first.tensors = GgufTensors::joined(tensors, &paths)?;
        Ok(first)
    }
}
