//! Files appended to a program as a ZIP archive. ZIP readers find the archive's directory from the
//! end of the file.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Writes `program` with the files of `folders` appended; each folder is stored under its given
/// name.
///
/// # Errors
/// I/O errors of reading or writing a file.
pub fn write(program: &Path, folders: &[(&str, PathBuf)], to: &Path) -> io::Result<()> {
    fs::copy(program, to)?;
    let mut out = File::options().read(true).write(true).open(to)?;
    out.seek(SeekFrom::End(0))?;
    let mut archive = ZipWriter::new(out);
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .large_file(true);
    for (name, folder) in folders {
        for file in files_below(folder)? {
            let inside = file.strip_prefix(folder).map_err(io::Error::other)?;
            let inside: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
            archive.start_file(format!("{name}/{}", inside.join("/")), options)?;
            io::copy(&mut File::open(&file)?, &mut archive)?;
        }
    }
    archive.finish()?;
    Ok(())
}

fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => files.extend(files_below(&path)?),
            false => files.push(path),
        }
    }
    files.sort();
    Ok(files)
}

/// Unpacks the files appended to `program` into `folder`; returns false if there are no appended
/// files.
///
/// # Errors
/// The archive is damaged, or a file cannot be written.
pub fn unpack(program: &Path, folder: &Path) -> io::Result<bool> {
    let mut archive = match ZipArchive::new(File::open(program)?) {
        Ok(archive) => archive,
        Err(ZipError::InvalidArchive(_)) => return Ok(false),
        Err(e) => return Err(e.into()),
    };
    archive.extract(folder)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        let dir = std::env::temp_dir().join(format!("tercet-package-{}", std::process::id()));
        let (data, out) = (dir.join("data"), dir.join("out"));
        fs::create_dir_all(data.join("inner")).expect("a folder");
        fs::write(data.join("a.txt"), "one").expect("a file");
        fs::write(data.join("inner/b.bin"), [7u8; 5000]).expect("a file");
        let program = dir.join("program");
        fs::write(&program, [0x7f; 3000]).expect("a file");
        assert!(!unpack(&program, &out).expect("the absence of files is not an error"));
        let packed = dir.join("packed");
        write(&program, &[("data", data)], &packed).expect("packs");
        assert!(unpack(&packed, &out).expect("unpacks"));
        assert_eq!(fs::read(out.join("data/a.txt")).expect("there"), b"one");
        assert_eq!(
            fs::read(out.join("data/inner/b.bin")).expect("there"),
            [7; 5000]
        );
        let bytes = fs::read(&packed).expect("there");
        assert_eq!(bytes[..3000], [0x7f; 3000]);
        fs::remove_dir_all(dir).expect("removed");
    }
}
