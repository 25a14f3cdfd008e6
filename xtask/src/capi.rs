//! `cargo xtask capi`: builds the C library into a prefix, and checks it as a user would use it. The steps are:
//!
//! 1. the shared and the static library, `tercet.h`, the CMake package and `tercet.pc` in a prefix,
//! 2. with `--check`, a folder away from the checkout with the prefix, the examples, their models and the Node package,
//! 3. the examples in C and C++, built by CMake and run under AddressSanitizer,
//! 4. an example against each library, built with the flags of pkg-config,
//! 5. the Node package, built by a C compiler and tested by `node --test`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::error::{self, XtaskError};
use crate::process;
use crate::python::target_dir;

const CRATE: &str = "crates/tercet-c";
/// Files and folders of `tests/data` that the examples and the Node tests read.
const DATA: [&str; 5] = [
    "tiny-rust-llama/tiny-rust-llama-q8_0.gguf",
    "encoders/sentence-a",
    "speech/moonshine-a",
    "speech/speech.flac",
    "cases/onnx/asinh.onnx",
];
/// Programs that the check runs, with the Debian packages that have them.
const TOOLS: [(&str, &[&str]); 4] = [
    ("cc", &["gcc"]),
    ("cmake", &["cmake", "g++", "make"]),
    ("pkg-config", &["pkg-config"]),
    ("node", &["nodejs", "libnode-dev"]),
];

/// The kinds of libraries with the example that the check links with each.
const LIBRARY_KINDS: [(&str, &str); 2] = [("shared", "generate"), ("static", "session")];

/// The options of `capi`.
#[derive(Args)]
pub(crate) struct CapiArgs {
    /// Install the library into this folder
    #[arg(long, value_name = "DIR", required_unless_present = "check")]
    prefix: Option<PathBuf>,
    /// Build and run the examples and the Node package against the library, in a folder away from the checkout
    #[arg(long)]
    check: bool,
    /// Cargo profile of the library
    #[arg(long, default_value = "release")]
    profile: String,
}

/// Builds, installs and checks the library.
pub(crate) fn run(options: &CapiArgs) -> Result<(), XtaskError> {
    let libraries = build(&options.profile)?;
    if let Some(prefix) = &options.prefix {
        install(&libraries, prefix)?;
        println!("{}", prefix.display());
    }
    if !options.check {
        return Ok(());
    }
    require_tools()?;
    let away = Away::new()?;
    install(&libraries, &away.prefix())?;
    away.check(&LIBRARY_KINDS)
}

/// Checks an installed library that has no static one: its examples, and the Node package.
pub(crate) fn check_shared(prefix: &Path) -> Result<(), XtaskError> {
    require_tools()?;
    let away = Away::new()?;
    copy(prefix, &away.prefix())?;
    away.check(&LIBRARY_KINDS[..1])
}

fn require_tools() -> Result<(), XtaskError> {
    TOOLS
        .iter()
        .try_for_each(|(program, packages)| require(program, packages))
}

/// Builds the libraries with all executors. Returns their folder.
fn build(profile: &str) -> Result<PathBuf, XtaskError> {
    let mut cargo = process::cargo();
    cargo.args([
        "build",
        "--package",
        "tercet-c",
        "--all-features",
        "--profile",
        profile,
    ]);
    process::run(&mut cargo)?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(target_dir().join(folder))
}

/// Checks that a program is installed, and installs it if that is possible.
fn require(program: &'static str, packages: &[&'static str]) -> Result<(), XtaskError> {
    let works = || process::works(Command::new(program).arg("--version"));
    if works() {
        return Ok(());
    }
    if process::can_install() {
        process::apt_install(packages)?;
    }
    match works() {
        true => Ok(()),
        false => Err(XtaskError::NoTool {
            program,
            packages: packages.join(" "),
        }),
    }
}

