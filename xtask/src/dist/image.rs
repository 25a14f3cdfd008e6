//! An OCI image for `tercet serve`: an image layout in a tar file, written without a daemon.
//!
//! The lower layer has the shared libraries of the program, copied from this machine; a static program has none. The
//! upper layer has the program, its health check, the user and the licenses. The image contains no shell.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::archive::{TarWriter, gzip};
use super::{DistInput, SUMMARY, VERSION, elf, sbom};
use crate::error::{self, XtaskError};
use crate::fetch::{self, hex};
use crate::process;

/// The user and group of the server; the number is that of other images without a shell.
const USER: u64 = 65532;
const HOME: &str = "home/tercet";
const PORT: u16 = 8080;

/// A layer: its tar file, compressed and not.
struct ImageLayer {
    packed: Vec<u8>,
    /// SHA-256 of the tar file before compression.
    diff: String,
    purpose: &'static str,
}

impl ImageLayer {
    fn new(tar: TarWriter, purpose: &'static str) -> std::io::Result<ImageLayer> {
        let bytes = tar.finish()?;
        Ok(ImageLayer {
            diff: digest(&bytes),
            packed: gzip(&bytes)?,
            purpose,
        })
    }
}

fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Writes the image.
pub(super) fn write(input: &DistInput, licenses: &Path) -> Result<PathBuf, XtaskError> {
    let architecture = input.architecture()?;
    if !input.target.contains("-linux-") {
        return Err(XtaskError::DistInput {
            path: input.binary.clone(),
            problem: format!("an image needs a target with Linux, not {}", input.target),
        });
    }
    let failed = || error::file("pack", &input.binary);
    let mut layers = Vec::new();
    let health = health(input)?;
    if let Some(libraries) = libraries(input, &[&input.binary, &health])? {
        layers.push(ImageLayer::new(libraries, "shared libraries").map_err(failed())?);
    }
    let program = program(input, licenses, &health)?;
    fs::remove_file(&health).map_err(error::file("remove", &health))?;
    layers.push(ImageLayer::new(program, "tercet").map_err(failed())?);
    let bytes = layout(&layers, architecture, input.time).map_err(failed())?;
    let path = input.out.join(format!("{}.oci.tar", input.stem()));
    super::write(&path, &bytes)?;
    Ok(path)
}

/// The loader and the libraries of the programs, under the paths that the loader searches; `None` for static programs.
/// Zig links the unwinder into `tercet`, and the compiler of this machine links `tercet-health` with a shared one.
fn libraries(input: &DistInput, programs: &[&Path]) -> Result<Option<TarWriter>, XtaskError> {
    let program = super::read(&input.binary)?;
    let Some(loader) = elf::loader(&program) else {
        return Ok(None);
    };
    let refused = |problem: String| XtaskError::DistInput {
        path: input.binary.clone(),
        problem,
    };
    let own = super::host()?;
    if own != input.target {
        return Err(refused(format!(
            "it is linked with the libraries of {}, and this machine has those of {own}; \
             pack it there, or pack a static program",
            input.target
        )));
    }
    let mut paths = BTreeSet::from([loader]);
    for program in programs {
        let printed = process::output(Command::new("ldd").arg(program))?;
        paths.extend(shared(&String::from_utf8_lossy(&printed)).map_err(refused)?);
    }
    let mut tar = TarWriter::new(input.time);
    for path in &paths {
        tar.copy(path.trim_start_matches('/'), 0o755, Path::new(path))?;
    }
    // The licenses of the libraries, on Debian.
    for notice in paths
        .iter()
        .filter_map(|path| notice(path))
        .collect::<BTreeSet<_>>()
    {
        tar.copy(notice.trim_start_matches('/'), 0o644, Path::new(&notice))?;
    }
    Ok(Some(tar))
}

