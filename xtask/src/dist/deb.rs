//! A Debian package: an `ar` archive of `debian-binary`, `control.tar.xz` and `data.tar.xz`.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use super::archive::{TarWriter, xz};
use super::{DistInput, SUMMARY, VERSION, elf};
use crate::error::{self, XtaskError};
use crate::process;

/// The domain is reserved and receives no mail; a distribution names its own maintainer.
const MAINTAINER: &str = "Tercet developers <tercet@packages.invalid>";
/// The folder of the documents.
const DOC: &str = "./usr/share/doc/tercet";

/// Writes the package.
pub(super) fn write(input: &DistInput, licenses: &Path) -> Result<PathBuf, XtaskError> {
    let architecture = input.architecture()?;
    let program = super::read(&input.binary)?;
    if !input.target.ends_with("-linux-gnu") {
        return Err(XtaskError::DistInput {
            path: input.binary.clone(),
            problem: format!(
                "Debian packages are for targets with glibc, not for {}",
                input.target
            ),
        });
    }
    let files = [
        ("./usr/bin/tercet".to_string(), 0o755, program.clone()),
        (
            format!("{DOC}/README.md"),
            0o644,
            super::read(&process::root().join("README.md"))?,
        ),
        (
            format!("{DOC}/copyright"),
            0o644,
            copyright(licenses)?.into_bytes(),
        ),
    ];
    let installed: usize = files
        .iter()
        .map(|(_, _, bytes)| bytes.len().div_ceil(1024))
        .sum();
    let control = control(architecture, installed, elf::glibc(&program));
    let pack = || -> io::Result<Vec<u8>> {
        let mut data = TarWriter::new(input.time);
        data.folder(".", 0o755, 0)?;
        for (path, mode, bytes) in &files {
            data.file(path, *mode, bytes)?;
        }
        let mut tar = TarWriter::new(input.time);
        tar.folder(".", 0o755, 0)?;
        tar.file("./control", 0o644, control.as_bytes())?;
        let members = [
            ("debian-binary", b"2.0\n".to_vec()),
            ("control.tar.xz", xz(&tar.finish()?)?),
            ("data.tar.xz", xz(&data.finish()?)?),
        ];
        Ok(ar(&members, input.time))
    };
    let bytes = pack().map_err(error::file("pack", &input.binary))?;
    let path = input
        .out
        .join(format!("tercet_{VERSION}_{architecture}.deb"));
    super::write(&path, &bytes)?;
    Ok(path)
}

/// The control file; the sizes are in KiB.
fn control(architecture: &str, installed: usize, glibc: Option<(u32, u32)>) -> String {
    let libc = glibc.map_or(String::new(), |(major, minor)| {
        format!(" (>= {major}.{minor})")
    });
    format!(
        "Package: tercet\nVersion: {VERSION}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {installed}\nDepends: libc6{libc}, libgcc-s1\nRecommends: libvulkan1\nSection: science\n\
         Priority: optional\nDescription: {SUMMARY}\n \
         Runs GGUF, safetensors and ONNX models on the CPU and on GPUs through Vulkan:\n \
         text generation, embeddings, speech, vision, fine-tuning and an HTTP server.\n"
    )
}

/// The licenses of the program and of everything inside.
fn copyright(licenses: &Path) -> Result<String, XtaskError> {
    let root = process::root();
    let mut text = String::from("Tercet is licensed under MIT or Apache-2.0, at your option.\n");
    for path in [
        &root.join("LICENSE-MIT"),
        &root.join("LICENSE-APACHE"),
        licenses,
    ] {
        let part = String::from_utf8_lossy(&super::read(path)?).into_owned();
        let _ = write!(text, "\n{}\n\n{part}", "=".repeat(80));
    }
    Ok(text)
}

/// An `ar` archive; members start at even offsets.
fn ar(members: &[(&str, Vec<u8>)], time: u64) -> Vec<u8> {
    let mut bytes = b"!<arch>\n".to_vec();
    for (name, content) in members {
        let header = format!(
            "{name:<16}{time:<12}{:<6}{:<6}{:<8}{:<10}`\n",
            0,
            0,
            "100644",
            content.len()
        );
        bytes.extend(header.as_bytes());
        bytes.extend(content);
        if content.len() % 2 == 1 {
            bytes.push(b'\n');
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::tests::{input, licenses};
    use super::*;
    use crate::fetch::remove_dir;
    use std::process::Command;

    #[test]
    fn members_start_at_even_offsets() {
        let bytes = ar(&[("a", b"123".to_vec()), ("b", b"4".to_vec())], 7);
        assert_eq!(bytes.len(), 8 + 60 + 4 + 60 + 2);
        assert_eq!(&bytes[8 + 58..8 + 64], b"`\n123\n");
        assert!(
            bytes[72..]
                .starts_with(b"b               7           0     0     100644  1         `\n4\n")
        );
    }

    #[test]
    fn the_package_names_its_needs() {
        let text = control("arm64", 12, Some((2, 28)));
        for line in [
            "Architecture: arm64\n",
            "Depends: libc6 (>= 2.28), libgcc-s1\n",
            "Installed-Size: 12\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    /// `dpkg-deb` reads the package; other systems than Debian check only that it is written.
    #[test]
    fn debian_reads_the_package() {
        let input = input(
            "deb",
            "x86_64-unknown-linux-gnu",
            b"#!/bin/sh\necho hello\0GLIBC_2.17\0",
        );
        let licenses = licenses(&input);
        let path = write(&input, &licenses).unwrap();
        assert!(path.ends_with(format!("tercet_{VERSION}_amd64.deb")));
        if process::works(Command::new("dpkg-deb").arg("--version")) {
            let listed =
                process::output(Command::new("dpkg-deb").arg("--contents").arg(&path)).unwrap();
            let listed = String::from_utf8(listed).unwrap();
            assert!(listed.contains("-rwxr-xr-x root/root"), "{listed}");
            assert!(listed.contains(" ./usr/bin/tercet\n"), "{listed}");
            let fields =
                process::output(Command::new("dpkg-deb").arg("--field").arg(&path)).unwrap();
            let fields = String::from_utf8(fields).unwrap();
            assert!(
                fields.contains("Depends: libc6 (>= 2.17), libgcc-s1"),
                "{fields}"
            );
            let to = input.out.join("root");
            process::run(Command::new("dpkg-deb").arg("-x").arg(&path).arg(&to)).unwrap();
            let copyright =
                std::fs::read_to_string(to.join("usr/share/doc/tercet/copyright")).unwrap();
            assert!(copyright.ends_with("all licenses\n"));
        }
        remove_dir(&input.out).unwrap();
    }

    #[test]
    fn other_systems_have_no_package() {
        let input = input("no-deb", "x86_64-unknown-linux-musl", b"");
        let error = write(&input, &licenses(&input)).unwrap_err().to_string();
        assert!(error.contains("x86_64-unknown-linux-musl"), "{error}");
        remove_dir(&input.out).unwrap();
    }
}