/// Copies libraries, header and package files to a prefix.
pub(crate) fn install(libraries: &Path, prefix: &Path) -> Result<(), XtaskError> {
    let source = process::root().join(CRATE);
    let lib = prefix.join("lib");
    for name in [
        "libtercet.so",
        "libtercet.dylib",
        "tercet.dll",
        "tercet.dll.lib",
        "libtercet.dll.a",
        "libtercet.a",
        "tercet.lib",
    ] {
        let built = libraries.join(name);
        if built.exists() {
            copy(&built, &lib.join(name))?;
        }
    }
    let header = source.join("include").join("tercet.h");
    copy(&header, &prefix.join("include").join("tercet.h"))?;
    let cmake = lib.join("cmake").join("Tercet");
    for (name, to) in [
        ("TercetConfig.cmake", cmake.join("TercetConfig.cmake")),
        (
            "TercetConfigVersion.cmake",
            cmake.join("TercetConfigVersion.cmake"),
        ),
        ("tercet.pc", lib.join("pkgconfig").join("tercet.pc")),
    ] {
        let from = source.join("packaging").join(name);
        let text = fs::read_to_string(&from).map_err(error::file("read", &from))?;
        create_parent(&to)?;
        let text = text.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
        fs::write(&to, text).map_err(error::file("write", &to))?;
    }
    Ok(())
}

fn create_parent(path: &Path) -> Result<(), XtaskError> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(error::file("create", parent))
}

