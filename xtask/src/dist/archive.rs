//! Archives: `.tar.gz`, `.zip`, and the tar files inside other artifacts. Order, owner, mode and time of the entries
//! are fixed.

use std::collections::BTreeSet;
use std::io::{self, Cursor, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use lzma_rust2::{XzOptions, XzWriter};
use tar::{EntryType, Header};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::DistInput;
use crate::error::{self, XtaskError};

/// The best of xz; unpacking needs 64 MiB of memory.
const XZ_PRESET: u32 = 9;

/// A tar file under construction.
pub(super) struct TarWriter {
    tar: tar::Builder<Vec<u8>>,
    time: u64,
    folders: BTreeSet<String>,
}

impl TarWriter {
    /// An empty tar file whose entries have this time, in seconds since 1970.
    pub(super) fn new(time: u64) -> TarWriter {
        TarWriter {
            tar: tar::Builder::new(Vec::new()),
            time,
            folders: BTreeSet::new(),
        }
    }

    /// Adds a folder that belongs to `owner`, and the folders that it is in, which belong to root.
    pub(super) fn folder(&mut self, path: &str, mode: u32, owner: u64) -> io::Result<()> {
        if let Some((parent, _)) = path.rsplit_once('/')
            && !parent.is_empty()
            && parent != "."
        {
            self.folder(parent, 0o755, 0)?;
        }
        if !self.folders.insert(path.to_string()) {
            return Ok(());
        }
        let mut header = self.header(mode, owner, 0);
        header.set_entry_type(EntryType::Directory);
        self.append(header, &format!("{path}/"), &[])
    }

    /// Adds a file of root, and the folders that it is in.
    pub(super) fn file(&mut self, path: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        if let Some((parent, _)) = path.rsplit_once('/')
            && parent != "."
        {
            self.folder(parent, 0o755, 0)?;
        }
        let mut header = self.header(mode, 0, bytes.len() as u64);
        header.set_entry_type(EntryType::Regular);
        self.append(header, path, bytes)
    }

    /// Adds an entry under exactly this path: `tar` itself would drop a `./` at the start, which Debian has.
    fn append(&mut self, mut header: Header, path: &str, bytes: &[u8]) -> io::Result<()> {
        let name = &mut header.as_old_mut().name;
        if path.len() >= name.len() {
            return self.tar.append_data(&mut header, path, bytes);
        }
        name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        self.tar.append(&header, bytes)
    }

    /// Adds a file of the machine.
    pub(super) fn copy(&mut self, path: &str, mode: u32, from: &Path) -> Result<(), XtaskError> {
        let bytes = super::read(from)?;
        self.file(path, mode, &bytes)
            .map_err(error::file("pack", from))
    }

    fn header(&self, mode: u32, owner: u64, len_bytes: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_mtime(self.time);
        header.set_size(len_bytes);
        if owner == 0 {
            // The names are shorter than their fields.
            let _ = header.set_username("root");
            let _ = header.set_groupname("root");
        }
        header
    }

    /// The bytes of the tar file.
    pub(super) fn finish(self) -> io::Result<Vec<u8>> {
        self.tar.into_inner()
    }
}

/// Compresses by gzip, without a name or a time in the header.
pub(super) fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// Compresses by xz, which makes programs a quarter smaller than gzip does.
pub(crate) fn xz(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut writer = XzWriter::new(Vec::new(), XzOptions::with_preset(XZ_PRESET))?;
    writer.write_all(bytes)?;
    writer.finish()
}

/// A file of an archive: its path, the file of this machine, and whether it is a program.
pub(super) type ArchiveFile = (String, PathBuf, bool);

/// Writes the archives for the install scripts: by xz and, for machines without it, by gzip; or one for Windows.
pub(super) fn write(input: &DistInput, licenses: &Path) -> Result<Vec<PathBuf>, XtaskError> {
    let stem = input.stem();
    let files = input.files(licenses).into_iter();
    let files: Vec<ArchiveFile> = files
        .map(|(name, path, is_program)| (format!("{stem}/{name}"), path, is_program))
        .collect();
    if input.is_windows() {
        return Ok(vec![smallest(input, &stem, &files)?]);
    }
    let path = input.out.join(format!("{stem}.tar.gz"));
    let packed = tar(input, &files).and_then(|tar| {
        let packed = gzip(&tar);
        packed.map_err(error::file("pack", &path))
    });
    super::write(&path, &packed?)?;
    Ok(vec![smallest(input, &stem, &files)?, path])
}

/// Writes one archive, whose name starts with `stem`: by xz, or one for Windows.
pub(super) fn smallest(
    input: &DistInput,
    stem: &str,
    files: &[ArchiveFile],
) -> Result<PathBuf, XtaskError> {
    let failed = error::file("pack", &input.binary);
    let (extension, packed) = match input.is_windows() {
        true => ("zip", zip(files).map_err(failed)?),
        false => ("tar.xz", xz(&tar(input, files)?).map_err(failed)?),
    };
    let path = input.out.join(format!("{stem}.{extension}"));
    super::write(&path, &packed)?;
    Ok(path)
}

fn tar(input: &DistInput, files: &[ArchiveFile]) -> Result<Vec<u8>, XtaskError> {
    let mut tar = TarWriter::new(input.time);
    for (name, path, is_program) in files {
        let mode = if *is_program { 0o755 } else { 0o644 };
        tar.copy(name, mode, path)?;
    }
    tar.finish().map_err(error::file("pack", &input.binary))
}

fn zip(files: &[ArchiveFile]) -> io::Result<Vec<u8>> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    // The time of an entry is the default, 1980, because zip times have no time zone.
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .last_modified_time(zip::DateTime::default());
    for (name, path, is_program) in files {
        let mode = if *is_program { 0o755 } else { 0o644 };
        zip.start_file(name.as_str(), options.unix_permissions(mode))?;
        zip.write_all(&std::fs::read(path)?)?;
    }
    Ok(zip.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{input, licenses};
    use super::*;
    use crate::fetch::remove_dir;
    use std::io::Read as _;

    #[test]
    fn archives_are_reproducible_and_have_the_program() {
        for target in ["x86_64-unknown-linux-gnu", "x86_64-pc-windows-msvc"] {
            let input = input(target, target, b"#!/bin/sh\necho hello\n");
            let licenses = licenses(&input);
            let paths = write(&input, &licenses).unwrap();
            let all = |paths: &[PathBuf]| -> Vec<Vec<u8>> {
                paths.iter().map(|p| std::fs::read(p).unwrap()).collect()
            };
            let contents = all(&paths);
            paths.iter().for_each(|p| std::fs::remove_file(p).unwrap());
            assert_eq!(contents, all(&write(&input, &licenses).unwrap()));
            let first = contents.last().unwrap().clone();
            if let [by_xz, by_gzip] = &contents[..] {
                let (mut a, mut b) = (Vec::new(), Vec::new());
                let mut reader = lzma_rust2::XzReader::new(&by_xz[..], false);
                reader.read_to_end(&mut a).unwrap();
                let mut reader = flate2::read::GzDecoder::new(&by_gzip[..]);
                reader.read_to_end(&mut b).unwrap();
                assert_eq!(a, b);
            }
            let stem = input.stem();
            let mut program = String::new();
            if input.is_windows() {
                let mut zip = zip::ZipArchive::new(Cursor::new(first)).unwrap();
                assert_eq!(zip.len(), 5);
                let mut entry = zip.by_name(&format!("{stem}/tercet.exe")).unwrap();
                entry.read_to_string(&mut program).unwrap();
            } else {
                let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(&first[..]));
                for entry in tar.entries().unwrap() {
                    let mut entry = entry.unwrap();
                    let name = entry.path().unwrap().display().to_string();
                    assert!(name.starts_with(&stem), "{name}");
                    assert_eq!(entry.header().mtime().unwrap(), input.time);
                    if name == format!("{stem}/tercet") {
                        assert_eq!(entry.header().mode().unwrap(), 0o755);
                        entry.read_to_string(&mut program).unwrap();
                    }
                }
            }
            assert!(program.contains("echo hello"), "{program}");
            remove_dir(&input.out).unwrap();
        }
    }
}
