//! The browser package for npm: the WebAssembly module of `examples/web`, its JavaScript bindings and their types.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::archive::{TarWriter, gzip};
use super::{DistInput, SUMMARY, VERSION, dependencies, licenses};
use crate::error::{self, XtaskError};
use crate::{fetch, process, web};

/// The name of the package, and of its main file without the extension.
pub(super) const NAME: &str = "tercet-web";
/// A maximum for the compressed package.
const MAX_BYTES: u64 = 8_000_000;
const README: &str = "\
# Tercet in web pages

Runs language models and sentence encoders in a browser, on WebGPU or on the CPU.

```js
import init, { Tercet } from 'tercet-web';

await init();
const tercet = await Tercet.webgpu().catch(() => Tercet.cpu());
tercet.openLanguage(new Uint8Array(await (await fetch('model.gguf')).arrayBuffer()));
await tercet.write('Once', 32, (piece) => console.log(piece));
```

Run models in a worker: the CPU executor blocks its thread.
";

/// Builds the package.
pub(super) fn write(input: &DistInput) -> Result<PathBuf, XtaskError> {
    let crates = dependencies::read(web::PACKAGE, web::TARGET)?;
    let third_party = licenses::collect(&crates)?;
    let built = input.out.join("npm.partial");
    fetch::remove_dir(&built)?;
    web::bindings(&built, NAME)?;
    let root = process::root();
    let mut files = vec![
        ("LICENSE-APACHE".to_string(), root.join("LICENSE-APACHE")),
        ("LICENSE-MIT".to_string(), root.join("LICENSE-MIT")),
    ];
    for name in names() {
        let path = built.join(&name);
        files.push((name, path));
    }
    let mut tar = TarWriter::new(input.time);
    // npm unpacks the folder `package` of an archive.
    for (name, text) in [
        ("package.json", manifest().to_string()),
        ("README.md", README.to_string()),
        ("THIRD-PARTY.txt", third_party),
    ] {
        let path = format!("package/{name}");
        tar.file(&path, 0o644, text.as_bytes())
            .map_err(error::file("pack", &built))?;
    }
    for (name, path) in files {
        tar.copy(&format!("package/{name}"), 0o644, &path)?;
    }
    let packed = tar.finish().and_then(|tar| gzip(&tar));
    let packed = packed.map_err(error::file("pack", &built))?;
    fetch::remove_dir(&built)?;
    let path = input.out.join(format!("{NAME}-{VERSION}.tgz"));
    super::write(&path, &packed)?;
    let bytes = fs::metadata(&path)
        .map_err(error::file("read", &path))?
        .len();
    match bytes > MAX_BYTES {
        true => Err(XtaskError::DistInput {
            path,
            problem: format!("it has {bytes} bytes, expected at most {MAX_BYTES}"),
        }),
        false => Ok(path),
    }
}

/// The files that `wasm-bindgen` writes.
fn names() -> [String; 4] {
    [".js", ".d.ts", "_bg.wasm", "_bg.wasm.d.ts"].map(|end| format!("{NAME}{end}"))
}

fn manifest() -> Value {
    json!({
        "name": NAME,
        "version": VERSION,
        "description": SUMMARY,
        "license": "MIT OR Apache-2.0",
        "type": "module",
        "main": format!("{NAME}.js"),
        "types": format!("{NAME}.d.ts"),
        "files": names(),
        "sideEffects": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_names_files_of_the_package() {
        let manifest = manifest();
        for field in ["main", "types"] {
            let name = manifest[field].as_str().unwrap();
            assert!(names().contains(&name.to_string()), "{name}");
        }
        assert_eq!(manifest["version"], VERSION);
        assert!(README.contains(&format!("from '{NAME}'")));
    }
}