/// Copies a file, or a folder without its ignored `build` folder.
fn copy(from: &Path, to: &Path) -> Result<(), XtaskError> {
    if !from.is_dir() {
        create_parent(to)?;
        return match fs::copy(from, to) {
            Ok(_) => Ok(()),
            Err(e) => Err(error::file("copy", from)(e)),
        };
    }
    for entry in fs::read_dir(from).map_err(error::file("read", from))? {
        let entry = entry.map_err(error::file("read", from))?;
        if entry.file_name() != "build" {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// A folder away from the checkout, which is removed at the end.
struct Away {
    dir: PathBuf,
}

impl Drop for Away {
    fn drop(&mut self) {
        // A folder that is left is only a temporary one.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Away {
    fn new() -> Result<Away, XtaskError> {
        let dir = std::env::temp_dir().join(format!("tercet-capi-{}", std::process::id()));
        fs::create_dir_all(&dir).map_err(error::file("create", &dir))?;
        Ok(Away { dir })
    }

    fn prefix(&self) -> PathBuf {
        self.dir.join("prefix")
    }

    fn data(&self, name: &str) -> PathBuf {
        self.dir.join("data").join(name)
    }

    fn copy_inputs(&self) -> Result<(), XtaskError> {
        let root = process::root();
        copy(
            &root.join(CRATE).join("examples"),
            &self.dir.join("examples"),
        )?;
        copy(&root.join("node"), &self.dir.join("node"))?;
        let data = root.join("tests").join("data");
        DATA.iter()
            .try_for_each(|name| copy(&data.join(name), &self.data(name)))
    }

    /// A program that runs in the folder and sees no variable of cargo.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.dir);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CARGO") {
                command.env_remove(name);
            }
        }
        command
    }

    /// The examples with their arguments.
    fn examples(&self) -> [(&'static str, Vec<PathBuf>); 6] {
        let model = self.data(DATA[0]);
        let text = |text: &str| PathBuf::from(text);
        [
            ("session", vec![self.data(DATA[4])]),
            ("generate", vec![model.clone()]),
            (
                "embed",
                vec![self.data(DATA[1]), text("one text"), text("another")],
            ),
            ("transcribe", vec![self.data(DATA[2]), self.data(DATA[3])]),
            ("bad_input", vec![model.clone()]),
            ("generate_cpp", vec![model]),
        ]
    }

    fn check(&self, kinds: &[(&str, &str)]) -> Result<(), XtaskError> {
        self.copy_inputs()?;
        self.check_cmake()?;
        self.check_pkg_config(kinds)?;
        self.check_node()
    }

    fn check_cmake(&self) -> Result<(), XtaskError> {
        let build = self.dir.join("build");
        let mut configure = self.command("cmake");
        configure.arg("-S").arg("examples").arg("-B").arg(&build);
        configure.arg("-DSANITIZE=ON");
        let prefix = self.prefix();
        configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
        process::run(&mut configure)?;
        process::run(
            self.command("cmake")
                .arg("--build")
                .arg(&build)
                .args(["--parallel", "2"]),
        )?;
        for (name, arguments) in self.examples() {
            println!("\n-- {name}, with AddressSanitizer");
            let mut example = self.command(build.join(name));
            example.args(arguments);
            example.env("ASAN_OPTIONS", "detect_leaks=1:strict_string_checks=1");
            // Leaks of Vulkan drivers are not those of the library.
            example
                .env("VK_DRIVER_FILES", "none")
                .env("VK_ICD_FILENAMES", "none");
            process::run(&mut example)?;
        }
        Ok(())
    }

    fn check_pkg_config(&self, kinds: &[(&str, &str)]) -> Result<(), XtaskError> {
        let flags = |arguments: &[&str]| -> Result<Vec<String>, XtaskError> {
            let mut command = self.command("pkg-config");
            command.env(
                "PKG_CONFIG_PATH",
                self.prefix().join("lib").join("pkgconfig"),
            );
            let flags = process::output(command.args(arguments).arg("tercet"))?;
            let flags = String::from_utf8_lossy(&flags);
            Ok(flags.split_whitespace().map(str::to_string).collect())
        };
        let lib = self.prefix().join("lib");
        let examples = self.examples();
        for (kind, name) in kinds {
            let is_static = *kind == "static";
            let arguments = examples.iter().find(|(example, _)| example == name);
            let arguments = arguments.map_or(&[][..], |(_, arguments)| arguments);
            println!("\n-- {name}, with pkg-config and the {kind} library");
            let program = self.dir.join(format!("{name}-{kind}"));
            let mut compile = self.command("cc");
            compile
                .arg(format!("examples/{name}.c"))
                .arg("-o")
                .arg(&program);
            compile.args(flags(&["--cflags"])?);
            match is_static {
                true => {
                    let all = flags(&["--static", "--libs"])?;
                    compile.arg(lib.join("libtercet.a"));
                    compile.args(all.into_iter().filter(|flag| flag != "-ltercet"));
                }
                false => {
                    compile.args(flags(&["--libs"])?).arg("-lpthread");
                }
            }
            process::run(&mut compile)?;
            let mut example = self.command(&program);
            if !is_static {
                example.env("LD_LIBRARY_PATH", &lib);
            }
            process::run(example.args(arguments))?;
        }
        Ok(())
    }

    fn check_node(&self) -> Result<(), XtaskError> {
        println!("\n-- the Node package");
        let node = self.dir.join("node");
        let mut build = self.command("node");
        process::run(build.arg("build.js").arg(self.prefix()).current_dir(&node))?;
        let mut tests = self.command("node");
        tests
            .args(["--test", "test/tercet.test.js"])
            .current_dir(&node);
        tests.env("TERCET_TEST_DATA", self.dir.join("data"));
        process::run(&mut tests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::SELECTION;

    /// The packages with their features that a build of `selection` contains.
    fn built(selection: &[&str], edges: &str) -> Vec<String> {
        let mut tree = process::cargo();
        tree.args(["tree", "--locked", "--prefix", "none", "--edges", edges]);
        tree.args(["--format", "{p} [{f}]"]).args(selection);
        let lines = process::output(tree.current_dir(process::root())).expect("cargo tree");
        let lines = String::from_utf8(lines).expect("UTF-8");
        let lines = lines
            .lines()
            .map(|line| line.trim_end_matches(" (*)").to_string());
        lines.collect()
    }

    #[test]
    fn the_library_is_made_of_what_the_tests_are_built_with() {
        let tests = built(&SELECTION[1..], "normal,build,dev");
        let library = built(&["--package", "tercet-c", "--all-features"], "normal,build");
        assert!(library.len() > 100);
        let differ: Vec<_> = library
            .iter()
            .filter(|line| !tests.contains(line))
            .collect();
        assert!(
            differ.is_empty(),
            "enable these features in {CRATE}/Cargo.toml: {differ:?}"
        );
    }

    #[test]
    fn the_node_package_has_the_version_of_the_workspace() {
        let path = process::root().join("node").join("package.json");
        let text = fs::read_to_string(path).expect("package.json");
        let package: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(package["version"], env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn each_data_file_of_the_check_exists() {
        let data = process::root().join("tests").join("data");
        assert!(DATA.iter().all(|name| data.join(name).exists()));
    }
}