/// The files in the output of `ldd`: `NAME => PATH (ADDRESS)`.
fn shared(printed: &str) -> Result<BTreeSet<String>, String> {
    let mut paths = BTreeSet::new();
    for line in printed.lines() {
        let Some((name, file)) = line.split_once(" => ") else {
            continue;
        };
        match file.split_whitespace().next() {
            Some(path) if path.starts_with('/') => {
                paths.insert(path.to_string());
            }
            _ => {
                return Err(format!(
                    "it needs `{}`, which this machine lacks",
                    name.trim()
                ));
            }
        }
    }
    Ok(paths)
}

/// The copyright file of the Debian package that has a file.
fn notice(path: &str) -> Option<String> {
    // Packages list the path before or after the merge of `/lib` into `/usr/lib`.
    let real = fs::canonicalize(path).ok()?;
    let real = real.to_string_lossy();
    let package = [path, &real, real.trim_start_matches("/usr")]
        .into_iter()
        .find_map(|path| {
            let output = Command::new("dpkg-query")
                .arg("--search")
                .arg(path)
                .output()
                .ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let (package, _) = text.split_once([':', ','])?;
            Some(package.to_string())
        })?;
    let notice = format!("/usr/share/doc/{package}/copyright");
    Path::new(&notice).is_file().then_some(notice)
}

/// The program, its health check, the user's entry and home, and the licenses.
fn program(input: &DistInput, licenses: &Path, health: &Path) -> Result<TarWriter, XtaskError> {
    let mut tar = TarWriter::new(input.time);
    tar.copy("usr/bin/tercet", 0o755, &input.binary)?;
    tar.copy("usr/bin/tercet-health", 0o755, health)?;
    for (name, path, is_program) in input.files(licenses) {
        if !is_program {
            tar.copy(&format!("usr/share/doc/tercet/{name}"), 0o644, &path)?;
        }
    }
    let passwd = format!("root:x:0:0:root:/:/none\ntercet:x:{USER}:{USER}:tercet:/{HOME}:/none\n");
    let group = format!("root:x:0:\ntercet:x:{USER}:\n");
    let fill = |tar: &mut TarWriter| {
        tar.file("etc/passwd", 0o644, passwd.as_bytes())?;
        tar.file("etc/group", 0o644, group.as_bytes())?;
        tar.folder(HOME, 0o755, USER)?;
        tar.folder("models", 0o755, 0)?;
        tar.folder("tmp", 0o1777, 0)
    };
    fill(&mut tar).map_err(error::file("pack", &input.binary))?;
    Ok(tar)
}

/// Compiles the health check for the target.
fn health(input: &DistInput) -> Result<PathBuf, XtaskError> {
    let source = process::root().join("packaging/oci/health.rs");
    let path = input.out.join(format!("{}-health", input.stem()));
    let mut rustc = Command::new("rustc");
    rustc.args([
        "--edition",
        "2024",
        "--crate-name",
        "tercet_health",
        "--target",
        &input.target,
    ]);
    rustc.args([
        "-C",
        "opt-level=s",
        "-C",
        "panic=abort",
        "-C",
        "strip=symbols",
        "-o",
    ]);
    process::run(rustc.arg(&path).arg(source))?;
    Ok(path)
}

/// The tar file with the layout: its version, the index and the blobs.
fn layout(layers: &[ImageLayer], architecture: &str, time: u64) -> std::io::Result<Vec<u8>> {
    let config = config(layers, architecture, time).to_string().into_bytes();
    let descriptors = layers
        .iter()
        .map(|layer| descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &layer.packed));
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": descriptors.collect::<Vec<_>>(),
    });
    let manifest = manifest.to_string().into_bytes();
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["platform"] = json!({ "architecture": architecture, "os": "linux" });
    // Programs that load the file use the name of the image and its tag.
    entry["annotations"] = json!({
        "org.opencontainers.image.ref.name": VERSION,
        "io.containerd.image.name": format!("tercet:{VERSION}"),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    });
    let mut tar = TarWriter::new(time);
    tar.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    tar.file("index.json", 0o644, index.to_string().as_bytes())?;
    let blobs = layers
        .iter()
        .map(|layer| &layer.packed)
        .chain([&config, &manifest]);
    for blob in blobs {
        tar.file(&format!("blobs/sha256/{}", digest(blob)), 0o644, blob)?;
    }
    tar.finish()
}

