//! A headless Chromium with WebGPU on the processor.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::cache;
use crate::env::CHROMIUM;
use crate::error::{self, XtaskError};
use crate::process;

/// What Chromium and its relatives are called.
const NAMES: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
];

/// The browser that the environment names, else the first that is on the `PATH`.
pub(super) fn find() -> Result<PathBuf, XtaskError> {
    if let Some(named) = env::var_os(CHROMIUM).filter(|named| !named.is_empty()) {
        return Ok(PathBuf::from(named));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).flat_map(|dir| NAMES.map(|name| dir.join(name)));
    let mut found = places.filter(|place| place.is_file());
    found.next().ok_or(XtaskError::NoChromium)
}

/// Installs one on Debian, as root, where none is found; what else it needs comes with it.
pub(super) fn install() -> Result<(), XtaskError> {
    if find().is_ok() || !process::can_install() {
        return Ok(());
    }
    eprintln!("installing chromium");
    process::apt_install(&["chromium"])
}

/// A browser that shows one page; dropped, it is closed.
pub(super) struct HeadlessBrowser {
    child: Child,
    profile: PathBuf,
}

impl HeadlessBrowser {
    pub(super) fn open(program: &Path, page: &str) -> Result<HeadlessBrowser, XtaskError> {
        let profile = cache::dir()?.join("chromium");
        if profile.exists() {
            fs::remove_dir_all(&profile).map_err(error::file("remove", &profile))?;
        }
        let mut command = Command::new(program);
        command.args([
            "--headless=new",
            "--no-first-run",
            "--disable-dev-shm-usage",
        ]);
        // WebGPU is off without a GPU, and SwiftShader is the Vulkan that Chromium brings. Its sandbox does not run as
        // root, or in most containers; the page is our own.
        command.args(["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]);
        command.arg("--no-sandbox");
        command.arg(format!("--user-data-dir={}", profile.display()));
        // What it says without a desktop around it helps nobody.
        command
            .arg(page)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().map_err(|source| XtaskError::Start {
            program: program.display().to_string(),
            source,
        })?;
        Ok(HeadlessBrowser { child, profile })
    }
}

impl Drop for HeadlessBrowser {
    fn drop(&mut self) {
        // It may have ended by itself; a profile that is left is removed by the next.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}
