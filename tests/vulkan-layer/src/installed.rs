//! The layer as tests use it: its manifest in a folder, and the variables that make the loader load it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use crate::{ENV_LOG, ENV_SWITCHES, NAME};

/// The layer with its manifest and its log in a folder.
pub struct InstalledLayer {
    folder: PathBuf,
}

impl InstalledLayer {
    /// Writes the manifest into an existing folder. The library is next to the running test program.
    ///
    /// # Errors
    /// I/O errors, and [`io::ErrorKind::NotFound`] if the library is not there.
    pub fn new(folder: &Path) -> io::Result<InstalledLayer> {
        let program = own_program()?;
        let program = program.last().map(PathBuf::from).unwrap_or_default();
        InstalledLayer::with_library(folder, program.parent().unwrap_or(Path::new("")))
    }

    /// As [`InstalledLayer::new`], with the library in the folder `libraries`.
    ///
    /// # Errors
    /// Those of [`InstalledLayer::new`].
    pub fn with_library(folder: &Path, libraries: &Path) -> io::Result<InstalledLayer> {
        let file = format!(
            "{}tercet_vulkan_layer{}",
            env::consts::DLL_PREFIX,
            env::consts::DLL_SUFFIX
        );
        let library = fs::canonicalize(libraries.join(&file)).map_err(|e| {
            let place = libraries.display();
            io::Error::new(e.kind(), format!("no {file} in {place}: {e}"))
        })?;
        let library = library.display().to_string().replace('\\', "\\\\");
        let manifest = format!(
            r#"{{
  "file_format_version": "1.2.0",
  "layer": {{
    "name": "{NAME}",
    "type": "GLOBAL",
    "library_path": "{library}",
    "api_version": "1.3.239",
    "implementation_version": "1",
    "description": "Tests of Tercet",
    "device_extensions": [
      {{ "name": "VK_KHR_portability_subset", "spec_version": "1", "entrypoints": [] }}
    ]
  }}
}}
"#
        );
        fs::write(folder.join("layer.json"), manifest)?;
        Ok(InstalledLayer {
            folder: folder.to_path_buf(),
        })
    }

    /// The environment variables of a program that runs with the layer and these switches.
    pub fn variables(&self, switches: &str) -> Vec<(&'static str, OsString)> {
        // The loader ignores added folders if it has a list of them.
        let mut folders = self.folder.clone().into_os_string();
        let place = match env::var_os("VK_LAYER_PATH").filter(|list| !list.is_empty()) {
            Some(list) => {
                folders.push(":");
                folders.push(list);
                "VK_LAYER_PATH"
            }
            None => "VK_ADD_LAYER_PATH",
        };
        vec![
            (place, folders),
            ("VK_INSTANCE_LAYERS", NAME.into()),
            (ENV_SWITCHES, switches.into()),
            (ENV_LOG, self.log().into_os_string()),
        ]
    }

    /// Makes a copy of the manifest of a driver that says that it is a portability driver. The loader
    /// then hides its devices from programs that do not ask for those of portability drivers.
    /// `VK_DRIVER_FILES` takes the returned path.
    ///
    /// # Errors
    /// I/O errors, and [`io::ErrorKind::InvalidData`] if the manifest is not one of a driver.
    pub fn portability_driver(&self, manifest: &Path) -> io::Result<PathBuf> {
        let text = fs::read_to_string(manifest)?;
        let marked = text.replacen(
            "\"ICD\": {",
            "\"ICD\": { \"is_portability_driver\": true,",
            1,
        );
        if marked == text {
            let e = format!("{} has no member ICD", manifest.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, e));
        }
        let path = self.folder.join("driver.json");
        fs::write(&path, marked)?;
        Ok(path)
    }

    /// The lines of the log since the last call.
    ///
    /// # Errors
    /// I/O errors except a missing file, which is an empty log.
    pub fn take_log(&self) -> io::Result<Vec<String>> {
        let text = match fs::read_to_string(self.log()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            text => text?,
        };
        fs::remove_file(self.log())?;
        Ok(text.lines().map(str::to_string).collect())
    }

    fn log(&self) -> PathBuf {
        self.folder.join("layer.log")
    }
}

/// The command line that starts the running program again, without its arguments. A program that was
/// started through a dynamic loader is started through it again.
///
/// # Errors
/// I/O errors of the operating system.
pub fn own_program() -> io::Result<Vec<OsString>> {
    let own = env::current_exe()?;
    let first = env::args_os().next().unwrap_or_default();
    let line = fs::read("/proc/self/cmdline").unwrap_or_default();
    let all = String::from_utf8_lossy(&line).into_owned();
    let all: Vec<OsString> = all.split('\0').map(OsString::from).collect();
    match all.iter().position(|arg| *arg == first) {
        Some(at) if at > 0 => Ok(all[..=at].to_vec()),
        _ => Ok(vec![own.into_os_string()]),
    }
}