fn descriptor(media: &str, bytes: &[u8]) -> Value {
    json!({
        "mediaType": media,
        "digest": format!("sha256:{}", digest(bytes)),
        "size": bytes.len(),
    })
}

/// The configuration: arguments after the image's name follow the entry point.
fn config(layers: &[ImageLayer], architecture: &str, time: u64) -> Value {
    let created = sbom::timestamp(time);
    let history = layers.iter().map(|layer| {
        json!({ "created": created, "created_by": format!("cargo xtask dist: {}", layer.purpose) })
    });
    let diffs = layers.iter().map(|layer| format!("sha256:{}", layer.diff));
    json!({
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "ExposedPorts": { format!("{PORT}/tcp"): {} },
            "Env": ["PATH=/usr/bin", format!("HOME=/{HOME}")],
            "Entrypoint": ["/usr/bin/tercet", "serve", "--host", "0.0.0.0"],
            "WorkingDir": "/models",
            "StopSignal": "SIGINT",
            // Times in nanoseconds.
            "Healthcheck": {
                "Test": ["CMD", "/usr/bin/tercet-health"],
                "Interval": 30_000_000_000_u64,
                "Timeout": 6_000_000_000_u64,
                "StartPeriod": 60_000_000_000_u64,
                "Retries": 3,
            },
            "Labels": {
                "org.opencontainers.image.title": "tercet",
                "org.opencontainers.image.description": SUMMARY,
                "org.opencontainers.image.version": VERSION,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": diffs.collect::<Vec<_>>() },
        "history": history.collect::<Vec<_>>(),
    })
}

/// Reads an image file and unpacks its layers into a folder. Returns the configuration.
///
/// # Errors
/// [`XtaskError::DistInput`] if a digest or a size differs from its descriptor.
pub(super) fn unpack(image: &Path, root: &Path) -> Result<Value, XtaskError> {
    let layout = root.with_extension("layout");
    fetch::remove_dir(&layout)?;
    let unpack = |bytes: &[u8], to: &Path| {
        let mut tar = tar::Archive::new(bytes);
        tar.set_preserve_permissions(true);
        tar.set_preserve_ownerships(cfg!(unix) && process::can_install());
        tar.unpack(to).map_err(error::file("unpack", image))
    };
    unpack(&super::read(image)?, &layout)?;
    let blob = |descriptor: &Value| -> Result<Vec<u8>, XtaskError> {
        let named = descriptor["digest"].as_str().unwrap_or_default();
        let bytes = super::read(&layout.join("blobs").join(named.replace(':', "/")))?;
        let is_right = format!("sha256:{}", digest(&bytes)) == named
            && descriptor["size"].as_u64() == Some(bytes.len() as u64);
        match is_right {
            true => Ok(bytes),
            false => Err(XtaskError::DistInput {
                path: image.to_owned(),
                problem: format!("{named} has another digest or size"),
            }),
        }
    };
    let json = |bytes: &[u8]| -> Result<Value, XtaskError> {
        serde_json::from_slice(bytes).map_err(|source| XtaskError::Json {
            path: image.to_owned(),
            source,
        })
    };
    let index = json(&super::read(&layout.join("index.json"))?)?;
    let manifest = json(&blob(&index["manifests"][0])?)?;
    let config = json(&blob(&manifest["config"])?)?;
    fs::create_dir_all(root).map_err(error::file("create", root))?;
    let layers = manifest["layers"].as_array().into_iter().flatten();
    for (layer, diff) in layers.zip(
        config["rootfs"]["diff_ids"]
            .as_array()
            .into_iter()
            .flatten(),
    ) {
        let mut bytes = Vec::new();
        let packed = blob(layer)?;
        std::io::copy(&mut flate2::read::GzDecoder::new(&packed[..]), &mut bytes)
            .map_err(error::file("unpack", image))?;
        if diff.as_str() != Some(&format!("sha256:{}", digest(&bytes))) {
            return Err(XtaskError::DistInput {
                path: image.to_owned(),
                problem: format!("a layer differs from {diff}"),
            });
        }
        unpack(&bytes, root)?;
    }
    fetch::remove_dir(&layout)?;
    Ok(config)
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::super::tests::{input, licenses};
    use super::*;
    use crate::fetch::remove_dir;

    #[test]
    fn an_image_of_a_script_has_one_layer_with_a_user() {
        let target = super::super::host().unwrap();
        let input = input("image", &target, b"#!/bin/sh\necho hello\n");
        let path = write(&input, &licenses(&input)).unwrap();
        let first = fs::read(&path).unwrap();
        write(&input, &licenses(&input)).unwrap();
        assert_eq!(first, fs::read(&path).unwrap(), "the same bytes again");
        let root = input.out.join("root");
        let config = unpack(&path, &root).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"].as_array().unwrap().len(), 1);
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Entrypoint"][1], "serve");
        let program = fs::read_to_string(root.join("usr/bin/tercet")).unwrap();
        assert!(program.contains("echo hello"));
        let passwd = fs::read_to_string(root.join("etc/passwd")).unwrap();
        assert!(passwd.contains("tercet:x:65532:65532:"), "{passwd}");
        assert!(root.join("home/tercet").is_dir() && root.join("tmp").is_dir());
        // Any changed byte of a blob is noticed.
        let mut damaged = first.clone();
        let gzip = damaged
            .windows(3)
            .position(|window| window == [0x1f, 0x8b, 8])
            .unwrap();
        damaged[gzip + 200] ^= 1;
        fs::write(&path, damaged).unwrap();
        let error = unpack(&path, &root).unwrap_err().to_string();
        assert!(error.contains("another digest"), "{error}");
        remove_dir(&input.out).unwrap();
    }

    #[test]
    fn a_program_with_libraries_has_them_in_a_layer() {
        let own = std::env::current_exe().unwrap();
        let mut input = input("libraries", &super::super::host().unwrap(), b"");
        input.binary = own.clone();
        let tar = libraries(&input, &[&input.binary]).unwrap();
        let program = fs::read(&own).unwrap();
        assert_eq!(tar.is_some(), elf::loader(&program).is_some());
        input.target = "aarch64-unknown-linux-gnu".to_string();
        if tar.is_some() && cfg!(target_arch = "x86_64") {
            let error = libraries(&input, &[&input.binary])
                .map(|_| ())
                .unwrap_err()
                .to_string();
            assert!(error.contains("static program"), "{error}");
        }
        remove_dir(&input.out).unwrap();
    }

    #[test]
    fn missing_libraries_are_named() {
        let printed =
            "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\t/lib64/ld.so (0x3)\n";
        assert_eq!(
            shared(printed).unwrap().into_iter().collect::<Vec<_>>(),
            ["/lib/libc.so.6"]
        );
        let error = shared("\tlibgone.so.1 => not found\n").unwrap_err();
        assert!(error.contains("`libgone.so.1`"), "{error}");
    }

    /// The health check succeeds only if the server answers with 200.
    #[test]
    fn the_health_check_asks_the_server() {
        use std::io::{Read as _, Write as _};
        let input = input("health", &super::super::host().unwrap(), b"");
        let health = health(&input).unwrap();
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            for status in ["200 OK", "503 Service Unavailable"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                let len = stream.read(&mut request).unwrap();
                assert!(request[..len].starts_with(b"GET /health HTTP/1.1\r\n"));
                // In one write: the client leaves when it has read the status.
                let response = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(response.as_bytes()).unwrap();
            }
        });
        let succeeds = || process::works(Command::new(&health).arg(port.to_string()));
        assert!(succeeds());
        assert!(!succeeds(), "503");
        server.join().unwrap();
        assert!(!succeeds(), "no server");
        remove_dir(&input.out).unwrap();
    }
}
