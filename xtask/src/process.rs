//! Runs other programs. Start failures and nonzero exit codes become typed errors.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{self, XtaskError};
use crate::test_compiler;

/// Runs `command` with inherited standard streams and waits for it.
pub(crate) fn run(command: &mut Command) -> Result<(), XtaskError> {
    let status = command
        .status()
        .map_err(|source| start_error(command, source))?;
    if status.success() {
        Ok(())
    } else {
        Err(XtaskError::Failed {
            command: shown(command),
            status,
        })
    }
}

/// A command that runs in parallel with others, with a name for the output.
pub(crate) struct ParallelCommand {
    pub(crate) name: String,
    pub(crate) command: Command,
}

/// Runs commands in parallel, one per processor. The output of each, including standard error, is
/// printed when it exits, with its duration in seconds. A command that takes longer than `limit` is
/// killed.
///
/// # Errors
/// The error of the first failed command in list order; all commands run to completion.
pub(crate) fn run_together(tasks: Vec<ParallelCommand>, limit: Duration) -> Result<(), XtaskError> {
    let count = tasks.len();
    let waiting = Mutex::new(tasks.into_iter().enumerate());
    let next = || {
        waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next()
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let worker = || -> Vec<(usize, XtaskError)> {
        let ended = std::iter::from_fn(next).map(|(at, task)| (at, run_aside(task, limit)));
        ended
            .filter_map(|(at, result)| Some((at, result.err()?)))
            .collect()
    };
    let mut failed = thread::scope(|scope| {
        let worker = &worker;
        let workers: Vec<_> = (0..processors.min(count))
            .map(|_| scope.spawn(worker))
            .collect();
        // Join all threads before the first failure is returned.
        let failed = workers.into_iter().map(|thread| match thread.join() {
            Ok(failed) => failed,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        failed.flatten().collect::<Vec<_>>()
    });
    failed.sort_by_key(|(at, _)| *at);
    failed
        .into_iter()
        .next()
        .map_or(Ok(()), |(_, error)| Err(error))
}

/// Runs a command and prints its captured output after it has exited.
fn run_aside(task: ParallelCommand, limit: Duration) -> Result<(), XtaskError> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let ParallelCommand { name, mut command } = task;
    let at = COUNT.fetch_add(1, Ordering::Relaxed);
    // A file instead of a pipe, because leftover child processes would keep a pipe open.
    let path = std::env::temp_dir().join(format!("xtask-{}-{at}", std::process::id()));
    let start = Instant::now();
    let status = {
        let printed = File::create(&path).map_err(error::file("create", &path))?;
        let errors = printed.try_clone().map_err(error::file("open", &path))?;
        command.stdin(Stdio::null()).stdout(printed).stderr(errors);
        let child = command.spawn();
        child.and_then(|child| ended(child, start, limit))
    };
    let printed = fs::read(&path).map_err(error::file("read", &path));
    // Ignore errors: a leftover file in the temporary folder is harmless.
    let _ = fs::remove_file(&path);
    let mut out = std::io::stdout().lock();
    // Ignore errors: standard output may be closed.
    let _ = writeln!(out, "{:5} s  {name}", start.elapsed().as_secs());
    let _ = out.write_all(&printed?);
    let _ = out.flush();
    match status {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(XtaskError::Failed {
            command: shown(&command),
            status,
        }),
        Ok(None) => Err(XtaskError::TimeOut {
            command: shown(&command),
            limit,
        }),
        Err(source) => Err(start_error(&command, source)),
    }
}

/// The interval for checking whether a process has exited.
const POLL: Duration = Duration::from_millis(20);

/// Waits for a process; `None` if it was killed because it exceeded the limit.
fn ended(mut child: Child, start: Instant, limit: Duration) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Runs `command` and returns its standard output; its standard error stays visible.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, XtaskError> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| start_error(command, source))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(XtaskError::Failed {
            command: shown(command),
            status: output.status,
        })
    }
}

