//! Tests of the cache folder: graphs run with the same results even if the cache is damaged.

use std::fs;
use std::path::{Path, PathBuf};

use tercet_ir::{Backend, CompileOptions, DType, Graph, Tensor, Type};
use tercet_wgpu::{WgpuBackend, WgpuOptions};

use super::{Done, Test, run};

/// The tests of this file.
pub(crate) const TESTS: &[(&str, Test)] = &[
    ("kernels_are_kept_on_disk", kernels_are_kept_on_disk),
    (
        "a_folder_that_cannot_be_written_is_no_error",
        a_folder_that_cannot_be_written_is_no_error,
    ),
];

/// Opens a device with the cache folder, runs a graph and closes the device.
fn play(dir: &Path) -> Done {
    let backend = WgpuBackend::new(&WgpuOptions {
        cache_dir: Some(dir.to_path_buf()),
        ..WgpuOptions::new()
    })?;
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
    let y = g.transpose(x, &[1, 0])?;
    g.output("y", y)?;
    let mut exe = backend.compile(&g, &CompileOptions::new())?;
    let x = Tensor::from_slice(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    assert_eq!(run(&mut *exe, &x)?, [vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]]);
    Ok(())
}

/// The files below a folder with this extension, sorted.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path, extension)),
            false => found.extend((path.extension().unwrap() == extension).then_some(path)),
        }
    }
    found.sort();
    found
}

fn kernels_are_kept_on_disk(backend: &WgpuBackend) -> Done {
    let dir = std::env::temp_dir().join(format!("tercet-wgpu-kept-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    play(&dir)?;
    let kernels = files(&dir, "spv");
    if backend.adapter().api != "vulkan" {
        assert!(kernels.is_empty());
        return Ok(fs::remove_dir_all(&dir)?);
    }
    assert!(!kernels.is_empty());
    assert_eq!(files(&dir, "bin").len(), 1);
    let modified = || -> Vec<_> {
        let time = |file| fs::metadata(file).unwrap().modified().unwrap();
        kernels.iter().map(time).collect()
    };
    let (first, good) = (modified(), fs::read(&kernels[0])?);
    play(&dir)?;
    assert_eq!(modified(), first, "they are loaded, not compiled again");
    let all = kernels.iter().cloned().chain(files(&dir, "bin"));
    for bad in [&b"garbage"[..], b"", &good[..good.len() / 2]] {
        for file in all.clone() {
            fs::write(file, bad)?;
        }
        play(&dir)?;
        assert_eq!(files(&dir, "spv"), kernels);
        assert_eq!(fs::read(&kernels[0])?, good, "it is complete again");
    }
    Ok(fs::remove_dir_all(&dir)?)
}

fn a_folder_that_cannot_be_written_is_no_error(_: &WgpuBackend) -> Done {
    let name = format!("tercet-wgpu-denied-{}", std::process::id());
    let file = std::env::temp_dir().join(name);
    fs::write(&file, b"not a folder")?;
    play(&file.join("below"))?;
    Ok(fs::remove_file(&file)?)
}
