//! A headless Chromium with WebGPU on a software device.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::cache;
use crate::env::CHROMIUM;
use crate::error::{self, XtaskError};
use crate::process;

/// The program names of Chromium and compatible browsers.
const NAMES: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
];

/// The browser in the environment variable, or the first one on the `PATH`.
pub(crate) fn find() -> Result<PathBuf, XtaskError> {
    if let Some(named) = env::var_os(CHROMIUM).filter(|named| !named.is_empty()) {
        return Ok(PathBuf::from(named));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).flat_map(|dir| NAMES.map(|name| dir.join(name)));
    let mut found = places.filter(|place| place.is_file());
    found.next().ok_or(XtaskError::NoChromium)
}

/// Installs Chromium on Debian, as root, if no browser is found.
pub(crate) fn install() -> Result<(), XtaskError> {
    if find().is_ok() || !process::can_install() {
        return Ok(());
    }
    eprintln!("installing chromium");
    process::apt_install(&["chromium"])
}

/// A running browser with one page; it is closed on drop.
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
            // A software device on a busy machine answers late, but it answers.
            "--disable-gpu-watchdog",
        ]);
        // WebGPU is off by default without a GPU; SwiftShader is Chromium's own Vulkan device. The
        // sandbox does not work as root or in most containers, and the page is trusted.
        command.args(["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]);
        command.arg("--no-sandbox");
        command.arg(format!("--user-data-dir={}", profile.display()));
        // Discard the browser's output, which consists of warnings about the missing desktop.
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
        // Ignore errors: the browser may have exited already. The next run removes a leftover
        // profile.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}