/// Runs `command` and returns its standard output, whatever its exit code; its standard error stays
/// visible. It is killed if it takes longer than `limit`.
pub(crate) fn limited_output(mut command: Command, limit: Duration) -> Result<String, XtaskError> {
    let start = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|source| start_error(&command, source))?;
    let pipe = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        // A pipe that breaks gives the text until then.
        let _ = pipe.map(|mut pipe| io::Read::read_to_end(&mut pipe, &mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let status = ended(child, start, limit).map_err(|source| start_error(&command, source))?;
    match (status, reader.join()) {
        (Some(_), Ok(text)) => Ok(text),
        (Some(_), Err(panic)) => std::panic::resume_unwind(panic),
        (None, _) => Err(XtaskError::TimeOut {
            command: shown(&command),
            limit,
        }),
    }
}

/// Whether `command` starts and succeeds; its output is discarded.
pub(crate) fn works(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether Debian packages can be installed without a prompt: as root, with `apt-get`.
pub(crate) fn can_install() -> bool {
    let root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|o| o.stdout == b"0\n");
    root && works(Command::new("apt-get").arg("--version"))
}

/// Installs Debian packages.
pub(crate) fn apt_install(packages: &[&str]) -> Result<(), XtaskError> {
    let apt = || {
        let mut command = Command::new("apt-get");
        command.arg("-qq").env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    run(apt().arg("update"))?;
    run(apt().args(["install", "--yes"]).args(packages))
}

/// The cargo that runs this program, in the workspace root.
pub(crate) fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(root());
    share_outputs(&mut command);
    command
}

/// Makes a command that starts cargo compile test programs by [`test_compiler`], unless the caller
/// has set another wrapper. Commands with and without the wrapper share no outputs of the workspace.
pub(crate) fn share_outputs(command: &mut Command) {
    let own = std::env::current_exe().ok();
    let own = own.filter(|path| test_compiler::is_wrapper(path));
    if let Some(own) = own.filter(|_| std::env::var_os(test_compiler::WRAPPER).is_none()) {
        command.env(test_compiler::WRAPPER, own);
    }
}

/// The folder of cargo's build outputs.
pub(crate) fn target_dir() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    target.map_or_else(|| root().join("target"), PathBuf::from)
}

/// The root folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent()
        .expect("invariant: xtask is a folder of the workspace")
        .to_owned()
}

fn start_error(command: &Command, source: std::io::Error) -> XtaskError {
    XtaskError::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_exit_names_the_command() {
        let error = run(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(matches!(error, XtaskError::Failed { .. }));
        assert_eq!(error.to_string(), "`sh -c exit 3` failed (exit status: 3)");
    }

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn commands_side_by_side_meet_and_all_end() {
        let run = |commands: Vec<Command>| {
            let tasks = commands.into_iter().map(|command| ParallelCommand {
                name: "together".to_string(),
                command,
            });
            run_together(tasks.collect(), Duration::from_secs(60))
        };
        let file = |name: &str| {
            let id = std::process::id();
            std::env::temp_dir().join(format!("xtask-together-{id}-{name}"))
        };
        let (a, b, c) = (file("a"), file("b"), file("c"));
        // Each of the first two commands waits for a file that the other one creates.
        let meet = |own: &Path, other: &Path| {
            let mut command = Command::new("sh");
            let script = "touch \"$0\"; for i in $(seq 500); do test -e \"$1\" && exit 0; sleep 0.01; done; exit 1";
            command.args(["-c", script]).arg(own).arg(other);
            command
        };
        run(vec![meet(&a, &b), meet(&b, &a)]).unwrap();
        let mut late = Command::new("sh");
        late.args(["-c", "sleep 0.05; touch \"$0\""]).arg(&c);
        let error = run(vec![sh("exit 4"), late]).unwrap_err();
        assert!(error.to_string().contains("exit 4"), "{error}");
        for path in [a, b, c] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_command_that_does_not_end_is_killed_and_named() {
        let limit = Duration::from_millis(100);
        let tasks = [sh("exec sleep 60"), sh("printf done")].map(|command| ParallelCommand {
            name: "limited".to_string(),
            command,
        });
        let start = Instant::now();
        let error = run_together(tasks.into(), limit).unwrap_err();
        assert!(matches!(error, XtaskError::TimeOut { .. }), "{error}");
        assert!(error.to_string().contains("exec sleep 60"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(error.to_string().contains("`no-such-program-here`"));
        assert!(!works(&mut Command::new("no-such-program-here")));
    }

    #[test]
    fn the_root_holds_the_workspace() {
        assert!(root().join("Cargo.toml").is_file());
        assert!(root().join("xtask").is_dir());
    }
}
