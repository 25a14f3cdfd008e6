//! Tests of the pipeline cache: programs run with the same results even if the cache file is
//! damaged.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use common::{affine, ints, run};
use tercet_ir::Dim;
use tercet_vulkan::{VulkanBackend, VulkanOptions};

/// The environment variable with the cache folder of a child process that writes the cache until it
/// is killed.
const WRITER: &str = "TERCET_TEST_CACHE_WRITER";

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let dir = std::env::temp_dir().join(format!("tercet-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Folder(dir)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(dir: &Path) -> Option<VulkanBackend> {
    common::open(VulkanOptions {
        cache_dir: Some(dir.to_path_buf()),
        ..VulkanOptions::default()
    })
}

/// Opens a device with the cache folder, runs a program and closes the device. False without a
/// device.
fn play(dir: &Path) -> bool {
    let Some(backend) = open(dir) else {
        return false;
    };
    let mut exe = affine(&backend, Dim::Known(77), 77).load(&backend);
    assert_eq!(
        run(&mut exe, &ints(0..77))[0],
        ints((0..77).map(|i| i * 3 + 1))
    );
    true
}

/// The files below a folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(self::files(&path)),
            false => files.push(path),
        }
    }
    files
}

/// The driver's cache file.
fn the_file(dir: &Path) -> PathBuf {
    let mut files = files(dir);
    files.retain(|f| f.extension().is_some_and(|e| e == "bin"));
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

#[test]
fn the_second_process_lowers_no_kernel_again() {
    let folder = Folder::new("lowered");
    let lowered = || {
        let backend = open(&folder.0)?;
        affine(&backend, Dim::Known(77), 77).load(&backend);
        Some(backend.counters().kernels_lowered)
    };
    let Some(first) = lowered() else {
        return;
    };
    assert!(first > 0);
    assert_eq!(lowered(), Some(0));
    for file in files(&folder.0.join("spirv")) {
        fs::write(&file, b"garbage").unwrap();
    }
    // The folder remembers the trials that passed, whose kernels are not compiled again.
    for file in files(&folder.0) {
        let name = file.file_name().unwrap().to_str().unwrap();
        if name.starts_with("refused-") {
            fs::remove_file(&file).unwrap();
        }
    }
    assert_eq!(lowered(), Some(first));
    assert!(play(&folder.0));
}

#[test]
fn damage_costs_nothing_but_time() {
    let folder = Folder::new("damage");
    if !play(&folder.0) {
        return;
    }
    let file = the_file(&folder.0);
    let good = fs::read(&file).unwrap();
    assert!(play(&folder.0));
    let flipped: Vec<u8> = good.iter().map(|b| !b).collect();
    let cut = &good[..good.len() / 2];
    let mut one_bit = good.clone();
    *one_bit.last_mut().unwrap() ^= 1;
    let empty: &[u8] = &[];
    for bad in [&flipped, cut, &one_bit, &good[..3], empty, b"garbage"] {
        fs::write(&file, bad).unwrap();
        assert!(play(&folder.0));
        // The file is complete again.
        assert!(fs::read(&file).unwrap().len() >= good.len() / 2);
    }
    fs::remove_file(&file).unwrap();
    assert!(play(&folder.0));
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(play(&folder.0));
}

#[test]
fn a_folder_that_cannot_be_written_is_no_error() {
    let folder = Folder::new("denied");
    let file = folder.0.join("file");
    fs::write(&file, b"not a folder").unwrap();
    if !play(&file.join("below")) {
        return;
    }
    let mut rights = fs::metadata(&folder.0).unwrap().permissions();
    rights.set_readonly(true);
    fs::set_permissions(&folder.0, rights.clone()).unwrap();
    assert!(play(&folder.0));
    assert!(play(&folder.0.join("new")));
    #[allow(
        clippy::permissions_set_readonly_false,
        reason = "a folder of this test"
    )]
    rights.set_readonly(false);
    fs::set_permissions(&folder.0, rights).unwrap();
}

#[test]
fn writers_at_once_leave_one_whole_file() {
    let folder = Folder::new("writers");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| play(&folder.0));
        }
    });
    if play(&folder.0) {
        the_file(&folder.0);
    }
}

#[test]
fn a_killed_writer_leaves_a_file_that_works() {
    if let Some(dir) = std::env::var_os(WRITER) {
        loop {
            let dir = Path::new(&dir);
            for file in files(dir) {
                let _ = fs::remove_file(file);
            }
            play(dir);
        }
    }
    let folder = Folder::new("killed");
    if !play(&folder.0) {
        return;
    }
    // `current_exe` would be the dynamic loader under the runner for the newer lavapipe.
    let test = std::env::args_os().next().unwrap();
    for round in 0..4 {
        let mut writer = Command::new(&test)
            .args(["--exact", "a_killed_writer_leaves_a_file_that_works"])
            .env(WRITER, &folder.0)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(300 + round * 170));
        assert_eq!(
            writer.try_wait().unwrap(),
            None,
            "the writer exited before it was killed"
        );
        writer.kill().unwrap();
        writer.wait().unwrap();
        assert!(play(&folder.0));
    }
}
